//! Requests: what NCCL polls. Each connection has a fixed number; NCCL gets the address of one.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering},
};

use rccl_transport::channel::{Lengths, MAX_GROUP};

use super::Connection;

const FREE: u8 = 0;
const PENDING: u8 = 1;
const DONE: u8 = 2;

/// One request of a connection.
#[derive(Debug)]
pub(in crate::net) struct Request {
    connection: *const Connection,
    state: AtomicU8,
    parts: AtomicUsize,
    lengths: [AtomicI32; MAX_GROUP],
}

// SAFETY: the pointer is only handed out, never followed here; all else is atomic.
unsafe impl Send for Request {}
// SAFETY: as for `Send`.
unsafe impl Sync for Request {}

/// The lengths of a request's messages, as many as it has parts. NCCL counts them in an `int`: longer ones saturate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) struct Tested {
    lengths: [c_int; MAX_GROUP],
    parts: usize,
}

impl Tested {
    pub(in crate::net) fn lengths(&self) -> &[c_int] {
        &self.lengths[..self.parts]
    }
}

impl Request {
    pub(super) fn new(connection: *const Connection) -> Self {
        Self {
            connection,
            state: AtomicU8::new(FREE),
            parts: AtomicUsize::new(0),
            lengths: Default::default(),
        }
    }

    /// The connection that it belongs to, which lives at least as long.
    pub(in crate::net) const fn connection(&self) -> *const Connection {
        self.connection
    }

    /// Takes a free request into use; whether it was free.
    pub(super) fn begin(&self, parts: usize) -> bool {
        let free = self.state.load(Ordering::Acquire) == FREE;
        if free {
            self.parts.store(parts, Ordering::Relaxed);
            self.state.store(PENDING, Ordering::Release);
        }
        free
    }

    /// Its messages are there, or gone.
    pub(super) fn complete(&self, lengths: &Lengths) {
        for (slot, &bytes) in self.lengths.iter().zip(lengths.iter()) {
            slot.store(c_int::try_from(bytes).unwrap_or(c_int::MAX), Ordering::Relaxed);
        }
        self.state.store(DONE, Ordering::Release);
    }

    /// What came of it, once it is done. It is free then.
    pub(super) fn take(&self) -> Option<Tested> {
        if self.state.load(Ordering::Acquire) != DONE {
            return None;
        }
        let parts = self.parts.load(Ordering::Relaxed);
        let lengths = std::array::from_fn(|part| self.lengths[part].load(Ordering::Relaxed));
        self.state.store(FREE, Ordering::Release);
        Some(Tested { lengths, parts })
    }
}
