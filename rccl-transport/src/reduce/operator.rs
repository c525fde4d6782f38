//! The operators on one pair of accumulators, each a type of its own so that a kernel is compiled for each.

use super::number::Accumulator;

pub(super) trait Operator: 'static {
    /// Whether raw contributions are first multiplied by the scalar.
    const SCALES: bool = false;
    /// Whether the result is divided by the number of ranks.
    const DIVIDES: bool = false;

    fn combine<A: Accumulator>(so_far: A, next: A) -> A;
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Avg;
pub(super) struct MulSum;

impl Operator for Sum {
    #[inline(always)]
    fn combine<A: Accumulator>(so_far: A, next: A) -> A {
        so_far.plus(next)
    }
}

impl Operator for Prod {
    #[inline(always)]
    fn combine<A: Accumulator>(so_far: A, next: A) -> A {
        so_far.times(next)
    }
}

impl Operator for Min {
    #[inline(always)]
    fn combine<A: Accumulator>(so_far: A, next: A) -> A {
        // A NaN that is already there stays, since it is not smaller or larger than anything.
        if next < so_far || next.is_nan() { next } else { so_far }
    }
}

impl Operator for Max {
    #[inline(always)]
    fn combine<A: Accumulator>(so_far: A, next: A) -> A {
        if next > so_far || next.is_nan() { next } else { so_far }
    }
}

impl Operator for Avg {
    const DIVIDES: bool = true;

    #[inline(always)]
    fn combine<A: Accumulator>(so_far: A, next: A) -> A {
        so_far.plus(next)
    }
}

impl Operator for MulSum {
    const SCALES: bool = true;

    #[inline(always)]
    fn combine<A: Accumulator>(so_far: A, next: A) -> A {
        so_far.plus(next)
    }
}
