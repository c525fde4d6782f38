//! The levels of x86-64 above its baseline, and the instructions that need naming.

use std::arch::x86_64::*;

use super::{LINE_BYTES, Simd, chunks};
use crate::reduce::{
    Constants, Source, Target,
    number::{Number, float_to_half, half_to_float},
    operator::Operator,
};

pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

pub(super) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

/// # Safety
/// As [`super::Kernel`], by [`super::Level::Avx2`].
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn avx2<N: Number, O: Operator, const W: usize>(
    constants: &Constants,
    sources: &[Source],
    targets: &[Target],
    elems: usize,
) {
    // SAFETY: the caller's promise, passed on; the function is compiled for what `Avx2` stands for.
    unsafe { chunks::reduce::<N, O, Avx2, W>(Avx2(()), constants, sources, targets, elems) }
}

/// # Safety
/// As [`super::Kernel`], by [`super::Level::Avx512`].
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn avx512<N: Number, O: Operator, const W: usize>(
    constants: &Constants,
    sources: &[Source],
    targets: &[Target],
    elems: usize,
) {
    // SAFETY: the caller's promise, passed on; the function is compiled for what `Avx512` stands for.
    unsafe { chunks::reduce::<N, O, Avx512, W>(Avx512(()), constants, sources, targets, elems) }
}

/// [`super::Level::Avx2`]; made only where the CPU has it.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// [`super::Level::Avx512`]; made only where the CPU has it.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

const TO_NEAREST_EVEN: i32 = _MM_FROUND_TO_NEAREST_INT;

/// What becomes 0x7fff in the conversion to half, which keeps the upper bits of a NaN's payload.
const NAN: f32 = f32::from_bits(u32::MAX >> 1);

impl Simd for Avx2 {
    #[inline(always)]
    fn halves_to_floats<const W: usize>(self, halves: &[u16; W]) -> [f32; W] {
        let mut floats = [0.0; W];
        let (from, rest) = halves.as_chunks::<8>();
        let (to, rest_to) = floats.as_chunks_mut::<8>();
        for (from, to) in from.iter().zip(to) {
            // SAFETY: eight halves, at any alignment.
            let eight = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
            // SAFETY: an `Avx2` is made only where the CPU has F16C.
            let eight = unsafe { _mm256_cvtph_ps(eight) };
            // SAFETY: room for eight floats, at any alignment.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), eight) };
        }
        for (from, to) in rest.iter().zip(rest_to) {
            *to = half_to_float(*from);
        }
        floats
    }

    #[inline(always)]
    fn floats_to_halves<const W: usize>(self, floats: &[f32; W]) -> [u16; W] {
        let mut halves = [0; W];
        let (from, rest) = floats.as_chunks::<8>();
        let (to, rest_to) = halves.as_chunks_mut::<8>();
        for (from, to) in from.iter().zip(to) {
            let from = from.map(|value| if value.is_nan() { NAN } else { value });
            // SAFETY: eight floats, at any alignment.
            let eight = unsafe { _mm256_loadu_ps(from.as_ptr()) };
            // SAFETY: an `Avx2` is made only where the CPU has F16C.
            let eight = unsafe { _mm256_cvtps_ph::<TO_NEAREST_EVEN>(eight) };
            // SAFETY: room for eight halves, at any alignment.
            unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), eight) };
        }
        for (from, to) in rest.iter().zip(rest_to) {
            *to = float_to_half(*from);
        }
        halves
    }

    #[inline(always)]
    unsafe fn stream(self, from: *const u8, to: *mut u8) {
        for half in [0, LINE_BYTES / 2] {
            // SAFETY: within the line that the caller vouches for.
            let from = unsafe { from.add(half) };
            // SAFETY: within the line that the caller vouches for.
            let to = unsafe { to.add(half) };
            // SAFETY: half a line, at any alignment; an `Avx2` is made only where the CPU has it.
            let bytes = unsafe { _mm256_loadu_si256(from.cast()) };
            // SAFETY: half a line, aligned to as much since the line is.
            unsafe { _mm256_stream_si256(to.cast(), bytes) };
        }
    }
}

impl Simd for Avx512 {
    #[inline(always)]
    fn halves_to_floats<const W: usize>(self, halves: &[u16; W]) -> [f32; W] {
        if !W.is_multiple_of(16) {
            return Avx2(()).halves_to_floats(halves);
        }
        let mut floats = [0.0; W];
        let (from, _) = halves.as_chunks::<16>();
        let (to, _) = floats.as_chunks_mut::<16>();
        for (from, to) in from.iter().zip(to) {
            // SAFETY: 16 halves, at any alignment.
            let sixteen = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
            // SAFETY: an `Avx512` is made only where the CPU has it.
            let sixteen = unsafe { _mm512_cvtph_ps(sixteen) };
            // SAFETY: room for 16 floats, at any alignment.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), sixteen) };
        }
        floats
    }

    #[inline(always)]
    fn floats_to_halves<const W: usize>(self, floats: &[f32; W]) -> [u16; W] {
        if !W.is_multiple_of(16) {
            return Avx2(()).floats_to_halves(floats);
        }
        let mut halves = [0; W];
        let (from, _) = floats.as_chunks::<16>();
        let (to, _) = halves.as_chunks_mut::<16>();
        for (from, to) in from.iter().zip(to) {
            let from = from.map(|value| if value.is_nan() { NAN } else { value });
            // SAFETY: 16 floats, at any alignment.
            let sixteen = unsafe { _mm512_loadu_ps(from.as_ptr()) };
            // SAFETY: an `Avx512` is made only where the CPU has it.
            let sixteen = unsafe { _mm512_cvtps_ph::<TO_NEAREST_EVEN>(sixteen) };
            // SAFETY: room for 16 halves, at any alignment.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), sixteen) };
        }
        halves
    }

    #[inline(always)]
    unsafe fn stream(self, from: *const u8, to: *mut u8) {
        // SAFETY: the caller vouches for a line; an `Avx512` is made only where the CPU has it.
        let line = unsafe { _mm512_loadu_si512(from.cast()) };
        // SAFETY: the caller vouches for a line and its alignment.
        unsafe { _mm512_stream_si512(to.cast(), line) };
    }
}

/// [`Simd::stream`] by instructions that every x86-64 CPU has.
///
/// # Safety
/// As [`Simd::stream`].
#[inline(always)]
pub(super) unsafe fn stream_sse2(from: *const u8, to: *mut u8) {
    for quarter in [0, 16, 32, 48] {
        // SAFETY: within the line that the caller vouches for.
        let from = unsafe { from.add(quarter) };
        // SAFETY: within the line that the caller vouches for.
        let to = unsafe { to.add(quarter) };
        // SAFETY: a quarter of a line, at any alignment.
        let bytes = unsafe { _mm_loadu_si128(from.cast()) };
        // SAFETY: a quarter of a line, aligned to as much since the line is.
        unsafe { _mm_stream_si128(to.cast(), bytes) };
    }
}
