//! The receiving end of a tcp channel.

use std::{
    net::TcpStream,
    os::fd::{AsFd, AsRawFd, RawFd},
};

use super::{
    READ_AHEAD_BYTES, ROUNDS,
    send::is_not_now,
    wire::{self, HEADER_BYTES},
};
use crate::{
    Slice,
    ends::Reader,
    fault::{Fault, Step},
    inbox::Inbox,
    sys::{memory, socket},
};

/// Reads chunks from its sockets straight into posted memory. Sockets are left unread while nothing is posted for what
/// they hold, so that the sender is held back and at most [`READ_AHEAD_BYTES`] a socket are kept here.
#[derive(Debug)]
pub(super) struct Sockets(Vec<Lane>);

#[derive(Debug)]
struct Lane {
    socket: TcpStream,
    landing: Option<Landing>,
    ahead: ReadAhead,
    /// A chunk's header waits in the read-ahead for its receive to be posted.
    stalled: bool,
}

/// Where the rest of a chunk goes.
#[derive(Debug)]
struct Landing {
    message: u64,
    slice: Slice,
    filled: usize,
}

/// Bytes read beyond what was asked for.
#[derive(Debug)]
struct ReadAhead {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl ReadAhead {
    fn new() -> Self {
        Self { bytes: vec![0; READ_AHEAD_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The room behind what is there, which is moved to the front first.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.bytes[self.end..]
    }
}

impl Sockets {
    /// Reads from connected, non-blocking sockets, the first one first.
    pub(super) fn new(sockets: Vec<TcpStream>) -> Self {
        let lane = |socket| Lane { socket, landing: None, ahead: ReadAhead::new(), stalled: false };
        Self(sockets.into_iter().map(lane).collect())
    }

    /// Whether something is expected on a lane: new messages begin on the first.
    fn wants(&self, lane: usize, inbox: &Inbox) -> bool {
        let Lane { landing, stalled, .. } = &self.0[lane];
        let due = inbox.awaits_chunk() || (lane == 0 && inbox.awaits_message());
        landing.is_some() || (due && !stalled)
    }
}

impl Lane {
    /// Reads a lane once; whether there may be more.
    fn pull(&mut self, inbox: &mut Inbox) -> Step<bool> {
        let Self { socket, landing, ahead, .. } = self;
        let room = ahead.room();
        let missing = landing.as_ref().map_or(0, |landing| landing.slice.len() - landing.filled);
        let asked = missing + room.len();
        let target = landing.as_ref().map(|landing| (&landing.slice, landing.filled));
        let got = match socket::recv(socket.as_fd(), target, room) {
            Ok(0) => return Err(Fault::Lost("it closed the connection".into())),
            Ok(got) => got,
            Err(error) if is_not_now(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let direct = got.min(missing);
        ahead.end += got - direct;
        if let Some(landing) = landing {
            landing.filled += direct;
            inbox.filled(landing.message, direct);
        }
        self.digest(inbox)?;
        Ok(got == asked)
    }

    /// Hands on what a lane has read ahead, as far as receives are posted for it.
    fn digest(&mut self, inbox: &mut Inbox) -> Step<()> {
        let Self { landing: slot, ahead, stalled, .. } = self;
        *stalled = false;
        loop {
            if let Some(landing) = slot {
                let count = (landing.slice.len() - landing.filled).min(ahead.filled().len());
                if count > 0 {
                    memory::write(&landing.slice, landing.filled, &ahead.filled()[..count]);
                    ahead.start += count;
                    landing.filled += count;
                    inbox.filled(landing.message, count);
                }
                if landing.filled < landing.slice.len() {
                    return Ok(());
                }
                *slot = None;
            }
            let Some(header) = ahead.filled().first_chunk::<HEADER_BYTES>() else { return Ok(()) };
            let chunk = wire::decode(header).ok_or_else(|| Fault::protocol("no header where one is due"))?;
            let Some(slice) = inbox.claim(&chunk)? else {
                *stalled = true;
                return Ok(());
            };
            ahead.start += HEADER_BYTES;
            if slice.is_empty() {
                inbox.filled(chunk.message, 0);
            } else {
                *slot = Some(Landing { message: chunk.message, slice, filled: 0 });
            }
        }
    }
}

impl Reader for Sockets {
    fn resume(&mut self, inbox: &mut Inbox) -> Step<()> {
        self.0.iter_mut().filter(|lane| lane.stalled).try_for_each(|lane| lane.digest(inbox))
    }

    fn advance(&mut self, inbox: &mut Inbox) -> Step<()> {
        for _ in 0..ROUNDS {
            let mut moved = false;
            for lane in 0..self.0.len() {
                moved |= self.wants(lane, inbox) && self.0[lane].pull(inbox)?;
            }
            if !moved {
                break;
            }
        }
        Ok(())
    }

    fn descriptors(&self, inbox: &Inbox) -> Vec<RawFd> {
        let wanted = (0..self.0.len()).filter(|&lane| self.wants(lane, inbox));
        wanted.map(|lane| self.0[lane].socket.as_raw_fd()).collect()
    }
}
