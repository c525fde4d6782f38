//! The data types and their fixed names.

use std::{fmt, str::FromStr};

use crate::{Error, Result};

/// The type of one element. Names are those of nccl-tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    /// Signed 8-bit integer.
    Int8 = 0,
    /// Unsigned 8-bit integer.
    Uint8 = 1,
    /// Signed 32-bit integer.
    Int32 = 2,
    /// Unsigned 32-bit integer.
    Uint32 = 3,
    /// Signed 64-bit integer.
    Int64 = 4,
    /// Unsigned 64-bit integer.
    Uint64 = 5,
    /// IEEE 754 binary16.
    Half = 6,
    /// IEEE 754 binary32.
    Float = 7,
    /// IEEE 754 binary64.
    Double = 8,
    /// The upper half of a binary32.
    Bfloat16 = 9,
    /// OCP 8-bit float, 4 bits of exponent, 3 of mantissa, no infinities.
    F8E4M3 = 10,
    /// OCP 8-bit float, 5 bits of exponent, 2 of mantissa.
    F8E5M2 = 11,
}

impl DataType {
    /// Every data type, in the order of their codes (which are NCCL's).
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Half,
        Self::Float,
        Self::Double,
        Self::Bfloat16,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// Bytes of one element: 1, 2, 4 or 8.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::Half | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double => 8,
        }
    }

    /// The fixed name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Half => "half",
            Self::Float => "float",
            Self::Double => "double",
            Self::Bfloat16 => "bfloat16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }

    /// Whether the type is one of the integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Uint8 | Self::Int32 | Self::Uint32 | Self::Int64 | Self::Uint64)
    }

    /// The type with the given code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|data_type| data_type.name() == name).ok_or_else(|| Error::Name {
            what: "data type",
            name: name.to_owned(),
            expected: Self::ALL.map(Self::name).join(" "),
        })
    }
}

impl serde::Serialize for DataType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// An OCP 8-bit float with 4 bits of exponent, as its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// An OCP 8-bit float with 5 bits of exponent, as its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

mod sealed {
    pub trait Sealed {}
}

/// A Rust type whose values are elements of a [`DataType`].
///
/// Sealed: every implementor is plain old data, valid for any bit pattern, without padding and of exactly
/// [`DataType::size_bytes`] bytes. Unsafe code elsewhere relies on that.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + 'static {
    /// The data type that this Rust type stands for.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $data_type:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DATA_TYPE: DataType = DataType::$data_type;
            }
            const _: () = assert!(size_of::<$rust>() == DataType::$data_type.size_bytes());
        )*
    };
}

elements! {
    i8 => Int8, u8 => Uint8, i32 => Int32, u32 => Uint32, i64 => Int64, u64 => Uint64,
    half::f16 => Half, f32 => Float, f64 => Double, half::bf16 => Bfloat16,
    F8E4M3 => F8E4M3, F8E5M2 => F8E5M2,
}
