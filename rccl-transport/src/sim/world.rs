//! The fabric's state, its clock and its events.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    sync::Arc,
};

use super::{
    Link, Settings,
    pipe::{Pipe, Stage},
};
use crate::{Error, Region, Result, Slice, fault::Fault};

/// Everything there is.
#[derive(Debug)]
pub(super) struct World {
    settings: Settings,
    now: u64,
    random: Random,
    events: BinaryHeap<Reverse<Event>>,
    scheduled: u64,
    pipes: BTreeMap<u64, Pipe>,
    made: u64,
    listeners: BTreeMap<u64, Listening>,
    cut: BTreeSet<Link>,
    registered: BTreeMap<usize, usize>,
    trace: u64,
}

#[derive(Debug)]
struct Listening {
    node: u32,
    backlog: VecDeque<u64>,
}

/// Something that is to happen. Chance orders what happens at the same time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    chance: u64,
    number: u64,
    pipe: u64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A connection reaches its listener.
    Connect(u64),
    /// A message reaches the receiver's door.
    Arrive,
    /// A piece of the message being delivered is written; so many follow.
    Piece(u32),
    /// The sender learns that a message has been delivered.
    Acknowledge(u64),
    /// One end learns that the other is gone.
    Notice,
    /// A link is cut.
    Cut(Link),
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number up to `most`. Slightly uneven, which does not matter here.
    fn up_to(&mut self, most: u64) -> u64 {
        let number = self.next();
        most.checked_add(1).map_or(number, |count| number % count)
    }
}

const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl World {
    pub(super) fn new(seed: u64, settings: Settings) -> Self {
        let mut world = Self {
            now: 0,
            random: Random(mix(seed)),
            events: BinaryHeap::new(),
            scheduled: 0,
            pipes: BTreeMap::new(),
            made: 0,
            listeners: BTreeMap::new(),
            cut: BTreeSet::new(),
            registered: BTreeMap::new(),
            trace: 0,
            settings,
        };
        for (at, link) in world.settings.cuts.clone() {
            world.push(at, u64::MAX, What::Cut(link));
        }
        world
    }

    pub(super) const fn now(&self) -> u64 {
        self.now
    }

    pub(super) const fn trace(&self) -> u64 {
        self.trace
    }

    pub(super) fn pipe(&mut self, pipe: u64) -> &mut Pipe {
        self.pipes.get_mut(&pipe).expect("a pipe lives as long as one of its ends")
    }

    /// Lets the next event happen.
    pub(super) fn step(&mut self) -> bool {
        let Some(Reverse(event)) = self.events.pop() else { return false };
        self.now = event.at;
        let detail = match event.what {
            What::Connect(listener) => [1, listener],
            What::Arrive => [2, 0],
            What::Piece(left) => [3, u64::from(left)],
            What::Acknowledge(message) => [4, message],
            What::Notice => [5, 0],
            What::Cut(link) => [6, u64::from(link.low) << 32 | u64::from(link.high)],
        };
        for value in [event.at, event.pipe].into_iter().chain(detail) {
            self.trace = mix(self.trace ^ value).wrapping_add(1);
        }
        match event.what {
            What::Cut(link) => self.cut(link),
            // Both ends are gone; nobody is left to tell.
            _ if !self.pipes.contains_key(&event.pipe) => {}
            What::Connect(listener) => self.reach(event.pipe, listener),
            What::Arrive => {
                self.pipe(event.pipe).arrived += 1;
                self.deliver(event.pipe);
            }
            What::Piece(left) => self.piece(event.pipe, left),
            What::Acknowledge(message) => self.acknowledge(event.pipe, message),
            What::Notice => self.notice(event.pipe),
        }
        true
    }

    fn push(&mut self, at: u64, pipe: u64, what: What) {
        let chance = self.random.next();
        self.events.push(Reverse(Event { at, chance, number: self.scheduled, pipe, what }));
        self.scheduled += 1;
    }

    /// Plans an event of a channel, not before those planned for it already.
    fn plan(&mut self, pipe: u64, what: What) {
        let mut wait = self.settings.delay + self.random.up_to(self.settings.jitter);
        if self.random.up_to(999) < u64::from(self.settings.stalls_per_mille) {
            wait += self.random.up_to(self.settings.stall);
        }
        let due = self.now + wait;
        let last = &mut self.pipe(pipe).last;
        *last = due.max(*last);
        let at = *last;
        self.push(at, pipe, what);
    }

    pub(super) fn listen(&mut self, node: u32) -> u64 {
        self.made += 1;
        self.listeners.insert(self.made, Listening { node, backlog: VecDeque::new() });
        self.made
    }

    /// Ends a listener; connections it has not accepted are refused.
    pub(super) fn unlisten(&mut self, listener: u64) {
        if let Some(listening) = self.listeners.remove(&listener) {
            for pipe in listening.backlog {
                self.drop_receiver(pipe);
            }
        }
    }

    pub(super) fn connect(&mut self, node: u32, listener: u64) -> u64 {
        self.made += 1;
        let to = self.listeners.get(&listener).map_or(node, |listening| listening.node);
        self.pipes.insert(self.made, Pipe::new(node, to, self.settings.depth));
        self.plan(self.made, What::Connect(listener));
        self.made
    }

    fn reach(&mut self, pipe: u64, listener: u64) {
        let link = self.pipe(pipe).link;
        let is_cut = self.cut.contains(&link);
        match self.listeners.get_mut(&listener) {
            Some(listening) if !is_cut => {
                listening.backlog.push_back(pipe);
                self.pipe(pipe).stage = Stage::Established;
            }
            _ => {
                let cause = if is_cut { "the link is cut" } else { "nobody listens" };
                self.pipe(pipe).stage = Stage::Refused;
                self.pipe(pipe).fail(cause);
                self.drop_receiver(pipe);
            }
        }
    }

    pub(super) fn accept(&mut self, listener: u64) -> Option<u64> {
        self.listeners.get_mut(&listener)?.backlog.pop_front()
    }

    /// A message has been posted.
    pub(super) fn posted(&mut self, pipe: u64) {
        self.plan(pipe, What::Arrive);
    }

    /// Begins to deliver the next message of a channel if it can be.
    pub(super) fn deliver(&mut self, pipe: u64) {
        let noise = self.random.next() as u8;
        let begun = self.pipe(pipe).begin(noise);
        match begun {
            Ok(false) => {}
            Ok(true) => {
                let left = self.random.up_to(u64::from(self.settings.pieces.max(1) - 1));
                self.check_registered(pipe);
                self.plan(pipe, What::Piece(left as u32));
            }
            Err(fault) => {
                self.pipe(pipe).receiver.fail(fault);
                self.plan(pipe, What::Notice);
            }
        }
    }

    fn piece(&mut self, pipe: u64, left: u32) {
        if left > 0 {
            let share = self.random.up_to(1000);
            self.pipe(pipe).copy(Some(share));
            self.plan(pipe, What::Piece(left - 1));
        } else if let Some(message) = self.pipe(pipe).copy(None) {
            self.plan(pipe, What::Acknowledge(message));
            self.deliver(pipe);
        }
    }

    fn acknowledge(&mut self, pipe: u64, message: u64) {
        let sender = &mut self.pipe(pipe).sender;
        if sender.is_alive() {
            sender.posted.written(message);
        }
    }

    fn notice(&mut self, pipe: u64) {
        self.pipe(pipe).fail("the other end is gone");
    }

    pub(super) fn cut(&mut self, link: Link) {
        self.cut.insert(link);
        for pipe in self.pipes.values_mut().filter(|pipe| pipe.link == link) {
            pipe.fail("the link is cut");
        }
    }

    pub(super) fn drop_sender(&mut self, pipe: u64) {
        let ended = self.pipe(pipe);
        ended.sender.dropped = true;
        ended.sender.posted.fail();
        self.dropped(pipe);
    }

    pub(super) fn drop_receiver(&mut self, pipe: u64) {
        let ended = self.pipe(pipe);
        ended.receiver.dropped = true;
        ended.receiver.posted.fail();
        self.dropped(pipe);
    }

    fn dropped(&mut self, pipe: u64) {
        let ended = self.pipe(pipe);
        ended.delivery = None;
        if ended.sender.dropped && ended.receiver.dropped {
            self.pipes.remove(&pipe);
        } else {
            self.plan(pipe, What::Notice);
        }
    }

    pub(super) fn register(&mut self, region: &Arc<Region>) {
        *self.registered.entry(key(region)).or_default() += 1;
    }

    /// Forgets a region. Channels that are using it fail, so that it is not touched any more.
    pub(super) fn deregister(&mut self, region: &Arc<Region>) {
        if let Some(count) = self.registered.get_mut(&key(region)) {
            *count -= 1;
            if *count == 0 {
                self.registered.remove(&key(region));
            }
        }
        let pipes: Vec<_> = self.pipes.keys().copied().collect();
        pipes.into_iter().for_each(|pipe| self.check_registered(pipe));
    }

    /// Whether a slice may be posted.
    pub(super) fn check_slice(&self, slice: &Slice) -> Result<()> {
        if !self.settings.needs_registration || self.registered.contains_key(&key(slice.region())) {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "memory of a post".into(),
            value: format!("{slice:?}"),
            reason:
                "its region is not registered; keep what `Transport::register` gives until all is complete"
                    .into(),
        })
    }

    fn check_registered(&mut self, pipe: u64) {
        let touched = self.pipes[&pipe].touched();
        if touched.into_iter().flatten().any(|slice| self.check_slice(slice).is_err()) {
            self.pipe(pipe).fail("memory was deregistered while it was outstanding");
        }
    }

    /// Why an end that a call is made on is dead, if it is.
    pub(super) fn error(fault: Option<&Fault>, node: u32) -> Result<()> {
        fault.map_or(Ok(()), |fault| Err(fault.error(&format!("node {node}"))))
    }
}

fn key(region: &Arc<Region>) -> usize {
    Arc::as_ptr(region).addr()
}
