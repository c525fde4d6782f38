//! The segmented relay: two hops through the ranks' host stations, every leg busy at once.

use crate::{
    Algorithm, Group, Plan, Rank, Request, Result,
    plan::{Action, Builder, contribution, input, output, pair, shared},
    split,
};

use super::PART_ALIGN_BYTES;

/// All-reduce of `S` bytes over `n` ranks. The elements are split into `n` parts; rank `p` owns part `p`.
///
/// **Steps** of each rank, for every segment: publish its contribution to each part at the conduit to the part's owner;
/// as owner, collect `n-1` contributions, add them to its own in rank order, round once, keep the result and publish it
/// once at its shared station; collect the results of the other parts.
/// **Wire bytes** a rank: `S` sent (`(n-1)/n S` contributions and `S/n` results), `2S(n-1)/n` received. **Hops**: 2.
/// **Scratch**: none.
///
/// For 4 ranks, what rank 0 does with one segment:
/// ```text
/// input part 1 ──▶ pair 0→1        pair 1→0 ─┐
/// input part 2 ──▶ pair 0→2        pair 2→0 ─┼─(+ input part 0)─▶ output part 0, shared 0
/// input part 3 ──▶ pair 0→3        pair 3→0 ─┘
/// shared 1 ──▶ output part 1       shared 2 ──▶ output part 2      shared 3 ──▶ output part 3
/// ```
/// The idea of relaying through host stations instead of emulating peer access follows reports on PCIe machines without
/// peer-to-peer; the arithmetic is that of reduce-scatter followed by all-gather (Rabenseifner 2004).
///
/// # Errors
/// As [`super::plan`].
pub fn all_reduce(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Relay, segment)?;
    let me = group.rank();
    let align = PART_ALIGN_BYTES / request.data_type.size_bytes() as u64;
    let part = |owner: Rank| {
        let range = split::share(request.count, u64::from(group.size()), u64::from(owner.0), align);
        (range.start, range.end - range.start)
    };

    let contributed: Vec<_> = group
        .peers()
        .map(|owner| {
            let (start, len) = part(owner);
            let lane = plan.lane();
            plan.copy(lane, input(start), vec![pair(me, owner)], len, &[])
        })
        .collect();

    let (start, len) = part(me);
    let sources = group
        .ranks()
        .map(|rank| contribution(if rank == me { input(start) } else { pair(rank, me) }))
        .collect();
    let mut targets = vec![output(start)];
    if group.size() > 1 {
        targets.push(shared(me));
    }
    let lane = plan.lane();
    plan.step(lane, Action::Reduce { finish: true }, sources, targets, len, &[]);

    for (owner, contributed) in group.peers().zip(contributed) {
        let (start, len) = part(owner);
        let lane = plan.lane();
        // In place, the result overwrites the contribution: it must have been published first.
        plan.copy(lane, shared(owner), vec![output(start)], len, &[contributed]);
    }
    Ok(plan.finish())
}
