//! Plans that were changed at random: what the checks accept must still work.

mod support;

use rccl_core::{
    Collective, DataType, Plan, check,
    plan::{Action, Operand, Station},
};
use support::{
    simulate::{Call, Schedule, simulate},
    swap, ways,
};

/// Changes something about some step, by a seed.
fn spoil(plans: &mut [Plan], seed: u64) {
    let size = plans.len() as u32;
    let plan = &mut plans[(seed % u64::from(size)) as usize];
    let seed = seed / u64::from(size);
    let steps = plan.steps.len() as u64;
    if steps == 0 {
        return;
    }
    let id = (seed % steps) as usize;
    let other = ((seed / steps / 12) % steps) as usize;
    let [lane, position] = [plan.steps[other].lane, plan.steps[other].position];
    let step = &mut plan.steps[id];
    let (sources, targets) = (step.sources.len(), step.targets.len());
    match (seed / steps) % 12 {
        0 => step.len += 1,
        1 => step.len -= 1,
        2 => step.after.clear(),
        3 => step.sources.rotate_left(1 % sources),
        4 => step.sources[other % sources].contribution ^= true,
        5 => step.targets = vec![step.targets[other % targets]],
        6 => swap(plan, id, other),
        7 => shift(&mut step.sources[other % sources].operand, 1),
        8 => shift(&mut step.targets[other % targets], 1),
        9 => shift(&mut step.targets[other % targets], 8),
        10 => {
            if let Action::Reduce { finish } = &mut step.action {
                *finish ^= true;
            }
        }
        _ => (step.lane, step.position) = (lane, position),
    }
}

fn shift(operand: &mut Operand, by: u64) {
    match operand {
        Operand::Local { start, .. } => *start = if *start >= by { *start - by } else { *start + by },
        Operand::Slot(Station::Pair { reader, .. }) => reader.0 = reader.0.saturating_sub(1),
        Operand::Slot(Station::Shared { publisher }) => publisher.0 = publisher.0.saturating_sub(1),
    }
}

#[test]
fn whatever_a_change_spoils_is_found() {
    let (mut found, mut harmless) = (0, 0);
    for collective in Collective::ALL {
        for (name, way) in ways(collective, 3, 20, DataType::Double) {
            let good = way(8);
            for seed in 0..200 {
                let mut plans = good.clone();
                spoil(&mut plans, seed * 0x9e37_79b9 + seed);
                if check::group(&plans).is_err() {
                    found += 1;
                    continue;
                }
                // What the checks accept must work, under any schedule.
                harmless += 1;
                for in_place in [false, collective != Collective::SendRecv] {
                    for schedule in [Schedule::Serial(seed), Schedule::HighFirst, Schedule::Random(seed)] {
                        let why = simulate(&[Call { plans: &plans, in_place }], 1, schedule);
                        assert_eq!(why, Ok(()), "{name}, seed {seed}, {schedule:?}");
                    }
                }
            }
        }
    }
    assert!(found > 1000 && harmless > 100, "{found} found, {harmless} harmless");
}
