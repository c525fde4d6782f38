//! Steps of one rank that may run at the same time, or in different iterations, and touch the same memory.

use std::collections::{HashMap, VecDeque};

use super::{
    fault::{Fault, Faults},
    layout::Layout,
};
use crate::{
    Plan,
    plan::{Buffer, Operand, Step, StepId},
    split,
};

/// A span of a step over the whole loop. Spans of scratch stay where they are; all others move by one segment an
/// iteration.
#[derive(Debug, Clone, Copy)]
struct Access {
    memory: Buffer,
    start: u64,
    end: u64,
    write: bool,
    step: StepId,
}

pub(super) fn examine(plans: &[Plan], in_place: bool, faults: &mut Faults) {
    for plan in plans {
        let layout = Layout::new(plan, in_place);
        let mut accesses: Vec<_> = plan
            .steps
            .iter()
            .enumerate()
            .flat_map(|(id, step)| accesses(plan, layout, id as StepId, step))
            .collect();
        accesses.sort_by_key(|access| (access.memory, access.start));
        let mut races = Races { plan, in_place, distances: HashMap::new(), faults };
        for (number, first) in accesses.iter().enumerate() {
            let rest = accesses[number + 1..].iter();
            let near = rest.take_while(|second| second.memory == first.memory && second.start < first.end);
            for second in near.filter(|second| first.write || second.write) {
                races.examine_pair(first, second);
            }
        }
    }
}

fn accesses(plan: &Plan, layout: Layout, id: StepId, step: &Step) -> Vec<Access> {
    let sources = step.sources.iter().map(|source| (source.operand, false));
    let targets = step.targets.iter().map(|&operand| (operand, true));
    let local = sources.chain(targets).filter_map(|(operand, write)| {
        let Operand::Local { buffer, start } = operand else { return None };
        let (memory, start) = layout.address(buffer, start);
        let len = if memory == Buffer::Scratch { step.len.min(plan.segment) } else { step.len };
        Some(Access { memory, start, end: start + len, write, step: id })
    });
    local.collect()
}

struct Races<'a> {
    plan: &'a Plan,
    in_place: bool,
    /// For a step `a`, the least number of iterations `k` for each step `b` such that `b` in iteration `i + k` runs only
    /// after `a` in iteration `i` has; `None` if there is no such order.
    distances: HashMap<StepId, Vec<Option<i128>>>,
    faults: &'a mut Faults,
}

impl Races<'_> {
    fn examine_pair(&mut self, first: &Access, second: &Access) {
        if first.step == second.step {
            let same = first.start == second.start && !(first.write && second.write);
            if !same && self.meet(first, second, 0).is_some() {
                let (rank, in_place) = (self.plan.group.rank(), self.in_place);
                self.faults.report(Fault::OverlapsItself { rank, step: first.step, in_place });
            }
        }
        if first.memory == Buffer::Scratch {
            return self.examine_scratch(first, second);
        }
        // Spans that move alike meet only if their iterations differ by about the distance of their starts.
        let distance = i128::from(first.start) - i128::from(second.start);
        let near = distance.div_euclid(i128::from(self.plan.segment));
        for later in [near, near + 1] {
            let Some(iteration) = self.meet(first, second, later) else { continue };
            let other = (iteration + later) as u64;
            let steps = ((first.step, iteration as u64), (second.step, other));
            if !self.ordered(first.step, second.step, later) {
                self.report_race(steps, first.memory);
            } else if later != 0 {
                let (rank, in_place) = (self.plan.group.rank(), self.in_place);
                let buffer = first.memory;
                self.faults.report(Fault::Carried {
                    rank,
                    first: steps.0,
                    second: steps.1,
                    buffer,
                    in_place,
                });
            }
        }
    }

    /// The first iteration in which `first` touches what `second` touches `later` iterations later.
    fn meet(&self, first: &Access, second: &Access, later: i128) -> Option<i128> {
        let segment = i128::from(self.plan.segment);
        // If they meet at all then also in the first iteration in which both have elements: all but the last segment of
        // a span are full, and the segments' starts differ by less than a segment.
        let iteration = 0.max(-later);
        let range = |access: &Access, iteration: i128| {
            if access.memory == Buffer::Scratch {
                return i128::from(access.start)..i128::from(access.end);
            }
            let start = i128::from(access.start) + iteration * segment;
            start..(start + segment).min(access.end.into())
        };
        let (one, other) = (range(first, iteration), range(second, iteration + later));
        (one.start.max(other.start) < one.end.min(other.end)).then_some(iteration)
    }

    fn examine_scratch(&mut self, first: &Access, second: &Access) {
        if self.plan.step(first.step).lane == self.plan.step(second.step).lane {
            return;
        }
        // Ordered if `second` runs `later` iterations later with `later >= there`, or `later <= -back`.
        let iterations = |step| i128::from(split::segments(self.plan.step(step).len, self.plan.segment));
        let least = 1 - iterations(first.step);
        let most = iterations(second.step) - 1;
        let there = self.distance(first.step, second.step);
        let back = self.distance(second.step, first.step);
        let least = back.map_or(least, |back| least.max(1 - back));
        let most = there.map_or(most, |there| most.min(there - 1));
        if least <= most {
            let later = 0.clamp(least, most);
            let iteration = 0.max(-later);
            let steps = ((first.step, iteration as u64), (second.step, (iteration + later) as u64));
            self.report_race(steps, Buffer::Scratch);
        }
    }

    fn report_race(&mut self, steps: ((StepId, u64), (StepId, u64)), buffer: Buffer) {
        let (rank, in_place) = (self.plan.group.rank(), self.in_place);
        self.faults.report(Fault::Race { rank, first: steps.0, second: steps.1, buffer, in_place });
    }

    /// Whether `first` in an iteration and `second` `later` iterations later run one after the other.
    fn ordered(&mut self, first: StepId, second: StepId, later: i128) -> bool {
        self.plan.step(first).lane == self.plan.step(second).lane
            || self.distance(first, second).is_some_and(|there| later >= there)
            || self.distance(second, first).is_some_and(|back| -later >= back)
    }

    fn distance(&mut self, from: StepId, to: StepId) -> Option<i128> {
        self.distances.entry(from).or_insert_with(|| distances(self.plan, from))[to as usize]
    }
}

/// Shortest paths from a step along lanes, whose ends lead to the next iteration, and along `after`.
fn distances(plan: &Plan, from: StepId) -> Vec<Option<i128>> {
    let mut dependents = vec![Vec::new(); plan.steps.len()];
    for (id, step) in plan.steps.iter().enumerate() {
        for &other in &step.after {
            dependents[other as usize].push(id as StepId);
        }
    }
    let mut distances = vec![None; plan.steps.len()];
    let mut waiting = VecDeque::from([(from, 0)]);
    while let Some((id, distance)) = waiting.pop_front() {
        if distances[id as usize].is_some() {
            continue;
        }
        distances[id as usize] = Some(distance);
        for &dependent in &dependents[id as usize] {
            waiting.push_front((dependent, distance));
        }
        let step = plan.step(id);
        let lane = &plan.lanes[step.lane as usize];
        match lane.get(step.position as usize + 1) {
            Some(&next) => waiting.push_front((next, distance)),
            None => waiting.push_back((lane[0], distance + 1)),
        }
    }
    distances
}
