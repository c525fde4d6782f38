//! Everything against the oracle, bit for bit (NaN included: both store one pattern), by every level that the CPU has.

use proptest::prelude::*;
use rccl_core::{DataType, ReduceOp, oracle};

use super::{Level, Reducer, STREAM_MIN_BYTES, Source, Target, copy};

const GUARD: u8 = 0xa5;

/// Bytes at a chosen distance from a cache line's start, with guards around them that must survive.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn new(contents: &[u8], misalignment: usize) -> Self {
        let mut bytes = vec![GUARD; contents.len() + 256];
        let start = 64 + bytes.as_ptr().addr().wrapping_neg() % 64 + misalignment % 64;
        bytes[start..start + contents.len()].copy_from_slice(contents);
        Self { bytes, start, len: contents.len() }
    }

    fn source(&self, raw: bool) -> Source {
        Source { ptr: self.bytes[self.start..].as_ptr(), raw }
    }

    fn target(&mut self, stream: bool) -> Target {
        Target { ptr: self.bytes[self.start..].as_mut_ptr(), stream }
    }

    fn contents(&self) -> &[u8] {
        let (before, rest) = self.bytes.split_at(self.start);
        let (contents, after) = rest.split_at(self.len);
        assert!(
            before.iter().chain(after).all(|&byte| byte == GUARD),
            "bytes outside the target have changed"
        );
        contents
    }
}

/// What one call is given, beside the type and the operator.
#[derive(Debug, Clone)]
struct Case {
    /// Bytes of each source, and whether it is raw.
    sources: Vec<(Vec<u8>, bool)>,
    /// Distances from a cache line, for the sources and then the targets.
    misalignments: Vec<usize>,
    /// Whether each target is streamed.
    targets: Vec<bool>,
    /// The source that the first target lies on.
    in_place: Option<usize>,
    finish: bool,
    ranks: u32,
}

impl Case {
    /// Sources without further ado: raw, aligned, finishing into one target.
    fn simple(sources: Vec<Vec<u8>>) -> Self {
        Self {
            ranks: sources.len() as u32,
            sources: sources.into_iter().map(|bytes| (bytes, true)).collect(),
            misalignments: vec![0],
            targets: vec![false],
            in_place: None,
            finish: true,
        }
    }

    fn check(&self, data_type: DataType, op: ReduceOp) {
        let bytes = self.sources[0].0.len();
        let mut expected = vec![0; bytes];
        let contributions: Vec<_> =
            self.sources.iter().map(|(bytes, raw)| oracle::Contribution { bytes, raw: *raw }).collect();
        oracle::reduce(data_type, op, &contributions, self.finish.then_some(self.ranks), &mut expected);
        for level in Level::available() {
            for (number, result) in self.run(level, data_type, op).iter().enumerate() {
                let differing =
                    result.contents().iter().zip(&expected).position(|(ours, theirs)| ours != theirs);
                if let Some(byte) = differing {
                    let element = byte / data_type.size_bytes();
                    let at = element * data_type.size_bytes()..(element + 1) * data_type.size_bytes();
                    let operands: Vec<_> = self.sources.iter().map(|(bytes, _)| &bytes[at.clone()]).collect();
                    panic!(
                        "{level:?} {data_type} {op}: element {element} of target {number} is {:x?}, expected {:x?}, \
                         from {operands:x?}",
                        &result.contents()[at.clone()],
                        &expected[at],
                    );
                }
            }
        }
    }

    /// The targets after a run.
    fn run(&self, level: Level, data_type: DataType, op: ReduceOp) -> Vec<Buffer> {
        let misalignment = |index: usize| self.misalignments[index % self.misalignments.len()];
        let bytes = self.sources[0].0.len();
        let mut sources: Vec<_> = self
            .sources
            .iter()
            .enumerate()
            .map(|(index, (bytes, _))| Buffer::new(bytes, misalignment(index)))
            .collect();
        let mut results: Vec<_> = (0..self.targets.len())
            .map(|index| Buffer::new(&vec![GUARD; bytes], misalignment(sources.len() + index)))
            .collect();
        let mut targets: Vec<_> =
            results.iter_mut().zip(&self.targets).map(|(result, &stream)| result.target(stream)).collect();
        if let Some(source) = self.in_place {
            targets[0] = sources[source].target(self.targets[0]);
        }
        let operands: Vec<_> =
            sources.iter().zip(&self.sources).map(|(source, (_, raw))| source.source(*raw)).collect();
        let elems = bytes / data_type.size_bytes();
        let reducer = Reducer::at_level(level, data_type, op, self.ranks);
        // SAFETY: every buffer holds `bytes` bytes; targets are separate from everything but the one source that the first is.
        unsafe { reducer.run(&operands, &targets, elems, self.finish) };
        if let Some(source) = self.in_place {
            results[0] = sources.swap_remove(source);
        }
        results
    }
}

fn operators() -> impl Strategy<Value = ReduceOp> {
    prop_oneof![
        Just(ReduceOp::Sum),
        Just(ReduceOp::Prod),
        Just(ReduceOp::Min),
        Just(ReduceOp::Max),
        Just(ReduceOp::Avg),
        (-9i64..9).prop_map(|scalar| ReduceOp::MulSum(scalar.into())),
        (-4i32..4).prop_map(|eighths| ReduceOp::MulSum((f64::from(eighths) + 0.3).into())),
    ]
}

/// Elements that are random bits, moderate numbers (whose sums neither overflow nor vanish) or special values.
fn element(data_type: DataType) -> BoxedStrategy<Vec<u8>> {
    let size = data_type.size_bytes();
    let bits = prop::collection::vec(any::<u8>(), size);
    let special = prop::sample::select(specials(data_type));
    let moderate = (-64i16..64).prop_map(move |value| moderate(data_type, value));
    prop_oneof![2 => bits, 4 => moderate, 1 => special].boxed()
}

fn moderate(data_type: DataType, value: i16) -> Vec<u8> {
    let float = f32::from(value) * 1.37;
    match data_type {
        DataType::Int8 | DataType::Uint8 => vec![value as u8],
        DataType::Int32 | DataType::Uint32 => i32::from(value).to_ne_bytes().to_vec(),
        DataType::Int64 | DataType::Uint64 => i64::from(value).to_ne_bytes().to_vec(),
        DataType::Half => oracle::Format::HALF.encode(float).to_ne_bytes().to_vec(),
        DataType::Bfloat16 => oracle::Format::BFLOAT16.encode(float).to_ne_bytes().to_vec(),
        DataType::Float => float.to_ne_bytes().to_vec(),
        DataType::Double => f64::from(float).to_ne_bytes().to_vec(),
        DataType::F8E4M3 => vec![oracle::Format::F8E4M3.encode(float) as u8],
        DataType::F8E5M2 => vec![oracle::Format::F8E5M2.encode(float) as u8],
    }
}

/// Values at which something changes: zeros, the smallest and largest subnormal and normal numbers, one and its neighbours,
/// infinities, quiet and signalling NaN, all with either sign; of integers, the ends of their ranges.
fn specials(data_type: DataType) -> Vec<Vec<u8>> {
    let size = data_type.size_bytes();
    let sign = 1u64 << (8 * size - 1);
    // The lowest exponent bit and the bits of one.
    let (exponent, one) = match data_type {
        DataType::Half => (1 << 10, 15 << 10),
        DataType::Bfloat16 => (1 << 7, 127 << 7),
        DataType::Float => (1 << 23, 127 << 23),
        DataType::Double => (1 << 52, 1023 << 52),
        DataType::F8E4M3 => (1 << 3, 7 << 3),
        DataType::F8E5M2 => (1 << 2, 15 << 2),
        _ => (2, 4),
    };
    let infinity = sign - exponent;
    let magnitudes = [
        0,
        1,
        2,
        exponent / 2,
        exponent - 1,
        exponent,
        exponent + 1,
        2 * exponent,
        one - 1,
        one,
        one + 1,
        one + exponent / 2,
        infinity - exponent,
        infinity - 2,
        infinity - 1,
        infinity,
        infinity + 1,
        infinity + exponent / 2,
        sign - 2,
        sign - 1,
    ];
    magnitudes
        .iter()
        .flat_map(|magnitude| [*magnitude, magnitude | sign])
        .map(|bits| bits.to_le_bytes()[..size].to_vec())
        .collect()
}

/// Two sources in which every value of the first meets every value of the second.
fn pairs(first: &[Vec<u8>], second: &[Vec<u8>]) -> Case {
    let ours = first.iter().flat_map(|value| value.repeat(second.len())).collect();
    let theirs = second.concat().repeat(first.len());
    Case::simple(vec![ours, theirs])
}

const OPERATORS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

#[test]
fn special_values_meet_each_other() {
    for data_type in DataType::ALL {
        let specials = specials(data_type);
        let pairs = pairs(&specials, &specials);
        for op in OPERATORS.into_iter().chain([(-3i64).into(), 0.into()].map(ReduceOp::MulSum)) {
            pairs.check(data_type, op);
        }
    }
}

#[test]
fn every_pair_of_8_bit_floats() {
    let all: Vec<_> = (0..=u8::MAX).map(|bits| vec![bits]).collect();
    for data_type in [DataType::F8E4M3, DataType::F8E5M2] {
        for op in [ReduceOp::Sum, ReduceOp::Prod] {
            pairs(&all, &all).check(data_type, op);
        }
    }
}

#[test]
fn every_16_bit_float_meets_numbers_of_all_sizes() {
    let all: Vec<_> = (0..=u16::MAX).map(|bits| bits.to_ne_bytes().to_vec()).collect();
    for (data_type, format) in
        [(DataType::Half, oracle::Format::HALF), (DataType::Bfloat16, oracle::Format::BFLOAT16)]
    {
        let some =
            [0.0f32, 1.0, -0.333, 3e-6, -2049.0].map(|value| format.encode(value).to_ne_bytes().to_vec());
        pairs(&some, &all).check(data_type, ReduceOp::Sum);
        pairs(&some[2..4], &all).check(data_type, ReduceOp::Prod);
    }
}

/// All rounding to small formats of what 16 bits of a float can tell apart, and of values just beside.
#[test]
fn floats_are_rounded_as_the_oracle_does() {
    for data_type in [DataType::Half, DataType::Bfloat16, DataType::F8E4M3, DataType::F8E5M2] {
        // One, times a scalar: any float can be made.
        let one = one_of(data_type);
        for upper in (0..=u16::MAX).step_by(37) {
            for low in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001] {
                let scalar = f64::from(f32::from_bits(u32::from(upper) << 16 | low));
                Case::simple(vec![one.repeat(9)]).check(data_type, ReduceOp::MulSum(scalar.into()));
            }
        }
    }
}

fn one_of(data_type: DataType) -> Vec<u8> {
    match data_type {
        DataType::Half => half::f16::ONE.to_ne_bytes().to_vec(),
        DataType::Bfloat16 => half::bf16::ONE.to_ne_bytes().to_vec(),
        DataType::F8E4M3 => vec![0x38],
        _ => vec![0x3c],
    }
}

#[test]
fn streamed_targets_are_complete_whatever_their_alignment() {
    for data_type in [DataType::Int8, DataType::Bfloat16, DataType::Float, DataType::Double] {
        let size = data_type.size_bytes();
        for (elems, misalignments) in [
            (STREAM_MIN_BYTES / size, vec![0]),
            (STREAM_MIN_BYTES / size + 131, vec![8, 16, 24, 8]),
            (STREAM_MIN_BYTES / size + 70, vec![0, 3, 1, 56]),
            (STREAM_MIN_BYTES / size - 1, vec![0]),
        ] {
            let values: Vec<_> =
                (0..3 * elems).map(|index| moderate(data_type, (index * 31 % 128) as i16 - 64)).collect();
            let case = Case {
                targets: vec![true, false, true],
                misalignments,
                ..Case::simple(values.chunks(elems).map(<[_]>::concat).collect())
            };
            case.check(data_type, ReduceOp::Sum);
            Case { in_place: Some(1), ..case }.check(data_type, ReduceOp::Avg);
        }
    }
}

#[test]
fn no_elements_and_no_targets_are_fine() {
    Case::simple(vec![vec![], vec![]]).check(DataType::Half, ReduceOp::Sum);
    let case = Case { targets: vec![], ..Case::simple(vec![vec![1; 12], vec![2; 12]]) };
    case.check(DataType::Float, ReduceOp::Sum);
}

#[test]
#[should_panic(expected = "a reduction of no sources")]
fn no_sources_are_refused() {
    // SAFETY: there is no memory to be valid.
    unsafe { Reducer::new(DataType::Float, ReduceOp::Sum, 2).run(&[], &[], 1, true) };
}

prop_compose! {
    fn cases(data_type: DataType)
        (count in 1usize..=9, elems in prop_oneof![0usize..20, 20usize..300])
        (
            sources in prop::collection::vec(
                (prop::collection::vec(element(data_type), elems).prop_map(|elements| elements.concat()), any::<bool>()),
                count,
            ),
            misalignments in prop::collection::vec(0usize..64, 1..12),
            targets in prop::collection::vec(any::<bool>(), 1..4),
            in_place in prop::option::of(0..count),
            finish in any::<bool>(),
            ranks in prop_oneof![1u32..20, 1u32..1024],
        ) -> Case {
            Case { sources, misalignments, targets, in_place, finish, ranks }
        }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_case_matches_the_oracle(
        (data_type, op, case) in prop::sample::select(&DataType::ALL[..])
            .prop_flat_map(|data_type| (Just(data_type), operators(), cases(data_type)))
    ) {
        case.check(data_type, op);
    }

    #[test]
    fn copies_are_complete_and_stay_within_bounds(
        len in prop_oneof![0usize..300, STREAM_MIN_BYTES - 1..3 * STREAM_MIN_BYTES],
        misalignments in prop::collection::vec(0usize..64, 4),
        streams in prop::collection::vec(any::<bool>(), 0..4),
        seed in any::<u8>(),
        onto_itself in any::<bool>(),
    ) {
        let bytes: Vec<u8> = (0..len).map(|index| (index * 7) as u8 ^ seed).collect();
        let mut source = Buffer::new(&bytes, misalignments[3]);
        let mut results: Vec<_> =
            streams.iter().zip(&misalignments).map(|(_, &by)| Buffer::new(&vec![GUARD; len], by)).collect();
        let mut targets: Vec<_> =
            results.iter_mut().zip(&streams).map(|(result, &stream)| result.target(stream)).collect();
        if onto_itself {
            targets.push(source.target(true));
        }
        // SAFETY: all buffers hold `len` bytes and are separate, but for the source itself.
        unsafe { copy(source.source(true).ptr, &targets, len) };
        for result in results.iter().chain([&source]) {
            prop_assert_eq!(result.contents(), &bytes[..]);
        }
    }
}
