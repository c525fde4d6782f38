//! Faults planted in plans, each of which the checks must find.

mod support;

use rccl_core::{
    Algorithm, DataType, Error, Group, Plan, Rank, ReduceOp, Request,
    check::{self, Fault},
    plan::{Action, Buffer, Operand, Source, Station, StepId},
    planner,
};
use support::{
    exchange, plans,
    simulate::{Call, Schedule, simulate},
    swap,
};

const fn pair(publisher: u32, reader: u32) -> Operand {
    Operand::Slot(Station::Pair { publisher: Rank(publisher), reader: Rank(reader) })
}

const fn local(buffer: Buffer, start: u64) -> Operand {
    Operand::Local { buffer, start }
}

fn all_reduce(algorithm: Algorithm, size: u32, count: u64, segment: u64) -> Vec<Plan> {
    plans(size, &Request::all_reduce(count, DataType::Double, ReduceOp::Avg), algorithm, segment)
}

fn ring_reduce_scatter() -> Vec<Plan> {
    plans(3, &Request::reduce_scatter(20, DataType::Double, ReduceOp::Sum), Algorithm::Ring, 8)
}

fn faults(plans: &[Plan]) -> Vec<Fault> {
    check::group(plans).expect_err("a fault was planted")
}

/// Whether some fault is of this kind.
macro_rules! assert_found {
    ($plans:expr, $($pattern:tt)+) => {{
        let faults = faults(&$plans);
        assert!(faults.iter().any(|fault| matches!(fault, $($pattern)+)), "{faults:#?}");
    }};
}

/// Rearranges the lanes of a plan.
fn arrange(plan: &mut Plan, lanes: &[&[StepId]]) {
    plan.lanes = lanes.iter().map(|lane| lane.to_vec()).collect();
    for (number, lane) in lanes.iter().enumerate() {
        for (position, &step) in lane.iter().enumerate() {
            plan.steps[step as usize].lane = number as u32;
            plan.steps[step as usize].position = position as u32;
        }
    }
}

#[test]
fn a_result_in_the_wrong_chunk() {
    let mut plans = all_reduce(Algorithm::Relay, 4, 64, 16);
    let rank = &mut plans[1];
    let [one, other] = [4, 5].map(|step| rank.steps[step].targets.clone());
    (rank.steps[4].targets, rank.steps[5].targets) = (other, one);
    assert_found!(plans, Fault::Misplaced { rank: Rank(1), expected: (_, 48), found: (_, 32), .. });
}

#[test]
fn a_contribution_from_the_wrong_chunk() {
    let mut plans =
        plans(3, &Request::reduce_scatter(8, DataType::Float, ReduceOp::Sum), Algorithm::Oneshot, 8);
    plans[0].steps[0].sources[0].operand = local(Buffer::Input, 16);
    assert_found!(
        plans,
        Fault::Misplaced { rank: Rank(1), expected: (Rank(0), 8), found: (Rank(0), 16), .. }
    );
}

#[test]
fn a_missing_contribution() {
    let mut plans = all_reduce(Algorithm::Oneshot, 3, 10, 4);
    plans[2].steps[1].sources.retain(|source| matches!(source.operand, Operand::Slot(_)));
    assert_found!(plans, Fault::Times { rank: Rank(2), contributor: Rank(2), times: 0, .. });
}

#[test]
fn a_doubled_contribution() {
    let mut plans = all_reduce(Algorithm::Oneshot, 3, 10, 4);
    let own = plans[2].steps[1].sources[2];
    plans[2].steps[1].sources.push(own);
    assert_found!(plans, Fault::Times { rank: Rank(2), contributor: Rank(2), times: 2, .. });
}

#[test]
fn a_lost_remainder() {
    let mut plans = all_reduce(Algorithm::Relay, 3, 100, 8);
    let whole = plans[0].steps.iter().map(|step| step.len).min().unwrap();
    for step in plans.iter_mut().flat_map(|plan| &mut plan.steps).filter(|step| step.len == whole) {
        step.len -= 1;
    }
    assert_found!(plans, Fault::Unwritten { rank: Rank(0), output } if output.end == 100 && output.start == 99);
}

#[test]
fn a_missing_dependency() {
    for (algorithm, step) in [(Algorithm::Oneshot, 1), (Algorithm::Relay, 3)] {
        let mut plans = all_reduce(algorithm, 3, 100, 8);
        assert_eq!(plans[1].steps[step].after.len(), 1);
        plans[1].steps[step].after.clear();
        let faults = faults(&plans);
        // Out of place nothing is wrong.
        assert!(
            faults.iter().all(|fault| matches!(
                fault,
                Fault::Race { rank: Rank(1), in_place: true, buffer: Buffer::Output, .. }
            )),
            "{faults:#?}"
        );
    }
}

#[test]
fn scratch_that_is_reused_too_early() {
    let mut plans = ring_reduce_scatter();
    // Sending in a lane of its own: the next iteration's sum may overwrite what is being sent.
    arrange(&mut plans[0], &[&[0, 2], &[1, 3]]);
    plans[0].steps[2].after = vec![1];
    let found = faults(&plans);
    let race = &found[0];
    assert!(matches!(race, Fault::Race { buffer: Buffer::Scratch, in_place: false, .. }), "{found:#?}");
    assert_eq!(
        race.to_string(),
        "rank 0: step #1 of iteration 1 and step #2 of iteration 0 may touch the same scratch at the same time"
    );
    // With a single iteration there is nothing to overwrite.
    plans.iter_mut().for_each(|plan| (plan.segment, plan.iterations, plan.scratch_len) = (20, 1, 20));
    check::group(&plans).unwrap();
}

#[test]
fn swapped_messages_of_equal_length() {
    let mut plans = plans(4, &Request::all_gather(10, DataType::Half), Algorithm::Ring, 4);
    let collects: Vec<_> =
        (0..plans[0].steps.len()).filter(|&step| plans[0].steps[step].collects().next().is_some()).collect();
    let targets = [collects[1], collects[2]].map(|step| plans[0].steps[step].targets.clone());
    let [one, other] = targets;
    plans[0].steps[collects[1]].targets = other;
    plans[0].steps[collects[2]].targets = one;
    assert_found!(plans, Fault::Misplaced { rank: Rank(0), .. });
}

#[test]
fn swapped_messages_of_different_lengths() {
    let mut plans = all_reduce(Algorithm::Ring, 3, 20, 8);
    // The chunks have 8, 8 and 4 elements; the first messages of rank 2 are chunks 2 and 1.
    assert_eq!([0, 2].map(|step| plans[2].steps[step].len), [4, 8]);
    swap(&mut plans[2], 0, 2);
    assert_found!(plans, Fault::Length { reader: Rank(0), published: 8, published_by: 0, collected: 4, .. });
}

#[test]
fn the_wrong_reader() {
    let shift = |rank, size, count| Some(((rank + 1) % size, count));
    let mut plans = exchange(3, 10, DataType::Float, shift, 4);
    plans[0].steps[0].targets = vec![pair(0, 2)];
    assert_found!(plans, Fault::Unmatched { reader: Rank(1), published: 0, collected: 1, .. });
    assert_found!(plans, Fault::Unmatched { reader: Rank(2), published: 1, collected: 0, .. });

    plans[0].steps[0].targets = vec![pair(1, 2)];
    assert_found!(plans, Fault::WrongStation { rank: Rank(0), publishes: true, .. });
    plans[0].steps[0].targets = vec![pair(0, 3)];
    assert_found!(plans, Fault::WrongStation { rank: Rank(0), publishes: true, .. });
    plans[0].steps[1].sources[0].operand = pair(1, 2);
    assert_found!(plans, Fault::WrongStation { rank: Rank(0), publishes: false, .. });
}

#[test]
fn a_ring_of_fused_steps_blocks_itself_with_one_slot() {
    let mut plans = ring_reduce_scatter();
    for plan in &mut plans {
        // What the second step adds up goes straight to the next rank.
        let send = plan.steps.remove(2);
        plan.steps[1].targets = send.targets;
        arrange(plan, &[&[0, 1, 2]]);
    }
    let found = faults(&plans);
    assert!(matches!(found[0], Fault::Deadlock { serial: false, iteration: 0, .. }), "{found:#?}");
    assert_eq!(
        found[0].to_string(),
        "deadlock with one slot a station, iteration 0: \
         rank 0 step #1 waits for a free slot of pair 0->1 from rank 1 step #1 waits for a free slot of pair 1->2 from \
         rank 2 step #1 waits for a free slot of pair 2->0 from rank 0 step #1"
    );
    let call = [Call { plans: &plans, in_place: false }];
    for schedule in [Schedule::Serial(1), Schedule::LowFirst, Schedule::Random(1)] {
        assert!(simulate(&call, 1, schedule).is_err_and(|why| why.contains("deadlock")));
        assert_eq!(simulate(&call, 2, schedule), Ok(()));
    }
}

#[test]
fn an_enqueue_order_that_only_works_with_lanes_side_by_side() {
    let shift = |rank, size, count| Some(((rank + 1) % size, count));
    let mut plans = exchange(3, 10, DataType::Float, shift, 4);
    plans.iter_mut().for_each(|plan| swap(plan, 0, 1));
    assert_found!(plans, Fault::Deadlock { serial: true, .. });
    assert!(faults(&plans)[0].to_string().contains("rank 0 step #0 waits for a message at pair 2->0"));
    let call = [Call { plans: &plans, in_place: false }];
    assert!(simulate(&call, 4, Schedule::Serial(1)).is_err_and(|why| why.contains("deadlock")));
    assert_eq!(simulate(&call, 1, Schedule::LowFirst), Ok(()));
}

#[test]
fn a_length_that_the_reader_does_not_expect() {
    let request = |rank: u32| match rank {
        0 => Request::send_recv(10, Some(Rank(1)), 0, None, DataType::Float),
        _ => Request::send_recv(0, None, 11, Some(Rank(0)), DataType::Float),
    };
    let plan =
        |rank| planner::plan(Group::new(2, rank).unwrap(), &request(rank), Algorithm::Oneshot, 4).unwrap();
    let plans = [plan(0), plan(1)];
    assert_found!(plans, Fault::Length { iteration: 2, published: 2, collected: 3, .. });
}

#[test]
fn a_reduction_that_is_not_finished() {
    let mut plans = all_reduce(Algorithm::Relay, 3, 100, 8);
    plans[1].steps[2].action = Action::Reduce { finish: false };
    assert_found!(plans, Fault::Unfinished { rank: Rank(0), .. });
}

#[test]
fn a_reduction_that_is_finished_twice_or_too_early() {
    let mut plans = ring_reduce_scatter();
    plans[1].steps[1].action = Action::Reduce { finish: true };
    assert_found!(plans, Fault::FinishedTwice { rank: Rank(2), step: 3 });
    plans[2].steps[3].action = Action::Reduce { finish: false };
    assert_found!(plans, Fault::Unfinished { rank: Rank(2), .. });
}

#[test]
fn the_wrong_order_of_addition() {
    let mut plans = all_reduce(Algorithm::Oneshot, 3, 100, 8);
    plans[1].steps[1].sources.swap(0, 2);
    assert_found!(plans, Fault::Order { rank: Rank(1), order, .. } if *order == [Rank(2), Rank(1), Rank(0)]);
}

#[test]
fn rounding_on_the_way_where_once_was_promised() {
    let mut plans = plans(3, &Request::reduce_scatter(20, DataType::Half, ReduceOp::Sum), Algorithm::Ring, 8);
    plans.iter_mut().for_each(|plan| plan.algorithm = Algorithm::Oneshot);
    assert_found!(plans, Fault::Order { algorithm: Algorithm::Oneshot, .. });
}

#[test]
fn ranks_that_add_in_different_orders() {
    let mut plans = all_reduce(Algorithm::Oneshot, 3, 100, 8);
    plans.iter_mut().for_each(|plan| plan.algorithm = Algorithm::Ring);
    check::group(&plans).unwrap();
    plans[1].steps[1].sources.rotate_left(1);
    assert_found!(plans, Fault::DifferentBits { rank: Rank(1), from: 0 });
}

#[test]
fn wrong_marks_of_contributions() {
    let mut plans = ring_reduce_scatter();
    plans[0].steps[1].sources[0].contribution = false;
    plans[2].steps[3].sources[0].contribution = true;
    assert_found!(plans, Fault::Mark { rank: Rank(0), step: 1, source_number: 0, contribution: true });
    assert_found!(plans, Fault::Mark { rank: Rank(2), step: 3, source_number: 0, contribution: false });
}

#[test]
fn spans_outside_their_buffers() {
    let mut plans = all_reduce(Algorithm::Oneshot, 2, 100, 8);
    plans[0].steps[1].targets = vec![local(Buffer::Output, 1)];
    assert_found!(plans, Fault::OutsideBuffer { buffer: Buffer::Output, start: 1, available: 100, .. });
    plans[0].steps[1].targets = vec![local(Buffer::Output, u64::MAX)];
    assert_found!(plans, Fault::OutsideBuffer { start: u64::MAX, .. });
    plans[0].steps[1].targets = vec![local(Buffer::Scratch, 0)];
    assert_found!(plans, Fault::OutsideBuffer { buffer: Buffer::Scratch, len: 8, available: 0, .. });
}

#[test]
fn a_step_that_writes_the_input() {
    let mut plans = all_reduce(Algorithm::Oneshot, 2, 100, 8);
    plans[0].steps[1].targets.push(local(Buffer::Input, 0));
    assert_found!(plans, Fault::WritesInput { rank: Rank(0), step: 1 });
}

#[test]
fn memory_that_is_read_before_it_is_written() {
    let mut plans = ring_reduce_scatter();
    plans[0].steps[0].sources[0].operand = local(Buffer::Scratch, 0);
    assert_found!(plans, Fault::Stale { rank: Rank(0), step: 0, iteration: 0 });
}

#[test]
fn a_reduction_where_elements_are_only_moved() {
    let mut plans = plans(2, &Request::all_gather(10, DataType::Half), Algorithm::Oneshot, 4);
    plans[0].steps[1].action = Action::Reduce { finish: true };
    plans[0].steps[1].sources[0].contribution = true;
    assert_found!(plans, Fault::Altered { rank: Rank(0), .. });
}

#[test]
fn iterations_that_touch_each_others_memory() {
    let mut plans = plans(1, &Request::all_gather(12, DataType::Half), Algorithm::Oneshot, 4);
    let mut shifted = plans[0].steps[0].clone();
    shifted.sources = vec![Source { operand: local(Buffer::Output, 0), contribution: false }];
    shifted.targets = vec![local(Buffer::Output, 4)];
    (shifted.len, shifted.position) = (8, 1);
    plans[0].steps.push(shifted);
    arrange(&mut plans[0], &[&[0, 1]]);
    assert_found!(plans, Fault::Carried { in_place: false, .. });
}

#[test]
fn a_step_that_overwrites_what_it_has_yet_to_read() {
    let mut plans = plans(2, &Request::all_gather(12, DataType::Half), Algorithm::Oneshot, 8);
    // Rank 0 puts its own chunk, in place at the start of the output, also a little further on.
    plans[0].steps[0].targets.push(local(Buffer::Output, 4));
    assert_found!(plans, Fault::OverlapsItself { rank: Rank(0), step: 0, in_place: true });
}

#[test]
fn plans_that_do_not_belong_together() {
    let plans = all_reduce(Algorithm::Relay, 2, 100, 8);
    assert_found!([], Fault::Disagreement { what: "there are no plans", .. });
    assert_found!(
        plans[..1],
        Fault::Disagreement { what: "its group has not as many ranks as there are plans", .. }
    );
    assert_found!(
        [plans[1].clone(), plans[0].clone()],
        Fault::Disagreement { what: "it is another rank's", .. }
    );
    for (other, reason) in [
        (all_reduce(Algorithm::Relay, 2, 101, 8), "it answers another request"),
        (all_reduce(Algorithm::Ring, 2, 100, 8), "it follows another algorithm"),
        (all_reduce(Algorithm::Relay, 2, 100, 9), "its segments have another length"),
    ] {
        let faults = faults(&[plans[0].clone(), other[1].clone()]);
        assert!(
            matches!(faults[0], Fault::Disagreement { rank: Rank(1), what } if what == reason),
            "{faults:#?}"
        );
    }
}

#[test]
fn plans_that_contradict_themselves() {
    let good = all_reduce(Algorithm::Relay, 2, 100, 8);
    let with = |change: fn(&mut Plan)| {
        let mut plans = good.clone();
        change(&mut plans[0]);
        plans
    };
    assert_found!(with(|plan| plan.iterations += 1), Fault::Loop { rank: Rank(0), .. });
    assert_found!(with(|plan| plan.segment = 0), Fault::Loop { what: "a segment has no elements", .. });
    assert_found!(with(|plan| plan.lanes[0].push(1)), Fault::Loop { .. });
    assert_found!(with(|plan| plan.steps[0].position = 7), Fault::Malformed { step: 0, .. });
    assert_found!(with(|plan| plan.steps[0].lane = 7), Fault::Malformed { step: 0, .. });
    assert_found!(with(|plan| plan.steps[0].after = vec![2]), Fault::Malformed { step: 0, .. });
    assert_found!(with(|plan| plan.steps[0].after = vec![99]), Fault::Malformed { step: 0, .. });
    assert_found!(with(|plan| plan.steps[0].sources.clear()), Fault::Malformed { step: 0, .. });
    assert_found!(with(|plan| plan.steps[0].targets.clear()), Fault::Malformed { step: 0, .. });
    assert_found!(with(|plan| plan.steps[0].len = 0), Fault::Malformed { step: 0, .. });
    assert_found!(with(|plan| plan.steps[0].targets.push(pair(0, 1))), Fault::Malformed { step: 0, .. });
    let two_lanes = |plan: &mut Plan| plan.steps[1].targets.push(pair(0, 1));
    assert_found!(with(two_lanes), Fault::SharedEnd { rank: Rank(0), step: 1, .. });
    let one_lane = |plan: &mut Plan| arrange(plan, &[&[1, 0], &[2]]);
    assert_found!(with(one_lane), Fault::Loop { what: "a lane contradicts the enqueue order", .. });
}

#[test]
fn a_rank_cannot_send_to_itself_without_receiving() {
    let group = Group::new(3, 1).unwrap();
    for (to, count, from, receive_count) in
        [(Some(1), 4, Some(2), 4), (Some(0), 4, Some(1), 4), (Some(1), 4, Some(1), 5)]
    {
        let request = Request::send_recv(count, to.map(Rank), receive_count, from.map(Rank), DataType::Float);
        let refused = planner::plan(group, &request, Algorithm::Oneshot, 4).unwrap_err();
        assert!(matches!(refused, Error::SelfSend { rank: Rank(1), .. }));
    }
}
