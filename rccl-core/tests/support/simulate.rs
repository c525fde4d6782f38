//! Carries out plans on small buffers of integers, under schedulers that try to do harm.
//!
//! Knows nothing of how the checks work: it runs what [`Progress`] lets it run, moves real values through stations of a
//! few slots that are overwritten as soon as they may be, and compares the outputs with what the collective promises.

use std::collections::BTreeMap;

use rccl_core::{
    Collective, Plan, Progress, Rank,
    plan::{Action, Buffer, Operand, Station, Step, StepId},
};

/// What a contribution is multiplied by where a step marks it as one.
const FACTOR: u64 = 3;
/// What a reduction is multiplied by where a step finishes it.
const FINISH: u64 = 5;
/// What memory holds before anybody writes it.
const UNTOUCHED: u64 = 0xdead_beef_dead_beef;

/// Who runs next.
#[derive(Debug, Clone, Copy)]
pub enum Schedule {
    /// Lanes of all ranks at random, some ranks at times held up; the seed.
    Random(u64),
    /// Always the lowest rank that can run, so that it gets as far ahead as possible.
    LowFirst,
    /// Always the highest rank that can run, its last lane first.
    HighFirst,
    /// Ranks at random, each running its steps one by one in enqueue order; the seed.
    Serial(u64),
}

/// One collective, called by all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    pub plans: &'a [Plan],
    pub in_place: bool,
}

/// Runs `calls` one after another on all ranks, without a barrier, and checks every output.
pub fn simulate(calls: &[Call<'_>], slots: usize, schedule: Schedule) -> Result<(), String> {
    let size = calls[0].plans.len();
    let ranks = (0..size).map(|rank| Runner::new(rank, calls)).collect();
    let mut world = World { calls, slots, ranks, stations: BTreeMap::new() };
    match schedule {
        Schedule::Random(seed) => world.run_random(seed)?,
        Schedule::Serial(seed) => {
            world.ranks.iter_mut().for_each(|rank| rank.serial = true);
            world.run_random(seed)?;
        }
        Schedule::LowFirst => world.run_first(&mut (0..size))?,
        Schedule::HighFirst => world.run_first(&mut (0..size).rev())?,
    }
    world.ranks.iter().try_for_each(|rank| rank.judge(calls))
}

/// The value of an element of an input.
fn value(call: usize, rank: u32, index: u64) -> u64 {
    mixed((call as u64) << 48 | u64::from(rank) << 32 | index)
}

/// Splitmix64's output function.
const fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

struct Random(u64);

impl Random {
    const fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (mixed(self.0) % bound as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for place in (1..items.len()).rev() {
            items.swap(place, self.below(place + 1));
        }
    }
}

/// A rank's buffers in one call.
struct Buffers {
    /// Input and output, or in place both in the first.
    memories: [Vec<u64>; 2],
    input: (usize, usize),
    output: (usize, usize),
    scratch: Vec<u64>,
}

impl Buffers {
    fn new(call: usize, plan: &Plan, in_place: bool) -> Self {
        let (input_len, output_len) = (plan.input_len() as usize, plan.output_len() as usize);
        let (input, output, lens) = if in_place {
            let offset = plan.request.in_place_offset(plan.group).unwrap() as usize;
            let (input, output) = if input_len < output_len { (offset, 0) } else { (0, offset) };
            ((0, input), (0, output), [input_len.max(output_len), 0])
        } else {
            ((0, 0), (1, 0), [input_len, output_len])
        };
        let memories = lens.map(|len| vec![UNTOUCHED; len]);
        let scratch = vec![UNTOUCHED; plan.scratch_len as usize];
        let mut buffers = Self { memories, input, output, scratch };
        let rank = plan.group.rank().0;
        let values: Vec<_> = (0..input_len as u64).map(|index| value(call, rank, index)).collect();
        buffers.slice(Buffer::Input, 0, input_len).copy_from_slice(&values);
        buffers
    }

    fn slice(&mut self, buffer: Buffer, start: usize, len: usize) -> &mut [u64] {
        let (memory, origin) = match buffer {
            Buffer::Input => (&mut self.memories[self.input.0], self.input.1),
            Buffer::Output => (&mut self.memories[self.output.0], self.output.1),
            Buffer::Scratch => (&mut self.scratch, 0),
        };
        &mut memory[origin + start..origin + start + len]
    }
}

/// Where one rank is.
struct Runner {
    rank: usize,
    call: usize,
    progress: Progress,
    serial: bool,
    /// The next iteration and step of a serial rank.
    next: (u64, StepId),
    buffers: Vec<Buffers>,
}

impl Runner {
    fn new(rank: usize, calls: &[Call<'_>]) -> Self {
        let buffers = calls
            .iter()
            .enumerate()
            .map(|(number, call)| Buffers::new(number, &call.plans[rank], call.in_place))
            .collect();
        let progress = Progress::new(&calls[0].plans[rank]);
        let mut runner = Self { rank, call: 0, progress, serial: false, next: (0, 0), buffers };
        runner.enter_next_call(calls);
        runner
    }

    /// The plan this rank is in, if it has not done them all.
    fn plan<'a>(&self, calls: &[Call<'a>]) -> Option<&'a Plan> {
        calls.get(self.call).map(|call| &call.plans[self.rank])
    }

    /// What the rank would run next in `lane`; a serial rank has one lane only.
    fn candidate<'a>(&self, calls: &[Call<'a>], lane: usize) -> Option<(&'a Step, u64)> {
        let plan = self.plan(calls)?;
        if self.serial {
            return (lane == 0).then(|| (plan.step(self.next.1), self.next.0));
        }
        (lane < plan.lanes.len()).then(|| self.progress.ready(plan, lane)).flatten()
    }

    fn completed(&mut self, calls: &[Call<'_>], step: &Step) {
        let plan = self.plan(calls).unwrap();
        let finished = if self.serial {
            self.skip(plan, (self.next.0, self.next.1 + 1))
        } else {
            self.progress.complete(plan, step.lane as usize);
            self.progress.is_done()
        };
        if finished {
            self.call += 1;
            self.enter_next_call(calls);
        }
    }

    fn enter_next_call(&mut self, calls: &[Call<'_>]) {
        while let Some(plan) = self.plan(calls) {
            self.progress.restart(plan);
            if !self.skip(plan, (0, 0)) {
                assert!(!self.progress.is_done());
                return;
            }
            assert!(self.progress.is_done());
            self.call += 1;
        }
    }

    /// Goes to the next step from `next` on that has elements; true if there is none.
    fn skip(&mut self, plan: &Plan, mut next: (u64, StepId)) -> bool {
        while next.0 < plan.iterations {
            if next.1 as usize == plan.steps.len() {
                next = (next.0 + 1, 0);
            } else if plan.step(next.1).segment(plan, next.0).is_empty() {
                next.1 += 1;
            } else {
                self.next = next;
                return false;
            }
        }
        true
    }

    /// Compares every output with what the collective promises, and every input, out of place, with what it was.
    fn judge(&self, calls: &[Call<'_>]) -> Result<(), String> {
        for (number, (call, buffers)) in calls.iter().zip(&self.buffers).enumerate() {
            let (plan, rank) = (&call.plans[self.rank], self.rank as u32);
            let (memory, origin) = buffers.output;
            for index in 0..plan.output_len() {
                let found = buffers.memories[memory][origin + index as usize];
                if found != promised(number, plan, index) {
                    return Err(format!("call {number}, rank {rank}: output[{index}] is {found:#x}"));
                }
            }
            let input = if call.in_place { &[] } else { &buffers.memories[buffers.input.0][..] };
            if !input.iter().zip(0..).all(|(&found, index)| found == value(number, rank, index)) {
                return Err(format!("call {number}, rank {rank}: the input changed"));
            }
        }
        Ok(())
    }
}

/// What element `index` of the output should be.
fn promised(call: usize, plan: &Plan, index: u64) -> u64 {
    let (request, rank) = (&plan.request, plan.group.rank());
    let sum = |index| {
        let values = plan.group.ranks().map(|rank| value(call, rank.0, index));
        values.fold(0, u64::wrapping_add).wrapping_mul(FACTOR * FINISH)
    };
    match request.collective {
        Collective::AllReduce => sum(index),
        Collective::ReduceScatter => sum(request.count * u64::from(rank.0) + index),
        Collective::AllGather => value(call, (index / request.count) as u32, index % request.count),
        Collective::Broadcast => value(call, request.root.unwrap().0, index),
        Collective::SendRecv => value(call, request.from.unwrap().0, index),
    }
}

/// A station with a few slots, as they are in memory.
struct Slots {
    slots: Vec<Vec<u64>>,
    published: usize,
    collected: BTreeMap<Rank, usize>,
}

struct World<'a> {
    calls: &'a [Call<'a>],
    slots: usize,
    ranks: Vec<Runner>,
    stations: BTreeMap<Station, Slots>,
}

impl World<'_> {
    fn run_random(&mut self, seed: u64) -> Result<(), String> {
        let mut random = Random(mixed(seed));
        let lanes = |call: &Call<'_>| call.plans.iter().map(|plan| plan.lanes.len()).max().unwrap_or(0);
        let lanes = self.calls.iter().map(lanes).max().unwrap_or(0);
        let ranks = 0..self.ranks.len();
        let mut all: Vec<_> = ranks.flat_map(|rank| (0..lanes).map(move |lane| (rank, lane))).collect();
        while !self.is_done() {
            random.shuffle(&mut all);
            // Half of the rounds hold a rank up.
            let held = random.below(2 * self.ranks.len());
            let mut moved = false;
            for &(rank, lane) in all.iter().filter(|&&(rank, _)| rank != held) {
                moved |= self.try_run(rank, lane);
            }
            if !moved {
                // The held rank may be the one that everybody waits for.
                let stuck = !all.iter().any(|&(rank, lane)| self.try_run(rank, lane));
                if stuck {
                    return Err(self.deadlock());
                }
            }
        }
        Ok(())
    }

    fn run_first(&mut self, preference: &mut (impl Iterator<Item = usize> + Clone)) -> Result<(), String> {
        while !self.is_done() {
            let moved = preference.clone().any(|rank| self.run_rank(rank));
            if !moved {
                return Err(self.deadlock());
            }
        }
        Ok(())
    }

    /// Runs one rank as far as it gets; whether it got anywhere.
    fn run_rank(&mut self, rank: usize) -> bool {
        let mut moved = false;
        while let Some(plan) = self.ranks[rank].plan(self.calls) {
            if !(0..plan.lanes.len()).rev().any(|lane| self.try_run(rank, lane)) {
                break;
            }
            moved = true;
        }
        moved
    }

    fn is_done(&self) -> bool {
        self.ranks.iter().all(|rank| rank.call == self.calls.len())
    }

    fn deadlock(&self) -> String {
        let waiting = self.ranks.iter().filter_map(|rank| {
            let plan = rank.plan(self.calls)?;
            let lanes = (0..plan.lanes.len()).filter_map(|lane| rank.candidate(self.calls, lane));
            let steps: Vec<_> = lanes.map(|(step, _)| (step.lane, step.position)).collect();
            Some(format!("rank {} in call {} at (lane, position) {steps:?}", rank.rank, rank.call))
        });
        format!("deadlock with {} slots: {}", self.slots, waiting.collect::<Vec<_>>().join("; "))
    }

    /// Runs the step that `lane` of `rank` is at if its messages and slots are there.
    fn try_run(&mut self, rank: usize, lane: usize) -> bool {
        let Some((step, iteration)) = self.ranks[rank].candidate(self.calls, lane) else { return false };
        let plan = self.ranks[rank].plan(self.calls).unwrap();
        let me = plan.group.rank();
        let has_message = step.collects().all(|station| {
            self.stations.get(&station).is_some_and(|slots| slots.published > slots.collected[&me])
        });
        let has_slot = step.publishes().all(|station| {
            self.stations.get(&station).is_none_or(|slots| {
                slots.collected.values().all(|collected| slots.published - collected < self.slots)
            })
        });
        if !has_message || !has_slot {
            return false;
        }
        let sources: Vec<_> =
            step.sources.iter().map(|source| self.read(plan, step, source.operand, iteration)).collect();
        let result = combined(step, sources);
        for &target in &step.targets {
            self.write(plan, step, target, iteration, &result);
        }
        self.ranks[rank].completed(self.calls, step);
        true
    }

    fn local(&mut self, plan: &Plan, step: &Step, iteration: u64, buffer: Buffer, start: u64) -> &mut [u64] {
        let runner = &mut self.ranks[plan.group.rank().index()];
        let span = step.span(plan, iteration, buffer, start);
        runner.buffers[runner.call].slice(buffer, span.start as usize, (span.end - span.start) as usize)
    }

    fn read(&mut self, plan: &Plan, step: &Step, operand: Operand, iteration: u64) -> Vec<u64> {
        match operand {
            Operand::Local { buffer, start } => self.local(plan, step, iteration, buffer, start).to_vec(),
            Operand::Slot(station) => {
                let slots = self.stations.get_mut(&station).unwrap();
                let collected = slots.collected.get_mut(&plan.group.rank()).unwrap();
                *collected += 1;
                slots.slots[(*collected - 1) % self.slots].clone()
            }
        }
    }

    fn write(&mut self, plan: &Plan, step: &Step, operand: Operand, iteration: u64, result: &[u64]) {
        match operand {
            Operand::Local { buffer, start } => {
                self.local(plan, step, iteration, buffer, start).copy_from_slice(result);
            }
            Operand::Slot(station) => {
                let slots = self.stations.entry(station).or_insert_with(|| Slots {
                    slots: vec![Vec::new(); self.slots],
                    published: 0,
                    collected: station.readers(plan.group.size()).map(|reader| (reader, 0)).collect(),
                });
                slots.slots[slots.published % self.slots] = result.to_vec();
                slots.published += 1;
            }
        }
    }
}

/// What a step makes of its sources. Sources of different lengths give as many elements as the longest.
fn combined(step: &Step, mut sources: Vec<Vec<u64>>) -> Vec<u64> {
    let Action::Reduce { finish } = step.action else { return sources.swap_remove(0) };
    let factor = if finish { FINISH } else { 1 };
    (0..sources.iter().map(Vec::len).max().unwrap_or(0))
        .map(|index| {
            let terms = step.sources.iter().zip(&sources).map(|(source, values)| {
                values[index].wrapping_mul(if source.contribution { FACTOR } else { 1 })
            });
            terms.fold(0, u64::wrapping_add).wrapping_mul(factor)
        })
        .collect()
}
