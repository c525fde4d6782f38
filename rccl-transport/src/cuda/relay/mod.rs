//! All-reduce between the devices of one host through memory that all of them map: one rank's device side.
//!
//! A [`Relay`] enqueues one call by the protocol it is told; choosing one, and agreeing on it, is the caller's. All ranks
//! must enqueue the same calls by the same protocols, one after another.

mod arena;
mod bulk;

use std::sync::Arc;

use rccl_core::{DataType, split};

use super::{
    Capture, DeviceMemory, HostRegistration, PrimaryContext, Shape, Stream,
    kernels::{Kernels, LlParams, MAX_BLOCKS, MAX_RANKS, STRIPE_SERVICE_THREADS, StripeParams},
};
use crate::{Error, Result};

use arena::Stations;
pub use arena::{Arena, BULK_SLOTS, LL_LINES, RELAY_SLOT_BYTES, SLOT_BYTES, SLOTS, STRIPES, bulk_slot_bytes};

const STATE_BYTES: usize = 16 << 10;
const STRIPE_SEQUENCES: u64 = 4096;
const RELAY_SEQUENCES: u64 = 8192;

/// How a `stripe` kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripeShape {
    /// Blocks, each with its own slots; at most [`STRIPES`].
    pub stripes: u32,
    /// Threads of a block that move data, a multiple of 32, at most 512.
    pub workers: u32,
    /// Bytes of a chunk, a multiple of 16; at most [`SLOT_BYTES`], or [`RELAY_SLOT_BYTES`] through the relay.
    pub chunk_bytes: u32,
    /// Steps between publishing and collecting a chunk, 1 to 3.
    pub lag: u32,
}

/// How copy engines are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkShape {
    /// Bytes of a chunk, a multiple of 16, at most [`bulk_slot_bytes`].
    pub chunk_bytes: usize,
    /// Slots in use, 1 to [`BULK_SLOTS`].
    pub slots: usize,
}

/// How an all-reduce is carried out, with its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One kernel, flags beside the data, one hop; on at most so many blocks.
    Ll(u32),
    /// One kernel, chunks through slots, one hop.
    Stripe(StripeShape),
    /// One kernel, chunks through slots, two hops.
    Relay(StripeShape),
    /// Copy engines, one hop.
    Bulk(BulkShape),
}

/// An all-reduce on the device.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Type of the elements: float, half or bfloat16.
    pub data_type: DataType,
    /// Elements, at least 1.
    pub count: u64,
    /// Address of the input.
    pub input: u64,
    /// Address of the output; may be the input.
    pub output: u64,
    /// Whether the sum is divided by the number of ranks.
    pub average: bool,
}

/// One rank's device side. Its work must be done, or aborted, before it is dropped.
#[derive(Debug)]
pub struct Relay {
    rank: u32,
    ranks: u32,
    arena: Arc<Arena>,
    /// Where the device sees the arena.
    base: u64,
    context: PrimaryContext,
    kernels: Kernels,
    /// For calls that run, and for calls that are captured: those may be open while others run.
    engines: [bulk::Engines; 2],
    staging: DeviceMemory,
    state: DeviceMemory,
    // The last to be dropped: the device must not use the arena any more.
    _registration: Arc<HostRegistration>,
}

impl Relay {
    /// Takes `rank`'s place in an arena that is registered. Allocates device memory and streams, and waits for the device.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Invalid`] if the registration is of other memory.
    pub fn new(
        context: &PrimaryContext,
        kernels: Kernels,
        registration: Arc<HostRegistration>,
        arena: Arc<Arena>,
        rank: u32,
    ) -> Result<Self> {
        let ranks = arena.ranks();
        if !Arc::ptr_eq(registration.region(), arena.region()) || rank >= ranks || ranks as usize > MAX_RANKS
        {
            return Err(Error::Invalid {
                what: "a relay's arena".to_owned(),
                value: format!("of rank {rank} of {ranks}"),
                reason: "it must be the registered one, of at most 32 ranks, this one among them".to_owned(),
            });
        }
        let engines = [bulk::Engines::new(context, false)?, bulk::Engines::new(context, true)?];
        let state = DeviceMemory::new(context, STATE_BYTES)?;
        let stream = Stream::new(context)?;
        // SAFETY: the memory is alive until the stream is done, which is waited for.
        unsafe { stream.fill(state.start(), 0, STATE_BYTES) }?;
        stream.synchronize()?;
        let staging_bytes = 2 * (ranks as usize - 1) * bulk_slot_bytes(ranks);
        Ok(Self {
            rank,
            ranks,
            base: registration.device_start(context)?,
            arena,
            kernels,
            engines,
            staging: DeviceMemory::new(context, staging_bytes)?,
            state,
            context: context.clone(),
            _registration: registration,
        })
    }

    /// This rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The context of its device.
    #[must_use]
    pub const fn context(&self) -> &PrimaryContext {
        &self.context
    }

    /// The memory that the ranks share.
    #[must_use]
    pub const fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Its kernels.
    #[must_use]
    pub const fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Bytes of device memory that it holds.
    #[must_use]
    pub const fn device_bytes(&self) -> usize {
        self.staging.len() + self.state.len()
    }

    /// Whether the copy engines have nothing to do, replays of graphs apart.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn is_idle(&self) -> Result<bool> {
        self.engines[0].is_idle()
    }

    /// Enqueues an all-reduce on `stream`. Blocks of all ranks' launches must fit their devices together.
    ///
    /// # Errors
    /// [`Error::Invalid`] for shapes that cannot work; [`Error::Device`].
    ///
    /// # Safety
    /// The buffers must be valid, and used by nobody else, until the call is done; the relay must live as long; every rank
    /// must enqueue the same, and this rank's calls must not overlap.
    pub unsafe fn enqueue(&self, stream: &Stream, call: &Call, protocol: Protocol) -> Result<()> {
        match protocol {
            Protocol::Ll(blocks) => self.ll(stream, call, blocks),
            Protocol::Stripe(shape) => self.stripe(stream, call, shape),
            Protocol::Relay(shape) => self.relay(stream, call, shape),
            Protocol::Bulk(shape) => {
                let engines = &self.engines[usize::from(Capture::of(stream)?.is_some())];
                bulk::enqueue(self, engines, stream, call, shape)
            }
        }
    }

    fn stations(&self, rank: u32) -> Stations {
        Stations::of(rank, self.ranks)
    }

    fn divisor(&self, call: &Call) -> f32 {
        if call.average { self.ranks as f32 } else { 1.0 }
    }

    fn each_rank(&self, offset: impl Fn(Stations) -> usize) -> [u64; MAX_RANKS] {
        let mut addresses = [0; MAX_RANKS];
        for rank in 0..self.ranks {
            addresses[rank as usize] = self.base + offset(self.stations(rank)) as u64;
        }
        addresses
    }

    const fn abort_address(&self) -> u64 {
        self.base + Arena::abort_offset() as u64
    }

    fn ll(&self, stream: &Stream, call: &Call, blocks: u32) -> Result<()> {
        let lines = LlParams::lines_for(call.count, call.data_type).min(LL_LINES as u64 + 1) as u32;
        let threads = lines.next_multiple_of(32).clamp(32, 256);
        let shape = Shape { blocks: lines.div_ceil(threads).clamp(1, blocks.clamp(1, MAX_BLOCKS)), threads };
        let params = LlParams {
            input: call.input,
            output: call.output,
            count: call.count,
            abort: self.abort_address(),
            epochs: self.state.start(),
            rank: self.rank,
            ranks: self.ranks,
            divisor: self.divisor(call),
            lines: LL_LINES as u32,
            stations: self.each_rank(|stations| stations.ll),
        };
        // SAFETY: the caller of `enqueue` vouches for buffers, lifetime and order; more lines than fit are refused.
        unsafe { self.kernels.ll_oneshot(stream, shape, call.data_type, &params) }
    }

    fn stripe_params(&self, call: &Call, shape: StripeShape) -> StripeParams {
        StripeParams {
            input: call.input,
            output: call.output,
            count: call.count,
            abort: self.abort_address(),
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

    fn stripe(&self, stream: &Stream, call: &Call, shape: StripeShape) -> Result<()> {
        let launch = launch_of(shape)?;
        let params = self.stripe_params(call, shape);
        // SAFETY: as for `ll`.
        unsafe { self.kernels.stripe_oneshot(stream, launch, call.data_type, &params) }
    }

    fn relay(&self, stream: &Stream, call: &Call, shape: StripeShape) -> Result<()> {
        let launch = launch_of(shape)?;
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
        unsafe { self.kernels.stripe_relay(stream, launch, call.data_type, &params) }
    }
}

fn launch_of(shape: StripeShape) -> Result<Shape> {
    if shape.stripes as usize > STRIPES {
        return Err(Error::Invalid {
            what: "stripes".to_owned(),
            value: shape.stripes.to_string(),
            reason: format!("a station has {STRIPES}"),
        });
    }
    Ok(Shape { blocks: shape.stripes, threads: shape.workers + STRIPE_SERVICE_THREADS })
}
