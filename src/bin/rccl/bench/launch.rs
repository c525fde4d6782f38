//! The launcher's side: one process a rank, asked over pipes. Nothing of them outlives the launcher.

use std::{
    collections::VecDeque,
    env,
    io::{BufRead, BufReader, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    process::{Child, ChildStdin, Command as Process, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;

use rccl_transport::cuda::relay::Arena;
use rustix::io::{FdFlags, fcntl_setfd};

use super::{
    message::{Answer, Command, GpuSetup, Hello, Library, Measured, Setup},
    options::Transport,
    settings::Settings,
    worker::ID_VARIABLE,
};
use crate::error::{Error, Result};

/// How long the others may take to say what they know once one rank has failed: they notice a death within 2 s.
const GRACE: Duration = Duration::from_secs(4);

/// How long workers may take to leave once they are no longer needed.
const FAREWELL: Duration = Duration::from_secs(10);

/// Lines of a worker's standard error that are repeated when it dies.
const LAST_WORDS: usize = 5;

/// A running group of workers. Dropping it kills what still runs.
pub(super) struct Workers {
    workers: Vec<Worker>,
    events: Receiver<(usize, Event)>,
    timeout: Duration,
    /// How the ranks reach each other, as rank 0 says.
    pub(super) describe: String,
    /// What carries the bytes: "shm" or "tcp".
    pub(super) transport: String,
    /// The version of another library that they measure.
    pub(super) version: Option<String>,
    /// Milliseconds that making the group took on the slowest rank, where that was timed.
    created_ms: Option<f64>,
    /// What the GPUs' limit is measured through; the workers inherit it.
    _stations: Option<OwnedFd>,
    /// Serves the group while it forms and lives.
    _root: rccl::Root,
}

/// Whose collectives workers run.
pub(super) enum Team {
    /// This library's.
    Ours,
    /// NCCL's, from a file.
    Nccl {
        /// The file, or a name that the loader finds.
        path: String,
    },
}

struct Worker {
    process: Child,
    commands: Option<ChildStdin>,
    last_words: Arc<Mutex<VecDeque<String>>>,
}

enum Event {
    /// The worker said something.
    Line(String),
    /// The worker closed its output: it is ending, whatever the reason.
    End,
}

/// What is known of a rank while answers are awaited.
enum State<T> {
    Silent,
    Answered(T),
    Failed(String),
    Ended,
}

impl Workers {
    /// Starts a process a rank (one for all where ranks of ours share GPUs) and waits until they form a group.
    ///
    /// # Errors
    /// [`Error::Processes`] saying which ranks failed, and why.
    pub(super) fn start(settings: &Settings, transport: Transport, team: &Team) -> Result<Self> {
        let measured = settings.gpus.is_some() && matches!(team, Team::Ours);
        let stations = measured.then(|| stations(settings.ranks)).transpose()?;
        let (root, id) = super::rendezvous()?;
        let (sender, events) = mpsc::channel();
        let mut group = Self {
            workers: Vec::new(),
            events,
            timeout: settings.timeout,
            describe: String::new(),
            transport: String::new(),
            version: None,
            created_ms: None,
            _stations: None,
            _root: root,
        };
        for setup in setups(settings, transport, team, stations.as_ref()) {
            let mut process = process(&setup)?;
            // The id holds the group's secret; other users can read argument lists, but not environments.
            process.env(ID_VARIABLE, id.to_string()).envs(variables(settings, team, &setup));
            let index = group.workers.len();
            group.workers.push(spawn(process, setup.first_rank, index, &sender)?);
        }
        group._stations = stations;
        let hellos: Vec<Hello> = group.collect("join the group")?;
        group.created_ms = hellos.iter().filter_map(|hello| hello.created_ms).reduce(f64::max);
        if let Some(hello) = hellos.into_iter().next() {
            (group.describe, group.transport) = (hello.describe, hello.transport);
            group.version = hello.version;
        }
        Ok(group)
    }

    /// How long making the group took, in words; nothing where that was not timed.
    pub(super) fn created(&self) -> String {
        self.created_ms.map_or_else(String::new, |ms| format!(", created in {ms:.0} ms"))
    }

    /// Asks all workers to do the same, and waits for their answers, in rank order.
    ///
    /// # Errors
    /// [`Error::Processes`] saying which ranks failed, and why. The group is of no use then.
    pub(super) fn ask(&mut self, command: &Command) -> Result<Vec<Measured>> {
        let mut line = serde_json::to_string(command).map_err(std::io::Error::from)?;
        line.push('\n');
        for commands in self.workers.iter_mut().filter_map(|worker| worker.commands.as_mut()) {
            // A worker that does not read any more has ended, or will, and says so on its other pipe.
            let _ = commands.write_all(line.as_bytes());
        }
        self.collect("answer")
    }

    /// One message of each worker.
    fn collect<T: DeserializeOwned>(&mut self, what: &str) -> Result<Vec<T>> {
        let mut states: Vec<State<T>> = self.workers.iter().map(|_| State::Silent).collect();
        // The library's own deadline comes first and names the cause.
        let mut deadline = Instant::now() + self.timeout + GRACE;
        let mut failed = false;
        while states.iter().any(|state| matches!(state, State::Silent)) {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((rank, Event::Line(line))) => {
                    states[rank] = match serde_json::from_str(&line) {
                        Ok(Answer::Done(answer)) => State::Answered(answer),
                        Ok(Answer::Failed { error }) => State::Failed(error),
                        Err(error) => State::Failed(format!("said `{line}`, which makes no sense: {error}")),
                    };
                }
                Ok((rank, Event::End)) if matches!(states[rank], State::Failed(_)) => {}
                Ok((rank, Event::End)) => states[rank] = State::Ended,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
            if !failed && states.iter().any(|state| matches!(state, State::Failed(_) | State::Ended)) {
                failed = true;
                deadline = deadline.min(Instant::now() + GRACE);
            }
        }
        if states.iter().all(|state| matches!(state, State::Answered(_))) {
            return Ok(states
                .into_iter()
                .filter_map(|state| match state {
                    State::Answered(answer) => Some(answer),
                    _ => None,
                })
                .collect());
        }
        Err(self.broken(&states, what))
    }

    /// Says what went wrong: first who died, then what the others say of it, then who says nothing.
    fn broken<T>(&mut self, states: &[State<T>], what: &str) -> Error {
        let (mut died, mut said, mut silent) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, state) in states.iter().enumerate() {
            match state {
                State::Answered(_) => {}
                State::Failed(error) => said.push(format!("rank {rank}: {error}")),
                State::Ended => died.push(format!("rank {rank} died: {}", self.workers[rank].obituary())),
                State::Silent => silent.push(rank.to_string()),
            }
        }
        if !silent.is_empty() {
            let seconds = self.timeout.as_secs();
            said.push(format!("rank {} did not {what} (limit {seconds} s, --timeout)", silent.join(", ")));
        }
        died.extend(said);
        Error::Processes(died.join("\n       "))
    }

    /// Lets the workers leave, and waits until they have.
    ///
    /// # Errors
    /// [`Error::Processes`] if one does not leave in time, or fails while leaving.
    pub(super) fn finish(mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.commands = None;
        }
        let deadline = Instant::now() + FAREWELL;
        let mut staying: Vec<usize> = (0..self.workers.len()).collect();
        while !staying.is_empty() {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((rank, Event::End)) => staying.retain(|&it| it != rank),
                Ok((_, Event::Line(_))) => {}
                Err(_) => {
                    let ranks = staying.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                    return Err(Error::Processes(format!("rank {ranks} did not leave within {FAREWELL:?}")));
                }
            }
        }
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            let status =
                worker.process.wait().map_err(|error| Error::Processes(format!("rank {rank}: {error}")))?;
            if !status.success() {
                return Err(Error::Processes(format!(
                    "rank {rank} failed while leaving: {}",
                    worker.obituary()
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // It may have ended by itself: then there is nothing to kill.
            let _ = worker.process.kill();
        }
        for worker in &mut self.workers {
            let _ = worker.process.wait();
        }
    }
}

impl Worker {
    /// How a worker that closed its output ended, and the last it wrote to standard error.
    fn obituary(&mut self) -> String {
        // It is ending, so this does not wait long; killing makes sure of it, and changes no status that is already there.
        let status = match self.process.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        let words: String = words.iter().map(|line| format!("\n         {line}")).collect();
        format!("{status}{words}")
    }
}

/// The memory that GPUs' limit is measured through. Processes that are started inherit it.
fn stations(ranks: u32) -> Result<OwnedFd> {
    let stations = Arena::create(ranks).map_err(rccl::Error::from)?;
    fcntl_setfd(&stations, FdFlags::empty()).map_err(std::io::Error::from)?;
    Ok(stations)
}

/// What each process is told.
fn setups(
    settings: &Settings,
    transport: Transport,
    team: &Team,
    stations: Option<&OwnedFd>,
) -> impl Iterator<Item = Setup> {
    let gpu = settings.gpus.map(|gpus| GpuSetup {
        devices: gpus.devices,
        library: match team {
            Team::Ours => Library::Rccl {
                protocol: gpus.protocol.map(|protocol| protocol.to_string()),
                stations: stations.map_or(-1, AsRawFd::as_raw_fd),
            },
            Team::Nccl { path } => Library::Nccl { path: path.clone() },
        },
    });
    let together = matches!(team, Team::Ours) && settings.gpus.is_some_and(|gpus| gpus.together);
    let local_ranks = if together { settings.ranks } else { 1 };
    let all = Setup {
        first_rank: 0,
        local_ranks,
        ranks: settings.ranks,
        transport: transport.name().to_owned(),
        algorithm: settings.algorithm.map_or("auto", |algorithm| algorithm.name()).to_owned(),
        timeout_s: settings.timeout.as_secs(),
        gpu,
    };
    (0..settings.ranks)
        .step_by(local_ranks as usize)
        .map(move |first_rank| Setup { first_rank, ..all.clone() })
}

/// What each process finds in its environment besides what it inherits.
fn variables(settings: &Settings, team: &Team, setup: &Setup) -> Vec<(String, String)> {
    let (shared, together) = settings.gpus.map_or((false, false), |gpus| (gpus.shared, gpus.together));
    let text = |key: &str, value: String| (key.to_owned(), value);
    match team {
        // Streams that share a queue of the device wait for each other: as many queues as there can be.
        Team::Ours if together && env::var_os("CUDA_DEVICE_MAX_CONNECTIONS").is_none() => {
            vec![text("CUDA_DEVICE_MAX_CONNECTIONS", "32".to_owned())]
        }
        Team::Ours => Vec::new(),
        Team::Nccl { .. } => {
            let mut variables = settings.peer_env.clone();
            if shared {
                // NCCL refuses two ranks of one host on one GPU. Ours, by which they meet, is told the truth.
                variables.push(text("NCCL_HOSTID", format!("rccl-bench-{}", setup.first_rank)));
                variables.push(text("RCCL_HOSTID", "rccl-bench".to_owned()));
            }
            variables
        }
    }
}

fn process(setup: &Setup) -> Result<Process> {
    let program =
        env::current_exe().map_err(|error| Error::Processes(format!("cannot find this program: {error}")))?;
    let setup = serde_json::to_string(setup).map_err(std::io::Error::from)?;
    let mut process = Process::new(program);
    process.arg("bench-worker").arg(setup);
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(process)
}

fn spawn(mut process: Process, rank: u32, index: usize, events: &Sender<(usize, Event)>) -> Result<Worker> {
    let failed =
        |what: &str, error: std::io::Error| Error::Processes(format!("rank {rank}: {what}: {error}"));
    let mut process = process.spawn().map_err(|error| failed("cannot start a process", error))?;
    let (commands, answers, complaints) =
        (process.stdin.take(), process.stdout.take(), process.stderr.take());
    let last_words = Arc::new(Mutex::new(VecDeque::new()));
    let worker = Worker { process, commands, last_words: Arc::clone(&last_words) };
    let listener = answers.map(|answers| {
        let events = events.clone();
        thread::Builder::new().name(format!("answers {rank}")).spawn(move || listen(index, answers, &events))
    });
    let repeater = complaints.map(|complaints| {
        thread::Builder::new()
            .name(format!("errors {rank}"))
            .spawn(move || repeat(index, complaints, &last_words))
    });
    for thread in [listener, repeater].into_iter().flatten() {
        // The threads end with the worker's pipes.
        thread.map_err(|error| failed("cannot start a thread", error))?;
    }
    Ok(worker)
}

/// Passes on what a worker says, line by line, and that it has ended.
fn listen(rank: usize, answers: impl Read, events: &Sender<(usize, Event)>) {
    for line in BufReader::new(answers).lines() {
        let Ok(line) = line else { break };
        if events.send((rank, Event::Line(line))).is_err() {
            return;
        }
    }
    // Nobody listens any more if the launcher is done.
    let _ = events.send((rank, Event::End));
}

/// Repeats what a worker writes to standard error, with its rank, and keeps the last of it.
fn repeat(rank: usize, complaints: impl Read, last_words: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(complaints).lines() {
        let Ok(line) = line else { return };
        let _ = writeln!(std::io::stderr(), "[rank {rank}] {line}");
        let mut words = last_words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.len() == LAST_WORDS {
            words.pop_front();
        }
        words.push_back(line);
    }
}
