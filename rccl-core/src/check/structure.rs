//! What each plan must be by itself, and what the plans of a group must agree on.

use std::collections::HashMap;

use super::fault::{Fault, Faults};
use crate::{
    Collective, Plan, Rank,
    plan::{Action, Buffer, Operand, Station, Step, StepId},
    split,
};

pub(super) fn examine(plans: &[Plan], faults: &mut Faults) {
    let Some(first) = plans.first() else {
        return faults.report(Fault::Disagreement { rank: Rank(0), what: "there are no plans" });
    };
    for (rank, plan) in plans.iter().enumerate() {
        let rank = Rank(rank as u32);
        if let Some(what) = disagreement(plan, first, rank, plans.len()) {
            faults.report(Fault::Disagreement { rank, what });
        }
        if plan.segment == 0 {
            faults.report(Fault::Loop { rank, what: "a segment has no elements" });
            continue;
        }
        if let Some(what) = contradiction(plan) {
            faults.report(Fault::Loop { rank, what });
        }
        let mut lanes = HashMap::new();
        for (id, step) in plan.steps.iter().enumerate() {
            let id = id as StepId;
            if let Some(what) = malformation(plan, id, step) {
                faults.report(Fault::Malformed { rank, step: id, what });
            }
            examine_spans(plan, id, step, faults);
            examine_stations(plan, id, step, &mut lanes, faults);
        }
    }
}

fn disagreement(plan: &Plan, first: &Plan, rank: Rank, plans: usize) -> Option<&'static str> {
    let (request, other) = (&plan.request, &first.request);
    let same_request = if request.collective == Collective::SendRecv {
        (request.collective, request.data_type) == (other.collective, other.data_type)
    } else {
        request == other
    };
    let rules = [
        (plan.group.size() as usize == plans, "its group has not as many ranks as there are plans"),
        (plan.group.rank() == rank, "it is another rank's"),
        (same_request, "it answers another request"),
        (plan.algorithm == first.algorithm, "it follows another algorithm"),
        (plan.segment == first.segment, "its segments have another length"),
    ];
    rules.into_iter().find_map(|(holds, what)| (!holds).then_some(what))
}

fn contradiction(plan: &Plan) -> Option<&'static str> {
    let needed = plan.steps.iter().map(|step| split::segments(step.len, plan.segment)).max().unwrap_or(0);
    let listed: usize = plan.lanes.iter().map(Vec::len).sum();
    let rules = [
        (plan.iterations == needed, "the loop does not run as often as its longest step has segments"),
        (listed == plan.steps.len(), "the lanes do not list every step once"),
        (plan.lanes.iter().all(|lane| lane.is_sorted()), "a lane contradicts the enqueue order"),
    ];
    rules.into_iter().find_map(|(holds, what)| (!holds).then_some(what))
}

fn malformation(plan: &Plan, id: StepId, step: &Step) -> Option<&'static str> {
    let listed = plan.lanes.get(step.lane as usize).and_then(|lane| lane.get(step.position as usize));
    let sources = match step.action {
        Action::Copy => step.sources.len() == 1,
        Action::Reduce { .. } => !step.sources.is_empty(),
    };
    let rules = [
        (step.len > 0, "it has no elements"),
        (listed == Some(&id), "its lane does not list it at its position"),
        (step.after.iter().all(|&other| other < id), "it comes after a step that is enqueued later"),
        (sources, "it has too few or too many sources"),
        (!step.targets.is_empty(), "it has no target"),
        (all_different(step.publishes()), "it publishes twice at one station"),
        (all_different(step.collects()), "it collects twice from one station"),
    ];
    rules.into_iter().find_map(|(holds, what)| (!holds).then_some(what))
}

fn all_different(stations: impl Iterator<Item = Station>) -> bool {
    let mut stations: Vec<_> = stations.collect();
    let all = stations.len();
    stations.sort_unstable();
    stations.dedup();
    stations.len() == all
}

fn examine_spans(plan: &Plan, id: StepId, step: &Step, faults: &mut Faults) {
    let rank = plan.group.rank();
    let sources = step.sources.iter().map(|source| source.operand);
    for operand in sources.chain(step.targets.iter().copied()) {
        let Operand::Local { buffer, start } = operand else { continue };
        let (len, available) = match buffer {
            Buffer::Input => (step.len, plan.input_len()),
            Buffer::Output => (step.len, plan.output_len()),
            Buffer::Scratch => (step.len.min(plan.segment), plan.scratch_len),
        };
        if start.checked_add(len).is_none_or(|end| end > available) {
            faults.report(Fault::OutsideBuffer { rank, step: id, buffer, start, len, available });
        }
    }
    if step.targets.iter().any(|target| matches!(target, Operand::Local { buffer: Buffer::Input, .. })) {
        faults.report(Fault::WritesInput { rank, step: id });
    }
}

/// `lanes` remembers the lane that uses each end of a station: `true` is the publishing end.
fn examine_stations(
    plan: &Plan,
    step_id: StepId,
    step: &Step,
    lanes: &mut HashMap<(Station, bool), u32>,
    faults: &mut Faults,
) {
    let (rank, size) = (plan.group.rank(), plan.group.size());
    let publishes = step.publishes().map(|station| (station, true));
    for (station, publishes) in publishes.chain(step.collects().map(|station| (station, false))) {
        let reads = station.readers(size).any(|reader| reader == rank);
        let exists = station.publisher().0 < size && station.readers(size).next().is_some();
        let own = station.publisher() == rank && !reads;
        if !exists || !(if publishes { own } else { reads && !own }) {
            faults.report(Fault::WrongStation { rank, step: step_id, station, publishes });
        }
        if *lanes.entry((station, publishes)).or_insert(step.lane) != step.lane {
            faults.report(Fault::SharedEnd { rank, step: step_id, station });
        }
    }
}
