//! The version of the library that is loaded.

use std::ffi::c_int;

use crate::{Status, boundary::guard, rccl_status_t};

/// This version: major * 10000 + minor * 100 + patch, as NCCL counts.
const VERSION: c_int = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// Stores the version of the loaded library in `version`: major * 10000 + minor * 100 + patch, so 0.1.0 is 100.
///
/// Never blocks; may be called from any thread. Returns RCCL_STATUS_INVALID_ARGUMENT if `version` is NULL.
///
/// # Safety
/// `version` is NULL or points to an `int` that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_version(version: *mut c_int) -> rccl_status_t {
    guard(|| {
        if version.is_null() {
            return Status::InvalidArgument.code();
        }
        // SAFETY: not NULL, checked above; that it may be written is the caller's promise.
        unsafe { version.write(VERSION) };
        Status::Success.code()
    })
}

/// A decimal number known when compiling.
const fn number(digits: &str) -> c_int {
    match c_int::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("a part of the version is not a number"),
    }
}
