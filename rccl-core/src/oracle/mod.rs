//! What a reduction must give, bit for bit: one element at a time, as plainly as it can be written.
//!
//! Executors are tested against this module and `#wrong` is counted against it, so it shares no code with them. The rules:
//!
//! - **Accumulator**: float for half, bfloat16, f8e4m3, f8e5m2 and float; double for double; integers wrap in their own type.
//! - Contributions are combined in the order given and rounded **once**, to nearest even, when the result is stored.
//!   `mulsum` multiplies in the accumulator and rounds there before it adds (no fused multiply-add).
//! - **avg** divides the accumulator by the number of ranks; integers truncate towards zero, after the wrapping sum.
//! - **min** and **max** keep what they have unless the next contribution is strictly smaller (larger), so of two zeros of
//!   either sign the first wins; any NaN gives NaN.
//! - **NaN** is stored as one pattern for each type, all bits set but the sign: a NaN's payload depends on the order of
//!   operands within an instruction, and all ranks must end with the same bits. The pattern is the one that NVIDIA GPUs
//!   produce.
//! - **f8e4m3** (no infinities) and **f8e5m2** saturate to the largest finite value, from infinity too.
//!
//! ```
//! use rccl_core::{Algorithm, DataType, ReduceOp, oracle};
//!
//! let inputs = [7i32.to_ne_bytes(), (-10i32).to_ne_bytes()];
//! let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
//! let average = oracle::all_reduce(Algorithm::Relay, DataType::Int32, ReduceOp::Avg, &inputs);
//! assert_eq!(average, (-1i32).to_ne_bytes());
//! assert_eq!(oracle::wrong(DataType::Int32, &average, &0i32.to_ne_bytes()), 1);
//! ```

mod collective;
mod format;
mod number;
#[cfg(test)]
mod tests;

pub use collective::{all_reduce, reduce_scatter};
pub use format::Format;

use number::{Accumulator, Number};

use crate::{
    DataType, ReduceOp,
    dtype::{F8E4M3, F8E5M2},
};

/// One of the sources of a reduction: a rank's contribution, or a partial result of several.
#[derive(Debug, Clone, Copy)]
pub struct Contribution<'a> {
    /// The elements, in the machine's byte order, at any alignment.
    pub bytes: &'a [u8],
    /// Whether this is a rank's own contribution, untouched so far: `mulsum` multiplies those, and only those.
    pub raw: bool,
}

/// Combines `sources` in the order given and stores the result in `out`.
///
/// With `finish`, this completes a reduction over that many ranks, so that `avg` divides here; without, the result is a
/// partial one.
///
/// # Panics
/// If there is no source, a source's length differs from that of `out`, or that is not a whole number of elements.
///
/// ```
/// use rccl_core::{DataType, ReduceOp, oracle};
///
/// let (ours, theirs) = (1.5f32.to_ne_bytes(), 2.0f32.to_ne_bytes());
/// let source = |bytes| oracle::Contribution { bytes, raw: true };
/// let mut out = [0; 4];
/// oracle::reduce(DataType::Float, ReduceOp::MulSum(2.0.into()), &[source(&ours), source(&theirs)], Some(2), &mut out);
/// assert_eq!(f32::from_ne_bytes(out), 7.0);
/// ```
pub fn reduce(
    data_type: DataType,
    op: ReduceOp,
    sources: &[Contribution<'_>],
    finish: Option<u32>,
    out: &mut [u8],
) {
    assert!(!sources.is_empty(), "a reduction of no sources");
    assert!(
        out.len().is_multiple_of(data_type.size_bytes()),
        "{} bytes are no whole number of {data_type} elements",
        out.len()
    );
    for source in sources {
        assert_eq!(source.bytes.len(), out.len(), "bytes of a source and of the result differ");
    }
    let reduce = match data_type {
        DataType::Int8 => reduce_as::<i8>,
        DataType::Uint8 => reduce_as::<u8>,
        DataType::Int32 => reduce_as::<i32>,
        DataType::Uint32 => reduce_as::<u32>,
        DataType::Int64 => reduce_as::<i64>,
        DataType::Uint64 => reduce_as::<u64>,
        DataType::Half => reduce_as::<half::f16>,
        DataType::Float => reduce_as::<f32>,
        DataType::Double => reduce_as::<f64>,
        DataType::Bfloat16 => reduce_as::<half::bf16>,
        DataType::F8E4M3 => reduce_as::<F8E4M3>,
        DataType::F8E5M2 => reduce_as::<F8E5M2>,
    };
    reduce(op, sources, finish, out);
}

fn reduce_as<N: Number>(op: ReduceOp, sources: &[Contribution<'_>], finish: Option<u32>, out: &mut [u8]) {
    let size = size_of::<N>();
    for (index, out) in out.chunks_exact_mut(size).enumerate() {
        let result = sources
            .iter()
            .map(|source| {
                let value = N::load(&source.bytes[index * size..][..size]);
                match op {
                    ReduceOp::MulSum(scalar) if source.raw => {
                        value.times(N::Accumulator::from_scalar(scalar))
                    }
                    _ => value,
                }
            })
            .reduce(|so_far, next| combine(op, so_far, next))
            .expect("there is at least one source");
        let result = match (op, finish) {
            (ReduceOp::Avg, Some(ranks)) => result.divided_by(ranks),
            _ => result,
        };
        N::store(result, out);
    }
}

fn combine<A: Accumulator>(op: ReduceOp, so_far: A, next: A) -> A {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::MulSum(_) => so_far.plus(next),
        ReduceOp::Prod => so_far.times(next),
        ReduceOp::Min | ReduceOp::Max if so_far.is_nan() => so_far,
        ReduceOp::Min | ReduceOp::Max if next.is_nan() => next,
        ReduceOp::Min => {
            if next < so_far {
                next
            } else {
                so_far
            }
        }
        ReduceOp::Max => {
            if next > so_far {
                next
            } else {
                so_far
            }
        }
    }
}

/// Counts the elements of `ours` whose bits differ from those of `expected`; any NaN equals any NaN.
///
/// # Panics
/// If the lengths differ or are not a whole number of elements.
#[must_use]
pub fn wrong(data_type: DataType, ours: &[u8], expected: &[u8]) -> u64 {
    let size = data_type.size_bytes();
    assert_eq!(ours.len(), expected.len(), "bytes of the result and of what is expected differ");
    assert!(
        ours.len().is_multiple_of(size),
        "{} bytes are no whole number of {data_type} elements",
        ours.len()
    );
    if ours == expected {
        return 0;
    }
    let differs = |(ours, expected): &(&[u8], &[u8])| {
        ours != expected && !(is_nan(data_type, ours) && is_nan(data_type, expected))
    };
    ours.chunks_exact(size).zip(expected.chunks_exact(size)).filter(differs).count() as u64
}

fn is_nan(data_type: DataType, element: &[u8]) -> bool {
    match data_type {
        DataType::Half => half::f16::load(element).is_nan(),
        DataType::Float => f32::load(element).is_nan(),
        DataType::Double => f64::load(element).is_nan(),
        DataType::Bfloat16 => half::bf16::load(element).is_nan(),
        DataType::F8E4M3 => F8E4M3::load(element).is_nan(),
        DataType::F8E5M2 => F8E5M2::load(element).is_nan(),
        _ => false,
    }
}
