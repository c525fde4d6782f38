//! Which steps of one iteration wait for which.

use super::{
    fault::{Reason, Wait},
    traffic::{Node, Traffic},
};
use crate::{Plan, plan::StepId};

/// How a rank runs its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// One by one, in enqueue order.
    Serial,
    /// Lanes side by side.
    Lanes,
}

/// The steps of one iteration, and what each waits for. Steps without elements are left out.
pub(crate) struct Graph {
    /// Where each rank's steps start.
    first: Vec<usize>,
    nodes: Vec<Node>,
    active: Vec<bool>,
    waits: Vec<Vec<(usize, Reason)>>,
}

/// How far [`Graph::sorted`] is with a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

impl Graph {
    /// The graph of matched `traffic`; publishers wait for free slots if their number is given.
    pub(crate) fn new(plans: &[Plan], traffic: &Traffic, order: Order, slots: Option<usize>) -> Self {
        let mut graph = Self { first: Vec::new(), nodes: Vec::new(), active: Vec::new(), waits: Vec::new() };
        for plan in plans {
            graph.first.push(graph.nodes.len());
            for (id, step) in plan.steps.iter().enumerate() {
                graph.nodes.push(Node { rank: plan.group.rank(), step: id as StepId });
                graph.active.push(!step.segment(plan, traffic.iteration).is_empty());
            }
        }
        graph.waits.resize(graph.nodes.len(), Vec::new());
        for plan in plans {
            graph.order(plan, order);
        }
        graph.connect(traffic, slots);
        graph
    }

    /// One more than the highest index of a step.
    pub(crate) const fn len(&self) -> usize {
        self.nodes.len()
    }

    fn index(&self, node: Node) -> usize {
        self.first[node.rank.index()] + node.step as usize
    }

    pub(crate) fn node(&self, index: usize) -> Node {
        self.nodes[index]
    }

    pub(crate) fn waits(&self, index: usize) -> &[(usize, Reason)] {
        &self.waits[index]
    }

    fn order(&mut self, plan: &Plan, order: Order) {
        let first = self.first[plan.group.rank().index()];
        let all: Vec<StepId>;
        let queues = match order {
            Order::Lanes => &plan.lanes[..],
            Order::Serial => {
                all = (0..plan.steps.len() as StepId).collect();
                &[all]
            }
        };
        // What must have run before whatever follows a step, the step included: itself, or if it has no elements the one
        // before it in its queue.
        let mut passed = vec![None; plan.steps.len()];
        for queue in queues {
            let mut before = None;
            for &id in queue {
                let index = first + id as usize;
                if self.active[index] {
                    self.waits[index].extend(before.map(|before| (before, Reason::Turn)));
                    before = Some(index);
                }
                passed[id as usize] = before;
            }
        }
        if order == Order::Lanes {
            for (id, step) in plan.steps.iter().enumerate() {
                let after = step.after.iter().filter_map(|&other| passed[other as usize]);
                self.waits[first + id].extend(after.map(|other| (other, Reason::Turn)));
            }
        }
    }

    fn connect(&mut self, traffic: &Traffic, slots: Option<usize>) {
        for (&station, ends) in &traffic.stations {
            for collected in ends.collected.values() {
                for (message, &publish) in ends.published.iter().enumerate() {
                    let (publish, collect) = (self.index(publish), self.index(collected[message]));
                    self.waits[collect].push((publish, Reason::Message(station)));
                    let blocked = slots.and_then(|slots| ends.published.get(message + slots));
                    if let Some(&next) = blocked {
                        let next = self.index(next);
                        self.waits[next].push((collect, Reason::Slot(station)));
                    }
                }
            }
        }
    }

    /// An order in which all steps can run, as indices of nodes, or else steps that wait for one another in a circle.
    pub(crate) fn sorted(&self) -> Result<Vec<usize>, Vec<Wait>> {
        let mut marks = vec![Mark::New; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        // The steps being looked into, and how many of the waits of each have been.
        let mut path: Vec<(usize, usize)> = Vec::new();
        for start in (0..self.nodes.len()).filter(|&node| self.active[node]) {
            if marks[start] == Mark::New {
                marks[start] = Mark::Open;
                path.push((start, 0));
            }
            while let Some((node, seen)) = path.last_mut() {
                let Some(&(needed, _)) = self.waits[*node].get(*seen) else {
                    marks[*node] = Mark::Done;
                    order.push(*node);
                    path.pop();
                    continue;
                };
                *seen += 1;
                match marks[needed] {
                    Mark::Done => {}
                    Mark::New => {
                        marks[needed] = Mark::Open;
                        path.push((needed, 0));
                    }
                    Mark::Open => return Err(self.circle(&path, needed)),
                }
            }
        }
        Ok(order)
    }

    fn circle(&self, path: &[(usize, usize)], start: usize) -> Vec<Wait> {
        let steps = path.iter().skip_while(|&&(node, _)| node != start);
        steps
            .map(|&(node, seen)| {
                let Node { rank, step } = self.nodes[node];
                Wait { rank, step, reason: self.waits[node][seen - 1].1 }
            })
            .collect()
    }
}
