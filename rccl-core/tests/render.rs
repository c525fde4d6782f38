//! What plans look like to people and to programs.

mod support;

use rccl_core::{Algorithm, DataType, Plan, Rank, ReduceOp, Request};
use support::{exchange, plans};

fn relay() -> Plan {
    let request = Request::all_reduce(1000, DataType::Float, ReduceOp::Sum);
    plans(4, &request, Algorithm::Relay, 64).remove(1)
}

#[test]
fn a_relay_as_text() {
    let text = "\
all-reduce by relay, rank 1 of 4: 1000 float, sum
4 iterations, segments of 64, no scratch; spans are those of the whole loop
lane 0
  #0 publish input[512..768] -> pair 1->2
lane 1
  #1 publish input[768..1000] -> pair 1->3
lane 2
  #2 publish input[0..256] -> pair 1->0
lane 3
  #3 reduce pair 0->1 + input[256..512] + pair 2->1 + pair 3->1 -> output[256..512], shared 1 (finish)
lane 4
  #4 collect shared 2 -> output[512..768] after #0
lane 5
  #5 collect shared 3 -> output[768..1000] after #1
lane 6
  #6 collect shared 0 -> output[0..256] after #2
";
    assert_eq!(relay().to_string(), text);
}

#[test]
fn a_relay_as_json() {
    let snapshot = include_str!("snapshots/relay-rank-1-of-4.json");
    assert_eq!(serde_json::to_string_pretty(&relay()).unwrap(), snapshot.trim_end());
}

#[test]
fn a_ring_as_text() {
    let request = Request::reduce_scatter(100, DataType::Half, ReduceOp::Avg);
    let text = "\
reduce-scatter by ring, rank 0 of 3: 100 half, avg
2 iterations, segments of 64, 64 elements of scratch; spans are those of the whole loop
lane 0
  #0 publish input[200..300] -> pair 0->1
  #1 receive-reduce pair 2->0 + input[100..200] -> scratch[0..64]
  #2 publish scratch[0..64] -> pair 0->1
  #3 receive-reduce partial pair 2->0 + input[0..100] -> output[0..100] (finish)
";
    assert_eq!(plans(3, &request, Algorithm::Ring, 64)[0].to_string(), text);
}

#[test]
fn a_broadcast_along_the_ring_as_text() {
    let request = Request::broadcast(100, DataType::Half, Rank(0));
    let text = "\
broadcast by ring, rank 1 of 3: 100 half, root 0
1 iteration, segments of 256, no scratch; spans are those of the whole loop
lane 0
  #0 forward pair 0->1 -> output[0..100], pair 1->2
";
    assert_eq!(plans(3, &request, Algorithm::Ring, 256)[1].to_string(), text);
}

#[test]
fn a_send_recv_as_text() {
    let pattern = |rank, size, count| Some(((rank + 1) % size, count + u64::from(rank)));
    let text = "\
send-recv by oneshot, rank 1 of 3: 11 int8, to 2, from 0 (10 elements)
2 iterations, segments of 8, no scratch; spans are those of the whole loop
lane 0
  #0 publish input[0..11] -> pair 1->2
lane 1
  #1 collect pair 0->1 -> output[0..10]
";
    assert_eq!(exchange(3, 10, DataType::Int8, pattern, 8)[1].to_string(), text);
}

#[test]
fn a_fused_step_as_text() {
    let request = Request::reduce_scatter(100, DataType::Half, ReduceOp::Sum);
    let mut plan = plans(3, &request, Algorithm::Ring, 64).remove(0);
    plan.steps[1].targets = plan.steps[2].targets.clone();
    assert_eq!(plan.describe(1), "#1 receive-reduce-send pair 2->0 + input[100..200] -> pair 0->1");
}
