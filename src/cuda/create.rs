//! How a group gets its devices: look, agree, share memory, map it.

use std::sync::{Arc, OnceLock};

use rccl_core::{DataType, Group, Rank};
use rccl_transport::{
    HostId, JoinOptions, Root, RootOptions, UniqueId,
    cuda::{
        Device, Driver, Event, HostRegistration, PrimaryContext,
        kernels::{Kernel, Kernels, MAX_RANKS, STRIPE_SERVICE_THREADS},
        relay::{Arena, Relay},
    },
    deadline::Deadline,
};

use super::{
    CudaCommunicator, CudaDescription, CudaOptions, Mutex, Releaser, Side,
    shapes::{Room, Shapes},
};
use crate::{Communicator, Error, Result};

/// Bytes in which a rank describes itself, or says why it failed.
const REPORT_BYTES: usize = 512;
/// What all ranks must have been given alike.
const AGREED: [&str; 3] = ["CudaOptions::protocol", "CudaOptions::ll_bytes", "CudaOptions::bulk_bytes"];

impl Communicator {
    /// Gives every rank a device (an ordinal after `CUDA_VISIBLE_DEVICES`) for collectives on CUDA streams. All ranks must
    /// call it, and all must live on one host. Returns when all are ready. Locks host memory and allocates device memory;
    /// see [`CudaCommunicator::describe`].
    ///
    /// # Errors
    /// On all ranks, naming the one that could not: [`rccl_transport::Error::Unavailable`] without a driver or with a device that is
    /// too old, others of the driver; [`Error::Options`] if options differ; [`Error::Argument`] if ranks live on several
    /// hosts or share a device in a way that cannot work. The communicator itself is then as it was.
    pub fn cuda(&self, device: u32, options: &CudaOptions) -> Result<CudaCommunicator> {
        let looked = look(self.size(), device, options);
        let reports = exchange(self, looked.as_ref().map(|looked| looked.report.clone()))?;
        let looked = looked?;
        let seats: Vec<Seat> = reports.iter().map(|text| Seat::parse(text)).collect();
        check(&seats, options)?;
        let room = seats.iter().map(|seat| seat.room(&seats)).reduce(Room::min).unwrap_or(looked.room);
        let shapes = Shapes::new(options, self.size(), room);

        let fd = share(self, options);
        let side = fd.and_then(|fd| {
            let arena = Arc::new(Arena::map(fd, self.size())?);
            if self.rank() == 0 {
                arena.prepare();
            }
            let registration = Arc::new(HostRegistration::new(&looked.context, arena.region())?);
            let relay =
                Relay::new(&looked.context, looked.kernels, registration, Arc::clone(&arena), self.rank())?;
            Ok(Side {
                releaser: Releaser::start(&arena)?,
                last: Mutex::new(Event::new(&looked.context, false)?),
                description: CudaDescription {
                    device: looked.name,
                    kernels: relay.kernels().image(),
                    sharing: seats[self.rank() as usize].sharing(&seats),
                    host_bytes: arena.region().len(),
                    device_bytes: relay.device_bytes(),
                    ll_bytes: shapes.ll_bytes,
                    bulk_bytes: shapes.bulk_bytes,
                },
                relay,
                shapes,
                inner: Arc::clone(self.inner()),
            })
        });
        // Nobody launches before everybody is ready.
        exchange(self, side.as_ref().map(|_| String::new()))?;
        let side = side?;
        side.inner.state.ring_on_failure(side.releaser.alarm());
        Ok(CudaCommunicator::new(side))
    }
}

/// What a rank found of its own device.
struct Looked {
    context: PrimaryContext,
    kernels: Kernels,
    name: String,
    room: Room,
    report: String,
}

fn look(ranks: u32, device: u32, options: &CudaOptions) -> Result<Looked> {
    if ranks as usize > MAX_RANKS {
        let reason = format!("{ranks} ranks; devices of one host serve at most {MAX_RANKS}");
        return Err(Error::Argument { what: "cuda: communicator", reason });
    }
    let device = Device::by_ordinal(&Driver::open()?, device)?;
    let context = device.primary_context()?;
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
    let agreed = |bytes: Option<u64>| bytes.map_or("auto".to_owned(), |bytes| bytes.to_string());
    let report = [
        options.protocol.map_or("auto".to_owned(), |protocol| protocol.to_string()),
        agreed(options.ll_bytes),
        agreed(options.bulk_bytes),
        hex(&HostId::this()?.0),
        process()?.to_owned(),
        hex(&device.uuid()?),
        room.ll.to_string(),
        room.stripe.to_string(),
        room.relay.to_string(),
    ];
    let name = format!("{} at {}", device.name()?, device.pci_bus_id()?);
    Ok(Looked { context, kernels, name, room, report: report.join("\n") })
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

/// A rank's report, read.
struct Seat {
    agreed: [String; AGREED.len()],
    host: String,
    process: String,
    device: String,
    room: Room,
}

impl Seat {
    fn parse(report: &str) -> Self {
        let mut lines = report.lines();
        let mut text = || lines.next().unwrap_or_default().to_owned();
        let (agreed, host) = ([text(), text(), text()], text());
        let (process, device) = (text(), text());
        let mut number = || text().parse().unwrap_or(0);
        let room = Room { ll: number(), stripe: number(), relay: number() };
        Self { agreed, host, process, device, room }
    }

    fn sharing(&self, seats: &[Self]) -> u32 {
        seats.iter().filter(|seat| seat.device == self.device).count() as u32
    }

    /// What is left of its device for one rank's kernels.
    fn room(&self, seats: &[Self]) -> Room {
        let sharing = self.sharing(seats).max(1);
        let Room { ll, stripe, relay } = self.room;
        Room { ll: ll / sharing, stripe: stripe / sharing, relay: relay / sharing }
    }
}

impl Room {
    fn min(self, other: Self) -> Self {
        Self {
            ll: self.ll.min(other.ll),
            stripe: self.stripe.min(other.stripe),
            relay: self.relay.min(other.relay),
        }
    }
}

/// What every rank can tell from all reports, alike but for `allow_shared_gpu`, which is each process's own affair.
fn check(seats: &[Seat], options: &CudaOptions) -> Result<()> {
    for (rank, seat) in seats.iter().enumerate() {
        for (what, (ours, theirs)) in AGREED.into_iter().zip(seats[0].agreed.iter().zip(&seat.agreed)) {
            if ours != theirs {
                let (ours, theirs) = (ours.clone(), theirs.clone());
                return Err(Error::Options { rank: rank as u32, what, ours, theirs });
            }
        }
        if seat.host != seats[0].host {
            let reason = format!(
                "rank {rank} lives on another host than rank 0 (or in another container: then set \
                 RCCL_HOSTID alike); devices reduce within one host, so split the communicator by host"
            );
            return Err(Error::Argument { what: "cuda: communicator", reason });
        }
        let Some(other) = seats[..rank].iter().position(|other| other.device == seat.device) else {
            continue;
        };
        let reason = if seats[other].process != seat.process {
            "and live in different processes, whose kernels would take turns and starve each other; \
             give each its own device, or make them threads of one process"
        } else if !options.allow_shared_gpu {
            "; give each its own, or set CudaOptions::allow_shared_gpu"
        } else if seat.room(seats).relay.min(seat.room(seats).ll).min(seat.room(seats).stripe) == 0 {
            "; it is too small for the kernels of all of them"
        } else {
            continue;
        };
        let reason = format!("ranks {other} and {rank} share a device {reason}");
        return Err(Error::Argument { what: "cuda: device", reason });
    }
    Ok(())
}

/// Tells all ranks this one's report, or how it failed. Fails on all if one did.
fn exchange(communicator: &Communicator, mine: std::result::Result<String, &Error>) -> Result<Vec<String>> {
    let text = match mine {
        Ok(ref report) => format!("+{report}"),
        Err(error) => format!("-{error}"),
    };
    let mut bytes = [0; REPORT_BYTES];
    let len = text.len().min(REPORT_BYTES);
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    let mut all = vec![0; REPORT_BYTES * communicator.size() as usize];
    communicator.all_gather(&bytes, &mut all)?;
    let mut reports = Vec::new();
    for (rank, bytes) in all.chunks(REPORT_BYTES).enumerate() {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches('\0');
        match text.strip_prefix('+') {
            Some(report) => reports.push(report.to_owned()),
            None if rank as u32 == communicator.rank() => return Err(failed(rank, text, mine.err())),
            None => return Err(failed(rank, text, None)),
        }
    }
    Ok(reports)
}

fn failed(rank: usize, text: &str, own: Option<&Error>) -> Error {
    let cause = text.trim_start_matches('-').to_owned();
    own.cloned().unwrap_or(Error::PeerFailed { rank: rank as u32, cause })
}

/// The file of the arena, the same on all ranks. Rank 0 makes it, and is the root by which they meet.
fn share(communicator: &Communicator, options: &CudaOptions) -> Result<std::os::fd::OwnedFd> {
    let (rank, size) = (communicator.rank(), communicator.size());
    let started = (rank == 0).then(|| {
        Root::start(&RootOptions {
            deadline: options.init_timeout,
            choice: options.interfaces.clone(),
            ..RootOptions::default()
        })
    });
    // A root that did not start is an id of zeros, which nobody takes for one.
    let id = started.as_ref().and_then(|started| started.as_ref().ok());
    let mine = id.map_or([0; UniqueId::BYTES], |(_, id)| id.to_bytes());
    let mut ids = vec![0; UniqueId::BYTES * size as usize];
    communicator.all_gather(&mine, &mut ids)?;
    let _root = started.transpose()?;
    let (ids, _) = ids.as_chunks::<{ UniqueId::BYTES }>();
    let id = UniqueId::from_bytes(&ids[0])?;
    let join = JoinOptions {
        deadline: options.init_timeout,
        choice: options.interfaces.clone(),
        ..JoinOptions::default()
    };
    let group = Group::new(size, rank)?;
    let mut membership = rccl_transport::join(&id, group, Vec::new(), &join)?;
    let file = if rank == 0 { Some(Arena::create(size)?) } else { None };
    let among: Vec<Rank> = group.ranks().collect();
    match file {
        Some(file) if size == 1 => Ok(file),
        file => {
            Ok(membership.share_file(Rank(0), &among, file, &Deadline::after(options.init_timeout))?.file)
        }
    }
}
