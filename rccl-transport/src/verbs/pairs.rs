//! A channel end's queue pairs with their memory: made, connected, tried out, polled.

use std::{
    cell::{Cell, RefCell},
    os::fd::RawFd,
    sync::Arc,
    time::Duration,
};

use super::{
    DEPTH, Options,
    control::Rooms,
    device::Opened,
    exchange::Numbers,
    explain::{self, Cause},
    gid::Gid,
    info::mtu_bytes,
    link,
    sys::{
        BATCH, Operation, Path, Queues, Sizes, Work,
        abi::{ibv_ah_attr, ibv_global_route, ibv_wc},
    },
};
use crate::{
    Error, Result,
    fault::{Fault, Step},
    secret::random_bytes,
};

/// Bytes of an offer's room.
pub(super) const ROOM_BYTES: usize = 256;

/// Offers that may be on their way or unread.
pub(super) const OFFERS: usize = DEPTH / 2;

/// Payloads of up to this many bytes are copied into requests where the device can.
const INLINE_BYTES: u32 = 256;

/// How long a port may be down before messages that wait for it are given up.
const DOWN_PATIENCE: Duration = Duration::from_secs(5);

/// Polls that found nothing after which a side looks around: at the connection beside, and at its port.
const POLLS_BETWEEN_LOOKS: u32 = 1024;

/// Which end of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Sender,
    Receiver,
}

/// Room for completions.
pub(super) type Room = Box<[ibv_wc; BATCH]>;

/// Queue pairs and the memory for offers.
#[derive(Debug)]
pub(super) struct Pairs {
    pub(super) queues: Queues,
    pub(super) rooms: Rooms,
    pub(super) device: Arc<Opened>,
    first_packet: u32,
    /// Room for completions, cleared once only.
    room: Option<Room>,
    /// Completions taken by whoever only wanted to know whether there are any.
    stash: RefCell<Vec<ibv_wc>>,
    idle: u32,
    slept: Cell<bool>,
}

impl Pairs {
    /// Makes `count` pairs, bound to the port, with what the other side may send first already posted for.
    ///
    /// # Errors
    /// As [`Queues::new`] and [`Opened::register`].
    pub(super) fn new(device: &Arc<Opened>, count: usize, end: End) -> Result<Self> {
        let (sends, receives) = match end {
            End::Sender => (DEPTH, OFFERS),
            End::Receiver => (OFFERS, DEPTH + 1),
        };
        let sizes = Sizes {
            pairs: count,
            sends: sends as u32,
            receives: receives as u32,
            inline_bytes: INLINE_BYTES,
        };
        let queues = Queues::new(&device.context, sizes)?;
        queues.bind(device.port)?;
        let rooms = Rooms::new(device, OFFERS, ROOM_BYTES)?;
        let key = rooms.keys().local;
        match end {
            End::Sender => {
                for room in 0..OFFERS {
                    queues.post_receives(0, &[(room as u64, rooms.room(room), key)])?;
                }
            }
            End::Receiver => {
                let room = rooms.first(mtu_bytes(5) as usize)?;
                (0..count).try_for_each(|pair| queues.post_receives(pair, &[(0, &room, key)]))?;
            }
        }
        // 24 bits, of which none is special.
        let first_packet = u32::from_le_bytes(random_bytes()?) & 0x00ff_ffff;
        let (room, stash, idle, slept) = Default::default();
        Ok(Self { queues, rooms, device: Arc::clone(device), first_packet, room, stash, idle, slept })
    }

    /// What the other side needs to know of them.
    pub(super) fn numbers(&self) -> Numbers {
        Numbers { pairs: self.queues.numbers(), first_packet: self.first_packet }
    }

    /// Connects them to the other side's; `false` if its address was not found yet, which is to be tried again.
    ///
    /// # Errors
    /// What the operating system says to anything else.
    pub(super) fn connect(&self, theirs: &Numbers, way: &Way, options: &Options) -> Result<bool> {
        let address = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: way.theirs.bytes,
                flow_label: 0,
                sgid_index: way.ours.index,
                hop_limit: 255,
                traffic_class: options.traffic_class,
            },
            dlid: way.lid,
            sl: options.service_level,
            is_global: u8::from(!way.infiniband || options.gid_index.is_some()),
            port_num: self.device.port,
            ..ibv_ah_attr::default()
        };
        for (pair, &queue_pair) in theirs.pairs.iter().enumerate() {
            let path = Path {
                queue_pair,
                first_packet: self.first_packet,
                their_first_packet: theirs.first_packet,
                mtu: way.mtu.into(),
                address,
                timeout: options.timeout,
                retries: options.retries,
            };
            match self.queues.ready_to_receive(pair, &path) {
                Ok(()) => {}
                Err(Error::Io { source, .. }) if is_unresolved(&source) => return Ok(false),
                Err(error) => return Err(error),
            }
            self.queues.ready_to_send(pair, &path)?;
        }
        Ok(true)
    }

    /// Sends as large a packet as the path may carry over each pair. Its completion says that it was answered.
    ///
    /// # Errors
    /// What the operating system says.
    pub(super) fn try_out(&self, way: &Way) -> Result<()> {
        let packet = self.rooms.first(mtu_bytes(way.mtu.into()) as usize)?;
        let local_key = self.rooms.keys().local;
        let work = Work { id: 0, operation: Operation::Send, slice: &packet, local_key, signalled: true };
        (0..self.queues.len()).try_for_each(|pair| self.queues.post(pair, [work].into_iter()))
    }

    /// Takes up to [`BATCH`] completions, and whether there were any. They are the caller's until given back with
    /// [`Pairs::give_back`], for the next time.
    ///
    /// # Errors
    /// If the completion queue has failed.
    pub(super) fn take(&mut self) -> Step<(Room, usize)> {
        let mut room = self.room.take().unwrap_or_default();
        let count = self.completions(&mut room)?;
        Ok((room, count))
    }

    /// Gives back the room for completions.
    pub(super) fn give_back(&mut self, room: Room) {
        self.room = Some(room);
    }

    fn completions(&self, room: &mut [ibv_wc; BATCH]) -> Step<usize> {
        let mut stash = self.stash.borrow_mut();
        if !stash.is_empty() {
            let count = stash.len();
            room[..count].copy_from_slice(&stash);
            stash.clear();
            return Ok(count);
        }
        self.queues.poll(room).map_err(|error| Fault::Lost(error.to_string()))
    }

    /// What to wait for reading on, after completions ran out.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        self.slept.set(true);
        let mut stash = self.stash.borrow_mut();
        if stash.is_empty() {
            self.queues.disarm();
            let armed = self.queues.arm();
            // What completed before that will not wake anybody.
            let mut room = [ibv_wc::default(); BATCH];
            match (armed, self.queues.poll(&mut room)) {
                (Ok(()), Ok(0)) => return vec![self.queues.wakes()],
                (_, Ok(count)) => stash.extend_from_slice(&room[..count]),
                // The next poll will say so.
                (_, Err(_)) => {}
            }
        }
        // Made with the transport, so that it is there.
        link::always_ready().into_iter().collect()
    }

    /// Counts a poll that found nothing; whether it is time to look around.
    pub(super) const fn is_time_to_look(&mut self) -> bool {
        self.idle += 1;
        let due = self.idle >= POLLS_BETWEEN_LOOKS || self.slept.replace(false);
        if due {
            self.idle = 0;
        }
        due
    }

    /// Messages that wait are given up once the port has been down for long.
    pub(super) fn check_port(&self) -> Step<()> {
        if self.device.down_since().is_none_or(|since| since.elapsed() < DOWN_PATIENCE) {
            return Ok(());
        }
        self.device.trouble().map_or(Ok(()), |trouble| Err(Fault::Lost(trouble)))
    }

    /// Something moved.
    pub(super) const fn moved(&mut self) {
        self.idle = 0;
    }

    /// What a failed completion says; the error is the failure, unless it may only be a consequence of another.
    pub(super) fn explain(&self, done: &ibv_wc) -> Step<Cause> {
        let cause = explain::completion(done, &self.device);
        match (cause.fault(&self.device), explain::is_consequence(done)) {
            ((_, false), true) => Ok(cause),
            ((fault, _), _) => Err(fault),
        }
    }
}

/// A pair of addresses, and how packets go between them.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) ours: Gid,
    pub(super) theirs: Gid,
    /// MTU as the library counts it.
    pub(super) mtu: u8,
    pub(super) infiniband: bool,
    pub(super) lid: u16,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mtu = mtu_bytes(self.mtu.into());
        write!(f, "from our {} to its {} in packets of {mtu} bytes", self.ours, self.theirs)
    }
}

/// Whether the kernel has not found the other side's hardware address, which it may a moment later.
fn is_unresolved(error: &std::io::Error) -> bool {
    let passing =
        [libc::ETIMEDOUT, libc::EAGAIN, libc::EINTR, libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ENODATA];
    error.raw_os_error().is_some_and(|code| passing.contains(&code))
}
