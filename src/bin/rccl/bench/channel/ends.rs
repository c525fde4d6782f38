//! Both channels of one side: to the other process, and back.

use std::{
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rccl_transport::{
    Region, Secret, Slice,
    channel::{Address, Part, RecvChannel, Registration, SendChannel, Transport},
    deadline::{Deadline, wait},
    shm, tcp, verbs,
};
use rustix::event::{PollFd, PollFlags};

use super::{Kind, Options};
use crate::error::{Error, Result};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Messages outstanding one way: as many as perftest has.
const WINDOW: u64 = 128;

/// Bytes of memory that messages are taken from in turn, unless one is longer: perftest has one buffer, which stays in caches.
const MEMORY_BYTES: u64 = 256 << 10;

/// Polls that found nothing, after which a receiver of a stream sleeps.
const POLLS_BEFORE_SLEEP: u32 = 64;

/// Polls between looks at the clock.
const POLLS: u32 = 4096;

/// One side's ends of two channels.
pub(super) struct Ends {
    sender: Box<dyn SendChannel>,
    receiver: Box<dyn RecvChannel>,
    transport: Box<dyn Transport>,
    devices: Option<[verbs::Options; 2]>,
    memory: Option<(Arc<Region>, Registration)>,
}

/// Which side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Starts what is measured, on the first device.
    Near,
    /// Answers, on the last device.
    Far,
}

/// A side that has not met the other yet.
pub(super) struct Unmet {
    transport: Box<dyn Transport>,
    listener: Box<dyn rccl_transport::channel::Listener>,
    devices: Option<[verbs::Options; 2]>,
}

impl Unmet {
    pub(super) fn new(options: &Options, side: Side, secret: &Secret) -> Result<Self> {
        let mut devices = None;
        let transport: Box<dyn Transport> = match options.transport {
            Kind::Tcp => {
                Box::new(tcp::Transport::new(tcp::Options::loopback(), secret.clone()).map_err(failed)?)
            }
            Kind::Shm => Box::new(shm::Transport::new(secret.clone()).map_err(failed)?),
            Kind::Verbs => {
                let chosen = choose(usize::from(options.queue_pairs))?;
                let own = chosen[usize::from(side == Side::Far)].clone();
                devices = Some(chosen);
                Box::new(verbs::Transport::new(own, secret.clone()).map_err(failed)?)
            }
        };
        let listener = transport.listen().map_err(failed)?;
        Ok(Self { transport, listener, devices })
    }

    pub(super) fn address(&self) -> Address {
        self.listener.address()
    }

    /// Connects to the other side, which does the same.
    pub(super) fn meet(mut self, address: &Address) -> Result<Ends> {
        let mut connecting = self.transport.connect(address).map_err(failed)?;
        let (mut sender, mut receiver) = (None, None);
        let give_up = Instant::now() + PATIENCE;
        while sender.is_none() || receiver.is_none() {
            if sender.is_none() {
                sender = connecting.poll().map_err(failed)?;
            }
            if receiver.is_none() {
                receiver = self.listener.poll_accept().map_err(failed)?;
            }
            in_time(give_up)?;
            std::thread::yield_now();
        }
        let (Some(sender), Some(receiver)) = (sender, receiver) else {
            unreachable!("the loop ends with both")
        };
        Ok(Ends { sender, receiver, transport: self.transport, devices: self.devices, memory: None })
    }
}

/// The first and the last usable device.
fn choose(queue_pairs: usize) -> Result<[verbs::Options; 2]> {
    let mut base = verbs::Options::loopback().with_queue_pairs(queue_pairs);
    if let Some(options) = base.clone().with_env().map_err(failed)? {
        base = options.with_queue_pairs(queue_pairs);
    }
    let found = verbs::devices().map_err(failed)?;
    let mut reversed = found.clone();
    reversed.reverse();
    let pick = |devices: &[verbs::Device]| {
        base.choose(devices).map(|(device, port)| base.clone().on_port(&device.name, port.number))
    };
    Ok([pick(&found).map_err(failed)?, pick(&reversed).map_err(failed)?])
}

impl Ends {
    /// What carries the bytes, for people.
    pub(super) fn describe(&self) -> String {
        self.transport.caps().device.clone()
    }

    /// The devices of both sides, where there are any.
    pub(super) const fn devices(&self) -> Option<&[verbs::Options; 2]> {
        self.devices.as_ref()
    }

    /// Makes memory for messages of this size.
    fn prepare(&mut self, bytes: u64) -> Result<()> {
        let wanted = bytes.max(MEMORY_BYTES) as usize;
        if self.memory.as_ref().is_none_or(|(region, _)| region.len() < wanted) {
            let region = Region::zeroed(wanted);
            let registration = self.transport.register(&region).map_err(failed)?;
            self.memory = Some((region, registration));
        }
        Ok(())
    }

    fn slot(&self, number: u64, bytes: u64) -> Slice {
        let (region, _) = self.memory.as_ref().expect("prepare was called");
        let slots = (MEMORY_BYTES / bytes).max(1);
        let at = ((number % slots) * bytes) as usize;
        region.slice(at..at + bytes as usize)
    }

    /// Sends `messages`, a window at a time, until all are taken over by the other side.
    pub(super) fn stream(&mut self, bytes: u64, messages: u64) -> Result<()> {
        self.prepare(bytes)?;
        let window = WINDOW;
        let (mut posted, mut done, mut polls) = (0, 0, 0_u32);
        let mut give_up = Instant::now() + PATIENCE;
        while done < messages {
            while posted < messages
                && posted - done < window
                && self.sender.post(&self.slot(posted, bytes), 0).map_err(failed)?.is_some()
            {
                posted += 1;
            }
            while self.sender.poll().map_err(failed)?.is_some() {
                done += 1;
                give_up = Instant::now() + PATIENCE;
            }
            polls += 1;
            if polls.is_multiple_of(POLLS) {
                in_time(give_up)?;
            }
        }
        Ok(())
    }

    /// Posts a window of receives, calls `ready`, and receives `messages`.
    pub(super) fn sink(
        &mut self,
        bytes: u64,
        messages: u64,
        ready: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.prepare(bytes)?;
        let window = WINDOW;
        let (mut posted, mut done, mut polls) = (0, 0, 0_u32);
        let mut give_up = Instant::now() + PATIENCE;
        let mut ready = Some(ready);
        while done < messages {
            while posted < messages && posted - done < window && self.expect(posted, bytes)? {
                posted += 1;
            }
            if let Some(ready) = ready.take() {
                ready()?;
            }
            while self.receiver.poll().map_err(failed)?.is_some() {
                (done, polls) = (done + 1, 0);
                give_up = Instant::now() + PATIENCE;
            }
            polls += 1;
            if polls > POLLS_BEFORE_SLEEP {
                self.sleep()?;
                in_time(give_up)?;
            }
        }
        Ok(())
    }

    /// Sleeps until there is something to receive: a receiver that spins takes the processor from whoever moves the bytes.
    fn sleep(&self) -> Result<()> {
        let descriptors = self.receiver.descriptors();
        // SAFETY: the channel owns the descriptors, and is borrowed for as long as they are.
        let borrow = |&fd: &i32| unsafe { BorrowedFd::borrow_raw(fd) };
        let mut waits: Vec<_> =
            descriptors.iter().map(|fd| PollFd::from_borrowed_fd(borrow(fd), PollFlags::IN)).collect();
        if waits.is_empty() {
            std::thread::yield_now();
            return Ok(());
        }
        wait(&mut waits, &Deadline::after(Duration::from_millis(20))).map(drop).map_err(failed)
    }

    fn expect(&mut self, number: u64, bytes: u64) -> Result<bool> {
        let part = Part { slice: self.slot(number, bytes), tag: 0 };
        Ok(self.receiver.post(&[part]).map_err(failed)?.is_some())
    }

    /// Sends a message to and fro `messages` times; the side that `starts` sends first. Receives are posted ahead.
    pub(super) fn ping(
        &mut self,
        bytes: u64,
        messages: u64,
        starts: bool,
        ready: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.prepare(bytes)?;
        let window = WINDOW / 2;
        let mut expected = 0;
        while expected < messages.min(window) && self.expect(expected, bytes)? {
            expected += 1;
        }
        ready()?;
        let mut sending = 0_u32;
        for _ in 0..messages {
            if starts {
                self.send_one(bytes)?;
                sending += 1;
            }
            let mut polls = 0_u32;
            let give_up = Instant::now() + PATIENCE;
            while self.receiver.poll().map_err(failed)?.is_none() {
                // What is to be sent may wait for an offer.
                if sending > 0 && self.sender.poll().map_err(failed)?.is_some() {
                    sending -= 1;
                }
                polls += 1;
                if polls.is_multiple_of(POLLS) {
                    in_time(give_up)?;
                }
            }
            if !starts {
                self.send_one(bytes)?;
                sending += 1;
            }
            if expected < messages && self.expect(expected, bytes)? {
                expected += 1;
            }
        }
        // What is still on its way is to be done before the next test.
        let give_up = Instant::now() + PATIENCE;
        while sending > 0 {
            sending -= u32::from(self.sender.poll().map_err(failed)?.is_some());
            in_time(give_up)?;
        }
        Ok(())
    }

    fn send_one(&mut self, bytes: u64) -> Result<()> {
        let slice = self.slot(0, bytes);
        let give_up = Instant::now() + PATIENCE;
        while self.sender.post(&slice, 0).map_err(failed)?.is_none() {
            self.sender.poll().map_err(failed)?;
            in_time(give_up)?;
        }
        Ok(())
    }
}

fn in_time(give_up: Instant) -> Result<()> {
    if Instant::now() < give_up {
        return Ok(());
    }
    Err(Error::Processes(format!("the other end of the channel did nothing for {PATIENCE:?}")))
}

/// An error of the transport as one of the command.
pub(super) fn failed(error: rccl_transport::Error) -> Error {
    Error::Library(error.into())
}
