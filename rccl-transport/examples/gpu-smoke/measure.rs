//! Times: the median over rounds of the slowest rank, float sums, out of place.

use std::time::{Duration, Instant};

use rccl_core::DataType;
use rccl_transport::{
    Result,
    cuda::{
        Graph,
        relay::{
            BulkShape, LL_LINES, Protocol, RELAY_SLOT_BYTES, SLOT_BYTES, STRIPES, StripeShape,
            bulk_slot_bytes,
        },
    },
};

use crate::{
    arena::MAX_ROUNDS,
    check,
    rank::{LL, MAX_BYTES, Rank},
};

/// Median time of one operation: `batch` of them a round.
fn time(rank: &Rank, rounds: usize, batch: u32, mut enqueue: impl FnMut() -> Result<()>) -> Result<Duration> {
    let rounds = rounds.min(MAX_ROUNDS);
    let _guard = rank.context.enter()?;
    let mut operation = |round: Option<usize>| {
        rank.arena.barrier()?;
        let start = Instant::now();
        for _ in 0..batch {
            enqueue()?;
        }
        rank.finish()?;
        if let Some(round) = round {
            rank.arena.set_round(rank.rank(), round, start.elapsed() / batch);
        }
        Ok(())
    };
    operation(None)?;
    (0..rounds).try_for_each(|round| operation(Some(round)))?;
    rank.arena.barrier()?;
    let median = rank.arena.median(rounds);
    rank.arena.barrier()?;
    Ok(median)
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Bus bandwidth of an all-reduce in 1e9 B/s.
fn busbw(rank: &Rank, bytes: usize, time: Duration) -> f64 {
    let n = f64::from(rank.ranks());
    bytes as f64 / time.as_secs_f64() / 1e9 * 2.0 * (n - 1.0) / n
}

fn say(rank: &Rank, line: &str) {
    if rank.rank() == 0 {
        println!("{line}");
    }
}

pub(crate) fn ll(rank: &Rank) -> Result<()> {
    const BATCH: u32 = 20;
    say(rank, "ll, one-shot:     bytes   stream us    graph us");
    for bytes in [8, 64, 1 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10] {
        let call = rank.call(DataType::Float, bytes);
        assert!(bytes / 8 <= LL_LINES);
        check::run(rank, &call, LL, "ll")?;
        let stream = time(rank, 50, BATCH, || rank.enqueue(&call, LL))?;
        let graph = Graph::capture(&rank.stream, || (0..BATCH).try_for_each(|_| rank.enqueue(&call, LL)))?;
        // SAFETY: everything that the graph uses lives as long as the rank, and every launch is waited for.
        let replay = time(rank, 50, 5, || unsafe { graph.launch(&rank.stream) })? / BATCH;
        say(rank, &format!("{bytes:>26}  {:>10.2}  {:>10.2}", microseconds(stream), microseconds(replay)));
    }
    Ok(())
}

/// Shapes that make sense for a size, `most` stripes at most.
fn shapes(bytes: usize, most: u32) -> Vec<StripeShape> {
    let mut shapes = Vec::new();
    for stripes in [4, 8, 16] {
        for chunk_bytes in [4 << 10, 8 << 10, 16 << 10, 32 << 10] {
            for workers in [256, 512] {
                for lag in [1, 2, 3] {
                    let steps = bytes.div_ceil(stripes as usize * chunk_bytes as usize);
                    let idle = (stripes as usize - 1) * chunk_bytes as usize >= bytes;
                    if stripes <= most && !idle && (steps > 1 || lag == 1) {
                        shapes.push(StripeShape { stripes, workers, chunk_bytes, lag });
                    }
                }
            }
        }
    }
    shapes
}

pub(crate) fn stripe(rank: &Rank, relay: bool) -> Result<()> {
    let name = if relay { "stripe, relay" } else { "stripe, one-shot" };
    say(rank, &format!("{name}: bytes, us, busbw GB/s, the best shape; then the next two"));
    let sharing = rank.ranks().div_ceil(rccl_transport::cuda::Device::count(rank.context.driver())?.max(1));
    for bytes in (16..=24).map(|power| 1usize << power) {
        let call = rank.call(DataType::Float, bytes);
        let mut times = Vec::new();
        for shape in shapes(bytes, STRIPES as u32 / sharing) {
            if relay && shape.chunk_bytes as usize > RELAY_SLOT_BYTES {
                continue;
            }
            assert!(shape.chunk_bytes as usize <= SLOT_BYTES);
            let protocol = if relay { Protocol::Relay(shape) } else { Protocol::Stripe(shape) };
            times.push((time(rank, 7, 10, || rank.enqueue(&call, protocol))?, shape, protocol));
        }
        times.sort_by_key(|&(time, ..)| time);
        let (_, shape, protocol) = times[0];
        check::run(rank, &call, protocol, name)?;
        let best = time(rank, 30, 10, || rank.enqueue(&call, protocol))?;
        let others: Vec<_> = times
            .iter()
            .skip(1)
            .take(2)
            .map(|(time, shape, _)| format!("{:.1} {}", microseconds(*time), text(shape)))
            .collect();
        say(
            rank,
            &format!(
                "{bytes:>10}  {:>9.1}  {:>6.2}  {}; {}",
                microseconds(best),
                busbw(rank, bytes, best),
                text(&shape),
                others.join(", ")
            ),
        );
    }
    Ok(())
}

fn text(shape: &StripeShape) -> String {
    let StripeShape { stripes, workers, chunk_bytes, lag } = shape;
    format!("{stripes}x{workers}thr {}K lag {lag}", chunk_bytes >> 10)
}

pub(crate) fn bulk(rank: &Rank) -> Result<()> {
    say(rank, "bulk, one-shot: bytes, us, busbw GB/s, the best chunk and slots");
    for bytes in (20..=28).map(|power| 1usize << power) {
        assert!(bytes <= MAX_BYTES);
        let call = rank.call(DataType::Float, bytes);
        let mut best: Option<(Duration, usize, usize)> = None;
        for chunk_bytes in (18..=23).map(|power| 1usize << power) {
            for slots in [2, 4] {
                if chunk_bytes > bytes.min(bulk_slot_bytes(rank.ranks())) || bytes / chunk_bytes > 64 {
                    continue;
                }
                let protocol = Protocol::Bulk(BulkShape { chunk_bytes, slots });
                let time = time(rank, 5, 4, || rank.enqueue(&call, protocol))?;
                if best.is_none_or(|(fastest, ..)| time < fastest) {
                    best = Some((time, chunk_bytes, slots));
                }
            }
        }
        let Some((_, chunk_bytes, slots)) = best else { continue };
        let protocol = Protocol::Bulk(BulkShape { chunk_bytes, slots });
        check::run(rank, &call, protocol, "bulk")?;
        let time = time(rank, 15, 4, || rank.enqueue(&call, protocol))?;
        let (us, busbw) = (microseconds(time), busbw(rank, bytes, time));
        say(rank, &format!("{bytes:>10}  {us:>9.1}  {busbw:>6.2}  {}K x {slots}", chunk_bytes >> 10));
    }
    Ok(())
}
