//! Random inputs that every rank can make for every other, and checking results against the core's oracle.
//!
//! Element `i` of rank `r` depends on the seed, `r` and `i` alone, so a rank knows what the others contributed without being
//! told. Large buffers are made and checked in blocks, so that checking needs little memory.

use std::ops::Range;

use rccl_core::{
    Algorithm, Collective, DataType, Group, Rank, Request, oracle, planner::PART_ALIGN_BYTES, split,
};

/// Bytes that are checked at a time.
const BLOCK_BYTES: u64 = 1 << 20;

/// The inputs of one operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    pub(super) data_type: DataType,
    pub(super) seed: u64,
    pub(super) values: Values,
}

/// What elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// Any bits of integers, and floating numbers whose sums show in which order they were added.
    Any,
    /// Floating numbers: this many times an integer from -3 to 4. Sums over up to 32 ranks are exact in every order, and so
    /// are averages over as many ranks: for libraries that promise no order.
    Multiples(u32),
}

/// How to turn 8 random bytes into finite elements of a type: what to keep of each, and what to add.
///
/// Of a floating element, sign, mantissa and the lowest three bits of the exponent are kept, and the exponent is moved so that
/// magnitudes lie between 1/16 and 16: enough spread for the order of additions to show, little enough for sums and
/// products of a few ranks to stay finite in most types.
const fn pattern(data_type: DataType) -> (u64, u64) {
    let (size, mantissa_bits, bias) = match data_type {
        DataType::F8E4M3 => (1, 3, 7),
        DataType::F8E5M2 => (1, 2, 15),
        DataType::Half => (2, 10, 15),
        DataType::Bfloat16 => (2, 7, 127),
        DataType::Float => (4, 23, 127),
        DataType::Double => (8, 52, 1023),
        _ => return (u64::MAX, 0),
    };
    let sign = 1_u64 << (size * 8 - 1);
    let keep = sign | ((1 << (mantissa_bits + 3)) - 1);
    let add = (bias - 4) << mantissa_bits;
    // The same for each of the elements in 8 bytes: 0x0101... times a byte, and so on.
    let each = u64::MAX / (u64::MAX >> (64 - size * 8));
    (keep * each, add * each)
}

/// The bytes of a number that the type holds exactly, the rest 0.
fn encoded(data_type: DataType, value: f32) -> [u8; 8] {
    let bits = match data_type {
        DataType::Half => u64::from(oracle::Format::HALF.encode(value)),
        DataType::Bfloat16 => u64::from(oracle::Format::BFLOAT16.encode(value)),
        DataType::Float => u64::from(value.to_bits()),
        DataType::Double => f64::from(value).to_bits(),
        other => unreachable!("{other} elements are never multiples"),
    };
    bits.to_le_bytes()
}

/// SplitMix64's finisher (Steele, Lea, Flood 2014).
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Data {
    /// Writes the bytes of `rank`'s input from byte `start` on, a multiple of 8, to `out`.
    pub(super) fn fill_from(self, rank: Rank, start: u64, out: &mut [u8]) {
        if let Values::Multiples(times) = self.values {
            return self.fill_multiples(times, rank, start, out);
        }
        let (keep, add) = pattern(self.data_type);
        for (random, bytes) in self.random(rank, start).zip(out.chunks_mut(8)) {
            let value = ((random & keep) + add).to_le_bytes();
            bytes.copy_from_slice(&value[..bytes.len()]);
        }
    }

    /// Random words, one for each 8 bytes of `rank`'s input from byte `start` on.
    fn random(self, rank: Rank, start: u64) -> impl Iterator<Item = u64> {
        let stream = mix(self.seed ^ mix(u64::from(rank.0) + 1));
        (start / 8..).map(move |word| mix(stream.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
    }

    fn fill_multiples(self, times: u32, rank: Rank, start: u64, out: &mut [u8]) {
        let size = self.data_type.size_bytes();
        let table: [[u8; 8]; 8] =
            std::array::from_fn(|index| encoded(self.data_type, (index as f32 - 3.0) * times as f32));
        for (random, bytes) in self.random(rank, start).zip(out.chunks_mut(8)) {
            for (index, element) in bytes.chunks_mut(size).enumerate() {
                let value = &table[(random >> (3 * index)) as usize % 8];
                element.copy_from_slice(&value[..element.len()]);
            }
        }
    }

    /// Writes `rank`'s whole input.
    pub(super) fn fill(self, rank: Rank, out: &mut [u8]) {
        self.fill_from(rank, 0, out);
    }

    /// The bytes `range` of `rank`'s input.
    fn bytes(self, rank: Rank, range: Range<u64>) -> Vec<u8> {
        let start = range.start & !7;
        let mut bytes = vec![0; (range.end - start) as usize];
        self.fill_from(rank, start, &mut bytes);
        bytes.drain(..(range.start - start) as usize);
        bytes
    }

    /// How many elements of `output`, which `group`'s member got from `request`, differ from what they should be.
    pub(super) fn wrong(self, group: Group, request: &Request, algorithm: Algorithm, output: &[u8]) -> u64 {
        let size = request.data_type.size_bytes() as u64;
        let len = request.output_len(group);
        assert_eq!(output.len() as u64, len * size, "the output's length is the request's");
        let mut wrong = 0;
        for piece in pieces(group, request, algorithm) {
            let expected = self.expected(group, request, &piece);
            let ours = &output[(piece.output.start * size) as usize..(piece.output.end * size) as usize];
            wrong += oracle::wrong(request.data_type, ours, &expected);
        }
        wrong
    }

    /// What a piece of the output should be.
    fn expected(self, group: Group, request: &Request, piece: &Piece) -> Vec<u8> {
        let size = request.data_type.size_bytes() as u64;
        let len = piece.output.end - piece.output.start;
        let input = |rank| self.bytes(rank, piece.input * size..(piece.input + len) * size);
        match piece.from {
            Origin::Rank(rank) => input(rank),
            Origin::AllInOrder => {
                let inputs: Vec<Vec<u8>> = group.ranks().map(input).collect();
                let sources: Vec<_> =
                    inputs.iter().map(|bytes| oracle::Contribution { bytes, raw: true }).collect();
                let mut result = vec![0; (len * size) as usize];
                let op = request.op.expect("a reduction has an operator");
                oracle::reduce(request.data_type, op, &sources, Some(group.size()), &mut result);
                result
            }
            Origin::AllAround { first } => self.around(group, request, first, &input),
        }
    }

    /// As [`Data::wrong`], of the part `output` of an all-reduce in rank order that starts with element `first`.
    pub(super) fn wrong_part(self, group: Group, request: &Request, first: u64, output: &[u8]) -> u64 {
        let size = request.data_type.size_bytes();
        let mut start = first;
        let mut wrong = 0;
        for ours in output.chunks(BLOCK_BYTES as usize) {
            let end = start + (ours.len() / size) as u64;
            let piece = Piece { output: start..end, input: start, from: Origin::AllInOrder };
            wrong += oracle::wrong(request.data_type, ours, &self.expected(group, request, &piece));
            start = end;
        }
        wrong
    }

    /// The contributions of all ranks from `first` on, rounded at every hop.
    fn around(
        self,
        group: Group,
        request: &Request,
        first: Rank,
        input: &dyn Fn(Rank) -> Vec<u8>,
    ) -> Vec<u8> {
        let op = request.op.expect("a reduction has an operator");
        let order = Group::new(group.size(), first.0).expect("a rank of the group");
        let mut partial = input(first);
        for hop in 1..group.size() {
            let own = input(order.after(hop));
            let sources = [
                oracle::Contribution { bytes: &partial, raw: hop == 1 },
                oracle::Contribution { bytes: &own, raw: true },
            ];
            let finish = (hop == group.size() - 1).then_some(group.size());
            let mut sum = vec![0; partial.len()];
            oracle::reduce(request.data_type, op, &sources, finish, &mut sum);
            partial = sum;
        }
        partial
    }
}

/// A part of the output whose elements come about in the same way.
struct Piece {
    /// Elements of the output.
    output: Range<u64>,
    /// The element of the inputs that the first of them comes from.
    input: u64,
    from: Origin,
}

#[derive(Clone, Copy)]
enum Origin {
    /// One rank's input, bit for bit.
    Rank(Rank),
    /// All inputs, combined in rank order and rounded once.
    AllInOrder,
    /// All inputs, combined from one rank on around the ring and rounded at every hop.
    AllAround { first: Rank },
}

/// The output cut into pieces of at most [`BLOCK_BYTES`].
fn pieces(group: Group, request: &Request, algorithm: Algorithm) -> Vec<Piece> {
    let (me, count) = (group.rank(), request.count);
    let around = algorithm == Algorithm::Ring && group.size() > 1;
    let whole = |from| vec![Piece { output: 0..request.output_len(group), input: 0, from }];
    let parts = match request.collective {
        Collective::AllReduce if around => {
            let align = PART_ALIGN_BYTES / request.data_type.size_bytes() as u64;
            let part = |first: Rank| {
                let output = split::share(count, u64::from(group.size()), u64::from(first.0), align);
                Piece { input: output.start, output, from: Origin::AllAround { first } }
            };
            group.ranks().map(part).collect()
        }
        Collective::AllReduce => whole(Origin::AllInOrder),
        Collective::ReduceScatter => {
            let from = if around { Origin::AllAround { first: group.after(1) } } else { Origin::AllInOrder };
            vec![Piece { output: 0..count, input: count * u64::from(me.0), from }]
        }
        Collective::AllGather => group
            .ranks()
            .map(|rank| {
                let start = count * u64::from(rank.0);
                Piece { output: start..start + count, input: 0, from: Origin::Rank(rank) }
            })
            .collect(),
        Collective::Broadcast => whole(Origin::Rank(request.root.unwrap_or(Rank(0)))),
        Collective::SendRecv => request.from.map_or_else(Vec::new, |from| whole(Origin::Rank(from))),
    };
    let block = BLOCK_BYTES / request.data_type.size_bytes() as u64;
    let blocks = |part: Piece| {
        let len = part.output.end - part.output.start;
        (0..split::segments(len, block)).map(move |index| {
            let range = split::segment(len, block, index);
            let output = part.output.start + range.start..part.output.start + range.end;
            Piece { output, input: part.input + range.start, from: part.from }
        })
    };
    parts.into_iter().flat_map(blocks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rccl_core::ReduceOp;

    fn data(data_type: DataType) -> Data {
        Data { data_type, seed: 7, values: Values::Any }
    }

    fn inputs(data: Data, ranks: u32, bytes: usize) -> Vec<Vec<u8>> {
        let input = |rank| {
            let mut bytes = vec![0; bytes];
            data.fill(Rank(rank), &mut bytes);
            bytes
        };
        (0..ranks).map(input).collect()
    }

    #[test]
    fn floating_elements_are_finite_and_of_moderate_size() {
        let mut bytes = vec![0; 4096];
        data(DataType::Float).fill(Rank(3), &mut bytes);
        let magnitudes = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).abs());
        assert!(magnitudes.clone().all(|x| (1.0 / 16.0..16.0).contains(&x)));
        assert!(magnitudes.clone().any(|x| x < 0.25) && magnitudes.clone().any(|x| x > 4.0));
        data(DataType::Double).fill(Rank(3), &mut bytes);
        assert!(
            bytes
                .chunks_exact(8)
                .all(|b| { (1.0 / 16.0..16.0).contains(&f64::from_le_bytes(b.try_into().unwrap()).abs()) })
        );
        data(DataType::Half).fill(Rank(3), &mut bytes);
        assert!(bytes.chunks_exact(2).all(|b| {
            (1.0 / 16.0..16.0).contains(&half::f16::from_le_bytes(b.try_into().unwrap()).to_f32().abs())
        }));
        data(DataType::F8E4M3).fill(Rank(3), &mut bytes);
        // Exponents 3 to 10 of 0 to 15; 15 is where NaN is.
        assert!(bytes.iter().all(|b| (3..=10).contains(&(b >> 3 & 15))));
    }

    #[test]
    fn parts_are_parts_of_the_whole() {
        let data = data(DataType::Uint8);
        let whole = data.bytes(Rank(2), 0..1000);
        for (start, end) in [(0, 1000), (1, 2), (7, 9), (8, 16), (13, 999), (5, 5)] {
            assert_eq!(data.bytes(Rank(2), start..end), whole[start as usize..end as usize]);
        }
        assert_ne!(data.bytes(Rank(1), 0..1000), whole);
        assert_ne!(Data { seed: 8, ..data }.bytes(Rank(2), 0..1000), whole);
    }

    /// Results of whole buffers by the oracle are right, block by block, and a single changed bit is not.
    fn all_reduce_agrees(data_type: DataType, ranks: u32, count: u64) {
        let data = data(data_type);
        let inputs = inputs(data, ranks, count as usize * data_type.size_bytes());
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let group = Group::new(ranks, ranks - 1).unwrap();
        for algorithm in Algorithm::ALL {
            let request = Request::all_reduce(count, data_type, ReduceOp::Avg);
            let mut output = oracle::all_reduce(algorithm, data_type, ReduceOp::Avg, &inputs);
            assert_eq!(data.wrong(group, &request, algorithm, &output), 0, "{algorithm} {data_type} {ranks}");
            *output.last_mut().unwrap() ^= 1;
            assert_eq!(data.wrong(group, &request, algorithm, &output), 1);
        }
    }

    #[test]
    fn all_reduce_agrees_with_the_oracle() {
        for data_type in [DataType::Half, DataType::Float, DataType::Int8, DataType::F8E4M3] {
            for (ranks, count) in [(1, 5), (2, 1000), (3, 301), (5, 64)] {
                all_reduce_agrees(data_type, ranks, count);
            }
        }
    }

    #[test]
    fn several_blocks_agree_with_the_oracle() {
        all_reduce_agrees(DataType::Double, 2, BLOCK_BYTES / 8 + 9);
    }

    #[test]
    fn the_other_collectives_agree_with_their_definitions() {
        let (ranks, count, data_type) = (3, 7, DataType::Bfloat16);
        let data = data(data_type);
        let bytes = count as usize * 2;
        for rank in 0..ranks {
            let group = Group::new(ranks, rank).unwrap();
            let shorts = inputs(data, ranks, bytes);
            let gather = Request::all_gather(count, data_type);
            assert_eq!(data.wrong(group, &gather, Algorithm::Ring, &shorts.concat()), 0);
            let broadcast = Request::broadcast(count, data_type, Rank(2));
            assert_eq!(data.wrong(group, &broadcast, Algorithm::Oneshot, &shorts[2]), 0);
            assert_eq!(data.wrong(group, &broadcast, Algorithm::Oneshot, &shorts[1]), count);
            let send =
                Request::send_recv(count, Some(group.after(1)), count, Some(group.before(1)), data_type);
            assert_eq!(data.wrong(group, &send, Algorithm::Oneshot, &shorts[group.before(1).index()]), 0);

            let longs = inputs(data, ranks, bytes * ranks as usize);
            let longs: Vec<&[u8]> = longs.iter().map(Vec::as_slice).collect();
            let scatter = Request::reduce_scatter(count, data_type, ReduceOp::Prod);
            for algorithm in [Algorithm::Oneshot, Algorithm::Ring] {
                let outputs = oracle::reduce_scatter(algorithm, data_type, ReduceOp::Prod, &longs);
                assert_eq!(data.wrong(group, &scatter, algorithm, &outputs[rank as usize]), 0);
            }
        }
    }

    #[test]
    fn parts_of_an_output_are_judged_alone() {
        let (data, group) = (data(DataType::Half), Group::new(2, 1).unwrap());
        let count = BLOCK_BYTES / 2 + 100;
        let inputs = inputs(data, 2, count as usize * 2);
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let request = Request::all_reduce(count, DataType::Half, ReduceOp::Sum);
        let mut output = oracle::all_reduce(Algorithm::Oneshot, DataType::Half, ReduceOp::Sum, &inputs);
        assert_eq!(data.wrong_part(group, &request, 0, &output), 0);
        output[2000] ^= 1;
        assert_eq!(data.wrong_part(group, &request, 0, &output), 1);
        assert_eq!(data.wrong_part(group, &request, 1000, &output[2000..4000]), 1);
        assert_eq!(data.wrong_part(group, &request, 1001, &output[2002..]), 0);
    }

    /// Added in any order, and averaged before or after adding, multiples give the same bits.
    #[test]
    fn multiples_are_exact_in_every_order() {
        let group = Group::new(6, 0).unwrap();
        for data_type in [DataType::Half, DataType::Bfloat16, DataType::Float] {
            for (op, times) in [(ReduceOp::Sum, 1), (ReduceOp::Avg, 6)] {
                let data = Data { values: Values::Multiples(times), ..data(data_type) };
                let inputs = inputs(data, 6, 999 * data_type.size_bytes());
                assert_ne!(inputs[0], inputs[1]);
                let request = Request::all_reduce(999, data_type, op);
                for algorithm in Algorithm::ALL {
                    let mut turned: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                    turned.rotate_left(2);
                    let output = oracle::all_reduce(algorithm, data_type, op, &turned);
                    assert_eq!(data.wrong(group, &request, Algorithm::Oneshot, &output), 0, "{algorithm}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_never_wrong() {
        let group = Group::new(2, 0).unwrap();
        let request = Request::all_reduce(0, DataType::Float, ReduceOp::Sum);
        assert_eq!(data(DataType::Float).wrong(group, &request, Algorithm::Ring, &[]), 0);
    }
}
