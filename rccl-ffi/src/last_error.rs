//! What a code cannot say: the words of the last failure.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
};

use crate::{Status, boundary::guard, rccl_status_t};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Remembers a failure's words for this thread and gives its code.
pub(crate) fn failed(error: &rccl::Error) -> rccl_status_t {
    remember(&error.to_string());
    Status::from(error).code()
}

/// Remembers that an argument is wrong.
pub(crate) fn invalid(reason: &str) -> rccl_status_t {
    remember(reason);
    Status::InvalidArgument.code()
}

/// The code of a result, whose error is remembered.
pub(crate) fn code(result: rccl::Result<()>) -> rccl_status_t {
    result.map_or_else(|error| failed(&error), |()| Status::Success.code())
}

fn remember(text: &str) {
    let text: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
    let text = CString::new(text).unwrap_or_default();
    // A thread that is ending has nobody left to read it.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Says in English what made the last function fail that failed on this thread: what, where, and how to mend it. Empty if
/// none did.
///
/// Returns a string that is valid until the next function of rccl fails on this thread or the thread ends, and is not to be
/// freed. Never NULL unless rccl has a bug. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn rccl_last_error_text() -> *const c_char {
    guard(|| LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr()))
}
