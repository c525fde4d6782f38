//! How rccl moves bytes: registered memory, channels, stations in shared memory, host reduction and bootstrap.
//!
//! Knows ranks, data types and operators from [`rccl_core`], but nothing of plans being run: that is the `rccl` crate's
//! part.

pub mod channel;
pub mod connect;
pub mod cuda;
pub mod deadline;
mod ends;
mod error;
mod fault;
pub mod hello;
pub mod host;
mod inbox;
pub mod interface;
mod member;
pub mod membership;
mod outbox;
mod reception;
pub mod reduce;
pub mod region;
pub mod rendezvous;
pub mod secret;
pub mod shm;
pub mod sim;
pub mod station;
mod sys;
pub mod tcp;
mod unique_id;
pub mod verbs;
mod wire;

pub use error::{Error, Result};
pub use hello::{Hello, PeerHello, Purpose};
pub use host::HostId;
pub use membership::{JoinOptions, Member, Membership, join};
pub use region::{Region, Slice};
pub use rendezvous::{Root, RootOptions};
pub use secret::Secret;
pub use unique_id::UniqueId;
