use std::time::Duration;

use rccl_core::Algorithm;
use rccl_transport::{RootOptions, interface::Choice, verbs};

use crate::{Error, Result, choice::Thresholds};

/// Which transports a communicator may use between its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// Shared memory between ranks of one host; between hosts RDMA where both have it, else TCP.
    #[default]
    Auto,
    /// Shared memory only: ranks on different hosts are an error.
    Shm,
    /// TCP between all ranks, also on one host.
    Tcp,
    /// RDMA between all ranks, also on one host. A rank without RDMA is an error.
    Verbs,
}

impl TransportChoice {
    /// The choice's name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

impl std::str::FromStr for TransportChoice {
    type Err = rccl_core::Error;

    fn from_str(name: &str) -> rccl_core::Result<Self> {
        let all = [Self::Auto, Self::Shm, Self::Tcp, Self::Verbs];
        all.into_iter().find(|choice| choice.name() == name).ok_or_else(|| rccl_core::Error::Name {
            what: "transport",
            name: name.to_owned(),
            expected: "auto shm tcp verbs".to_owned(),
        })
    }
}

/// How a communicator is made and how patient it is. Everything but `init_timeout`, `deadline` and what says that it may
/// differ must be equal on all ranks; creation checks that.
///
/// ```
/// let options = rccl::Options { deadline: std::time::Duration::from_secs(60), ..Default::default() };
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// Which transports may be used. Variable `RCCL_TRANSPORT`; `NCCL_SHM_DISABLE=1` means `tcp`.
    pub transport: TransportChoice,
    /// The algorithm for all collectives that have it; `None` chooses by size. Variable `RCCL_ALGORITHM`.
    pub algorithm: Option<Algorithm>,
    /// All-reduces of at most this many bytes use `oneshot` where `algorithm` is `None`; `None` takes a value that suits
    /// the size of the group. Variable `RCCL_ONESHOT_BYTES`.
    pub oneshot_bytes: Option<u64>,
    /// Data bytes of a station slot (a power of two from 4 KiB to 64 MiB); `None` takes a value that suits the size of
    /// the group. Variable `RCCL_SLOT_BYTES`.
    pub slot_bytes: Option<u32>,
    /// Slots of a station, 1 to 64; `None` takes a number that suits the size of the group. Variable `RCCL_SLOTS`.
    pub slots: Option<u32>,
    /// How long creation may take before it gives up and names the missing ranks. Variable `RCCL_INIT_TIMEOUT_S`.
    pub init_timeout: Duration,
    /// How long a collective may take. Variable `RCCL_TIMEOUT_S`.
    pub deadline: Duration,
    /// How long a rank may show no sign of life, and four times how often it shows one. Variable `RCCL_HEARTBEAT_S`.
    pub heartbeat: Duration,
    /// The interfaces on which ranks can be reached. Variables `RCCL_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME` and
    /// `NCCL_SOCKET_FAMILY`. May differ between ranks.
    pub interfaces: Choice,
    /// Sockets of a TCP channel, 1 to 16. Variable `RCCL_TCP_SOCKETS`.
    pub tcp_sockets: u32,
    /// How RDMA is used: its addresses are replaced by those of `interfaces`. `None` uses none. Variables `NCCL_IB_*`, of which
    /// `NCCL_IB_DISABLE=1` means `None`. May differ between ranks.
    pub rdma: Option<verbs::Options>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: TransportChoice::Auto,
            algorithm: None,
            oneshot_bytes: None,
            slot_bytes: None,
            slots: None,
            init_timeout: Duration::from_secs(120),
            deadline: Duration::from_secs(600),
            heartbeat: Duration::from_secs(30),
            interfaces: Choice::any(),
            tcp_sockets: 1,
            rdma: Some(verbs::Options::new([])),
        }
    }
}

/// A shorter heartbeat timeout would be spent on heartbeats.
const MIN_HEARTBEAT: Duration = Duration::from_millis(100);

impl Options {
    /// The defaults, changed by the environment's `RCCL_*` and `NCCL_*` variables.
    ///
    /// # Errors
    /// A variable whose value makes no sense, by name.
    pub fn from_env() -> Result<Self> {
        let mut options = Self { interfaces: Choice::from_env()?, ..Self::default() };
        let disable: Option<String> = variable("NCCL_SHM_DISABLE")?;
        let disable = disable.map(|value| {
            value
                .parse()
                .map_err(|_| invalid("NCCL_SHM_DISABLE", &value, "it is a number: 1 for yes, 0 for no"))
        });
        if disable.transpose()?.unwrap_or(0_i64) != 0 {
            options.transport = TransportChoice::Tcp;
        }
        options.rdma = verbs::Options::new([]).with_env()?;
        if let Some(transport) = variable("RCCL_TRANSPORT")? {
            options.transport = transport;
        }
        options.algorithm = match std::env::var("RCCL_ALGORITHM").as_deref() {
            Ok("auto") => None,
            _ => variable("RCCL_ALGORITHM")?,
        };
        options.oneshot_bytes = variable("RCCL_ONESHOT_BYTES")?;
        options.slot_bytes = variable("RCCL_SLOT_BYTES")?;
        options.slots = variable("RCCL_SLOTS")?;
        if let Some(sockets) = variable("RCCL_TCP_SOCKETS")? {
            options.tcp_sockets = sockets;
        }
        for (name, field) in [
            ("RCCL_INIT_TIMEOUT_S", &mut options.init_timeout),
            ("RCCL_TIMEOUT_S", &mut options.deadline),
            ("RCCL_HEARTBEAT_S", &mut options.heartbeat),
        ] {
            if let Some(seconds) = variable::<f64>(name)? {
                *field = Duration::try_from_secs_f64(seconds)
                    .map_err(|error| invalid(name, &format!("{seconds:?}"), &error.to_string()))?;
            }
        }
        options.check().map_err(|error| match error {
            Error::Argument { what, reason } => Error::Argument { what: variable_of(what), reason },
            other => other,
        })?;
        Ok(options)
    }

    /// Checks that the options make sense by themselves.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the field.
    pub fn check(&self) -> Result<()> {
        let argument = |what, reason: &str| Err(Error::Argument { what, reason: reason.to_owned() });
        if self.slots.is_some_and(|slots| !(1..=64).contains(&slots)) {
            return argument("Options::slots", "a station has 1 to 64 slots");
        }
        if self
            .slot_bytes
            .is_some_and(|bytes| !bytes.is_power_of_two() || !(4096..=64 << 20).contains(&bytes))
        {
            return argument("Options::slot_bytes", "a slot has a power of two of bytes, 4096 to 67108864");
        }
        if !(1..=16).contains(&self.tcp_sockets) {
            return argument("Options::tcp_sockets", "a TCP channel has 1 to 16 sockets");
        }
        if self.heartbeat < MIN_HEARTBEAT {
            return argument("Options::heartbeat", "a heartbeat timeout is at least 0.1 s");
        }
        if self.deadline.is_zero() || self.heartbeat.is_zero() || self.init_timeout.is_zero() {
            return argument("Options", "deadline, heartbeat and init_timeout must be longer than 0");
        }
        Ok(())
    }

    /// How the root of a group with these options serves it.
    #[must_use]
    pub fn root(&self) -> RootOptions {
        RootOptions { deadline: self.init_timeout, choice: self.interfaces.clone(), ..RootOptions::default() }
    }

    /// Data bytes of a slot in a group of `size` ranks, some of which reach each other over a `network`.
    pub(crate) fn slot_bytes(&self, size: u32, network: bool) -> u32 {
        // Large enough to hide the cost of words, or of system calls.
        self.slot_bytes.unwrap_or(match (network, size) {
            (true, 0..=8) => 256 << 10,
            (true, _) => 128 << 10,
            (false, 0..=8) => 64 << 10,
            (false, _) => 32 << 10,
        })
    }

    /// Slots of a station in a group of `size` ranks, some of which reach each other over a `network`.
    ///
    /// In shared memory a rank's stations together take about 4 MiB: more than a core's own cache, so that a slot which comes
    /// round again has been written back to the cache that the cores share. There a reader finds it about three times sooner
    /// than in the cache of the core that wrote it (measured: 64 KiB among 2 ranks in 5.5 us with 2 MiB a station, 10 us with
    /// 0.5 MiB). Over a network there is no such cache to gain, only one's own to lose.
    pub(crate) fn slots(&self, size: u32, network: bool) -> u32 {
        self.slots.unwrap_or(match (network, size) {
            (true, _) => 4,
            (false, 0..=2) => 32,
            (false, 3..=4) => 16,
            (false, _) => 8,
        })
    }

    /// The numbers that choose algorithms in a group of `size` ranks, some of which reach each other over a `network`.
    pub(crate) fn thresholds(&self, size: u32, network: bool) -> Thresholds {
        Thresholds {
            algorithm: self.algorithm,
            // One hop moves (n-1) times the bytes, two hops cost a second wait.
            oneshot_bytes: self.oneshot_bytes.unwrap_or(match size {
                0..=2 => 16 << 10,
                3..=4 => 8 << 10,
                _ => 4 << 10,
            }),
            slot_bytes: u64::from(self.slot_bytes(size, network)),
        }
    }
}

/// The variable behind an option that [`Options::check`] refuses.
fn variable_of(option: &'static str) -> &'static str {
    match option {
        "Options::slots" => "environment variable RCCL_SLOTS",
        "Options::slot_bytes" => "environment variable RCCL_SLOT_BYTES",
        "Options::tcp_sockets" => "environment variable RCCL_TCP_SOCKETS",
        "Options::heartbeat" => "environment variable RCCL_HEARTBEAT_S",
        "Options" => "environment variable RCCL_TIMEOUT_S, RCCL_HEARTBEAT_S or RCCL_INIT_TIMEOUT_S",
        other => other,
    }
}

/// Reads and parses a variable. Unset and empty are the same.
pub(crate) fn variable<T: std::str::FromStr>(name: &'static str) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => {
            value.parse().map(Some).map_err(|error: T::Err| invalid(name, &value, &error.to_string()))
        }
        Err(std::env::VarError::NotUnicode(_)) => Err(invalid(name, "not text", "it must be UTF-8")),
        _ => Ok(None),
    }
}

pub(crate) fn invalid(name: &str, value: &str, reason: &str) -> Error {
    rccl_transport::Error::Invalid {
        what: format!("environment variable {name}"),
        value: value.to_owned(),
        reason: reason.to_owned(),
    }
    .into()
}
