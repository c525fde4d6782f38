//! What is kept of a measurement: the same fields as `rccl bench --json` has.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    RANKS,
    worker::{Facts, Sample},
};
use crate::{Result, command};

const LIMIT: Duration = Duration::from_secs(60);

/// A side as a point needs it.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) variables: &'a str,
    pub(super) samples: &'a [Sample],
}

/// One comparison.
pub(super) struct Point {
    collective: String,
    bytes: u64,
    env: String,
    peer_env: String,
    ours: Sample,
    peer: Sample,
    ratio: f64,
}

impl Point {
    pub(super) fn new(collective: &str, bytes: u64, ours: View<'_>, peer: View<'_>) -> Self {
        let ratios = ours.samples.iter().zip(peer.samples).map(|(our, peer)| peer.us / our.us).collect();
        Self {
            collective: collective.to_owned(),
            bytes,
            env: ours.variables.to_owned(),
            peer_env: peer.variables.to_owned(),
            ours: middle(ours.samples),
            peer: middle(peer.samples),
            ratio: median(ratios),
        }
    }

    /// Bytes that pass each rank's link for each byte of the size.
    fn factor(&self) -> f64 {
        let n = RANKS as f64;
        match self.collective.as_str() {
            "all-reduce" => 2.0 * (n - 1.0) / n,
            "send-recv" => 1.0,
            _ => (n - 1.0) / n,
        }
    }

    fn busbw(&self, us: f64) -> f64 {
        self.bytes as f64 / us / 1e3 * self.factor()
    }

    fn per_gb(&self, sample: &Sample) -> f64 {
        sample.cpu_s / self.bytes as f64 * 1e9
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let peer = if self.peer_env.is_empty() { "NCCL's sockets" } else { &self.peer_env };
        format!(
            "{} {:>10} B  {:<18} {:>9.1} us {:>6.2} GB/s {:>6.2} cpu s/GB   {peer:<48} {:>9.1} us {:>6.2} GB/s {:>6.2} cpu s/GB   \
             {:.2}x{}",
            self.collective,
            self.bytes,
            self.env,
            self.ours.us,
            self.busbw(self.ours.us),
            self.per_gb(&self.ours),
            self.peer.us,
            self.busbw(self.peer.us),
            self.per_gb(&self.peer),
            self.ratio,
            if self.ours.wrong + self.peer.wrong > 0 { "  WRONG" } else { "" }
        )
    }

    fn object(&self, place: &Place) -> Value {
        let shm = self.env.split_whitespace().all(|it| it != "RCCL_NET_SHM=0");
        json!({
            "what": "net-plugin", "machine": place.machine, "driver": place.driver, "commit": place.commit,
            "command": place.command, "collective": self.collective, "dtype": "float",
            "op": if self.collective == "all-reduce" { "sum" } else { "none" },
            "bytes": self.bytes, "in_place": self.collective == "all-reduce", "ranks": RANKS, "processes": RANKS,
            "algorithm": "auto", "protocol": "auto", "path": "net",
            "transport": if shm { "shm" } else { "tcp" }, "graph": false, "env": self.env,
            "ours_us": self.ours.us, "ours_busbw": self.busbw(self.ours.us),
            "ours_cpu_s_per_gb": self.per_gb(&self.ours), "peer_cpu_s_per_gb": self.per_gb(&self.peer),
            "peer": "nccl", "peer_version": place.peer_version, "peer_env": self.peer_env,
            "peer_us": self.peer.us, "peer_busbw": self.busbw(self.peer.us), "ratio": self.ratio,
            "limit_busbw": null, "wrong": self.ours.wrong,
        })
    }
}

/// The medians of what was measured, and all that was wrong.
fn middle(samples: &[Sample]) -> Sample {
    Sample {
        us: median(samples.iter().map(|it| it.us).collect()),
        cpu_s: median(samples.iter().map(|it| it.cpu_s).collect()),
        wrong: samples.iter().map(|it| it.wrong).sum(),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Where and how it was measured.
struct Place {
    machine: String,
    driver: String,
    commit: String,
    command: String,
    peer_version: String,
}

/// The record being written.
pub(super) struct File {
    path: PathBuf,
    file: fs::File,
    place: Place,
}

impl File {
    pub(super) fn create(folder: &Path, facts: &Facts, commit: String) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let time = command::output(Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]), LIMIT)?;
        let path = folder.join(format!("{}-net-plugin.jsonl", time.trim()));
        let file = fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let cores = std::thread::available_parallelism()?;
        let mut smi = Command::new("nvidia-smi");
        smi.args(["--query-gpu=driver_version", "--format=csv,noheader"]);
        let driver = command::output(&mut smi, LIMIT).unwrap_or_else(|_| "unknown".into());
        let shared = if facts.gpus < RANKS as u64 { ", shared by both ranks" } else { "" };
        let words = words_that_count(std::env::args().skip(1));
        let place = Place {
            machine: format!("{cores} cores, {} x {}{shared}, torch {}", facts.gpus, facts.gpu, facts.torch),
            driver: driver.lines().next().unwrap_or("unknown").to_owned(),
            commit,
            command: format!("cargo xtask {}", words.join(" ")),
            peer_version: facts.nccl.clone(),
        };
        Ok(Self { path, file, place })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&mut self, point: &Point) -> Result {
        writeln!(self.file, "{}", point.object(&self.place))?;
        Ok(())
    }
}

/// The command line without the options that only say where files lie: records are published.
fn words_that_count(mut words: impl Iterator<Item = String>) -> Vec<String> {
    const PLACES: [&str; 5] = ["--plugin", "--worker", "--record", "--commit", "--python"];
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if PLACES.contains(&&*word) {
            words.next();
        } else if !PLACES
            .iter()
            .any(|place| word.strip_prefix(place).is_some_and(|rest| rest.starts_with('=')))
        {
            kept.push(if word.contains(' ') { format!("'{word}'") } else { word });
        }
    }
    kept
}

/// What git says of the sources.
pub(super) fn commit(root: &Path) -> Result<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]).current_dir(root);
    Ok(command::output(&mut git, LIMIT)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_say_nothing_of_places() {
        let words = ["bench-plugin", "--plugin", "/x", "--record=/y", "--env", "A=1 B=2", "--mps"];
        let kept = words_that_count(words.iter().map(ToString::to_string));
        assert_eq!(kept.join(" "), "bench-plugin --env 'A=1 B=2' --mps");
    }

    #[test]
    fn points_compare_round_by_round() {
        let samples = |us: [f64; 3]| us.map(|us| Sample { us, cpu_s: us / 1e6, wrong: 0 });
        let (ours, peer) = (samples([10.0, 20.0, 30.0]), samples([20.0, 20.0, 90.0]));
        let view = |samples| View { variables: "RCCL_NET_SHM=0", samples };
        let point = Point::new("all-reduce", 1_000_000, view(&ours[..]), view(&peer[..]));
        assert_eq!((point.ratio, point.ours.us, point.busbw(point.ours.us)), (2.0, 20.0, 50.0));
        let place = Place {
            machine: String::new(),
            driver: String::new(),
            commit: String::new(),
            command: String::new(),
            peer_version: String::new(),
        };
        let object = point.object(&place);
        assert_eq!((&object["transport"], &object["what"]), (&json!("tcp"), &json!("net-plugin")));
        // As many as every other record has.
        assert_eq!(object.as_object().unwrap().len(), 30);
    }
}
