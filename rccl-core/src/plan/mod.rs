//! A collective as data: what one rank does, in steps.
//!
//! A [`Plan`] is the body of a loop. Iteration `i` of the loop works on segment `i` of every span, so a plan's size
//! depends on the number of ranks, never on the number of bytes. Each step reads some operands, copies or reduces them,
//! and writes the result to some operands. An operand is either a span of the caller's buffers or the next slot of a
//! [`Station`]; a step that writes a slot *publishes*, one that reads a slot *collects*.
//!
//! Steps stand in *lanes*. A lane runs in order: all its steps of one iteration, then those of the next. Different lanes
//! run side by side, restrained only by [`Step::after`] and by the stations' slots. The order of [`Plan::steps`] is the
//! enqueue order: a device that runs everything in one queue, iteration by iteration, in that order, must make progress
//! too.
//!
//! The same plan is proved by [`crate::check`], priced by [`crate::cost`], and run by the executors.
//!
//! *Stable*: the GPU, RDMA and plugin layers build on these types.

mod builder;
mod names;
mod request;

use serde::Serialize;

pub(crate) use builder::{Builder, contribution, input, output, pair, shared};
pub use names::{Algorithm, Collective};
pub use request::Request;

use crate::{Group, Rank, split};

/// A set of slots that one rank publishes into and other ranks read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Station {
    /// The station that `publisher` writes and every other rank of the group reads: each message is published once and
    /// collected by all of them.
    Shared {
        /// The one rank that writes.
        publisher: Rank,
    },
    /// A conduit: the station that `publisher` writes and only `reader` reads.
    Pair {
        /// The one rank that writes.
        publisher: Rank,
        /// The one rank that reads.
        reader: Rank,
    },
}

impl Station {
    /// The rank that writes the slots.
    #[must_use]
    pub const fn publisher(self) -> Rank {
        match self {
            Self::Shared { publisher } | Self::Pair { publisher, .. } => publisher,
        }
    }

    /// The ranks that read the slots, ascending.
    pub fn readers(self, size: u32) -> impl Iterator<Item = Rank> {
        (0..size).map(Rank).filter(move |&rank| match self {
            Self::Shared { publisher } => rank != publisher,
            Self::Pair { reader, .. } => rank == reader,
        })
    }
}

/// One of the caller's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffer {
    /// What the caller contributes. Never written, unless the call is in place and the output overlaps it.
    Input,
    /// Where the caller wants the result.
    Output,
    /// Memory of the executor's that holds one segment and is forgotten between iterations. Spans of it do not move with
    /// the iteration.
    Scratch,
}

/// Something a step reads or writes. Its length is the step's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operand {
    /// A span of a buffer, from element `start` on.
    Local {
        /// Which buffer.
        buffer: Buffer,
        /// First element of the span.
        start: u64,
    },
    /// The next slot of a station: written (and then published) if a target, read (and then released) if a source.
    Slot(Station),
}

/// Something a step reads, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Source {
    /// Where it is.
    pub operand: Operand,
    /// Whether it is a rank's own contribution, untouched so far: `mulsum` multiplies contributions, and only those.
    pub contribution: bool,
}

/// What a step does with its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Writes the one source to every target, bit for bit.
    Copy,
    /// Combines the sources in order in the accumulator type, rounds once, and writes the result to every target.
    Reduce {
        /// Whether this completes the reduction, so that `avg` divides by the number of ranks here.
        finish: bool,
    },
}

/// A step's place in [`Plan::steps`].
pub type StepId = u32;

/// One step of a plan's loop body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The lane it stands in, an index into [`Plan::lanes`].
    pub lane: u32,
    /// Its place within the lane.
    pub position: u32,
    /// Copy or reduce.
    pub action: Action,
    /// What it reads. One source for a copy; for a reduction all of them, in the order of addition.
    pub sources: Vec<Source>,
    /// What it writes.
    pub targets: Vec<Operand>,
    /// Elements over the whole loop; iteration `i` moves segment `i` of them, and where that is empty the step does
    /// nothing and no message is sent.
    pub len: u64,
    /// Steps of other lanes that must have run in the same iteration before this one starts.
    pub after: Vec<StepId>,
}

impl Step {
    /// The elements that iteration `iteration` of this step covers, relative to the start of its spans.
    #[must_use]
    pub fn segment(&self, plan: &Plan, iteration: u64) -> std::ops::Range<u64> {
        split::segment(self.len, plan.segment, iteration)
    }

    /// The elements of `buffer` that iteration `iteration` touches through a span starting at `start`.
    #[must_use]
    pub fn span(&self, plan: &Plan, iteration: u64, buffer: Buffer, start: u64) -> std::ops::Range<u64> {
        let segment = self.segment(plan, iteration);
        let base = if buffer == Buffer::Scratch { start } else { start + segment.start };
        base..base + (segment.end - segment.start)
    }

    /// The stations whose next slot this step reads.
    pub fn collects(&self) -> impl Iterator<Item = Station> + '_ {
        self.sources.iter().filter_map(|source| match source.operand {
            Operand::Slot(station) => Some(station),
            Operand::Local { .. } => None,
        })
    }

    /// The stations whose next slot this step writes.
    pub fn publishes(&self) -> impl Iterator<Item = Station> + '_ {
        self.targets.iter().filter_map(|target| match *target {
            Operand::Slot(station) => Some(station),
            Operand::Local { .. } => None,
        })
    }
}

/// What one rank does in a collective.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What was asked for.
    pub request: Request,
    /// How it is done.
    pub algorithm: Algorithm,
    /// Who does it, as this rank sees it.
    pub group: Group,
    /// Elements a segment, at most.
    pub segment: u64,
    /// Elements of scratch memory: 0 or one segment.
    pub scratch_len: u64,
    /// How often the loop runs: the segments of the longest step.
    pub iterations: u64,
    /// The steps, in enqueue order.
    pub steps: Vec<Step>,
    /// The steps of each lane, in order.
    pub lanes: Vec<Vec<StepId>>,
}

impl Plan {
    /// The step with the given number.
    ///
    /// # Panics
    /// If the plan has no such step.
    #[must_use]
    pub fn step(&self, id: StepId) -> &Step {
        &self.steps[id as usize]
    }

    /// Elements of the caller's input buffer.
    #[must_use]
    pub fn input_len(&self) -> u64 {
        self.request.input_len(self.group)
    }

    /// Elements of the caller's output buffer.
    #[must_use]
    pub fn output_len(&self) -> u64 {
        self.request.output_len(self.group)
    }
}
