//! The NCCL network plugin: NCCL's traffic between hosts over rccl's channels.
//!
//! ```text
//! abi         what NCCL looks up: one table a version, every entry behind the panic boundary
//! plugin      what the entries do, the same for all versions
//! device      one device for each network interface, and those made of several
//! handle      the 128 bytes that a listening side gives and a connecting side gets
//! connection  one side of a channel, with its requests; listeners and dials make them
//! helpers     threads that move long messages beside the one that polls
//! settings    the environment; log: NCCL's logger
//! ```
//! A connection is a channel of [`rccl_transport`] behind a lock: shared memory where both ends are on one machine, else
//! TCP. Whoever polls moves the bytes; NCCL's progress thread always polls.

pub mod abi;
pub mod connection;
pub mod device;
pub mod handle;
mod helpers;
mod log;
pub mod plugin;
mod settings;

use std::{ffi::c_int, fmt};

use rccl_transport::Error;

use self::abi::NcclResult;

/// Why an entry did not do what it says.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What NCCL is told.
    pub code: NcclResult,
    /// What people are told.
    pub text: String,
}

impl Failure {
    /// A failure with this code and text.
    pub fn new(code: NcclResult, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// An argument that makes no sense.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(NcclResult::INVALID_ARGUMENT, text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::PeerLost { .. }
            | Error::Timeout { .. }
            | Error::Refused { .. }
            | Error::Truncated { .. } => NcclResult::REMOTE,
            Error::Io { .. } => NcclResult::SYSTEM,
            Error::Invalid { .. } | Error::Unavailable { .. } => NcclResult::INVALID_USAGE,
            _ => NcclResult::INTERNAL,
        };
        Self::new(code, error.to_string())
    }
}

/// What an entry comes to.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// A length that NCCL gave as an `int`.
pub(crate) fn length(bytes: c_int) -> Outcome<usize> {
    usize::try_from(bytes).map_err(|_| Failure::argument(format!("a length of {bytes} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_peer_and_a_failing_system_are_told_apart() {
        let code = |error: Error| Failure::from(error).code;
        let lost = Error::PeerLost { peer: "it".into(), cause: "gone".into() };
        assert_eq!(code(lost), NcclResult::REMOTE);
        assert_eq!(code(Error::io("socket", std::io::Error::from_raw_os_error(24))), NcclResult::SYSTEM);
        assert_eq!(length(-1).unwrap_err().code, NcclResult::INVALID_ARGUMENT);
    }
}
