use std::{io, path::PathBuf, process::ExitCode};

/// Why a command could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// An option that makes no sense, alone or beside the others.
    #[error("{option}: {reason}")]
    Usage {
        /// The option as it is typed.
        option: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The core refused the request.
    #[error("{0}")]
    Core(#[from] rccl_core::Error),
    /// The library refused or failed.
    #[error("{0}")]
    Library(#[from] rccl::Error),
    /// A file could not be written or read.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Nobody reads the output, or it cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// The measuring processes could not be started, died, or reported a failure.
    #[error("{0}")]
    Processes(String),
}

impl Error {
    pub(crate) fn usage(option: &'static str, reason: impl Into<String>) -> Self {
        Self::Usage { option, reason: reason.into() }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { path: path.into(), source }
    }

    /// 2 for what the caller can correct, as for a malformed command line; 3 where a measurement broke down.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage { .. } | Self::Core(_) | Self::File { .. } | Self::Output(_) => 2,
            Self::Processes(_) | Self::Library(_) => 3,
        })
    }
}

pub(crate) type Result<T> = std::result::Result<T, Error>;
