//! Registered memory.

use std::{ffi::c_void, ptr::NonNull, sync::Arc};

use rccl_transport::{Region, Slice};

use crate::net::{Failure, Outcome};

/// Memory that NCCL has registered on a connection. Channels hold the region for as long as they may touch it, so the
/// number of holders says whether anybody does.
#[derive(Debug)]
pub(in crate::net) struct Memory(Arc<Region>);

impl Memory {
    /// # Safety
    /// The bytes may be read and written from any thread until the memory is dropped and nobody uses it.
    ///
    /// # Errors
    /// For NULL.
    pub(in crate::net) unsafe fn new(start: *mut c_void, bytes: usize) -> Outcome<Self> {
        let start = match NonNull::new(start.cast()) {
            Some(start) => start,
            None if bytes == 0 => NonNull::dangling(),
            None => return Err(Failure::argument(format!("{bytes} bytes of memory at NULL"))),
        };
        // SAFETY: the caller's promise.
        Ok(Self(unsafe { Region::from_raw(start, bytes, None) }))
    }

    /// `bytes` bytes from `start` on.
    ///
    /// # Errors
    /// If they do not lie within.
    pub(in crate::net) fn slice(&self, start: *mut c_void, bytes: usize) -> Outcome<Slice> {
        if bytes == 0 {
            return Ok(self.0.slice(0..0));
        }
        let offset = (start as usize).checked_sub(self.0.start().as_ptr() as usize);
        match offset.and_then(|from| Some((from, from.checked_add(bytes)?))) {
            Some((from, to)) if to <= self.0.len() => Ok(self.0.slice(from..to)),
            _ => Err(Failure::argument(format!(
                "{bytes} bytes at {start:?} do not lie within the registered {} at {:?}",
                self.0.len(),
                self.0.start()
            ))),
        }
    }

    /// Whether a channel may touch it.
    pub(in crate::net) fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_lie_within_and_count() {
        let mut bytes = [0_u8; 8];
        let start: *mut c_void = bytes.as_mut_ptr().cast();
        let at = |offset: usize| start.wrapping_byte_add(offset);
        // SAFETY: `bytes` outlives the memory.
        let memory = unsafe { Memory::new(start, 8) }.unwrap();
        assert_eq!(memory.slice(at(3), 5).unwrap().range(), 3..8);
        assert!(memory.slice(std::ptr::null_mut(), 0).unwrap().is_empty());
        for (from, len) in [(4, 5), (9, 1), (usize::MAX, 1), (0, usize::MAX)] {
            assert!(memory.slice(at(from), len).is_err(), "{from} {len}");
        }
        let slice = memory.slice(at(0), 1).unwrap();
        assert!(memory.is_used());
        drop(slice);
        assert!(!memory.is_used());
        // SAFETY: there are no bytes.
        assert!(unsafe { Memory::new(std::ptr::null_mut(), 0) }.is_ok());
        // SAFETY: refused.
        assert!(unsafe { Memory::new(std::ptr::null_mut(), 1) }.is_err());
    }
}
