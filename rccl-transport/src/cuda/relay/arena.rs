//! The memory that all ranks share: its layout, its words, and how waits end when something failed.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::super::kernels::{LINE_BYTES, STRIPE_WORDS_BYTES};
use crate::{
    Error, Region, Result,
    sys::{mapping, shared},
};

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

/// The largest slot of the copy engines.
const MAX_BULK_SLOT_BYTES: usize = 8 << 20;
/// What a rank's device sets aside for slots that it has collected: two of every peer.
const MAX_STAGING_BYTES: usize = 31 << 20;
const NAME: &str = "rccl-cuda";
const ABORT: usize = 0;
const BULK_WORD_BYTES: usize = 256;

/// Bytes of a slot of the copy engines, a power of two: between more ranks smaller, so that no device gives more than
/// 32 MiB.
#[must_use]
pub const fn bulk_slot_bytes(ranks: u32) -> usize {
    let peers = if ranks > 2 { ranks as usize - 1 } else { 1 };
    let fits = 1 << (MAX_STAGING_BYTES / (2 * peers)).ilog2();
    if fits < MAX_BULK_SLOT_BYTES { fits } else { MAX_BULK_SLOT_BYTES }
}

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
            bulk: take(BULK_SLOTS * bulk_slot_bytes(ranks)),
            bulk_words: take(BULK_SLOTS * ranks as usize * BULK_WORD_BYTES),
            end: 0,
        };
        // Each rank's part begins on a huge page: it may lie on another NUMA node than the one before.
        let end = end.next_multiple_of(mapping::HUGE_PAGE_BYTES);
        stations.end = end;
        let base = mapping::HUGE_PAGE_BYTES + rank as usize * end;
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

    /// A new arena, all 0, of a length that nobody can change: of huge pages if the system has set enough aside.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(ranks: u32) -> Result<OwnedFd> {
        let len = Self::len_bytes(ranks);
        shared::sealed_huge(NAME, len).or_else(|error| {
            tracing::debug!(%error, "no huge pages are set aside for the device arena");
            shared::sealed(NAME, len)
        })
    }

    /// Maps an arena of `ranks` ranks, with huge pages if the system grants them.
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
        mapping::prefer_huge_pages(&region);
        Ok(Self { region, ranks })
    }

    /// Takes the memory of `rank`'s stations (rank 0: and that of the control part), on NUMA node `node` if that is known
    /// and allowed. Done by every rank for its own before anybody registers the arena, which would take all of it wherever
    /// it is.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no such memory left.
    pub fn occupy(&self, rank: u32, node: Option<u32>) -> Result<()> {
        let end = Stations::of(rank, self.ranks).end;
        let start = if rank == 0 { 0 } else { Stations::of(rank - 1, self.ranks).end };
        let part = self.region.slice(start..end);
        if let Some(node) = node
            && let Err(error) = mapping::prefer_node(&part, node)
        {
            tracing::debug!(%error, node, "the device arena lies wherever the system likes");
        }
        mapping::populate(&part, "the device arena")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_cannot_be_cut_short_nor_inherited() {
        let file = Arena::create(2).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(rustix::io::fcntl_getfd(&file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        let error = Arena::map(&file, 4).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
    }

    #[test]
    fn ranks_occupy_the_whole_arena_between_them_and_it_stays_zero() {
        let arena = Arena::map(Arena::create(2).unwrap(), 2).unwrap();
        (0..2).for_each(|rank| arena.occupy(rank, Some(0)).unwrap());
        assert_eq!(Stations::of(1, 2).end, Arena::len_bytes(2));
        assert_eq!(arena.word(Arena::len_bytes(2) - 4).load(Ordering::Relaxed), 0);
        assert!(!arena.is_aborted());
    }

    #[test]
    fn every_group_stays_within_its_device_memory() {
        for ranks in 2..=32 {
            let slot = bulk_slot_bytes(ranks);
            assert!(2 * (ranks as usize - 1) * slot <= MAX_STAGING_BYTES && slot >= 256 << 10, "{ranks}");
        }
        assert_eq!(bulk_slot_bytes(2), 8 << 20);
    }
}
