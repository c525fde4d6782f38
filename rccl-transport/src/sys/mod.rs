//! The unsafe floor: raw memory and the system calls that take it. Everything above it is safe.

pub(crate) mod direct;
pub(crate) mod library;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod passing;
pub(crate) mod shared;
pub(crate) mod socket;
