//! The ring of slots that a channel's messages go through, and its two ends.
//!
//! ```text
//! page 0   nonce, two words, where the writer has it too | at 128: pieces freed, written by the reader
//! page 1   for each slot, 128 bytes: number of the piece in it, tag, total, length, written by the writer; up to 96 bytes
//! then     the slots
//! ```
//! A message is cut into pieces of at most a slot. The writer fills slot `p % SLOTS` with piece `p`, then stores `p + 1` as
//! its number (release); the reader waits for just that number (acquire), takes the piece out, and then stores how many it
//! has freed (release), which the writer waits for before it uses a slot again (acquire). So every word has one writer,
//! and nobody writes what the other may read. Pieces that are short enough travel beside their number, in one or two cache
//! lines. Of long messages the writer may *lend* pieces instead: the slot has the address and the reader takes the bytes
//! straight out of the writer's memory. Such a piece is longer, and is written only once it has been freed. After the
//! copy the reader looks whether the writer is still there, since a writer that takes its memory back closes the socket
//! first: what was read from memory in other use is thus never handed on.

use std::{
    collections::VecDeque,
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
    sys::{
        direct,
        memory::{copy, word},
    },
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

/// Bytes from which on a message is lent: finding its pages costs more than copying fewer.
const MIN_LENT_BYTES: usize = 64 << 10;

/// The most bytes of a piece that is lent, so that taking one is bounded.
const MAX_LENT_BYTES: usize = 1 << 20;

/// Says in a piece's length that it is lent.
const LENT: u64 = 1 << 63;

/// Bytes of a ring's memory.
pub(super) const RING_BYTES: usize = 2 * PAGE_BYTES + SLOTS * SLOT_BYTES;

const _: () = assert!(SLOTS * WORD_STRIDE <= PAGE_BYTES && SLOT_BYTES.is_multiple_of(PAGE_BYTES));

/// Polls that found nothing, after which the socket is asked whether the other side is still there. Asking is a system
/// call, as expensive as many looks at memory.
const POLLS_BETWEEN_CHECKS: u32 = 1024;

/// A random number in the memory, which only who maps it can know.
pub(super) type Nonce = [u64; 2];

/// Bytes of the reader's answer: the nonce, and whether it could be borrowed.
pub(super) const ANSWER_BYTES: usize = size_of::<Nonce>() + 1;

/// One side's view of a ring.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Arc<Region>,
    slots: Vec<Slot>,
    peer: Peer,
    /// The writer's process, where the reader can read its memory.
    lender: Option<i32>,
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
    /// Where the writer has it, if it is lent.
    lent: Option<u64>,
}

impl Ring {
    /// The ring in `memory`, whose other side is at the end of `socket`. `lender` is the writer's process, if its reader
    /// has found that it can read there.
    pub(super) fn new(memory: Arc<Region>, socket: UnixStream, lender: Option<i32>) -> Self {
        assert_eq!(memory.len(), RING_BYTES);
        let slot = |index| {
            let header = header(index);
            let start = 2 * PAGE_BYTES + index * SLOT_BYTES;
            let short = memory.slice(header + INLINE_OFFSET..header + WORD_STRIDE);
            Slot { short, long: memory.slice(start..start + SLOT_BYTES) }
        };
        let slots = (0..SLOTS).map(slot).collect();
        Self { slots, memory, peer: Peer { socket, idle: 0, gone: false }, lender }
    }

    fn freed(&self) -> &AtomicU64 {
        word(&self.memory, WORD_STRIDE)
    }

    /// Word `field` of a slot's header: the piece's number, tag, total, length, and its address if it is lent.
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

/// Puts the nonce into new memory, and where this process has it too, or 0.
pub(super) fn write_nonce(memory: &Region, nonce: Nonce, original: u64) {
    word(memory, 0).store(nonce[0], Relaxed);
    word(memory, 8).store(nonce[1], Relaxed);
    word(memory, 16).store(original, Relaxed);
}

/// Whether the nonce can be read in the memory of `process`, the one that wrote it.
pub(super) fn can_borrow(memory: &Region, process: i32) -> bool {
    let original = word(memory, 16).load(Relaxed);
    let seen = Region::zeroed(size_of::<Nonce>());
    original != 0
        && direct::read(process, original, &seen.slice(0..seen.len()), 0, seen.len()).is_ok()
        && [0, 8].map(|at| word(&seen, at).load(Relaxed)) == read_nonce(memory)
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
        if self.idle >= POLLS_BETWEEN_CHECKS { self.look() } else { Ok(self.gone) }
    }

    /// Whether the other side is gone by now.
    fn look(&mut self) -> Step<bool> {
        self.idle = 0;
        if !self.gone {
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
    /// Pieces lent, by number, and their messages.
    lent: VecDeque<(u64, u64)>,
}

impl RingWriter {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, written: 0, freed: 0, lent: VecDeque::with_capacity(SLOTS) }
    }

    /// Whether a slot is free.
    fn has_room(&mut self) -> Step<bool> {
        if self.written - self.freed == SLOTS as u64 {
            self.look_at_freed()?;
        }
        Ok(self.written - self.freed < SLOTS as u64)
    }

    fn look_at_freed(&mut self) -> Step<()> {
        let freed = self.ring.freed().load(Acquire);
        if !(self.freed..=self.written).contains(&freed) {
            return Err(Fault::protocol(format_args!("{freed} pieces freed of {}", self.written)));
        }
        self.freed = freed;
        Ok(())
    }

    /// Takes back what has been lent and freed; whether there was anything.
    fn take_back(&mut self, outbox: &mut Outbox) -> Step<bool> {
        if self.lent.is_empty() {
            return Ok(false);
        }
        self.look_at_freed()?;
        let before = self.lent.len();
        while let Some(&(_, message)) = self.lent.front().filter(|(number, _)| *number <= self.freed) {
            outbox.written(message);
            self.lent.pop_front();
        }
        Ok(self.lent.len() < before)
    }

    /// Fills the next slot, which is free, with the next piece, of which there is one.
    fn write(&mut self, outbox: &mut Outbox) {
        let lends = self.ring.lender.is_some() && outbox.next_remaining() >= MIN_LENT_BYTES;
        let most = if lends { MAX_LENT_BYTES } else { SLOT_BYTES };
        let Some(chunk) = outbox.next_chunk(most) else { return };
        let slot = (self.written % SLOTS as u64) as usize;
        let length = chunk.slice.len();
        self.written += 1;
        if lends {
            self.ring.field(slot, 4).store(chunk.slice.start().as_ptr() as u64, Relaxed);
            self.lent.push_back((self.written, chunk.message));
        } else {
            copy(self.ring.payload(slot, length), 0, &chunk.slice, 0, length);
        }
        let said = length as u64 | if lends { LENT } else { 0 };
        for (field, value) in [(1, chunk.tag), (2, chunk.total), (3, said)] {
            self.ring.field(slot, field).store(value, Relaxed);
        }
        self.ring.field(slot, 0).store(self.written, Release);
        if !lends {
            outbox.written(chunk.message);
        }
    }
}

impl Writer for RingWriter {
    fn advance(&mut self, outbox: &mut Outbox) -> Step<()> {
        let mut moved = self.take_back(outbox)?;
        for _ in 0..SLOTS {
            if outbox.next_offset().is_none() || !self.has_room()? {
                break;
            }
            self.write(outbox);
            moved = true;
        }
        let waits = outbox.next_offset().is_some() || !self.lent.is_empty();
        if moved {
            self.ring.peer.idle = 0;
        } else if waits && self.ring.peer.is_gone()? && !self.take_back(outbox)? {
            return Err(gone());
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
        let [tag, total, said] = [1, 2, 3].map(|field| self.ring.field(slot, field).load(Relaxed));
        let length = said & !LENT;
        let lent = (said & LENT != 0).then(|| self.ring.field(slot, 4).load(Relaxed));
        if length > if lent.is_some() { MAX_LENT_BYTES } else { SLOT_BYTES } as u64 {
            return Err(Fault::protocol(format_args!("a piece of {length} bytes")));
        }
        Ok(Some((slot, Piece { tag, total, length, lent })))
    }

    /// Takes a piece out of the writer's memory.
    fn borrow(&mut self, address: u64, target: &Slice) -> Step<()> {
        let Some(lender) = self.ring.lender else {
            return Err(Fault::protocol("a piece lent to no borrower"));
        };
        let taken = direct::read(lender, address, target, 0, target.len());
        if self.ring.peer.look()? {
            return Err(gone());
        }
        taken.map_err(|error| Fault::Lost(format!("its memory cannot be read any more: {error}")))
    }

    /// Takes pieces out as long as there are some that receives are posted for; whether there was one.
    fn take(&mut self, inbox: &mut Inbox) -> Step<bool> {
        let before = self.freed;
        while self.freed - before < SLOTS as u64 && (inbox.awaits_message() || inbox.awaits_chunk()) {
            let Some((slot, Piece { tag, total, length, lent })) = self.piece()? else { break };
            let Self { message, offset, .. } = *self;
            let Some(target) = inbox.claim(&Announcement { message, tag, total, offset, length })? else {
                break;
            };
            match lent {
                Some(address) => self.borrow(address, &target)?,
                None => copy(&target, 0, self.ring.payload(slot, target.len()), 0, target.len()),
            }
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
