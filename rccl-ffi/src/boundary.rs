//! The one door between C and Rust: no panic passes it.
//!
//! A panic that unwinds into C ends the process without a word. So every exported body runs in [`guard`].

use std::{
    ffi::c_char,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use crate::{Status, rccl_status_t};

#[cfg(panic = "abort")]
compile_error!("rccl-ffi answers a panic with a code, which needs panic = \"unwind\" in the profile");

/// What an exported function answers when its body panicked.
pub trait OnPanic {
    /// The answer that says so.
    fn on_panic() -> Self;
}

impl OnPanic for rccl_status_t {
    fn on_panic() -> Self {
        Status::Panic.code()
    }
}

impl OnPanic for *const c_char {
    fn on_panic() -> Self {
        ptr::null()
    }
}

/// Runs the body of an exported function. A panic becomes the answer of [`OnPanic`]; its message has gone through the
/// panic hook by then, by default to the standard error.
///
/// The body may touch shared state across a panic: what it locks must be left usable or poisoned, which the locks of
/// the crates below take care of.
///
/// # Examples
/// ```
/// use rccl_ffi::{Status, boundary::guard};
///
/// assert_eq!(guard(|| Status::Success.code()), 0);
/// ```
pub fn guard<T: OnPanic>(body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(payload) => {
            // A payload may panic again when it is dropped. Forgetting it leaks a few bytes, once a bug.
            std::mem::forget(payload);
            T::on_panic()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code_or_null() {
        assert_eq!(guard(|| -> rccl_status_t { panic!("expected by this test") }), Status::Panic.code());
        assert!(guard(|| -> *const c_char { panic!("expected by this test") }).is_null());
        assert_eq!(guard(|| Status::InvalidArgument.code()), Status::InvalidArgument.code());
    }

    #[test]
    fn a_payload_that_panics_when_dropped_stays_inside() {
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                panic!("expected by this test");
            }
        }
        let code = guard(|| -> rccl_status_t { std::panic::panic_any(Payload) });
        assert_eq!(code, Status::Panic.code());
    }

    #[test]
    fn a_panic_does_not_cross_an_exported_function() {
        extern "C" fn exported() -> rccl_status_t {
            guard(|| {
                let empty: Vec<i32> = Vec::new();
                empty[std::hint::black_box(1)]
            })
        }
        assert_eq!(exported(), Status::Panic.code());
    }
}
