//! The only unsafe code of the command: memory shared between mappings, collectives on untyped buffers, work of GPUs, and
//! libraries loaded at run time.

pub(crate) mod gpu;
pub(crate) mod nccl;
pub(crate) mod nvml;

use std::{
    ffi::c_void,
    io,
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::AtomicU32,
};

use rccl::Communicator;
use rccl_core::{Group, Request};
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

/// Carries out a request on buffers that lie apart.
///
/// # Errors
/// Those of [`Communicator::run`].
///
/// # Panics
/// If the buffers do not have the lengths that the request needs.
pub(crate) fn run(
    communicator: &Communicator,
    group: Group,
    request: &Request,
    input: &[u8],
    output: &mut [u8],
) -> rccl::Result<()> {
    let size = request.data_type.size_bytes() as u64;
    assert_eq!(input.len() as u64, request.input_len(group) * size, "bytes of the input");
    assert_eq!(output.len() as u64, request.output_len(group) * size, "bytes of the output");
    // SAFETY: the lengths are those the request needs (asserted above), and the borrows keep everybody else away and the
    // two apart.
    unsafe { communicator.run(request, input.as_ptr(), output.as_mut_ptr()) }
}

/// Carries out a request in place: the smaller of its buffers lies in the larger one, as [`Request::in_place_offset`] says.
///
/// # Errors
/// Those of [`Communicator::run`].
///
/// # Panics
/// If the buffer does not have the length of the larger one, or the collective cannot be in place.
pub(crate) fn run_in_place(
    communicator: &Communicator,
    group: Group,
    request: &Request,
    both: &mut [u8],
) -> rccl::Result<()> {
    let size = request.data_type.size_bytes();
    let (input_len, output_len) = (request.input_len(group), request.output_len(group));
    assert_eq!(both.len() as u64, input_len.max(output_len) * size as u64, "bytes of the larger buffer");
    let offset = request.in_place_offset(group).expect("a collective that can be in place") as usize * size;
    let smaller_bytes = input_len.min(output_len) as usize * size;
    assert!(offset + smaller_bytes <= both.len(), "the smaller buffer lies in the larger one");
    let larger = both.as_mut_ptr();
    let smaller = larger.wrapping_add(offset);
    let (input, output) = if input_len < output_len { (smaller, larger) } else { (larger, smaller) };
    // SAFETY: both pointers come from one exclusive borrow; the larger buffer has its length (asserted) and the smaller one
    // lies within it (asserted), where the request says.
    unsafe { communicator.run(request, input, output) }
}
