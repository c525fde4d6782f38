//! One hop: everyone publishes what it has, everyone collects what it needs. Fewest hops, most bytes.

use crate::{
    Algorithm, Error, Group, Plan, Rank, Request, Result,
    plan::{Action, Builder, contribution, input, output, pair, shared},
};

/// All-reduce of `S` bytes over `n` ranks.
///
/// **Steps** of each rank: publish the whole input at its shared station; collect the inputs of all others and add them
/// to its own in rank order, rounding once.
/// **Wire bytes** a rank: `S` sent, `(n-1)S` received. **Hops**: 1. **Scratch**: none.
///
/// # Errors
/// As [`super::plan`].
pub fn all_reduce(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Oneshot, segment)?;
    let (me, count) = (group.rank(), request.count);
    let publish = if group.size() > 1 {
        let lane = plan.lane();
        plan.copy(lane, input(0), vec![shared(me)], count, &[])
    } else {
        None
    };
    let sources =
        group.ranks().map(|rank| contribution(if rank == me { input(0) } else { shared(rank) })).collect();
    let lane = plan.lane();
    plan.step(lane, Action::Reduce { finish: true }, sources, vec![output(0)], count, &[publish]);
    Ok(plan.finish())
}

/// All-gather of `S` bytes from each of `n` ranks.
///
/// **Steps** of each rank: publish its chunk once and copy it to its place; collect the chunks of all others.
/// **Wire bytes** a rank: `S` sent, `(n-1)S` received. **Hops**: 1. **Scratch**: none.
///
/// # Errors
/// As [`super::plan`].
pub fn all_gather(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Oneshot, segment)?;
    let (me, count) = (group.rank(), request.count);
    let place = |rank: Rank| output(count * u64::from(rank.0));
    let mut targets = vec![place(me)];
    if group.size() > 1 {
        targets.push(shared(me));
    }
    let lane = plan.lane();
    plan.copy(lane, input(0), targets, count, &[]);
    for peer in group.peers() {
        let lane = plan.lane();
        plan.copy(lane, shared(peer), vec![place(peer)], count, &[]);
    }
    Ok(plan.finish())
}

/// Reduce-scatter that leaves `S` bytes on each of `n` ranks.
///
/// **Steps** of each rank: publish every other rank's chunk to that rank; collect the contributions to its own chunk
/// and add them in rank order, rounding once.
/// **Wire bytes** a rank: `(n-1)S` sent and received. **Hops**: 1. **Scratch**: none.
///
/// # Errors
/// As [`super::plan`].
pub fn reduce_scatter(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Oneshot, segment)?;
    let (me, count) = (group.rank(), request.count);
    let place = |rank: Rank| input(count * u64::from(rank.0));
    for peer in group.peers() {
        let lane = plan.lane();
        plan.copy(lane, place(peer), vec![pair(me, peer)], count, &[]);
    }
    let sources =
        group.ranks().map(|rank| contribution(if rank == me { place(me) } else { pair(rank, me) })).collect();
    let lane = plan.lane();
    plan.step(lane, Action::Reduce { finish: true }, sources, vec![output(0)], count, &[]);
    Ok(plan.finish())
}

/// Broadcast of `S` bytes from the root to `n - 1` ranks.
///
/// **Steps**: the root publishes once (and copies to its output); everyone else collects.
/// **Wire bytes**: `S` sent by the root, `S` received by every other rank. **Hops**: 1. **Scratch**: none.
///
/// # Errors
/// As [`super::plan`].
pub fn broadcast(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Oneshot, segment)?;
    let root = request.root.unwrap_or(Rank(0));
    let lane = plan.lane();
    if group.rank() == root {
        let mut targets = vec![output(0)];
        if group.size() > 1 {
            targets.push(shared(root));
        }
        plan.copy(lane, input(0), targets, request.count, &[]);
    } else {
        plan.copy(lane, shared(root), vec![output(0)], request.count, &[]);
    }
    Ok(plan.finish())
}

/// A send beside a receive, each of them optional.
///
/// **Steps**: publish the input to the destination; collect from the source into the output. A rank may send to itself
/// if it also receives as much from itself: then it copies.
/// **Hops**: 1. **Scratch**: none.
///
/// # Errors
/// As [`super::plan`]; [`Error::SelfSend`] if only one side of a message from a rank to itself is there, or the sides
/// differ in length.
pub fn send_recv(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Oneshot, segment)?;
    let me = group.rank();
    let sent = request.to.filter(|&to| to == me).map(|_| request.count);
    let received = request.from.filter(|&from| from == me).map(|_| request.receive_count);
    if sent != received {
        let (sent, received) = (sent.unwrap_or(0), received.unwrap_or(0));
        return Err(Error::SelfSend { rank: me, sent, received });
    }
    let lane = plan.lane();
    if sent.is_some() {
        plan.copy(lane, input(0), vec![output(0)], request.count, &[]);
        return Ok(plan.finish());
    }
    if let Some(to) = request.to {
        plan.copy(lane, input(0), vec![pair(me, to)], request.count, &[]);
    }
    let lane = plan.lane();
    if let Some(from) = request.from {
        plan.copy(lane, pair(from, me), vec![output(0)], request.receive_count, &[]);
    }
    Ok(plan.finish())
}
