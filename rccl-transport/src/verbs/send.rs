//! The sending end of a verbs channel: writes each message to where the receiver has offered to have it.

use std::{collections::VecDeque, os::fd::RawFd, time::Duration};

use rccl_core::split;

use super::{
    DEPTH,
    exchange::Frame,
    explain::Cause,
    link::Link,
    offer::{Notice, Place, read_offer},
    pairs::Pairs,
    sys::{
        BATCH, Operation, Work,
        abi::{IBV_WC_RECV, ibv_wc},
    },
};
use crate::{
    Slice,
    deadline::Deadline,
    ends::Writer,
    fault::{Fault, Step},
    outbox::Outbox,
};

/// The longest write in bytes. A stripe that is longer takes several, of which the last is noticed.
pub(super) const WRITE_BYTES: u64 = 64 << 20;

/// The shortest stripe in bytes: below, one write costs less than two.
const STRIPE_BYTES: u64 = 16 << 10;

/// Stripes begin at multiples of this.
const STRIPE_ALIGN: u64 = 4096;

/// How long a failure that is only a consequence waits for its cause to become known.
pub(super) const CAUSE_PATIENCE: Duration = Duration::from_secs(2);

/// The sending end.
#[derive(Debug)]
pub(super) struct Sender {
    pairs: Pairs,
    link: Link,
    /// What has been offered and not used: groups of receives, in order.
    offers: VecDeque<Vec<Place>>,
    /// The message being handed out, where it goes, and how.
    current: Option<Current>,
    lanes: Vec<Lane>,
    /// The lane that the next message begins on.
    next_lane: usize,
    /// Messages whose every write has been answered.
    answered: u64,
    /// A failure whose cause is not known yet.
    pending: Option<(Cause, Deadline)>,
    /// The other side has closed the channel, which matters only if there is more to send.
    closed: Option<Fault>,
    /// A message that is too long for its receive. The other side has been told.
    truncated: Option<Fault>,
}

#[derive(Debug)]
struct Current {
    message: u64,
    total: u64,
    place: Place,
    stripes: u64,
    stripe: u64,
}

/// One queue pair.
#[derive(Debug, Default)]
struct Lane {
    /// Writes to be posted with the next call.
    batch: Vec<Write>,
    /// The message of each write posted and not known to be answered, in order.
    flying: VecDeque<u64>,
    /// Writes posted, of which the first is number 1.
    posted: u64,
}

#[derive(Debug)]
struct Write {
    message: u64,
    slice: Slice,
    local_key: u32,
    operation: Operation,
}

impl Sender {
    pub(super) fn new(pairs: Pairs, link: Link) -> Self {
        let lanes = (0..pairs.queues.len()).map(|_| Lane::default()).collect();
        Self {
            pairs,
            link,
            offers: VecDeque::new(),
            current: None,
            lanes,
            next_lane: 0,
            answered: 0,
            pending: None,
            closed: None,
            truncated: None,
        }
    }

    fn step(&mut self, outbox: &mut Outbox) -> Step<()> {
        let mut moved = self.reap(outbox)?;
        if let Some(fault) = &self.truncated {
            // What was sent before still arrives.
            let flying = self.lanes.iter().any(|lane| !lane.flying.is_empty());
            return if flying { Ok(()) } else { Err(fault.clone()) };
        }
        if self.pending.is_none() && self.closed.is_none() {
            moved |= self.fill(outbox)?;
        }
        if moved {
            self.pairs.moved();
        }
        if self.pending.is_some() || (!moved && self.pairs.is_time_to_look()) {
            self.look_around(outbox)?;
        }
        match (&self.closed, &self.pending) {
            (Some(closed), _) if !outbox.is_idle() => Err(closed.clone()),
            (_, Some((cause, deadline))) => match cause.fault(&self.pairs.device) {
                (fault, known) if known || deadline.is_over() => Err(fault),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Takes completions: offers that came, writes that were answered. Whether there were any.
    fn reap(&mut self, outbox: &mut Outbox) -> Step<bool> {
        let (room, count) = self.pairs.take()?;
        for done in &room[..count] {
            if done.status != 0 {
                self.failed(done)?;
            } else if done.opcode & IBV_WC_RECV != 0 {
                self.take_offer(done)?;
            } else {
                self.answer(done, outbox);
            }
        }
        self.pairs.give_back(room);
        Ok(count > 0)
    }

    fn failed(&mut self, done: &ibv_wc) -> Step<()> {
        let cause = self.pairs.explain(done)?;
        self.pending.get_or_insert((cause, Deadline::after(CAUSE_PATIENCE)));
        Ok(())
    }

    fn take_offer(&mut self, done: &ibv_wc) -> Step<()> {
        let room = self.pairs.rooms.room(done.wr_id as usize);
        let groups = read_offer(room, done.byte_len as usize)?;
        let known: usize = self.offers.iter().map(Vec::len).sum();
        let new: usize = groups.iter().map(Vec::len).sum();
        if known + new > DEPTH {
            return Err(Fault::protocol(format_args!("{known} receives are offered, and then {new} more")));
        }
        self.offers.extend(groups);
        let again = [(done.wr_id, room, self.pairs.rooms.keys().local)];
        self.pairs.queues.post_receives(0, &again).map_err(|error| Fault::Lost(error.to_string()))
    }

    /// All writes of a lane up to this one have been answered.
    fn answer(&mut self, done: &ibv_wc, outbox: &mut Outbox) {
        let lane = &mut self.lanes[(done.wr_id >> 56) as usize];
        let left = (lane.posted - (done.wr_id & (u64::MAX >> 8))) as usize;
        while lane.flying.len() > left {
            let message = lane.flying.pop_front().expect("longer than what is left");
            outbox.written(message);
            self.answered = self.answered.max(message + 1);
        }
    }

    /// Posts writes of what is to be sent and has been offered to. Whether there was any.
    fn fill(&mut self, outbox: &mut Outbox) -> Step<bool> {
        let mut moved = false;
        loop {
            if self.current.is_none() && !self.begin(outbox)? {
                break;
            }
            let Some(current) = &mut self.current else { break };
            let index = (self.next_lane + current.stripe as usize) % self.lanes.len();
            let lane = &mut self.lanes[index];
            if lane.flying.len() + lane.batch.len() == DEPTH {
                break;
            }
            let Some(offset) = outbox.next_offset() else { break };
            let stripe = split::share(current.total, current.stripes, current.stripe, STRIPE_ALIGN);
            let most = (stripe.end - offset as u64).min(WRITE_BYTES);
            let Some(chunk) = outbox.next_chunk(most as usize) else { break };
            let ends = chunk.offset + chunk.slice.len() as u64 == stripe.end;
            let address = current.place.address + chunk.offset;
            let key = current.place.key;
            let operation = if ends {
                let notice = Notice {
                    message: current.message,
                    part: current.place.part,
                    stripes: current.stripes,
                    whole_writes: (chunk.offset - stripe.start) / WRITE_BYTES,
                };
                Operation::WriteNoticed { address, key, number: notice.number() }
            } else {
                Operation::Write { address, key }
            };
            let local_key = self.pairs.device.keys(&chunk.slice)?.local;
            lane.batch.push(Write { message: chunk.message, slice: chunk.slice, local_key, operation });
            moved = true;
            if ends {
                current.stripe += 1;
            }
            if current.stripe == current.stripes {
                self.next_lane = (self.next_lane + current.stripes as usize) % self.lanes.len();
                self.current = None;
            }
            if self.lanes[index].batch.len() == BATCH {
                self.post(index)?;
            }
        }
        (0..self.lanes.len()).try_for_each(|lane| self.post(lane))?;
        Ok(moved)
    }

    /// Chooses where the next message goes; whether there is one, and a receive for it.
    fn begin(&mut self, outbox: &Outbox) -> Step<bool> {
        let Some((message, tag, total)) = outbox.next_message() else { return Ok(false) };
        let Some(group) = self.offers.front_mut() else { return Ok(false) };
        // A receive that is alone takes any tag.
        let alone = group[0].group == 1;
        let Some(at) = group.iter().position(|place| alone || place.tag == tag) else {
            let what = format!("message {message} has tag {tag}, which none of its group of receives has");
            return Err(Fault::protocol(what));
        };
        let place = group.remove(at);
        if group.is_empty() {
            self.offers.pop_front();
        }
        if total > place.bytes {
            let (message_bytes, posted_bytes) = (total, place.bytes);
            self.link.say(&Frame::Truncated { messages: message, message_bytes, posted_bytes })?;
            self.truncated = Some(Fault::Truncated { message_bytes, posted_bytes });
            return Ok(false);
        }
        let stripes = (total / STRIPE_BYTES).clamp(1, self.lanes.len() as u64);
        self.current = Some(Current { message, total, place, stripes, stripe: 0 });
        Ok(true)
    }

    /// Posts what is gathered for a lane. The last write of a call completes by itself, and stands for those before it.
    fn post(&mut self, index: usize) -> Step<()> {
        let lane = &mut self.lanes[index];
        let count = lane.batch.len();
        if count == 0 {
            return Ok(());
        }
        let last = lane.posted + count as u64;
        let first = lane.posted + 1;
        let works = lane.batch.iter().enumerate().map(|(at, write)| (write, first + at as u64));
        let works = works.map(|(write, number)| Work {
            id: (index as u64) << 56 | number,
            operation: write.operation,
            slice: &write.slice,
            local_key: write.local_key,
            signalled: number == last,
        });
        let posted = self.pairs.queues.post(index, works);
        lane.posted = last;
        lane.flying.extend(lane.batch.drain(..).map(|write| write.message));
        posted.map_err(|error| {
            let trouble = self.pairs.device.trouble();
            Fault::Lost(trouble.map_or_else(|| error.to_string(), |trouble| format!("{trouble}; {error}")))
        })
    }

    /// Hears what the other side says beside the queue pairs, and looks at the port.
    fn look_around(&mut self, outbox: &mut Outbox) -> Step<()> {
        if self.closed.is_some() {
            return Ok(());
        }
        match self.link.hear() {
            Ok(None) => {}
            Ok(Some(Frame::Goodbye { messages })) => {
                // Answers that the other side's queue pairs did not live to give.
                for message in self.lanes.iter_mut().flat_map(|lane| lane.flying.drain(..)) {
                    if message < messages {
                        outbox.written(message);
                    }
                }
                self.closed = Some(Fault::Lost("it closed the channel".into()));
            }
            Ok(Some(Frame::Broken { why })) => return Err(Fault::Lost(format!("its side failed: {why}"))),
            Ok(Some(other)) => return Err(Fault::protocol(format_args!("{other:?} from a receiver"))),
            Err(fault) => self.closed = Some(fault),
        }
        if outbox.is_idle() { Ok(()) } else { self.pairs.check_port() }
    }

    /// Tells the other side why this one ends.
    fn tell(&mut self, fault: &Fault) {
        if let Fault::Lost(why) = fault {
            // Nobody to tell if the other side is gone.
            _ = self.link.say(&Frame::Broken { why: why.clone() });
        }
    }
}

impl Writer for Sender {
    fn advance(&mut self, outbox: &mut Outbox) -> Step<()> {
        self.step(outbox).inspect_err(|fault| self.tell(fault))
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.pairs.descriptors()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // As above.
        _ = self.link.say(&Frame::Goodbye { messages: self.answered });
    }
}
