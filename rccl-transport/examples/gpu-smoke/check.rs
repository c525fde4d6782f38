//! Exact results: every bit of every element, and no byte beside them.

use half::{bf16, f16};
use rccl_core::DataType;
use rccl_transport::{
    Error, Result,
    cuda::relay::{BulkShape, Call, Protocol, StripeShape},
};

use crate::rank::{LL, MARGIN_BYTES, Rank};

const UNTOUCHED: u8 = 0xa5;

/// Element `index` of `rank`'s input: of either sign and magnitudes from 2^-8 to 2^8, so that order and rounding matter.
fn value(rank: u32, index: u64, seed: u64) -> f32 {
    let mut x = index.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ u64::from(rank).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        ^ seed;
    x ^= x >> 31;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    let exponent = 119 + (x >> 60) as u32;
    f32::from_bits((x as u32 & 0x807f_ffff) | exponent << 23)
}

fn narrow(data_type: DataType, value: f32, bytes: &mut Vec<u8>) {
    match data_type {
        DataType::Half => bytes.extend(f16::from_f32(value).to_le_bytes()),
        DataType::Bfloat16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
        _ => bytes.extend(value.to_le_bytes()),
    }
}

fn rounded(data_type: DataType, value: f32) -> f32 {
    match data_type {
        DataType::Half => f16::from_f32(value).to_f32(),
        DataType::Bfloat16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

pub(crate) fn contribution(rank: u32, data_type: DataType, count: u64, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count as usize * data_type.size_bytes());
    (0..count).for_each(|index| narrow(data_type, value(rank, index, seed), &mut bytes));
    bytes
}

/// The sum in float, in rank order, rounded once: what the device must give, bit for bit.
fn expected(ranks: u32, call: &Call, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(call.count as usize * call.data_type.size_bytes());
    for index in 0..call.count {
        let mut sum = rounded(call.data_type, value(0, index, seed));
        for rank in 1..ranks {
            sum += rounded(call.data_type, value(rank, index, seed));
        }
        narrow(call.data_type, if call.average { sum / ranks as f32 } else { sum }, &mut bytes);
    }
    bytes
}

/// Runs one call twice (so that both halves and later slots are used) and compares all of it.
pub(crate) fn run(rank: &Rank, call: &Call, protocol: Protocol, what: &str) -> Result<()> {
    for seed in 0..2 {
        let input = contribution(rank.rank(), call.data_type, call.count, seed);
        let around = vec![UNTOUCHED; MARGIN_BYTES.min(64)];
        if call.input != call.output {
            rank.upload(call.output, &vec![UNTOUCHED; input.len()])?;
        }
        rank.upload(call.input, &input)?;
        rank.upload(call.output + input.len() as u64, &around)?;
        rank.arena.barrier()?;
        rank.enqueue(call, protocol)?;
        rank.finish()?;
        let mut have = vec![0; input.len() + around.len()];
        rank.download(call.output, &mut have)?;
        let mut want = expected(rank.ranks(), call, seed);
        want.extend(&around);
        if let Some(at) = have.iter().zip(&want).position(|(have, want)| have != want) {
            let wrong = have.iter().zip(&want).filter(|(have, want)| have != want).count();
            return Err(Error::Invalid {
                what: format!("rank {}, {what}, {call:?}, {protocol:?}, seed {seed}", rank.rank()),
                value: format!("{wrong} wrong bytes, the first at {at} of {}", input.len()),
                reason: format!(
                    "have {:x?}, want {:x?}",
                    &have[at..][..16.min(have.len() - at)],
                    &want[at..][..16.min(want.len() - at)]
                ),
            });
        }
        rank.arena.barrier()?;
    }
    Ok(())
}

/// Every protocol, type and operator, with counts and addresses that are not round. Returns the number of cases.
pub(crate) fn all(rank: &Rank) -> Result<usize> {
    let small = StripeShape { stripes: 3, workers: 64, chunk_bytes: 1024, lag: 1 };
    let wide = StripeShape { stripes: 16, workers: 256, chunk_bytes: 8192, lag: 3 };
    let few = BulkShape { chunk_bytes: 64 << 10, slots: 2 };
    let cases: [(&str, Protocol, &[u64]); 6] = [
        ("ll", LL, &[1, 2, 3, 5, 31, 257, 4099, 20_001]),
        ("stripe, small", Protocol::Stripe(small), &[1, 7, 1000, 4099, 50_001]),
        ("stripe, wide", Protocol::Stripe(wide), &[1, 30_000, 1_000_003]),
        ("relay, small", Protocol::Relay(small), &[1, 7, 1000, 4099, 50_001]),
        ("relay, wide", Protocol::Relay(wide), &[33, 1_000_003]),
        ("bulk", Protocol::Bulk(few), &[1, 16_385, 300_001]),
    ];
    let mut done = 0;
    for (what, protocol, counts) in cases {
        for &count in counts {
            for data_type in [DataType::Float, DataType::Half, DataType::Bfloat16] {
                for (average, shift, in_place) in
                    [(false, 0, false), (true, 1, false), (false, 3, true), (true, 0, true)]
                {
                    let shift = shift * data_type.size_bytes() as u64;
                    let input = rank.input.start() + shift;
                    let output = if in_place { input } else { rank.output.start() + 3 * shift };
                    run(rank, &Call { data_type, count, input, output, average }, protocol, what)?;
                    done += 1;
                }
            }
        }
    }
    Ok(done)
}
