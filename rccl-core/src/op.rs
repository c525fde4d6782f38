//! The reduction operators and their fixed names.

use std::{fmt, str::FromStr};

use crate::{DataType, Error, Result};

/// How contributions are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum. Integers wrap.
    Sum,
    /// The product. Integers wrap.
    Prod,
    /// The smallest; any NaN gives NaN.
    Min,
    /// The largest; any NaN gives NaN.
    Max,
    /// The sum divided by the number of ranks. Integers wrap in the sum and truncate towards zero in the division.
    Avg,
    /// The sum of the contributions, each first multiplied by a scalar. Integers wrap.
    MulSum(Scalar),
}

impl ReduceOp {
    /// The names of all operators, in the order of their codes.
    pub const NAMES: [&'static str; 6] = ["sum", "prod", "min", "max", "avg", "mulsum"];

    /// The operator's code: 0 sum, 1 prod, 2 min, 3 max, 4 avg (NCCL's), 5 mulsum.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Sum => 0,
            Self::Prod => 1,
            Self::Min => 2,
            Self::Max => 3,
            Self::Avg => 4,
            Self::MulSum(_) => 5,
        }
    }

    /// The fixed name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.code() as usize]
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = Error;

    /// Parses a fixed name; `mulsum` gets the scalar 1 (which callers replace).
    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "sum" => Self::Sum,
            "prod" => Self::Prod,
            "min" => Self::Min,
            "max" => Self::Max,
            "avg" => Self::Avg,
            "mulsum" => Self::MulSum(Scalar::Float(1f64.to_bits())),
            _ => {
                return Err(Error::Name {
                    what: "operator",
                    name: name.to_owned(),
                    expected: Self::NAMES.join(" "),
                });
            }
        })
    }
}

/// The factor of [`ReduceOp::MulSum`]. It is converted to the accumulator of the data type before use: floating types
/// round to the accumulator (float for everything but double), integer types take the low bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A floating factor, as the bits of a binary64 (so that scalars can be compared and hashed).
    Float(u64),
    /// An integer factor, as two's complement bits.
    Integer(u64),
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Self::Float(value.to_bits())
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Self {
        Self::Integer(value.cast_unsigned())
    }
}

impl Scalar {
    /// The factor as a binary64 (integers are converted as signed).
    #[must_use]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Float(bits) => f64::from_bits(bits),
            Self::Integer(bits) => bits.cast_signed() as f64,
        }
    }

    /// The factor as an integer's two's complement bits (floats are truncated towards zero, saturating).
    #[must_use]
    pub fn as_integer_bits(self) -> u64 {
        match self {
            Self::Float(bits) => (f64::from_bits(bits) as i64).cast_unsigned(),
            Self::Integer(bits) => bits,
        }
    }

    /// The raw bits, for hashing and for the wire.
    #[must_use]
    pub const fn bits(self) -> u64 {
        match self {
            Self::Float(bits) | Self::Integer(bits) => bits,
        }
    }
}

impl ReduceOp {
    /// Checks that the operator can be carried out on `data_type`.
    ///
    /// # Errors
    /// [`Error::Operator`] for a fractional scalar on an integer type.
    pub fn check(self, data_type: DataType) -> Result<()> {
        if let Self::MulSum(Scalar::Float(bits)) = self
            && data_type.is_integer()
            && f64::from_bits(bits).fract() != 0.0
        {
            return Err(Error::Operator {
                op: self.name(),
                data_type,
                reason: "the scalar has a fraction or is not finite; integer types need an integer scalar",
            });
        }
        Ok(())
    }
}
