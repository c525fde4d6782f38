//! Protocol `bulk`: copy engines move chunks through the slots, words say who may use them, a kernel adds.
//!
//! Words are constants (full or not, free or not), so nothing counts: every call starts at slot 0 and may be captured.
//!
//! A device may run everything in one queue. Eagerly that is in the order in which it was enqueued, publishing a chunk before
//! collecting it, which makes progress. The nodes of a graph come in any order that their dependencies allow. So a graph has two
//! more: chunk k is collected after this rank has published it, and its slot published into again after that. Then a rank that
//! waits to publish chunk k waits for a peer that has not published more than k - 1 chunks, and one that waits to collect chunk
//! k for a peer that has not published more than k or collected more than k - 1: no circle of waits closes.

use super::{
    super::{
        Event, PrimaryContext, Shape, Stream, Until, WordOperation,
        kernels::{MAX_RANKS, ReduceParams},
    },
    BULK_SLOTS, BulkShape, Call, Relay, bulk_slot_bytes,
};
use crate::{Error, Result};

/// The streams of the copy engines and what orders them.
#[derive(Debug)]
pub(super) struct Engines {
    out: Stream,
    arrivals: Stream,
    start: Event,
    out_done: Event,
    /// A staging buffer has been filled, or added.
    filled: [Event; 2],
    added: [Event; 2],
    /// In graphs only: a chunk has been published; that of a slot has been collected.
    published: Event,
    collected: [Event; BULK_SLOTS],
    ordered: bool,
}

impl Engines {
    /// `ordered` engines may be captured.
    pub(super) fn new(context: &PrimaryContext, ordered: bool) -> Result<Self> {
        let event = || Event::new(context, false);
        Ok(Self {
            out: Stream::new(context)?,
            arrivals: Stream::new(context)?,
            start: event()?,
            out_done: event()?,
            filled: [event()?, event()?],
            added: [event()?, event()?],
            published: event()?,
            collected: [event()?, event()?, event()?, event()?],
            ordered,
        })
    }

    pub(super) fn is_idle(&self) -> Result<bool> {
        Ok(self.out.is_idle()? && self.arrivals.is_idle()?)
    }
}

/// Enqueues an all-reduce of one hop: everyone publishes all, collects all, and adds in rank order. The caller of
/// [`Relay::enqueue`] vouches for the buffers and the order of calls.
pub(super) fn enqueue(
    relay: &Relay,
    engines: &Engines,
    stream: &Stream,
    call: &Call,
    shape: BulkShape,
) -> Result<()> {
    check(shape, relay.ranks)?;
    let _guard = relay.context.enter()?;
    let each = (shape.chunk_bytes / call.data_type.size_bytes()) as u64;
    engines.start.record(stream)?;
    engines.out.wait_event(&engines.start)?;
    engines.arrivals.wait_event(&engines.start)?;
    let work = Work { relay, engines, stream, call };
    for number in 0..call.count.div_ceil(each) {
        let chunk = Chunk::new(call, number, each, shape.slots);
        work.publish(&chunk)?;
        work.collect(&chunk)?;
        work.add(&chunk)?;
    }
    engines.out_done.record(&engines.out)?;
    stream.wait_event(&engines.out_done)
}

fn check(shape: BulkShape, ranks: u32) -> Result<()> {
    let most = bulk_slot_bytes(ranks);
    let chunk_fits = (16..=most).contains(&shape.chunk_bytes) && shape.chunk_bytes.is_multiple_of(16);
    if chunk_fits && (1..=BULK_SLOTS).contains(&shape.slots) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "bulk shape".to_owned(),
        value: format!("{shape:?}"),
        reason: format!("chunks are multiples of 16, at most {most} bytes, in 1 to {BULK_SLOTS} slots"),
    })
}

struct Chunk {
    number: u64,
    slot: usize,
    /// Whether the call has used the slot before.
    is_reuse: bool,
    /// Bytes from the start of the buffers.
    offset: u64,
    count: u64,
    bytes: usize,
}

impl Chunk {
    fn new(call: &Call, number: u64, each: u64, slots: usize) -> Self {
        let size = call.data_type.size_bytes() as u64;
        let count = each.min(call.count - number * each);
        Self {
            number,
            slot: (number % slots as u64) as usize,
            is_reuse: number >= slots as u64,
            offset: number * each * size,
            count,
            bytes: (count * size) as usize,
        }
    }

    const fn half(&self) -> usize {
        (self.number % 2) as usize
    }
}

struct Work<'a> {
    relay: &'a Relay,
    engines: &'a Engines,
    stream: &'a Stream,
    call: &'a Call,
}

impl Work<'_> {
    fn peers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.relay.ranks).filter(|&peer| peer != self.relay.rank)
    }

    fn publish(&self, chunk: &Chunk) -> Result<()> {
        let Relay { base, rank, ranks, .. } = *self.relay;
        let Engines { out, published, collected, ordered, .. } = self.engines;
        let mine = self.relay.stations(rank);
        let free = |peer| base + mine.free(chunk.slot, peer, ranks) as u64;
        let full = |peer| base + mine.full(chunk.slot, peer, ranks) as u64;
        let taken: Vec<_> = self
            .peers()
            .flat_map(|peer| {
                [WordOperation::Wait(free(peer), Until::Equal(1)), WordOperation::Write(free(peer), 0)]
            })
            .collect();
        let filled: Vec<_> = self.peers().map(|peer| WordOperation::Write(full(peer), 1)).collect();
        let slot = base + (mine.bulk + chunk.slot * bulk_slot_bytes(ranks)) as u64;
        if *ordered && chunk.is_reuse {
            out.wait_event(&collected[chunk.slot])?;
        }
        // SAFETY: words of the arena, which outlives the stream's work.
        unsafe { out.word_operations(&taken) }?;
        // SAFETY: the slot is this rank's alone between the words; the input is only read.
        unsafe { out.copy(slot, self.call.input + chunk.offset, chunk.bytes) }?;
        // SAFETY: as above.
        unsafe { out.word_operations(&filled) }?;
        if *ordered { published.record(out) } else { Ok(()) }
    }

    fn staging(&self, peer: u32, chunk: &Chunk) -> u64 {
        let Relay { rank, ranks, .. } = *self.relay;
        let place = if peer > rank { peer - 1 } else { peer };
        let half = chunk.half() as u64 * u64::from(ranks - 1);
        self.relay.staging.start() + (half + u64::from(place)) * bulk_slot_bytes(ranks) as u64
    }

    fn collect(&self, chunk: &Chunk) -> Result<()> {
        let Relay { base, rank, ranks, .. } = *self.relay;
        let stream = &self.engines.arrivals;
        if chunk.number >= 2 {
            stream.wait_event(&self.engines.added[chunk.half()])?;
        }
        if self.engines.ordered {
            stream.wait_event(&self.engines.published)?;
        }
        for peer in self.peers() {
            let theirs = self.relay.stations(peer);
            let full = base + theirs.full(chunk.slot, rank, ranks) as u64;
            let free = base + theirs.free(chunk.slot, rank, ranks) as u64;
            let slot = base + (theirs.bulk + chunk.slot * bulk_slot_bytes(ranks)) as u64;
            let taken = [WordOperation::Wait(full, Until::Equal(1)), WordOperation::Write(full, 0)];
            // SAFETY: words of the arena, which outlives the stream's work.
            unsafe { stream.word_operations(&taken) }?;
            // SAFETY: the slot is full and stays so until its free word is set; events order the staging buffer's users.
            unsafe { stream.copy(self.staging(peer, chunk), slot, chunk.bytes) }?;
            // SAFETY: as above.
            unsafe { stream.write_word(free, 1) }?;
        }
        if self.engines.ordered {
            self.engines.collected[chunk.slot].record(stream)?;
        }
        self.engines.filled[chunk.half()].record(stream)
    }

    fn add(&self, chunk: &Chunk) -> Result<()> {
        let Self { relay, engines, stream, call } = *self;
        stream.wait_event(&engines.filled[chunk.half()])?;
        if call.input == call.output {
            // In place, the chunk must have left before the sum overwrites it.
            engines.out_done.record(&engines.out)?;
            stream.wait_event(&engines.out_done)?;
        }
        let mut source = [0; MAX_RANKS];
        for peer in 0..relay.ranks {
            let own = call.input + chunk.offset;
            source[peer as usize] = if peer == relay.rank { own } else { self.staging(peer, chunk) };
        }
        let params = ReduceParams {
            output: call.output + chunk.offset,
            count: chunk.count,
            sources: relay.ranks,
            divisor: relay.divisor(call),
            source,
        };
        // SAFETY: the buffers live until the work is done, and events order their users.
        unsafe {
            relay.kernels.reduce_local(stream, Shape { blocks: 64, threads: 512 }, call.data_type, &params)
        }?;
        engines.added[chunk.half()].record(stream)
    }
}
