//! Points as they are kept: one object each, with all that is needed to judge and repeat the measurement.

use std::{
    env,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use crate::{
    error::{Error, Result},
    topo::Machine,
};

/// One measured point. Field names are fixed; so are their units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Record {
    /// What is measured: "cpu-shm", "cpu-tcp".
    pub(super) what: String,
    /// The machine in words.
    pub(super) machine: String,
    /// The version of the NVIDIA driver, "none" without.
    pub(super) driver: String,
    /// The commit of the sources, with "-dirty" where they were changed; the version where there is no repository.
    pub(super) commit: String,
    /// The command line.
    pub(super) command: String,
    pub(super) collective: String,
    pub(super) dtype: String,
    /// The operator, "none" where nothing is reduced.
    pub(super) op: String,
    /// Bytes of the larger buffer.
    pub(super) bytes: u64,
    pub(super) in_place: bool,
    pub(super) ranks: u32,
    pub(super) processes: u32,
    /// As asked: "auto" is what applications get.
    pub(super) algorithm: String,
    pub(super) protocol: String,
    pub(super) path: String,
    pub(super) transport: String,
    /// Whether the operations were in a captured graph.
    pub(super) graph: bool,
    /// Our RCCL_* and NCCL_* variables: `K=V K=V`.
    pub(super) env: String,
    /// Microseconds an operation.
    pub(super) ours_us: f64,
    /// In 1e9 bytes a second.
    pub(super) ours_busbw: f64,
    /// Processor seconds of all ranks for each 1e9 bytes of the size.
    pub(super) ours_cpu_s_per_gb: f64,
    pub(super) peer_cpu_s_per_gb: Option<f64>,
    /// "none" without one.
    pub(super) peer: String,
    pub(super) peer_version: Option<String>,
    /// The peer's variables: `K=V K=V`.
    pub(super) peer_env: String,
    pub(super) peer_us: Option<f64>,
    pub(super) peer_busbw: Option<f64>,
    /// The peer's time / ours: the median of the rounds' ratios.
    pub(super) ratio: Option<f64>,
    /// What copying alone would give, as a busbw, in 1e9 bytes a second.
    pub(super) limit_busbw: f64,
    /// Elements that were not what they should be; none where nothing was checked.
    pub(super) wrong: Option<u64>,
}

/// Where and how a measurement was made.
#[derive(Debug, Clone)]
pub(super) struct Provenance {
    pub(super) machine: String,
    pub(super) driver: String,
    pub(super) commit: String,
    pub(super) command: String,
    pub(super) env: String,
}

impl Provenance {
    pub(super) fn here(machine: &Machine) -> Self {
        let words: Vec<String> = env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy())).collect();
        Self {
            machine: machine.summary(),
            driver: machine.host.nvidia_driver.clone().unwrap_or_else(|| "none".to_owned()),
            commit: commit(),
            command: format!("rccl {}", words.join(" ")),
            env: variables(&["RCCL_", "NCCL_"]),
        }
    }
}

/// A word as a shell would have to be given it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Variables that do not change what is measured: where peers are kept, and what images say of the NCCL they came with.
pub(super) const BESIDES: [&str; 2] = ["RCCL_CACHE", "NCCL_VERSION"];

/// The variables whose names start with one of `prefixes`, sorted, as `K=V K=V`, but for secrets (records are published) and
/// [`BESIDES`].
fn variables(prefixes: &[&str]) -> String {
    let mut list: Vec<String> = env::vars_os()
        .map(|(key, value)| (key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(key, _)| prefixes.iter().any(|prefix| key.starts_with(prefix)))
        .filter(|(key, _)| !key.contains("SECRET") && !BESIDES.contains(&key.as_str()))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    list.sort();
    list.join(" ")
}

/// What git says of the sources this program was built from, if they are still where they were.
fn commit() -> String {
    let described = Command::new("git")
        .args([
            "-C",
            env!("CARGO_MANIFEST_DIR"),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
            "--exclude=*",
        ])
        .stderr(std::process::Stdio::null())
        .output();
    match described {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Where points go: any number of files, each of which has every point as soon as it is measured.
#[derive(Default)]
pub(super) struct Sinks {
    json: Vec<(PathBuf, Box<dyn Write>)>,
    csv: Option<(PathBuf, csv::Writer<File>)>,
    started: Option<SystemTime>,
    record: bool,
}

impl Sinks {
    /// Opens the files. Records get theirs once it is known what they hold.
    pub(super) fn open(json: Option<&Path>, csv: Option<&Path>, record: bool) -> Result<Self> {
        let mut sinks = Self { record, started: Some(SystemTime::now()), ..Self::default() };
        if let Some(path) = json {
            let writer: Box<dyn Write> = if path == Path::new("-") {
                Box::new(io::stdout())
            } else {
                Box::new(BufWriter::new(create(path)?))
            };
            sinks.json.push((path.to_owned(), writer));
        }
        if let Some(path) = csv {
            sinks.csv = Some((path.to_owned(), csv::Writer::from_writer(create(path)?)));
        }
        Ok(sinks)
    }

    /// Starts a file in benches/record, where recording was asked for.
    pub(super) fn start_record(&mut self, what: &str) -> Result<Option<PathBuf>> {
        let (true, Some(started)) = (self.record, self.started) else { return Ok(None) };
        let since = started.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let folder = Path::new("benches/record");
        fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
        let path = folder.join(format!("{}-{what}.jsonl", timestamp(since.as_secs())));
        self.json.push((path.clone(), Box::new(BufWriter::new(create(&path)?))));
        Ok(Some(path))
    }

    /// Ends the file that [`Sinks::start_record`] started.
    pub(super) fn end_record(&mut self) {
        if self.record {
            self.json.pop();
        }
    }

    pub(super) fn write(&mut self, record: &Record) -> Result<()> {
        let line = serde_json::to_string(record).map_err(io::Error::from)?;
        for (path, writer) in &mut self.json {
            writeln!(writer, "{line}")
                .and_then(|()| writer.flush())
                .map_err(|error| Error::file(&*path, error))?;
        }
        if let Some((path, writer)) = &mut self.csv {
            let written = writer.serialize(record).map_err(io::Error::other).and_then(|()| writer.flush());
            written.map_err(|error| Error::file(&*path, error))?;
        }
        Ok(())
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| Error::file(path, error))
}

/// Seconds since 1970 as `YYYYMMDDTHHMMSSZ`.
fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days to a civil date, with years that begin in March (Hinnant 2013, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn record() -> Record {
        Record {
            what: "cpu-shm".to_owned(),
            machine: "a machine, with a comma".to_owned(),
            driver: "none".to_owned(),
            commit: "0".to_owned(),
            command: "rccl bench".to_owned(),
            collective: "all-reduce".to_owned(),
            dtype: "float".to_owned(),
            op: "sum".to_owned(),
            bytes: 1024,
            in_place: false,
            ranks: 2,
            processes: 2,
            algorithm: "auto".to_owned(),
            protocol: "auto".to_owned(),
            path: "host".to_owned(),
            transport: "shm".to_owned(),
            graph: false,
            env: String::new(),
            ours_us: 2.5,
            ours_busbw: 0.4,
            ours_cpu_s_per_gb: 1.0,
            peer_cpu_s_per_gb: None,
            peer: "none".to_owned(),
            peer_version: None,
            peer_env: String::new(),
            peer_us: None,
            peer_busbw: None,
            ratio: None,
            limit_busbw: 10.0,
            wrong: Some(0),
        }
    }

    #[test]
    fn fields_have_the_fixed_names() {
        let json = serde_json::to_string(&record()).unwrap();
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&json).unwrap();
        let fixed = "what machine driver commit command collective dtype op bytes in_place ranks processes algorithm protocol \
                     path transport graph env ours_us ours_busbw ours_cpu_s_per_gb peer_cpu_s_per_gb peer peer_version \
                     peer_env peer_us peer_busbw ratio limit_busbw wrong";
        for name in fixed.split_whitespace() {
            assert!(object.contains_key(name), "{name} is missing");
        }
        assert_eq!(object.len(), fixed.split_whitespace().count());
    }

    #[test]
    fn every_sink_has_every_point() {
        let folder = tempfile::tempdir().unwrap();
        let (json, csv) = (folder.path().join("a.jsonl"), folder.path().join("a.csv"));
        let mut sinks = Sinks::open(Some(&json), Some(&csv), false).unwrap();
        sinks.write(&record()).unwrap();
        sinks.write(&Record { bytes: 4096, ..record() }).unwrap();
        assert_eq!(fs::read_to_string(json).unwrap().lines().count(), 2);
        let csv = fs::read_to_string(csv).unwrap();
        let mut lines = csv.lines();
        assert!(lines.next().unwrap().starts_with("what,machine,driver,"));
        assert!(lines.next().unwrap().contains("\"a machine, with a comma\""));
        assert_eq!(lines.count(), 1);
    }

    #[test]
    fn an_impossible_file_is_named() {
        let missing = Path::new("/nonexistent/x.jsonl");
        let error = Sinks::open(Some(missing), None, false).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/x.jsonl"), "{error}");
    }

    #[test]
    fn timestamps() {
        assert_eq!(timestamp(0), "19700101T000000Z");
        assert_eq!(timestamp(951_782_399), "20000228T235959Z");
        assert_eq!(timestamp(951_782_400), "20000229T000000Z");
        assert_eq!(timestamp(1_798_761_599), "20261231T235959Z");
    }

    #[test]
    fn words_for_a_shell() {
        assert_eq!(quoted("--json"), "--json");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
