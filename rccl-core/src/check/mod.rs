//! Proves that the plans of a group are right, for every length, without moving a byte.
//!
//! [`group`] takes one plan for each rank and proves:
//!
//! - **Matching**: every message published at a station is collected by each of its readers, in order and with its
//!   length, iteration by iteration; one lane publishes at a station, and one lane of each reader collects from it; no
//!   span leaves its buffer.
//! - **Result**: every element of every output ends as what the collective promises: each needed contribution exactly
//!   once and at its place, reductions finished exactly once, in rank order and rounded once for oneshot and relay,
//!   around the ring for ring; the same bits on all ranks; out of place and in place. The input is never written.
//! - **No races**: no two steps of one rank that may run at the same time touch the same memory with a write among
//!   them, out of place and in place. Only lanes and [`after`](crate::plan::Step::after) order the steps of a rank: an order
//!   that follows from what a peer does is not accepted, so that executors may run ahead of what they were told.
//! - **Progress**: no deadlock, however few slots, however the ranks are scheduled, and across consecutive plans.
//!
//! # Why a few iterations stand for all
//! Iteration `i` works on segment `i` of every span. Iterations in which the same steps move equally many elements have the
//! same *shape*: they differ by a shift. A loop has one shape for its full segments and a few for its end, so lengths
//! cost nothing. One iteration of each shape is examined, starting from memory in which only the input is known, and it
//! is a fault if iterations touch each other's memory ([`Fault::Carried`]; scratch must be written before it is read, and
//! its reuse is checked for races): so what holds for one iteration of a shape holds for all of them, in any company.
//!
//! # Why one schedule stands for all
//! Each end of a station belongs to one lane. A step that may run therefore stays able to until it has run, and the
//! steps that run and (as there are no races) the values that they move do not depend on the schedule.
//!
//! A deadlock is a cycle of steps that wait for one another. The check looks for one with the strictest waiting there
//! is: every rank runs its steps one by one in enqueue order, and every station has one slot. Waiting never reaches back
//! from an iteration to an earlier one, so a cycle lies within one iteration. Lanes side by side, more slots, or ranks
//! that run in different ways wait for a part of the same events only (a publisher that waits for the last message but
//! `k` to be collected waits for less than one that waits for the last), and leaving waits out makes no cycle.
//!
//! Every plan leaves its stations empty, and no step waits for a later plan: so proved plans also make progress one after
//! another, in any sequence, without a barrier and with fast ranks already in the next one.

mod content;
mod fault;
mod graph;
mod layout;
mod races;
mod result;
mod structure;
mod traffic;

use std::{fmt, ops::Range};

pub use fault::{Fault, Reason, Wait};
pub(crate) use graph::{Graph, Order};
pub(crate) use traffic::Traffic;

use crate::{Plan, split};
use fault::Faults;

/// What [`group`] proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The ranks whose plans were examined.
    pub ranks: u32,
    /// The iterations of the longest loop, cut into ranges of equal shape. One iteration of each range was examined.
    pub shapes: Vec<Range<u64>>,
    /// Whether the plans were also proved for a call in place (which send-recv does not have).
    pub in_place: bool,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, shapes, in_place } = self;
        let place = if *in_place { "out of place and in place" } else { "out of place" };
        let iterations = shapes.last().map_or(0, |shape| shape.end);
        write!(f, "proved for {ranks} ranks, {place}: {iterations} iterations of {} shapes", shapes.len())
    }
}

/// Proves the plans of a group, `plans[r]` being rank `r`'s. See the [module](self) for what that means.
///
/// The effort grows with the number of steps, not with lengths.
///
/// # Errors
/// What is wrong, at most a few dozen faults. Later properties are examined only if the earlier ones hold: first the
/// structure of each plan, then matching, progress, and finally races and the result.
///
/// ```
/// use rccl_core::{Algorithm, DataType, Group, ReduceOp, Request, check, planner};
///
/// let request = Request::all_reduce(10_000_000_000, DataType::Half, ReduceOp::Avg);
/// let mut plans: Vec<_> = (0..4)
///     .map(|rank| planner::plan(Group::new(4, rank).unwrap(), &request, Algorithm::Relay, 65_536).unwrap())
///     .collect();
/// assert!(check::group(&plans).is_ok());
///
/// plans[2].steps[0].after.clear();
/// plans[2].steps[4].after.clear();
/// let faults = check::group(&plans).unwrap_err();
/// assert!(matches!(faults[0], check::Fault::Race { in_place: true, .. }));
/// ```
pub fn group(plans: &[Plan]) -> Result<Proof, Vec<Fault>> {
    let mut faults = Faults::default();
    structure::examine(plans, &mut faults);
    faults.none_so_far()?;

    let shapes = shapes(plans);
    let traffic: Vec<_> = shapes.iter().map(|shape| Traffic::at(plans, shape.start)).collect();
    for traffic in &traffic {
        traffic.examine(plans, &mut faults);
    }
    faults.none_so_far()?;

    let mut orders = Vec::new();
    for traffic in &traffic {
        let graph = Graph::new(plans, traffic, Order::Serial, Some(1));
        match graph.sorted() {
            Ok(order) => orders.push(order.into_iter().map(|index| graph.node(index)).collect::<Vec<_>>()),
            Err(cycle) => {
                let lanes = Graph::new(plans, traffic, Order::Lanes, Some(1)).sorted();
                let (serial, cycle) = lanes.map_or_else(|cycle| (false, cycle), |_| (true, cycle));
                faults.report(Fault::Deadlock { iteration: traffic.iteration, serial, cycle });
            }
        }
    }
    faults.none_so_far()?;

    let in_place = plans.iter().all(|plan| plan.request.in_place_offset(plan.group).is_some());
    result::examine_coverage(plans, &mut faults);
    for in_place in if in_place { &[false, true][..] } else { &[false] } {
        races::examine(plans, *in_place, &mut faults);
        for (shape, order) in shapes.iter().zip(&orders) {
            result::examine(plans, *in_place, shape.start, order, &mut faults);
        }
    }
    faults.none_so_far()?;
    Ok(Proof { ranks: plans.len() as u32, shapes, in_place })
}

/// Cuts the iterations of the longest loop into ranges within which every step of every rank moves equally many
/// elements.
fn shapes(plans: &[Plan]) -> Vec<Range<u64>> {
    let mut bounds = vec![0];
    for plan in plans {
        for step in &plan.steps {
            // The last segment may be short, and there is none after it.
            bounds.extend([step.len / plan.segment, split::segments(step.len, plan.segment)]);
        }
    }
    bounds.sort_unstable();
    bounds.dedup();
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}
