//! What a collective costs: hops, bytes, and an estimate of its time on a described machine.

use std::collections::BTreeMap;

use crate::{
    Plan, Rank,
    check::{Graph, Order, Reason, Traffic},
    plan::{Operand, Step},
};

/// What the plans of a group cost together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// The longest chain of messages of which each can only be published after the one before it was collected.
    pub hops: u32,
    /// Bytes that each rank publishes. A message at a shared station counts once.
    pub sent_bytes: Vec<u64>,
    /// Bytes that each rank collects.
    pub received_bytes: Vec<u64>,
    /// Bytes that go from one rank to another, for each pair of publisher and reader between which any do. A message at
    /// a shared station counts for each of its readers.
    pub pair_bytes: BTreeMap<(Rank, Rank), u64>,
}

impl Cost {
    /// Bytes that all ranks publish.
    #[must_use]
    pub fn total_sent_bytes(&self) -> u64 {
        self.sent_bytes.iter().sum()
    }

    /// Bytes that all ranks collect.
    #[must_use]
    pub fn total_received_bytes(&self) -> u64 {
        self.received_bytes.iter().sum()
    }
}

/// Prices the plans of a group, `plans[r]` being rank `r`'s.
///
/// # Panics
/// If the plans are not ones that [`check::group`](crate::check::group) proves.
///
/// ```
/// use rccl_core::{Algorithm, DataType, Group, ReduceOp, Request, cost, planner};
///
/// let request = Request::all_reduce(1 << 20, DataType::Float, ReduceOp::Sum);
/// let plans: Vec<_> = (0..4)
///     .map(|rank| planner::plan(Group::new(4, rank).unwrap(), &request, Algorithm::Relay, 65_536).unwrap())
///     .collect();
/// let cost = cost::of(&plans);
/// assert_eq!((cost.hops, cost.sent_bytes[0], cost.received_bytes[0]), (2, 4 << 20, 6 << 20));
/// ```
#[must_use]
pub fn of(plans: &[Plan]) -> Cost {
    let mut cost = Cost {
        hops: longest_path(plans, |_, _| 0.0, 1.0) as u32,
        sent_bytes: vec![0; plans.len()],
        received_bytes: vec![0; plans.len()],
        pair_bytes: BTreeMap::new(),
    };
    for plan in plans {
        let rank = plan.group.rank();
        for step in &plan.steps {
            let bytes = step.len * plan.request.data_type.size_bytes() as u64;
            cost.sent_bytes[rank.index()] += bytes * step.publishes().count() as u64;
            for station in step.collects() {
                cost.received_bytes[rank.index()] += bytes;
                *cost.pair_bytes.entry((station.publisher(), rank)).or_default() += bytes;
            }
        }
    }
    cost
}

/// How fast elements go from rank to rank, in bytes a nanosecond (which is 1e9 bytes a second).
#[derive(Debug, Clone, PartialEq)]
pub enum Links {
    /// Every rank has one link to the stations, which all its messages share: one direction for what it publishes, the
    /// other for what it collects, both at this rate. A GPU on PCIe is like that.
    Shared(f64),
    /// Every pair of publisher and reader has a link of its own, at the listed rate or else at `otherwise`.
    Pairs {
        /// The rates of some pairs of publisher and reader.
        rates: BTreeMap<(Rank, Rank), f64>,
        /// The rate of all others.
        otherwise: f64,
    },
}

/// A machine to estimate times on.
///
/// ```
/// use rccl_core::{Algorithm, DataType, Group, ReduceOp, Request, cost, planner};
///
/// let machine = cost::Topology { alpha_ns: 5e3, links: cost::Links::Shared(25.0), memory_bytes_per_ns: 900.0 };
/// let time_ns = |algorithm, count| {
///     let request = Request::all_reduce(count, DataType::Float, ReduceOp::Sum);
///     let plan = |rank| planner::plan(Group::new(8, rank).unwrap(), &request, algorithm, 65_536).unwrap();
///     machine.estimate_ns(&(0..8).map(plan).collect::<Vec<_>>())
/// };
/// assert!(time_ns(Algorithm::Oneshot, 256) < time_ns(Algorithm::Relay, 256));
/// assert!(time_ns(Algorithm::Relay, 1 << 24) < time_ns(Algorithm::Oneshot, 1 << 24));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// What a message takes whatever its length, from the publisher's first look at its source to the reader's first
    /// look at the message, in nanoseconds.
    pub alpha_ns: f64,
    /// The rates between ranks.
    pub links: Links,
    /// The rate at which one rank reads and writes its own memory, in bytes a nanosecond.
    pub memory_bytes_per_ns: f64,
}

impl Topology {
    /// An estimate of the time that the plans of a group take, in nanoseconds.
    ///
    /// The first iteration takes the longest path through its steps, where a step takes the time of its bytes on the
    /// slowest link it uses and in local memory, and each message `alpha_ns` on top; and not less than the busiest link or
    /// memory needs for it. Every further iteration takes what the busiest lane, link or memory needs for one. This
    /// assumes slots enough, and full segments throughout.
    ///
    /// # Panics
    /// As [`of`].
    #[must_use]
    pub fn estimate_ns(&self, plans: &[Plan]) -> f64 {
        let path = longest_path(plans, |plan, step| self.step_ns(plan, step), self.alpha_ns);
        let busiest = self.busiest_ns(plans);
        let lane = plans.iter().flat_map(|plan| plan.lanes.iter().map(move |lane| (plan, lane)));
        let lane_ns = lane
            .map(|(plan, lane)| {
                let steps = lane.iter().map(|&id| plan.step(id));
                let step_ns = |step: &Step| {
                    let waits = if step.collects().next().is_some() { self.alpha_ns } else { 0.0 };
                    waits + self.step_ns(plan, step)
                };
                steps.map(step_ns).sum::<f64>()
            })
            .fold(busiest, f64::max);
        let further = plans.iter().map(|plan| plan.iterations).max().unwrap_or(0).saturating_sub(1);
        path.max(busiest) + further as f64 * lane_ns
    }

    fn rate(&self, publisher: Rank, reader: Rank) -> f64 {
        match &self.links {
            Links::Shared(rate) => *rate,
            Links::Pairs { rates, otherwise } => *rates.get(&(publisher, reader)).unwrap_or(otherwise),
        }
    }

    /// The time of one full segment of a step, without waiting.
    fn step_ns(&self, plan: &Plan, step: &Step) -> f64 {
        let (bytes, rank) = (segment_bytes(plan, step), plan.group.rank());
        let received = step.collects().map(|station| bytes / self.rate(station.publisher(), rank));
        let received = match self.links {
            Links::Shared(_) => received.sum::<f64>(),
            Links::Pairs { .. } => received.fold(0.0, f64::max),
        };
        let sent = step.publishes().map(|station| match self.links {
            Links::Shared(rate) => bytes / rate,
            // The readers fetch what is published, each over its own link.
            Links::Pairs { .. } => {
                let readers = station.readers(plan.group.size());
                readers.map(|reader| bytes / self.rate(rank, reader)).fold(0.0, f64::max)
            }
        });
        received.max(sent.sum()).max(local_bytes(plan, step) / self.memory_bytes_per_ns)
    }

    /// What the busiest link or memory needs for one iteration.
    fn busiest_ns(&self, plans: &[Plan]) -> f64 {
        let mut busiest = 0f64;
        let mut pairs = BTreeMap::<(Rank, Rank), f64>::new();
        for plan in plans {
            let (mut sent, mut received, mut local) = (0.0, 0.0, 0.0);
            for step in &plan.steps {
                let bytes = segment_bytes(plan, step);
                sent += bytes * step.publishes().count() as f64;
                local += local_bytes(plan, step);
                for station in step.collects() {
                    received += bytes;
                    *pairs.entry((station.publisher(), plan.group.rank())).or_default() += bytes;
                }
            }
            busiest = busiest.max(local / self.memory_bytes_per_ns);
            if let Links::Shared(rate) = self.links {
                busiest = busiest.max(sent / rate).max(received / rate);
            }
        }
        if let Links::Pairs { .. } = self.links {
            let times =
                pairs.iter().map(|(&(publisher, reader), bytes)| bytes / self.rate(publisher, reader));
            busiest = times.fold(busiest, f64::max);
        }
        busiest
    }
}

fn segment_bytes(plan: &Plan, step: &Step) -> f64 {
    step.len.min(plan.segment) as f64 * plan.request.data_type.size_bytes() as f64
}

fn local_bytes(plan: &Plan, step: &Step) -> f64 {
    let sources = step.sources.iter().map(|source| source.operand);
    let operands = sources.chain(step.targets.iter().copied());
    segment_bytes(plan, step)
        * operands.filter(|operand| matches!(operand, Operand::Local { .. })).count() as f64
}

/// The longest path through the first iteration, in which every step has elements: `step` gives the length of a step,
/// and each message adds `message`.
fn longest_path(plans: &[Plan], step: impl Fn(&Plan, &Step) -> f64, message: f64) -> f64 {
    let graph = Graph::new(plans, &Traffic::at(plans, 0), Order::Lanes, None);
    let order =
        graph.sorted().unwrap_or_else(|cycle| panic!("these plans wait for one another forever: {cycle:?}"));
    let mut ends = vec![0f64; graph.len()];
    for index in order {
        let node = graph.node(index);
        let plan = &plans[node.rank.index()];
        let begins = graph.waits(index).iter().map(|&(other, reason)| {
            ends[other] + if matches!(reason, Reason::Message(_)) { message } else { 0.0 }
        });
        ends[index] = begins.fold(0.0, f64::max) + step(plan, plan.step(node.step));
    }
    ends.into_iter().fold(0.0, f64::max)
}
