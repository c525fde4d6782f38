use std::{io, time::Duration};

/// What can go wrong while bytes move.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The other end of a connection is gone.
    #[error("connection to {peer} lost: {cause}")]
    PeerLost {
        /// Who was at the other end, as an address or a rank.
        peer: String,
        /// What the operating system or the protocol said.
        cause: String,
    },
    /// A call into the operating system failed.
    #[error("{call}: {source}{}", hint(source))]
    Io {
        /// What was being done, with its arguments.
        call: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Something did not happen within its deadline.
    #[error("{waiting_for} did not happen within {after:?}")]
    Timeout {
        /// What was waited for.
        waiting_for: String,
        /// How long.
        after: Duration,
    },
    /// The other end speaks another protocol or version, or does not know the secret.
    #[error("{peer} was refused: {reason}")]
    Refused {
        /// Who.
        peer: String,
        /// Why.
        reason: String,
    },
    /// A message is longer than the memory posted for it.
    #[error("a message of {message_bytes} bytes met a receive of {posted_bytes} bytes")]
    Truncated {
        /// Bytes of the message.
        message_bytes: u64,
        /// Bytes of the receive.
        posted_bytes: u64,
    },
    /// An argument, option or variable that makes no sense.
    #[error("{what} is `{value}`: {reason}")]
    Invalid {
        /// The argument's, option's or variable's name.
        what: String,
        /// What it was set to.
        value: String,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// Something this machine or build cannot do.
    #[error("{what} cannot be used here: {reason}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why it cannot be had, and what would help.
        reason: String,
    },
}

/// What would help against some failures, as the end of their text.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise the limit on open files of this process (ulimit -n)",
        Some(libc::ENFILE) => "; raise the limit on open files of this machine (sysctl fs.file-max)",
        Some(libc::ENOMEM) => "; free memory, or raise the limit on memory or mappings",
        _ => "",
    }
}

impl Error {
    /// An operating system error, with what was being done.
    pub fn io(call: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { call: call.into(), source: source.into() }
    }
}

/// The transport's result.
pub type Result<T> = std::result::Result<T, Error>;
