//! Memory that channels may touch.
//!
//! There is one unsafe door: [`Region::from_raw`]. Behind it everything is safe, because a [`Slice`] keeps its region
//! alive until the last completion that needs it.

use std::{fmt, ops::Range, ptr::NonNull, sync::Arc};

/// A piece of memory that channels may read and write, and whatever keeps it alive.
///
/// Bytes of a region are shared with other threads, devices and processes, so they are only ever accessed through raw
/// pointers; no reference to them is made while a channel may touch them.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    owner: Option<Box<dyn Send + Sync>>,
}

// SAFETY: the region is a pointer to memory that `from_raw`'s caller promised may be accessed from any thread; all access
// goes through raw pointers whose users uphold the ordering rules of the channel or station they implement.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; `&Region` only gives out the pointer and the length.
unsafe impl Sync for Region {}

impl Region {
    /// A region over memory owned elsewhere.
    ///
    /// # Safety
    /// `start..start + len` must stay valid for reads and writes, from any thread, until the region and every slice of it
    /// are dropped, or `owner` (kept with the region) must make it so.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, owner: Option<Box<dyn Send + Sync>>) -> Arc<Self> {
        Arc::new(Self { start, len, owner })
    }

    /// A region that owns `bytes`.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Arc<Self> {
        let mut bytes = bytes.into_boxed_slice();
        let len = bytes.len();
        let start = NonNull::from(&mut *bytes).cast();
        // SAFETY: the box moves into the region as its owner; its heap memory does not move and lives as long.
        unsafe { Self::from_raw(start, len, Some(Box::new(bytes))) }
    }

    /// A region of `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Arc<Self> {
        Self::from_vec(vec![0; len])
    }

    /// A region over the bytes of `range` alone, for transports that shall not know the rest. It keeps this one alive.
    ///
    /// # Panics
    /// As [`Region::slice`].
    #[must_use]
    pub fn part(self: &Arc<Self>, range: Range<usize>) -> Arc<Self> {
        let slice = self.slice(range);
        // SAFETY: the slice lies within this region, which is valid as long as the slice, the new region's owner, lives.
        unsafe { Self::from_raw(slice.start(), slice.len(), Some(Box::new(slice))) }
    }

    /// Its first byte.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes of `range`.
    ///
    /// # Panics
    /// If the range does not lie within the region.
    #[must_use]
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of {} bytes", self.len);
        Slice { region: Arc::clone(self), range }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("start", &self.start)
            .field("len", &self.len)
            .field("owned", &self.owner.is_some())
            .finish()
    }
}

/// A range of a region. Holding it keeps the region alive.
#[derive(Debug, Clone)]
pub struct Slice {
    region: Arc<Region>,
    range: Range<usize>,
}

impl Slice {
    /// Its first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: `Region::slice` checked that the range lies within the region's one allocation.
        unsafe { self.region.start().add(self.range.start) }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The region it is a part of.
    #[must_use]
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The range of the region it covers.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Its first `len` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    #[must_use]
    pub fn first(&self, len: usize) -> Self {
        assert!(len <= self.len(), "first {len} of {} bytes", self.len());
        Self { region: Arc::clone(&self.region), range: self.range.start..self.range.start + len }
    }
}
