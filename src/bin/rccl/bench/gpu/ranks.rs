//! The ranks of a worker whose buffers are in GPU memory: one, or all of them as threads where they share GPUs.

use std::{
    fs::OpenOptions,
    thread,
    time::{Duration, Instant},
};

use rccl::Communicator;
use rccl_core::{Group, ReduceOp, Request};

use super::{
    super::{
        data::{Data, Values},
        message::{Command, GpuSetup, Hello, Job, Library, Measured, Relay, Setup},
        worker::{POISON, length, processor_seconds},
    },
    join::Introduction,
};
use crate::{
    error::{Error, Result},
    sys::gpu::{Buffer, Captured, Desk, Reducer, Stations, Work, device_error},
};

/// Operations of a graph at most.
const GRAPH_OPERATIONS: u32 = 20;

/// Operations that a rank may be ahead of others in its process: a full queue of the driver would block them all.
const SHARED_AHEAD: u32 = 16;

/// Bytes that are made, copied and checked at a time.
const BLOCK_BYTES: usize = 32 << 20;

/// Bytes worth a thread's start.
const THREAD_BYTES: usize = 256 << 10;

/// The ranks of this process.
pub(in super::super) struct Ranks {
    /// The first to go: their desks wait for all work, that on the stations too.
    ranks: Vec<Rank>,
    stations: Option<Stations>,
    /// The descriptor that the launcher left open for the stations.
    descriptor: Option<i32>,
}

/// A rank, its buffers, and what reduces them.
pub(super) struct Rank {
    // The first to go, since it waits for the work of the others.
    pub(super) desk: Desk,
    pub(super) reducer: Box<dyn Reducer>,
    pub(super) communicator: Communicator,
    pub(super) group: Group,
    pub(super) values: fn(&Request, u32) -> Values,
    /// Whether other ranks live in this process.
    pub(super) shared: bool,
    pub(super) limit: Duration,
    pub(super) threads: usize,
}

impl Ranks {
    /// Takes the places of the setup's ranks in the group.
    pub(in super::super) fn join(
        setup: &Setup,
        gpu: &GpuSetup,
        id: &rccl::UniqueId,
        options: &rccl::Options,
    ) -> Result<(Self, Hello)> {
        let numbers: Vec<u32> = (setup.first_rank..setup.first_rank + setup.local_ranks).collect();
        let joined = together(numbers, |number| Rank::join(setup, gpu, id, options, number))?;
        let (ranks, introductions): (Vec<Rank>, Vec<Introduction>) = joined.into_iter().unzip();
        let created_ms = introductions.iter().map(|it| it.created_ms).fold(0.0, f64::max);
        let first = introductions.into_iter().next().expect("a worker has a rank");
        let descriptor = match gpu.library {
            Library::Rccl { stations, .. } => Some(stations),
            Library::Nccl { .. } => None,
        };
        let hello = Hello {
            rank: setup.first_rank,
            describe: first.describe,
            transport: "shm".to_owned(),
            version: first.version,
            created_ms: Some(created_ms),
        };
        Ok((Self { ranks, stations: None, descriptor }, hello))
    }

    pub(in super::super) fn answer(&mut self, command: &Command) -> Result<Measured> {
        match command {
            Command::Measure(job) => {
                let ranks: Vec<&mut Rank> = self.ranks.iter_mut().collect();
                Ok(combined(together(ranks, |rank| rank.measure(job))?))
            }
            Command::Relay(relay) => self.relay(relay),
            Command::Copy { .. } => Err(Error::Processes("GPUs are asked for relays, not copies".to_owned())),
        }
    }

    fn barrier(&self) -> Result<()> {
        together(self.ranks.iter().map(|rank| &rank.communicator).collect(), |communicator| {
            Ok(communicator.barrier()?)
        })?;
        Ok(())
    }

    fn relay(&mut self, relay: &Relay) -> Result<Measured> {
        let limit = self.ranks[0].limit;
        for rank in &mut self.ranks {
            rank.desk.reserve(length(relay.bytes)?, limit)?;
        }
        if self.stations.is_none() {
            self.stations = Some(self.map_stations()?);
        }
        self.barrier()?;
        let stations = self.stations.as_ref().expect("mapped above");
        let desks = self.desks();
        let run = || stations.relay(&desks, relay.bytes, relay.chunk_bytes, relay.slots);
        let wait = || desks.iter().try_for_each(|(_, desk)| desk.wait(limit));
        run()?;
        wait()?;
        self.barrier()?;
        let (cpu, clock) = (processor_seconds(), Instant::now());
        for _ in 0..relay.iterations {
            run()?;
        }
        wait()?;
        let us = clock.elapsed().as_secs_f64() * 1e6 / f64::from(relay.iterations.max(1));
        let cpu_s = processor_seconds() - cpu;
        Ok(Measured { us, device_us: None, samples_us: Vec::new(), cpu_s, wrong: 0 })
    }

    fn map_stations(&self) -> Result<Stations> {
        let number = self.descriptor.unwrap_or(-1);
        let path = format!("/proc/self/fd/{number}");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| Error::file(&path, error))?;
        let first = &self.ranks[0];
        let stations = Stations::new(file, first.group.size(), &self.desks(), || self.barrier())?;
        if first.group.rank().0 == 0 {
            stations.prepare();
        }
        Ok(stations)
    }

    fn desks(&self) -> Vec<(u32, &Desk)> {
        self.ranks.iter().map(|rank| (rank.group.rank().0, &rank.desk)).collect()
    }
}

/// Does the same for all at once, a thread each.
fn together<T: Send, R: Send>(all: Vec<T>, work: impl Fn(T) -> Result<R> + Sync) -> Result<Vec<R>> {
    if all.len() == 1 {
        return all.into_iter().map(work).collect();
    }
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        let joined = threads.into_iter().map(|it| it.join());
        joined.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// What ranks of one process measured, as one: the slowest counts, and processor time is the process's.
fn combined(all: Vec<Measured>) -> Measured {
    let most = |value: fn(&Measured) -> f64| all.iter().map(value).fold(0.0, f64::max);
    let samples = all.iter().map(|it| it.samples_us.len()).min().unwrap_or(0);
    Measured {
        us: most(|it| it.us),
        device_us: all.iter().filter_map(|it| it.device_us).reduce(f64::max),
        samples_us: (0..samples)
            .map(|index| all.iter().map(|it| it.samples_us[index]).fold(0.0, f64::max))
            .collect(),
        cpu_s: most(|it| it.cpu_s),
        wrong: all.iter().map(|it| it.wrong).sum(),
    }
}

impl Rank {
    fn measure(&mut self, job: &Job) -> Result<Measured> {
        let request = job.request(self.group)?;
        let op = request.op.unwrap_or(ReduceOp::Sum);
        let (count, data_type) = (request.count, request.data_type);
        let work = Work { count, data_type, op, in_place: job.in_place };
        self.desk.reserve(length(count)? * data_type.size_bytes(), self.limit)?;
        let context = self.desk.context().clone();
        // As in an application, the context is current all the time.
        let _guard = context.enter().map_err(device_error)?;
        self.prepare(&request, work.in_place, job.checks.first().copied().unwrap_or(0))?;

        // What frees memory or makes graphs may wait for all the device's work: nothing of other ranks must spin there yet.
        self.communicator.barrier()?;
        // The first calls may set things up, which a capture must not.
        self.desk.enqueue(&*self.reducer, &work)?;
        self.desk.wait(self.limit)?;
        let many = Runner::new(self, work, job.graph.then_some(GRAPH_OPERATIONS.min(job.iterations)))?;
        let one = Runner::new(self, work, job.graph.then_some(1))?;
        self.communicator.barrier()?;
        many.run(job.warmup, job.blocking)?;
        self.desk.wait(self.limit)?;
        self.communicator.barrier()?;
        let (cpu, clock) = (processor_seconds(), Instant::now());
        let start = self.desk.mark()?;
        let operations = many.run(job.iterations, job.blocking)?;
        let end = self.desk.mark()?;
        self.finish()?;
        let (elapsed, cpu_s) = (clock.elapsed(), processor_seconds() - cpu);
        let device = end.elapsed_since(&start).map_err(device_error)?;

        let mut samples_us = Vec::new();
        for _ in 0..job.samples {
            let clock = Instant::now();
            one.run(1, true)?;
            samples_us.push(clock.elapsed().as_secs_f64() * 1e6);
        }
        let mut wrong = 0;
        for &seed in &job.checks {
            self.prepare(&request, work.in_place, seed)?;
            one.run(1, true)?;
            wrong += self.wrong(&request, work.in_place, seed)?;
        }
        self.reducer.check()?;
        let us = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(operations.max(1));
        // The processor's part is given for the operations that were asked for.
        let cpu_s = cpu_s * f64::from(job.iterations) / f64::from(operations.max(1));
        Ok(Measured { us: us(elapsed), device_us: Some(us(device)), samples_us, cpu_s, wrong })
    }

    /// Waits for what is being timed. Where other ranks of this process must go on enqueuing meanwhile, by asking; else in the
    /// driver, where the launcher's deadline ends what does not end.
    fn finish(&self) -> Result<()> {
        if self.shared { self.desk.wait(self.limit) } else { self.desk.synchronize() }
    }

    fn data(&self, request: &Request, seed: u64) -> Data {
        Data { data_type: request.data_type, seed, values: (self.values)(request, self.group.size()) }
    }

    /// Writes this rank's input, and poison where only output is.
    fn prepare(&self, request: &Request, in_place: bool, seed: u64) -> Result<()> {
        let (data, rank) = (self.data(request, seed), self.group.rank());
        let total = length(request.count)? * request.data_type.size_bytes();
        let mut block = vec![0; BLOCK_BYTES.min(total)];
        for start in (0..total).step_by(BLOCK_BYTES) {
            let block = &mut block[..BLOCK_BYTES.min(total - start)];
            self.in_parts(block, |offset, part| {
                data.fill_from(rank, (start + offset) as u64, part);
                0
            });
            self.desk.upload(Buffer::Input, start, block, self.limit)?;
        }
        if in_place {
            return Ok(());
        }
        self.desk.fill(Buffer::Output, POISON, total)?;
        self.desk.wait(self.limit)
    }

    /// Wrong elements of the result.
    fn wrong(&self, request: &Request, in_place: bool, seed: u64) -> Result<u64> {
        let (data, group, size) = (self.data(request, seed), self.group, request.data_type.size_bytes());
        let total = length(request.count)? * size;
        let buffer = if in_place { Buffer::Input } else { Buffer::Output };
        let mut block = vec![0; BLOCK_BYTES.min(total)];
        let mut wrong = 0;
        for start in (0..total).step_by(BLOCK_BYTES) {
            let block = &mut block[..BLOCK_BYTES.min(total - start)];
            self.desk.download(buffer, start, block, self.limit)?;
            wrong += self.in_parts(block, |offset, part| {
                data.wrong_part(group, request, ((start + offset) / size) as u64, part)
            });
        }
        Ok(wrong)
    }

    /// Gives parts of `block` (multiples of 8 bytes, but for the last) and where each starts to several threads; the sum of
    /// what they return.
    fn in_parts(&self, block: &mut [u8], work: impl Fn(usize, &mut [u8]) -> u64 + Sync) -> u64 {
        let part = block.len().div_ceil(self.threads).max(THREAD_BYTES).next_multiple_of(8);
        thread::scope(|scope| {
            let work = &work;
            let mut parts = block.chunks_mut(part).enumerate();
            let first = parts.next();
            let threads: Vec<_> =
                parts.map(|(index, bytes)| scope.spawn(move || work(index * part, bytes))).collect();
            let own = first.map_or(0, |(_, bytes)| work(0, bytes));
            let others = threads.into_iter().map(|it| it.join());
            own + others.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum::<u64>()
        })
    }
}

/// How operations are enqueued: one by one, or by launching a graph.
struct Runner<'a> {
    rank: &'a Rank,
    work: Work,
    graph: Option<(u32, Captured<'a>)>,
}

impl<'a> Runner<'a> {
    /// Captures graphs of `operations`, where those are asked for.
    fn new(rank: &'a Rank, work: Work, operations: Option<u32>) -> Result<Self> {
        let capture =
            |operations| Ok::<_, Error>((operations, rank.desk.capture(&*rank.reducer, &work, operations)?));
        Ok(Self { rank, work, graph: operations.map(capture).transpose()? })
    }

    /// Enqueues at least `operations`, and says how many; waits for each where `blocking`.
    fn run(&self, operations: u32, blocking: bool) -> Result<u32> {
        let Rank { desk, reducer, shared, .. } = self.rank;
        let each = self.graph.as_ref().map_or(1, |(operations, _)| *operations);
        let launches = operations.div_ceil(each);
        for launch in 1..=launches {
            match &self.graph {
                Some((_, graph)) => graph.launch()?,
                None => desk.enqueue(&**reducer, &self.work)?,
            }
            if blocking || *shared && (launch * each).is_multiple_of(SHARED_AHEAD.max(each)) {
                self.rank.finish()?;
            }
        }
        Ok(launches * each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_process_answer_as_one() {
        let one = |us: f64, wrong| Measured {
            us,
            device_us: Some(us / 2.0),
            samples_us: vec![us; wrong as usize],
            cpu_s: us,
            wrong,
        };
        let both = combined(vec![one(4.0, 1), one(3.0, 2)]);
        assert_eq!(both, Measured { samples_us: vec![4.0], wrong: 3, ..one(4.0, 0) });
    }

    #[test]
    fn work_is_done_for_all_at_once() {
        let meeting = std::sync::Barrier::new(3);
        let done = together(vec![1, 2, 3], |number| {
            meeting.wait();
            Ok(number * 2)
        });
        assert_eq!(done.unwrap(), [2, 4, 6]);
        let failed =
            together(
                vec![1, 2],
                |number| {
                    if number == 2 { Err(Error::Processes("two".to_owned())) } else { Ok(()) }
                },
            );
        assert_eq!(failed.unwrap_err().to_string(), "two");
    }
}
