//! The memory that all ranks share: its layout, its words, and how waits end when something failed.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::super::kernels::{LINE_BYTES, STRIPE_WORDS_BYTES};
use crate::{Error, Region, Result, sys::mapping};

/// Lines of one half of an `ll` station: 512 KiB of data.
pub const LL_LINES: usize = 1 << 16;
/// The most stripes of a `stripe` kernel.
pub const STRIPES: usize = 16;
/// Slots of a stripe.
pub const SLOTS: usize = 8;
/// Bytes of a slot of a one-hop stripe.
pub const SLOT_BYTES: usize = 32 << 10;
/// Bytes of a slot of a stripe through the relay.
pub const RELAY_SLOT_BYTES: usize = 8 << 10;
/// Slots of the copy engines.
pub const BULK_SLOTS: usize = 4;
/// Bytes of a slot of the copy engines.
pub const BULK_SLOT_BYTES: usize = 8 << 20;

const ABORT: usize = 0;
const BULK_WORD_BYTES: usize = 256;

/// Where everything of one rank lies, in bytes from the start of the arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stations {
    pub(super) ll: usize,
    pub(super) stripe: usize,
    pub(super) stripe_words: usize,
    pub(super) conduits: usize,
    pub(super) results: usize,
    pub(super) relay_words: usize,
    pub(super) bulk: usize,
    bulk_words: usize,
    end: usize,
}

impl Stations {
    pub(super) fn of(rank: u32, ranks: u32) -> Self {
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
        let base = Arena::CONTROL_BYTES + rank as usize * end;
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
    pub(super) const fn full(&self, slot: usize, reader: u32, ranks: u32) -> usize {
        self.bulk_words + (slot * ranks as usize + reader as usize) * BULK_WORD_BYTES
    }

    /// The word that says that `reader` needs nothing in `slot`.
    pub(super) const fn free(&self, slot: usize, reader: u32, ranks: u32) -> usize {
        self.full(slot, reader, ranks) + BULK_WORD_BYTES / 2
    }
}

/// Memory that the ranks of a host share and their devices reach: every rank's stations, after a control part.
#[derive(Debug)]
pub struct Arena {
    region: Arc<Region>,
    ranks: u32,
}

impl Arena {
    /// Bytes of the control part. Its first 128 hold the abort word; the rest is 0 and left to the arena's owner.
    pub const CONTROL_BYTES: usize = 256 << 10;

    /// Bytes of an arena of `ranks` ranks.
    #[must_use]
    pub fn len_bytes(ranks: u32) -> usize {
        Stations::of(ranks.max(1) - 1, ranks).end
    }

    /// A descriptor of a new arena, all 0; a process that is started inherits it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(ranks: u32) -> Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("rccl-cuda", rustix::fs::MemfdFlags::empty())
            .map_err(|error| Error::io("memfd_create", error))?;
        let bytes = Self::len_bytes(ranks);
        rustix::fs::ftruncate(&fd, bytes as u64)
            .map_err(|error| Error::io(format!("ftruncate to {bytes}"), error))?;
        Ok(fd)
    }

    /// Maps an arena of `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Refused`] if the file has another length, [`Error::Io`].
    pub fn map(fd: impl AsFd, ranks: u32) -> Result<Self> {
        let len = Self::len_bytes(ranks);
        let stat = rustix::fs::fstat(&fd).map_err(|error| Error::io("fstat of the device arena", error))?;
        if stat.st_size != len as i64 {
            let reason = format!("it has {} bytes instead of {len}: the ranks disagree", stat.st_size);
            return Err(Error::Refused { peer: "the device arena".to_owned(), reason });
        }
        let region = mapping::shared(fd, len, "the device arena")?;
        Ok(Self { region, ranks })
    }

    /// The mapped memory.
    #[must_use]
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The number of ranks it is for.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The word at byte `offset`.
    ///
    /// # Panics
    /// If it is not aligned, or outside.
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.region.len());
        // SAFETY: within the region (checked), whose start is page aligned; only ever used as an atomic.
        unsafe { AtomicU32::from_ptr(self.region.start().as_ptr().wrapping_add(offset).cast()) }
    }

    /// What one rank's host does before any rank starts: all slots are free.
    pub fn prepare(&self) {
        self.each_slot(|stations, slot, reader| {
            self.word(stations.free(slot, reader, self.ranks)).store(1, Ordering::Release);
        });
    }

    fn each_slot(&self, visit: impl Fn(&Stations, usize, u32)) {
        for publisher in 0..self.ranks {
            let stations = Stations::of(publisher, self.ranks);
            for slot in 0..BULK_SLOTS {
                (0..self.ranks).for_each(|reader| visit(&stations, slot, reader));
            }
        }
    }

    pub(super) const fn abort_offset() -> usize {
        ABORT
    }

    /// Ends all kernels that wait, of all ranks, now and ever after. Streams that wait for words need
    /// [`Arena::release_waits`] too.
    pub fn abort(&self) {
        self.word(ABORT).store(1, Ordering::Release);
    }

    /// Whether some rank has aborted.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.word(ABORT).load(Ordering::Acquire) != 0
    }

    /// Fulfils every wait of a stream that stands now. Since streams clear a word after waiting for it, whoever wants them
    /// to get to their end calls this again and again. Only after [`Arena::abort`]: the data are worthless then.
    pub fn release_waits(&self) {
        self.each_slot(|stations, slot, reader| {
            self.word(stations.free(slot, reader, self.ranks)).store(1, Ordering::Release);
            self.word(stations.full(slot, reader, self.ranks)).store(1, Ordering::Release);
        });
    }
}
