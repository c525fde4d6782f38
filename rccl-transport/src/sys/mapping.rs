//! Mapped memory as regions.

use std::{os::fd::AsFd, ptr::NonNull, sync::Arc};

use rustix::mm::{MapFlags, ProtFlags};

use crate::{Error, Region, Result};

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapping, gone when dropped.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and is only unmapped through this handle.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives access to nothing.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly this mapping was made, and the region that owned it is gone with all its slices.
        if let Err(errno) = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::warn!("munmap of {} bytes: {errno}", self.len);
        }
    }
}

/// Maps the first `len` bytes of a file, shared with everyone who maps it. The caller has seen that the file is as long, and
/// that it stays so or that whoever could cut it short is trusted. `what` names the memory in errors.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn shared(file: impl AsFd, len: usize, what: &str) -> Result<Arc<Region>> {
    // SAFETY: a null hint makes the kernel choose addresses that nothing else uses.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ACCESS, MapFlags::SHARED, file, 0) };
    region(start, len, what)
}

/// Maps `len` zero bytes of this process alone, from a page on.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn anonymous(len: usize, what: &str) -> Result<Arc<Region>> {
    // SAFETY: as in `shared`.
    let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ACCESS, MapFlags::PRIVATE) };
    region(start, len, what)
}

fn region(mapped: rustix::io::Result<*mut std::ffi::c_void>, len: usize, what: &str) -> Result<Arc<Region>> {
    let start = mapped.map_err(|errno| Error::io(format!("mmap of {len} bytes for {what}"), errno))?;
    let start = NonNull::new(start.cast()).expect("mmap without a fixed address never maps page 0");
    let owner = Box::new(Mapping { start, len });
    // SAFETY: the mapping is readable and writable for `len` bytes and lives in `owner`.
    Ok(unsafe { Region::from_raw(start, len, Some(owner)) })
}
