//! The C ABI of rccl.
//!
//! Every exported function runs its body in [`boundary::guard`], answers with a code of [`Status`] or with a pointer that is NULL on
//! failure, and is declared in `include/rccl_ffi.h`, which `cargo xtask header` generates.
//!
//! Besides, it is a network plugin of NCCL: [`net`] has the tables that NCCL looks up.
//!
//! The library is never called `librccl.so` and its header never `rccl.h`: those are AMD's.

pub mod boundary;
mod communicator;
mod cuda;
mod last_error;
mod names;
/// cbindgen:ignore
pub mod net;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod old_glibc;
mod status;
mod version;

pub use communicator::{
    rccl_all_reduce, rccl_communicator, rccl_communicator_abort, rccl_communicator_async_error,
    rccl_communicator_create, rccl_communicator_destroy, rccl_unique_id, rccl_unique_id_create,
};
pub use cuda::{
    rccl_cuda_all_reduce, rccl_cuda_communicator, rccl_cuda_communicator_create,
    rccl_cuda_communicator_destroy,
};
pub use last_error::rccl_last_error_text;
pub use names::{rccl_data_type, rccl_operator};
pub use status::{Status, rccl_status_t, rccl_status_text};
pub use version::rccl_version;
