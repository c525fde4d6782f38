//! One rank: its device, its place in the arena, and how it enqueues an all-reduce.

use std::{sync::Arc, time::Duration};

use rccl_core::{DataType, split};
use rccl_transport::{
    Result,
    cuda::{
        Device, DeviceMemory, Driver, Event, HostRegistration, PrimaryContext, Shape, Stream,
        kernels::{Kernels, LlParams, MAX_RANKS, ReduceParams, STRIPE_SERVICE_THREADS, StripeParams},
    },
};

use crate::{
    arena::{Arena, BULK_SLOT_BYTES, LL_LINES, RELAY_SLOT_BYTES, SLOT_BYTES, SLOTS, Stations},
    bulk,
};

pub(crate) const MAX_BYTES: usize = 256 << 20;
/// Room for misaligned buffers and for bytes that must not change.
pub(crate) const MARGIN_BYTES: usize = 4096;
const STATE_BYTES: usize = 16 << 10;
const STRIPE_SEQUENCES: u64 = 4096;
const RELAY_SEQUENCES: u64 = 8192;

/// How a `stripe` kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StripeShape {
    pub(crate) stripes: u32,
    pub(crate) workers: u32,
    pub(crate) chunk_bytes: u32,
    pub(crate) lag: u32,
}

/// How copy engines are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BulkShape {
    pub(crate) chunk_bytes: usize,
    pub(crate) slots: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Ll,
    Stripe(StripeShape),
    Relay(StripeShape),
    Bulk(BulkShape),
}

/// An all-reduce on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) data_type: DataType,
    pub(crate) count: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) average: bool,
}

pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) arena: Arc<Arena>,
    /// Where the device sees the arena.
    pub(crate) base: u64,
    pub(crate) context: PrimaryContext,
    pub(crate) kernels: Kernels,
    /// The caller's stream, and those of the copy engines: out and in.
    pub(crate) streams: [Stream; 3],
    pub(crate) events: bulk::Events,
    pub(crate) input: DeviceMemory,
    pub(crate) output: DeviceMemory,
    pub(crate) staging: DeviceMemory,
    state: DeviceMemory,
    // The last to be dropped: the device must not use the arena any more.
    _registration: Arc<HostRegistration>,
}

impl Rank {
    pub(crate) fn context(driver: &Driver, rank: u32) -> Result<PrimaryContext> {
        let devices = Device::count(driver)?.max(1);
        Device::by_ordinal(driver, rank % devices)?.primary_context()
    }

    pub(crate) fn new(
        context: PrimaryContext,
        registration: Arc<HostRegistration>,
        arena: Arc<Arena>,
        rank: u32,
        ranks: u32,
    ) -> Result<Self> {
        let streams = [Stream::new(&context)?, Stream::new(&context)?, Stream::new(&context)?];
        let state = DeviceMemory::new(&context, STATE_BYTES)?;
        // SAFETY: the memory is alive until the stream is done, which is waited for.
        unsafe { streams[0].fill(state.start(), 0, STATE_BYTES) }?;
        streams[0].synchronize()?;
        Ok(Self {
            rank,
            ranks,
            base: registration.device_start(&context)?,
            arena,
            kernels: Kernels::load(&context)?,
            events: bulk::Events::new(&context)?,
            input: DeviceMemory::new(&context, MAX_BYTES + MARGIN_BYTES)?,
            output: DeviceMemory::new(&context, MAX_BYTES + MARGIN_BYTES)?,
            staging: DeviceMemory::new(&context, 2 * (ranks as usize - 1) * BULK_SLOT_BYTES)?,
            streams,
            state,
            context,
            _registration: registration,
        })
    }

    pub(crate) fn stations(&self, rank: u32) -> Stations {
        Stations::of(rank, self.ranks)
    }

    /// The whole input as a call that writes the output.
    pub(crate) fn call(&self, data_type: DataType, bytes: usize) -> Call {
        let count = (bytes / data_type.size_bytes()) as u64;
        Call { data_type, count, input: self.input.start(), output: self.output.start(), average: false }
    }

    pub(crate) fn divisor(&self, call: &Call) -> f32 {
        if call.average { self.ranks as f32 } else { 1.0 }
    }

    /// Enqueues the all-reduce on the first stream.
    pub(crate) fn enqueue(&self, call: &Call, protocol: Protocol) -> Result<()> {
        match protocol {
            Protocol::Ll => self.ll(call),
            Protocol::Stripe(shape) => self.stripe(call, shape),
            Protocol::Relay(shape) => self.relay(call, shape),
            Protocol::Bulk(shape) => bulk::enqueue(self, call, shape),
        }
    }

    fn each_rank(&self, offset: impl Fn(Stations) -> usize) -> [u64; MAX_RANKS] {
        let mut addresses = [0; MAX_RANKS];
        for rank in 0..self.ranks {
            addresses[rank as usize] = self.base + offset(self.stations(rank)) as u64;
        }
        addresses
    }

    fn abort(&self) -> u64 {
        self.base + Arena::abort_offset() as u64
    }

    fn ll(&self, call: &Call) -> Result<()> {
        let lines = LlParams::lines_for(call.count, call.data_type);
        let threads = (lines as u32).next_multiple_of(32).clamp(32, 256);
        let shape = Shape { blocks: (lines as u32).div_ceil(threads).clamp(1, 64), threads };
        let params = LlParams {
            input: call.input,
            output: call.output,
            count: call.count,
            abort: self.abort(),
            epochs: self.state.start(),
            rank: self.rank,
            ranks: self.ranks,
            divisor: self.divisor(call),
            lines: LL_LINES as u32,
            stations: self.each_rank(|stations| stations.ll),
        };
        // SAFETY: buffers, arena and state live until the streams are done; every rank launches alike.
        unsafe { self.kernels.ll_oneshot(&self.streams[0], shape, call.data_type, &params) }
    }

    fn stripe_params(&self, call: &Call, shape: StripeShape) -> StripeParams {
        StripeParams {
            input: call.input,
            output: call.output,
            count: call.count,
            abort: self.abort(),
            sequences: self.state.start() + STRIPE_SEQUENCES,
            rank: self.rank,
            ranks: self.ranks,
            divisor: self.divisor(call),
            chunk_bytes: shape.chunk_bytes,
            slot_bytes: SLOT_BYTES as u32,
            slots: SLOTS as u32,
            lag: shape.lag,
            reserved: 0,
            stations: self.each_rank(|stations| stations.stripe),
            results: [0; MAX_RANKS],
            words: self.each_rank(|stations| stations.stripe_words),
            parts: [0; MAX_RANKS + 1],
        }
    }

    fn stripe(&self, call: &Call, shape: StripeShape) -> Result<()> {
        let launch = Shape { blocks: shape.stripes, threads: shape.workers + STRIPE_SERVICE_THREADS };
        let params = self.stripe_params(call, shape);
        // SAFETY: as for `ll`.
        unsafe { self.kernels.stripe_oneshot(&self.streams[0], launch, call.data_type, &params) }
    }

    fn relay(&self, call: &Call, shape: StripeShape) -> Result<()> {
        let launch = Shape { blocks: shape.stripes, threads: shape.workers + STRIPE_SERVICE_THREADS };
        let mut params = StripeParams {
            sequences: self.state.start() + RELAY_SEQUENCES,
            chunk_bytes: shape.chunk_bytes.min(RELAY_SLOT_BYTES as u32),
            slot_bytes: RELAY_SLOT_BYTES as u32,
            stations: self.each_rank(|stations| stations.conduits),
            results: self.each_rank(|stations| stations.results),
            words: self.each_rank(|stations| stations.relay_words),
            ..self.stripe_params(call, shape)
        };
        let align = 128 / call.data_type.size_bytes() as u64;
        for owner in 0..self.ranks {
            let part = split::share(call.count, u64::from(self.ranks), u64::from(owner), align);
            params.parts[owner as usize + 1] = part.end;
        }
        // SAFETY: as for `ll`.
        unsafe { self.kernels.stripe_relay(&self.streams[0], launch, call.data_type, &params) }
    }

    /// Ends what is enqueued on the first stream, and with it on the others. On a failure, everything is aborted.
    pub(crate) fn finish(&self) -> Result<()> {
        self.streams[0].wait(Duration::from_secs(20)).inspect_err(|_| {
            self.arena.abort();
            for stream in &self.streams {
                let _ = stream.wait(Duration::from_secs(5));
            }
        })
    }

    /// Copies between host memory and the device, and waits.
    pub(crate) fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: `bytes` outlives the copy, which is waited for; callers pass ranges of `input` or `output`.
        unsafe { self.streams[0].copy(to, bytes.as_ptr().addr() as u64, bytes.len()) }?;
        self.finish()
    }

    pub(crate) fn download(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: as for `upload`.
        unsafe { self.streams[0].copy(bytes.as_mut_ptr().addr() as u64, from, bytes.len()) }?;
        self.finish()
    }

    /// A sum on the first stream of `sources`.
    pub(crate) fn reduce(&self, call: &Call, output: u64, count: u64, sources: &[u64]) -> Result<()> {
        let mut source = [0; MAX_RANKS];
        source[..sources.len()].copy_from_slice(sources);
        let divisor = self.divisor(call);
        let params = ReduceParams { output, count, sources: sources.len() as u32, divisor, source };
        // SAFETY: the buffers live until the streams are done, and events order their users.
        unsafe {
            self.kernels.reduce_local(
                &self.streams[0],
                Shape { blocks: 64, threads: 512 },
                call.data_type,
                &params,
            )
        }
    }

    /// Orders two streams: `later` goes on after what `earlier` has now.
    pub(crate) fn order(&self, event: &Event, earlier: usize, later: usize) -> Result<()> {
        event.record(&self.streams[earlier])?;
        self.streams[later].wait_event(event)
    }
}
