//! One channel of the fabric: what is posted at both ends, and the message that is being delivered.

use super::Link;
use crate::{
    Slice,
    fault::{Fault, Step},
    inbox::{Announcement, Inbox},
    outbox::{Chunk, Outbox},
    sys::memory,
};

/// A channel and both its ends.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) link: Link,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) stage: Stage,
    pub(super) sender: End<Outbox>,
    pub(super) receiver: End<Inbox>,
    /// Messages that have come to the receiver's door and are not delivered.
    pub(super) arrived: usize,
    pub(super) delivery: Option<Delivery>,
    /// When the channel's last event is due; none comes before it.
    pub(super) last: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Established,
    Refused,
}

/// One end: what is posted there, and why it is dead.
#[derive(Debug)]
pub(super) struct End<Posted> {
    pub(super) posted: Posted,
    pub(super) fault: Option<Fault>,
    pub(super) dropped: bool,
}

/// A message on its way from memory to memory.
#[derive(Debug)]
pub(super) struct Delivery {
    chunk: Chunk,
    target: Slice,
    copied: usize,
}

impl<Posted> End<Posted> {
    const fn new(posted: Posted) -> Self {
        Self { posted, fault: None, dropped: false }
    }

    pub(super) const fn is_alive(&self) -> bool {
        self.fault.is_none() && !self.dropped
    }
}

impl End<Outbox> {
    /// Keeps the first fault and lets go of the memory.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.posted.fail();
        self.fault.get_or_insert(fault);
    }
}

impl End<Inbox> {
    /// Keeps the first fault and lets go of the memory.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.posted.fail();
        self.fault.get_or_insert(fault);
    }
}

impl Pipe {
    pub(super) const fn new(from: u32, to: u32, depth: usize) -> Self {
        Self {
            link: Link::between(from, to),
            from,
            to,
            stage: Stage::Connecting,
            sender: End::new(Outbox::new(depth)),
            receiver: End::new(Inbox::new(depth)),
            arrived: 0,
            delivery: None,
            last: 0,
        }
    }

    /// Whether both ends can still move messages.
    pub(super) const fn is_alive(&self) -> bool {
        self.sender.is_alive() && self.receiver.is_alive()
    }

    /// Both ends fail, and no memory is touched any more.
    pub(super) fn fail(&mut self, cause: &str) {
        self.delivery = None;
        self.sender.fail(Fault::Lost(cause.into()));
        self.receiver.fail(Fault::Lost(cause.into()));
    }

    /// Begins to deliver the next message if it has arrived and a receive is posted for it. Until the message is whole,
    /// its receive's memory holds `noise`.
    pub(super) fn begin(&mut self, noise: u8) -> Step<bool> {
        if self.arrived == 0
            || self.delivery.is_some()
            || !self.is_alive()
            || !self.receiver.posted.awaits_message()
        {
            return Ok(false);
        }
        let Some(chunk) = self.sender.posted.next_chunk(usize::MAX) else { return Ok(false) };
        let announcement = Announcement {
            message: chunk.message,
            tag: chunk.tag,
            total: chunk.total,
            offset: chunk.offset,
            length: chunk.total,
        };
        let target = self.receiver.posted.claim(&announcement)?;
        let target = target.expect("a receive is posted, and messages are delivered in order");
        memory::fill(&target, noise);
        self.arrived -= 1;
        self.delivery = Some(Delivery { chunk, target, copied: 0 });
        Ok(true)
    }

    /// Copies up to `share` of 1,000 of what is missing, or all of it if `share` is `None`; gives the message's number once
    /// it is whole.
    pub(super) fn copy(&mut self, share: Option<u64>) -> Option<u64> {
        let delivery = self.delivery.as_mut()?;
        let missing = delivery.target.len() - delivery.copied;
        let count = share.map_or(missing, |share| (missing as u64 * share / 1000) as usize);
        memory::copy(&delivery.target, delivery.copied, &delivery.chunk.slice, delivery.copied, count);
        delivery.copied += count;
        if share.is_some() {
            return None;
        }
        let message = delivery.chunk.message;
        self.receiver.posted.filled(message, delivery.target.len());
        self.delivery = None;
        Some(message)
    }

    /// The memory of the delivery in progress.
    pub(super) fn touched(&self) -> [Option<&Slice>; 2] {
        let delivery = self.delivery.as_ref();
        [delivery.map(|delivery| &delivery.chunk.slice), delivery.map(|delivery| &delivery.target)]
    }
}
