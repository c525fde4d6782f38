use std::{os::fd::RawFd, ptr::NonNull, sync::atomic::Ordering};

use rccl_core::{Rank, plan::Station};

use super::{
    Arena, ORIGIN_AT, Origin, Result, SIGNATURE_AT, Sizes, Slots, StationError, WIRE_AT, arena::Word,
    payload_at, wire_bytes,
};
use crate::{
    Error,
    channel::{Part, RecvChannel, Registration, Transport},
    sys::mapping,
};

/// The reading end of a station.
#[derive(Debug)]
pub struct Reader {
    /// Gone before the slots that it may fill.
    end: End,
    slots: Slots,
    /// Messages released so far, which is the number of the next one.
    released: u64,
}

#[derive(Debug)]
enum End {
    /// The publisher shares the slots; this word tells it what has been released.
    Local { word: Word },
    /// The slots are this half's own, filled by a channel.
    Remote(Remote),
}

#[derive(Debug)]
struct Remote {
    publisher: Rank,
    channel: Box<dyn RecvChannel>,
    posted: u64,
    arrived: u64,
    lengths: Vec<usize>,
    /// Why nothing more will arrive. What arrived before can still be read: a publisher may leave once it has sent all.
    broken: Option<Error>,
    /// What makes the slots known to the channel's transport; ends after it.
    _registration: Registration,
}

/// A message at the front of a station.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// Its payload, valid until it is released.
    pub payload: NonNull<u8>,
    /// What it belongs to.
    pub signature: u64,
}

impl Reader {
    /// The reading end, for `reader`, of a station whose publisher lives on the same host.
    ///
    /// # Panics
    /// If the publisher does not live on the arena's host.
    #[must_use]
    pub fn local(arena: &Arena, station: Station, reader: Rank) -> Self {
        let layout = arena.layout();
        let place = "the publisher lives on the arena's host";
        let word = Word::at(arena.region(), layout.released(station, reader).expect(place));
        let slots = Slots::new(arena.region(), layout.slots(station).expect(place), layout.sizes);
        Self { slots, released: 0, end: End::Local { word } }
    }

    /// The reading half of a station whose publisher lives elsewhere: slots of its own, filled by `channel` of `transport`.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no memory for the slots; those of registering it with the transport.
    pub fn remote(
        publisher: Rank,
        sizes: Sizes,
        channel: Box<dyn RecvChannel>,
        transport: &dyn Transport,
    ) -> crate::Result<Self> {
        let memory = mapping::anonymous(sizes.station_bytes(), "the reading half of a station")?;
        let registration = transport.register(&memory)?;
        let slots = Slots::new(&memory, 0, sizes);
        let lengths = vec![0; sizes.slots as usize];
        let remote = Remote {
            publisher,
            channel,
            posted: 0,
            arrived: 0,
            lengths,
            broken: None,
            _registration: registration,
        };
        let mut reader = Self { slots, released: 0, end: End::Remote(remote) };
        reader.drive();
        Ok(reader)
    }

    /// The next message, whose payload has `len` bytes if its signature is the expected one; `None` if it has not
    /// arrived.
    ///
    /// # Errors
    /// Those of the channel from a publisher elsewhere; [`Error::Truncated`] if it delivers a message whose length is not
    /// `len` although its signature says so.
    #[inline]
    pub fn front(&mut self, len: usize, signature: u64) -> Result<Option<Message>> {
        let number = self.released;
        if let End::Local { .. } = self.end {
            if self.slots.sequence(number).load(Ordering::Acquire) != number + 1 {
                return Ok(None);
            }
        } else if !self.remote_front(len, signature)? {
            return Ok(None);
        }
        // SAFETY: the message has arrived (its sequence number, or the channel, said so), and its slot is not filled again
        // before it is released.
        let found = unsafe { self.slots.pointer(number, SIGNATURE_AT).cast::<u64>().read() };
        let payload = self.slots.pointer(number, payload_at(len));
        Ok(Some(Message { payload, signature: found }))
    }

    /// Where the message comes from that [`Reader::front`] gave.
    #[must_use]
    pub fn origin(&self) -> Origin {
        // SAFETY: called for a message that has arrived and has not been released, so its header is stable.
        unsafe { self.slots.pointer(self.released, ORIGIN_AT).cast().read() }
    }

    /// Gives the slot of the front message back.
    #[inline]
    pub fn release(&mut self) {
        self.released += 1;
        if let End::Local { word } = &self.end {
            word.atomic().store(self.released, Ordering::Release);
        } else {
            self.drive();
        }
    }

    /// Lets the channel from a publisher elsewhere move bytes. True if a message has arrived that is not released yet. A
    /// channel that breaks is reported by [`Reader::front`], once what arrived before has been read.
    pub fn drive(&mut self) -> bool {
        match &mut self.end {
            End::Local { .. } => {
                self.slots.sequence(self.released).load(Ordering::Acquire) == self.released + 1
            }
            End::Remote(remote) => {
                if remote.broken.is_none() {
                    remote.broken = remote.drive(&self.slots, self.released).err();
                }
                remote.arrived > self.released
            }
        }
    }

    /// The descriptors to wait on for the next message; none if the publisher shares the slots.
    #[must_use]
    pub fn descriptors(&self) -> Vec<RawFd> {
        match &self.end {
            End::Local { .. } => Vec::new(),
            End::Remote(remote) => remote.channel.descriptors(),
        }
    }

    fn remote_front(&mut self, len: usize, signature: u64) -> Result<bool> {
        let number = self.released;
        let here = matches!(&self.end, End::Remote(remote) if remote.arrived > number) || self.drive();
        let End::Remote(remote) = &mut self.end else { return Ok(here) };
        if !here {
            let failed = |source| StationError { rank: remote.publisher, source };
            return remote.broken.take().map_or(Ok(false), |source| Err(failed(source)));
        }
        let wire = remote.lengths[(number % u64::from(self.slots.sizes.slots)) as usize];
        // SAFETY: the message has arrived.
        let found = unsafe { self.slots.pointer(number, SIGNATURE_AT).cast::<u64>().read() };
        if wire < wire_bytes(0) || (found == signature && wire != wire_bytes(len)) {
            let (message_bytes, posted_bytes) = (wire as u64, wire_bytes(len) as u64);
            let source = Error::Truncated { message_bytes, posted_bytes };
            return Err(StationError { rank: remote.publisher, source });
        }
        Ok(true)
    }
}

impl Remote {
    /// Posts every free slot and takes what has arrived.
    fn drive(&mut self, slots: &Slots, released: u64) -> crate::Result<()> {
        let sizes = slots.sizes;
        while self.posted < released + u64::from(sizes.slots) {
            let from = slots.offset(self.posted) + WIRE_AT;
            let most = wire_bytes(sizes.slot_bytes as usize);
            let slice = slots.region.slice(from..from + most);
            if self.channel.post(&[Part { slice, tag: 0 }])?.is_none() {
                break;
            }
            self.posted += 1;
        }
        while self.arrived < self.posted {
            let Some(completion) = self.channel.poll()? else { break };
            self.lengths[(self.arrived % u64::from(sizes.slots)) as usize] = completion.lengths[0] as usize;
            self.arrived += 1;
        }
        Ok(())
    }
}
