//! NCCL's logger, through which the plugin speaks: `NCCL_DEBUG` and `NCCL_DEBUG_FILE` then hold for it too.

use std::{
    ffi::{CString, c_int, c_ulong},
    sync::atomic::{AtomicPtr, Ordering},
};

use super::abi::Logger;

/// A problem: shown unless NCCL_DEBUG is unset or VERSION.
const WARN: c_int = 2;
/// What goes on: shown with NCCL_DEBUG=INFO.
const INFO: c_int = 3;

/// The subsystems INIT and NET of NCCL_DEBUG_SUBSYS.
const SUBSYSTEM: c_ulong = 0x1 | 0x10;

static LOGGER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Takes the logger over. NCCL's library stays loaded longer than its plugins.
pub(super) fn set(logger: Option<Logger>) {
    if let Some(logger) = logger {
        LOGGER.store(logger as *mut (), Ordering::Release);
    }
}

/// Says what is wrong.
pub(super) fn warn(text: &str) {
    write(WARN, text);
}

/// Says what goes on.
pub(super) fn info(text: &str) {
    write(INFO, text);
}

fn write(level: c_int, text: &str) {
    let logger = LOGGER.load(Ordering::Acquire);
    if logger.is_null() {
        return;
    }
    // SAFETY: only `set` stores there, and only loggers.
    let logger = unsafe { std::mem::transmute::<*mut (), Logger>(logger) };
    let line = CString::new(format!("NET/rccl: {}", text.replace('\0', " "))).expect("no zero is left");
    // SAFETY: the format takes one string, which ends in NUL and lives for the call, as do the other strings.
    unsafe { logger(level, SUBSYSTEM, c"rccl".as_ptr(), 0, c"%s".as_ptr(), line.as_ptr()) };
}
