use std::{fmt, ops::Range};

use crate::{
    Rank,
    plan::{Buffer, Station, StepId},
};

/// The most faults that are reported at once.
const MAX_FAULTS: usize = 32;

/// What is wrong with the plans of a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The plans do not belong together.
    #[error("the plan of rank {rank} does not fit the others: {what}")]
    Disagreement {
        /// Whose plan.
        rank: Rank,
        /// What differs.
        what: &'static str,
    },
    /// The parts of a plan contradict one another.
    #[error("rank {rank}: {what}")]
    Loop {
        /// Whose plan.
        rank: Rank,
        /// Which parts.
        what: &'static str,
    },
    /// A step contradicts itself or its plan.
    #[error("rank {rank}, step #{step}: {what}")]
    Malformed {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A step touches elements that its buffer does not have.
    #[error(
        "rank {rank}, step #{step}: its span of {buffer} starts at {start} and has {len} elements, but {buffer} has {available}"
    )]
    OutsideBuffer {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// Which buffer.
        buffer: Buffer,
        /// The span's first element.
        start: u64,
        /// The span's elements.
        len: u64,
        /// The buffer's elements.
        available: u64,
    },
    /// A step writes the input.
    #[error("rank {rank}, step #{step}: it writes the input")]
    WritesInput {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
    },
    /// A step publishes at a station that is not its rank's, or collects from one that its rank does not read.
    #[error("rank {rank}, step #{step}: this rank may not {} {station}", if *.publishes { "publish at" } else { "collect from" })]
    WrongStation {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// Which station.
        station: Station,
        /// Whether the step publishes (rather than collects).
        publishes: bool,
    },
    /// Steps of two lanes use the same end of a station, so that the order of its messages is open.
    #[error("rank {rank}, step #{step}: it uses {station} as a step of another lane does")]
    SharedEnd {
        /// Whose step.
        rank: Rank,
        /// The later of the steps.
        step: StepId,
        /// Which station.
        station: Station,
    },
    /// A reader does not collect as many messages as are published.
    #[error(
        "{station}, iteration {iteration}: {published} messages are published, but rank {reader} collects {collected}"
    )]
    Unmatched {
        /// Which station.
        station: Station,
        /// Who collects too many or too few.
        reader: Rank,
        /// In which iteration.
        iteration: u64,
        /// Messages published in that iteration.
        published: usize,
        /// Messages collected in that iteration.
        collected: usize,
    },
    /// A message is longer or shorter than its reader expects.
    #[error(
        "{station}, iteration {iteration}: step #{published_by} publishes {published} elements, but step #{collected_by} of rank {reader} collects {collected}"
    )]
    Length {
        /// Which station.
        station: Station,
        /// Who collects.
        reader: Rank,
        /// In which iteration.
        iteration: u64,
        /// The publisher's step.
        published_by: StepId,
        /// Elements it publishes.
        published: u64,
        /// The reader's step.
        collected_by: StepId,
        /// Elements it collects.
        collected: u64,
    },
    /// Steps wait for one another in a circle.
    #[error("deadlock with one slot a station{}, iteration {iteration}: {}", if *.serial { " and one queue a rank" } else { "" }, Circle(.cycle))]
    Deadlock {
        /// In which iteration.
        iteration: u64,
        /// Whether it takes a rank that runs all its steps in enqueue order (rather than its lanes side by side).
        serial: bool,
        /// Who waits for whom; the last waits for the first.
        cycle: Vec<Wait>,
    },
    /// Two steps that may run at the same time touch the same memory, and one of them writes it.
    #[error("rank {rank}{}: step #{} of iteration {} and step #{} of iteration {} may touch the same {buffer} at the same time", place(.in_place), .first.0, .first.1, .second.0, .second.1)]
    Race {
        /// Whose steps.
        rank: Rank,
        /// One step and its iteration.
        first: (StepId, u64),
        /// The other step and its iteration.
        second: (StepId, u64),
        /// A buffer that the memory belongs to.
        buffer: Buffer,
        /// Whether it takes a call in place.
        in_place: bool,
    },
    /// Two iterations touch the same memory outside scratch, one after the other, and one of them writes it.
    #[error("rank {rank}{}: step #{} of iteration {} and step #{} of iteration {} touch the same {buffer}, but iterations must not depend on each other", place(.in_place), .first.0, .first.1, .second.0, .second.1)]
    Carried {
        /// Whose steps.
        rank: Rank,
        /// One step and its iteration.
        first: (StepId, u64),
        /// The other step and its iteration.
        second: (StepId, u64),
        /// A buffer that the memory belongs to.
        buffer: Buffer,
        /// Whether it takes a call in place.
        in_place: bool,
    },
    /// A step writes the same memory twice, or overwrites elements that it has yet to read.
    #[error("rank {rank}{}, step #{step}: its spans overlap without being the same", place(.in_place))]
    OverlapsItself {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// Whether it takes a call in place.
        in_place: bool,
    },
    /// Elements of the output that no step writes.
    #[error("rank {rank}: no step writes output[{}..{}]", .output.start, .output.end)]
    Unwritten {
        /// Whose output.
        rank: Rank,
        /// Which elements.
        output: Range<u64>,
    },
    /// A step reads elements that nothing was written to in its iteration.
    #[error("rank {rank}, step #{step}, iteration {iteration}: it reads memory that was not written before")]
    Stale {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// In which iteration.
        iteration: u64,
    },
    /// A source of a reduction is marked as a contribution and is not one, or the reverse.
    #[error("rank {rank}, step #{step}: source {source_number} is {}", if *.contribution { "a contribution and not marked as one" } else { "a partial result marked as a contribution" })]
    Mark {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The source's place in the step.
        source_number: usize,
        /// Whether it is a contribution.
        contribution: bool,
    },
    /// A reduction goes on after it was finished.
    #[error("rank {rank}, step #{step}: it reduces something that is already finished")]
    FinishedTwice {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
    },
    /// A reduction ends in the output without having been finished.
    #[error("rank {rank}{}: output[{}..{}] ends unfinished", place(.in_place), .output.start, .output.end)]
    Unfinished {
        /// Whose output.
        rank: Rank,
        /// Which elements.
        output: Range<u64>,
        /// Whether it takes a call in place.
        in_place: bool,
    },
    /// A contribution is missing from the output, or is there more than once.
    #[error("rank {rank}{}: output[{}..{}] has rank {contributor}'s contribution {times} times", place(.in_place), .output.start, .output.end)]
    Times {
        /// Whose output.
        rank: Rank,
        /// Which elements.
        output: Range<u64>,
        /// Whose contribution.
        contributor: Rank,
        /// How often it is there.
        times: usize,
        /// Whether it takes a call in place.
        in_place: bool,
    },
    /// Elements that belong elsewhere end in the output.
    #[error("rank {rank}{}: output[{}..{}] has rank {}'s input from element {} on instead of rank {}'s from {} on", place(.in_place), .output.start, .output.end, .found.0, .found.1, .expected.0, .expected.1)]
    Misplaced {
        /// Whose output.
        rank: Rank,
        /// Which elements.
        output: Range<u64>,
        /// Whose input should be there, from which element on.
        expected: (Rank, u64),
        /// Whose input is there, from which element on.
        found: (Rank, u64),
        /// Whether it takes a call in place.
        in_place: bool,
    },
    /// The output of a collective that only moves elements holds something that was reduced.
    #[error("rank {rank}: output[{}..{}] was reduced, but should have been moved", .output.start, .output.end)]
    Altered {
        /// Whose output.
        rank: Rank,
        /// Which elements.
        output: Range<u64>,
    },
    /// Contributions were added in another order, or rounded more often, than the algorithm promises.
    #[error("rank {rank}: output[{}..{}] was added in the order {}, which is not {algorithm}'s, or rounded on the way", .output.start, .output.end, List(.order))]
    Order {
        /// Whose output.
        rank: Rank,
        /// Which elements.
        output: Range<u64>,
        /// The order of addition.
        order: Vec<Rank>,
        /// Whose promise it breaks.
        algorithm: crate::Algorithm,
    },
    /// Two ranks end with results that were computed differently.
    #[error("ranks 0 and {rank}: output from element {from} on was computed differently")]
    DifferentBits {
        /// The rank that differs from rank 0.
        rank: Rank,
        /// The first element that differs.
        from: u64,
    },
}

/// A step that waits for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Whose step waits.
    pub rank: Rank,
    /// Which step waits.
    pub step: StepId,
    /// What it waits for.
    pub reason: Reason,
}

/// What a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its turn: an earlier step of its lane or queue, or a step it comes after.
    Turn,
    /// A message at the station.
    Message(Station),
    /// A free slot of the station.
    Slot(Station),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turn => write!(f, "its turn after"),
            Self::Message(station) => write!(f, "a message at {station} from"),
            Self::Slot(station) => write!(f, "a free slot of {station} from"),
        }
    }
}

struct Circle<'a>(&'a [Wait]);

impl fmt::Display for Circle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Wait { rank, step, reason } in self.0 {
            write!(f, "rank {rank} step #{step} waits for {reason} ")?;
        }
        match self.0.first() {
            Some(Wait { rank, step, .. }) => write!(f, "rank {rank} step #{step}"),
            None => Ok(()),
        }
    }
}

struct List<'a>(&'a [Rank]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, rank) in self.0.iter().enumerate() {
            write!(f, "{}{rank}", if place > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

const fn place(in_place: &bool) -> &'static str {
    if *in_place { ", in place" } else { "" }
}

/// The faults found so far, without repetition.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn report(&mut self, fault: Fault) {
        if self.0.len() < MAX_FAULTS && !self.0.contains(&fault) {
            self.0.push(fault);
        }
    }

    /// Ends the examination if there was a fault.
    pub(super) fn none_so_far(&mut self) -> Result<(), Vec<Fault>> {
        if self.0.is_empty() { Ok(()) } else { Err(std::mem::take(&mut self.0)) }
    }
}
