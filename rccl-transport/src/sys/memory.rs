//! Copies into regions.
//!
//! Regions are shared with devices and other processes, so they are only touched through raw pointers. What orders these
//! accesses is the protocol of the caller: a completion, a release and acquire pair, a system call.

use std::ptr::NonNull;

use crate::Slice;

/// The address of `slice[at..at + len]`.
fn window(slice: &Slice, at: usize, len: usize) -> NonNull<u8> {
    assert!(
        at <= slice.len() && len <= slice.len() - at,
        "{len} bytes at {at} of a slice of {}",
        slice.len()
    );
    // SAFETY: `at` was just checked to lie within the slice, which lies within its region's one allocation.
    unsafe { slice.start().add(at) }
}

/// Copies `from` to `slice[at..]`.
///
/// # Panics
/// If it does not fit.
pub(crate) fn write(slice: &Slice, at: usize, from: &[u8]) {
    let to = window(slice, at, from.len());
    // SAFETY: `window` checked that the destination lies within its region; `from` is a live reference, and no
    // reference to region memory is ever made, so they do not overlap.
    unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    fn bytes(slice: &Slice) -> Vec<u8> {
        let mut out = vec![0; slice.len()];
        // SAFETY: the slice is as long as `out`, and nothing else touches it in these tests.
        unsafe { slice.start().as_ptr().copy_to(out.as_mut_ptr(), out.len()) };
        out
    }

    #[test]
    fn copies_stay_within_their_slice() {
        let to = Region::zeroed(8).slice(1..7);
        write(&to, 2, &[12, 13, 14]);
        assert_eq!(bytes(&to), [0, 0, 12, 13, 14, 0]);
    }

    #[test]
    #[should_panic(expected = "3 bytes at 4 of a slice of 6")]
    fn copies_out_of_bounds_panic() {
        write(&Region::zeroed(8).slice(1..7), 4, &[0; 3]);
    }
}
