//! Checks and times the CUDA kernels on real devices, without any peer access: ranks meet in a memfd only.
//!
//! ```text
//! gpu-smoke [--ranks N | --processes N] [--only check|ll|stripe|relay|bulk]...
//! ```
//! N ranks (2 by default, at most 32): threads of this process, or with `--processes` processes of their own, which then
//! need a device each. Rank r uses device r modulo the number of devices. Prints medians over rounds of the slowest rank.

mod arena;
mod check;
mod measure;
mod rank;

use std::{
    os::fd::{AsRawFd, RawFd},
    process::{Child, Command, ExitCode},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use arena::Arena;
use rank::Rank;
use rccl_transport::{
    Error, Result,
    cuda::{Device, Driver, HostRegistration, relay},
};

const DEADLINE: Duration = Duration::from_secs(900);

#[derive(Debug, Clone)]
struct Options {
    ranks: u32,
    processes: bool,
    only: Vec<String>,
    /// This process is one rank, and the arena has this descriptor.
    child: Option<(u32, RawFd)>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { ranks: 2, processes: false, only: Vec::new(), child: None };
        let invalid = |what: &str, value: &str| Error::Invalid {
            what: what.to_owned(),
            value: value.to_owned(),
            reason:
                "usage: gpu-smoke [--ranks 2..32 | --processes 2..32] [--only check|ll|stripe|relay|bulk]..."
                    .to_owned(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| invalid(&argument, ""));
            match argument.as_str() {
                "--ranks" | "--processes" => {
                    let text = value()?;
                    let ranks = text.parse().ok().filter(|n| (2..=32).contains(n));
                    options.ranks = ranks.ok_or_else(|| invalid(&argument, &text))?;
                    options.processes |= argument == "--processes";
                }
                "--only" => options.only.push(value()?),
                "--child" => {
                    let (rank, fd) = (value()?, value()?);
                    let parsed = rank.parse().ok().zip(fd.parse().ok());
                    options.child = Some(parsed.ok_or_else(|| invalid("--child", &rank))?);
                }
                other => return Err(invalid("argument", other)),
            }
        }
        Ok(options)
    }

    fn wants(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == what)
    }
}

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|options| match options.child {
        Some((rank, fd)) => child(&options, rank, fd),
        None if options.processes => parent(&options),
        None => threads(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// All ranks as threads of this process.
fn threads(options: &Options) -> Result<()> {
    let driver = Driver::open()?;
    let arena = Arena::map(relay::Arena::create(options.ranks)?, options.ranks)?;
    arena.shared.prepare();
    // Portable: one registration serves the contexts of all devices.
    let registration = Arc::new(HostRegistration::new(&Rank::context(&driver, 0)?, arena.shared.region())?);
    let ranks: Vec<_> = (0..options.ranks)
        .map(|rank| {
            let context = Rank::context(&driver, rank)?;
            Rank::new(context, Arc::clone(&registration), arena.clone(), rank)
        })
        .collect::<Result<_>>()?;
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| run(rank, options))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    first_cause(results)
}

/// The failure that made the others fail.
fn first_cause(results: Vec<Result<()>>) -> Result<()> {
    let mut errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    let cause = errors.iter().position(|error| !matches!(error, Error::PeerLost { .. })).unwrap_or(0);
    if errors.is_empty() { Ok(()) } else { Err(errors.swap_remove(cause)) }
}

/// Starts a process for every rank, which inherits the arena.
fn parent(options: &Options) -> Result<()> {
    let fd = relay::Arena::create(options.ranks)?;
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty())
        .map_err(|error| Error::io("letting the ranks inherit the arena", error))?;
    let arena = Arena::map(&fd, options.ranks)?;
    arena.shared.prepare();
    let program = std::env::current_exe().map_err(|error| Error::io("finding this program", error))?;
    let mut children = Vec::new();
    for rank in 0..options.ranks {
        let mut command = Command::new(&program);
        command.args(["--ranks", &options.ranks.to_string()]);
        command.args(["--child", &rank.to_string(), &fd.as_raw_fd().to_string()]);
        options.only.iter().for_each(|only| {
            command.args(["--only", only]);
        });
        children.push(
            command.spawn().map_err(|error| Error::io(format!("starting {}", program.display()), error))?,
        );
    }
    let finished = watch(&mut children, &arena);
    for child in &mut children {
        // Fails for those that have ended, which is fine.
        let _ = child.kill();
        let _ = child.wait();
    }
    finished
}

fn watch(children: &mut [Child], arena: &Arena) -> Result<()> {
    let start = Instant::now();
    let mut failed = None;
    let mut running: Vec<_> = children.iter_mut().enumerate().collect();
    while !running.is_empty() {
        let mut ended = Ok(());
        running.retain_mut(|(rank, child)| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                if !status.success() && failed.is_none() {
                    arena.abort();
                    failed =
                        Some(Error::PeerLost { peer: format!("rank {rank}"), cause: status.to_string() });
                }
                false
            }
            Err(error) => {
                ended = Err(Error::io("waiting for a rank", error));
                false
            }
        });
        ended?;
        if start.elapsed() > DEADLINE {
            arena.abort();
            return Err(Error::Timeout { waiting_for: "the ranks".to_owned(), after: DEADLINE });
        }
        thread::sleep(Duration::from_millis(20));
    }
    failed.map_or(Ok(()), Err)
}

fn child(options: &Options, rank: u32, fd: RawFd) -> Result<()> {
    // SAFETY: the parent made the arena and passes its descriptor for this purpose alone.
    let fd = unsafe { Arena::inherited(fd) };
    let arena = Arena::map(fd, options.ranks)?;
    let started = Driver::open().and_then(|driver| {
        let devices = Device::count(&driver)?;
        if devices < options.ranks {
            return Err(Error::Unavailable {
                what: format!("--processes {} on {devices} devices", options.ranks),
                reason:
                    "processes that share a device take turns, and kernels that wait would starve each other"
                        .to_owned(),
            });
        }
        let context = Rank::context(&driver, rank)?;
        let registration = Arc::new(HostRegistration::new(&context, arena.shared.region())?);
        Rank::new(context, registration, arena.clone(), rank)
    });
    match started {
        Ok(rank) => run(&rank, options),
        Err(error) => {
            arena.abort();
            Err(error)
        }
    }
}

fn run(rank: &Rank, options: &Options) -> Result<()> {
    let ran = stages(rank, options);
    if ran.is_err() {
        rank.arena.abort();
    }
    ran
}

fn stages(rank: &Rank, options: &Options) -> Result<()> {
    let device = rank.context.device();
    eprintln!(
        "rank {} of {}: {} at {}, kernels {}",
        rank.rank(),
        rank.ranks(),
        device.name()?,
        device.pci_bus_id()?,
        rank.relay.kernels().image()
    );
    rank.arena.barrier()?;
    if options.wants("check") {
        let cases = check::all(rank)?;
        if rank.rank() == 0 {
            println!("check: {cases} cases, every bit right, no byte beside them changed");
        }
    }
    // Measurements check their results with these values; the buffers hold them ever after.
    rank.upload(rank.input.start(), &vec![0; rank::MAX_BYTES])?;
    rank.arena.barrier()?;
    if options.wants("ll") {
        measure::ll(rank)?;
    }
    if options.wants("stripe") {
        measure::stripe(rank, false)?;
    }
    if options.wants("relay") {
        measure::stripe(rank, true)?;
    }
    if options.wants("bulk") {
        measure::bulk(rank)?;
    }
    Ok(())
}
