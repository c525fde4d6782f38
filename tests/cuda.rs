//! All-reduce on real devices: every bit of every element. Without a driver or enough devices the tests count as ignored.

mod common;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use half::{bf16, f16};
use libtest_mimic::{Arguments, Failed, Trial};
use rccl::{
    Communicator, DataType, Error, ReduceOp, TransportChoice,
    cuda::{CudaCommunicator, CudaOptions, CudaProtocol},
};
use rccl_transport::cuda::{Device, DeviceMemory, Driver, Graph, PrimaryContext, Stream};

/// Waiting kernels must be gone within this time after an abort.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);
const MARGIN_BYTES: usize = 64;
const UNTOUCHED: u8 = 0xa5;

type Body = fn(u32) -> Result<(), Failed>;

fn main() -> ExitCode {
    let devices = Driver::open().and_then(|driver| Device::count(&driver)).unwrap_or(0);
    if devices == 0 {
        eprintln!("no GPU here: the tests of devices are ignored");
    }
    let trial = |name: &str, ranks: u32, body: Body| {
        Trial::test(format!("{name}_of_{ranks}"), move || body(ranks)).with_ignored_flag(devices == 0)
    };
    let mut trials = Vec::new();
    for ranks in [2, 4] {
        trials.push(trial("sizes_and_types", ranks, sizes_and_types));
        trials.push(trial("every_protocol", ranks, every_protocol));
        trials.push(trial("capture_is_refused", ranks, capture_is_refused));
    }
    trials.push(trial("two_streams", 2, two_streams));
    trials.push(trial("abort_ends_kernels", 2, |_| aborts(CudaProtocol::Ll)));
    trials.push(trial("abort_ends_stripes", 2, |_| aborts(CudaProtocol::Stripe)));
    trials.push(trial("abort_ends_copies", 2, |_| aborts(CudaProtocol::Bulk)));
    trials.push(trial("wrong_arguments", 2, wrong_arguments));
    let mut arguments = Arguments::from_args();
    // Kernels of several tests would wait for room on the devices.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A rank with its device side and memory.
struct Side<'a> {
    communicator: &'a Communicator,
    cuda: CudaCommunicator,
    context: PrimaryContext,
    stream: Stream,
}

fn options(protocol: Option<CudaProtocol>) -> CudaOptions {
    CudaOptions { protocol, allow_shared_gpu: true, ..CudaOptions::default() }
}

/// Runs `body` on every rank of a new group; rank r has device r modulo their number.
fn on_devices(ranks: u32, protocol: Option<CudaProtocol>, body: impl Fn(&Side) -> rccl::Result<()> + Sync) {
    let results = common::group(ranks, &common::options(TransportChoice::Auto, None), |communicator| {
        let driver = Driver::open()?;
        let ordinal = communicator.rank() % Device::count(&driver)?;
        let context = Device::by_ordinal(&driver, ordinal)?.primary_context()?;
        let cuda = communicator.cuda(ordinal, &options(protocol))?;
        let stream = Stream::new(&context)?;
        let side = Side { communicator, cuda, context, stream };
        body(&side).inspect_err(|_| side.communicator.abort())
    });
    for (rank, result) in results.into_iter().enumerate() {
        result.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

impl Side<'_> {
    fn upload(&self, to: u64, bytes: &[u8]) -> rccl::Result<()> {
        // SAFETY: `bytes` outlives the copy, which is waited for.
        unsafe { self.stream.copy(to, bytes.as_ptr().addr() as u64, bytes.len()) }?;
        Ok(self.stream.wait(PATIENCE)?)
    }

    fn download(&self, from: u64, len: usize) -> rccl::Result<Vec<u8>> {
        let mut bytes = vec![0_u8; len];
        // SAFETY: `bytes` outlives the copy, which is waited for.
        unsafe { self.stream.copy(bytes.as_mut_ptr().addr() as u64, from, len) }?;
        self.stream.wait(PATIENCE)?;
        Ok(bytes)
    }

    fn enqueue(&self, case: &Case, stream: &Stream) -> rccl::Result<()> {
        let Case { input, output, count, data_type, op, .. } = *case;
        // SAFETY: the buffers of a case live until its stream is waited for.
        unsafe { self.cuda.all_reduce(input, output, count, data_type, op, stream.raw().0) }
    }

    /// Prepares the buffers.
    fn fill(&self, case: &Case) -> rccl::Result<()> {
        let len = case.count as usize * case.data_type.size_bytes();
        self.upload(case.output, &vec![UNTOUCHED; len + MARGIN_BYTES])?;
        self.upload(case.input, &case.contribution(self.communicator.rank()))
    }

    fn verify(&self, case: &Case) -> rccl::Result<()> {
        let mut want = case.expected(self.communicator.size());
        want.extend([UNTOUCHED; MARGIN_BYTES]);
        let have = self.download(case.output, want.len())?;
        let wrong = have.iter().zip(&want).position(|(have, want)| have != want);
        assert_eq!(wrong, None, "the first wrong byte of rank {} in {case:?}", self.communicator.rank());
        Ok(())
    }

    fn run(&self, case: &Case) -> rccl::Result<()> {
        self.fill(case)?;
        self.enqueue(case, &self.stream)?;
        self.stream.wait(PATIENCE)?;
        self.verify(case)
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    input: u64,
    output: u64,
    count: u64,
    data_type: DataType,
    op: ReduceOp,
    seed: u64,
}

impl Case {
    fn round(&self, value: f32) -> (f32, [u8; 4]) {
        let mut bytes = [0; 4];
        let rounded = match self.data_type {
            DataType::Half => {
                let value = f16::from_f32(value);
                bytes[..2].copy_from_slice(&value.to_le_bytes());
                value.to_f32()
            }
            DataType::Bfloat16 => {
                let value = bf16::from_f32(value);
                bytes[..2].copy_from_slice(&value.to_le_bytes());
                value.to_f32()
            }
            _ => {
                bytes = value.to_le_bytes();
                value
            }
        };
        (rounded, bytes)
    }

    /// Of either sign and magnitudes from 2^-8 to 2^8, so that order and rounding matter.
    fn value(&self, rank: u32, index: u64) -> (f32, [u8; 4]) {
        let mut x = index.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ u64::from(rank).wrapping_mul(0xbf58_476d_1ce4_e5b9)
            ^ self.seed;
        x ^= x >> 31;
        x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
        let exponent = 119 + (x >> 60) as u32;
        self.round(f32::from_bits((x as u32 & 0x807f_ffff) | exponent << 23))
    }

    fn bytes(&self, value: impl Fn(u64) -> [u8; 4]) -> Vec<u8> {
        let size = self.data_type.size_bytes();
        let mut bytes = Vec::with_capacity(self.count as usize * size);
        (0..self.count).for_each(|index| bytes.extend(&value(index)[..size]));
        bytes
    }

    fn contribution(&self, rank: u32) -> Vec<u8> {
        self.bytes(|index| self.value(rank, index).1)
    }

    /// The sum in float, in rank order, rounded once.
    fn expected(&self, ranks: u32) -> Vec<u8> {
        self.bytes(|index| {
            let first = self.value(0, index).0;
            let sum = (1..ranks).fold(first, |sum, rank| sum + self.value(rank, index).0);
            self.round(if self.op == ReduceOp::Avg { sum / ranks as f32 } else { sum }).1
        })
    }
}

const TYPES: [DataType; 3] = [DataType::Float, DataType::Half, DataType::Bfloat16];

fn cases(side: &Side, sizes: &[usize]) -> rccl::Result<()> {
    let most = sizes.iter().max().unwrap_or(&0) + 4096;
    let (input, output) = (DeviceMemory::new(&side.context, most)?, DeviceMemory::new(&side.context, most)?);
    for &bytes in sizes {
        for data_type in TYPES {
            let size = data_type.size_bytes() as u64;
            for (op, shift, in_place) in
                [(ReduceOp::Sum, 0, false), (ReduceOp::Avg, 1, false), (ReduceOp::Sum, 3, true)]
            {
                let input = input.start() + shift * size;
                let output = if in_place { input } else { output.start() + 3 * shift * size };
                let count = (bytes as u64 / size).max(1);
                side.run(&Case { input, output, count, data_type, op, seed: bytes as u64 })?;
            }
        }
    }
    Ok(())
}

fn sizes_and_types(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, None, |side| {
        cases(side, &[8, 1000, 32 << 10, 512 << 10, (512 << 10) + 4, 1 << 20, (1 << 20) + 12, 5 << 20])?;
        cases(side, &[64 << 20])
    });
    Ok(())
}

fn every_protocol(ranks: u32) -> Result<(), Failed> {
    for protocol in [CudaProtocol::Ll, CudaProtocol::Stripe, CudaProtocol::Relay, CudaProtocol::Bulk] {
        on_devices(ranks, Some(protocol), |side| cases(side, &[4, 12_340, 200_004, 3_000_012]));
    }
    Ok(())
}

/// A stream that is being captured is refused, and the communicator goes on working.
fn capture_is_refused(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, None, |side| {
        let memory = || DeviceMemory::new(&side.context, 4096 + MARGIN_BYTES);
        let (input, output) = (memory()?, memory()?);
        let (input, output) = (input.start(), output.start());
        let case =
            Case { input, output, count: 1000, data_type: DataType::Float, op: ReduceOp::Sum, seed: 1 };
        let mut refused = None;
        let _graph = Graph::capture(&side.stream, || {
            refused = side.enqueue(&case, &side.stream).err();
            Ok(())
        })?;
        let error = refused.expect("capturing is refused").to_string();
        assert!(error.contains("captured into a graph"), "{error}");
        side.run(&case)
    });
    Ok(())
}

fn two_streams(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, None, |side| {
        let second = Stream::new(&side.context)?;
        let memory = || DeviceMemory::new(&side.context, (2 << 20) + MARGIN_BYTES);
        let (a, b) = ([memory()?, memory()?], [memory()?, memory()?]);
        let case = |pair: &[DeviceMemory; 2], count, seed| {
            let (input, output) = (pair[0].start(), pair[1].start());
            Case { input, output, count, data_type: DataType::Half, op: ReduceOp::Sum, seed }
        };
        for count in [5, 300_000, 1_000_000] {
            let (first, other) = (case(&a, count, 7), case(&b, count, 8));
            side.fill(&first)?;
            side.fill(&other)?;
            for _ in 0..20 {
                side.enqueue(&first, &side.stream)?;
                side.enqueue(&other, &second)?;
            }
            side.stream.wait(PATIENCE)?;
            second.wait(PATIENCE)?;
            side.verify(&first)?;
            side.verify(&other)?;
        }
        Ok(())
    });
    Ok(())
}

/// Rank 0 alone calls, so that its device waits; rank 1 aborts.
fn aborts(protocol: CudaProtocol) -> Result<(), Failed> {
    on_devices(2, Some(protocol), |side| {
        let memory = DeviceMemory::new(&side.context, 32 << 20)?;
        let count = if protocol == CudaProtocol::Ll { 1000 } else { 8 << 20 };
        let start = memory.start();
        let case = Case {
            input: start,
            output: start,
            count,
            data_type: DataType::Float,
            op: ReduceOp::Sum,
            seed: 0,
        };
        if side.communicator.rank() == 0 {
            side.enqueue(&case, &side.stream)?;
            assert!(!side.stream.is_idle()?, "it waits for rank 1");
        }
        side.communicator.barrier()?;
        let aborted = Instant::now();
        if side.communicator.rank() == 1 {
            side.communicator.abort();
        }
        side.stream.wait(ABORT_LIMIT)?;
        assert!(aborted.elapsed() < ABORT_LIMIT);
        while side.cuda.async_error().is_none() {
            assert!(aborted.elapsed() < ABORT_LIMIT, "the cause is known everywhere");
            std::thread::yield_now();
        }
        let error = side.enqueue(&case, &side.stream).unwrap_err();
        assert!(matches!(error, Error::Aborted { rank: 1 }), "{error}");
        // The context still works.
        side.upload(start, &[1, 2, 3])?;
        assert_eq!(side.download(start, 3)?, [1, 2, 3]);
        Ok(())
    });
    Ok(())
}

fn wrong_arguments(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, None, |side| {
        let memory = DeviceMemory::new(&side.context, 4096)?;
        let (start, host) = (memory.start(), [0_f32; 4]);
        let freed = DeviceMemory::new(&side.context, 64 << 20)?.start();
        let good = Case {
            input: start,
            output: start,
            count: 4,
            data_type: DataType::Float,
            op: ReduceOp::Sum,
            seed: 0,
        };
        for (case, text) in [
            (Case { input: host.as_ptr().addr() as u64, ..good }, "not memory of any device"),
            (Case { input: freed, ..good }, "not memory of any device"),
            (Case { input: start + 2, output: start + 2, ..good }, "not a multiple of 4"),
            (Case { output: start + 8, ..good }, "overlap"),
            (Case { count: 1 << 40, ..good }, "not memory of any device"),
            (Case { data_type: DataType::Int32, ..good }, "use host buffers"),
            (Case { op: ReduceOp::Max, ..good }, "use host buffers"),
        ] {
            let error = side.enqueue(&case, &side.stream).unwrap_err();
            assert!(matches!(&error, Error::Argument { .. }) && error.to_string().contains(text), "{error}");
        }
        side.run(&Case { output: start + 2048, ..good })
    });
    Ok(())
}
