//! Groups of plans for tests: every collective, algorithm, root and a few patterns of send-recv.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]

pub mod simulate;

use rccl_core::{Algorithm, Collective, DataType, Group, Plan, Rank, ReduceOp, Request, planner};

/// Who sends how much to whom; the receiving side follows from it.
pub type Pattern = fn(rank: u32, size: u32, count: u64) -> Option<(u32, u64)>;

/// Patterns of send-recv.
pub const PATTERNS: [(&str, Pattern); 5] = [
    ("shift", |rank, size, count| Some(((rank + 1) % size, count))),
    ("shift by two, unequal", |rank, size, count| Some(((rank + 2) % size, count + 3 * u64::from(rank)))),
    ("pairs", |rank, size, count| Some((rank ^ 1, count)).filter(|&(to, _)| to < size)),
    ("self", |rank, _, count| Some((rank, count))),
    ("one way", |rank, size, count| (rank == 0 && size > 1).then_some((size - 1, count))),
];

/// The plans of a group for one request.
pub fn plans(size: u32, request: &Request, algorithm: Algorithm, segment: u64) -> Vec<Plan> {
    let plan = |rank| planner::plan(Group::new(size, rank).unwrap(), request, algorithm, segment).unwrap();
    (0..size).map(plan).collect()
}

/// The plans of a send-recv by a pattern.
pub fn exchange(size: u32, count: u64, data_type: DataType, pattern: Pattern, segment: u64) -> Vec<Plan> {
    let sent = |rank| pattern(rank, size, count);
    let plan = |rank: u32| {
        let from = (0..size).find(|&peer| sent(peer).is_some_and(|(to, _)| to == rank));
        let received = from.and_then(sent).map_or(0, |(_, len)| len);
        let (to, len) = sent(rank).unzip();
        let request = Request::send_recv(len.unwrap_or(0), to.map(Rank), received, from.map(Rank), data_type);
        planner::plan(Group::new(size, rank).unwrap(), &request, Algorithm::Oneshot, segment).unwrap()
    };
    (0..size).map(plan).collect()
}

/// A group's plans as a function of the segment.
pub type BySegment = Box<dyn Fn(u64) -> Vec<Plan>>;

/// Every way to carry out `collective` with `size` ranks and `count` elements, with its name.
pub fn ways(collective: Collective, size: u32, count: u64, data_type: DataType) -> Vec<(String, BySegment)> {
    let requests: Vec<Request> = match collective {
        Collective::AllReduce => vec![Request::all_reduce(count, data_type, ReduceOp::Avg)],
        Collective::AllGather => vec![Request::all_gather(count, data_type)],
        Collective::ReduceScatter => vec![Request::reduce_scatter(count, data_type, ReduceOp::Sum)],
        Collective::Broadcast => {
            let roots = (0..size).filter(|&root| size < 6 || root % 5 == 0 || root == size - 1);
            roots.map(|root| Request::broadcast(count, data_type, Rank(root))).collect()
        }
        Collective::SendRecv => {
            let way = |(name, pattern): (&str, Pattern)| {
                let plans: BySegment =
                    Box::new(move |segment| exchange(size, count, data_type, pattern, segment));
                (format!("send-recv {name}, {size} ranks, {count} {data_type}"), plans)
            };
            return PATTERNS.into_iter().map(way).collect();
        }
    };
    let mut ways = Vec::new();
    for request in requests {
        for &algorithm in collective.algorithms() {
            let root = request.root.map_or(String::new(), |root| format!(" from {root}"));
            let name = format!("{collective}{root} by {algorithm}, {size} ranks, {count} {data_type}");
            let plans: BySegment = Box::new(move |segment| plans(size, &request, algorithm, segment));
            ways.push((name, plans));
        }
    }
    ways
}

/// Segments with which the loop of these plans runs once (with and without room to spare), twice, three times, and as
/// often as it can.
pub fn segments(way: &BySegment) -> Vec<u64> {
    let whole = way(u64::MAX);
    let longest = whole.iter().flat_map(|plan| plan.steps.iter().map(|step| step.len)).max().unwrap_or(1);
    let mut segments = vec![longest + 1, longest, longest.div_ceil(2), longest.div_ceil(3), 1];
    segments.dedup();
    segments
}

/// Swaps two steps, which keep their ids and places.
pub fn swap(plan: &mut Plan, one: usize, other: usize) {
    let places = [one, other].map(|step| (plan.steps[step].lane, plan.steps[step].position));
    plan.steps.swap(one, other);
    for (step, (lane, position)) in [one, other].into_iter().zip(places) {
        (plan.steps[step].lane, plan.steps[step].position) = (lane, position);
    }
}
