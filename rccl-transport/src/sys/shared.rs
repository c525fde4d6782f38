//! Memory shared between processes: anonymous files whose size is sealed, so that touching them cannot fail.

use std::{os::fd::OwnedFd, sync::Arc};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::mapping;
use crate::{Error, Region, Result};

/// What the memory is, in errors.
const WHAT: &str = "a channel";

/// Makes a file of `len` zero bytes in memory, which nobody can make shorter (touching a mapping would then end the process)
/// or longer. It exists nowhere but in processes that have the descriptor or map it, and programs that these start do not
/// inherit it. Memory is taken at the first touch.
///
/// # Errors
/// [`Error::Io`] if the machine has no descriptor left.
pub(crate) fn sealed(name: &str, len: usize) -> Result<OwnedFd> {
    sealed_with(name, len, MemfdFlags::empty())
}

/// As [`sealed`], of huge pages that the system has set aside, all of which are taken now.
///
/// # Errors
/// [`Error::Io`] if there are not enough of them.
pub(crate) fn sealed_huge(name: &str, len: usize) -> Result<OwnedFd> {
    let file = sealed_with(name, len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)?;
    let region = mapping::shared(&file, len, name)?;
    mapping::populate(&region.slice(0..len), name)?;
    Ok(file)
}

fn sealed_with(name: &str, len: usize, flags: MemfdFlags) -> Result<OwnedFd> {
    let failed = |call: &'static str| move |errno| Error::io(format!("{call} of {name}, {len} bytes"), errno);
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(failed("memfd_create"))?;
    // Beyond the limit on file sizes the process would be killed by a signal.
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Fsize).current
        && limit < len as u64
    {
        return Err(Error::Invalid {
            what: "the limit on file sizes (ulimit -f)".to_owned(),
            value: format!("{limit} bytes"),
            reason: format!("shared memory of {len} bytes counts as a file; raise the limit"),
        });
    }
    rustix::fs::ftruncate(&file, len as u64).map_err(failed("ftruncate"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(failed("sealing"))?;
    Ok(file)
}

/// Makes `len` zero bytes of shared memory and takes them at once.
///
/// # Errors
/// [`Error::Io`] if the machine has no memory or descriptor left.
pub(crate) fn create(len: usize) -> Result<(OwnedFd, Arc<Region>)> {
    let file = sealed("rccl", len)?;
    // Allocates what a first touch would allocate, so that a full machine is an error here and not a signal there.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)
        .map_err(|errno| Error::io(format!("fallocate of {len} bytes"), errno))?;
    let region = mapping::shared(&file, len, WHAT)?;
    Ok((file, region))
}

/// Maps shared memory that another process made.
///
/// # Errors
/// [`Error::Invalid`] if it has another length or could still shrink; [`Error::Io`] from the operating system.
pub(crate) fn open(file: &OwnedFd, len: usize) -> Result<Arc<Region>> {
    let is_len = |stat: rustix::fs::Stat| u64::try_from(stat.st_size).is_ok_and(|size| size == len as u64);
    let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !sealed || !rustix::fs::fstat(file).is_ok_and(is_len) {
        return Err(Error::Invalid {
            what: "a passed descriptor".into(),
            value: format!("{file:?}"),
            reason: format!("it is not {len} bytes of shared memory that cannot shrink"),
        });
    }
    mapping::shared(file, len, WHAT)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::sys::memory::word;

    #[test]
    fn both_mappings_are_the_same_memory() {
        let (file, one) = create(8192).unwrap();
        let two = open(&file, 8192).unwrap();
        drop(file);
        word(&one, 4096).store(7, Relaxed);
        assert_eq!(word(&two, 4096).load(Relaxed), 7);
        drop(one);
        assert_eq!(word(&two, 4096).load(Relaxed), 7);
    }

    #[test]
    fn memory_that_is_not_as_promised_is_refused() {
        let (file, _region) = create(4096).unwrap();
        assert!(open(&file, 8192).is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        let unsealed = rustix::fs::memfd_create("rccl", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(open(&unsealed, 4096).unwrap_err().to_string().contains("cannot shrink"));
        let other = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(open(&other, 0).is_err());
    }
}
