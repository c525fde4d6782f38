//! The only unsafe code of the command: memory shared between mappings.

use std::{
    ffi::c_void,
    io,
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::AtomicU32,
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Bytes of the shared memory that is tried out: one page on any machine.
const PROBE_BYTES: usize = 64 << 10;

/// Anonymous shared memory, as stations use it: a descriptor that needs no file system and vanishes with its last user.
///
/// # Errors
/// What the operating system says, with the call that failed.
pub(crate) fn shared_memory() -> io::Result<OwnedFd> {
    let named = |call: &str, error: rustix::io::Errno| {
        io::Error::new(io::Error::from(error).kind(), format!("{call}: {error}"))
    };
    let descriptor =
        memfd_create(c"rccl-doctor", MemfdFlags::CLOEXEC).map_err(|error| named("memfd_create", error))?;
    ftruncate(&descriptor, PROBE_BYTES as u64).map_err(|error| named("ftruncate", error))?;
    Ok(descriptor)
}

/// A mapping of shared memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<c_void>,
}

// SAFETY: the mapping is memory of the process, not of a thread; it is only used through an atomic word.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory made by [`shared_memory`].
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn new(descriptor: impl AsFd) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose a place that nothing else uses.
        let start =
            unsafe { mmap(ptr::null_mut(), PROBE_BYTES, protection, MapFlags::SHARED, descriptor, 0) }?;
        NonNull::new(start).map(|start| Self { start }).ok_or_else(|| io::Error::other("mmap gave address 0"))
    }

    /// The first word.
    pub(crate) fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping is readable and writable, page aligned, longer than a word (`new`), and lives until `self`
        // is dropped; everybody uses the word atomically.
        unsafe { self.start.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this range, and no reference into it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr(), PROBE_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}
