use super::{Action, Algorithm, Buffer, Operand, Plan, Request, Source, Station, Step, StepId};
use crate::{Error, Group, Rank, Result, split};

/// Collects the steps of a plan. Used by the algorithms in [`crate::planner`].
pub(crate) struct Builder {
    plan: Plan,
}

impl Builder {
    /// A plan without steps, for a request that has been checked.
    pub(crate) fn new(group: Group, request: &Request, algorithm: Algorithm, segment: u64) -> Result<Self> {
        if segment == 0 {
            return Err(Error::EmptySegment);
        }
        request.check(group)?;
        let plan = Plan {
            request: *request,
            algorithm,
            group,
            segment,
            scratch_len: 0,
            iterations: 0,
            steps: Vec::new(),
            lanes: Vec::new(),
        };
        Ok(Self { plan })
    }

    /// Opens a new lane.
    pub(crate) fn lane(&mut self) -> u32 {
        self.plan.lanes.push(Vec::new());
        self.plan.lanes.len() as u32 - 1
    }

    /// Scratch memory for one segment of a span of `len` elements.
    pub(crate) fn scratch(&mut self, len: u64) -> Operand {
        self.plan.scratch_len = len.min(self.plan.segment);
        Operand::Local { buffer: Buffer::Scratch, start: 0 }
    }

    /// Appends a step to `lane`. A step without elements or without targets is left out and `None` returned.
    pub(crate) fn step(
        &mut self,
        lane: u32,
        action: Action,
        sources: Vec<Source>,
        targets: Vec<Operand>,
        len: u64,
        after: &[Option<StepId>],
    ) -> Option<StepId> {
        if len == 0 || targets.is_empty() {
            return None;
        }
        let id = self.plan.steps.len() as StepId;
        let position = self.plan.lanes[lane as usize].len() as u32;
        self.plan.lanes[lane as usize].push(id);
        let after = after.iter().copied().flatten().collect();
        self.plan.steps.push(Step { lane, position, action, sources, targets, len, after });
        Some(id)
    }

    /// Appends a copy of one operand to some others.
    pub(crate) fn copy(
        &mut self,
        lane: u32,
        source: Operand,
        targets: Vec<Operand>,
        len: u64,
        after: &[Option<StepId>],
    ) -> Option<StepId> {
        self.step(
            lane,
            Action::Copy,
            vec![Source { operand: source, contribution: false }],
            targets,
            len,
            after,
        )
    }

    /// The finished plan.
    pub(crate) fn finish(mut self) -> Plan {
        self.plan.lanes.retain(|lane| !lane.is_empty());
        for (number, lane) in self.plan.lanes.iter().enumerate() {
            for &step in lane {
                self.plan.steps[step as usize].lane = number as u32;
            }
        }
        let segment = self.plan.segment;
        self.plan.iterations =
            self.plan.steps.iter().map(|step| split::segments(step.len, segment)).max().unwrap_or(0);
        self.plan
    }
}

/// A source that is a rank's own, untouched contribution.
pub(crate) const fn contribution(operand: Operand) -> Source {
    Source { operand, contribution: true }
}

pub(crate) const fn input(start: u64) -> Operand {
    Operand::Local { buffer: Buffer::Input, start }
}

pub(crate) const fn output(start: u64) -> Operand {
    Operand::Local { buffer: Buffer::Output, start }
}

pub(crate) const fn shared(publisher: Rank) -> Operand {
    Operand::Slot(Station::Shared { publisher })
}

pub(crate) const fn pair(publisher: Rank, reader: Rank) -> Operand {
    Operand::Slot(Station::Pair { publisher, reader })
}
