//! What copy engines alone reach: the limit of everything that goes through host memory.

use super::super::{
    launch::Workers,
    measure::slowest,
    message::{Command, Relay},
    statistics::{iterations, median},
};
use crate::{error::Result, sys::gpu::slot_bytes};

/// Batches of the best shape, of which the median counts.
const ROUNDS: usize = 3;

/// Bytes of the pieces that are tried: powers of two, as slots are.
const CHUNKS: [u64; 5] = [512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];

/// Microseconds in which copy engines bring the bytes of an all-reduce to all ranks, all GPUs and both directions at once,
/// in the best pieces, without adding.
pub(in super::super) fn limit_us(workers: &mut Workers, ranks: u32, bytes: u64) -> Result<f64> {
    if bytes == 0 {
        return Ok(0.0);
    }
    let mut ask = |relay: Relay| Ok(slowest(&workers.ask(&Command::Relay(relay))?));
    let mut best: Option<(f64, Relay)> = None;
    for shape in shapes(bytes, slot_bytes(ranks)) {
        // As if the link carried 20e9 bytes a second; the exact number does not matter.
        let us = ask(Relay { iterations: iterations(bytes as f64 / 20e3).min(50), ..shape })?;
        if best.is_none_or(|(best_us, _)| us < best_us) {
            best = Some((us, shape));
        }
    }
    let Some((us, shape)) = best else { return Ok(0.0) };
    let relay = Relay { iterations: iterations(us).min(500), ..shape };
    let rounds = (0..ROUNDS).map(|_| ask(relay)).collect::<Result<Vec<f64>>>()?;
    Ok(median(&rounds).unwrap_or(us))
}

/// Pieces and slots worth trying: not so small that there are hundreds of them, not so large that nothing overlaps.
fn shapes(bytes: u64, largest: u64) -> Vec<Relay> {
    let fits = |&chunk: &u64| chunk < bytes && chunk <= largest && (bytes / chunk <= 256 || chunk == largest);
    let mut chunks: Vec<u64> = CHUNKS.into_iter().filter(fits).collect();
    if bytes <= largest {
        chunks.push(bytes);
    }
    let relay = |chunk_bytes, slots| Relay { bytes, chunk_bytes, slots, iterations: 0 };
    chunks
        .into_iter()
        .flat_map(
            |chunk| if bytes.div_ceil(chunk) > 2 { vec![(chunk, 2), (chunk, 4)] } else { vec![(chunk, 2)] },
        )
        .map(|(chunk, slots)| relay(chunk, slots))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_relays_are_one_piece_and_large_ones_few() {
        let of =
            |bytes| shapes(bytes, 8 << 20).iter().map(|it| (it.chunk_bytes, it.slots)).collect::<Vec<_>>();
        assert_eq!(of(8), [(8, 2)]);
        assert_eq!(of(1 << 20), [(512 << 10, 2), (1 << 20, 2)]);
        for bytes in [100, 3 << 20, 8 << 20, (8 << 20) + 1, 1 << 30, 8 << 30] {
            let shapes = of(bytes);
            assert!(
                !shapes.is_empty() && shapes.iter().all(|&(chunk, _)| chunk <= 8 << 20 && chunk <= bytes)
            );
        }
        assert_eq!(of(1 << 30).len(), 4);
        assert!(shapes(1 << 30, 2 << 20).iter().all(|it| it.chunk_bytes == 2 << 20));
    }
}
