//! Calls with known results, on the ranks of a group.

use std::time::Duration;

use half::{bf16, f16};
use rccl::{
    Algorithm, Communicator, DataType, ReduceOp, TransportChoice,
    cuda::{CudaCommunicator, CudaOptions, CudaProtocol},
};
use rccl_transport::cuda::{Device, DeviceMemory, Driver, PrimaryContext, Stream};

use crate::common;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const MARGIN_BYTES: usize = 4096;
const GUARD_BYTES: usize = 64;
const UNTOUCHED: u8 = 0xa5;

/// A rank with its device side and memory.
pub(crate) struct Side<'a> {
    pub(crate) communicator: &'a Communicator,
    pub(crate) cuda: CudaCommunicator,
    pub(crate) context: PrimaryContext,
    pub(crate) stream: Stream,
}

/// The default options, which also let ranks share a device.
pub(crate) fn shared() -> CudaOptions {
    CudaOptions { allow_shared_gpu: true, ..CudaOptions::default() }
}

/// What can be named: no protocol, and each with the algorithms that it has.
pub(crate) const NAMES: [&str; 5] = ["auto", "ll", "stripe", "relay", "bulk"];

/// The options of a name.
pub(crate) fn named(name: &str) -> CudaOptions {
    let options = |protocol, algorithm| CudaOptions { protocol: Some(protocol), algorithm, ..shared() };
    match name {
        "ll" => options(CudaProtocol::Ll, None),
        "stripe" => options(CudaProtocol::Stripe, Some(Algorithm::Oneshot)),
        "relay" => options(CudaProtocol::Stripe, Some(Algorithm::Relay)),
        "bulk" => options(CudaProtocol::Bulk, None),
        _ => shared(),
    }
}

/// Whether ranks of a group in this process must share devices.
pub(crate) fn must_share(ranks: u32) -> bool {
    Driver::open().and_then(|driver| Device::count(&driver)).is_ok_and(|devices| devices < ranks)
}

/// The device of a rank: those that there are, in turns.
pub(crate) fn context_of(rank: u32) -> rccl::Result<PrimaryContext> {
    let driver = Driver::open()?;
    let ordinal = rank % Device::count(&driver)?;
    Ok(Device::by_ordinal(&driver, ordinal)?.primary_context()?)
}

/// Runs `body` on every rank of a new group; rank r has device r modulo their number. `body` takes memory of devices before
/// its first barrier and gives it back after its last one: where ranks share a device, that may wait for their kernels.
pub(crate) fn on_devices(ranks: u32, options: &CudaOptions, body: impl Fn(&Side) -> rccl::Result<()> + Sync) {
    let results = common::group(ranks, &common::options(TransportChoice::Auto, None), |communicator| {
        let side = Side::new(communicator, options)?;
        communicator.barrier()?;
        body(&side).inspect_err(|_| side.communicator.abort())
    });
    for (rank, result) in results.into_iter().enumerate() {
        result.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

impl<'a> Side<'a> {
    pub(crate) fn new(communicator: &'a Communicator, options: &CudaOptions) -> rccl::Result<Self> {
        let context = context_of(communicator.rank())?;
        let cuda = communicator.cuda(context.device().ordinal(), options)?;
        Ok(Self { communicator, cuda, stream: Stream::new(&context)?, context })
    }

    /// Memory for a case of up to `bytes` bytes.
    pub(crate) fn memory(&self, bytes: usize) -> rccl::Result<DeviceMemory> {
        Ok(DeviceMemory::new(&self.context, bytes + MARGIN_BYTES)?)
    }

    pub(crate) fn barrier(&self) -> rccl::Result<()> {
        self.communicator.barrier()
    }

    pub(crate) fn upload(&self, to: u64, bytes: &[u8]) -> rccl::Result<()> {
        // SAFETY: `bytes` outlives the copy, which is waited for.
        unsafe { self.stream.copy(to, bytes.as_ptr().addr() as u64, bytes.len()) }?;
        Ok(self.stream.wait(PATIENCE)?)
    }

    pub(crate) fn download(&self, from: u64, len: usize) -> rccl::Result<Vec<u8>> {
        let mut bytes = vec![0_u8; len];
        // SAFETY: `bytes` outlives the copy, which is waited for.
        unsafe { self.stream.copy(bytes.as_mut_ptr().addr() as u64, from, len) }?;
        self.stream.wait(PATIENCE)?;
        Ok(bytes)
    }

    pub(crate) fn enqueue(&self, case: &Case, stream: &Stream) -> rccl::Result<()> {
        let Case { input, output, count, data_type, op, .. } = *case;
        // SAFETY: the buffers of a case live until its stream is waited for.
        unsafe { self.cuda.all_reduce(input, output, count, data_type, op, stream.raw().0) }
    }

    /// Prepares the buffers. All ranks meet before the next call: one that waits may hold up copies of ranks that share its
    /// device.
    pub(crate) fn fill(&self, case: &Case) -> rccl::Result<()> {
        let len = case.count as usize * case.data_type.size_bytes();
        self.upload(case.output, &vec![UNTOUCHED; len + GUARD_BYTES])?;
        self.upload(case.input, &case.contribution(self.communicator.rank()))
    }

    pub(crate) fn verify(&self, case: &Case) -> rccl::Result<()> {
        let mut want = case.expected(self.communicator.size());
        want.extend([UNTOUCHED; GUARD_BYTES]);
        let have = self.download(case.output, want.len())?;
        let wrong = have.iter().zip(&want).position(|(have, want)| have != want);
        assert_eq!(wrong, None, "the first wrong byte of rank {} in {case:?}", self.communicator.rank());
        Ok(())
    }

    pub(crate) fn run(&self, case: &Case) -> rccl::Result<()> {
        self.fill(case)?;
        self.barrier()?;
        self.enqueue(case, &self.stream)?;
        self.stream.wait(PATIENCE)?;
        self.verify(case)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) count: u64,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) seed: u64,
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

impl Case {
    /// A sum of floats.
    pub(crate) fn sum(input: u64, output: u64, count: u64, seed: u64) -> Self {
        Self { input, output, count, data_type: DataType::Float, op: ReduceOp::Sum, seed }
    }
}
