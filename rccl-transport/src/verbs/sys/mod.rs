//! The unsafe floor of verbs: libibverbs, opened at run time, behind types that clean up after themselves.

pub mod abi;
mod context;
mod functions;
mod memory;
mod queues;

pub(crate) use context::{Context, names};
pub(crate) use functions::unavailable;
pub(crate) use memory::Registered;
pub(crate) use queues::{BATCH, Operation, Path, Queues, Sizes, Work};
