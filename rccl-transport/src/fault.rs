//! Why a channel is dead. Kept, so that every later call says the same.

use std::io;

use crate::Error;

/// The first thing that went wrong on a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The other end is gone, or does not keep to the protocol.
    Lost(String),
    /// A message did not fit its receive.
    Truncated { message_bytes: u64, posted_bytes: u64 },
}

impl Fault {
    /// The other end broke the protocol.
    pub(crate) fn protocol(what: impl std::fmt::Display) -> Self {
        Self::Lost(format!("protocol: {what}"))
    }

    /// What happened, without saying to whom.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Lost(cause) => cause.clone(),
            Self::Truncated { .. } => self.error("").to_string(),
        }
    }

    /// The error it gives on a channel to `peer`.
    pub(crate) fn error(&self, peer: &str) -> Error {
        match self {
            Self::Lost(cause) => Error::PeerLost { peer: peer.to_owned(), cause: cause.clone() },
            &Self::Truncated { message_bytes, posted_bytes } => {
                Error::Truncated { message_bytes, posted_bytes }
            }
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}

/// What a step of a channel gives that may find it dead.
pub(crate) type Step<T> = Result<T, Fault>;
