//! A pair of worker processes, one a rank.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use serde_json::Value;

use super::RANKS;
use crate::{Result, command};

/// Longest that a worker may take over its start or one measurement.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longest that a worker may take to end.
const FAREWELL: Duration = Duration::from_secs(30);

/// What one measurement of one side gave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Microseconds an operation, of the slower rank.
    pub(super) us: f64,
    /// Processor seconds an operation, of all ranks.
    pub(super) cpu_s: f64,
    /// Elements that were not what they should be.
    pub(super) wrong: u64,
}

/// What the first worker says of where it runs.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) nccl: String,
    pub(super) torch: String,
    pub(super) gpu: String,
    pub(super) gpus: u64,
}

/// Both ranks of one side.
pub(super) struct Pair {
    pub(super) facts: Facts,
    ranks: Vec<Rank>,
    _folder: tempfile::TempDir,
}

struct Rank {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Pair {
    /// Starts both ranks, each a host of its own to NCCL.
    pub(super) fn start(
        python: &Path,
        worker: &Path,
        variables: &str,
        more: &[(&str, String)],
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut ranks = Vec::new();
        for rank in 0..RANKS {
            let mut program = Command::new(python);
            program.arg(worker).arg("measure").stdin(Stdio::piped()).stdout(Stdio::piped());
            program.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
            program.env("STORE", folder.path().join("store")).env("NCCL_HOSTID", format!("host{rank}"));
            program.envs(more.iter().map(|(key, value)| (key, value)));
            for variable in variables.split_whitespace() {
                let (key, value) =
                    variable.split_once('=').ok_or_else(|| format!("`{variable}` is no K=V"))?;
                program.env(key, value);
            }
            ranks.push(Rank::start(&mut program)?);
        }
        let facts = ranks.iter().map(Rank::answer).collect::<Result<Vec<_>>>()?;
        let text = |key: &str| facts[0][key].as_str().unwrap_or("unknown").to_owned();
        let gpus = facts[0]["gpus"].as_u64().unwrap_or(0);
        let facts = Facts { nccl: text("nccl"), torch: text("torch"), gpu: text("gpu"), gpus };
        Ok(Self { facts, ranks, _folder: folder })
    }

    /// Measures once.
    pub(super) fn measure(&mut self, collective: &str, bytes: u64, iterations: u32) -> Result<Sample> {
        for rank in &mut self.ranks {
            writeln!(rank.input, "{collective} {bytes} {iterations}")?;
        }
        let mut all = Sample { us: 0.0, cpu_s: 0.0, wrong: 0 };
        for rank in &self.ranks {
            let answer = rank.answer()?;
            let number = |key: &str| answer[key].as_f64().ok_or_else(|| format!("no `{key}` in {answer}"));
            all.us = all.us.max(number("us")?);
            all.cpu_s += number("cpu_s")?;
            all.wrong += number("wrong")? as u64;
        }
        Ok(all)
    }

    /// Lets both ranks end.
    pub(super) fn finish(self) -> Result {
        let processes: Vec<Child> = self.ranks.into_iter().map(|rank| rank.process).collect();
        for process in processes {
            command::wait(process, FAREWELL)?;
        }
        Ok(())
    }
}

impl Rank {
    fn start(program: &mut Command) -> Result<Self> {
        let mut process = program.spawn().map_err(|error| format!("{}: {error}", command::text(program)))?;
        let input = process.stdin.take().ok_or("no standard input")?;
        let output = process.stdout.take().ok_or("no standard output")?;
        let (tell, lines) = channel();
        thread::spawn(move || {
            // What is no object is NCCL's or PyTorch's and for people.
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                if line.starts_with('{') {
                    _ = tell.send(line);
                } else {
                    eprintln!("{line}");
                }
            }
        });
        Ok(Self { process, input, lines })
    }

    fn answer(&self) -> Result<Value> {
        let line = self
            .lines
            .recv_timeout(PATIENCE)
            .map_err(|_| "a worker died or did not answer; its words are above")?;
        Ok(serde_json::from_str(&line)?)
    }
}
