//! Non-blocking scatter and gather on sockets, straight from and into regions.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use crate::Slice;

/// The most bytes asked of the kernel at once; it would cut longer requests anyway.
const MAX_CALL_BYTES: usize = 1 << 30;

/// Sends `head`, then `payload[from..]`, as far as the kernel takes them now; gives the number of bytes taken.
///
/// # Errors
/// `WouldBlock` if it takes none; what the operating system says otherwise. No signal is raised.
pub(crate) fn send(fd: BorrowedFd<'_>, head: &[u8], payload: &Slice, from: usize) -> io::Result<usize> {
    let mut parts = [
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
        window(payload, from),
    ];
    let message = message(&mut parts);
    // SAFETY: both parts are live for the call: a reference, and memory that the slice keeps alive and `window` checked.
    // The kernel only reads them.
    let sent =
        unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives what is there into `payload[from..]`, then into `ahead`; gives the number of bytes, 0 at the end of the stream.
///
/// # Errors
/// `WouldBlock` if nothing is there; what the operating system says otherwise.
pub(crate) fn recv(
    fd: BorrowedFd<'_>,
    payload: Option<(&Slice, usize)>,
    ahead: &mut [u8],
) -> io::Result<usize> {
    let ahead = libc::iovec { iov_base: ahead.as_mut_ptr().cast(), iov_len: ahead.len() };
    let mut parts = [payload.map_or(EMPTY, |(slice, from)| window(slice, from)), ahead];
    let mut message = message(&mut parts);
    // SAFETY: both parts are writable and live for the call: a unique reference, and memory that the slice keeps alive
    // and `window` checked, which the post allowed the channel to write.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// `slice[from..]` for the kernel.
fn window(slice: &Slice, from: usize) -> libc::iovec {
    assert!(from <= slice.len(), "byte {from} of a slice of {}", slice.len());
    // SAFETY: `from` was just checked to lie within the slice, which lies within its region's one allocation.
    let start = unsafe { slice.start().add(from) };
    libc::iovec { iov_base: start.as_ptr().cast(), iov_len: (slice.len() - from).min(MAX_CALL_BYTES) }
}

/// A message of these parts and nothing else.
fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeroes are a valid `msghdr`: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}
