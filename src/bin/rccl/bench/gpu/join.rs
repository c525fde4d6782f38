//! How a rank takes its places: in the group by which the ranks meet, and in the one that is measured.

use std::{
    thread,
    time::{Duration, Instant},
};

use rccl::{Communicator, cuda::CudaOptions};
use rccl_core::{Group, ReduceOp, Request};
use rccl_transport::cuda::{Device, Driver, PrimaryContext};

use super::{
    super::{
        data::Values,
        message::{GpuSetup, Library, Setup},
        rendezvous,
    },
    ranks::Rank,
};
use crate::{
    error::Result,
    sys::{
        gpu::{Desk, Ours, Reducer, device_error},
        nccl::{Nccl, UniqueId},
    },
};

/// The most threads that make and check a rank's data.
const MOST_THREADS: usize = 16;

/// What a new rank says of itself.
pub(super) struct Introduction {
    pub(super) describe: String,
    pub(super) version: Option<String>,
    /// Milliseconds that making the measured group took on this rank, its device being ready.
    pub(super) created_ms: f64,
}

impl Rank {
    /// Makes a rank whose group is measured, when all others do.
    pub(super) fn join(
        setup: &Setup,
        gpu: &GpuSetup,
        id: &rccl::UniqueId,
        options: &rccl::Options,
        number: u32,
    ) -> Result<(Self, Introduction)> {
        let communicator = Communicator::create(id, number, setup.ranks, options)?;
        let driver = Driver::open().map_err(device_error)?;
        let ordinal = number % gpu.devices;
        let device = Device::by_ordinal(&driver, ordinal).map_err(device_error)?;
        let context = device.primary_context().map_err(device_error)?;
        let desk = Desk::new(&context)?;
        let nccl = match &gpu.library {
            Library::Rccl { .. } => None,
            Library::Nccl { path } => Some(Nccl::load(path.as_ref())?),
        };
        // The group that is measured is made anew when all are there, so that its creation can be timed.
        communicator.barrier()?;
        let clock = Instant::now();
        let (reducer, mut introduction) = match &nccl {
            None => ours(&communicator, ordinal, options, &cuda_options(setup, gpu, options)?)?,
            Some(nccl) => theirs(nccl, &communicator, &context)?,
        };
        introduction.created_ms = clock.elapsed().as_secs_f64() * 1e3;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let rank = Self {
            desk,
            reducer,
            group: Group::new(setup.ranks, number)?,
            communicator,
            values: match gpu.library {
                Library::Rccl { .. } => |_, _| Values::Any,
                // NCCL promises no order of addition.
                Library::Nccl { .. } => exact,
            },
            shared: setup.local_ranks > 1,
            limit: Duration::from_secs(setup.timeout_s),
            threads: (cores / setup.ranks as usize).clamp(1, MOST_THREADS),
        };
        Ok((rank, introduction))
    }
}

/// Values whose sums and averages are exact in every order.
fn exact(request: &Request, ranks: u32) -> Values {
    Values::Multiples(if request.op == Some(ReduceOp::Avg) { ranks } else { 1 })
}

fn cuda_options(setup: &Setup, gpu: &GpuSetup, host: &rccl::Options) -> Result<CudaOptions> {
    let mut options = CudaOptions { init_timeout: host.init_timeout, ..CudaOptions::from_env()? };
    if setup.algorithm != "auto" {
        options.algorithm = Some(setup.algorithm.parse()?);
    }
    if let Library::Rccl { protocol: Some(protocol), .. } = &gpu.library {
        options.protocol = Some(protocol.parse()?);
    }
    options.allow_shared_gpu |= setup.ranks > gpu.devices;
    Ok(options)
}

/// Takes a rank's place in a new group of ours. The ranks meet by another one, `meeting`.
fn ours(
    meeting: &Communicator,
    device: u32,
    options: &rccl::Options,
    cuda: &CudaOptions,
) -> Result<(Box<dyn Reducer>, Introduction)> {
    let root = (meeting.rank() == 0).then(rendezvous).transpose()?;
    let id = from_first(meeting, root.as_ref().map(|(_, id)| id.to_bytes()))?;
    let id = rccl::UniqueId::from_bytes(&id).map_err(rccl::Error::from)?;
    let host = Communicator::create(&id, meeting.rank(), meeting.size(), options)?;
    let cuda = host.cuda(device, cuda)?;
    let introduction = Introduction { describe: cuda.describe().to_string(), version: None, created_ms: 0.0 };
    Ok((Box::new(Ours { cuda, _host: host, _root: root.map(|(root, _)| root) }), introduction))
}

/// Takes a rank's place in a new group of NCCL's.
fn theirs(
    nccl: &Nccl,
    meeting: &Communicator,
    context: &PrimaryContext,
) -> Result<(Box<dyn Reducer>, Introduction)> {
    let (rank, ranks) = (meeting.rank(), meeting.size());
    let own = (rank == 0).then(|| nccl.unique_id()).transpose()?;
    let id = from_first(meeting, own.map(|id| id.0))?;
    let joined = nccl.join(context, UniqueId(id), rank, ranks)?;
    let describe = format!("loaded from {}", nccl.path());
    Ok((Box::new(joined), Introduction { describe, version: Some(nccl.version()?), created_ms: 0.0 }))
}

/// What rank 0 has, for all.
fn from_first<const BYTES: usize>(meeting: &Communicator, first: Option<[u8; BYTES]>) -> Result<[u8; BYTES]> {
    let mut all = vec![0; BYTES * meeting.size() as usize];
    meeting.all_gather(&first.unwrap_or([0; BYTES]), &mut all)?;
    Ok(all.first_chunk().copied().expect("a group has a rank"))
}
