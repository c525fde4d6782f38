use std::{fmt, str::FromStr, time::Duration};

use rccl_core::Algorithm;

use crate::{
    Error, Interfaces, Result,
    options::{self, variable},
};

/// How the devices of a host hand each other their data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CudaProtocol {
    /// One kernel with flags beside the data: up to 512 KiB, in one hop; larger calls are chosen by size.
    Ll,
    /// One kernel with chunks in slots, in one hop or two.
    Stripe,
    /// Copy engines, in one hop.
    Bulk,
}

impl CudaProtocol {
    const ALL: [Self; 3] = [Self::Ll, Self::Stripe, Self::Bulk];

    /// The protocol's name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ll => "ll",
            Self::Stripe => "stripe",
            Self::Bulk => "bulk",
        }
    }
}

impl fmt::Display for CudaProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CudaProtocol {
    type Err = rccl_core::Error;

    fn from_str(name: &str) -> rccl_core::Result<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name).ok_or_else(|| rccl_core::Error::Name {
            what: "protocol",
            name: name.to_owned(),
            expected: "auto ll stripe bulk".to_owned(),
        })
    }
}

/// How a [`super::CudaCommunicator`] is made. The first four must be equal on all ranks; creation checks that.
#[derive(Debug, Clone)]
pub struct CudaOptions {
    /// The protocol of all calls; `None` chooses by size. Variable `RCCL_PROTOCOL`.
    pub protocol: Option<CudaProtocol>,
    /// The algorithm of all calls, `oneshot` or `relay`; `None` chooses by size. Only protocol `stripe` relays: naming
    /// `relay` makes it that of all calls for which no protocol is named. Variable `RCCL_ALGORITHM`.
    pub algorithm: Option<Algorithm>,
    /// Calls of at most this many bytes use `ll` (at most 512 KiB); `None` takes a value that suits the size of the group.
    /// Variable `RCCL_LL_BYTES`.
    pub ll_bytes: Option<u64>,
    /// Calls of at least this many bytes use `bulk`; `None` takes a value that suits the size of the group. Variable
    /// `RCCL_BULK_BYTES`.
    pub bulk_bytes: Option<u64>,
    /// Whether ranks may share a device. Work of each must then be on streams of its own, not the default stream. Ranks of
    /// different processes take turns on it, so calls take milliseconds. Among ranks of one process `bulk` is used only if it
    /// is named: there a call that waits for a peer holds up all copies of the device, so nobody may copy before it calls.
    /// Variable `RCCL_ALLOW_SHARED_GPU`, 0 or 1.
    pub allow_shared_gpu: bool,
    /// How long creation may take before it gives up and names the missing ranks. Variable `RCCL_INIT_TIMEOUT_S`.
    pub init_timeout: Duration,
    /// The interfaces on which the ranks, all of one host, find each other to share memory; the loopback unless told.
    pub interfaces: Interfaces,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            protocol: None,
            algorithm: None,
            ll_bytes: None,
            bulk_bytes: None,
            allow_shared_gpu: false,
            init_timeout: Duration::from_secs(120),
            interfaces: Interfaces::loopback(),
        }
    }
}

impl CudaOptions {
    /// The defaults, changed by the environment's variables.
    ///
    /// # Errors
    /// A variable whose value makes no sense, by name.
    ///
    /// ```
    /// let options = rccl::cuda::CudaOptions::from_env()?;
    /// # Ok::<(), rccl::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        let host = crate::Options::from_env()?;
        let shared = match variable::<u8>("RCCL_ALLOW_SHARED_GPU")? {
            None | Some(0) => false,
            Some(1) => true,
            Some(other) => {
                return Err(options::invalid("RCCL_ALLOW_SHARED_GPU", &other.to_string(), "it is 0 or 1"));
            }
        };
        let options = Self {
            protocol: match std::env::var("RCCL_PROTOCOL").as_deref() {
                Ok("auto") => None,
                _ => variable("RCCL_PROTOCOL")?,
            },
            algorithm: host.algorithm,
            ll_bytes: variable("RCCL_LL_BYTES")?,
            bulk_bytes: variable("RCCL_BULK_BYTES")?,
            allow_shared_gpu: shared,
            init_timeout: host.init_timeout,
            ..Self::default()
        };
        options.check().map_err(|error| match error {
            Error::Argument { reason, .. } => {
                Error::Argument { what: "environment variables RCCL_ALGORITHM and RCCL_PROTOCOL", reason }
            }
            other => other,
        })?;
        Ok(options)
    }

    /// Checks that the options make sense by themselves.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the field.
    pub fn check(&self) -> Result<()> {
        let argument = |reason: String| Err(Error::Argument { what: "CudaOptions::algorithm", reason });
        match (self.algorithm, self.protocol) {
            (Some(Algorithm::Relay), Some(protocol @ (CudaProtocol::Ll | CudaProtocol::Bulk))) => argument(
                format!("protocol {protocol} has oneshot only; name stripe, or no protocol, with relay"),
            ),
            (Some(other), _) if !matches!(other, Algorithm::Oneshot | Algorithm::Relay) => {
                argument(format!("devices reduce by oneshot or relay, not {other}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_devices_cannot_do_is_refused() {
        let options = |algorithm, protocol| CudaOptions { algorithm, protocol, ..CudaOptions::default() };
        let refused = |options: CudaOptions| options.check().unwrap_err().to_string();
        options(None, None).check().unwrap();
        options(Some(Algorithm::Relay), Some(CudaProtocol::Stripe)).check().unwrap();
        options(Some(Algorithm::Oneshot), Some(CudaProtocol::Bulk)).check().unwrap();
        assert!(refused(options(Some(Algorithm::Ring), None)).contains("not ring"));
        assert!(
            refused(options(Some(Algorithm::Relay), Some(CudaProtocol::Ll))).contains("ll has oneshot only")
        );
    }

    #[test]
    fn protocols_are_named_as_they_print() {
        for protocol in CudaProtocol::ALL {
            assert_eq!(protocol.to_string().parse::<CudaProtocol>().unwrap(), protocol);
        }
        assert!("relay".parse::<CudaProtocol>().unwrap_err().to_string().contains("auto ll stripe bulk"));
    }
}
