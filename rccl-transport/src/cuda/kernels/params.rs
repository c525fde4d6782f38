//! The kernels' parameters: the layouts of `kernels/common.cuh`, and the checks that make a launch sound.

use rccl_core::DataType;

use super::super::Shape;
use crate::{Error, Result};

/// The most ranks of a kernel collective: the watching warp has a lane for each.
pub const MAX_RANKS: usize = 32;
/// The most blocks of a launch.
pub const MAX_BLOCKS: u32 = 128;
/// Bytes of one line of protocol `ll`, which carries half of them.
pub const LINE_BYTES: u64 = 16;
/// Bytes of state words of one stripe.
pub const STRIPE_WORDS_BYTES: usize = 256;
/// Warps of a `stripe` block that are not workers.
pub const STRIPE_SERVICE_THREADS: u32 = 64;

const LL_MAX_THREADS: u32 = 512;
const STRIPE_MAX_THREADS: u32 = 512 + STRIPE_SERVICE_THREADS;
const REDUCE_MAX_THREADS: u32 = 512;

/// Parameters of the `ll` kernels. Addresses are the device's.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct LlParams {
    /// The caller's input.
    pub input: u64,
    /// The caller's output; may be the input.
    pub output: u64,
    /// Elements, at least 1.
    pub count: u64,
    /// A word of host memory, 0 until the kernel shall give up.
    pub abort: u64,
    /// [`MAX_BLOCKS`] words of device memory, 0 at creation: the epochs, kept by the kernels.
    pub epochs: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks of the group.
    pub ranks: u32,
    /// 1 for a sum, the number of ranks for an average.
    pub divisor: f32,
    /// Lines in one half of a station, a power of two.
    pub lines: u32,
    /// Every rank's station: two halves of `lines` lines, 0 at creation.
    pub stations: [u64; MAX_RANKS],
}

/// Parameters of the `stripe` kernels. Addresses are the device's.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct StripeParams {
    /// The caller's input.
    pub input: u64,
    /// The caller's output; may be the input.
    pub output: u64,
    /// Elements, at least 1.
    pub count: u64,
    /// A word of host memory, 0 until the kernel shall give up.
    pub abort: u64,
    /// A word of device memory for each stripe, 0 at creation: chunks so far, kept by the kernels.
    pub sequences: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks of the group.
    pub ranks: u32,
    /// 1 for a sum, the number of ranks for an average.
    pub divisor: f32,
    /// Bytes of a chunk in this call: a multiple of 16, at most `slot_bytes`.
    pub chunk_bytes: u32,
    /// Bytes of a slot, the same in every call on a station: a multiple of 16.
    pub slot_bytes: u32,
    /// Slots of a stripe, the same in every call on a station: a power of two, at least 4.
    pub slots: u32,
    /// Steps between publishing and collecting a chunk: 1 to `slots / 2 - 1`.
    pub lag: u32,
    /// 0.
    pub reserved: u32,
    /// Every rank's slots: `[stripe][slot]`, or for the relay its conduits' slots: `[stripe][slot][reader]`.
    pub stations: [u64; MAX_RANKS],
    /// Every rank's slots of results, `[stripe][slot]`; for the relay only.
    pub results: [u64; MAX_RANKS],
    /// Every rank's words: [`STRIPE_WORDS_BYTES`] a stripe, 0 at creation. One-hop and relay calls need words, sequences
    /// and slots of their own.
    pub words: [u64; MAX_RANKS],
    /// First element of each rank's part, and the end; the first part is the longest. For the relay only.
    pub parts: [u64; MAX_RANKS + 1],
}

/// Parameters of the `reduce_local` kernels. Addresses are the device's.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ReduceParams {
    /// Where the sum goes; may be one of the sources.
    pub output: u64,
    /// Elements, at least 1.
    pub count: u64,
    /// Sources, 1 to [`MAX_RANKS`].
    pub sources: u32,
    /// 1 for a sum, the number of ranks for an average.
    pub divisor: f32,
    /// The sources, in the order of addition.
    pub source: [u64; MAX_RANKS],
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<LlParams>() == 56 + 8 * MAX_RANKS);
    assert!(offset_of!(LlParams, rank) == 40 && offset_of!(LlParams, stations) == 56);
    assert!(size_of::<StripeParams>() == 72 + 8 * (4 * MAX_RANKS + 1));
    assert!(offset_of!(StripeParams, rank) == 40 && offset_of!(StripeParams, lag) == 64);
    assert!(
        offset_of!(StripeParams, stations) == 72 && offset_of!(StripeParams, parts) == 72 + 24 * MAX_RANKS
    );
    assert!(size_of::<ReduceParams>() == 24 + 8 * MAX_RANKS);
    assert!(offset_of!(ReduceParams, sources) == 16 && offset_of!(ReduceParams, source) == 24);
};

fn require(holds: bool, what: &str, value: impl ToString, reason: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Invalid { what: what.to_owned(), value: value.to_string(), reason: reason.to_owned() })
}

fn check_common(data_type: DataType, buffers: &[u64], count: u64, rank: u32, ranks: u32) -> Result<()> {
    let size = data_type.size_bytes() as u64;
    require(count > 0, "count", count, "a kernel needs at least 1 element")?;
    require(ranks as usize <= MAX_RANKS, "ranks", ranks, "kernels serve at most 32 ranks of a host")?;
    require(rank < ranks, "rank", rank, "must be below the number of ranks")?;
    for &buffer in buffers {
        require(
            buffer != 0 && buffer.is_multiple_of(size),
            "buffer",
            format!("{buffer:#x}"),
            "must be aligned to its elements",
        )?;
    }
    Ok(())
}

fn check_shape(shape: Shape, threads: std::ops::RangeInclusive<u32>) -> Result<()> {
    require((1..=MAX_BLOCKS).contains(&shape.blocks), "blocks", shape.blocks, "must be 1 to 128")?;
    let reason = "must be a multiple of 32 that the kernel was compiled for";
    require(
        threads.contains(&shape.threads) && shape.threads.is_multiple_of(32),
        "threads",
        shape.threads,
        reason,
    )
}

impl LlParams {
    /// Lines that `count` elements need.
    #[must_use]
    pub const fn lines_for(count: u64, data_type: DataType) -> u64 {
        (count * data_type.size_bytes() as u64).div_ceil(LINE_BYTES / 2)
    }

    pub(super) fn check(&self, data_type: DataType, shape: Shape) -> Result<()> {
        check_common(data_type, &[self.input, self.output], self.count, self.rank, self.ranks)?;
        check_shape(shape, 32..=LL_MAX_THREADS)?;
        require(self.lines.is_power_of_two(), "lines", self.lines, "must be a power of two")?;
        let needed = Self::lines_for(self.count, data_type);
        require(needed <= u64::from(self.lines), "count", self.count, "more than an ll station holds")
    }
}

impl StripeParams {
    pub(super) fn check(&self, data_type: DataType, shape: Shape, relay: bool) -> Result<()> {
        check_common(data_type, &[self.input, self.output], self.count, self.rank, self.ranks)?;
        check_shape(shape, 32 + STRIPE_SERVICE_THREADS..=STRIPE_MAX_THREADS)?;
        let chunk_fits =
            (16..=self.slot_bytes).contains(&self.chunk_bytes) && self.chunk_bytes.is_multiple_of(16);
        require(chunk_fits, "chunk_bytes", self.chunk_bytes, "must be a multiple of 16, at most a slot")?;
        require(
            self.slot_bytes.is_multiple_of(16),
            "slot_bytes",
            self.slot_bytes,
            "must be a multiple of 16",
        )?;
        require(
            self.slots.is_power_of_two() && self.slots >= 4,
            "slots",
            self.slots,
            "must be a power of two from 4 on",
        )?;
        require((1..self.slots / 2).contains(&self.lag), "lag", self.lag, "must be 1 to slots / 2 - 1")?;
        let chunks = (self.count * data_type.size_bytes() as u64).div_ceil(u64::from(self.chunk_bytes));
        require(chunks < 1 << 30, "count", self.count, "too many chunks for one launch")?;
        if relay {
            let parts = &self.parts[..=self.ranks as usize];
            let whole = parts[0] == 0 && parts[parts.len() - 1] == self.count && parts.is_sorted();
            require(whole, "parts", format!("{parts:?}"), "must divide the elements in order")?;
            let first_longest = parts.windows(2).all(|pair| pair[1] - pair[0] <= parts[1]);
            require(first_longest, "parts", format!("{parts:?}"), "the first part must be the longest")?;
        }
        Ok(())
    }
}

impl ReduceParams {
    pub(super) fn check(&self, data_type: DataType, shape: Shape) -> Result<()> {
        require((1..=MAX_RANKS as u32).contains(&self.sources), "sources", self.sources, "must be 1 to 32")?;
        check_common(data_type, &[self.output], self.count, 0, self.sources)?;
        check_common(data_type, &self.source[..self.sources as usize], self.count, 0, self.sources)?;
        require(shape.blocks > 0, "blocks", shape.blocks, "must be at least 1")?;
        check_shape(Shape { blocks: 1, ..shape }, 32..=REDUCE_MAX_THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ll() -> LlParams {
        LlParams {
            input: 64,
            output: 128,
            count: 100,
            abort: 4,
            epochs: 4,
            rank: 0,
            ranks: 2,
            divisor: 1.0,
            lines: 64,
            stations: [256; MAX_RANKS],
        }
    }

    fn stripe() -> StripeParams {
        StripeParams {
            input: 64,
            output: 128,
            count: 1000,
            abort: 4,
            sequences: 4,
            rank: 0,
            ranks: 2,
            divisor: 1.0,
            chunk_bytes: 1024,
            slot_bytes: 4096,
            slots: 8,
            lag: 2,
            reserved: 0,
            stations: [256; MAX_RANKS],
            results: [256; MAX_RANKS],
            words: [256; MAX_RANKS],
            parts: [0; MAX_RANKS + 1],
        }
    }

    fn refused<T: std::fmt::Debug>(result: Result<T>) -> String {
        match result.unwrap_err() {
            Error::Invalid { what, .. } => what,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn ll_takes_what_fits_its_station_and_nothing_else() {
        let shape = Shape { blocks: 4, threads: 256 };
        ll().check(DataType::Float, shape).unwrap();
        ll().check(DataType::Half, shape).unwrap();
        LlParams { count: 128, ..ll() }.check(DataType::Float, shape).unwrap();
        assert_eq!(refused(LlParams { count: 129, ..ll() }.check(DataType::Float, shape)), "count");
        assert_eq!(refused(LlParams { count: 0, ..ll() }.check(DataType::Float, shape)), "count");
        assert_eq!(refused(LlParams { rank: 2, ..ll() }.check(DataType::Float, shape)), "rank");
        assert_eq!(refused(LlParams { ranks: 33, ..ll() }.check(DataType::Float, shape)), "ranks");
        assert_eq!(refused(LlParams { lines: 65, ..ll() }.check(DataType::Float, shape)), "lines");
        assert_eq!(refused(LlParams { input: 66, ..ll() }.check(DataType::Float, shape)), "buffer");
        LlParams { input: 66, ..ll() }.check(DataType::Bfloat16, shape).unwrap();
        assert_eq!(refused(ll().check(DataType::Float, Shape { blocks: 129, threads: 256 })), "blocks");
        assert_eq!(refused(ll().check(DataType::Float, Shape { blocks: 1, threads: 100 })), "threads");
        assert_eq!(refused(ll().check(DataType::Float, Shape { blocks: 1, threads: 544 })), "threads");
    }

    #[test]
    fn stripe_refuses_what_could_stall_or_overrun() {
        let shape = Shape { blocks: 4, threads: 128 };
        stripe().check(DataType::Float, shape, false).unwrap();
        let refused = |p: StripeParams| refused(p.check(DataType::Float, shape, false));
        assert_eq!(refused(StripeParams { chunk_bytes: 4112, ..stripe() }), "chunk_bytes");
        assert_eq!(refused(StripeParams { chunk_bytes: 1000, ..stripe() }), "chunk_bytes");
        assert_eq!(refused(StripeParams { slots: 6, ..stripe() }), "slots");
        assert_eq!(refused(StripeParams { lag: 0, ..stripe() }), "lag");
        assert_eq!(refused(StripeParams { lag: 4, ..stripe() }), "lag");
        stripe().check(DataType::Float, Shape { blocks: 1, threads: 96 }, false).unwrap();
        assert!(stripe().check(DataType::Float, Shape { blocks: 1, threads: 64 }, false).is_err());
    }

    #[test]
    fn the_relay_needs_parts_that_tile() {
        let shape = Shape { blocks: 4, threads: 128 };
        let with = |parts: [u64; 3]| {
            let mut p = stripe();
            p.parts[..3].copy_from_slice(&parts);
            p.check(DataType::Float, shape, true)
        };
        with([0, 500, 1000]).unwrap();
        assert!(with([0, 400, 1000]).is_err());
        assert!(with([0, 1000, 500]).is_err());
        assert!(with([0, 500, 999]).is_err());
    }
}
