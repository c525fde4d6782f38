//! Plans as text for people.

use std::fmt::{self, Write as _};

use crate::{
    Plan,
    plan::{Action, Buffer, Operand, Station, Step, StepId},
};

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Scratch => "scratch",
        })
    }
}

impl fmt::Display for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared { publisher } => write!(f, "shared {publisher}"),
            Self::Pair { publisher, reader } => write!(f, "pair {publisher}->{reader}"),
        }
    }
}

/// A header of two lines, then the lanes with their steps. See [`Plan::describe`] for a single step.
///
/// ```
/// use rccl_core::{Algorithm, DataType, Group, Request, planner};
///
/// let request = Request::all_gather(100, DataType::Float);
/// let plan = planner::plan(Group::new(2, 0).unwrap(), &request, Algorithm::Oneshot, 64).unwrap();
/// assert_eq!(
///     plan.to_string(),
///     "all-gather by oneshot, rank 0 of 2: 100 float
/// 2 iterations, segments of 64, no scratch; spans are those of the whole loop
/// lane 0
///   #0 publish input[0..100] -> output[0..100], shared 0
/// lane 1
///   #1 collect shared 1 -> output[100..200]
/// "
/// );
/// ```
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, algorithm, group, segment, iterations, .. } = self;
        write!(f, "{} by {algorithm}, rank {} of {}: ", request.collective, group.rank(), group.size())?;
        write!(f, "{} {}", request.count, request.data_type)?;
        for (name, rank) in [("root", request.root), ("to", request.to), ("from", request.from)] {
            if let Some(rank) = rank {
                write!(f, ", {name} {rank}")?;
            }
        }
        if request.from.is_some() {
            write!(f, " ({} elements)", request.receive_count)?;
        }
        if let Some(op) = request.op {
            write!(f, ", {op}")?;
        }
        let plural = if *iterations == 1 { "" } else { "s" };
        write!(f, "\n{iterations} iteration{plural}, segments of {segment}, ")?;
        match self.scratch_len {
            0 => write!(f, "no scratch")?,
            len => write!(f, "{len} elements of scratch")?,
        }
        writeln!(f, "; spans are those of the whole loop")?;
        for (number, lane) in self.lanes.iter().enumerate() {
            writeln!(f, "lane {number}")?;
            for &id in lane {
                writeln!(f, "  {}", self.describe(id))?;
            }
        }
        Ok(())
    }
}

impl Plan {
    /// One step in words: its number, what it does, its sources and targets over the whole loop, and what it comes after.
    ///
    /// A step that only moves elements is called `publish` (local to slots), `collect` (slot to local), `forward` (slot
    /// to slots) or `copy`; one that combines is called `receive-reduce` if it adds a single message to local elements,
    /// `receive-reduce-send` if it also publishes the result, and `reduce` otherwise. `(finish)` marks the reduction that
    /// completes the result, and `partial` a source of a reduction that is no contribution.
    ///
    /// # Panics
    /// If the plan has no such step.
    ///
    /// ```
    /// use rccl_core::{Algorithm, DataType, Group, ReduceOp, Request, planner};
    ///
    /// let request = Request::all_reduce(100, DataType::Double, ReduceOp::Sum);
    /// let plan = planner::plan(Group::new(3, 1).unwrap(), &request, Algorithm::Oneshot, 64).unwrap();
    /// assert_eq!(
    ///     plan.describe(1),
    ///     "#1 reduce shared 0 + input[0..100] + shared 2 -> output[0..100] (finish) after #0"
    /// );
    /// ```
    #[must_use]
    pub fn describe(&self, id: StepId) -> String {
        let step = self.step(id);
        let reduces = matches!(step.action, Action::Reduce { .. });
        let sources = step.sources.iter().map(|source| {
            let mark = if reduces && !source.contribution { "partial " } else { "" };
            format!("{mark}{}", self.operand(step, source.operand))
        });
        let targets = step.targets.iter().map(|&target| self.operand(step, target));
        let mut text =
            format!("#{id} {} {} -> {}", word(step), joined(sources, " + "), joined(targets, ", "));
        if step.action == (Action::Reduce { finish: true }) {
            text += " (finish)";
        }
        if !step.after.is_empty() {
            let after = step.after.iter().map(|other| format!("#{other}"));
            // Writing to a string cannot fail.
            let _ = write!(text, " after {}", joined(after, ", "));
        }
        text
    }

    fn operand(&self, step: &Step, operand: Operand) -> String {
        match operand {
            Operand::Slot(station) => station.to_string(),
            Operand::Local { buffer, start } => {
                let len = if buffer == Buffer::Scratch { step.len.min(self.segment) } else { step.len };
                format!("{buffer}[{start}..{}]", start.saturating_add(len))
            }
        }
    }
}

fn word(step: &Step) -> &'static str {
    let (collects, publishes) = (step.collects().count(), step.publishes().count());
    match (step.action, collects, publishes) {
        (Action::Copy, 0, 0) => "copy",
        (Action::Copy, 0, _) => "publish",
        (Action::Copy, _, 0) => "collect",
        (Action::Copy, _, _) => "forward",
        (Action::Reduce { .. }, 1, 0) => "receive-reduce",
        (Action::Reduce { .. }, 1, _) => "receive-reduce-send",
        (Action::Reduce { .. }, _, _) => "reduce",
    }
}

fn joined(parts: impl Iterator<Item = String>, separator: &str) -> String {
    parts.collect::<Vec<_>>().join(separator)
}
