//! Runs one iteration of all ranks on expressions instead of bytes and judges what it leaves in the outputs.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
};

use super::{
    content::{Expression, Expressions, Memory, Run},
    fault::{Fault, Faults},
    layout::Layout,
    traffic::Node,
};
use crate::{
    Algorithm, Collective, Plan, Rank,
    plan::{Action, Buffer, Operand, Station, Step},
};

/// Whether the steps' spans cover the outputs.
pub(super) fn examine_coverage(plans: &[Plan], faults: &mut Faults) {
    for plan in plans {
        let mut spans: Vec<_> = plan
            .steps
            .iter()
            .flat_map(|step| step.targets.iter().map(move |target| (target, step.len)))
            .filter_map(|(target, len)| match *target {
                Operand::Local { buffer: Buffer::Output, start } => Some(start..start + len),
                _ => None,
            })
            .collect();
        let end = plan.output_len();
        spans.push(end..end);
        spans.sort_unstable_by_key(|span| span.start);
        let mut covered = 0;
        for span in spans {
            if span.start > covered {
                faults.report(Fault::Unwritten { rank: plan.group.rank(), output: covered..span.start });
            }
            covered = covered.max(span.end);
        }
    }
}

/// Runs iteration `iteration` in the given order of steps, from memory in which only the input is known, and judges the
/// outputs.
pub(super) fn examine(plans: &[Plan], in_place: bool, iteration: u64, order: &[Node], faults: &mut Faults) {
    let mut expressions = Expressions::new();
    let ranks = plans.iter().map(|plan| RankState::new(plan, in_place, &mut expressions)).collect();
    let mut run = Execution { plans, iteration, ranks, expressions, messages: HashMap::new(), faults };
    for &node in order {
        run.step(node);
    }
    let Execution { ranks, expressions, .. } = run;
    let outputs: Vec<_> = ranks.iter().zip(plans).map(|(state, plan)| state.outputs(plan)).collect();
    for (plan, output) in plans.iter().zip(&outputs) {
        for &(start, run) in output {
            Judge { plan, in_place, expressions: &expressions, start, run }.judge(faults);
        }
        if plan.request.collective == Collective::AllReduce {
            let differs = output.iter().zip(&outputs[0]).find(|(own, first)| own != first);
            let from = differs.map(|(own, _)| own.0).or((output.len() != outputs[0].len()).then_some(0));
            if let Some(from) = from {
                faults.report(Fault::DifferentBits { rank: plan.group.rank(), from });
            }
        }
    }
}

/// The memories of one rank.
struct RankState {
    layout: Layout,
    input: Memory,
    output: Memory,
    scratch: Memory,
}

impl RankState {
    fn new(plan: &Plan, in_place: bool, expressions: &mut Expressions) -> Self {
        let layout = Layout::new(plan, in_place);
        let input = expressions.intern(Expression::Input(plan.group.rank()));
        let (home, start) = layout.address(Buffer::Input, 0);
        let held = start..start + plan.input_len();
        let memory = |buffer| Memory::new(if buffer == home { held.clone() } else { 0..0 }, input);
        Self {
            layout,
            input: memory(Buffer::Input),
            output: memory(Buffer::Output),
            scratch: memory(Buffer::Scratch),
        }
    }

    fn locate(&mut self, buffer: Buffer, start: u64) -> (&mut Memory, u64) {
        let (memory, address) = self.layout.address(buffer, start);
        let memory = match memory {
            Buffer::Input => &mut self.input,
            Buffer::Output => &mut self.output,
            Buffer::Scratch => &mut self.scratch,
        };
        (memory, address)
    }

    /// What was written to the output, with the elements of the output it was written to.
    fn outputs(&self, plan: &Plan) -> Vec<(u64, Run)> {
        let (_, origin) = self.layout.address(Buffer::Output, 0);
        let written = self.output.written().into_iter().map(|(address, run)| (address - origin, run));
        debug_assert!(written.clone().all(|(start, run)| start + run.len <= plan.output_len()));
        written.collect()
    }
}

struct Execution<'a> {
    plans: &'a [Plan],
    iteration: u64,
    ranks: Vec<RankState>,
    expressions: Expressions,
    /// Messages on their way, by station and reader.
    messages: HashMap<(Station, Rank), VecDeque<Vec<Run>>>,
    faults: &'a mut Faults,
}

impl Execution<'_> {
    fn step(&mut self, node: Node) {
        let plan = &self.plans[node.rank.index()];
        let step = plan.step(node.step);
        let mut sources: Vec<_> =
            step.sources.iter().map(|source| self.read(plan, step, source.operand)).collect();
        let stale = sources.iter().flatten().any(|run| run.expression == Expressions::UNKNOWN);
        if stale {
            self.faults.report(Fault::Stale { rank: node.rank, step: node.step, iteration: self.iteration });
        }
        let result = match step.action {
            Action::Copy => sources.swap_remove(0),
            Action::Reduce { finish } => {
                self.examine_sources(node, step, &sources);
                self.expressions.reduce(&sources, finish)
            }
        };
        for &target in &step.targets {
            self.write(plan, step, target, &result);
        }
    }

    fn read(&mut self, plan: &Plan, step: &Step, operand: Operand) -> Vec<Run> {
        let rank = plan.group.rank();
        match operand {
            Operand::Local { buffer, start } => {
                let span = step.span(plan, self.iteration, buffer, start);
                let (memory, address) = self.ranks[rank.index()].locate(buffer, span.start);
                memory.read(address..address + (span.end - span.start))
            }
            Operand::Slot(station) => {
                let queue = self.messages.get_mut(&(station, rank));
                // The order of steps respects the messages, so that there is one.
                queue.and_then(VecDeque::pop_front).unwrap_or_default()
            }
        }
    }

    fn write(&mut self, plan: &Plan, step: &Step, operand: Operand, runs: &[Run]) {
        match operand {
            Operand::Local { buffer, start } => {
                let start = step.span(plan, self.iteration, buffer, start).start;
                let (memory, address) = self.ranks[plan.group.rank().index()].locate(buffer, start);
                memory.write(address, runs);
            }
            Operand::Slot(station) => {
                for reader in station.readers(plan.group.size()) {
                    self.messages.entry((station, reader)).or_default().push_back(runs.to_vec());
                }
            }
        }
    }

    fn examine_sources(&mut self, node: Node, step: &Step, sources: &[Vec<Run>]) {
        let Node { rank, step: id } = node;
        for (source_number, (source, runs)) in step.sources.iter().zip(sources).enumerate() {
            for run in runs.iter().filter(|run| run.expression != Expressions::UNKNOWN) {
                let known = self.expressions.known(run.expression);
                let contribution = matches!(known.expression, Expression::Input(_));
                if source.contribution != contribution {
                    self.faults.report(Fault::Mark { rank, step: id, source_number, contribution });
                }
                if known.finished {
                    self.faults.report(Fault::FinishedTwice { rank, step: id });
                }
            }
        }
    }
}

/// One run of elements in the output of a rank.
struct Judge<'a> {
    plan: &'a Plan,
    in_place: bool,
    expressions: &'a Expressions,
    start: u64,
    run: Run,
}

impl Judge<'_> {
    fn judge(&self, faults: &mut Faults) {
        let known = self.expressions.known(self.run.expression);
        let reduces = self.plan.request.collective.reduces();
        match &known.expression {
            // Reported by the step that read it.
            Expression::Unknown => {}
            Expression::Input(found) if !reduces => self.judge_move((*found, self.run.base), faults),
            Expression::Reduction { .. } if !reduces => {
                faults.report(Fault::Altered { rank: self.rank(), output: self.output() });
            }
            Expression::Reduction { finish: true, .. } => self.judge_sum(&known.terms, faults),
            Expression::Input(_) | Expression::Reduction { .. } => {
                let (rank, output, in_place) = (self.rank(), self.output(), self.in_place);
                faults.report(Fault::Unfinished { rank, output, in_place });
                self.judge_sum(&known.terms, faults);
            }
        }
    }

    const fn rank(&self) -> Rank {
        self.plan.group.rank()
    }

    const fn output(&self) -> Range<u64> {
        self.start..self.start + self.run.len
    }

    fn judge_move(&self, found: (Rank, u64), faults: &mut Faults) {
        let request = &self.plan.request;
        let expected = match request.collective {
            Collective::AllGather => (Rank((self.start / request.count) as u32), self.start % request.count),
            Collective::Broadcast => (request.root.unwrap_or(Rank(0)), self.start),
            _ => (request.from.unwrap_or(self.rank()), self.start),
        };
        if found != expected {
            let (rank, output, in_place) = (self.rank(), self.output(), self.in_place);
            faults.report(Fault::Misplaced { rank, output, expected, found, in_place });
        }
    }

    fn judge_sum(&self, terms: &[(Rank, u64)], faults: &mut Faults) {
        let (rank, output, in_place) = (self.rank(), self.output(), self.in_place);
        let origin = match self.plan.request.collective {
            Collective::ReduceScatter => self.plan.request.count * u64::from(rank.0),
            _ => 0,
        };
        let expected = origin + self.start;
        for &(contributor, distance) in terms {
            let found = self.run.base.wrapping_add(distance);
            if found != expected {
                faults.report(Fault::Misplaced {
                    rank,
                    output: output.clone(),
                    expected: (contributor, expected),
                    found: (contributor, found),
                    in_place,
                });
            }
        }
        let mut complete = true;
        for contributor in self.plan.group.ranks() {
            let times = terms.iter().filter(|term| term.0 == contributor).count();
            if times != 1 {
                complete = false;
                faults.report(Fault::Times { rank, output: output.clone(), contributor, times, in_place });
            }
        }
        if complete && !self.in_order(terms) {
            let order = terms.iter().map(|term| term.0).collect();
            faults.report(Fault::Order { rank, output, order, algorithm: self.plan.algorithm });
        }
    }

    /// Whether the contributions, which are complete, were added in the order that the algorithm promises.
    fn in_order(&self, terms: &[(Rank, u64)]) -> bool {
        let size = self.plan.group.size();
        match self.plan.algorithm {
            Algorithm::Oneshot | Algorithm::Relay => {
                let Expression::Reduction { sources, .. } =
                    &self.expressions.known(self.run.expression).expression
                else {
                    return false;
                };
                // As many sources as ranks: nothing was rounded on the way.
                sources.len() == size as usize && terms.is_sorted()
            }
            Algorithm::Ring => terms.windows(2).all(|pair| pair[1].0.0 == (pair[0].0.0 + 1) % size),
        }
    }
}
