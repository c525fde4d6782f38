//! Copies into, out of and between regions, and words in shared memory.
//!
//! Regions are shared with devices and other processes, so they are only touched through raw pointers. What orders these
//! accesses is the protocol of the caller: a completion, a release and acquire pair, a system call.

use std::{ptr::NonNull, sync::atomic::AtomicU64};

use crate::{Region, Slice};

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

/// Copies `slice[at..]` to `to`.
///
/// # Panics
/// If the slice is shorter.
pub(crate) fn read(slice: &Slice, at: usize, to: &mut [u8]) {
    let from = window(slice, at, to.len());
    // SAFETY: `window` checked that the source lies within its region; `to` is a live reference, and no reference to region
    // memory is ever made, so they do not overlap.
    unsafe { from.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
}

/// Sets every byte of `slice`.
pub(crate) fn fill(slice: &Slice, byte: u8) {
    // SAFETY: a slice lies within its region, which it keeps alive.
    unsafe { slice.start().as_ptr().write_bytes(byte, slice.len()) };
}

/// Copies `len` bytes of `from[from_at..]` to `to[to_at..]`.
///
/// # Panics
/// If either range does not lie within its slice.
pub(crate) fn copy(to: &Slice, to_at: usize, from: &Slice, from_at: usize, len: usize) {
    let source = window(from, from_at, len);
    let target = window(to, to_at, len);
    // SAFETY: `window` checked both ranges; `copy` allows them to overlap, as slices of one region may.
    unsafe { target.as_ptr().copy_from(source.as_ptr(), len) };
}

/// The word at byte `at` of `region`, shared with whoever else maps it.
///
/// # Panics
/// If it does not lie within the region or is not aligned to 8 bytes.
pub(crate) fn word(region: &Region, at: usize) -> &AtomicU64 {
    assert!(
        at.is_multiple_of(8) && at < region.len() && 8 <= region.len() - at,
        "word {at} of {} bytes",
        region.len()
    );
    // SAFETY: `at` was just checked to lie within the region.
    let start = unsafe { region.start().add(at) };
    assert!(start.cast::<AtomicU64>().is_aligned(), "word {at} of a region at {start:?}");
    // SAFETY: in bounds and aligned, both checked above; the memory lives as long as the region, which the result
    // borrows; words of shared memory are accessed only as atomics.
    unsafe { AtomicU64::from_ptr(start.cast().as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(slice: &Slice) -> Vec<u8> {
        let mut out = vec![0; slice.len()];
        // SAFETY: the slice is as long as `out`, and nothing else touches it in these tests.
        unsafe { slice.start().as_ptr().copy_to(out.as_mut_ptr(), out.len()) };
        out
    }

    #[test]
    fn copies_stay_within_their_ranges() {
        let to = Region::zeroed(8).slice(1..7);
        let from = Region::from_vec((10..20).collect()).slice(0..10);
        copy(&to, 1, &from, 2, 3);
        assert_eq!(bytes(&to), [0, 12, 13, 14, 0, 0]);
        write(&to, 5, &[9]);
        assert_eq!(bytes(&to), [0, 12, 13, 14, 0, 9]);
    }

    #[test]
    #[should_panic(expected = "3 bytes at 4 of a slice of 6")]
    fn copies_out_of_bounds_panic() {
        let slice = Region::zeroed(8).slice(1..7);
        copy(&slice, 4, &slice.clone(), 0, 3);
    }

    #[test]
    #[should_panic(expected = "word 8 of 12 bytes")]
    fn words_out_of_bounds_panic() {
        word(&Region::zeroed(12), 8);
    }
}
