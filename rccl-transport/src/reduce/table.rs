//! Which kernel does what: one for each data type, operator and level.

use half::{bf16, f16};
use rccl_core::{
    DataType, ReduceOp,
    dtype::{F8E4M3, F8E5M2},
};

use super::{
    number::Number,
    operator::{Avg, Max, Min, MulSum, Prod, Sum},
    simd::{Kernel, Level, kernel_of},
};

/// The kernel of `level` that carries `op` through to the end: an average is divided.
///
/// The lengths of chunks are for the baseline, AVX2 and AVX-512: a few vectors of accumulators, which hides the latency of the
/// arithmetic and still fits into the registers.
pub(super) fn kernel(level: Level, data_type: DataType, op: ReduceOp) -> Kernel {
    // Where nothing is compared or divided, signed and unsigned integers are the same.
    let signed = matches!(op, ReduceOp::Min | ReduceOp::Max | ReduceOp::Avg);
    match data_type {
        DataType::Int8 if signed => of::<i8, 64, 64, 64>(level, op),
        DataType::Int32 if signed => of::<i32, 16, 32, 64>(level, op),
        DataType::Int64 if signed => of::<i64, 8, 16, 32>(level, op),
        DataType::Int8 | DataType::Uint8 => of::<u8, 64, 64, 64>(level, op),
        DataType::Int32 | DataType::Uint32 => of::<u32, 16, 32, 64>(level, op),
        DataType::Int64 | DataType::Uint64 => of::<u64, 8, 16, 32>(level, op),
        DataType::Half => of::<f16, 16, 32, 64>(level, op),
        DataType::Float => of::<f32, 16, 32, 64>(level, op),
        DataType::Double => of::<f64, 8, 16, 32>(level, op),
        DataType::Bfloat16 => of::<bf16, 16, 32, 64>(level, op),
        DataType::F8E4M3 => of::<F8E4M3, 16, 64, 64>(level, op),
        DataType::F8E5M2 => of::<F8E5M2, 16, 64, 64>(level, op),
    }
}

fn of<N: Number, const A: usize, const B: usize, const C: usize>(level: Level, op: ReduceOp) -> Kernel {
    match op {
        ReduceOp::Sum => kernel_of::<N, Sum, A, B, C>(level),
        ReduceOp::Prod => kernel_of::<N, Prod, A, B, C>(level),
        ReduceOp::Min => kernel_of::<N, Min, A, B, C>(level),
        ReduceOp::Max => kernel_of::<N, Max, A, B, C>(level),
        ReduceOp::Avg => kernel_of::<N, Avg, A, B, C>(level),
        ReduceOp::MulSum(_) => kernel_of::<N, MulSum, A, B, C>(level),
    }
}

/// The factor of `mulsum` in the accumulator of `data_type`, as the low bits; 0 for other operators.
pub(super) fn scalar_bits(data_type: DataType, op: ReduceOp) -> u64 {
    let ReduceOp::MulSum(scalar) = op else { return 0 };
    match data_type {
        DataType::Double => scalar.as_f64().to_bits(),
        integer if integer.is_integer() => scalar.as_integer_bits(),
        _ => u64::from((scalar.as_f64() as f32).to_bits()),
    }
}
