//! `cargo xtask peers --try`: a few rounds with each peer, by the protocol of benches/peers/README.md.

use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Arguments, Installed, Peer};
use crate::Result;

/// Longest that the workers may take to start, one command to be answered, and the workers to leave.
const START_LIMIT: Duration = Duration::from_secs(120);
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
const LEAVE_LIMIT: Duration = Duration::from_secs(30);

/// A running group of workers. Dropping it ends them.
struct Workers {
    processes: Vec<Child>,
    ranks: Vec<BufReader<UnixStream>>,
    version: String,
}

/// Measures the sizes that were asked for and prints a table.
///
/// # Errors
/// When the workers do not start, do not answer, or give a wrong result.
pub(super) fn run(installed: &Installed, peer: Peer, arguments: &Arguments) -> Result {
    let folder = tempfile::tempdir()?;
    let mut workers = Workers::start(installed, peer, arguments.ranks, folder.path())?;
    println!(
        "{}, {} ranks, {}, float sum, median of {} rounds:",
        workers.version, arguments.ranks, arguments.collective, arguments.rounds
    );
    println!("{:>12} {:>12} {:>12} {:>8} {:>8} {:>8}", "bytes", "us", "best us", "GB/s", "busbw", "#wrong");
    for &bytes in &arguments.bytes {
        let mut rounds = Vec::new();
        let mut wrong = 0;
        for round in 0..arguments.rounds {
            let (us, wrong_here) = workers.round(&arguments.collective, bytes, round == 0)?;
            rounds.push(us);
            wrong += wrong_here;
        }
        rounds.sort_by(f64::total_cmp);
        let us = rounds[rounds.len() / 2];
        let algorithm = bytes as f64 / us / 1e3;
        let bus = algorithm * bus_factor(&arguments.collective, f64::from(arguments.ranks));
        println!("{bytes:>12} {us:>12.2} {:>12.2} {algorithm:>8.2} {bus:>8.2} {wrong:>8}", rounds[0]);
        if wrong != 0 {
            return Err(format!("{peer:?}: {wrong} wrong elements").into());
        }
    }
    workers.finish()
}

/// Bytes on the busiest link over the bytes of the collective, as nccl-tests defines it.
fn bus_factor(collective: &str, ranks: f64) -> f64 {
    match collective {
        "all-reduce" => 2.0 * (ranks - 1.0) / ranks,
        "all-gather" | "reduce-scatter" => (ranks - 1.0) / ranks,
        _ => 1.0,
    }
}

/// Fewer operations where each takes long.
fn iterations(bytes: u64) -> u64 {
    (256 * 1024 * 1024 / bytes.max(1)).clamp(2, 500)
}

impl Workers {
    fn start(installed: &Installed, peer: Peer, ranks: u32, folder: &Path) -> Result<Self> {
        let socket = folder.join("peer.sock");
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        let mut workers = Self { processes: Vec::new(), ranks: Vec::new(), version: String::new() };
        for mut command in commands(installed, peer, ranks, folder)? {
            command.envs(installed.environment()).env("RCCL_PEER_SOCKET", &socket).stdin(Stdio::null());
            workers.processes.push(command.spawn().map_err(|e| format!("{peer:?}: {e}"))?);
        }
        workers.accept(&listener, ranks)?;
        Ok(workers)
    }

    /// Takes one connection and its hello from each rank and puts them in order.
    fn accept(&mut self, listener: &UnixListener, ranks: u32) -> Result {
        let deadline = Instant::now() + START_LIMIT;
        let mut greeted = Vec::new();
        while greeted.len() < ranks as usize {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(START_LIMIT))?;
                    greeted.push(BufReader::new(stream));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    for process in &mut self.processes {
                        if let Some(status) = process.try_wait()? {
                            return Err(format!("a worker ended before it connected: {status}").into());
                        }
                    }
                    if Instant::now() > deadline {
                        return Err(format!(
                            "{} of {ranks} ranks connected in {START_LIMIT:?}",
                            greeted.len()
                        )
                        .into());
                    }
                    thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let mut ordered = Vec::new();
        for mut stream in greeted {
            let hello = read(&mut stream)?;
            self.version = hello["version"].as_str().unwrap_or("?").to_owned();
            stream.get_ref().set_read_timeout(Some(ANSWER_LIMIT))?;
            ordered.push((hello["rank"].as_u64().ok_or("a hello without a rank")?, stream));
        }
        ordered.sort_by_key(|(rank, _)| *rank);
        self.ranks = ordered.into_iter().map(|(_, stream)| stream).collect();
        Ok(())
    }

    /// One command to all ranks, whose results are counted if `check`: the largest time in microseconds and the number of wrong elements.
    fn round(&mut self, collective: &str, bytes: u64, check: bool) -> Result<(f64, u64)> {
        let iterations = iterations(bytes);
        let command = json!({
            "collective": collective, "dtype": "float", "op": "sum", "bytes": bytes, "warmup": iterations.div_ceil(10),
            "iterations": iterations, "in_place": false, "check": check,
        });
        for rank in &mut self.ranks {
            writeln!(rank.get_mut(), "{command}")?;
        }
        let (mut us, mut wrong) = (0.0_f64, 0);
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let answer = read(rank)?;
            let number_of =
                |key: &str| answer[key].as_f64().ok_or_else(|| format!("rank {number}: {answer}"));
            us = us.max(number_of("us")?);
            wrong += answer["wrong"].as_u64().ok_or_else(|| format!("rank {number}: {answer}"))?;
        }
        Ok((us, wrong))
    }

    /// Closes the connections and waits until the workers have left.
    fn finish(mut self) -> Result {
        self.ranks.clear();
        for process in std::mem::take(&mut self.processes) {
            match crate::command::wait(process, LEAVE_LIMIT)? {
                Some(status) if status.success() => {}
                Some(status) => return Err(format!("a worker ended with {status}").into()),
                None => {
                    return Err(
                        format!("a worker had not left {LEAVE_LIMIT:?} after its connection closed").into()
                    );
                }
            }
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What starts the ranks: a process each, or one launcher.
fn commands(installed: &Installed, peer: Peer, ranks: u32, folder: &Path) -> Result<Vec<Command>> {
    match peer {
        Peer::Gloo => {
            let gloo = installed.gloo.as_ref().ok_or("gloo is not installed")?;
            let of_rank = |rank: u32| {
                let mut command = Command::new(&gloo.python);
                command.arg(&gloo.script).env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
                command.env("RCCL_PEER_STORE", folder.join("store"));
                command
            };
            Ok((0..ranks).map(of_rank).collect())
        }
        Peer::Openmpi => {
            let openmpi = installed.openmpi.as_ref().ok_or("Open MPI is not installed")?;
            let mut command = Command::new(&openmpi.mpirun);
            command.args(["-np", &ranks.to_string()]);
            if thread::available_parallelism().is_ok_and(|cores| cores.get() < ranks as usize) {
                command.arg("--oversubscribe");
            }
            command.arg(&openmpi.worker);
            Ok(vec![command])
        }
    }
}

/// One line of JSON.
fn read(stream: &mut BufReader<UnixStream>) -> Result<Value> {
    let mut line = String::new();
    if stream.read_line(&mut line).map_err(|e| format!("a worker did not answer: {e}"))? == 0 {
        return Err("a worker closed its connection".into());
    }
    serde_json::from_str(&line).map_err(|e| format!("a worker answered {}: {e}", line.trim_end()).into())
}
