//! Proves the plans of every collective twice: by the checks, and by carrying them out.

mod support;

use proptest::prelude::*;
use rccl_core::{Algorithm, Collective, DataType, Plan, Rank, ReduceOp, Request, check};
use support::{
    exchange, plans, segments,
    simulate::{Call, Schedule, simulate},
    ways,
};

fn prove(name: &str, plans: &[Plan]) -> check::Proof {
    check::group(plans).unwrap_or_else(|faults| {
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        panic!("{name}, segments of {}:\n{}\n{}", plans[0].segment, faults.join("\n"), plans[0])
    })
}

/// Lengths around the number of ranks, around a cache line, primes, and one that leaves remainders everywhere.
fn counts(size: u32) -> Vec<u64> {
    let size = u64::from(size);
    let mut counts = vec![0, 1, size - 1, size, size + 1, 8 * size + 1, 997];
    if size <= 8 {
        counts.extend([7, 8 * size - 1, 64 * size + 13]);
    }
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn prove_all(collective: Collective) {
    for size in 1..=16 {
        for count in counts(size) {
            let types = if size < 6 { &[DataType::Double, DataType::Int8][..] } else { &[DataType::Double] };
            for &data_type in types {
                for (name, way) in ways(collective, size, count, data_type) {
                    // Large groups: one, three and as many iterations as there can be.
                    let every = if size <= 8 { 1 } else { 2 };
                    for segment in segments(&way).into_iter().rev().step_by(every) {
                        let proof = prove(&name, &way(segment));
                        assert_eq!(proof.ranks, size);
                        assert_eq!(proof.in_place, collective != Collective::SendRecv);
                    }
                }
            }
        }
    }
}

#[test]
fn all_reduce_is_proved_exhaustively() {
    prove_all(Collective::AllReduce);
}

#[test]
fn all_gather_is_proved_exhaustively() {
    prove_all(Collective::AllGather);
}

#[test]
fn reduce_scatter_is_proved_exhaustively() {
    prove_all(Collective::ReduceScatter);
}

#[test]
fn broadcast_is_proved_exhaustively() {
    prove_all(Collective::Broadcast);
}

#[test]
fn send_recv_is_proved_exhaustively() {
    prove_all(Collective::SendRecv);
}

#[test]
fn lengths_above_2_to_the_33_are_proved_in_every_iteration() {
    for collective in Collective::ALL {
        for size in [1, 2, 3, 8] {
            for (name, way) in ways(collective, size, (1 << 34) + 12_345, DataType::Int8) {
                for segment in [1, 4096, 1 << 20, (1 << 33) - 1, u64::MAX] {
                    let plans = way(segment);
                    let proof = prove(&name, &plans);
                    let iterations = plans.iter().map(|plan| plan.iterations).max();
                    assert_eq!(Some(proof.shapes.last().map_or(0, |shape| shape.end)), iterations);
                    assert!(proof.shapes.first().is_none_or(|shape| shape.start == 0));
                    assert!(proof.shapes.windows(2).all(|pair| pair[0].end == pair[1].start));
                }
            }
        }
    }
}

#[test]
fn the_iterations_of_a_loop_have_few_shapes() {
    let request = Request::all_reduce(10_000_000_000, DataType::Float, ReduceOp::Sum);
    let proof = prove("shapes", &plans(4, &request, Algorithm::Relay, 65_536));
    assert_eq!(proof.shapes, [0..38_146, 38_146..38_147]);
    assert_eq!(
        proof.to_string(),
        "proved for 4 ranks, out of place and in place: 38147 iterations of 2 shapes"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_request_is_proved(size in 1..24u32, count in 0..1u64 << 40, small in any::<bool>(),
                             segment in 1..1u64 << 38, collective in 0..5usize) {
        let (count, segment) = if small { (count % 300, segment % 100 + 1) } else { (count, segment) };
        for (name, way) in ways(Collective::ALL[collective], size, count, DataType::Half) {
            prove(&name, &way(segment));
        }
    }
}

const SCHEDULES: [Schedule; 5] =
    [Schedule::Serial(1), Schedule::LowFirst, Schedule::HighFirst, Schedule::Random(2), Schedule::Random(3)];

fn run(name: &str, calls: &[Call<'_>], slots: usize, schedule: Schedule) {
    if let Err(why) = simulate(calls, slots, schedule) {
        panic!("{name}, {schedule:?}, segments of {}: {why}", calls[0].plans[0].segment);
    }
}

fn run_all(collective: Collective) {
    for size in [1, 2, 3, 4, 5, 7, 8, 13, 16] {
        for count in [0, 1, size - 1, size + 1, 8 * size + 1, 61].map(u64::from) {
            for (name, way) in ways(collective, size, count, DataType::Uint64) {
                for segment in segments(&way).into_iter().skip(1).filter(|&segment| segment > 1 || size < 4) {
                    let plans = way(segment);
                    let in_place = collective != Collective::SendRecv && (count + segment) % 2 == 0;
                    // Every schedule for small groups, every other one in turn for large groups.
                    let few = if size < 6 { 1 } else { 3 };
                    let turn = (count + segment) as usize;
                    for (number, schedule) in SCHEDULES.into_iter().enumerate() {
                        if (number + turn).is_multiple_of(few) {
                            let slots = [1, 2, 4][(number + turn) / few % 3];
                            run(&name, &[Call { plans: &plans, in_place }], slots, schedule);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn all_reduce_is_carried_out() {
    run_all(Collective::AllReduce);
}

#[test]
fn all_gather_is_carried_out() {
    run_all(Collective::AllGather);
}

#[test]
fn reduce_scatter_is_carried_out() {
    run_all(Collective::ReduceScatter);
}

#[test]
fn broadcast_is_carried_out() {
    run_all(Collective::Broadcast);
}

#[test]
fn send_recv_is_carried_out() {
    run_all(Collective::SendRecv);
}

#[test]
fn any_two_plans_make_progress_back_to_back() {
    for (size, count) in [(2, 37), (3, 50), (5, 83), (8, 131)] {
        let all: Vec<_> = Collective::ALL
            .into_iter()
            .flat_map(|collective| ways(collective, size, count, DataType::Uint64))
            .map(|(name, way)| (name, way(7)))
            .collect();
        for (number, (name, first)) in all.iter().enumerate() {
            for (other_number, (other, second)) in all.iter().enumerate() {
                let pair = [first, second].map(|plans| Call { plans, in_place: false });
                let schedule = SCHEDULES[(number + other_number) % SCHEDULES.len()];
                let slots = if number % 3 == other_number % 3 { 2 } else { 1 };
                run(&format!("{name}, then {other}"), &pair, slots, schedule);
            }
        }
    }
}

#[test]
fn a_fast_rank_runs_ahead_through_several_plans() {
    let relay = Request::all_reduce(100, DataType::Uint64, ReduceOp::Sum);
    let from_first = plans(4, &Request::broadcast(40, DataType::Uint64, Rank(0)), Algorithm::Ring, 8);
    let all_reduce = plans(4, &relay, Algorithm::Relay, 8);
    let shift = exchange(4, 40, DataType::Uint64, |rank, size, count| Some(((rank + 1) % size, count)), 8);
    let calls = [&from_first, &from_first, &from_first, &all_reduce, &shift, &from_first];
    let calls = calls.map(|plans| Call { plans, in_place: false });
    for slots in [1, 2, 4] {
        for schedule in SCHEDULES {
            run("several plans", &calls, slots, schedule);
        }
    }
}
