use super::*;
use crate::{Algorithm, Group, Request, planner, split};

const SMALL: [(DataType, Format, u16); 4] = [
    (DataType::Half, Format::HALF, u16::MAX),
    (DataType::Bfloat16, Format::BFLOAT16, u16::MAX),
    (DataType::F8E4M3, Format::F8E4M3, 0xff),
    (DataType::F8E5M2, Format::F8E5M2, 0xff),
];

/// The finite values of a format that are not negative, ascending, with their bits: 0, then every positive one.
fn finite(format: Format) -> Vec<(u16, f32)> {
    (0..).map(|bits| (bits, format.decode(bits))).take_while(|(_, value)| value.is_finite()).collect()
}

#[test]
fn decoding_matches_the_definition_of_f8e4m3() {
    for bits in 0..=u8::MAX {
        let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
        let sign = if bits < 128 { 1.0 } else { -1.0 };
        let expected = match (exponent, bits & 7) {
            (15, 7) => f32::NAN,
            (0, _) => sign * mantissa / 8.0 * 2f32.powi(-6),
            _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
        };
        let value = Format::F8E4M3.decode(bits.into());
        assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(), "{bits:#x}");
    }
    let largest = finite(Format::F8E4M3).pop();
    assert_eq!(largest, Some((0x7e, 448.0)));
}

#[test]
fn f8e5m2_is_the_upper_half_of_binary16() {
    for bits in 0..=u8::MAX {
        let (value, expected) =
            (Format::F8E5M2.decode(bits.into()), half::f16::from_bits(u16::from(bits) << 8).to_f32());
        assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(), "{bits:#x}");
    }
    assert_eq!(finite(Format::F8E5M2).pop(), Some((0x7b, 57_344.0)));
}

#[test]
fn every_value_survives_a_round_trip() {
    for (data_type, format, last) in SMALL {
        for bits in 0..=last {
            let value = format.decode(bits);
            let expected = match (value.is_nan(), value.is_infinite()) {
                (true, _) => last >> 1,
                (_, true) if data_type == DataType::F8E5M2 => bits - 1,
                _ => bits,
            };
            assert_eq!(format.encode(value), expected, "{data_type} {bits:#x}");
        }
    }
}

#[test]
fn half_and_bfloat16_match_the_half_crate() {
    for bits in 0..=u16::MAX {
        let pairs = [
            (Format::HALF.decode(bits), half::f16::from_bits(bits).to_f32()),
            (Format::BFLOAT16.decode(bits), half::bf16::from_bits(bits).to_f32()),
        ];
        for (ours, theirs) in pairs {
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
        }
        // Floats around every boundary that the upper bits can name, and some in between.
        for low in [0, 1, 0x7ff, 0x800, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff]
        {
            let value = f32::from_bits(u32::from(bits) << 16 | low);
            if !value.is_nan() {
                assert_eq!(Format::HALF.encode(value), half::f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(
                    Format::BFLOAT16.encode(value),
                    half::bf16::from_f32(value).to_bits(),
                    "{value:e}"
                );
            }
        }
    }
}

/// Midway between two neighbours lies a tie, which goes to the even one; a float above or below it does not.
#[test]
fn ties_go_to_even_everywhere() {
    for (data_type, format, last) in SMALL {
        let sign = last - (last >> 1);
        for pair in finite(format).windows(2) {
            let [(low_bits, low), (high_bits, high)] = [pair[0], pair[1]];
            let middle = low + (high - low) / 2.0;
            let even = if low_bits % 2 == 0 { low_bits } else { high_bits };
            for (value, expected) in [
                (middle, even),
                (f32::from_bits(middle.to_bits() - 1), low_bits),
                (f32::from_bits(middle.to_bits() + 1), high_bits),
            ] {
                assert_eq!(format.encode(value), expected, "{data_type} {value:e}");
                assert_eq!(format.encode(-value), expected | sign, "{data_type} -{value:e}");
            }
        }
    }
}

#[test]
fn what_is_too_large_saturates_or_overflows() {
    let just_below_f16_overflow = f32::from_bits(65_520f32.to_bits() - 1);
    assert_eq!(Format::HALF.encode(just_below_f16_overflow), 0x7bff);
    assert_eq!(Format::HALF.encode(65_520.0), 0x7c00);
    assert_eq!(Format::HALF.encode(f32::MIN), 0xfc00);
    assert_eq!(Format::BFLOAT16.encode(f32::MAX), 0x7f80);
    for value in [449.0, 464.0, 465.0, 480.0, 512.0, 1e6, f32::MAX, f32::INFINITY] {
        assert_eq!(Format::F8E4M3.encode(value), 0x7e);
        assert_eq!(Format::F8E4M3.encode(-value), 0xfe);
    }
    for value in [57_345.0, 61_440.0, 65_536.0, 1e6, f32::MAX, f32::INFINITY] {
        assert_eq!(Format::F8E5M2.encode(value), 0x7b);
        assert_eq!(Format::F8E5M2.encode(-value), 0xfb);
    }
    for (_, format, last) in SMALL {
        assert_eq!(format.encode(f32::NAN), last >> 1);
        assert_eq!(format.encode(-f32::NAN), last >> 1);
        assert_eq!(format.encode(f32::from_bits(1)), 0, "below half the smallest value");
        assert_eq!(format.encode(-0.0), last - (last >> 1));
    }
}

fn reduced<const N: usize>(data_type: DataType, op: ReduceOp, sources: &[[u8; N]]) -> [u8; N] {
    let contributions: Vec<_> = sources.iter().map(|bytes| Contribution { bytes, raw: true }).collect();
    let mut out = [0; N];
    reduce(data_type, op, &contributions, Some(sources.len() as u32), &mut out);
    out
}

fn int32(op: ReduceOp, values: &[i32]) -> i32 {
    let sources: Vec<_> = values.iter().map(|value| value.to_ne_bytes()).collect();
    i32::from_ne_bytes(reduced(DataType::Int32, op, &sources))
}

fn int8(op: ReduceOp, values: &[i8]) -> i8 {
    let sources: Vec<_> = values.iter().map(|value| value.to_ne_bytes()).collect();
    i8::from_ne_bytes(reduced(DataType::Int8, op, &sources))
}

fn float(op: ReduceOp, values: &[f32]) -> f32 {
    let sources: Vec<_> = values.iter().map(|value| value.to_ne_bytes()).collect();
    f32::from_ne_bytes(reduced(DataType::Float, op, &sources))
}

#[test]
fn integers_wrap_and_their_average_truncates() {
    assert_eq!(int32(ReduceOp::Sum, &[i32::MAX, 1]), i32::MIN);
    assert_eq!(int32(ReduceOp::Prod, &[1 << 20, 1 << 12, 3]), 0);
    assert_eq!(int32(ReduceOp::Avg, &[-7, 0]), -3);
    assert_eq!(int32(ReduceOp::Avg, &[7, 0]), 3);
    assert_eq!(int32(ReduceOp::Avg, &[i32::MAX, 3]), (i32::MIN + 2) / 2, "the sum wraps before the division");
    assert_eq!(
        int32(ReduceOp::MulSum((-3).into()), &[5, i32::MAX]),
        (-15i32).wrapping_sub(i32::MAX.wrapping_mul(3))
    );
    assert_eq!(int8(ReduceOp::MulSum(0x1_02.into()), &[5, 6]), 22, "the scalar's low bits count");
    assert_eq!(int8(ReduceOp::Avg, &[100; 200]), 0, "100 * 200 wraps to 32, which 200 ranks divide to 0");
    assert_eq!(int8(ReduceOp::Min, &[3, -4, 5]), -4);
    assert_eq!(int8(ReduceOp::Max, &[3, -4, 5]), 5);
    let unsigned = [u64::MAX.to_ne_bytes(), 3u64.to_ne_bytes()];
    assert_eq!(reduced(DataType::Uint64, ReduceOp::Max, &unsigned), unsigned[0]);
    assert_eq!(reduced(DataType::Uint64, ReduceOp::Avg, &unsigned), 1u64.to_ne_bytes());
}

#[test]
fn minimum_and_maximum_keep_the_first_zero_and_any_nan() {
    for (first, second) in [(0f32, -0f32), (-0.0, 0.0)] {
        assert_eq!(float(ReduceOp::Min, &[first, second]).to_bits(), first.to_bits());
        assert_eq!(float(ReduceOp::Max, &[first, second]).to_bits(), first.to_bits());
    }
    for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg] {
        for values in [[f32::NAN, 1.0, 2.0], [1.0, -f32::NAN, 2.0], [1.0, 2.0, f32::from_bits(0x7f80_0001)]] {
            assert_eq!(float(op, &values).to_bits(), 0x7fff_ffff, "{op}");
        }
    }
    assert_eq!(float(ReduceOp::Sum, &[f32::INFINITY, f32::NEG_INFINITY]).to_bits(), 0x7fff_ffff);
}

#[test]
fn small_floats_round_once_and_products_are_not_fused() {
    // One unit in the last place of 2048 is 2: rounding at each addition would lose both ones.
    let halves = [2048.0, 1.0, 1.0].map(|value| half::f16::from_f32(value).to_ne_bytes());
    assert_eq!(reduced(DataType::Half, ReduceOp::Sum, &halves), half::f16::from_f32(2050.0).to_ne_bytes());
    let (value, scalar) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON);
    let expected = value * scalar - scalar;
    assert_ne!(expected, value.mul_add(scalar, -scalar));
    assert_eq!(float(ReduceOp::MulSum(f64::from(scalar).into()), &[value, -1.0]), expected);
}

#[test]
fn only_raw_sources_are_multiplied_and_only_the_last_step_divides() {
    let (raw, partial) = (2f32.to_ne_bytes(), 5f32.to_ne_bytes());
    let sources = [Contribution { bytes: &partial, raw: false }, Contribution { bytes: &raw, raw: true }];
    let mut out = [0; 4];
    reduce(DataType::Float, ReduceOp::MulSum(10.0.into()), &sources, None, &mut out);
    assert_eq!(f32::from_ne_bytes(out), 25.0);
    reduce(DataType::Float, ReduceOp::Avg, &sources, None, &mut out);
    assert_eq!(f32::from_ne_bytes(out), 7.0);
    reduce(DataType::Float, ReduceOp::Avg, &sources, Some(4), &mut out);
    assert_eq!(f32::from_ne_bytes(out), 1.75);
}

#[test]
fn differences_are_counted_by_element_and_nans_are_equal() {
    let bytes = |values: [u32; 3]| values.map(u32::to_ne_bytes).concat();
    let (nan, other_nan) = (0x7fc0_0000, 0xffff_ffff);
    assert_eq!(wrong(DataType::Float, &bytes([nan, 0, 1]), &bytes([other_nan, 0x8000_0000, 1])), 1);
    assert_eq!(wrong(DataType::Uint32, &bytes([nan, 0, 1]), &bytes([other_nan, 0x8000_0000, 1])), 2);
    assert_eq!(wrong(DataType::F8E4M3, &[0x7f, 0x7f, 0x7e], &[0xff, 0x7e, 0x7e]), 1);
    assert_eq!(wrong(DataType::F8E5M2, &[0x7d, 0x7c, 0], &[0xfe, 0x7d, 0]), 1);
    assert_eq!(wrong(DataType::Half, &0x7c01u16.to_ne_bytes(), &0xfe00u16.to_ne_bytes()), 0);
    assert_eq!(wrong(DataType::Bfloat16, &0x7f81u16.to_ne_bytes(), &0x7f80u16.to_ne_bytes()), 1);
}

/// A contribution to a sum over three ranks whose rounded steps depend on their order: 2048 + 1 + 1 loses both ones, which
/// 1 + 1 + 2048 keeps.
fn order_sensitive(rank: usize, element: usize) -> f32 {
    if (rank + element).is_multiple_of(3) { 2048.0 } else { 1.0 }
}

/// The sum of three ranks' contributions to an element, rounded to half after each addition.
fn rounded_at_every_hop(order: [usize; 3], element: usize) -> [u8; 2] {
    let [first, second, third] = order.map(|rank| order_sensitive(rank, element));
    half::f16::from_f32(half::f16::from_f32(first + second).to_f32() + third).to_ne_bytes()
}

fn order_sensitive_inputs(count: usize) -> Vec<Vec<u8>> {
    let half = |rank, element| half::f16::from_f32(order_sensitive(rank, element)).to_ne_bytes();
    (0..3).map(|rank| (0..count).flat_map(|element| half(rank, element)).collect()).collect()
}

#[test]
fn the_ring_starts_where_its_plan_starts() {
    use crate::plan::{Action, Buffer, Operand};
    for ranks in 2..6u32 {
        for collective in [Request::all_reduce, Request::reduce_scatter] {
            let request = collective(1000, DataType::Half, ReduceOp::Sum);
            let plans: Vec<_> = (0..ranks)
                .map(|rank| {
                    planner::plan(Group::new(ranks, rank).unwrap(), &request, Algorithm::Ring, 1 << 20)
                        .unwrap()
                })
                .collect();
            for plan in &plans {
                // The first thing a rank sends is the chunk that starts there.
                let first = &plan.steps[0];
                assert_eq!(first.action, Action::Copy);
                let Operand::Local { buffer: Buffer::Input, start } = first.sources[0].operand else {
                    panic!("the first step sends {:?}", first.sources)
                };
                let (rank, size) = (u64::from(plan.group.rank().0), u64::from(ranks));
                let expected = match request.collective {
                    crate::Collective::AllReduce => split::share(1000, size, rank, 32).start,
                    _ => 1000 * ((rank + size - 1) % size),
                };
                assert_eq!(start, expected, "rank {rank} of {ranks}");
            }
        }
    }
}

#[test]
fn the_ring_all_reduce_rounds_at_every_hop_from_its_chunk_on() {
    let inputs = order_sensitive_inputs(100);
    let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
    let ring = all_reduce(Algorithm::Ring, DataType::Half, ReduceOp::Sum, &inputs);
    // Chunks of 100 halves in blocks of 32: 64, 32 and 4 elements.
    for (element, bytes) in ring.chunks_exact(2).enumerate() {
        let chunk = usize::from(element >= 64) + usize::from(element >= 96);
        let order = [[0, 1, 2], [1, 2, 0], [2, 0, 1]][chunk];
        assert_eq!(bytes, rounded_at_every_hop(order, element), "element {element}");
    }
    let relay = all_reduce(Algorithm::Relay, DataType::Half, ReduceOp::Sum, &inputs);
    assert_eq!(relay, half::f16::from_f32(2050.0).to_ne_bytes().repeat(100));
    assert_ne!(ring, relay);
}

#[test]
fn the_ring_reduce_scatter_ends_at_the_chunks_owner() {
    let inputs = order_sensitive_inputs(300);
    let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
    let chunks = reduce_scatter(Algorithm::Ring, DataType::Half, ReduceOp::Sum, &inputs);
    for ((rank, chunk), order) in chunks.iter().enumerate().zip([[1, 2, 0], [2, 0, 1], [0, 1, 2]]) {
        for (index, bytes) in chunk.chunks_exact(2).enumerate() {
            assert_eq!(bytes, rounded_at_every_hop(order, rank * 100 + index), "rank {rank} element {index}");
        }
    }
}

#[test]
fn algorithms_agree_where_rounding_does_not_matter() {
    let inputs: Vec<Vec<u8>> = (0..4i32)
        .map(|rank| (0..40).flat_map(|index| (rank * 100 - index).to_ne_bytes()).collect())
        .collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
    for op in [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::MulSum(3.into()),
    ] {
        let whole = all_reduce(Algorithm::Oneshot, DataType::Int32, op, &inputs);
        assert_eq!(all_reduce(Algorithm::Ring, DataType::Int32, op, &inputs), whole, "{op}");
        for algorithm in Algorithm::ALL {
            assert_eq!(
                reduce_scatter(algorithm, DataType::Int32, op, &inputs).concat(),
                whole,
                "{op} {algorithm}"
            );
        }
    }
    for algorithm in Algorithm::ALL {
        let alone = all_reduce(algorithm, DataType::Int32, ReduceOp::MulSum(2.into()), &inputs[1..2]);
        assert_eq!(alone[..4], 200i32.to_ne_bytes(), "{algorithm}");
    }
}

#[test]
#[should_panic(expected = "3 bytes are no whole number of half elements")]
fn half_an_element_is_refused() {
    let _ = all_reduce(Algorithm::Relay, DataType::Half, ReduceOp::Sum, &[&[0; 3]]);
}
