//! Host reduction beside a plain copy. Throughput is that of the result: a sum of `k` sources reads `k` times as much.
//!
//! `cargo bench -p rccl-transport --bench reduce [-- FILTER]`

use std::{hint::black_box, time::Duration};

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use rccl_core::{DataType, ReduceOp};
use rccl_transport::reduce::{Reducer, Source, Target, copy};

const SIZES: [(&str, usize); 3] = [("4 KiB", 4 << 10), ("256 KiB", 256 << 10), ("64 MiB", 64 << 20)];
const DATA_TYPES: [DataType; 5] =
    [DataType::Float, DataType::Double, DataType::Half, DataType::Bfloat16, DataType::Int32];

/// Memory that starts on a page, some lines further for each buffer: where all start at the same place in a page, the CPU
/// mistakes writes to one for writes to another.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new(len: usize, number: usize) -> Self {
        // Small whole numbers in every type: no subnormal numbers, no overflow. Writing them maps the pages.
        let mut bytes = vec![0; len + 8192];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (index * 7 + number) as u8 & 0x3f;
        }
        let start = bytes.as_ptr().addr().wrapping_neg() % 4096 + number * 13 * 64;
        Self { bytes, start }
    }

    fn source(&self) -> Source {
        Source { ptr: self.bytes[self.start..].as_ptr(), raw: true }
    }

    fn target(&mut self, stream: bool) -> Target {
        Target { ptr: self.bytes[self.start..].as_mut_ptr(), stream }
    }
}

fn copies(group: &mut BenchmarkGroup<'_, WallTime>, len: usize, stream: bool) {
    let (source, mut result) = (Buffer::new(len, 0), Buffer::new(len, 1));
    let target = result.target(stream);
    group.bench_function(if stream { "copy, streamed" } else { "memcpy" }, |bencher| {
        // SAFETY: both buffers are of `len` bytes and separate.
        bencher.iter(|| unsafe { copy(black_box(source.source().ptr), black_box(&[target]), len) });
    });
}

fn sums(
    group: &mut BenchmarkGroup<'_, WallTime>,
    data_type: DataType,
    count: usize,
    len: usize,
    stream: bool,
) {
    let buffers: Vec<_> = (0..count).map(|number| Buffer::new(len, number)).collect();
    let mut result = Buffer::new(len, count);
    let sources: Vec<_> = buffers.iter().map(Buffer::source).collect();
    let targets = [result.target(stream)];
    let reducer = Reducer::new(data_type, ReduceOp::Sum, count as u32);
    let elems = len / data_type.size_bytes();
    let name = format!("{data_type}, {count} sources{}", if stream { ", streamed" } else { "" });
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            // SAFETY: all buffers are of `len` bytes and separate.
            unsafe { reducer.run(black_box(&sources), black_box(&targets), elems, true) };
        });
    });
}

fn reduce(criterion: &mut Criterion) {
    for (name, len) in SIZES {
        let mut group = criterion.benchmark_group(name);
        group
            .sample_size(20)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1));
        group.throughput(Throughput::Bytes(len as u64));
        let large = len > 1 << 20;
        copies(&mut group, len, false);
        if large {
            copies(&mut group, len, true);
        }
        for data_type in DATA_TYPES {
            for count in [2, 4] {
                sums(&mut group, data_type, count, len, false);
                if large {
                    sums(&mut group, data_type, count, len, true);
                }
            }
        }
        group.finish();
    }
    let mut group = criterion.benchmark_group("two floats");
    sums(&mut group, DataType::Float, 2, 8, false);
}

criterion_group!(benches, reduce);
criterion_main!(benches);
