//! How rccl moves bytes: registered memory, channels, stations in shared memory, host reduction and bootstrap.
//!
//! Knows ranks, data types and operators from [`rccl_core`], but nothing of plans being run: that is the `rccl` crate's
//! part.

pub mod channel;
pub mod cuda;
mod error;
pub mod region;

pub use error::{Error, Result};
pub use region::{Region, Slice};
