//! How a group gets its devices: look, agree, share memory, map it. Every step ends in an exchange, so that it fails on all
//! ranks or on none.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, OnceLock},
};

use rccl_core::{DataType, Group, Rank};
use rccl_transport::{
    HostId, JoinOptions, Root, RootOptions, UniqueId,
    cuda::{
        Attribute, BesideCaptures, Device, Driver, HostRegistration, PrimaryContext,
        kernels::{Kernel, Kernels, MAX_RANKS, STRIPE_SERVICE_THREADS},
        relay::{Arena, Relay},
    },
    deadline::Deadline,
};

use super::{
    CudaCommunicator, CudaDescription, CudaOptions, Mutex, Releaser, Side,
    agree::exchange,
    order::Order,
    quiet,
    seats::{self, Seat},
    shapes::{Room, Shapes},
};
use crate::{Communicator, Error, Result};

/// How many hardware queues the driver makes for a process where this does not say.
const CONNECTIONS_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
const CONNECTIONS: u32 = 8;

impl Communicator {
    /// Gives every rank a device (an ordinal after `CUDA_VISIBLE_DEVICES`) for collectives on CUDA streams. All ranks must
    /// call it, and all must live on one host. Returns when all are ready. Locks host memory and allocates device memory, at
    /// most 32 MiB on each device; see [`CudaCommunicator::describe`]. Streams must not be replaying graphs of another
    /// communicator of this process meanwhile, if ranks of it share a process.
    ///
    /// # Errors
    /// On all ranks, naming the one that could not: [`rccl_transport::Error::Unavailable`] without a driver or with a device
    /// that is too old, others of the driver; [`Error::Options`] if options differ; [`Error::Argument`] if options make no
    /// sense, or ranks live on several hosts or share a device in a way that cannot work. The communicator itself is then
    /// as it was.
    pub fn cuda(&self, device: u32, options: &CudaOptions) -> Result<CudaCommunicator> {
        let checked = options.check();
        // From here on, whatever any rank called before is enqueued and comes to its end.
        exchange(self, checked.as_ref().map(|()| &[][..]))?;
        let looked = quiet::taking(|| look(self.size(), device, options));
        let report = looked.as_ref().map(|looked| looked.seat.report().into_bytes());
        let reports = exchange(self, report.as_deref().map_err(|error| *error))?;
        let looked = looked?;
        let seats: Vec<Seat> = reports.iter().map(|report| Seat::parse(report)).collect();
        seats::check(&seats, options)?;

        let arena = share(self, options, looked.node)?;
        let side = quiet::taking(|| self.side(looked, &seats, options, arena));
        // Nobody launches before everybody is ready.
        let agreed = exchange(self, side.as_ref().map(|_| &[][..]));
        match (agreed, side) {
            (Ok(_), Ok(side)) => {
                self.inner().state.ring_on_failure(side.releaser.alarm());
                tracing::info!(rank = self.rank(), "{}", side.description);
                Ok(CudaCommunicator::new(side, Arc::clone(self.inner())))
            }
            (Err(error), Ok(side)) => {
                quiet::retire(Arc::new(side));
                Err(error)
            }
            (agreed, Err(own)) => Err(agreed.err().unwrap_or(own)),
        }
    }

    /// This rank's side, ready to enqueue.
    fn side(&self, looked: Looked, seats: &[Seat], options: &CudaOptions, arena: Arc<Arena>) -> Result<Side> {
        let shapes =
            Shapes::new(options, self.size(), seats::common_room(seats), seats::copies_are_apart(seats));
        let _beside = BesideCaptures::enter(&looked.context)?;
        let registration = Arc::new(HostRegistration::new(&looked.context, arena.region())?);
        let relay =
            Relay::new(&looked.context, looked.kernels, registration, Arc::clone(&arena), self.rank())?;
        Ok(Side {
            releaser: Releaser::start(&arena)?,
            order: Mutex::new(Order::new(&looked.context)?),
            description: CudaDescription {
                device: looked.name,
                kernels: relay.kernels().image(),
                sharing: seats[self.rank() as usize].sharing(seats),
                host_bytes: arena.region().len(),
                device_bytes: relay.device_bytes(),
                ll_bytes: shapes.ll_bytes,
                bulk_bytes: shapes.bulk_bytes,
            },
            relay,
            shapes,
        })
    }
}

/// What a rank found of its own device.
struct Looked {
    context: PrimaryContext,
    kernels: Kernels,
    name: String,
    /// The NUMA node beside the device, if the driver knows it.
    node: Option<u32>,
    seat: Seat,
}

fn look(ranks: u32, device: u32, options: &CudaOptions) -> Result<Looked> {
    if ranks as usize > MAX_RANKS {
        let reason = format!("{ranks} ranks; devices of one host serve at most {MAX_RANKS}");
        return Err(Error::Argument { what: "cuda: communicator", reason });
    }
    let device = Device::by_ordinal(&Driver::open()?, device)?;
    let context = device.primary_context()?;
    let beside = BesideCaptures::enter(&context)?;
    let kernels = Kernels::load(&context)?;
    let most = |kernel, threads| {
        let types = [DataType::Float, DataType::Half, DataType::Bfloat16];
        let each = types.map(|data_type| kernels.resident_blocks(kernel, data_type, threads));
        let [float, half, bfloat16] = each;
        Ok::<u32, Error>(float?.min(half?).min(bfloat16?))
    };
    let room = Room {
        ll: most(Kernel::LlOneshot, 256)?,
        stripe: most(Kernel::StripeOneshot, 512 + STRIPE_SERVICE_THREADS)?,
        relay: most(Kernel::StripeRelay, 512 + STRIPE_SERVICE_THREADS)?,
    };
    let names = [hex(&HostId::this()?.0), process()?.to_owned(), hex(&device.uuid()?)];
    let seat = Seat::new(options, names, connections(), room);
    let name = format!("{} at {}", device.name()?, device.pci_bus_id()?);
    // Older drivers do not know the question.
    let node = device.attribute(Attribute::HOST_NUMA).ok().and_then(|node| u32::try_from(node).ok());
    drop(beside);
    Ok(Looked { context, kernels, name, node, seat })
}

fn connections() -> u32 {
    let told = std::env::var(CONNECTIONS_VARIABLE).ok().and_then(|value| value.parse().ok());
    told.unwrap_or(CONNECTIONS).clamp(1, 32)
}

/// A name of this process that no other has, in whatever namespace it lives.
fn process() -> Result<&'static str> {
    static NAME: OnceLock<String> = OnceLock::new();
    if let Some(name) = NAME.get() {
        return Ok(name);
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| rccl_transport::Error::io("getrandom of a name", std::io::Error::other(error)))?;
    Ok(NAME.get_or_init(|| hex(&bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The arena, mapped, with this rank's part of it in memory. Rank 0 makes it, and is the root by which they meet.
fn share(communicator: &Communicator, options: &CudaOptions, node: Option<u32>) -> Result<Arc<Arena>> {
    let (rank, size) = (communicator.rank(), communicator.size());
    let made = if rank == 0 { make(size, options).map(Some) } else { Ok(None) };
    let id = made.as_ref().map(|made| made.as_ref().map_or(Vec::new(), |made| made.id.to_bytes().to_vec()));
    let told = exchange(communicator, id.as_deref().map_err(|error| *error))?;
    let id: [u8; UniqueId::BYTES] = told[0].as_slice().try_into().unwrap_or([0; UniqueId::BYTES]);
    let mapped = made.and_then(|made| {
        let file = meet(&UniqueId::from_bytes(&id)?, Group::new(size, rank)?, made, options)?;
        let arena = Arena::map(file, size)?;
        arena.occupy(rank, node)?;
        if rank == 0 {
            arena.prepare();
        }
        Ok(Arc::new(arena))
    });
    // Whoever registers the arena takes all of it; by then every part is where its rank wants it.
    exchange(communicator, mapped.as_ref().map(|_| &[][..]))?;
    mapped
}

/// What rank 0 has before the others come.
struct Made {
    file: OwnedFd,
    _root: Root,
    id: UniqueId,
}

fn make(size: u32, options: &CudaOptions) -> Result<Made> {
    let file = Arena::create(size)?;
    let (root, id) = Root::start(&RootOptions {
        deadline: options.init_timeout,
        choice: options.interfaces.clone(),
        ..RootOptions::default()
    })?;
    Ok(Made { file, _root: root, id })
}

/// Meets the others and gives or takes the arena's file.
fn meet(id: &UniqueId, group: Group, made: Option<Made>, options: &CudaOptions) -> Result<OwnedFd> {
    let join = JoinOptions {
        deadline: options.init_timeout,
        choice: options.interfaces.clone(),
        ..JoinOptions::default()
    };
    let mut membership = rccl_transport::join(id, group, Vec::new(), &join)?;
    let file = made.map(|made| made.file);
    let among: Vec<Rank> = group.ranks().collect();
    match file {
        Some(file) if among.len() == 1 => Ok(file),
        file => {
            Ok(membership.share_file(Rank(0), &among, file, &Deadline::after(options.init_timeout))?.file)
        }
    }
}
