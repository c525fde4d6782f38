//! The messages of one iteration.

use std::collections::BTreeMap;

use super::fault::{Fault, Faults};
use crate::{
    Plan, Rank,
    plan::{Station, StepId},
};

/// A step of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) rank: Rank,
    pub(crate) step: StepId,
}

impl Node {
    fn len(self, plans: &[Plan], iteration: u64) -> u64 {
        let plan = &plans[self.rank.index()];
        let segment = plan.step(self.step).segment(plan, iteration);
        segment.end - segment.start
    }
}

/// The steps that use a station in one iteration, in order.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) published: Vec<Node>,
    pub(crate) collected: BTreeMap<Rank, Vec<Node>>,
}

/// The messages of one iteration at all stations.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) iteration: u64,
    pub(crate) stations: BTreeMap<Station, Ends>,
}

impl Traffic {
    pub(crate) fn at(plans: &[Plan], iteration: u64) -> Self {
        let mut stations = BTreeMap::<Station, Ends>::new();
        for plan in plans {
            let rank = plan.group.rank();
            for (id, step) in plan.steps.iter().enumerate() {
                if step.segment(plan, iteration).is_empty() {
                    continue;
                }
                let node = Node { rank, step: id as StepId };
                for station in step.publishes() {
                    stations.entry(station).or_default().published.push(node);
                }
                for station in step.collects() {
                    stations.entry(station).or_default().collected.entry(rank).or_default().push(node);
                }
            }
        }
        Self { iteration, stations }
    }

    /// Whether every reader of every station collects what is published there.
    pub(super) fn examine(&self, plans: &[Plan], faults: &mut Faults) {
        let (iteration, size) = (self.iteration, plans.len() as u32);
        for (&station, ends) in &self.stations {
            for reader in station.readers(size) {
                let collected = ends.collected.get(&reader).map_or(&[][..], Vec::as_slice);
                if collected.len() != ends.published.len() {
                    faults.report(Fault::Unmatched {
                        station,
                        reader,
                        iteration,
                        published: ends.published.len(),
                        collected: collected.len(),
                    });
                }
                for (publish, collect) in ends.published.iter().zip(collected) {
                    let lengths = (publish.len(plans, iteration), collect.len(plans, iteration));
                    if lengths.0 != lengths.1 {
                        faults.report(Fault::Length {
                            station,
                            reader,
                            iteration,
                            published_by: publish.step,
                            published: lengths.0,
                            collected_by: collect.step,
                            collected: lengths.1,
                        });
                    }
                }
            }
        }
    }
}
