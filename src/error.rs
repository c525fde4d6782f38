use std::{sync::Arc, time::Duration};

/// What a communicator's calls can answer.
///
/// Errors about arguments leave the communicator as it was. Every other error ends it: it is *poisoned*, all its ranks
/// learn the cause, and every later call returns that first cause again.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that makes no sense on its own. Nothing has happened.
    #[error("{what}: {reason}")]
    Argument {
        /// Which argument of which call.
        what: &'static str,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// A group, request or name that the core refuses. Nothing has happened.
    #[error(transparent)]
    Core(#[from] rccl_core::Error),
    /// Connections, memory or the operating system failed.
    #[error(transparent)]
    Transport(Arc<rccl_transport::Error>),
    /// A rank has died: its process ended or its connection broke.
    #[error("rank {rank} is lost: {cause}")]
    PeerLost {
        /// The rank that died.
        rank: u32,
        /// How that was noticed.
        cause: String,
    },
    /// A rank still exists but has not shown any sign of life.
    #[error("rank {rank} has not responded for {after:?}: its process is stopped, starved or unreachable")]
    Unresponsive {
        /// The silent rank.
        rank: u32,
        /// The heartbeat timeout that has passed.
        after: Duration,
    },
    /// A rank has dropped or finalized its communicator while others still wait for it.
    #[error("rank {rank} has left the communicator, but {waiting_for}")]
    PeerLeft {
        /// The rank that left.
        rank: u32,
        /// What is still needed of it.
        waiting_for: String,
    },
    /// Two ranks made different calls where all must make the same one.
    #[error("ranks {} and {} disagree: rank {} called {}, rank {} called {}", ranks[0], ranks[1], ranks[0], calls[0], ranks[1], calls[1])]
    Mismatch {
        /// The two ranks.
        ranks: [u32; 2],
        /// What each of them called, in words.
        calls: [String; 2],
    },
    /// Ranks were created with options that must be equal and are not.
    #[error(
        "ranks 0 and {rank} were created with different options: {what} is {ours} on rank 0 and {theirs} on rank {rank}"
    )]
    Options {
        /// The rank that differs from rank 0.
        rank: u32,
        /// Which option.
        what: &'static str,
        /// Rank 0's value.
        ours: String,
        /// The other rank's value.
        theirs: String,
    },
    /// Somebody called [`crate::Communicator::abort`].
    #[error("rank {rank} aborted the communicator")]
    Aborted {
        /// The rank whose program did.
        rank: u32,
    },
    /// A call did not complete within its deadline.
    #[error("{call} did not complete within {after:?}: {waiting_for}")]
    Timeout {
        /// The call, in words.
        call: String,
        /// The deadline.
        after: Duration,
        /// What it was waiting for.
        waiting_for: String,
    },
    /// Another rank failed for a reason of its own.
    #[error("rank {rank} failed: {cause}")]
    PeerFailed {
        /// The rank that failed.
        rank: u32,
        /// Why.
        cause: String,
    },
    /// Whoever carried the call out panicked; the panic's message says why.
    #[error("the call was abandoned: the thread that carried it out panicked")]
    Abandoned,
    /// The communicator was made before `fork` and used in the child.
    #[error(
        "the communicator was created before fork() and cannot be used in the child process; create one there"
    )]
    Forked,
}

impl From<rccl_transport::Error> for Error {
    fn from(error: rccl_transport::Error) -> Self {
        Self::Transport(Arc::new(error))
    }
}

impl From<rccl_transport::station::StationError> for Error {
    fn from(error: rccl_transport::station::StationError) -> Self {
        let rank = error.rank.0;
        match error.source {
            rccl_transport::Error::PeerLost { cause, .. } => Self::PeerLost { rank, cause },
            source => source.into(),
        }
    }
}

/// The driver's result.
pub type Result<T> = std::result::Result<T, Error>;
