//! The ring of slots that a channel's messages go through, and its two ends.
//!
//! ```text
//! page 0   nonce, two words | at 128: pieces freed, written by the reader
//! page 1   for each slot, 128 bytes: number of the piece in it, tag, total, length, written by the writer; up to 96 bytes
//! then     the slots
//! ```
//! A message is cut into pieces of at most a slot. The writer fills slot `p % SLOTS` with piece `p`, then stores `p + 1` as
//! its number (release); the reader waits for just that number (acquire), takes the piece out, and then stores how many it
//! has freed (release), which the writer waits for before it uses a slot again (acquire). So every word has one writer,
//! and nobody writes what the other may read. Pieces that are short enough travel beside their number, in one or two cache
//! lines.

use std::{
    io::{self, Read},
    os::{fd::RawFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crate::{
    Region, Slice,
    ends::{Reader, Writer},
    fault::{Fault, Step},
    inbox::{Announcement, Inbox},
    outbox::Outbox,
    sys::memory::{copy, word},
};

/// Slots of a ring: enough that both sides copy at once.
const SLOTS: usize = 16;

/// Bytes of a slot: few enough that the ring stays in the processor's caches.
const SLOT_BYTES: usize = 64 << 10;

const PAGE_BYTES: usize = 4096;

/// Bytes between words of different writers: two cache lines, since processors fetch them in pairs.
const WORD_STRIDE: usize = 128;

/// Bytes of a piece that travels beside its number.
const INLINE_BYTES: usize = WORD_STRIDE - INLINE_OFFSET;
const INLINE_OFFSET: usize = 32;

/// Bytes of a ring's memory.
pub(super) const RING_BYTES: usize = 2 * PAGE_BYTES + SLOTS * SLOT_BYTES;

const _: () = assert!(SLOTS * WORD_STRIDE <= PAGE_BYTES && SLOT_BYTES.is_multiple_of(PAGE_BYTES));

/// Polls that found nothing, after which the socket is asked whether the other side is still there. Asking is a system
/// call, as expensive as many looks at memory.
const POLLS_BETWEEN_CHECKS: u32 = 1024;

/// A random number in the memory, which only who maps it can know.
pub(super) type Nonce = [u64; 2];

/// One side's view of a ring.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Arc<Region>,
    slots: Vec<Slot>,
    peer: Peer,
}

#[derive(Debug)]
struct Slot {
    short: Slice,
    long: Slice,
}

/// What a slot's header says of its piece.
#[derive(Debug, Clone, Copy)]
struct Piece {
    tag: u64,
    total: u64,
    length: u64,
}

impl Ring {
    /// The ring in `memory`, whose other side is at the end of `socket`.
    pub(super) fn new(memory: Arc<Region>, socket: UnixStream) -> Self {
        assert_eq!(memory.len(), RING_BYTES);
        let slot = |index| {
            let header = header(index);
            let start = 2 * PAGE_BYTES + index * SLOT_BYTES;
            let short = memory.slice(header + INLINE_OFFSET..header + WORD_STRIDE);
            Slot { short, long: memory.slice(start..start + SLOT_BYTES) }
        };
        let slots = (0..SLOTS).map(slot).collect();
        Self { slots, memory, peer: Peer { socket, idle: 0, gone: false } }
    }

    fn freed(&self) -> &AtomicU64 {
        word(&self.memory, WORD_STRIDE)
    }

    /// Word `field` of a slot's header: the piece's number, tag, total, length.
    fn field(&self, slot: usize, field: usize) -> &AtomicU64 {
        word(&self.memory, header(slot) + 8 * field)
    }

    fn payload(&self, slot: usize, length: usize) -> &Slice {
        let slot = &self.slots[slot];
        if length <= INLINE_BYTES { &slot.short } else { &slot.long }
    }
}

const fn header(slot: usize) -> usize {
    PAGE_BYTES + slot * WORD_STRIDE
}

/// Puts the nonce into new memory.
pub(super) fn write_nonce(memory: &Region, nonce: Nonce) {
    word(memory, 0).store(nonce[0], Relaxed);
    word(memory, 8).store(nonce[1], Relaxed);
}

/// The nonce in the memory. The socket over which the memory came orders this after its writing.
pub(super) fn read_nonce(memory: &Region) -> Nonce {
    [word(memory, 0).load(Relaxed), word(memory, 8).load(Relaxed)]
}

/// The other side, as far as it can be seen from here.
#[derive(Debug)]
struct Peer {
    socket: UnixStream,
    idle: u32,
    gone: bool,
}

impl Peer {
    /// Counts a poll that found nothing; whether the other side is known to be gone.
    fn is_gone(&mut self) -> Step<bool> {
        self.idle += 1;
        if !self.gone && self.idle >= POLLS_BETWEEN_CHECKS {
            self.idle = 0;
            match self.socket.read(&mut [0]) {
                Ok(0) => self.gone = true,
                Ok(_) => return Err(Fault::protocol("bytes where none are due")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.gone = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.gone)
    }
}

fn gone() -> Fault {
    Fault::Lost("its process is gone or has closed the channel".into())
}

/// The side that writes pieces.
#[derive(Debug)]
pub(super) struct RingWriter {
    ring: Ring,
    written: u64,
    /// The reader's count when last looked at.
    freed: u64,
}

impl RingWriter {
    pub(super) const fn new(ring: Ring) -> Self {
        Self { ring, written: 0, freed: 0 }
    }

    /// Whether a slot is free.
    fn has_room(&mut self) -> Step<bool> {
        if self.written - self.freed == SLOTS as u64 {
            let freed = self.ring.freed().load(Acquire);
            if !(self.freed..=self.written).contains(&freed) {
                return Err(Fault::protocol(format_args!("{freed} pieces freed of {}", self.written)));
            }
            self.freed = freed;
        }
        Ok(self.written - self.freed < SLOTS as u64)
    }
}

impl Writer for RingWriter {
    fn advance(&mut self, outbox: &mut Outbox) -> Step<()> {
        for _ in 0..SLOTS {
            if outbox.next_offset().is_none() {
                break;
            }
            if !self.has_room()? {
                return if self.ring.peer.is_gone()? { Err(gone()) } else { Ok(()) };
            }
            let Some(chunk) = outbox.next_chunk(SLOT_BYTES) else { break };
            let slot = (self.written % SLOTS as u64) as usize;
            let length = chunk.slice.len();
            copy(self.ring.payload(slot, length), 0, &chunk.slice, 0, length);
            for (field, value) in [(1, chunk.tag), (2, chunk.total), (3, length as u64)] {
                self.ring.field(slot, field).store(value, Relaxed);
            }
            self.written += 1;
            self.ring.field(slot, 0).store(self.written, Release);
            outbox.written(chunk.message);
            self.ring.peer.idle = 0;
        }
        Ok(())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

/// The side that reads pieces.
#[derive(Debug)]
pub(super) struct RingReader {
    ring: Ring,
    freed: u64,
    /// The message that the next piece belongs to, and where in it the piece starts.
    message: u64,
    offset: u64,
}

impl RingReader {
    pub(super) const fn new(ring: Ring) -> Self {
        Self { ring, freed: 0, message: 0, offset: 0 }
    }

    /// The next piece, if it has been written.
    fn piece(&self) -> Step<Option<(usize, Piece)>> {
        let slot = (self.freed % SLOTS as u64) as usize;
        let number = self.ring.field(slot, 0).load(Acquire);
        if number != self.freed + 1 {
            return Ok(None);
        }
        let [tag, total, length] = [1, 2, 3].map(|field| self.ring.field(slot, field).load(Relaxed));
        if length > SLOT_BYTES as u64 {
            return Err(Fault::protocol(format_args!("a piece of {length} bytes")));
        }
        Ok(Some((slot, Piece { tag, total, length })))
    }

    /// Takes pieces out as long as there are some that receives are posted for; whether there was one.
    fn take(&mut self, inbox: &mut Inbox) -> Step<bool> {
        let before = self.freed;
        while self.freed - before < SLOTS as u64 && (inbox.awaits_message() || inbox.awaits_chunk()) {
            let Some((slot, Piece { tag, total, length })) = self.piece()? else { break };
            let Self { message, offset, .. } = *self;
            let Some(target) = inbox.claim(&Announcement { message, tag, total, offset, length })? else {
                break;
            };
            copy(&target, 0, self.ring.payload(slot, target.len()), 0, target.len());
            self.freed += 1;
            self.ring.freed().store(self.freed, Release);
            inbox.filled(message, target.len());
            self.offset += length;
            if self.offset == total {
                (self.message, self.offset) = (message + 1, 0);
            }
        }
        Ok(self.freed > before)
    }
}

impl Reader for RingReader {
    fn resume(&mut self, inbox: &mut Inbox) -> Step<()> {
        self.take(inbox).map(|_| ())
    }

    fn advance(&mut self, inbox: &mut Inbox) -> Step<()> {
        if self.take(inbox)? {
            self.ring.peer.idle = 0;
            return Ok(());
        }
        let waits = inbox.awaits_message() || inbox.awaits_chunk();
        // What the other side wrote before it went is still to be taken.
        if waits && self.ring.peer.is_gone()? && !self.take(inbox)? {
            return Err(gone());
        }
        Ok(())
    }

    fn descriptors(&self, _: &Inbox) -> Vec<RawFd> {
        Vec::new()
    }
}
