//! Data types and operators as C names them.

use rccl::{DataType, ReduceOp};

/// The type of an element. The numbers are NCCL's.
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum rccl_data_type {
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
    /// OCP 8-bit float e4m3fn.
    F8e4m3 = 10,
    /// OCP 8-bit float e5m2.
    F8e5m2 = 11,
}

/// How contributions are combined. The numbers are NCCL's.
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum rccl_operator {
    /// The sum. Integers wrap.
    Sum = 0,
    /// The product. Integers wrap.
    Prod = 1,
    /// The smallest; any NaN gives NaN.
    Min = 2,
    /// The largest; any NaN gives NaN.
    Max = 3,
    /// The sum divided by the number of ranks.
    Avg = 4,
}

/// The type of a number; a plain integer, since C may pass any.
pub(crate) fn data_type(number: i32) -> Option<DataType> {
    u8::try_from(number).ok().and_then(DataType::from_code)
}

/// The operator of a number.
pub(crate) fn operator(number: i32) -> Option<ReduceOp> {
    let operators = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
    operators.into_iter().find(|operator| i32::from(operator.code()) == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_core() {
        assert_eq!(data_type(rccl_data_type::Bfloat16 as i32), Some(DataType::Bfloat16));
        assert_eq!(data_type(rccl_data_type::F8e5m2 as i32), Some(DataType::F8E5M2));
        assert_eq!((data_type(12), data_type(-1), data_type(256)), (None, None, None));
        assert_eq!(operator(rccl_operator::Avg as i32), Some(ReduceOp::Avg));
        assert_eq!((operator(5), operator(-1)), (None, None));
    }
}
