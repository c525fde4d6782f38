//! What the environment says about the plugin. Read once a process.

use std::{ffi::OsString, sync::OnceLock, time::Duration};

use rccl_transport::{Secret, interface::Choice, tcp};

use super::{Failure, Outcome};

/// 0: no shared memory, also where both ends are on one machine.
const SHM: &str = "RCCL_NET_SHM";
/// Threads that move long messages beside those that poll.
const THREADS: &str = "RCCL_NET_THREADS";
/// Seconds that connecting and accepting may take.
const TIMEOUT: &str = "RCCL_NET_TIMEOUT_S";

/// The most helping threads.
const MAX_THREADS: usize = 16;
/// Helping threads unless told otherwise: none where NCCL's own threads have too few cores already.
fn default_threads() -> usize {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        0..4 => 0,
        4..8 => 1,
        _ => 2,
    }
}

/// NCCL itself waits for ever. Ranks of large jobs start minutes apart.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
const MAX_TIMEOUT_S: u64 = 24 * 3600;

/// What the environment says.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Interfaces and addresses that may be used.
    pub(super) choice: Choice,
    /// The secret of the group, if it has one.
    pub(super) secret: Option<Secret>,
    /// Whether shared memory may be used.
    pub(super) shm: bool,
    /// Threads that move long messages beside those that poll.
    pub(super) threads: usize,
    /// How long connecting and accepting may take.
    pub(super) patience: Duration,
    /// Sockets of a connection over one interface.
    pub(super) sockets: usize,
}

/// The settings, read at the first call.
///
/// # Errors
/// A variable that makes no sense, by name; the same at every call.
pub(super) fn settings() -> Outcome<&'static Settings> {
    static SETTINGS: OnceLock<Outcome<Settings>> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings::read(|name| std::env::var_os(name))).as_ref().map_err(Clone::clone)
}

impl Settings {
    fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Outcome<Self> {
        let number = |name: &str, range: std::ops::RangeInclusive<u64>| match lookup(name) {
            None => Ok(None),
            Some(text) => {
                let text = text.to_string_lossy().into_owned();
                match text.trim().parse().ok().filter(|number| range.contains(number)) {
                    Some(number) => Ok(Some(number)),
                    None => Err(invalid(name, &text, *range.start(), *range.end())),
                }
            }
        };
        let options = tcp::Options::loopback().with_sockets(1).with_sockets_from_env()?;
        Ok(Self {
            choice: Choice::from_env()?,
            secret: Secret::from_env()?,
            shm: number(SHM, 0..=1)? != Some(0),
            threads: number(THREADS, 0..=MAX_THREADS as u64)?.map_or_else(default_threads, |n| n as usize),
            patience: number(TIMEOUT, 1..=MAX_TIMEOUT_S)?.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
            sockets: options.sockets,
        })
    }
}

fn invalid(name: &str, value: &str, least: u64, most: u64) -> Failure {
    rccl_transport::Error::Invalid {
        what: name.into(),
        value: value.into(),
        reason: format!("it is a number from {least} to {most}"),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &'static str, value: &'static str) -> Outcome<Settings> {
        Settings::read(move |asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn nonsense_names_its_variable() {
        let plain = Settings::read(|_| None).unwrap();
        assert!(plain.shm && plain.threads == default_threads() && plain.patience == DEFAULT_TIMEOUT);
        assert!(!read(SHM, "0").unwrap().shm);
        assert_eq!(read(THREADS, " 3 ").unwrap().threads, 3);
        for (name, value) in [(SHM, "yes"), (THREADS, "17"), (TIMEOUT, "0")] {
            let text = read(name, value).unwrap_err().text;
            assert!(text.starts_with(&format!("{name} is `{value}`: it is a number from ")), "{text}");
        }
    }
}
