//! The costs of the plans are those of the table in the design.

mod support;

use std::collections::BTreeMap;

use rccl_core::{
    Algorithm, DataType, Rank, ReduceOp, Request,
    cost::{self, Links, Topology},
};
use support::{exchange, plans};

const SIZES: [u32; 6] = [1, 2, 3, 4, 8, 16];

/// Elements that every group divides into parts of whole cache lines.
const fn even(size: u32) -> u64 {
    64 * size as u64
}

/// Hops, and what every rank sends and receives, in bytes.
#[track_caller]
fn assert_cost(size: u32, request: &Request, algorithm: Algorithm, hops: u32, sent: u64, received: u64) {
    let cost = cost::of(&plans(size, request, algorithm, 24));
    let n = size as usize;
    assert_eq!(
        (cost.hops, &cost.sent_bytes, &cost.received_bytes),
        (hops, &vec![sent; n], &vec![received; n])
    );
    assert_eq!(cost.total_sent_bytes(), u64::from(size) * sent);
    assert_eq!(cost.total_received_bytes(), u64::from(size) * received);
    assert_eq!(cost.pair_bytes.values().sum::<u64>(), u64::from(size) * received);
}

#[test]
fn all_reduce_costs_what_the_design_says() {
    for size in SIZES {
        let request = Request::all_reduce(even(size), DataType::Double, ReduceOp::Sum);
        let (n, bytes) = (u64::from(size), even(size) * 8);
        let alone = size == 1;
        let sent = |sent: u64| if alone { 0 } else { sent };
        assert_cost(size, &request, Algorithm::Oneshot, u32::from(!alone), sent(bytes), (n - 1) * bytes);
        let both_ways = 2 * bytes * (n - 1) / n;
        assert_cost(size, &request, Algorithm::Relay, if alone { 0 } else { 2 }, sent(bytes), both_ways);
        assert_cost(size, &request, Algorithm::Ring, 2 * (size - 1), both_ways, both_ways);
    }
}

#[test]
fn gathering_and_scattering_cost_what_their_documentation_says() {
    for size in SIZES {
        let (count, n, bytes) = (48, u64::from(size), 48 * 4);
        let one = u32::from(size > 1);
        let gather = Request::all_gather(count, DataType::Float);
        let received = (n - 1) * bytes;
        assert_cost(size, &gather, Algorithm::Oneshot, one, bytes * u64::from(one), received);
        assert_cost(size, &gather, Algorithm::Ring, size - 1, received, received);
        let scatter = Request::reduce_scatter(count, DataType::Float, ReduceOp::Sum);
        assert_cost(size, &scatter, Algorithm::Oneshot, one, received, received);
        assert_cost(size, &scatter, Algorithm::Ring, size - 1, received, received);
    }
}

#[test]
fn a_broadcast_is_published_once() {
    let request = Request::broadcast(100, DataType::Half, Rank(2));
    let oneshot = cost::of(&plans(4, &request, Algorithm::Oneshot, 30));
    assert_eq!(
        (oneshot.hops, oneshot.sent_bytes, oneshot.received_bytes),
        (1, vec![0, 0, 200, 0], vec![200, 200, 0, 200])
    );
    let from_root = [0, 1, 3].map(|reader| ((Rank(2), Rank(reader)), 200));
    assert_eq!(oneshot.pair_bytes, BTreeMap::from(from_root));

    let ring = cost::of(&plans(4, &request, Algorithm::Ring, 30));
    assert_eq!(
        (ring.hops, ring.sent_bytes, ring.received_bytes),
        (3, vec![200, 0, 200, 200], vec![200, 200, 0, 200])
    );
}

#[test]
fn an_exchange_costs_one_hop() {
    let shift = |rank, size, count| Some(((rank + 1) % size, count));
    let cost = cost::of(&exchange(5, 1 << 34, DataType::Float, shift, 1 << 20));
    assert_eq!((cost.hops, cost.sent_bytes, cost.received_bytes), (1, vec![1 << 36; 5], vec![1 << 36; 5]));
}

fn machine(links: Links) -> Topology {
    Topology { alpha_ns: 1000.0, links, memory_bytes_per_ns: f64::INFINITY }
}

#[test]
fn an_estimate_follows_alpha_and_beta() {
    let shift = |rank, size, count| Some(((rank + 1) % size, count));
    let plans = exchange(4, 1_000_000, DataType::Uint8, shift, 1_000_000);
    // A message of 1 MB at 10 bytes a nanosecond: publishing it, then a hop, then collecting it.
    assert_eq!(machine(Links::Shared(10.0)).estimate_ns(&plans), 201_000.0);
    // In ten segments, publishing and collecting overlap.
    let plans = exchange(4, 1_000_000, DataType::Uint8, shift, 100_000);
    assert_eq!(machine(Links::Shared(10.0)).estimate_ns(&plans), 21_000.0 + 9.0 * 11_000.0);
    // One slow pair holds up its messages.
    let slow = Links::Pairs { rates: BTreeMap::from([((Rank(1), Rank(2)), 1.0)]), otherwise: 10.0 };
    assert_eq!(machine(slow).estimate_ns(&plans), 201_000.0 + 9.0 * 101_000.0);
}

#[test]
fn a_slow_memory_bounds_an_estimate() {
    let request = Request::all_reduce(1000, DataType::Uint8, ReduceOp::Sum);
    let plans = plans(1, &request, Algorithm::Oneshot, 1000);
    let machine = Topology { memory_bytes_per_ns: 0.5, ..machine(Links::Shared(10.0)) };
    // Reads and writes 1000 bytes.
    assert_eq!(machine.estimate_ns(&plans), 4000.0);
}

#[test]
fn nothing_costs_nothing() {
    let plans = plans(3, &Request::all_gather(0, DataType::Half), Algorithm::Ring, 8);
    assert_eq!(cost::of(&plans).hops, 0);
    assert_eq!(machine(Links::Shared(1.0)).estimate_ns(&plans), 0.0);
}
