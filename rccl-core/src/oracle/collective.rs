use std::ops::Range;

use super::{Contribution, reduce};
use crate::{Algorithm, DataType, ReduceOp, planner::PART_ALIGN_BYTES, split};

/// What every rank of an all-reduce ends with. `inputs` are the ranks' inputs, in rank order.
///
/// `oneshot` and `relay` combine all contributions in rank order and round once. `ring` cuts the elements into one chunk a
/// rank, as [`split::share`] does in blocks of [`PART_ALIGN_BYTES`]. **Chunk `c` starts at rank `c`** and travels upwards:
/// rank `c + 1` adds its own contribution to it (what has been received first, its own second) and rounds, and so on around
/// the ring to rank `c - 1`, where `avg` divides, before rounding.
///
/// # Panics
/// If there are no inputs, their lengths differ, or they are not a whole number of elements.
#[must_use]
pub fn all_reduce(algorithm: Algorithm, data_type: DataType, op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    let bytes = common_length(data_type, inputs);
    if algorithm != Algorithm::Ring {
        return in_rank_order(data_type, op, inputs, 0..bytes);
    }
    let size = data_type.size_bytes() as u64;
    let (count, ranks) = (bytes as u64 / size, inputs.len() as u64);
    let mut result = Vec::with_capacity(bytes);
    for chunk in 0..ranks {
        let range = split::share(count, ranks, chunk, PART_ALIGN_BYTES / size);
        let range = (range.start * size) as usize..(range.end * size) as usize;
        result.extend(around_the_ring(data_type, op, inputs, range, chunk as usize));
    }
    result
}

/// What each rank of a reduce-scatter ends with, in rank order. `inputs` are the ranks' inputs, in rank order, each of one
/// chunk a rank.
///
/// `oneshot` (and `relay`, which no reduce-scatter needs) combine all contributions in rank order and round once. On the
/// `ring`, **chunk `c` starts at rank `c + 1`** and travels upwards, rounded at every hop as in [`all_reduce`], to end at
/// its owner, rank `c`.
///
/// # Panics
/// If there are no inputs, their lengths differ, or they are not a whole number of elements for each rank.
#[must_use]
pub fn reduce_scatter(
    algorithm: Algorithm,
    data_type: DataType,
    op: ReduceOp,
    inputs: &[&[u8]],
) -> Vec<Vec<u8>> {
    let (bytes, ranks) = (common_length(data_type, inputs), inputs.len());
    assert!(
        bytes.is_multiple_of(ranks * data_type.size_bytes()),
        "{bytes} bytes are no whole number of {data_type} elements for each of {ranks} ranks"
    );
    let chunk_bytes = bytes / ranks;
    let chunk = |rank: usize| {
        let range = rank * chunk_bytes..(rank + 1) * chunk_bytes;
        match algorithm {
            Algorithm::Ring => around_the_ring(data_type, op, inputs, range, rank + 1),
            Algorithm::Oneshot | Algorithm::Relay => in_rank_order(data_type, op, inputs, range),
        }
    };
    (0..ranks).map(chunk).collect()
}

fn common_length(data_type: DataType, inputs: &[&[u8]]) -> usize {
    let bytes = inputs.first().expect("a reduction needs at least one input").len();
    assert!(inputs.iter().all(|input| input.len() == bytes), "the inputs differ in length");
    assert!(
        bytes.is_multiple_of(data_type.size_bytes()),
        "{bytes} bytes are no whole number of {data_type} elements"
    );
    bytes
}

/// All contributions to the bytes of `range` in rank order, rounded once.
fn in_rank_order(data_type: DataType, op: ReduceOp, inputs: &[&[u8]], range: Range<usize>) -> Vec<u8> {
    let sources: Vec<_> =
        inputs.iter().map(|input| Contribution { bytes: &input[range.clone()], raw: true }).collect();
    let mut result = vec![0; range.len()];
    reduce(data_type, op, &sources, Some(inputs.len() as u32), &mut result);
    result
}

/// All contributions to the bytes of `range`, in the order of the ranks from `start` on, rounded at every hop.
fn around_the_ring(
    data_type: DataType,
    op: ReduceOp,
    inputs: &[&[u8]],
    range: Range<usize>,
    start: usize,
) -> Vec<u8> {
    let ranks = inputs.len();
    if ranks == 1 {
        return in_rank_order(data_type, op, inputs, range);
    }
    let own = |hop: usize| &inputs[(start + hop) % ranks][range.clone()];
    let mut partial = own(0).to_vec();
    for hop in 1..ranks {
        let received = Contribution { bytes: &partial, raw: hop == 1 };
        let own = Contribution { bytes: own(hop), raw: true };
        let finish = (hop == ranks - 1).then_some(ranks as u32);
        let mut sum = vec![0; range.len()];
        reduce(data_type, op, &[received, own], finish, &mut sum);
        partial = sum;
    }
    partial
}
