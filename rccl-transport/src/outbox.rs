//! The messages a sending channel has taken: handed out in chunks, completed in the order posted.

use std::collections::VecDeque;

use crate::{
    Slice,
    channel::{Completion, Lengths, Ticket},
};

/// Messages posted and not yet reported complete.
#[derive(Debug)]
pub(crate) struct Outbox {
    messages: VecDeque<Outgoing>,
    depth: usize,
    /// The number of the front message.
    first: u64,
    /// How many messages from the front have been handed out whole.
    handed: usize,
}

#[derive(Debug)]
struct Outgoing {
    slice: Slice,
    tag: u64,
    /// Bytes handed out in chunks.
    handed: usize,
    /// Chunks handed out and not yet written.
    flying: usize,
}

/// A piece of a message to be written.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The message's number in its channel, from 0.
    pub(crate) message: u64,
    /// The tag its sender gave it.
    pub(crate) tag: u64,
    /// Bytes of the whole message.
    pub(crate) total: u64,
    /// Where in the message the chunk starts.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) slice: Slice,
}

impl Outbox {
    pub(crate) const fn new(depth: usize) -> Self {
        Self { messages: VecDeque::new(), depth, first: 0, handed: 0 }
    }

    /// Takes a message, unless `depth` are outstanding.
    pub(crate) fn post(&mut self, slice: &Slice, tag: u64) -> Option<Ticket> {
        if self.messages.len() == self.depth {
            return None;
        }
        let ticket = Ticket(self.first + self.messages.len() as u64);
        self.messages.push_back(Outgoing { slice: slice.clone(), tag, handed: 0, flying: 0 });
        Some(ticket)
    }

    /// The offset at which the next chunk starts, if there is one to hand out.
    pub(crate) fn next_offset(&self) -> Option<usize> {
        self.messages.get(self.handed).map(|message| message.handed)
    }

    /// Bytes of the next message that have not been handed out.
    pub(crate) fn next_remaining(&self) -> usize {
        self.messages.get(self.handed).map_or(0, |message| message.slice.len() - message.handed)
    }

    /// The number, tag and length in bytes of the message that the next chunk belongs to, if there is one to hand out.
    pub(crate) fn next_message(&self) -> Option<(u64, u64, u64)> {
        let message = self.messages.get(self.handed)?;
        Some((self.first + self.handed as u64, message.tag, message.slice.len() as u64))
    }

    /// Whether nothing waits to be handed out or written.
    pub(crate) fn is_idle(&self) -> bool {
        self.handed == self.messages.len() && self.messages.iter().all(|message| message.flying == 0)
    }

    /// The next chunk, of at most `most` bytes. A message of no bytes is one chunk of no bytes.
    pub(crate) fn next_chunk(&mut self, most: usize) -> Option<Chunk> {
        let outgoing = self.messages.get_mut(self.handed)?;
        let (offset, total) = (outgoing.handed, outgoing.slice.len());
        let end = total.min(offset.saturating_add(most));
        let range = outgoing.slice.range();
        let chunk = Chunk {
            message: self.first + self.handed as u64,
            tag: outgoing.tag,
            total: total as u64,
            offset: offset as u64,
            slice: outgoing.slice.region().slice(range.start + offset..range.start + end),
        };
        outgoing.handed = end;
        outgoing.flying += 1;
        self.handed += usize::from(end == total);
        Some(chunk)
    }

    /// A chunk of `message` has been written.
    pub(crate) fn written(&mut self, message: u64) {
        let index = usize::try_from(message - self.first).expect("bounded by the depth");
        self.messages[index].flying -= 1;
    }

    /// The next completion, in the order posted.
    pub(crate) fn complete(&mut self) -> Option<Completion> {
        let front = self.messages.front()?;
        if self.handed == 0 || front.flying > 0 {
            return None;
        }
        let completion =
            Completion { ticket: Ticket(self.first), lengths: Lengths::one(front.slice.len() as u64) };
        self.messages.pop_front();
        self.first += 1;
        self.handed -= 1;
        Some(completion)
    }

    /// Lets go of all memory but that of messages already written.
    pub(crate) fn fail(&mut self) {
        let whole = self.messages.iter().take(self.handed).take_while(|message| message.flying == 0).count();
        self.messages.truncate(whole);
        self.handed = whole;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn messages_complete_in_order_once_their_chunks_are_written() {
        let region = Region::zeroed(10);
        let mut outbox = Outbox::new(3);
        for len in [10, 0, 3] {
            assert!(outbox.post(&region.slice(0..len), 7).is_some());
        }
        assert_eq!(outbox.post(&region.slice(0..1), 7), None);
        let chunks: Vec<_> = std::iter::from_fn(|| outbox.next_chunk(6)).collect();
        let seen: Vec<_> = chunks.iter().map(|c| (c.message, c.offset, c.slice.len(), c.total)).collect();
        assert_eq!(seen, [(0, 0, 6, 10), (0, 6, 4, 10), (1, 0, 0, 0), (2, 0, 3, 3)]);
        outbox.written(2);
        outbox.written(1);
        outbox.written(0);
        assert_eq!(outbox.complete(), None);
        outbox.written(0);
        let done: Vec<_> =
            std::iter::from_fn(|| outbox.complete()).map(|c| (c.ticket.0, c.lengths[0])).collect();
        assert_eq!(done, [(0, 10), (1, 0), (2, 3)]);
        assert_eq!(outbox.post(&region.slice(0..1), 7), Some(Ticket(3)));
    }

    #[test]
    fn failing_keeps_only_what_was_written() {
        let region = Region::zeroed(4);
        let mut outbox = Outbox::new(3);
        for _ in 0..3 {
            outbox.post(&region.slice(0..4), 0);
        }
        outbox.next_chunk(4);
        outbox.next_chunk(4);
        outbox.written(0);
        outbox.fail();
        assert_eq!(outbox.complete().map(|c| c.ticket), Some(Ticket(0)));
        assert_eq!(outbox.complete(), None);
        assert_eq!(std::sync::Arc::strong_count(&region), 1);
    }
}
