//! The memory of a host's stations: one memfd, mapped by every rank of the communicator that lives on the host.

use std::{
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use super::{Layout, PAGE_BYTES};
use crate::{
    Error, Region, Result,
    sys::{mapping, shared},
};

const MAGIC: u64 = u64::from_le_bytes(*b"rcclAren");

/// What page 0 of an arena holds.
#[repr(C)]
struct Page0 {
    magic: AtomicU64,
    nonce: [AtomicU64; 2],
}

/// An arena as one rank has it mapped.
#[derive(Debug, Clone)]
pub struct Arena {
    region: Arc<Region>,
    layout: Layout,
}

impl Arena {
    /// Makes the file of a new arena, all zero. Its descriptor is passed to the other ranks of the host; nothing remains in
    /// any file system, and the memory is returned when the last mapping is gone.
    ///
    /// # Errors
    /// [`Error::Io`] if the memory cannot be had.
    pub fn create(layout: &Layout) -> Result<OwnedFd> {
        shared::sealed("rccl-arena", layout.len_bytes())
    }

    /// Maps the file of an arena.
    ///
    /// # Errors
    /// [`Error::Refused`] if the file has not the layout's length; [`Error::Io`] if it cannot be mapped.
    pub fn open(file: impl AsFd, layout: Layout) -> Result<Self> {
        let stat =
            rustix::fs::fstat(&file).map_err(|errno| Error::io("fstat of the station arena", errno))?;
        if stat.st_size != layout.len_bytes() as i64 {
            return Err(refused(format!(
                "it has {} bytes instead of {}: the ranks disagree about its layout",
                stat.st_size,
                layout.len_bytes()
            )));
        }
        let region = mapping::shared(&file, layout.len_bytes(), "the station arena")?;
        mapping::prefer_huge_pages(&region);
        Ok(Self { region, layout })
    }

    /// Writes a nonce by which the other ranks can tell that they mapped this memory. Done by one rank, once.
    pub fn mark(&self, nonce: [u64; 2]) {
        let page = self.page0();
        page.nonce[0].store(nonce[0], Ordering::Relaxed);
        page.nonce[1].store(nonce[1], Ordering::Relaxed);
        page.magic.store(MAGIC, Ordering::Release);
    }

    /// Checks that this is the memory that was marked with `nonce`.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not.
    pub fn verify(&self, nonce: [u64; 2]) -> Result<()> {
        let page = self.page0();
        let magic = page.magic.load(Ordering::Acquire);
        let found = [page.nonce[0].load(Ordering::Relaxed), page.nonce[1].load(Ordering::Relaxed)];
        if magic != MAGIC || found != nonce {
            return Err(refused("its nonce is another: the descriptor leads to different memory".to_owned()));
        }
        Ok(())
    }

    /// The mapped memory.
    #[must_use]
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where things lie in it.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The doorbell of a rank that lives on this host.
    #[must_use]
    pub fn doorbell(&self, rank: rccl_core::Rank) -> Option<Doorbell> {
        let offset = self.layout.doorbell(rank)?;
        Some(Doorbell { word: Word::at(&self.region, offset) })
    }

    fn page0(&self) -> &Page0 {
        const { assert!(size_of::<Page0>() <= PAGE_BYTES) };
        // SAFETY: the mapping is at least a page long, page aligned, and lives as long as `self`; atomics may be shared.
        unsafe { self.region.start().cast::<Page0>().as_ref() }
    }
}

fn refused(reason: String) -> Error {
    Error::Refused { peer: "the station arena".to_owned(), reason }
}

/// A 64-bit word of an arena that one party writes and others read.
#[derive(Debug, Clone)]
pub(crate) struct Word {
    word: NonNull<AtomicU64>,
    _region: Arc<Region>,
}

// SAFETY: the pointer leads to an atomic in memory that `_region` keeps alive.
unsafe impl Send for Word {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for Word {}

impl Word {
    /// The word at byte `offset` of a region.
    pub(crate) fn at(region: &Arc<Region>, offset: usize) -> Self {
        let slice = region.slice(offset..offset + size_of::<AtomicU64>());
        let word = slice.start().cast::<AtomicU64>();
        assert!(word.is_aligned(), "a word at offset {offset} is not aligned");
        Self { word, _region: Arc::clone(region) }
    }

    #[inline]
    pub(crate) fn atomic(&self) -> &AtomicU64 {
        // SAFETY: `at` checked range and alignment; the region is kept alive by `self`.
        unsafe { self.word.as_ref() }
    }
}

/// Where a rank sleeps when it has nothing to do, and where its peers wake it.
///
/// Doorbells connect processors only, never devices, so unlike the words of a station they may have several writers.
#[derive(Debug, Clone)]
pub struct Doorbell {
    word: Word,
}

impl Doorbell {
    fn rings(&self) -> &AtomicU32 {
        // SAFETY: the first half of an aligned 64-bit word of the arena, kept alive by `self.word`.
        unsafe { self.word.word.cast::<AtomicU32>().as_ref() }
    }

    fn sleepers(&self) -> &AtomicU32 {
        // SAFETY: the second half of the same word.
        let half = unsafe { self.word.word.cast::<AtomicU32>().add(1) };
        // SAFETY: as for `rings`.
        unsafe { half.as_ref() }
    }

    /// Wakes the owner if it sleeps. The caller has stored what it wants seen, then made a sequentially consistent fence.
    pub fn ring(&self) {
        if self.sleepers().load(Ordering::Relaxed) != 0 {
            self.rings().fetch_add(1, Ordering::Release);
            let _ =
                rustix::thread::futex::wake(self.rings(), rustix::thread::futex::Flags::empty(), u32::MAX);
        }
    }

    /// Sleeps until the next ring, or for `timeout`, unless `awake` finds something to do after all.
    pub fn sleep_unless(&self, timeout: std::time::Duration, awake: impl FnOnce() -> bool) {
        let seen = self.rings().load(Ordering::Acquire);
        self.sleepers().fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        if !awake() {
            let timeout = rustix::thread::futex::Timespec {
                tv_sec: timeout.as_secs().cast_signed(),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            // Not private: the ranks are separate processes. Whatever ends the wait, the caller looks again.
            let flags = rustix::thread::futex::Flags::empty();
            let _ = rustix::thread::futex::wait(self.rings(), flags, seen, Some(&timeout));
        }
        self.sleepers().fetch_sub(1, Ordering::Relaxed);
    }
}
