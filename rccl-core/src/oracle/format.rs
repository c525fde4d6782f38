/// A binary floating-point format of at most 16 bits: a sign, then the exponent, then the mantissa.
///
/// Conversions are exact from the format to float; to the format they round to nearest even. They are written for
/// clarity: every step is exact in double.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// The magnitude's bits of the largest finite value; whatever lies above and is not infinity is NaN.
    max_finite: u16,
    /// The magnitude's bits of infinity, if there is one.
    infinity: Option<u16>,
    /// Whether what is too large becomes the largest finite value (rather than infinity).
    saturates: bool,
}

impl Format {
    /// IEEE 754 binary16.
    pub const HALF: Self = Self {
        exponent_bits: 5,
        mantissa_bits: 10,
        max_finite: 0x7bff,
        infinity: Some(0x7c00),
        saturates: false,
    };
    /// The upper half of a binary32.
    pub const BFLOAT16: Self = Self {
        exponent_bits: 8,
        mantissa_bits: 7,
        max_finite: 0x7f7f,
        infinity: Some(0x7f80),
        saturates: false,
    };
    /// OCP E4M3: no infinities, largest value 448.
    pub const F8E4M3: Self =
        Self { exponent_bits: 4, mantissa_bits: 3, max_finite: 0x7e, infinity: None, saturates: true };
    /// OCP E5M2: infinities exist but are never produced, largest finite value 57,344.
    pub const F8E5M2: Self =
        Self { exponent_bits: 5, mantissa_bits: 2, max_finite: 0x7b, infinity: Some(0x7c), saturates: true };

    /// The exponent of the smallest normal number; subnormal numbers have its spacing.
    const fn min_exponent(self) -> i32 {
        2 - (1 << (self.exponent_bits - 1))
    }

    const fn sign_bit(self) -> u16 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The value of some bits. Bits above the format's width must be 0.
    #[must_use]
    pub fn decode(self, bits: u16) -> f32 {
        let magnitude = bits & !self.sign_bit();
        let sign = if bits & self.sign_bit() == 0 { 1.0 } else { -1.0 };
        if Some(magnitude) == self.infinity {
            return sign * f32::INFINITY;
        }
        if magnitude > self.max_finite {
            return f32::NAN;
        }
        let (exponent, mantissa) =
            (i32::from(magnitude >> self.mantissa_bits), magnitude & ((1 << self.mantissa_bits) - 1));
        let implicit = if exponent == 0 { 0 } else { 1 << self.mantissa_bits };
        let exponent = exponent.max(1) - 1 + self.min_exponent();
        // At most 11 bits times a power of two within float's range of subnormal numbers: exact.
        sign * (f64::from(implicit + mantissa) * power_of_two(exponent - self.mantissa_bits as i32)) as f32
    }

    /// The bits of the nearest value, the even one of two; NaN becomes all bits but the sign.
    #[must_use]
    pub fn encode(self, value: f32) -> u16 {
        if value.is_nan() {
            return self.sign_bit() - 1;
        }
        let sign = if value.is_sign_negative() { self.sign_bit() } else { 0 };
        let overflow =
            if self.saturates { self.max_finite } else { self.infinity.unwrap_or(self.max_finite) };
        if value.is_infinite() {
            return sign | overflow;
        }
        let value = f64::from(value.abs());
        // Every float is a normal double, so the exponent can be read off its bits (0 gives one far below all others).
        let exponent = ((value.to_bits() >> 52) as i32 - 1023).max(self.min_exponent());
        // How many spacings of the format's numbers the value is, in the binade that `exponent` begins.
        let spacings = (value / power_of_two(exponent - self.mantissa_bits as i32)).round_ties_even();
        // Binades follow each other in the encoding, each as many patterns long as it has numbers, so that rounding up
        // into the next binade needs no case of its own. Subnormal numbers and the first binade share a spacing.
        let below = ((exponent - self.min_exponent()) as u32) << self.mantissa_bits;
        let magnitude = below + spacings as u32;
        sign | if magnitude > u32::from(self.max_finite) { overflow } else { magnitude as u16 }
    }
}

/// 2 to the power of `exponent`, which must be one that a normal double has.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
