//! What deciding costs: splitting, building plans and proving them.

#![allow(missing_docs, reason = "the macros of criterion make undocumented items")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rccl_core::{Algorithm, DataType, Group, Plan, ReduceOp, Request, check, planner, split};

const REQUEST: Request = Request::all_reduce(1 << 24, DataType::Float, ReduceOp::Sum);
const SEGMENT: u64 = 1 << 16;

fn relay(size: u32, rank: u32) -> Plan {
    let group = Group::new(size, rank).expect("a rank of the group");
    planner::plan(group, &REQUEST, Algorithm::Relay, SEGMENT).expect("relay all-reduces")
}

fn splitting(criterion: &mut Criterion) {
    criterion.bench_function("split/share", |bench| {
        bench.iter(|| split::share(black_box(1_000_003), black_box(7), black_box(3), 16));
    });
    criterion.bench_function("split/segment", |bench| {
        bench.iter(|| split::segment(black_box(1_000_003), black_box(4096), black_box(30)));
    });
}

fn planning(criterion: &mut Criterion) {
    for size in [2, 16] {
        criterion.bench_function(&format!("plan/relay/{size} ranks"), |bench| {
            bench.iter(|| relay(black_box(size), 1));
        });
    }
}

fn checking(criterion: &mut Criterion) {
    let plans: Vec<_> = (0..8).map(|rank| relay(8, rank)).collect();
    criterion.bench_function("check/relay/8 ranks", |bench| {
        bench.iter(|| check::group(black_box(&plans)).expect("right plans"));
    });
}

criterion_group!(benches, splitting, planning, checking);
criterion_main!(benches);
