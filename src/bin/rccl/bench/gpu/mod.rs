//! Collectives on buffers in GPU memory.

mod join;
mod limit;
mod ranks;
mod settings;

use rccl_transport::cuda::{Device, Driver};

use crate::error::{Error, Result};
pub(super) use limit::limit_us;
pub(super) use ranks::Ranks;
pub(super) use settings::{Gpus, usual_ranks};

/// This machine's GPUs, as the driver counts them.
///
/// # Errors
/// [`Error::Usage`] saying what is missing.
pub(super) fn devices() -> Result<u32> {
    let counted = Driver::open().and_then(|driver| Device::count(&driver));
    match counted {
        Ok(0) => Err(Error::usage(
            "--device",
            "cuda needs a GPU, and the driver shows none; see CUDA_VISIBLE_DEVICES and `rccl doctor`",
        )),
        Ok(devices) => Ok(devices),
        Err(error) => Err(Error::usage("--device", format!("cuda needs a GPU: {error}"))),
    }
}
