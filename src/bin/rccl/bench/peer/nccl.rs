//! NCCL in workers of ours, one process a rank: the same buffers, streams, clocks and checks.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use super::super::{
    launch::{Team, Workers},
    measure::{Batch, Spec, batch, fit, slowest},
    message::{self, Job},
    options::Transport,
    record::BESIDES,
    settings::Settings,
};
use crate::error::{Error, Result};

const FILE: &str = "libnccl.so.2";

/// NCCL's workers.
pub(in super::super) struct Group {
    workers: Workers,
    pub(super) version: String,
    pub(super) env: String,
    pub(super) note: String,
}

impl Group {
    pub(super) fn start(settings: &Settings) -> Result<Self> {
        let path = match &settings.nccl_library {
            Some(path) => path.clone(),
            None => locate(),
        };
        let team = Team::Nccl { path: path.display().to_string() };
        let workers = Workers::start(settings, Transport::Auto, &team)?;
        let shared = settings.gpus.is_some_and(|gpus| gpus.shared);
        let mut note = format!("nccl: {}{}", workers.describe, workers.created());
        if shared {
            note += "; ranks share GPUs, so each claims a host of its own and NCCL goes through its network transport: \
                     that shows that it works, and is no comparison";
        }
        Ok(Self {
            version: workers.version.clone().unwrap_or_default(),
            env: described(&settings.peer_env),
            note,
            workers,
        })
    }

    pub(super) fn prepare(&mut self, settings: &Settings, spec: &Spec, in_place: bool) -> Result<Job> {
        let mut job = spec.job(settings, in_place);
        let us = slowest(&self.workers.ask(&message::Command::Measure(job.clone()))?);
        fit(&mut job, settings, us);
        job.samples = 0;
        Ok(job)
    }

    pub(super) fn measure(&mut self, job: &Job, spec: &Spec) -> Result<Batch> {
        let batch = batch(spec, job, &self.workers.ask(&message::Command::Measure(job.clone()))?);
        if batch.wrong > 0 {
            return Err(Error::Processes(format!("nccl: {} elements of its results are wrong", batch.wrong)));
        }
        Ok(batch)
    }
}

/// The variables that choose how NCCL works: those it inherits, and those that the user gave it, which win.
fn described(given: &[(String, String)]) -> String {
    let counts = |key: &str| key.starts_with("NCCL_") && !BESIDES.contains(&key);
    let inherited = env::vars().filter(|(key, _)| counts(key));
    let all: std::collections::BTreeMap<String, String> = inherited.chain(given.iter().cloned()).collect();
    all.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// Where NCCL is: in a folder of `LD_LIBRARY_PATH`, in Python's package, or wherever the loader looks.
fn locate() -> PathBuf {
    let folders = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let python = || python_folders().into_iter().map(|folder| folder.join("nvidia/nccl/lib"));
    env::split_paths(&folders)
        .find_map(|folder| within(&folder))
        .or_else(|| python().find_map(|it| within(&it)))
        .unwrap_or_else(|| PathBuf::from(FILE))
}

fn within(folder: &Path) -> Option<PathBuf> {
    Some(folder.join(FILE)).filter(|path| path.is_file())
}

/// Where Python looks for packages; nowhere without Python.
fn python_folders() -> Vec<PathBuf> {
    let asked = Command::new("python3").args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
    let text = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_in_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(within(folder.path()), None);
        std::fs::write(folder.path().join(FILE), "").unwrap();
        assert_eq!(within(folder.path()), Some(folder.path().join(FILE)));
    }

    #[test]
    fn what_the_user_gives_is_described() {
        let given = [("NCCL_P2P_DISABLE".to_owned(), "1".to_owned()), ("A".to_owned(), "b".to_owned())];
        let text = described(&given);
        assert!(text.contains("NCCL_P2P_DISABLE=1") && text.starts_with("A=b"), "{text}");
    }
}
