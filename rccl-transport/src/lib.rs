//! How rccl moves bytes: registered memory, channels, stations in shared memory, host reduction and bootstrap.
//!
//! Knows ranks, data types and operators from [`rccl_core`], but nothing of plans being run: that is the `rccl` crate's
//! part.

pub mod channel;
pub mod deadline;
mod error;
mod fault;
pub mod hello;
mod inbox;
mod outbox;
pub mod region;
pub mod secret;
pub mod sim;
mod sys;
pub mod tcp;

pub use error::{Error, Result};
pub use hello::{Hello, PeerHello, Purpose};
pub use region::{Region, Slice};
pub use secret::Secret;
