//! Stations: bounded sets of slots that one rank publishes into and others read.
//!
//! On one host, publisher and readers share the slots through an [`Arena`]: [`Publisher`] and [`Reader`] look at the same
//! memory. Towards another host a station is two halves joined by a channel: the publisher's half posts every slot it
//! fills, the reader's half receives into slots of its own. Neither end, nor the executor above, can tell the difference,
//! and one station may have readers of both kinds.
//!
//! A slot is 128 bytes of header and then its data:
//! ```text
//! 0    sequence   u64  number of the message, from 1; written last, with release; the only word a local reader waits for
//! 8    signature  u64  what the message belongs to; readers refuse another than their own
//! 16   payload         of messages of at most 48 bytes: they fit one cache line, sequence and all
//! 64   origin          the call in full (56 bytes) and its number, read only to explain a mismatch
//! 128  data            of longer messages
//! ```
//! Message `m` (from 0) lies in slot `m % slots`. Each reader counts the messages it has released in a word of its own;
//! the publisher fills a slot again once every reader has released what was in it. Every word has one writer.
//!
//! *Stable*: the GPU executors add their own sections to the arena and use the same rules.

mod arena;
mod layout;
mod publisher;
mod reader;

pub use arena::{Arena, Doorbell};
pub use layout::{Layout, PAGE_BYTES, SLOT_HEADER_BYTES, Sizes, WORD_STRIDE};
pub use publisher::Publisher;
pub use reader::{Message, Reader};

use std::{ptr::NonNull, sync::Arc};

use rccl_core::Rank;

use crate::{Error, Region};

/// A channel to or from another host that failed, and whose it was.
#[derive(Debug, thiserror::Error)]
#[error("station of rank {rank}: {source}")]
pub struct StationError {
    /// The rank at the other end.
    pub rank: Rank,
    /// What the channel said.
    pub source: Error,
}

type Result<T> = std::result::Result<T, StationError>;

/// Messages of at most this many bytes travel in the header.
pub const INLINE_BYTES: usize = 48;

/// Bytes of a [`Label`].
pub const LABEL_BYTES: usize = 56;

/// Travels with every message, so that a reader that expected something else can say what it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Equal if and only if (but for chance, 1 in 2^64) both sides mean the same call.
    pub signature: u64,
    /// The call in full, in the driver's own encoding.
    pub text: [u8; LABEL_BYTES],
}

/// Which of the publisher's calls a message belongs to, and the call in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Origin {
    /// The call in full, as in [`Label::text`].
    pub text: [u8; LABEL_BYTES],
    /// The call's number, as its publisher counts.
    pub number: u64,
}

const SIGNATURE_AT: usize = 8;
const INLINE_AT: usize = 16;
const ORIGIN_AT: usize = 64;
const _: () = assert!(ORIGIN_AT + size_of::<Origin>() == SLOT_HEADER_BYTES);

/// What travels over a channel: everything of a slot but the sequence number, which is local to a host.
const WIRE_AT: usize = SIGNATURE_AT;

/// Bytes of a slot's wire form for a message of `len` bytes.
const fn wire_bytes(len: usize) -> usize {
    SLOT_HEADER_BYTES - WIRE_AT + if len > INLINE_BYTES { len } else { 0 }
}

/// Where the payload of a message of `len` bytes lies in its slot.
const fn payload_at(len: usize) -> usize {
    if len <= INLINE_BYTES { INLINE_AT } else { SLOT_HEADER_BYTES }
}

/// The slots of one station (or half) in memory.
#[derive(Debug)]
struct Slots {
    region: Arc<Region>,
    start: usize,
    sizes: Sizes,
}

impl Slots {
    fn new(region: &Arc<Region>, start: usize, sizes: Sizes) -> Self {
        assert!(start + sizes.station_bytes() <= region.len(), "a station outside its region");
        assert!(
            region.start().as_ptr().addr().is_multiple_of(WORD_STRIDE),
            "a station region is not aligned"
        );
        Self { region: Arc::clone(region), start, sizes }
    }

    /// Where the slot of message `number` starts in the region.
    #[inline]
    fn offset(&self, number: u64) -> usize {
        self.start + (number % u64::from(self.sizes.slots)) as usize * self.sizes.stride()
    }

    /// Byte `at` of the slot of message `number`.
    #[inline]
    fn pointer(&self, number: u64, at: usize) -> NonNull<u8> {
        debug_assert!(at < self.sizes.stride());
        // SAFETY: `new` checked that every slot lies within the region; `at` stays within a slot.
        unsafe { self.region.start().add(self.offset(number) + at) }
    }

    #[inline]
    fn sequence(&self, number: u64) -> &std::sync::atomic::AtomicU64 {
        // SAFETY: slots are page aligned within an aligned region, so the word is aligned; `self` keeps it alive.
        unsafe { self.pointer(number, 0).cast().as_ref() }
    }
}
