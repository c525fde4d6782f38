//! Protocol `bulk`: copy engines move chunks through the slots, words say who may use them, a kernel adds.
//!
//! Words are constants (full or not, free or not), so nothing counts: every call starts at slot 0 and may be captured.

use rccl_transport::{
    Result,
    cuda::{Event, PrimaryContext, Until, WordOperation},
};

use crate::{
    arena::BULK_SLOT_BYTES,
    rank::{BulkShape, Call, Rank},
};

const OUT: usize = 1;
const IN: usize = 2;

pub(crate) struct Events {
    start: Event,
    out_done: Event,
    /// A staging buffer has been filled, or added.
    filled: [Event; 2],
    added: [Event; 2],
}

impl Events {
    pub(crate) fn new(context: &PrimaryContext) -> Result<Self> {
        let event = || Event::new(context, false);
        Ok(Self {
            start: event()?,
            out_done: event()?,
            filled: [event()?, event()?],
            added: [event()?, event()?],
        })
    }
}

/// Enqueues an all-reduce of one hop: everyone publishes all, collects all, and adds in rank order.
pub(crate) fn enqueue(rank: &Rank, call: &Call, shape: BulkShape) -> Result<()> {
    let _guard = rank.context.enter()?;
    let each = (shape.chunk_bytes / call.data_type.size_bytes()) as u64;
    let chunks = call.count.div_ceil(each);
    rank.order(&rank.events.start, 0, OUT)?;
    rank.order(&rank.events.start, 0, IN)?;
    for number in 0..chunks {
        let chunk = Chunk::new(call, number, each, shape.slots);
        publish(rank, call, &chunk)?;
        collect(rank, &chunk, number)?;
        add(rank, call, &chunk, number)?;
    }
    rank.order(&rank.events.out_done, OUT, 0)
}

struct Chunk {
    slot: usize,
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
            slot: number as usize % slots,
            offset: number * each * size,
            count,
            bytes: (count * size) as usize,
        }
    }
}

fn peers(rank: &Rank) -> impl Iterator<Item = u32> + '_ {
    (0..rank.ranks).filter(|&peer| peer != rank.rank)
}

fn publish(rank: &Rank, call: &Call, chunk: &Chunk) -> Result<()> {
    let mine = rank.stations(rank.rank);
    let free = |peer| rank.base + mine.free(chunk.slot, peer, rank.ranks) as u64;
    let full = |peer| rank.base + mine.full(chunk.slot, peer, rank.ranks) as u64;
    let taken: Vec<_> = peers(rank)
        .flat_map(|peer| {
            [WordOperation::Wait(free(peer), Until::Equal(1)), WordOperation::Write(free(peer), 0)]
        })
        .collect();
    let filled: Vec<_> = peers(rank).map(|peer| WordOperation::Write(full(peer), 1)).collect();
    let slot = rank.base + (mine.bulk + chunk.slot * BULK_SLOT_BYTES) as u64;
    // SAFETY: words of the arena, which outlives the stream.
    unsafe { rank.streams[OUT].word_operations(&taken) }?;
    // SAFETY: the slot is this rank's alone between the words; the input is only read.
    unsafe { rank.streams[OUT].copy(slot, call.input + chunk.offset, chunk.bytes) }?;
    // SAFETY: as above.
    unsafe { rank.streams[OUT].word_operations(&filled) }
}

fn staging(rank: &Rank, peer: u32, number: u64) -> u64 {
    let place = if peer > rank.rank { peer - 1 } else { peer };
    let half = (number % 2) * u64::from(rank.ranks - 1);
    rank.staging.start() + (half + u64::from(place)) * BULK_SLOT_BYTES as u64
}

fn collect(rank: &Rank, chunk: &Chunk, number: u64) -> Result<()> {
    let stream = &rank.streams[IN];
    if number >= 2 {
        stream.wait_event(&rank.events.added[(number % 2) as usize])?;
    }
    for peer in peers(rank) {
        let theirs = rank.stations(peer);
        let full = rank.base + theirs.full(chunk.slot, rank.rank, rank.ranks) as u64;
        let free = rank.base + theirs.free(chunk.slot, rank.rank, rank.ranks) as u64;
        let slot = rank.base + (theirs.bulk + chunk.slot * BULK_SLOT_BYTES) as u64;
        // SAFETY: words of the arena, which outlives the stream.
        unsafe {
            stream
                .word_operations(&[WordOperation::Wait(full, Until::Equal(1)), WordOperation::Write(full, 0)])
        }?;
        // SAFETY: the slot is full and stays so until its free word is set; events order the staging buffer's users.
        unsafe { stream.copy(staging(rank, peer, number), slot, chunk.bytes) }?;
        // SAFETY: as above.
        unsafe { stream.write_word(free, 1) }?;
    }
    rank.events.filled[(number % 2) as usize].record(stream)
}

fn add(rank: &Rank, call: &Call, chunk: &Chunk, number: u64) -> Result<()> {
    let half = (number % 2) as usize;
    rank.streams[0].wait_event(&rank.events.filled[half])?;
    if call.input == call.output {
        // In place, the chunk must have left before the sum overwrites it.
        rank.order(&rank.events.out_done, OUT, 0)?;
    }
    let own = call.input + chunk.offset;
    let sources: Vec<_> = (0..rank.ranks)
        .map(|peer| if peer == rank.rank { own } else { staging(rank, peer, number) })
        .collect();
    rank.reduce(call, call.output + chunk.offset, chunk.count, &sources)?;
    rank.events.added[half].record(&rank.streams[0])
}
