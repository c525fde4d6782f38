//! The memory that all ranks share: a memfd, its layout, and a barrier for the host threads.

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rccl_transport::{
    Error, Region, Result,
    cuda::kernels::{LINE_BYTES, STRIPE_WORDS_BYTES},
};

/// Lines of one half of an `ll` station: 512 KiB of data.
pub(crate) const LL_LINES: usize = 1 << 16;
pub(crate) const STRIPES: usize = 64;
pub(crate) const SLOTS: usize = 8;
pub(crate) const SLOT_BYTES: usize = 32 << 10;
pub(crate) const RELAY_SLOT_BYTES: usize = 8 << 10;
pub(crate) const BULK_SLOTS: usize = 4;
pub(crate) const BULK_SLOT_BYTES: usize = 8 << 20;
/// Rounds of one measurement, at most.
pub(crate) const MAX_ROUNDS: usize = 256;

const CONTROL_BYTES: usize = 256 << 10;
const ABORT: usize = 0;
const BARRIER: usize = 128;
const FAILED: usize = 256;
const ROUNDS: usize = 4096;
const BULK_WORD_BYTES: usize = 256;

/// Where everything of one rank lies, in bytes from the start of the arena.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stations {
    pub(crate) ll: usize,
    pub(crate) stripe: usize,
    pub(crate) stripe_words: usize,
    pub(crate) conduits: usize,
    pub(crate) results: usize,
    pub(crate) relay_words: usize,
    pub(crate) bulk: usize,
    bulk_words: usize,
    end: usize,
}

impl Stations {
    pub(crate) fn of(rank: u32, ranks: u32) -> Self {
        let mut end = 0;
        let mut take = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(4096);
            start
        };
        let mut stations = Self {
            ll: take(2 * LL_LINES * LINE_BYTES as usize),
            stripe: take(STRIPES * SLOTS * SLOT_BYTES),
            stripe_words: take(STRIPES * STRIPE_WORDS_BYTES),
            conduits: take(STRIPES * SLOTS * RELAY_SLOT_BYTES * ranks as usize),
            results: take(STRIPES * SLOTS * RELAY_SLOT_BYTES),
            relay_words: take(STRIPES * STRIPE_WORDS_BYTES),
            bulk: take(BULK_SLOTS * BULK_SLOT_BYTES),
            bulk_words: take(BULK_SLOTS * ranks as usize * BULK_WORD_BYTES),
            end: 0,
        };
        stations.end = end;
        let base = CONTROL_BYTES + rank as usize * end;
        for offset in [
            &mut stations.ll,
            &mut stations.stripe,
            &mut stations.stripe_words,
            &mut stations.conduits,
            &mut stations.results,
            &mut stations.relay_words,
            &mut stations.bulk,
            &mut stations.bulk_words,
            &mut stations.end,
        ] {
            *offset += base;
        }
        stations
    }

    /// The word that says that `slot` holds something `reader` has not taken yet.
    pub(crate) fn full(&self, slot: usize, reader: u32, ranks: u32) -> usize {
        self.bulk_words + (slot * ranks as usize + reader as usize) * BULK_WORD_BYTES
    }

    /// The word that says that `reader` needs nothing in `slot`.
    pub(crate) fn free(&self, slot: usize, reader: u32, ranks: u32) -> usize {
        self.full(slot, reader, ranks) + BULK_WORD_BYTES / 2
    }
}

pub(crate) struct Arena {
    region: Arc<Region>,
    ranks: u32,
}

struct Mapping(NonNull<u8>, usize);

// SAFETY: the mapping may be unmapped from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `Arena::map`, and nobody uses the region any more, whose owner this is.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.1) };
    }
}

impl Arena {
    /// A descriptor of a new arena, inherited by processes that are started.
    pub(crate) fn create(ranks: u32) -> Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("rccl-gpu-smoke", rustix::fs::MemfdFlags::empty())
            .map_err(|error| Error::io("memfd_create", error))?;
        let bytes = Stations::of(ranks - 1, ranks).end;
        rustix::fs::ftruncate(&fd, bytes as u64)
            .map_err(|error| Error::io(format!("ftruncate to {bytes}"), error))?;
        Ok(fd)
    }

    /// Takes over a descriptor that this process inherited.
    ///
    /// # Safety
    /// `fd` must be one made by `create`, and nobody else's.
    pub(crate) unsafe fn inherited(fd: RawFd) -> OwnedFd {
        // SAFETY: passed on to the caller.
        OwnedFd::from(unsafe { File::from_raw_fd(fd) })
    }

    pub(crate) fn map(fd: impl AsFd, ranks: u32) -> Result<Self> {
        let len = Stations::of(ranks - 1, ranks).end;
        let (protection, flags) =
            (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::SHARED);
        let number = fd.as_fd().as_raw_fd();
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) }
            .map_err(|error| Error::io(format!("mmap of descriptor {number}, {len} bytes"), error))?;
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is not at 0");
        // SAFETY: the mapping lives until its owner, kept with the region, is dropped.
        let region = unsafe { Region::from_raw(start, len, Some(Box::new(Mapping(start, len)))) };
        Ok(Self { region, ranks })
    }

    pub(crate) const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.region.len());
        // SAFETY: within the region (checked), whose start is page aligned; only ever used as an atomic.
        unsafe { AtomicU32::from_ptr(self.region.start().as_ptr().wrapping_add(offset).cast()) }
    }

    fn round(&self, rank: u32, round: usize) -> &AtomicU64 {
        assert!(round < MAX_ROUNDS && rank < 32.min(self.ranks));
        let offset = ROUNDS + (rank as usize * MAX_ROUNDS + round) * 8;
        // SAFETY: within the control part (checked), 8-byte aligned; only ever used as an atomic.
        unsafe { AtomicU64::from_ptr(self.region.start().as_ptr().wrapping_add(offset).cast()) }
    }

    /// What the host prepares before anybody starts: all slots are free.
    pub(crate) fn prepare(&self) {
        for publisher in 0..self.ranks {
            for (slot, reader) in
                (0..BULK_SLOTS).flat_map(|slot| (0..self.ranks).map(move |reader| (slot, reader)))
            {
                self.word(Stations::of(publisher, self.ranks).free(slot, reader, self.ranks))
                    .store(1, Ordering::Release);
            }
        }
    }

    pub(crate) const fn abort_offset() -> usize {
        ABORT
    }

    /// Ends all kernels that wait, and all barriers.
    pub(crate) fn abort(&self) {
        self.word(FAILED).store(1, Ordering::Release);
        self.word(ABORT).store(1, Ordering::Release);
    }

    /// Waits until all ranks are here.
    pub(crate) fn barrier(&self) -> Result<()> {
        const DEADLINE: Duration = Duration::from_secs(120);
        let start = Instant::now();
        let arrived = self.word(BARRIER).fetch_add(1, Ordering::AcqRel);
        let all = (arrived / self.ranks + 1) * self.ranks;
        while self.word(BARRIER).load(Ordering::Acquire) < all {
            let what = "all ranks at a barrier".to_owned();
            if self.word(FAILED).load(Ordering::Acquire) != 0 {
                return Err(Error::PeerLost {
                    peer: "another rank".to_owned(),
                    cause: "it failed".to_owned(),
                });
            }
            if start.elapsed() > DEADLINE {
                return Err(Error::Timeout { waiting_for: what, after: DEADLINE });
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    pub(crate) fn set_round(&self, rank: u32, round: usize, time: Duration) {
        self.round(rank, round).store(time.as_nanos() as u64, Ordering::Release);
    }

    /// Median over the rounds of the slowest rank's time.
    pub(crate) fn median(&self, rounds: usize) -> Duration {
        let slowest =
            |round| (0..self.ranks).map(|rank| self.round(rank, round).load(Ordering::Acquire)).max();
        let mut times: Vec<u64> = (0..rounds).filter_map(slowest).collect();
        times.sort_unstable();
        Duration::from_nanos(times[times.len() / 2])
    }
}
