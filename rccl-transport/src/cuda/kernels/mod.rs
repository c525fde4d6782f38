//! The kernels: loaded once for a context, launched with one struct of parameters each.
//!
//! | kernel | for | wire bytes a rank, all-reduce of `S` over `n` | hops |
//! | --- | --- | --- | --- |
//! | `ll_oneshot` | small | `2S` sent, `2S(n-1)` received | 1 |
//! | `stripe_oneshot` | middle | `S` sent, `S(n-1)` received | 1 |
//! | `stripe_relay` | middle, from 3 ranks on | `S` sent, `2S(n-1)/n` received | 2 |
//! | `reduce_local` | what copy engines have brought | none | 0 |
//!
//! All keep their state (epochs, sequence numbers) in device memory and advance it themselves, so launches can be captured
//! and replayed. All ranks must launch the same kernels with the same count, shape and chunk size in the same order. The
//! blocks of the first three wait for peers: the grids of all ranks on a device must fit it together (see
//! [`Kernels::resident_blocks`]).

mod images;
mod params;

use rccl_core::DataType;

pub use params::{
    LINE_BYTES, LlParams, MAX_BLOCKS, MAX_RANKS, ReduceParams, STRIPE_SERVICE_THREADS, STRIPE_WORDS_BYTES,
    StripeParams,
};

use super::{Attribute, Function, Module, PrimaryContext, Shape, Stream};
use crate::{Error, Result};

/// A kind of kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Small all-reduce.
    LlOneshot,
    /// Middle-sized all-reduce, one hop.
    StripeOneshot,
    /// Middle-sized all-reduce, two hops.
    StripeRelay,
    /// Sum of buffers of the device.
    ReduceLocal,
}

impl Kernel {
    const ALL: [Self; 4] = [Self::LlOneshot, Self::StripeOneshot, Self::StripeRelay, Self::ReduceLocal];

    const fn name(self) -> &'static str {
        match self {
            Self::LlOneshot => "rccl_ll_oneshot",
            Self::StripeOneshot => "rccl_stripe_oneshot",
            Self::StripeRelay => "rccl_stripe_relay",
            Self::ReduceLocal => "rccl_reduce_local",
        }
    }
}

const TYPES: [DataType; 3] = [DataType::Float, DataType::Half, DataType::Bfloat16];

/// All kernels, loaded for one context and looked up: nothing is loaded later, when something may spin.
#[derive(Debug, Clone)]
pub struct Kernels {
    image: &'static str,
    functions: [[Function; TYPES.len()]; Kernel::ALL.len()],
    multiprocessors: u32,
}

impl Kernels {
    /// Loads them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a device older than compute capability 7.5; [`Error::Device`] if the driver takes none of
    /// the images: then what it said of the best one.
    pub fn load(context: &PrimaryContext) -> Result<Self> {
        let (major, minor) = context.device().capability()?;
        let mut first_error = None;
        for image in images::for_capability((major, minor)) {
            match Self::load_image(context, image) {
                Ok(kernels) => return Ok(kernels),
                Err(error) => {
                    tracing::debug!(image = image.name, %error, "the driver does not take this image");
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| Error::Unavailable {
            what: format!("a device of compute capability {major}.{minor}"),
            reason: "the kernels need 7.5 (Turing) or newer; use host buffers".to_owned(),
        }))
    }

    fn load_image(context: &PrimaryContext, image: &'static images::Image) -> Result<Self> {
        // SAFETY: an embedded image is whole.
        let module = unsafe { Module::load(context, image.bytes) }?;
        let mut functions = Vec::with_capacity(Kernel::ALL.len());
        for kernel in Kernel::ALL {
            let [float, half, bfloat16] =
                TYPES.map(|data_type| module.function(&format!("{}_{}", kernel.name(), data_type.name())));
            let each = [float?, half?, bfloat16?];
            each.iter().try_for_each(Function::load)?;
            functions.push(each);
        }
        let functions = functions.try_into().unwrap_or_else(|_| unreachable!("one entry for each kernel"));
        let multiprocessors = context.device().attribute(Attribute::MULTIPROCESSORS)?.unsigned_abs();
        Ok(Self { image: image.name, functions, multiprocessors })
    }

    /// The image that is loaded, such as `sm_90.cubin`.
    #[must_use]
    pub const fn image(&self) -> &'static str {
        self.image
    }

    /// One of the kernels.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a type that has none.
    pub fn function(&self, kernel: Kernel, data_type: DataType) -> Result<&Function> {
        let position =
            TYPES.iter().position(|&known| known == data_type).ok_or_else(|| Error::Unavailable {
                what: format!("{} of {data_type} on the device", kernel.name()),
                reason: "there are kernels for float, half and bfloat16".to_owned(),
            })?;
        Ok(&self.functions[kernel as usize][position])
    }

    /// The largest grid of `threads` threads a block that the device holds at once, if nothing else runs there. Divide it
    /// by the ranks that share the device.
    ///
    /// # Errors
    /// As [`Kernels::function`]; [`Error::Device`].
    pub fn resident_blocks(&self, kernel: Kernel, data_type: DataType, threads: u32) -> Result<u32> {
        let each = self.function(kernel, data_type)?.blocks_per_multiprocessor(threads)?;
        Ok(each * self.multiprocessors)
    }

    /// Enqueues a small all-reduce.
    ///
    /// # Errors
    /// [`Error::Invalid`] for parameters that cannot work, [`Error::Device`].
    ///
    /// # Safety
    /// Every address must be valid and used as [`LlParams`] says until the kernel is done, and all ranks must launch alike.
    pub unsafe fn ll_oneshot(
        &self,
        stream: &Stream,
        shape: Shape,
        data_type: DataType,
        p: &LlParams,
    ) -> Result<()> {
        p.check(data_type, shape)?;
        // SAFETY: the layout is asserted on both sides; the caller vouches for the addresses.
        unsafe { self.function(Kernel::LlOneshot, data_type)?.launch(stream, shape, p) }
    }

    /// Enqueues a middle-sized all-reduce of one hop: one block a stripe, its last two warps at the service of the others.
    ///
    /// # Errors
    /// As [`Kernels::ll_oneshot`].
    ///
    /// # Safety
    /// As [`Kernels::ll_oneshot`], for [`StripeParams`].
    pub unsafe fn stripe_oneshot(
        &self,
        stream: &Stream,
        shape: Shape,
        data_type: DataType,
        p: &StripeParams,
    ) -> Result<()> {
        p.check(data_type, shape, false)?;
        // SAFETY: the layout is asserted on both sides; the caller vouches for the addresses.
        unsafe { self.function(Kernel::StripeOneshot, data_type)?.launch(stream, shape, p) }
    }

    /// Enqueues a middle-sized all-reduce through the relay.
    ///
    /// # Errors
    /// As [`Kernels::ll_oneshot`].
    ///
    /// # Safety
    /// As [`Kernels::ll_oneshot`], for [`StripeParams`].
    pub unsafe fn stripe_relay(
        &self,
        stream: &Stream,
        shape: Shape,
        data_type: DataType,
        p: &StripeParams,
    ) -> Result<()> {
        p.check(data_type, shape, true)?;
        // SAFETY: the layout is asserted on both sides; the caller vouches for the addresses.
        unsafe { self.function(Kernel::StripeRelay, data_type)?.launch(stream, shape, p) }
    }

    /// Enqueues the sum of buffers of the device.
    ///
    /// # Errors
    /// As [`Kernels::ll_oneshot`].
    ///
    /// # Safety
    /// The buffers must be valid, and used by nobody else, until the kernel is done.
    pub unsafe fn reduce_local(
        &self,
        stream: &Stream,
        shape: Shape,
        data_type: DataType,
        p: &ReduceParams,
    ) -> Result<()> {
        p.check(data_type, shape)?;
        // SAFETY: the layout is asserted on both sides; the caller vouches for the addresses.
        unsafe { self.function(Kernel::ReduceLocal, data_type)?.launch(stream, shape, p) }
    }
}
