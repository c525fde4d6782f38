//! One rank: its device side, and memory to reduce.

use std::{sync::Arc, time::Duration};

use rccl_core::DataType;
use rccl_transport::{
    Result,
    cuda::{
        Device, DeviceMemory, Driver, HostRegistration, PrimaryContext, Stream,
        kernels::Kernels,
        relay::{Call, Protocol, Relay},
    },
};

use crate::arena::Arena;

pub(crate) const MAX_BYTES: usize = 256 << 20;
/// Room for misaligned buffers and for bytes that must not change.
pub(crate) const MARGIN_BYTES: usize = 4096;
/// Blocks of an `ll` kernel, at most.
pub(crate) const LL: Protocol = Protocol::Ll(64);

pub(crate) struct Rank {
    pub(crate) arena: Arena,
    pub(crate) context: PrimaryContext,
    pub(crate) stream: Stream,
    pub(crate) input: DeviceMemory,
    pub(crate) output: DeviceMemory,
    pub(crate) relay: Relay,
}

impl Rank {
    pub(crate) fn context(driver: &Driver, rank: u32) -> Result<PrimaryContext> {
        let devices = Device::count(driver)?.max(1);
        Device::by_ordinal(driver, rank % devices)?.primary_context()
    }

    pub(crate) fn new(
        context: PrimaryContext,
        registration: Arc<HostRegistration>,
        arena: Arena,
        rank: u32,
    ) -> Result<Self> {
        let kernels = Kernels::load(&context)?;
        Ok(Self {
            relay: Relay::new(&context, kernels, registration, Arc::clone(&arena.shared), rank)?,
            stream: Stream::new(&context)?,
            input: DeviceMemory::new(&context, MAX_BYTES + MARGIN_BYTES)?,
            output: DeviceMemory::new(&context, MAX_BYTES + MARGIN_BYTES)?,
            arena,
            context,
        })
    }

    pub(crate) const fn rank(&self) -> u32 {
        self.relay.rank()
    }

    pub(crate) const fn ranks(&self) -> u32 {
        self.relay.ranks()
    }

    /// The whole input as a call that writes the output.
    pub(crate) fn call(&self, data_type: DataType, bytes: usize) -> Call {
        let count = (bytes / data_type.size_bytes()) as u64;
        Call { data_type, count, input: self.input.start(), output: self.output.start(), average: false }
    }

    /// Enqueues the all-reduce.
    pub(crate) fn enqueue(&self, call: &Call, protocol: Protocol) -> Result<()> {
        // SAFETY: buffers, arena and relay live until the stream is done; every rank enqueues alike, on one stream.
        unsafe { self.relay.enqueue(&self.stream, call, protocol) }
    }

    /// Ends what is enqueued. On a failure, everything is aborted.
    pub(crate) fn finish(&self) -> Result<()> {
        self.stream.wait(Duration::from_secs(20)).inspect_err(|_| {
            self.arena.abort();
            let _ = self.stream.wait(Duration::from_secs(5));
        })
    }

    /// Copies between host memory and the device, and waits.
    pub(crate) fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: `bytes` outlives the copy, which is waited for; callers pass ranges of `input` or `output`.
        unsafe { self.stream.copy(to, bytes.as_ptr().addr() as u64, bytes.len()) }?;
        self.finish()
    }

    pub(crate) fn download(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: as for `upload`.
        unsafe { self.stream.copy(bytes.as_mut_ptr().addr() as u64, from, bytes.len()) }?;
        self.finish()
    }
}
