//! Where everything lies in an arena: a pure function of numbers that all ranks of a host agree on.

use rccl_core::{Rank, plan::Station};

/// Words that different parties write lie this far apart: two cache lines, since adjacent lines are fetched in pairs.
pub const WORD_STRIDE: usize = 128;

/// Bytes of a slot's header, in front of its data.
pub const SLOT_HEADER_BYTES: usize = 128;

/// Slots start on pages.
pub const PAGE_BYTES: usize = 4096;

/// How large the stations of a communicator are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Slots of every station.
    pub slots: u32,
    /// Data bytes of every slot.
    pub slot_bytes: u32,
}

impl Sizes {
    /// Bytes from one slot to the next.
    #[must_use]
    pub const fn stride(self) -> usize {
        (SLOT_HEADER_BYTES + self.slot_bytes as usize).next_multiple_of(PAGE_BYTES)
    }

    /// Bytes of all slots of one station.
    #[must_use]
    pub const fn station_bytes(self) -> usize {
        self.slots as usize * self.stride()
    }
}

/// The layout of an arena that holds the stations published by the ranks of one host.
///
/// ```text
/// page 0        magic, nonce
/// words         a doorbell for each resident rank, then the release words: for each resident publisher, one for each
///               rank of the group on its shared station and one for each rank on the conduit to it
/// slots         for each resident publisher: its shared station, then its conduits to ranks 0, 1, ...
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Ranks of the group.
    pub group_size: u32,
    /// The ranks that live on this host, ascending.
    pub residents: Vec<Rank>,
    /// How large each station is.
    pub sizes: Sizes,
}

impl Layout {
    /// Bytes of the whole arena.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.slots_start() + self.residents.len() * self.stations_each() * self.sizes.station_bytes()
    }

    /// Where the doorbell of a resident rank lies, or `None` if the rank lives elsewhere.
    #[must_use]
    pub fn doorbell(&self, rank: Rank) -> Option<usize> {
        Some(PAGE_BYTES + self.resident(rank)? * WORD_STRIDE)
    }

    /// Where the word lies in which `reader` counts the messages of `station` it has released.
    #[must_use]
    pub fn released(&self, station: Station, reader: Rank) -> Option<usize> {
        let shared = usize::from(matches!(station, Station::Pair { .. }));
        let size = self.group_size as usize;
        let word = (self.resident(station.publisher())? * 2 + shared) * size + reader.index();
        Some(PAGE_BYTES + (self.residents.len() + word) * WORD_STRIDE)
    }

    /// Where the first slot of a station lies, or `None` if its publisher lives elsewhere.
    #[must_use]
    pub fn slots(&self, station: Station) -> Option<usize> {
        let number = match station {
            Station::Shared { .. } => 0,
            Station::Pair { reader, .. } => 1 + reader.index(),
        };
        let station = self.resident(station.publisher())? * self.stations_each() + number;
        Some(self.slots_start() + station * self.sizes.station_bytes())
    }

    /// Where all stations lie that a rank publishes, or `None` if it lives elsewhere.
    #[must_use]
    pub fn stations_of(&self, publisher: Rank) -> Option<std::ops::Range<usize>> {
        let start = self.slots(Station::Shared { publisher })?;
        Some(start..start + self.stations_each() * self.sizes.station_bytes())
    }

    const fn stations_each(&self) -> usize {
        1 + self.group_size as usize
    }

    fn resident(&self, rank: Rank) -> Option<usize> {
        self.residents.binary_search(&rank).ok()
    }

    fn slots_start(&self) -> usize {
        let words = self.residents.len() * (1 + 2 * self.group_size as usize);
        (PAGE_BYTES + words * WORD_STRIDE).next_multiple_of(PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word and every slot of every station lies inside the arena and overlaps no other.
    #[test]
    fn nothing_overlaps() {
        for (group_size, residents) in
            [(1, vec![0]), (2, vec![0, 1]), (4, vec![1, 3]), (5, vec![0, 1, 2, 3, 4])]
        {
            let residents: Vec<Rank> = residents.into_iter().map(Rank).collect();
            let sizes = Sizes { slots: 2, slot_bytes: 5000 };
            let layout = Layout { group_size, residents: residents.clone(), sizes };
            let mut pieces = vec![(0, PAGE_BYTES)];
            for &publisher in &residents {
                pieces.push((layout.doorbell(publisher).unwrap(), WORD_STRIDE));
                let pairs = (0..group_size).map(|reader| Station::Pair { publisher, reader: Rank(reader) });
                for station in pairs.chain([Station::Shared { publisher }]) {
                    pieces.push((layout.slots(station).unwrap(), sizes.station_bytes()));
                    let own = layout.stations_of(publisher).unwrap();
                    let start = layout.slots(station).unwrap();
                    assert!(own.start <= start && start + sizes.station_bytes() <= own.end);
                    let readers: Vec<Rank> = match station {
                        Station::Pair { reader, .. } => vec![reader],
                        Station::Shared { .. } => (0..group_size).map(Rank).collect(),
                    };
                    for reader in readers {
                        pieces.push((layout.released(station, reader).unwrap(), WORD_STRIDE));
                    }
                }
            }
            pieces.sort_unstable();
            for pair in pieces.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            let (start, len) = *pieces.last().unwrap();
            assert!(start + len <= layout.len_bytes());
        }
    }

    #[test]
    fn ranks_elsewhere_have_no_place() {
        let sizes = Sizes { slots: 2, slot_bytes: 4096 };
        let layout = Layout { group_size: 3, residents: vec![Rank(1)], sizes };
        assert_eq!(layout.doorbell(Rank(0)), None);
        assert_eq!(layout.slots(Station::Shared { publisher: Rank(2) }), None);
    }
}
