//! Elements and accumulators, a chunk at a time. Everything is a plain loop over an array of constant length, which the
//! compiler turns into vector instructions once it is inlined into a kernel.

use half::{bf16, f16};
use rccl_core::dtype::{F8E4M3, F8E5M2};

use super::simd::Simd;

/// What reductions are computed in.
pub(super) trait Accumulator: Copy + PartialOrd + 'static {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn divided_by(self, ranks: u32) -> Self;
    fn is_nan(self) -> bool;
    /// The value whose bits are the low ones of `bits`.
    fn from_low_bits(bits: u64) -> Self;
}

/// An element as it lies in memory. Any bytes are a valid one.
///
/// The accumulators of a chunk may stand in another order than its elements, as long as `encode` reverses what `decode` did.
pub(super) trait Number: rccl_core::Element {
    type Accumulator: Accumulator;
    fn decode<S: Simd, const W: usize>(simd: S, chunk: &[Self; W]) -> [Self::Accumulator; W];
    /// Rounds to nearest even. NaN becomes all bits but the sign, as in the oracle.
    fn encode<S: Simd, const W: usize>(simd: S, values: &[Self::Accumulator; W]) -> [Self; W];
}

/// Applies a function to each element of an array. Unlike `array::map`, this stays a loop that vectorises.
#[inline(always)]
fn each<T: Copy, U: Copy, const W: usize>(from: &[T; W], zero: U, convert: impl Fn(T) -> U) -> [U; W] {
    let mut to = [zero; W];
    for index in 0..W {
        to[index] = convert(from[index]);
    }
    to
}

macro_rules! integers {
    ($($integer:ty as $wide:ty),*) => {
        $(
            impl Accumulator for $integer {
                #[inline(always)]
                fn plus(self, other: Self) -> Self {
                    self.wrapping_add(other)
                }
                #[inline(always)]
                fn times(self, other: Self) -> Self {
                    self.wrapping_mul(other)
                }
                #[inline(always)]
                fn divided_by(self, ranks: u32) -> Self {
                    // Double is wide enough for 32-bit integers that the quotient truncates as the exact one does, and
                    // vectorises as integer division does not.
                    (self as $wide / ranks as $wide) as Self
                }
                #[inline(always)]
                fn is_nan(self) -> bool {
                    false
                }
                #[inline(always)]
                fn from_low_bits(bits: u64) -> Self {
                    bits as Self
                }
            }
            impl Number for $integer {
                type Accumulator = Self;
                #[inline(always)]
                fn decode<S: Simd, const W: usize>(_: S, chunk: &[Self; W]) -> [Self; W] {
                    *chunk
                }
                #[inline(always)]
                fn encode<S: Simd, const W: usize>(_: S, values: &[Self; W]) -> [Self; W] {
                    *values
                }
            }
        )*
    };
}

integers!(i8 as f64, u8 as f64, i32 as f64, u32 as f64, i64 as i64, u64 as u64);

macro_rules! floats {
    ($($float:ty: $bits:ty),*) => {
        $(
            impl Accumulator for $float {
                #[inline(always)]
                fn plus(self, other: Self) -> Self {
                    self + other
                }
                #[inline(always)]
                fn times(self, other: Self) -> Self {
                    self * other
                }
                #[inline(always)]
                fn divided_by(self, ranks: u32) -> Self {
                    self / ranks as Self
                }
                #[inline(always)]
                fn is_nan(self) -> bool {
                    self != self
                }
                #[inline(always)]
                fn from_low_bits(bits: u64) -> Self {
                    Self::from_bits(bits as $bits)
                }
            }
            impl Number for $float {
                type Accumulator = Self;
                #[inline(always)]
                fn decode<S: Simd, const W: usize>(_: S, chunk: &[Self; W]) -> [Self; W] {
                    *chunk
                }
                #[inline(always)]
                fn encode<S: Simd, const W: usize>(_: S, values: &[Self; W]) -> [Self; W] {
                    each(values, 0.0, |value| {
                        if value.is_nan() { Self::from_bits(<$bits>::MAX >> 1) } else { value }
                    })
                }
            }
        )*
    };
}

floats!(f32: u32, f64: u64);

impl Number for f16 {
    type Accumulator = f32;

    #[inline(always)]
    fn decode<S: Simd, const W: usize>(simd: S, chunk: &[Self; W]) -> [f32; W] {
        simd.halves_to_floats(&each(chunk, 0, Self::to_bits))
    }

    #[inline(always)]
    fn encode<S: Simd, const W: usize>(simd: S, values: &[f32; W]) -> [Self; W] {
        each(&simd.floats_to_halves(values), Self::ZERO, Self::from_bits)
    }
}

impl Number for bf16 {
    type Accumulator = f32;

    /// Two elements lie in one 32-bit word, the first one in its lower half. All first ones of the words come first, then
    /// all second ones: that way nothing has to be moved across a vector.
    #[inline(always)]
    fn decode<S: Simd, const W: usize>(_: S, chunk: &[Self; W]) -> [f32; W] {
        let mut values = [0.0; W];
        if W < PAIRED {
            return each(chunk, 0.0, |element| f32::from_bits(u32::from(element.to_bits()) << 16));
        }
        let (words, _) = bytemuck::cast_slice::<_, u8>(chunk).as_chunks();
        for (index, &word) in words.iter().enumerate() {
            let word = u32::from_le_bytes(word);
            values[index] = f32::from_bits(word << 16);
            values[W / 2 + index] = f32::from_bits(word & 0xffff_0000);
        }
        values
    }

    #[inline(always)]
    fn encode<S: Simd, const W: usize>(_: S, values: &[f32; W]) -> [Self; W] {
        if W < PAIRED {
            return each(values, Self::ZERO, |value| Self::from_bits((round_to_bf16(value) >> 16) as u16));
        }
        let mut chunk = [Self::ZERO; W];
        let (words, _) = bytemuck::cast_slice_mut::<_, u8>(&mut chunk).as_chunks_mut();
        for (index, word) in words.iter_mut().enumerate() {
            let (first, second) = (round_to_bf16(values[index]), round_to_bf16(values[W / 2 + index]));
            *word = (first >> 16 | second & 0xffff_0000).to_le_bytes();
        }
        chunk
    }
}

/// Elements from which on chunks are worth taking apart in pairs.
const PAIRED: usize = 16;

/// The nearest bfloat16 in the upper half of the bits; the lower half is anything.
#[inline(always)]
fn round_to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_nan() { 0x7fff_0000 } else { bits.wrapping_add(0x7fff + (bits >> 16 & 1)) }
}

impl Number for F8E4M3 {
    type Accumulator = f32;

    /// As a binary16 with its mantissa cut short, it is worth 2^8 times less, since the exponents' biases are 7 and 15.
    #[inline(always)]
    fn decode<S: Simd, const W: usize>(simd: S, chunk: &[Self; W]) -> [f32; W] {
        let halves = each(chunk, 0, |element| {
            // The sign is extended into bit 15, and exponent and mantissa moved to where a half has them.
            let half = ((i16::from(element.0 as i8) << 7) as u16) & 0xbf80;
            if half & 0x3f80 == 0x3f80 { NAN_HALF } else { half }
        });
        each(&simd.halves_to_floats(&halves), 0.0, |value| value * 256.0)
    }

    #[inline(always)]
    fn encode<S: Simd, const W: usize>(_: S, values: &[f32; W]) -> [Self; W] {
        each(values, Self(0), |value| Self(float_to_small::<4, 3>(value, 448.0) as u8))
    }
}

impl Number for F8E5M2 {
    type Accumulator = f32;

    /// It is the upper half of a binary16.
    #[inline(always)]
    fn decode<S: Simd, const W: usize>(simd: S, chunk: &[Self; W]) -> [f32; W] {
        simd.halves_to_floats(&each(chunk, 0, |element| u16::from(element.0) << 8))
    }

    #[inline(always)]
    fn encode<S: Simd, const W: usize>(_: S, values: &[f32; W]) -> [Self; W] {
        each(values, Self(0), |value| Self(float_to_small::<5, 2>(value, 57_344.0) as u8))
    }
}

/// All bits but the sign of a binary16.
const NAN_HALF: u16 = 0x7fff;

/// [`Simd::halves_to_floats`] for one half, without special instructions. After Fabian Giesen.
#[inline(always)]
pub(super) fn half_to_float(half: u16) -> f32 {
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    let magnitude = u32::from(half & 0x7fff);
    let shifted = magnitude << 13;
    // A subnormal becomes the mantissa below an implicit 1, which is then subtracted.
    let subnormal = f32::from_bits(shifted + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL);
    let normal = shifted + ((127 - 15) << 23);
    let finite = if magnitude < 0x0400 { subnormal.to_bits() } else { normal };
    let value = if magnitude >= 0x7c00 { shifted | 0x7f80_0000 } else { finite };
    f32::from_bits(value | u32::from(half & 0x8000) << 16)
}

/// [`Simd::floats_to_halves`] for one float, without special instructions.
#[inline(always)]
pub(super) fn float_to_half(value: f32) -> u16 {
    // 65,536 has infinity's pattern: what lies beyond is infinity too.
    float_to_small::<5, 10>(value, 65_536.0) as u16
}

/// The nearest value of a format with `E` bits of exponent and `M` of mantissa, as the low bits; magnitudes above `ceiling`
/// become `ceiling`.
#[inline(always)]
fn float_to_small<const E: u32, const M: u32>(value: f32, ceiling: f32) -> u32 {
    let bias = (1 << (E - 1)) - 1;
    let magnitude = value.abs();
    let magnitude = if magnitude < ceiling { magnitude } else { ceiling };
    // The binade whose spacing the result has: the value's own, or the lowest one that is normal.
    let lowest = (128 - bias) << 23;
    let binade = (magnitude.to_bits() & 0x7f80_0000).max(lowest);
    // The last place of `unit` is worth that spacing, so that adding it rounds to a multiple, whose count is then in the low
    // bits.
    let unit = binade + ((23 - M) << 23);
    let spacings = (magnitude + f32::from_bits(unit)).to_bits() - unit;
    // Binades follow each other in the encoding; counts from 2^M on carry into the exponent.
    let small = spacings + ((binade - lowest) >> (23 - M));
    let sign = value.to_bits() >> 31 << (E + M);
    if value.is_nan() { (1 << (E + M)) - 1 } else { small | sign }
}
