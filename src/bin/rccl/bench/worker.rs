//! A rank of the benchmark: a process that joins the group and does what it is asked on its standard input.

use std::{
    fs::File,
    io::{self, BufRead, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use rccl::{Communicator, TransportChoice};
use rccl_core::{Algorithm, Group, Request};
use rustix::{
    process::{Signal, set_parent_process_death_signal},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use serde::Serialize;

use super::{
    data::{Data, Values},
    gpu::Ranks,
    message::{Answer, Command, Hello, Job, Measured, Setup, rounding},
};
use crate::{
    error::{Error, Result},
    sys,
};

/// The variable that holds the group's id.
pub(super) const ID_VARIABLE: &str = "RCCL_BENCH_ID";

/// A worker of `rccl bench`, which starts it
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerOptions {
    /// What it is told, as JSON.
    setup: String,
}

/// Serves until standard input ends. Failures are said on standard output, as the launcher expects.
pub(crate) fn run(options: &WorkerOptions) -> Result<ExitCode> {
    // Should the launcher be killed while this process waits in a collective, nothing else would end it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let mut voice = Voice::new()?;
    match serve(&options.setup, &mut voice) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            voice.say(&Answer::<()>::Failed { error: error.to_string() })?;
            Ok(error.exit_code())
        }
    }
}

/// What was standard output. Libraries that write there are heard on standard error.
struct Voice(File);

impl Voice {
    fn new() -> Result<Self> {
        let own = rustix::io::dup(io::stdout()).map_err(io::Error::from)?;
        rustix::stdio::dup2_stdout(io::stderr()).map_err(io::Error::from)?;
        Ok(Self(own.into()))
    }

    fn say(&mut self, answer: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(answer).map_err(io::Error::from)?;
        line.push('\n');
        Ok(self.0.write_all(line.as_bytes())?)
    }
}

fn serve(setup: &str, voice: &mut Voice) -> Result<()> {
    let id = std::env::var(ID_VARIABLE).map_err(|_| {
        Error::Processes(format!("`rccl bench` starts its workers itself, with {ID_VARIABLE} set"))
    })?;
    let id = id.parse().map_err(rccl::Error::from)?;
    let setup: Setup = serde_json::from_str(setup).map_err(io::Error::from)?;
    let options = library_options(&setup)?;
    if let Some(gpu) = &setup.gpu {
        let (mut ranks, hello) = Ranks::join(&setup, gpu, &id, &options)?;
        voice.say(&hello)?;
        return obey(voice, |command| ranks.answer(command));
    }
    let (mut rank, hello) = Rank::join(&setup, &id, &options)?;
    voice.say(&hello)?;
    obey(voice, |command| match command {
        Command::Measure(job) => rank.measure(job),
        Command::Copy { bytes, iterations } => rank.copy(*bytes, *iterations),
        Command::Relay(_) => Err(Error::Processes("host memory is asked for copies, not relays".to_owned())),
    })
}

fn library_options(setup: &Setup) -> Result<rccl::Options> {
    let patience = Duration::from_secs(setup.timeout_s);
    let mut options = rccl::Options::from_env()?;
    let transport = setup.transport.parse()?;
    if transport != TransportChoice::Auto {
        options.transport = transport;
    }
    if setup.algorithm != "auto" && setup.gpu.is_none() {
        options.algorithm = Some(setup.algorithm.parse()?);
    }
    (options.deadline, options.init_timeout) = (patience, patience);
    Ok(options)
}

/// Answers every command.
fn obey(voice: &mut Voice, mut answer: impl FnMut(&Command) -> Result<Measured>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        let command = serde_json::from_str(&line?).map_err(io::Error::from)?;
        voice.say(&answer(&command)?)?;
    }
    Ok(())
}

/// Gives this rank's thread a processor of its own where there are enough, as `mpirun` does, so that a measurement does not
/// depend on where the scheduler woke the ranks. Not before the engine's thread exists: that one stays free.
fn bind(rank: u32, ranks: u32) -> Result<()> {
    let allowed = sched_getaffinity(None).map_err(io::Error::from)?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    if allowed.count() < ranks {
        return Ok(());
    }
    let mut own = CpuSet::new();
    own.set(processors.nth(rank as usize).expect("as many as ranks"));
    Ok(sched_setaffinity(None, &own).map_err(io::Error::from)?)
}

/// Reusable memory that starts at a page, so that no measurement depends on where the allocator put it.
#[derive(Default)]
struct Memory(Vec<u8>);

const PAGE_BYTES: usize = 4096;

impl Memory {
    /// The first `len` bytes, whatever they hold.
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len + PAGE_BYTES {
            self.0 = vec![0; len + PAGE_BYTES];
        }
        let start = self.0.as_ptr().align_offset(PAGE_BYTES);
        &mut self.0[start..start + len]
    }
}

struct Rank {
    communicator: Communicator,
    group: Group,
    algorithm: Option<Algorithm>,
    one: Memory,
    other: Memory,
}

/// The caller's buffers of one operation.
enum Buffers<'a> {
    Apart {
        input: &'a mut [u8],
        output: &'a mut [u8],
    },
    /// One buffer as long as the larger of the two, and where the smaller one starts in it.
    InPlace {
        both: &'a mut [u8],
        offset: usize,
        input_is_smaller: bool,
    },
}

/// What outputs hold before a checked operation: not what the operation gives, so that work left out shows.
pub(super) const POISON: u8 = 0xa5;

impl Rank {
    /// Takes the setup's place in the group.
    fn join(setup: &Setup, id: &rccl::UniqueId, options: &rccl::Options) -> Result<(Self, Hello)> {
        let (rank, ranks) = (setup.first_rank, setup.ranks);
        let communicator = Communicator::create(id, rank, ranks, options)?;
        bind(rank, ranks)?;
        let description = communicator.describe();
        let uses = |name: &&str| description.transports.contains(name);
        let transport = ["tcp", "verbs"].into_iter().find(uses).unwrap_or("shm");
        let hello = Hello {
            rank,
            describe: description.to_string(),
            transport: transport.to_owned(),
            version: None,
            created_ms: None,
        };
        let rank = Self {
            communicator,
            group: Group::new(ranks, rank)?,
            algorithm: options.algorithm,
            one: Memory::default(),
            other: Memory::default(),
        };
        Ok((rank, hello))
    }

    fn measure(&mut self, job: &Job) -> Result<Measured> {
        let Self { communicator, group, .. } = self;
        let group = *group;
        let request = job.request(group)?;
        let mut buffers = Buffers::new(&mut self.one, &mut self.other, group, &request, job.in_place)?;
        let data = |seed| Data { data_type: request.data_type, seed, values: Values::Any };
        buffers.prepare(data(job.checks.first().copied().unwrap_or(0)), group);

        for _ in 0..job.warmup {
            buffers.run(communicator, group, &request)?;
        }
        communicator.barrier()?;
        let (cpu, clock) = (processor_seconds(), Instant::now());
        for _ in 0..job.iterations {
            buffers.run(communicator, group, &request)?;
        }
        let (elapsed, cpu_s) = (clock.elapsed(), processor_seconds() - cpu);

        let mut samples_us = Vec::new();
        for _ in 0..job.samples {
            let clock = Instant::now();
            buffers.run(communicator, group, &request)?;
            samples_us.push(clock.elapsed().as_secs_f64() * 1e6);
        }

        let mut wrong = 0;
        for &seed in &job.checks {
            buffers.prepare(data(seed), group);
            buffers.run(communicator, group, &request)?;
            let algorithm = rounding(request.collective, self.algorithm);
            wrong += data(seed).wrong(group, &request, algorithm, buffers.output(group, &request));
        }
        let us = elapsed.as_secs_f64() * 1e6 / f64::from(job.iterations);
        Ok(Measured { us, device_us: None, samples_us, cpu_s, wrong })
    }

    /// All ranks copy at the same time, each between buffers of its own.
    fn copy(&mut self, bytes: u64, iterations: u32) -> Result<Measured> {
        let len = length(bytes)?;
        let (input, output) = (self.one.bytes(len), self.other.bytes(len));
        // Memory that was never written is one page of zeros, read from the cache.
        input.fill(1);
        output.copy_from_slice(input);
        self.communicator.barrier()?;
        let (cpu, clock) = (processor_seconds(), Instant::now());
        for _ in 0..iterations {
            std::hint::black_box(&mut *output).copy_from_slice(std::hint::black_box(&*input));
        }
        let (elapsed, cpu_s) = (clock.elapsed(), processor_seconds() - cpu);
        let us = elapsed.as_secs_f64() * 1e6 / f64::from(iterations);
        Ok(Measured { us, device_us: None, samples_us: Vec::new(), cpu_s, wrong: 0 })
    }
}

impl<'a> Buffers<'a> {
    fn new(
        one: &'a mut Memory,
        other: &'a mut Memory,
        group: Group,
        request: &Request,
        in_place: bool,
    ) -> Result<Self> {
        let size = request.data_type.size_bytes() as u64;
        let (input, output) = (request.input_len(group) * size, request.output_len(group) * size);
        match request.in_place_offset(group).filter(|_| in_place) {
            None => {
                Ok(Self::Apart { input: one.bytes(length(input)?), output: other.bytes(length(output)?) })
            }
            Some(offset) => Ok(Self::InPlace {
                both: one.bytes(length(input.max(output))?),
                offset: length(offset * size)?,
                input_is_smaller: input < output,
            }),
        }
    }

    /// Writes this rank's input, and poison wherever only output is.
    fn prepare(&mut self, data: Data, group: Group) {
        match self {
            Self::Apart { input, output } => {
                data.fill(group.rank(), input);
                output.fill(POISON);
            }
            Self::InPlace { both, offset, input_is_smaller } => {
                both.fill(POISON);
                let len = if *input_is_smaller { both.len() / group.size() as usize } else { both.len() };
                let start = if *input_is_smaller { *offset } else { 0 };
                data.fill(group.rank(), &mut both[start..start + len]);
            }
        }
    }

    fn run(&mut self, communicator: &Communicator, group: Group, request: &Request) -> Result<()> {
        match self {
            Self::Apart { input, output } => sys::run(communicator, group, request, input, output)?,
            Self::InPlace { both, .. } => sys::run_in_place(communicator, group, request, both)?,
        }
        Ok(())
    }

    /// What the operation gave.
    fn output(&self, group: Group, request: &Request) -> &[u8] {
        match self {
            Self::Apart { output, .. } => output,
            Self::InPlace { both, input_is_smaller: true, .. } => both,
            Self::InPlace { both, offset, .. } => {
                let len = request.output_len(group) as usize * request.data_type.size_bytes();
                &both[*offset..*offset + len]
            }
        }
    }
}

pub(super) fn length(bytes: u64) -> Result<usize> {
    usize::try_from(bytes)
        .map_err(|_| Error::Processes(format!("{bytes} bytes do not fit in this machine's memory")))
}

/// Processor seconds of this process so far, in all its threads.
pub(super) fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
