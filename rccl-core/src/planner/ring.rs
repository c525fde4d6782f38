//! Neighbours only: every rank receives from the one before it and sends to the one after it.

use std::ops::Range;

use crate::{
    Algorithm, Group, Plan, Rank, Request, Result,
    plan::{Action, Builder, Operand, Source, contribution, input, output, pair},
    split,
};

use super::PART_ALIGN_BYTES;

/// A chunk that travels around the ring: where it lies in input and output, where partial results are kept, its length.
struct Chunk {
    input: u64,
    partial: Operand,
    output: u64,
    len: u64,
}

/// The reducing phase: `n-1` hops, after which every rank holds the reduction of the chunk it met last, in its output.
///
/// `chunk(0)` is the chunk a rank sends first, `chunk(h)` the one it receives at hop `h`. The receiver adds its own
/// contribution to the partial result, rounds to the data type, and sends the sum on. Receiving and sending are two steps
/// with the partial result in between, so that a ring of stations with one slot each cannot block itself.
fn reduce_phase(plan: &mut Builder, lane: u32, group: Group, chunk: &impl Fn(u32) -> Chunk) {
    let (me, before, after) = (group.rank(), group.before(1), group.after(1));
    let first = chunk(0);
    plan.copy(lane, input(first.input), vec![pair(me, after)], first.len, &[]);
    for hop in 1..group.size() {
        let chunk = chunk(hop);
        let finish = hop == group.size() - 1;
        // The first hop receives a raw contribution, every later one a partial result.
        let received = Source { operand: pair(before, me), contribution: hop == 1 };
        let sources = vec![received, contribution(input(chunk.input))];
        let target = if finish { output(chunk.output) } else { chunk.partial };
        plan.step(lane, Action::Reduce { finish }, sources, vec![target], chunk.len, &[]);
        if !finish {
            plan.copy(lane, chunk.partial, vec![pair(me, after)], chunk.len, &[]);
        }
    }
}

/// The gathering phase: send `chunk(0)`, then `n-1` times receive `chunk(h)` into the output and, but for the last, send
/// it on. A chunk is its place in the output and its length.
fn gather_phase(plan: &mut Builder, lane: u32, group: Group, chunk: &impl Fn(u32) -> (u64, u64)) {
    let (me, before, after) = (group.rank(), group.before(1), group.after(1));
    for hop in 0..group.size() {
        let (start, len) = chunk(hop);
        if hop > 0 {
            plan.copy(lane, pair(before, me), vec![output(start)], len, &[]);
        }
        if hop < group.size() - 1 {
            plan.copy(lane, output(start), vec![pair(me, after)], len, &[]);
        }
    }
}

/// All-reduce of `S` bytes over `n` ranks (Patarasuk and Yuan 2009).
///
/// **Steps** of each rank: send a chunk; `n-1` times receive a partial chunk, add its own contribution and send it on;
/// send the chunk that is now finished; `n-1` times receive a finished chunk, keep it and, but for the last, send it on.
/// All in one lane.
/// **Wire bytes** a rank: `2S(n-1)/n` sent and received. **Hops**: `2(n-1)`. **Scratch**: none (partial results lie in
/// the output). Rounds at every hop.
///
/// # Errors
/// As [`super::plan`].
pub fn all_reduce(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Ring, segment)?;
    let align = PART_ALIGN_BYTES / request.data_type.size_bytes() as u64;
    let range = |rank: Rank| split::share(request.count, u64::from(group.size()), u64::from(rank.0), align);
    let lane = plan.lane();
    if group.size() == 1 {
        alone(&mut plan, lane, request.count);
        return Ok(plan.finish());
    }
    reduce_phase(&mut plan, lane, group, &|hop| {
        let Range { start, end } = range(group.before(hop));
        Chunk { input: start, partial: output(start), output: start, len: end - start }
    });
    // The reducing phase ended on the chunk of the rank after this one.
    gather_phase(&mut plan, lane, group, &|hop| {
        let Range { start, end } = range(group.after(1 + group.size() - hop));
        (start, end - start)
    });
    Ok(plan.finish())
}

/// Reduce-scatter that leaves `S` bytes on each of `n` ranks.
///
/// **Steps** of each rank: the reducing half of the ring all-reduce, arranged so that rank `r` ends with chunk `r`.
/// **Wire bytes** a rank: `(n-1)S` sent and received. **Hops**: `n-1`. **Scratch**: one segment. Rounds at every hop.
///
/// # Errors
/// As [`super::plan`].
pub fn reduce_scatter(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Ring, segment)?;
    let lane = plan.lane();
    if group.size() == 1 {
        alone(&mut plan, lane, request.count);
        return Ok(plan.finish());
    }
    let scratch = if group.size() > 2 { plan.scratch(request.count) } else { output(0) };
    reduce_phase(&mut plan, lane, group, &|hop| {
        let rank = group.before(hop + 1);
        Chunk { input: request.count * u64::from(rank.0), partial: scratch, output: 0, len: request.count }
    });
    Ok(plan.finish())
}

/// All-gather of `S` bytes from each of `n` ranks.
///
/// **Steps** of each rank: keep and send its own chunk; `n-1` times receive a chunk, keep it and, but for the last, send
/// it on.
/// **Wire bytes** a rank: `(n-1)S` sent and received. **Hops**: `n-1`. **Scratch**: none.
///
/// # Errors
/// As [`super::plan`].
pub fn all_gather(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Ring, segment)?;
    let count = request.count;
    let place = |rank: Rank| count * u64::from(rank.0);
    let lane = plan.lane();
    plan.copy(lane, input(0), vec![output(place(group.rank()))], count, &[]);
    gather_phase(&mut plan, lane, group, &|hop| (place(group.before(hop)), count));
    Ok(plan.finish())
}

/// Broadcast of `S` bytes along the ring, from the root to the rank before it.
///
/// **Steps**: the root sends every segment to the next rank; every rank keeps what it receives and sends it on; the last
/// one only keeps it.
/// **Wire bytes** a rank: `S` sent (none by the last), `S` received (none by the root). **Hops**: `n-1`, pipelined.
/// **Scratch**: none.
///
/// # Errors
/// As [`super::plan`].
pub fn broadcast(group: Group, request: &Request, segment: u64) -> Result<Plan> {
    let mut plan = Builder::new(group, request, Algorithm::Ring, segment)?;
    let (me, root) = (group.rank(), request.root.unwrap_or(Rank(0)));
    let source = if me == root { input(0) } else { pair(group.before(1), me) };
    let mut targets = vec![output(0)];
    if group.after(1) != root {
        targets.push(pair(me, group.after(1)));
    }
    let lane = plan.lane();
    plan.copy(lane, source, targets, request.count, &[]);
    Ok(plan.finish())
}

/// A reduction over one rank: the operator applied to the only contribution.
fn alone(plan: &mut Builder, lane: u32, count: u64) {
    plan.step(
        lane,
        Action::Reduce { finish: true },
        vec![contribution(input(0))],
        vec![output(0)],
        count,
        &[],
    );
}
