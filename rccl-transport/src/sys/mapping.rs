//! Mapped memory as regions.

use std::{os::fd::AsFd, ptr::NonNull, sync::Arc};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::{Error, Region, Result, Slice};

/// Bytes of a huge page, of the size that most machines have.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// The NUMA nodes that a mask of one word can name.
const MAX_NODES: u32 = usize::BITS;

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

/// Has the system use huge pages where it grants them; without them everything works as well.
pub(crate) fn prefer_huge_pages(region: &Region) {
    // SAFETY: the range is a mapping, which the region keeps; advice changes no byte of it.
    let _ =
        unsafe { rustix::mm::madvise(region.start().as_ptr().cast(), region.len(), Advice::LinuxHugepage) };
}

/// Has memory of a mapping, from a page on, be taken from one NUMA node where it has not been taken yet and there is some
/// left.
///
/// # Errors
/// [`Error::Io`] if there is no such node, or the process may not use it.
pub(crate) fn prefer_node(part: &Slice, node: u32) -> Result<()> {
    let failed = |error| Error::io(format!("mbind to NUMA node {node}"), error);
    if node >= MAX_NODES {
        return Err(failed(std::io::ErrorKind::InvalidInput.into()));
    }
    let mask: usize = 1 << node;
    let bits = libc::c_ulong::from(MAX_NODES) + 1;
    let (start, len, flags): (_, _, libc::c_uint) = (part.start().as_ptr(), part.len(), 0);
    // SAFETY: the range is part of a mapping, which the slice keeps; the mask has as many bits as are named.
    let answer = unsafe {
        libc::syscall(libc::SYS_mbind, start, len, libc::MPOL_PREFERRED, &raw const mask, bits, flags)
    };
    if answer == 0 { Ok(()) } else { Err(failed(std::io::Error::last_os_error())) }
}

/// Takes the memory of a mapping, from a page on, now, so that a lack of it is an error here and no signal later. Kernels
/// before Linux 5.14 take it at the first touch.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn populate(part: &Slice, what: &str) -> Result<()> {
    // SAFETY: the range is part of a mapping, which the slice keeps; populating changes no byte of it.
    let populated =
        unsafe { rustix::mm::madvise(part.start().as_ptr().cast(), part.len(), Advice::LinuxPopulateWrite) };
    match populated {
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(errno) => Err(Error::io(format!("taking {} bytes of memory for {what}", part.len()), errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_on_the_first_node_and_on_no_node_that_is_not_there() {
        let region = anonymous(2 * HUGE_PAGE_BYTES, "a test").unwrap();
        prefer_huge_pages(&region);
        let part = region.slice(HUGE_PAGE_BYTES..2 * HUGE_PAGE_BYTES);
        // Some sandboxes forbid the call; what matters is that a refusal is an error and the memory is there all the same.
        let _ = prefer_node(&part, 0);
        assert!(prefer_node(&part, MAX_NODES).is_err());
        populate(&part, "a test").unwrap();
    }
}
