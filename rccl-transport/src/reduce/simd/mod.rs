//! The kernels: loops over chunks held in registers, compiled once for each level of instructions.
//!
//! `multiversion` is not used for that: it chooses within each call, where a [`super::Reducer`] wants to choose once, and it
//! cannot be told to choose less than the best, which the tests want.

mod chunks;
mod copy;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use copy::copy;

use super::{
    Constants, Source, Target,
    number::{Number, float_to_half, half_to_float},
    operator::Operator,
};

/// Reduces `elems` elements of the sources (at least one) into the targets.
///
/// # Safety
/// As [`super::Reducer::run`], and the CPU must have the level of instructions that the kernel was compiled for.
pub(super) type Kernel = unsafe fn(&Constants, &[Source], &[Target], usize);

/// Instructions that kernels are compiled for, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// What every CPU of the architecture has: SSE2, NEON.
    Baseline,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, VL and DQ. (Not BF16, which treats subnormal numbers as 0.)
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    const ALL: &[Self] = &[
        Self::Baseline,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
    ];

    /// The levels that this CPU has, the least first; never empty.
    pub(super) fn available() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.iter().copied().filter(|level| match level {
            Self::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => x86::has_avx512(),
        })
    }

    /// The highest level that this CPU has.
    pub(super) fn best() -> Self {
        Self::available().next_back().unwrap_or(Self::Baseline)
    }
}

/// The kernel for a type and an operator, by the instructions of `level`, working on chunks of `A`, `B` or `C` elements
/// according to the level.
pub(super) fn kernel_of<N: Number, O: Operator, const A: usize, const B: usize, const C: usize>(
    level: Level,
) -> Kernel {
    match level {
        Level::Baseline => baseline::<N, O, A>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => x86::avx2::<N, O, B>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => x86::avx512::<N, O, C>,
    }
}

/// # Safety
/// As [`Kernel`].
unsafe fn baseline<N: Number, O: Operator, const W: usize>(
    constants: &Constants,
    sources: &[Source],
    targets: &[Target],
    elems: usize,
) {
    // SAFETY: the caller's promise, passed on; the baseline is what the code is compiled for anyway.
    unsafe { chunks::reduce::<N, O, Baseline, W>(Baseline, constants, sources, targets, elems) }
}

/// What levels do differently and the compiler cannot find out. A value is the proof that the CPU has the level.
pub(super) trait Simd: Copy {
    /// Exact, but for the payload of NaN.
    fn halves_to_floats<const W: usize>(self, halves: &[u16; W]) -> [f32; W];

    /// To nearest even. NaN becomes 0x7fff.
    fn floats_to_halves<const W: usize>(self, floats: &[f32; W]) -> [u16; W];

    /// Copies one cache line to where nobody will read it soon.
    ///
    /// # Safety
    /// `from` must be valid for reads and `to` for writes of [`LINE_BYTES`] bytes, and `to` aligned to as many. Before others
    /// are told of it, [`end_streaming`] must be called.
    unsafe fn stream(self, from: *const u8, to: *mut u8);
}

/// Bytes of a cache line, and the alignment of what is streamed.
const LINE_BYTES: usize = 64;

/// Orders streamed lines before all later writes.
#[inline]
fn end_streaming() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// [`Level::Baseline`].
#[derive(Clone, Copy)]
struct Baseline;

impl Simd for Baseline {
    #[inline(always)]
    fn halves_to_floats<const W: usize>(self, halves: &[u16; W]) -> [f32; W] {
        let mut floats = [0.0; W];
        for index in 0..W {
            floats[index] = half_to_float(halves[index]);
        }
        floats
    }

    #[inline(always)]
    fn floats_to_halves<const W: usize>(self, floats: &[f32; W]) -> [u16; W] {
        let mut halves = [0; W];
        for index in 0..W {
            halves[index] = float_to_half(floats[index]);
        }
        halves
    }

    #[inline(always)]
    unsafe fn stream(self, from: *const u8, to: *mut u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller vouches for both lines and the alignment.
        unsafe {
            x86::stream_sse2(from, to);
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller vouches for both lines; a chunk in registers overlaps no target.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, LINE_BYTES);
        }
    }
}
