//! The C ABI of rccl.
//!
//! Every exported function runs its body in [`boundary::guard`], answers with a code of [`Status`] or with a pointer that is NULL on
//! failure, and is declared in `include/rccl_ffi.h`, which `cargo xtask header` generates.
//!
//! The library is never called `librccl.so` and its header never `rccl.h`: those are AMD's.

pub mod boundary;
mod status;
mod version;

pub use status::{Status, rccl_status_t, rccl_status_text};
pub use version::rccl_version;
