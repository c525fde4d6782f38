//! Reduction on the host, as fast as memory allows: the bits of [`rccl_core::oracle`], by vector instructions.
//!
//! A [`Reducer`] is chosen once, for a data type, an operator and what the CPU can do; running it allocates nothing and
//! detects nothing. Elements may lie at any byte alignment. [`copy`] is the same for bytes that only move.
//!
//! ```
//! use rccl_core::{DataType, ReduceOp};
//! use rccl_transport::reduce::{Reducer, Source, Target};
//!
//! let (ours, theirs, mut sum) = ([1.0f32, 2.0], [10.0f32, 20.0], [0.0f32; 2]);
//! let source = |values: &[f32; 2]| Source { ptr: values.as_ptr().cast(), raw: true };
//! let target = Target { ptr: sum.as_mut_ptr().cast(), stream: false };
//! let reducer = Reducer::new(DataType::Float, ReduceOp::Sum, 2);
//! // SAFETY: all three arrays hold two floats, and `sum` is neither of the others.
//! unsafe { reducer.run(&[source(&ours), source(&theirs)], &[target], 2, true) };
//! assert_eq!(sum, [11.0, 22.0]);
//! ```

mod number;
mod operator;
mod simd;
mod table;
#[cfg(test)]
mod tests;

use rccl_core::{DataType, ReduceOp};

pub use simd::copy;
use simd::{Kernel, Level};

/// Memory that a reduction reads.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// Its first byte, at any alignment.
    pub ptr: *const u8,
    /// Whether it is a rank's own contribution, untouched so far: `mulsum` multiplies those, and only those.
    pub raw: bool,
}

/// Memory that a reduction or a [`copy`] writes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its first byte, at any alignment.
    pub ptr: *mut u8,
    /// Whether nobody on this CPU will read the memory soon. Then it is written past the caches, where the size and the
    /// alignment make that worth while ([`STREAM_MIN_BYTES`]).
    pub stream: bool,
}

/// Shorter targets are written through the caches even if [`Target::stream`] is set: waiting for the last lines to leave the
/// CPU would cost more than is gained.
pub const STREAM_MIN_BYTES: usize = 16 << 10;

/// What a kernel needs to know beside where the elements are.
#[derive(Debug, Clone, Copy)]
struct Constants {
    /// The factor of `mulsum` in the accumulator's type, as the low bits.
    scalar: u64,
    /// The divisor of `avg`.
    ranks: u32,
}

/// A reduction of one data type by one operator.
#[derive(Clone, Copy)]
pub struct Reducer {
    partial: Kernel,
    finishing: Kernel,
    constants: Constants,
}

impl Reducer {
    /// The fastest reducer that this CPU can run. `ranks` is what `avg` divides by.
    ///
    /// A scalar of `mulsum` is converted as [`rccl_core::Scalar`] says; [`ReduceOp::check`] tells whether that makes sense.
    ///
    /// # Panics
    /// If `ranks` is 0.
    #[must_use]
    pub fn new(data_type: DataType, op: ReduceOp, ranks: u32) -> Self {
        Self::at_level(Level::best(), data_type, op, ranks)
    }

    /// A reducer by the instructions of `level`, which the CPU must have: levels come from [`Level::available`] only.
    fn at_level(level: Level, data_type: DataType, op: ReduceOp, ranks: u32) -> Self {
        assert!(ranks > 0, "a reduction over no ranks");
        // Until it is finished, an average is a sum.
        let partial = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
        Self {
            partial: table::kernel(level, data_type, partial),
            finishing: table::kernel(level, data_type, op),
            constants: Constants { scalar: table::scalar_bits(data_type, op), ranks },
        }
    }

    /// Combines `elems` elements of every source, in the order given, in the accumulator, rounds once, and writes the result
    /// to every target. With `finish`, this completes the reduction, so that `avg` divides.
    ///
    /// Never blocks. Streamed targets are complete when the call returns, for readers on other CPUs and devices too.
    ///
    /// # Panics
    /// If there is no source.
    ///
    /// # Safety
    /// Every source must be valid for reads and every target for writes of `elems` elements; nobody else may write them
    /// meanwhile, or read the targets. A target may be the same memory as a source (in place: an equal pointer), and must
    /// not overlap sources or other targets otherwise.
    #[inline]
    pub unsafe fn run(&self, sources: &[Source], targets: &[Target], elems: usize, finish: bool) {
        assert!(!sources.is_empty(), "a reduction of no sources");
        let kernel = if finish { self.finishing } else { self.partial };
        // SAFETY: the caller vouches for the memory; `at_level` chose a kernel of a level that the CPU has, and the assertion
        // above saw a source.
        unsafe { kernel(&self.constants, sources, targets, elems) }
    }
}

impl std::fmt::Debug for Reducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reducer").field("constants", &self.constants).finish_non_exhaustive()
    }
}
