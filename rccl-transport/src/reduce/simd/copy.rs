use super::{Baseline, LINE_BYTES, Simd, end_streaming};
use crate::reduce::{STREAM_MIN_BYTES, Target};

/// Bytes that are copied to one target after the other: few enough to be read from memory once only.
const BLOCK_BYTES: usize = 8 << 10;

/// Copies `len` bytes from `source` to every target, at any alignment.
///
/// Never blocks. Streamed targets are complete when the call returns, for readers on other CPUs and devices too.
///
/// # Safety
/// `source` must be valid for reads and every target for writes of `len` bytes; nobody else may write them meanwhile, or read
/// the targets. A target may be the source itself (which is then left as it is), and must not overlap it or other targets
/// otherwise.
///
/// ```
/// use rccl_transport::reduce::{Target, copy};
///
/// let (bytes, mut first, mut second) = ([1u8, 2, 3], [0u8; 3], [0u8; 3]);
/// let targets = [&mut first, &mut second].map(|to| Target { ptr: to.as_mut_ptr(), stream: false });
/// // SAFETY: three different arrays of three bytes.
/// unsafe { copy(bytes.as_ptr(), &targets, 3) };
/// assert_eq!((first, second), (bytes, bytes));
/// ```
pub unsafe fn copy(source: *const u8, targets: &[Target], len: usize) {
    let streams = len >= STREAM_MIN_BYTES && targets.iter().any(|target| target.stream);
    // A single target needs no blocks, and the library's copy knows best what to do with all of it.
    let block_bytes = if targets.len() == 1 { len.max(1) } else { BLOCK_BYTES };
    for start in (0..len).step_by(block_bytes) {
        let block = block_bytes.min(len - start);
        // SAFETY: `start` is below `len`, up to which the caller vouches for the source.
        let from = unsafe { source.add(start) };
        for target in targets {
            // SAFETY: as above, for the target.
            let to = unsafe { target.ptr.add(start) };
            if std::ptr::eq(from, to) {
                continue;
            }
            if streams && target.stream {
                // SAFETY: the caller vouches for `block` bytes of both and that they do not overlap; streaming ends below.
                unsafe { stream(from, to, block) };
            } else {
                // SAFETY: the caller vouches for `block` bytes of both and that they do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, to, block) };
            }
        }
    }
    if streams {
        end_streaming();
    }
}

/// Copies all whole cache lines of the target past the caches, and the rest through them.
///
/// # Safety
/// Both must be valid for `len` bytes and not overlap; [`end_streaming`] must follow.
unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    let head = (to.addr().wrapping_neg() % LINE_BYTES).min(len);
    // SAFETY: the head is no longer than `len`, for which the caller vouches.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    let mut done = head;
    while len - done >= LINE_BYTES {
        // SAFETY: a line from `done` on is still within `len`.
        let from = unsafe { from.add(done) };
        // SAFETY: as above.
        let to = unsafe { to.add(done) };
        // SAFETY: a line of both, aligned by the head.
        unsafe { Baseline.stream(from, to) };
        done += LINE_BYTES;
    }
    // SAFETY: what is left is within `len`.
    let from = unsafe { from.add(done) };
    // SAFETY: as above.
    let to = unsafe { to.add(done) };
    // SAFETY: as many bytes are left of both.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len - done) };
}
