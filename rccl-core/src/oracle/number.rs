use super::Format;
use crate::{
    Element, Scalar,
    dtype::{F8E4M3, F8E5M2},
};

/// What reductions are computed in.
pub(super) trait Accumulator: Copy + PartialOrd {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn divided_by(self, ranks: u32) -> Self;
    fn from_scalar(scalar: Scalar) -> Self;
    fn is_nan(self) -> bool;
}

/// An element as it lies in memory, in the machine's byte order.
pub(super) trait Number: Element {
    type Accumulator: Accumulator;
    fn load(bytes: &[u8]) -> Self::Accumulator;
    fn store(value: Self::Accumulator, bytes: &mut [u8]);
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("callers pass one element")
}

macro_rules! integers {
    ($($integer:ty),*) => {
        $(
            impl Accumulator for $integer {
                fn plus(self, other: Self) -> Self {
                    self.wrapping_add(other)
                }
                fn times(self, other: Self) -> Self {
                    self.wrapping_mul(other)
                }
                fn divided_by(self, ranks: u32) -> Self {
                    // Wide enough for the number of ranks as well as for the sum.
                    (i128::from(self) / i128::from(ranks)) as Self
                }
                fn from_scalar(scalar: Scalar) -> Self {
                    scalar.as_integer_bits() as Self
                }
                fn is_nan(self) -> bool {
                    false
                }
            }
            impl Number for $integer {
                type Accumulator = Self;
                fn load(bytes: &[u8]) -> Self {
                    Self::from_ne_bytes(array(bytes))
                }
                fn store(value: Self, bytes: &mut [u8]) {
                    bytes.copy_from_slice(&value.to_ne_bytes());
                }
            }
        )*
    };
}

integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($float:ty: nan $nan:literal),*) => {
        $(
            impl Accumulator for $float {
                fn plus(self, other: Self) -> Self {
                    self + other
                }
                fn times(self, other: Self) -> Self {
                    self * other
                }
                fn divided_by(self, ranks: u32) -> Self {
                    self / ranks as Self
                }
                fn from_scalar(scalar: Scalar) -> Self {
                    scalar.as_f64() as Self
                }
                fn is_nan(self) -> bool {
                    self != self
                }
            }
            impl Number for $float {
                type Accumulator = Self;
                fn load(bytes: &[u8]) -> Self {
                    Self::from_ne_bytes(array(bytes))
                }
                fn store(value: Self, bytes: &mut [u8]) {
                    let bits = if value.is_nan() { $nan } else { value.to_bits() };
                    bytes.copy_from_slice(&bits.to_ne_bytes());
                }
            }
        )*
    };
}

floats!(f32: nan 0x7fff_ffff, f64: nan 0x7fff_ffff_ffff_ffff);

macro_rules! small_floats {
    ($($number:ty: $bits:ty as $format:ident),*) => {
        $(
            impl Number for $number {
                type Accumulator = f32;
                fn load(bytes: &[u8]) -> f32 {
                    Format::$format.decode(<$bits>::from_ne_bytes(array(bytes)).into())
                }
                fn store(value: f32, bytes: &mut [u8]) {
                    bytes.copy_from_slice(&(Format::$format.encode(value) as $bits).to_ne_bytes());
                }
            }
        )*
    };
}

small_floats!(half::f16: u16 as HALF, half::bf16: u16 as BFLOAT16, F8E4M3: u8 as F8E4M3, F8E5M2: u8 as F8E5M2);
