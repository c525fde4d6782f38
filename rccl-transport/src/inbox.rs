//! The receives a channel has taken: which message goes where, how much of it has come, completed in the order posted.

use std::{collections::VecDeque, ops::Range};

use crate::{
    Error, Result, Slice,
    channel::{Completion, Lengths, MAX_GROUP, Part, Ticket},
    fault::{Fault, Step},
};

/// Receives posted and not yet reported complete.
///
/// Messages are numbered from 0 in the order sent. A group takes the next numbers, one for each part; which part a message
/// fills is told by its tag.
#[derive(Debug)]
pub(crate) struct Inbox {
    groups: VecDeque<Group>,
    depth: usize,
    outstanding: usize,
    tickets: u64,
    /// The number of the first message that nothing has been posted for.
    posted: u64,
    /// Messages that have begun to arrive.
    begun: u64,
    /// Bytes of messages begun that no chunk has announced yet.
    unclaimed: u64,
    /// Groups from the front whose parts the other side has been told of, where it is told.
    offered: usize,
}

#[derive(Debug)]
struct Group {
    ticket: Ticket,
    /// The number of its first message.
    first: u64,
    parts: Vec<Part>,
    arrivals: [Option<Arrival>; MAX_GROUP],
    whole: usize,
}

/// One message of a group, from its first chunk on.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    part: usize,
    tag: u64,
    total: u64,
    claimed: u64,
    filled: u64,
}

/// What a chunk says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) message: u64,
    pub(crate) tag: u64,
    pub(crate) total: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Inbox {
    pub(crate) const fn new(depth: usize) -> Self {
        Self {
            groups: VecDeque::new(),
            depth,
            outstanding: 0,
            tickets: 0,
            posted: 0,
            begun: 0,
            unclaimed: 0,
            offered: 0,
        }
    }

    /// Takes a group of receives, unless too much is outstanding.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are no parts or too many.
    pub(crate) fn post(&mut self, parts: &[Part]) -> Result<Option<Ticket>> {
        if parts.is_empty() || parts.len() > MAX_GROUP {
            return Err(Error::Invalid {
                what: "receives in a group".into(),
                value: parts.len().to_string(),
                reason: format!("a group has 1 to {MAX_GROUP}"),
            });
        }
        Ok(self.push(parts))
    }

    /// Takes a flush: something that is complete when all before it is.
    pub(crate) fn flush(&mut self) -> Option<Ticket> {
        self.push(&[])
    }

    fn push(&mut self, parts: &[Part]) -> Option<Ticket> {
        let weight = parts.len().max(1);
        if self.outstanding + weight > self.depth {
            return None;
        }
        let ticket = Ticket(self.tickets);
        let group = Group {
            ticket,
            first: self.posted,
            parts: parts.to_vec(),
            arrivals: [None; MAX_GROUP],
            whole: 0,
        };
        self.groups.push_back(group);
        self.outstanding += weight;
        self.tickets += 1;
        self.posted += parts.len() as u64;
        Some(ticket)
    }

    /// Whether a message is posted for that has not begun to arrive.
    pub(crate) const fn awaits_message(&self) -> bool {
        self.begun < self.posted
    }

    /// Whether a message has begun to arrive of which chunks are still to come.
    pub(crate) const fn awaits_chunk(&self) -> bool {
        self.unclaimed > 0
    }

    /// Where the chunk's bytes go: `None` if nothing is posted for its message yet. Claimed bytes must be reported with
    /// [`Inbox::filled`], in as many steps as it takes; a chunk of no bytes in one.
    pub(crate) fn claim(&mut self, chunk: &Announcement) -> Step<Option<Slice>> {
        let end = chunk.offset.checked_add(chunk.length).filter(|&end| end <= chunk.total);
        if end.is_none() || (chunk.length == 0 && chunk.total > 0) {
            return Err(Fault::protocol(format_args!("impossible chunk {chunk:?}")));
        }
        if chunk.message >= self.posted {
            return Ok(None);
        }
        let Some(group) = group_of(&mut self.groups, chunk.message) else {
            return Err(Fault::protocol(format_args!("message {} was complete already", chunk.message)));
        };
        let index = usize::try_from(chunk.message - group.first).expect("below MAX_GROUP");
        let fresh = group.arrivals[index].is_none();
        if fresh {
            group.begin(index, chunk)?;
            self.begun += 1;
            self.unclaimed += chunk.total;
        }
        let arrival = group.arrivals[index].as_mut().expect("begun above");
        let again = !fresh && arrival.total == 0;
        let fits = chunk.length <= arrival.total - arrival.claimed;
        if again || !fits || chunk.total != arrival.total || chunk.tag != arrival.tag {
            return Err(Fault::protocol(format_args!("chunk {chunk:?} does not belong to {arrival:?}")));
        }
        arrival.claimed += chunk.length;
        self.unclaimed -= chunk.length;
        let slice = &group.parts[arrival.part].slice;
        let start = slice.range().start + usize::try_from(chunk.offset).expect("within a slice");
        let end = start + usize::try_from(chunk.length).expect("within a slice");
        Ok(Some(slice.region().slice(start..end)))
    }

    /// The numbers of the messages that are posted for and not reported complete.
    pub(crate) fn outstanding(&self) -> Range<u64> {
        self.groups.front().map_or(self.posted, |group| group.first)..self.posted
    }

    /// The first group that the other side has not been told of: the number of its first message, and its parts.
    pub(crate) fn unoffered(&mut self) -> Option<(u64, &[Part])> {
        while self.groups.get(self.offered).is_some_and(|group| group.parts.is_empty()) {
            self.offered += 1;
        }
        self.groups.get(self.offered).map(|group| (group.first, &group.parts[..]))
    }

    /// The other side is being told of the group that [`Inbox::unoffered`] gave.
    pub(crate) const fn offered(&mut self) {
        self.offered += 1;
    }

    /// All of `message` has been written to a part that its sender chose.
    pub(crate) fn land(&mut self, message: u64, part: usize, bytes: u64) -> Step<()> {
        let refuse = |what: &str| Err(Fault::protocol(format_args!("message {message} {what}")));
        let Some(group) = group_of(&mut self.groups, message).filter(|_| message < self.posted) else {
            return refuse("was not posted for");
        };
        let index = usize::try_from(message - group.first).expect("below MAX_GROUP");
        let taken = group.arrivals.iter().flatten().any(|arrival| arrival.part == part);
        if taken || group.arrivals[index].is_some() {
            return refuse("came twice");
        }
        let Some(Part { slice, tag }) = group.parts.get(part) else {
            return refuse("chose a part that is not");
        };
        if bytes > slice.len() as u64 {
            return refuse("is longer than its part");
        }
        group.arrivals[index] =
            Some(Arrival { part, tag: *tag, total: bytes, claimed: bytes, filled: bytes });
        group.whole += 1;
        self.begun += 1;
        Ok(())
    }

    /// `bytes` claimed for `message` have been written.
    pub(crate) fn filled(&mut self, message: u64, bytes: usize) {
        let group = group_of(&mut self.groups, message).expect("claimed, so its group is not complete");
        let index = usize::try_from(message - group.first).expect("below MAX_GROUP");
        let arrival = group.arrivals[index].as_mut().expect("claimed");
        arrival.filled += bytes as u64;
        group.whole += usize::from(arrival.filled == arrival.total);
    }

    /// The next completion, in the order posted.
    pub(crate) fn complete(&mut self) -> Option<Completion> {
        let front = self.groups.front()?;
        if front.whole < front.parts.len() {
            return None;
        }
        let group = self.groups.pop_front()?;
        self.offered = self.offered.saturating_sub(1);
        self.outstanding -= group.parts.len().max(1);
        let mut lengths = Lengths::zeroed(group.parts.len());
        for arrival in group.arrivals.iter().flatten() {
            lengths[arrival.part] = arrival.total;
        }
        Some(Completion { ticket: group.ticket, lengths })
    }

    /// Lets go of all memory but that of receives already complete.
    pub(crate) fn fail(&mut self) {
        let whole = self.groups.iter().take_while(|group| group.whole == group.parts.len()).count();
        self.groups.truncate(whole);
    }
}

/// The group that `message` belongs to, if it is outstanding.
fn group_of(groups: &mut VecDeque<Group>, message: u64) -> Option<&mut Group> {
    // Almost always the first; a binary search would have to skip flushes, which have no messages.
    groups.iter_mut().find(|group| message.wrapping_sub(group.first) < group.parts.len() as u64)
}

impl Group {
    /// Finds the part for a message that begins to arrive. A single receive takes any tag.
    fn begin(&mut self, index: usize, chunk: &Announcement) -> Step<()> {
        let taken = |part: usize| self.arrivals.iter().flatten().any(|arrival| arrival.part == part);
        let alone = self.parts.len() == 1;
        let part =
            (0..self.parts.len()).find(|&part| (alone || self.parts[part].tag == chunk.tag) && !taken(part));
        let Some(part) = part else {
            let (message, tag) = (chunk.message, chunk.tag);
            return Err(Fault::protocol(format_args!(
                "no receive in the group of message {message} has tag {tag}"
            )));
        };
        let posted_bytes = self.parts[part].slice.len() as u64;
        if chunk.total > posted_bytes {
            return Err(Fault::Truncated { message_bytes: chunk.total, posted_bytes });
        }
        self.arrivals[index] =
            Some(Arrival { part, tag: chunk.tag, total: chunk.total, claimed: 0, filled: 0 });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Region;

    fn part(region: &Arc<Region>, start: usize, end: usize, tag: u64) -> Part {
        Part { slice: region.slice(start..end), tag }
    }

    const fn chunk(message: u64, tag: u64, total: u64, offset: u64, length: u64) -> Announcement {
        Announcement { message, tag, total, offset, length }
    }

    fn cause(fault: Fault) -> String {
        fault.error("it").to_string()
    }

    #[test]
    fn messages_of_a_group_find_their_parts_by_tag() {
        let region = Region::zeroed(16);
        let mut inbox = Inbox::new(8);
        inbox
            .post(&[part(&region, 0, 4, 1), part(&region, 4, 8, 2), part(&region, 8, 16, 1)])
            .unwrap()
            .unwrap();
        inbox.flush().unwrap();
        for (message, tag, total, range) in [(0, 2, 3, 4..7), (1, 1, 0, 0..0), (2, 1, 8, 8..16)] {
            let slice = inbox.claim(&chunk(message, tag, total, 0, total)).unwrap().unwrap();
            assert_eq!(slice.range(), range);
            assert_eq!(inbox.complete(), None);
            inbox.filled(message, slice.len());
        }
        assert!(!inbox.awaits_message() && !inbox.awaits_chunk());
        let done = inbox.complete().unwrap();
        assert_eq!((done.ticket, &done.lengths[..]), (Ticket(0), &[0, 3, 8][..]));
        let flushed = inbox.complete().unwrap();
        assert_eq!((flushed.ticket, flushed.lengths.len()), (Ticket(1), 0));
    }

    #[test]
    fn chunks_come_in_any_order_and_wait_for_a_receive() {
        let region = Region::zeroed(16);
        let mut inbox = Inbox::new(1);
        let later = chunk(0, 9, 10, 4, 6);
        assert!(inbox.claim(&later).unwrap().is_none());
        inbox.post(&[part(&region, 2, 16, 0)]).unwrap().unwrap();
        assert!(inbox.post(&[part(&region, 2, 16, 0)]).unwrap().is_none());
        assert_eq!(inbox.claim(&later).unwrap().unwrap().range(), 6..12);
        assert!(inbox.awaits_chunk());
        inbox.filled(0, 6);
        inbox.claim(&chunk(0, 9, 10, 0, 4)).unwrap().unwrap();
        inbox.filled(0, 1);
        assert_eq!(inbox.complete(), None);
        inbox.filled(0, 3);
        assert_eq!(inbox.complete().unwrap().lengths[..], [10]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let region = Region::zeroed(16);
        let mut inbox = Inbox::new(8);
        inbox.post(&[part(&region, 0, 8, 1), part(&region, 8, 16, 2)]).unwrap().unwrap();
        inbox.claim(&chunk(0, 1, 0, 0, 0)).unwrap().unwrap();
        inbox.filled(0, 0);
        for wrong in [
            chunk(0, 1, 0, 0, 0),
            chunk(1, 1, 4, 0, 4),
            chunk(1, 3, 4, 0, 4),
            chunk(1, 2, 4, 0, 5),
            chunk(1, 2, 4, 2, 3),
            chunk(1, 2, 4, u64::MAX, 2),
            chunk(1, 2, 4, 0, 0),
        ] {
            let said = cause(inbox.claim(&wrong).unwrap_err());
            assert!(said.starts_with("connection to it lost: protocol: "), "{wrong:?}: {said}");
        }
        let long = inbox.claim(&chunk(1, 2, 9, 0, 1)).unwrap_err();
        assert_eq!(long, Fault::Truncated { message_bytes: 9, posted_bytes: 8 });
        inbox.claim(&chunk(1, 2, 4, 0, 3)).unwrap().unwrap();
        for wrong in [chunk(1, 2, 4, 2, 2), chunk(1, 2, 5, 3, 1), chunk(1, 1, 4, 3, 1)] {
            assert!(cause(inbox.claim(&wrong).unwrap_err()).contains("does not belong"), "{wrong:?}");
        }
    }

    #[test]
    fn offered_groups_are_filled_in_any_order_by_parts_that_their_sender_chose() {
        let region = Region::zeroed(16);
        let mut inbox = Inbox::new(8);
        inbox.flush().unwrap();
        inbox.post(&[part(&region, 0, 4, 1), part(&region, 4, 8, 1)]).unwrap().unwrap();
        inbox.post(&[part(&region, 8, 16, 0)]).unwrap().unwrap();
        assert_eq!(inbox.unoffered().map(|(first, parts)| (first, parts.len())), Some((0, 2)));
        inbox.offered();
        assert_eq!(inbox.complete().map(|done| done.ticket), Some(Ticket(0)));
        assert_eq!(inbox.unoffered().map(|(first, parts)| (first, parts.len())), Some((2, 1)));
        inbox.offered();
        assert!(inbox.unoffered().is_none());
        for (message, index, bytes) in [(2, 0, 8), (1, 0, 3), (0, 1, 0)] {
            inbox.land(message, index, bytes).unwrap();
        }
        for (message, index, bytes) in [(2, 0, 1), (0, 0, 1), (3, 0, 0), (1, 1, 1)] {
            assert!(inbox.land(message, index, bytes).is_err(), "{message} {index} {bytes}");
        }
        assert_eq!((inbox.outstanding(), inbox.awaits_message()), (0..3, false));
        assert_eq!(inbox.complete().unwrap().lengths[..], [3, 0]);
        assert_eq!(inbox.complete().unwrap().lengths[..], [8]);
        inbox.post(&[part(&region, 0, 4, 1)]).unwrap().unwrap();
        assert!(inbox.land(3, 0, 5).is_err() && inbox.land(3, 1, 1).is_err());
    }

    #[test]
    fn failing_lets_go_of_memory_but_not_of_completions() {
        let (done, pending) = (Region::zeroed(4), Region::zeroed(4));
        let mut inbox = Inbox::new(8);
        inbox.post(&[part(&done, 0, 4, 0)]).unwrap();
        inbox.post(&[part(&pending, 0, 4, 0)]).unwrap();
        inbox.claim(&chunk(0, 0, 4, 0, 4)).unwrap();
        inbox.filled(0, 4);
        inbox.fail();
        assert_eq!(Arc::strong_count(&pending), 1);
        assert_eq!(inbox.complete().map(|done| done.ticket), Some(Ticket(0)));
        assert_eq!(inbox.complete(), None);
        assert!(inbox.post(&[]).is_err());
    }
}
