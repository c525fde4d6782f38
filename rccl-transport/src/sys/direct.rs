//! Memory of another process of this host, read without a copy in between.

use std::io;

use crate::Slice;

/// Reads `length` bytes at `address` of process `process` into `target[at..]`.
///
/// # Errors
/// What the operating system says: `EPERM` where this process may not (Yama, seccomp, another user), `ESRCH` or `EFAULT` where
/// the process or its memory is gone.
///
/// # Panics
/// If the range does not lie within the slice.
pub(crate) fn read(process: i32, address: u64, target: &Slice, at: usize, length: usize) -> io::Result<()> {
    assert!(at <= target.len() && length <= target.len() - at, "{length} at {at} of {}", target.len());
    let mut done = 0;
    while done < length {
        // SAFETY: checked above to lie within the slice.
        let start = unsafe { target.start().add(at + done) };
        let local = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: length - done };
        let remote = (address as usize).wrapping_add(done) as *mut libc::c_void;
        let remote = libc::iovec { iov_base: remote, iov_len: length - done };
        // SAFETY: the kernel writes to `local` alone, which the post allowed the channel to do, and checks the other address.
        let got = unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(got) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => done += got,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn own_memory_can_be_read_and_absent_memory_is_an_error() {
        let source = vec![7_u8; 10_000];
        let target = Region::zeroed(10_002).slice(0..10_002);
        let own = std::process::id() as i32;
        // A sandbox may forbid even this; then channels copy through the ring, as their own tests show.
        match read(own, source.as_ptr() as u64, &target, 1, 10_000) {
            Ok(()) => {
                let mut seen = vec![9; 10_002];
                // SAFETY: as long as the slice, which nothing else touches.
                unsafe { target.start().as_ptr().copy_to(seen.as_mut_ptr(), seen.len()) };
                assert!(seen[0] == 0 && seen[10_001] == 0 && seen[1..10_001].iter().all(|&byte| byte == 7));
            }
            Err(error) => eprintln!("process_vm_readv: {error}"),
        }
        assert!(read(own, 8, &target, 0, 8).is_err());
    }
}
