//! The status codes of the C interface.

use std::ffi::{CStr, c_char};

use crate::boundary::guard;

/// What a function of the C interface returns: one of the codes above. A plain integer, since a newer library may
/// return a code that an older header does not name.
#[allow(non_camel_case_types)]
pub type rccl_status_t = i32;

/// The status codes. A code never changes its meaning and is never used again; new ones go to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
pub enum Status {
    /// The call did what it says.
    Success = 0,
    /// A bug in rccl: its code panicked. The message is on the standard error.
    Panic = 1,
    /// An argument is NULL or out of range.
    InvalidArgument = 2,
    /// Something that the machine does not have: a CUDA driver, a device that is new enough.
    Unavailable = 3,
    /// The CUDA driver failed.
    Device = 4,
    /// Connections, memory or the operating system failed.
    System = 5,
    /// A rank has died or left.
    PeerLost = 6,
    /// A rank still exists but has not shown any sign of life.
    Unresponsive = 7,
    /// Something did not come within its deadline.
    Timeout = 8,
    /// Somebody aborted the communicator.
    Aborted = 9,
    /// Another rank failed for a reason of its own.
    PeerFailed = 10,
    /// Ranks made different calls, or were created with different options.
    Mismatch = 11,
    /// The communicator was created before fork and used in the child.
    Forked = 12,
    // Last added: Forked.
}

impl Status {
    /// Every status.
    ///
    /// cbindgen:ignore
    pub const ALL: [Self; 13] = [
        Self::Success,
        Self::Panic,
        Self::InvalidArgument,
        Self::Unavailable,
        Self::Device,
        Self::System,
        Self::PeerLost,
        Self::Unresponsive,
        Self::Timeout,
        Self::Aborted,
        Self::PeerFailed,
        Self::Mismatch,
        Self::Forked,
    ];

    /// The number that C sees.
    #[must_use]
    pub const fn code(self) -> rccl_status_t {
        self as rccl_status_t
    }

    /// The status of a number, if this version knows it.
    #[must_use]
    pub fn from_code(code: rccl_status_t) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.code() == code)
    }

    /// One sentence for a person, in English.
    #[must_use]
    pub const fn text(self) -> &'static CStr {
        match self {
            Self::Success => c"success",
            Self::Panic => c"bug in rccl: it panicked; the message is on the standard error",
            Self::InvalidArgument => c"an argument is NULL or out of range",
            Self::Unavailable => c"the machine lacks what this needs, such as a CUDA driver",
            Self::Device => c"the CUDA driver failed",
            Self::System => c"connections, memory or the operating system failed",
            Self::PeerLost => c"a rank has died or left",
            Self::Unresponsive => c"a rank has not shown any sign of life",
            Self::Timeout => c"something did not come within its deadline",
            Self::Aborted => c"the communicator was aborted",
            Self::PeerFailed => c"another rank failed",
            Self::Mismatch => c"ranks made different calls or were created with different options",
            Self::Forked => c"the communicator was created before fork and cannot be used in the child",
        }
    }
}

impl From<&rccl::Error> for Status {
    fn from(error: &rccl::Error) -> Self {
        use rccl::Error;
        match error {
            Error::Argument { .. } | Error::Core(_) => Self::InvalidArgument,
            Error::Transport(cause) => match **cause {
                rccl_transport::Error::Invalid { .. } => Self::InvalidArgument,
                rccl_transport::Error::Unavailable { .. } => Self::Unavailable,
                rccl_transport::Error::Device { .. } => Self::Device,
                rccl_transport::Error::PeerLost { .. } => Self::PeerLost,
                rccl_transport::Error::Timeout { .. } => Self::Timeout,
                _ => Self::System,
            },
            Error::PeerLost { .. } | Error::PeerLeft { .. } => Self::PeerLost,
            Error::Unresponsive { .. } => Self::Unresponsive,
            Error::Timeout { .. } => Self::Timeout,
            Error::Aborted { .. } => Self::Aborted,
            Error::PeerFailed { .. } => Self::PeerFailed,
            Error::Mismatch { .. } | Error::Options { .. } => Self::Mismatch,
            Error::Forked => Self::Forked,
            // A panic on another thread, whose message is on the standard error too.
            Error::Abandoned => Self::Panic,
            _ => Self::System,
        }
    }
}

/// Says what a status code means, in one English sentence. Takes any number.
///
/// Returns a string that lives as long as the process and is not to be freed. Never NULL. Never blocks; may be called
/// from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn rccl_status_text(status: rccl_status_t) -> *const c_char {
    guard(|| Status::from_code(status).map_or(c"unknown status code", Status::text).as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_once_given_out() {
        assert_eq!(Status::ALL.map(Status::code), std::array::from_fn(|at| at as rccl_status_t));
        for status in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::from_code(-1), None);
    }

    #[test]
    fn every_number_has_a_text() {
        let text = |code| {
            // SAFETY: rccl_status_text returns a pointer to a static string that ends in NUL.
            unsafe { CStr::from_ptr(rccl_status_text(code)) }
        };
        assert_eq!(text(0), c"success");
        assert_eq!(text(i32::MIN), c"unknown status code");
    }
}
