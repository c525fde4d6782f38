//! The other library's side: its workers, started as benches/peers/README.md says, and asked over a socket.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, ErrorKind, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rccl_core::Collective;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::super::{
    measure::{Batch, Spec, trial},
    options::{PeerName, Transport},
    settings::Settings,
    statistics::{iterations, warmup},
};
use crate::error::{Error, Result};

/// How long the workers may take to start (Python imports a lot), and to leave.
const START_LIMIT: Duration = Duration::from_secs(120);
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// How often processes and sockets that cannot be waited for together are looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A running group of another library's workers. Dropping it ends them.
pub(in super::super) struct Outside {
    name: PeerName,
    processes: Vec<Child>,
    ranks: Vec<BufReader<UnixStream>>,
    /// The library's version, as its workers say.
    pub(super) version: String,
    /// The variables it was given, `K=V K=V`.
    pub(super) env: String,
    /// What it cannot do, said once each.
    refusals: Vec<String>,
    /// Holds the socket and what else the workers meet by.
    _folder: Folder,
}

/// Where the peers are: what `cargo xtask peers` keeps in its cache.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Installed {
    python: Option<PathBuf>,
    gloo_script: Option<PathBuf>,
    mpirun: Option<PathBuf>,
    openmpi_worker: Option<PathBuf>,
    env: BTreeMap<String, String>,
}

/// What every rank of the peer is asked.
#[derive(Debug, Clone, Serialize)]
pub(in super::super) struct Ask {
    collective: &'static str,
    dtype: &'static str,
    op: &'static str,
    bytes: u64,
    warmup: u32,
    iterations: u32,
    in_place: bool,
    check: bool,
}

#[derive(Debug, Deserialize)]
struct Hello {
    version: String,
    rank: u32,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answer {
    Failed { error: String },
    Done { us: f64, wrong: u64, cpu_s: f64, in_place: bool },
}

impl Outside {
    /// Starts the peer's workers on the same number of ranks and, where it has a choice, on the same transport.
    ///
    /// # Errors
    /// [`Error::Processes`] if it is not installed, does not start, or does not say hello in time.
    pub(super) fn start(name: PeerName, settings: &Settings, transport: Transport) -> Result<Self> {
        let failed = |what: String| Error::Processes(format!("{}: {what}", name.name()));
        let installed = Installed::find(name)?;
        let folder =
            Folder::new().map_err(|error| failed(format!("cannot make a folder for sockets: {error}")))?;
        let socket = folder.0.join("peer.sock");
        let listener =
            UnixListener::bind(&socket).map_err(|error| failed(format!("{}: {error}", socket.display())))?;
        let mut env = installed.env.clone();
        if name == PeerName::Openmpi && transport == Transport::Tcp {
            env.insert("OMPI_MCA_btl".to_owned(), "self,tcp".to_owned());
        }
        env.extend(settings.peer_env.iter().cloned());
        let mut peer = Self {
            name,
            processes: Vec::new(),
            ranks: Vec::new(),
            version: String::new(),
            env: described(name, &env, settings),
            refusals: Vec::new(),
            _folder: folder,
        };
        for mut command in
            installed.commands(name, settings.ranks, &peer._folder.0).ok_or_else(|| not_installed(name))?
        {
            command.envs(&env).env("RCCL_PEER_SOCKET", &socket).stdin(Stdio::null()).stdout(Stdio::null());
            peer.processes.push(command.spawn().map_err(|error| failed(format!("cannot start: {error}")))?);
        }
        peer.accept(&listener, settings)?;
        Ok(peer)
    }

    fn failed(&self, what: impl std::fmt::Display) -> Error {
        Error::Processes(format!("{}: {what}", self.name.name()))
    }

    /// Takes one connection and its hello from each rank and puts them in order.
    fn accept(&mut self, listener: &UnixListener, settings: &Settings) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        listener.set_nonblocking(true).map_err(|error| self.failed(error))?;
        let mut greeted = Vec::new();
        while greeted.len() < settings.ranks as usize {
            match listener.accept() {
                Ok((stream, _)) => greeted.push(self.greet(stream, settings.timeout)?),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.check_alive()?;
                    if Instant::now() > deadline {
                        return Err(self.failed(format!(
                            "{} of {} ranks connected within {START_LIMIT:?}",
                            greeted.len(),
                            settings.ranks
                        )));
                    }
                    thread::sleep(LOOK);
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        greeted.sort_by_key(|(rank, _)| *rank);
        self.ranks = greeted.into_iter().map(|(_, stream)| stream).collect();
        Ok(())
    }

    fn greet(&mut self, stream: UnixStream, timeout: Duration) -> Result<(u32, BufReader<UnixStream>)> {
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(timeout)))
            .and_then(|()| stream.set_write_timeout(Some(timeout)));
        prepared.map_err(|error| self.failed(error))?;
        let mut stream = BufReader::new(stream);
        let hello: Hello = read(&mut stream).map_err(|error| self.failed(error))?;
        self.version = hello.version;
        Ok((hello.rank, stream))
    }

    fn check_alive(&mut self) -> Result<()> {
        for index in 0..self.processes.len() {
            match self.processes[index].try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    return Err(self.failed(format!("a worker ended before it connected: {status}")));
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// What to ask in each round: as many operations as fill a batch. `None` if the peer cannot do this, which is said once.
    ///
    /// # Errors
    /// [`Error::Processes`] if a worker does not answer.
    pub(super) fn prepare(
        &mut self,
        settings: &Settings,
        spec: &Spec,
        in_place: bool,
    ) -> Result<Option<Ask>> {
        // The workers broadcast from rank 0 only.
        if spec.collective == Collective::Broadcast && spec.root != 0 {
            self.refuse("broadcasts from rank 0 only".to_owned());
            return Ok(None);
        }
        let mut ask = Ask {
            collective: spec.collective.name(),
            dtype: spec.data_type.name(),
            op: spec.op.map_or("sum", |op| op.name()),
            bytes: spec.bytes(),
            warmup: 1,
            iterations: trial(spec.bytes()),
            in_place,
            check: false,
        };
        let us = match self.ask(&ask, spec)? {
            Ok(batch) => batch.us,
            Err(refusal) => {
                self.refuse(refusal);
                return Ok(None);
            }
        };
        ask.iterations = settings.iterations.unwrap_or_else(|| iterations(us));
        ask.warmup = settings.warmup.unwrap_or_else(|| warmup(us));
        ask.check = settings.checks > 0;
        Ok(Some(ask))
    }

    fn refuse(&mut self, why: String) {
        if !self.refusals.contains(&why) {
            eprintln!("# {}: {why}", self.name.name());
            self.refusals.push(why);
        }
    }

    /// One round.
    ///
    /// # Errors
    /// [`Error::Processes`] if a worker does not answer, or its results are wrong: its time means nothing then.
    pub(super) fn measure(&mut self, ask: &Ask, spec: &Spec) -> Result<Batch> {
        let batch = self.ask(ask, spec)?.map_err(|refusal| self.failed(refusal))?;
        if batch.wrong > 0 {
            return Err(self.failed(format!("{} elements of its results are wrong", batch.wrong)));
        }
        Ok(batch)
    }

    /// One command to all ranks. The inner error is a refusal, in the peer's words.
    fn ask(&mut self, ask: &Ask, spec: &Spec) -> Result<std::result::Result<Batch, String>> {
        let line = serde_json::to_string(ask).map_err(io::Error::from)?;
        for rank in 0..self.ranks.len() {
            let written = writeln!(self.ranks[rank].get_mut(), "{line}");
            written.map_err(|error| self.failed(format!("rank {rank} does not listen: {error}")))?;
        }
        let (mut slowest, mut cpu, mut wrong, mut in_place, mut refusal) = (0.0_f64, 0.0, 0, false, None);
        for rank in 0..self.ranks.len() {
            let answer =
                read(&mut self.ranks[rank]).map_err(|error| self.failed(format!("rank {rank} {error}")))?;
            match answer {
                Answer::Failed { error } => refusal = Some(error),
                Answer::Done { us, wrong: more, cpu_s, in_place: was } => {
                    slowest = slowest.max(us);
                    cpu += cpu_s;
                    wrong += more;
                    in_place |= was;
                }
            }
        }
        Ok(refusal
            .map_or_else(|| Ok(Batch::of_peer(spec, slowest, cpu, ask.iterations, wrong, in_place)), Err))
    }
}

impl Drop for Outside {
    /// Closing the connections makes the workers leave; those that do not are told to, and then killed.
    fn drop(&mut self) {
        self.ranks.clear();
        let everyone_left = |processes: &mut [Child], patience: Duration| {
            let deadline = Instant::now() + patience;
            loop {
                if processes.iter_mut().all(|process| !matches!(process.try_wait(), Ok(None))) {
                    return true;
                }
                if Instant::now() > deadline {
                    return false;
                }
                thread::sleep(LOOK);
            }
        };
        if everyone_left(&mut self.processes, LEAVE_LIMIT) {
            return;
        }
        // A launcher that is asked to end takes its ranks with it; one that is killed cannot.
        for process in &self.processes {
            let _ = kill_process(Pid::from_child(process), Signal::TERM);
        }
        if !everyone_left(&mut self.processes, LEAVE_LIMIT) {
            for process in &mut self.processes {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

impl Installed {
    /// Reads what `cargo xtask peers` wrote: `$RCCL_CACHE/peers/peers.json`, or that below .cache here or in the sources.
    fn find(name: PeerName) -> Result<Self> {
        let named = std::env::var_os("RCCL_CACHE").filter(|value| !value.is_empty()).map(PathBuf::from);
        let folders = match named {
            Some(folder) => vec![folder],
            None => vec![PathBuf::from(".cache"), Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache")],
        };
        let path = folders.iter().map(|folder| folder.join("peers/peers.json")).find(|path| path.exists());
        let path = path.ok_or_else(|| not_installed(name))?;
        let text = fs::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
        serde_json::from_str(&text).map_err(|error| Error::file(&path, error.into()))
    }

    /// What starts the ranks: a process each, or one launcher. `None` if it is not installed.
    fn commands(&self, name: PeerName, ranks: u32, folder: &Path) -> Option<Vec<Command>> {
        match name {
            PeerName::Gloo => {
                let (python, script) = (self.python.as_ref()?, self.gloo_script.as_ref()?);
                let of_rank = |rank: u32| {
                    let mut command = Command::new(python);
                    command.arg(script).env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
                    command.env("RCCL_PEER_STORE", folder.join("store"));
                    command
                };
                Some((0..ranks).map(of_rank).collect())
            }
            PeerName::Openmpi => {
                let mut command = Command::new(self.mpirun.as_ref()?);
                command.args(["-np", &ranks.to_string()]);
                if thread::available_parallelism().is_ok_and(|cores| cores.get() < ranks as usize) {
                    command.arg("--oversubscribe");
                }
                command.arg(self.openmpi_worker.as_ref()?);
                Some(vec![command])
            }
            PeerName::Nccl => None,
        }
    }
}

fn not_installed(name: PeerName) -> Error {
    let name = name.name();
    Error::Processes(format!("{name} is not installed; in the sources: cargo xtask peers {name}"))
}

/// The variables that choose how a peer works, `K=V K=V`: those of its transport and those that the user gave.
fn described(name: PeerName, env: &BTreeMap<String, String>, settings: &Settings) -> String {
    let transport: &[&str] = match name {
        PeerName::Gloo => &["GLOO_SOCKET_IFNAME"],
        PeerName::Openmpi => &["OMPI_MCA_btl", "OMPI_MCA_pml"],
        PeerName::Nccl => &[],
    };
    let given = |key: &str| settings.peer_env.iter().any(|(name, _)| name == key);
    let chosen = env.iter().filter(|(key, _)| given(key) || transport.contains(&key.as_str()));
    chosen.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// One line of JSON.
fn read<T: DeserializeOwned>(stream: &mut BufReader<UnixStream>) -> std::result::Result<T, String> {
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(0) => Err("closed its connection".to_owned()),
        Ok(_) => serde_json::from_str(&line).map_err(|error| format!("said `{}`: {error}", line.trim_end())),
        Err(error) => Err(format!("did not answer: {error}")),
    }
}

/// A folder of our own that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    /// Makes it in the folder for temporary files, with a name that nothing has yet.
    fn new() -> io::Result<Self> {
        let base = std::env::temp_dir();
        for attempt in 0..100 {
            let path = base.join(format!("rccl-peer-{}-{attempt}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(format!("{}: 100 folders of this process exist already", base.display())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
