//! The receiving end of a verbs channel: offers its receives, and takes note of what was written to them.

use std::{collections::VecDeque, os::fd::RawFd, time::Duration};

use super::{
    DEPTH,
    exchange::Frame,
    explain::Cause,
    link::Link,
    offer::{MAX_PLACES, Notice, Place, write_offer},
    pairs::{OFFERS, Pairs},
    send::{CAUSE_PATIENCE, WRITE_BYTES},
    sys::{
        Operation, Work,
        abi::{IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, ibv_wc},
    },
};
use crate::{
    channel::Part,
    deadline::Deadline,
    ends::Reader,
    fault::{Fault, Step},
    inbox::Inbox,
};

/// Receives are offered at once while the other side knows of fewer; beyond that, several in one offer.
const EAGER: usize = 24;

/// Offers of which one completes by itself.
const OFFERS_BETWEEN_SIGNALS: u64 = 16;

/// How long messages that the other side has sent may take to show after it has ended.
const TAIL_PATIENCE: Duration = Duration::from_secs(5);

/// The receiving end.
#[derive(Debug)]
pub(super) struct Receiver {
    pairs: Pairs,
    link: Link,
    numbers: Vec<u32>,
    /// Receives posted to each queue pair for writes that are to be noticed.
    notices: Vec<usize>,
    /// Messages offered to and not yet whole.
    offered: usize,
    /// Messages that are whole, how many from the first on without a gap, and which beyond, by number modulo [`DEPTH`].
    landed: u64,
    gapless: u64,
    beyond: Vec<bool>,
    /// Stripes of messages that are not whole yet, by their number modulo [`DEPTH`].
    partial: Vec<Partial>,
    /// Offers sent, and how many of them the device is done with.
    sent: u64,
    done: u64,
    /// The first message after each offer, for offers that the other side may not have read.
    unread: VecDeque<u64>,
    /// A failure whose cause is not known yet.
    pending: Option<(Cause, Deadline)>,
    /// Why nothing comes after that many messages.
    end: Option<(u64, Fault, Deadline)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Partial {
    stripes: u64,
    bytes: u64,
}

impl Receiver {
    pub(super) fn new(pairs: Pairs, link: Link) -> Self {
        let numbers = pairs.queues.numbers();
        let notices = vec![0; numbers.len()];
        Self {
            pairs,
            link,
            numbers,
            notices,
            offered: 0,
            landed: 0,
            gapless: 0,
            beyond: vec![false; DEPTH],
            partial: vec![Partial::default(); DEPTH],
            sent: 0,
            done: 0,
            unread: VecDeque::new(),
            pending: None,
            end: None,
        }
    }

    fn step(&mut self, inbox: &mut Inbox) -> Step<()> {
        let moved = self.reap(inbox)?;
        self.offer(inbox)?;
        if moved {
            self.pairs.moved();
        }
        let waits = inbox.awaits_message();
        let ending = self.end.is_some() || self.pending.is_some();
        if waits && !moved && (ending || self.pairs.is_time_to_look()) {
            self.look_around()?;
            // What was written before the other side said its last is still to be taken.
            self.reap(inbox)?;
        }
        match &self.end {
            Some((messages, fault, deadline))
                if inbox.awaits_message() && (self.landed >= *messages || deadline.is_over()) =>
            {
                Err(fault.clone())
            }
            _ => self.give_up_pending(),
        }
    }

    /// Ends with a failure once its cause is known, or has not become known in time.
    fn give_up_pending(&self) -> Step<()> {
        let Some((cause, deadline)) = &self.pending else { return Ok(()) };
        match cause.fault(&self.pairs.device) {
            (fault, known) if known || deadline.is_over() => Err(fault),
            _ => Ok(()),
        }
    }

    /// Takes completions; whether there were any.
    fn reap(&mut self, inbox: &mut Inbox) -> Step<bool> {
        let (room, count) = self.pairs.take()?;
        for done in &room[..count] {
            if done.status != 0 {
                self.failed(done)?;
            } else if done.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
                self.land(done, inbox)?;
            } else if done.opcode & IBV_WC_RECV == 0 {
                self.done = done.wr_id;
            }
            // What is left is the packet that tried the path out.
        }
        self.pairs.give_back(room);
        Ok(count > 0)
    }

    fn failed(&mut self, done: &ibv_wc) -> Step<()> {
        let cause = self.pairs.explain(done)?;
        self.pending.get_or_insert((cause, Deadline::after(CAUSE_PATIENCE)));
        Ok(())
    }

    /// A message's last write on a queue pair has arrived.
    fn land(&mut self, done: &ibv_wc, inbox: &mut Inbox) -> Step<()> {
        let pair = self.numbers.iter().position(|&number| number == done.qp_num);
        let pair = pair.ok_or_else(|| Fault::protocol("a completion of another queue pair"))?;
        self.notices[pair] = self.notices[pair].saturating_sub(1);
        let notice = Notice::of(u32::from_be(done.imm_data), inbox.outstanding().start);
        let partial = &mut self.partial[(notice.message % DEPTH as u64) as usize];
        partial.stripes += 1;
        partial.bytes += notice.whole_writes * WRITE_BYTES + u64::from(done.byte_len);
        if partial.stripes == notice.stripes {
            let bytes = std::mem::take(partial).bytes;
            inbox.land(notice.message, notice.part.into(), bytes)?;
            self.offered -= 1;
            self.landed += 1;
            self.beyond[(notice.message % DEPTH as u64) as usize] = true;
            while std::mem::take(&mut self.beyond[(self.gapless % DEPTH as u64) as usize]) {
                self.gapless += 1;
            }
        }
        Ok(())
    }

    /// Offers receives that have been posted.
    fn offer(&mut self, inbox: &mut Inbox) -> Step<()> {
        while self.sent - self.done < OFFERS as u64 {
            let first = inbox.outstanding().start;
            while self.unread.front().is_some_and(|&after| after <= first) {
                self.unread.pop_front();
            }
            if self.unread.len() == OFFERS || !self.is_worth_offering(inbox) {
                break;
            }
            let mut places = Vec::with_capacity(MAX_PLACES);
            let mut after = first;
            while let Some((message, parts)) = inbox.unoffered() {
                if places.len() + parts.len() > MAX_PLACES {
                    break;
                }
                self.add_places(parts, &mut places)?;
                after = message + parts.len() as u64;
                inbox.offered();
            }
            self.post_offer(&places, after)?;
        }
        Ok(())
    }

    /// Whether there are receives to offer, and the other side knows of few or they are many.
    fn is_worth_offering(&self, inbox: &mut Inbox) -> bool {
        let end = inbox.outstanding().end;
        let Some((first, _)) = inbox.unoffered() else { return false };
        self.offered < EAGER || end - first >= MAX_PLACES as u64
    }

    fn add_places(&self, parts: &[Part], places: &mut Vec<Place>) -> Step<()> {
        for (index, part) in parts.iter().enumerate() {
            places.push(Place {
                address: part.slice.start().as_ptr().addr() as u64,
                bytes: part.slice.len() as u64,
                tag: part.tag,
                key: self.pairs.device.keys(&part.slice)?.remote,
                part: index as u8,
                group: parts.len() as u8,
            });
        }
        Ok(())
    }

    fn post_offer(&mut self, places: &[Place], after: u64) -> Step<()> {
        self.offered += places.len();
        let lost = |error: crate::Error| Fault::Lost(error.to_string());
        // Before the offer: a write that is to be noticed must find a receive.
        for (pair, posted) in self.notices.iter_mut().enumerate() {
            if *posted < self.offered {
                self.pairs.queues.post_notices(pair, DEPTH - *posted).map_err(lost)?;
                *posted = DEPTH;
            }
        }
        let room = self.pairs.rooms.room((self.sent % OFFERS as u64) as usize);
        let len = write_offer(room, places);
        self.sent += 1;
        self.unread.push_back(after);
        let work = Work {
            id: self.sent,
            operation: Operation::Send,
            slice: &room.first(len),
            local_key: self.pairs.rooms.keys().local,
            signalled: self.sent.is_multiple_of(OFFERS_BETWEEN_SIGNALS),
        };
        self.pairs.queues.post(0, [work].into_iter()).map_err(lost)
    }

    /// Hears what the other side says beside the queue pairs, and looks at the port.
    fn look_around(&mut self) -> Step<()> {
        if self.end.is_none() {
            let (messages, fault) = match self.link.hear() {
                Ok(None) => (None, None),
                Ok(Some(Frame::Goodbye { messages })) => {
                    (Some(messages), Some(Fault::Lost("it closed the channel".into())))
                }
                Ok(Some(Frame::Truncated { messages, message_bytes, posted_bytes })) => {
                    (Some(messages), Some(Fault::Truncated { message_bytes, posted_bytes }))
                }
                Ok(Some(Frame::Broken { why })) => {
                    (Some(0), Some(Fault::Lost(format!("its side failed: {why}"))))
                }
                Ok(Some(other)) => return Err(Fault::protocol(format_args!("{other:?} from a sender"))),
                Err(fault) => (Some(0), Some(fault)),
            };
            if let (Some(messages), Some(fault)) = (messages, fault) {
                self.end = Some((messages, fault, Deadline::after(TAIL_PATIENCE)));
            }
        }
        self.pairs.check_port()
    }
}

impl Reader for Receiver {
    fn resume(&mut self, inbox: &mut Inbox) -> Step<()> {
        self.offer(inbox).inspect_err(|fault| self.tell(fault))
    }

    fn advance(&mut self, inbox: &mut Inbox) -> Step<()> {
        self.step(inbox).inspect_err(|fault| self.tell(fault))
    }

    fn descriptors(&self, inbox: &Inbox) -> Vec<RawFd> {
        if !inbox.awaits_message() {
            return Vec::new();
        }
        let mut descriptors = self.pairs.descriptors();
        descriptors.push(self.link.descriptor());
        descriptors
    }
}

impl Receiver {
    /// Tells the other side why this one ends, and what it has.
    fn tell(&mut self, fault: &Fault) {
        if let Fault::Lost(why) = fault {
            // Nobody to tell if the other side is gone.
            _ = self.link.say(&Frame::Broken { why: why.clone() });
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // As above.
        _ = self.link.say(&Frame::Goodbye { messages: self.gapless });
    }
}
