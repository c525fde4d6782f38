use std::{
    os::fd::RawFd,
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use rccl_core::{Rank, plan::Station};

use super::{
    Arena, Label, ORIGIN_AT, Origin, Result, SIGNATURE_AT, Slots, StationError, WIRE_AT, arena::Word,
    payload_at, wire_bytes,
};
use crate::channel::{Registration, SendChannel};

/// The writing end of a station.
#[derive(Debug)]
pub struct Publisher {
    slots: Slots,
    /// Messages published so far.
    published: u64,
    /// Messages that every reader is known to have released.
    released: u64,
    /// The words in which the readers on this host count what they have released.
    local: Vec<Word>,
    remote: Vec<Remote>,
    /// Lengths of the messages in the slots, for channels that post them later.
    lengths: Vec<usize>,
    /// What makes the slots known to the transports of those channels; ends after them.
    registrations: Vec<Arc<Registration>>,
}

#[derive(Debug)]
struct Remote {
    rank: Rank,
    channel: Box<dyn SendChannel>,
    posted: u64,
    done: u64,
}

impl Publisher {
    /// The writing end of a station whose slots lie in `arena`. `local` are its readers on this host, `remote` the
    /// channels to its readers elsewhere.
    ///
    /// # Panics
    /// If the publisher does not live on the arena's host.
    #[must_use]
    pub fn new(
        arena: &Arena,
        station: Station,
        local: impl IntoIterator<Item = Rank>,
        remote: impl IntoIterator<Item = (Rank, Box<dyn SendChannel>)>,
    ) -> Self {
        let layout = arena.layout();
        let start = layout.slots(station).expect("the publisher lives on the arena's host");
        let word = |reader| layout.released(station, reader).map(|offset| Word::at(arena.region(), offset));
        Self {
            slots: Slots::new(arena.region(), start, layout.sizes),
            published: 0,
            released: 0,
            local: local.into_iter().filter_map(word).collect(),
            remote: remote
                .into_iter()
                .map(|(rank, channel)| Remote { rank, channel, posted: 0, done: 0 })
                .collect(),
            lengths: vec![0; layout.sizes.slots as usize],
            registrations: Vec::new(),
        }
    }

    /// Keeps a registration of the slots for as long as channels may read them.
    pub fn keep(&mut self, registration: Arc<Registration>) {
        self.registrations.push(registration);
    }

    /// Room for the payload of the next message, of `len` bytes; `None` while a reader still holds the slot.
    ///
    /// # Errors
    /// Those of the channels to readers elsewhere.
    ///
    /// # Panics
    /// If `len` exceeds the slots.
    #[inline]
    pub fn claim(&mut self, len: usize) -> Result<Option<NonNull<u8>>> {
        assert!(len <= self.slots.sizes.slot_bytes as usize, "a message of {len} bytes in smaller slots");
        let slots = u64::from(self.slots.sizes.slots);
        if self.published - self.released >= slots {
            self.look_at_readers()?;
            if self.published - self.released >= slots {
                return Ok(None);
            }
        }
        Ok(Some(self.slots.pointer(self.published, payload_at(len))))
    }

    /// Publishes the slot that the last [`Publisher::claim`] gave, with a payload of `len` bytes that belongs to call
    /// `call`.
    ///
    /// # Errors
    /// Those of the channels to readers elsewhere.
    ///
    /// # Panics
    /// If no slot is free: it was not claimed.
    #[inline]
    pub fn publish(&mut self, label: &Label, call: u64, len: usize) -> Result<()> {
        let number = self.published;
        assert!(number - self.released < u64::from(self.slots.sizes.slots), "publish without claim");
        // SAFETY: the slot is free (checked above), so no reader looks at it, and the field lies within its header.
        unsafe { self.slots.pointer(number, SIGNATURE_AT).cast::<u64>().write(label.signature) };
        let origin = Origin { text: label.text, number: call };
        // SAFETY: as above; the origin has the second half of the header.
        unsafe { self.slots.pointer(number, ORIGIN_AT).cast().write(origin) };
        self.slots.sequence(number).store(number + 1, Ordering::Release);
        self.published += 1;
        if !self.remote.is_empty() {
            self.lengths[(number % u64::from(self.slots.sizes.slots)) as usize] = len;
            self.drive()?;
        }
        Ok(())
    }

    /// Moves bytes to readers elsewhere. True if nothing is left to move: the channels are done with every slot.
    ///
    /// # Errors
    /// Those of the channels.
    pub fn drive(&mut self) -> Result<bool> {
        let mut idle = true;
        for remote in &mut self.remote {
            let rank = remote.rank;
            let failed = |source| StationError { rank, source };
            while remote.posted < self.published {
                let number = remote.posted;
                let len = self.lengths[(number % u64::from(self.slots.sizes.slots)) as usize];
                let from = self.slots.offset(number) + WIRE_AT;
                let slice = self.slots.region.slice(from..from + wire_bytes(len));
                if remote.channel.post(&slice, 0).map_err(failed)?.is_none() {
                    break;
                }
                remote.posted += 1;
            }
            while remote.done < remote.posted && remote.channel.poll().map_err(failed)?.is_some() {
                remote.done += 1;
            }
            idle &= remote.done == self.published;
        }
        Ok(idle)
    }

    /// The descriptors to wait on while [`Publisher::drive`] is not done.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.remote
            .iter()
            .filter(|remote| remote.done < self.published)
            .flat_map(|remote| remote.channel.descriptors())
    }

    fn look_at_readers(&mut self) -> Result<()> {
        if !self.remote.is_empty() {
            self.drive()?;
        }
        let local = self.local.iter().map(|word| word.atomic().load(Ordering::Acquire)).min();
        let remote = self.remote.iter().map(|remote| remote.done).min();
        // A station without readers never fills up.
        self.released = local.into_iter().chain(remote).min().unwrap_or(self.published).min(self.published);
        Ok(())
    }
}
