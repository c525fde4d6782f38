use std::sync::atomic::{Ordering, fence};

use rccl_core::{Group, Rank, plan::Station};
use rccl_transport::station::{Doorbell, Publisher, Reader, StationError};

/// One rank's ends of all stations it touches.
#[derive(Debug)]
pub(crate) struct Ports {
    group: Group,
    /// Own stations: the shared one first, then the conduits to ranks 0, 1, ...
    pub(crate) publishers: Vec<Option<Publisher>>,
    /// Others' stations: the shared ones of ranks 0, 1, ..., then their conduits to this rank.
    pub(crate) readers: Vec<Option<Reader>>,
    /// The doorbells of the ranks on this host.
    doorbells: Vec<Option<Doorbell>>,
    own: Doorbell,
    /// Whether any station has an end on another host.
    remote: bool,
}

impl Ports {
    /// The ports of a rank, still without stations.
    pub(crate) fn new(group: Group, own: Doorbell) -> Self {
        let size = group.size() as usize;
        Self {
            group,
            publishers: (0..=size).map(|_| None).collect(),
            readers: (0..2 * size).map(|_| None).collect(),
            doorbells: vec![None; size],
            own,
            remote: false,
        }
    }

    /// Adds the writing end of one of this rank's stations.
    pub(crate) fn add_publisher(&mut self, station: Station, publisher: Publisher) {
        let port = self.publisher_port(station);
        self.publishers[port] = Some(publisher);
    }

    /// Adds the reading end of another rank's station.
    pub(crate) fn add_reader(&mut self, station: Station, reader: Reader) {
        let port = self.reader_port(station);
        self.readers[port] = Some(reader);
    }

    /// Tells where a peer on this host sleeps; peers without a doorbell are on other hosts.
    pub(crate) fn add_doorbell(&mut self, rank: Rank, doorbell: Option<Doorbell>) {
        self.remote |= doorbell.is_none();
        self.doorbells[rank.index()] = doorbell;
    }

    /// The number of the publisher of one of this rank's stations.
    pub(crate) fn publisher_port(&self, station: Station) -> usize {
        debug_assert_eq!(station.publisher(), self.group.rank());
        match station {
            Station::Shared { .. } => 0,
            Station::Pair { reader, .. } => 1 + reader.index(),
        }
    }

    /// The number of the reader of another rank's station.
    pub(crate) fn reader_port(&self, station: Station) -> usize {
        match station {
            Station::Shared { publisher } => publisher.index(),
            Station::Pair { publisher, .. } => self.group.size() as usize + publisher.index(),
        }
    }

    /// The rank at the other end of a reader.
    pub(crate) fn publisher_of(&self, reader: usize) -> Rank {
        Rank((reader % self.group.size() as usize) as u32)
    }

    /// Wakes the peers on this host, after this rank has published or released something.
    pub(crate) fn ring(&self) {
        // Orders the words stored before the loads of who sleeps; a sleeper does the two the other way around.
        fence(Ordering::SeqCst);
        for doorbell in self.doorbells.iter().flatten() {
            doorbell.ring();
        }
    }

    /// Where this rank sleeps.
    pub(crate) const fn own(&self) -> &Doorbell {
        &self.own
    }

    /// Whether this rank must watch descriptors, because some peers are on other hosts.
    pub(crate) const fn has_remote(&self) -> bool {
        self.remote
    }

    /// Whether some peers share memory with this rank.
    pub(crate) fn has_local(&self) -> bool {
        self.doorbells.iter().any(Option::is_some)
    }

    /// Moves bytes of messages that are published but not yet handed over to other hosts. True if none are left.
    pub(crate) fn drive(&mut self) -> Result<bool, StationError> {
        if !self.remote {
            return Ok(true);
        }
        let mut idle = true;
        for publisher in self.publishers.iter_mut().flatten() {
            idle &= publisher.drive()?;
        }
        Ok(idle)
    }

    /// Sleeps until something comes from one of the `awaited` ranks on other hosts, or something published can be handed
    /// over, or for `timeout`. What others send early stays where it is.
    pub(crate) fn poll(&self, timeout: std::time::Duration, awaited: &[Rank]) {
        use rustix::event::{PollFd, PollFlags};
        let readers = self.readers.iter().enumerate();
        let readers = readers.filter(|&(port, _)| awaited.contains(&self.publisher_of(port)));
        let readers = readers.filter_map(|(_, reader)| reader.as_ref());
        let reads = readers.flat_map(Reader::descriptors).map(|fd| (fd, PollFlags::IN));
        // Some channels that send have to hear from the other side first.
        let either = PollFlags::OUT | PollFlags::IN;
        let writes = self.publishers.iter().flatten().flat_map(Publisher::descriptors).map(|fd| (fd, either));
        let descriptors: Vec<_> = reads.chain(writes).collect();
        let mut polled: Vec<PollFd<'_>> = descriptors
            .iter()
            .map(|&(fd, flags)| {
                // SAFETY: the channels in `self`, which is borrowed for the whole call, keep their descriptors open.
                let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
                PollFd::from_borrowed_fd(fd, flags)
            })
            .collect();
        let timeout = rustix::event::Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Whatever ends the wait, the caller looks again.
        let _ = rustix::event::poll(&mut polled, Some(&timeout));
    }
}
