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
    // Last added: InvalidArgument.
}

impl Status {
    /// Every status.
    ///
    /// cbindgen:ignore
    pub const ALL: [Self; 3] = [Self::Success, Self::Panic, Self::InvalidArgument];

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
        assert_eq!(Status::ALL.map(Status::code), [0, 1, 2]);
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
