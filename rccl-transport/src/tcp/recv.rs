//! The receiving end of a tcp channel.

use std::{
    net::TcpStream,
    os::fd::{AsFd, AsRawFd, RawFd},
};

use super::{
    DEPTH, READ_AHEAD_BYTES, ROUNDS,
    send::is_not_now,
    wire::{self, HEADER_BYTES},
};
use crate::{
    Result, Slice,
    channel::{Completion, Part, RecvChannel, Ticket},
    fault::{Fault, Step},
    inbox::Inbox,
    sys::{memory, socket},
};

/// Receives chunks from its sockets straight into posted memory. Sockets are left unread while nothing is posted for what
/// they hold, so that the sender is held back and at most [`READ_AHEAD_BYTES`] a socket are kept here.
#[derive(Debug)]
pub(super) struct Receiver {
    peer: String,
    lanes: Vec<Lane>,
    inbox: Inbox,
    fault: Option<Fault>,
}

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

impl Receiver {
    /// A receiver over connected, non-blocking sockets, the first one first.
    pub(super) fn new(peer: String, sockets: Vec<TcpStream>) -> Self {
        let lane = |socket| Lane { socket, landing: None, ahead: ReadAhead::new(), stalled: false };
        Self { peer, lanes: sockets.into_iter().map(lane).collect(), inbox: Inbox::new(DEPTH), fault: None }
    }

    /// Takes in what is there for posted receives.
    fn advance(&mut self) -> Step<()> {
        for _ in 0..ROUNDS {
            let mut moved = false;
            for lane in 0..self.lanes.len() {
                moved |= self.wants(lane) && self.pull(lane)?;
            }
            if !moved {
                break;
            }
        }
        Ok(())
    }

    /// Whether something is expected on a lane: new messages begin on the first.
    fn wants(&self, lane: usize) -> bool {
        let Lane { landing, stalled, .. } = &self.lanes[lane];
        let due = self.inbox.awaits_chunk() || (lane == 0 && self.inbox.awaits_message());
        landing.is_some() || (due && !stalled)
    }

    /// Reads a lane once; whether there may be more.
    fn pull(&mut self, lane: usize) -> Step<bool> {
        let Lane { socket, landing, ahead, .. } = &mut self.lanes[lane];
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
            self.inbox.filled(landing.message, direct);
        }
        self.digest(lane)?;
        Ok(got == asked)
    }

    /// Hands on what a lane has read ahead, as far as receives are posted for it.
    fn digest(&mut self, lane: usize) -> Step<()> {
        let Lane { landing: slot, ahead, stalled, .. } = &mut self.lanes[lane];
        *stalled = false;
        loop {
            if let Some(landing) = slot {
                let count = (landing.slice.len() - landing.filled).min(ahead.filled().len());
                if count > 0 {
                    memory::write(&landing.slice, landing.filled, &ahead.filled()[..count]);
                    ahead.start += count;
                    landing.filled += count;
                    self.inbox.filled(landing.message, count);
                }
                if landing.filled < landing.slice.len() {
                    return Ok(());
                }
                *slot = None;
            }
            let Some(header) = ahead.filled().first_chunk::<HEADER_BYTES>() else { return Ok(()) };
            let chunk = wire::decode(header).ok_or_else(|| Fault::protocol("no header where one is due"))?;
            let Some(slice) = self.inbox.claim(&chunk)? else {
                *stalled = true;
                return Ok(());
            };
            ahead.start += HEADER_BYTES;
            if slice.is_empty() {
                self.inbox.filled(chunk.message, 0);
            } else {
                *slot = Some(Landing { message: chunk.message, slice, filled: 0 });
            }
        }
    }

    /// Gives what was read ahead to receives that have been posted since.
    fn resume(&mut self) -> Step<()> {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].stalled {
                self.digest(lane)?;
            }
        }
        Ok(())
    }

    /// Keeps the first fault, and lets go of sockets and memory.
    fn fail(&mut self, fault: Fault) {
        self.lanes.clear();
        self.inbox.fail();
        self.fault = Some(fault);
    }

    fn check(&self) -> Result<()> {
        self.fault.as_ref().map_or(Ok(()), |fault| Err(fault.error(&self.peer)))
    }
}

impl RecvChannel for Receiver {
    fn post(&mut self, parts: &[Part]) -> Result<Option<Ticket>> {
        self.check()?;
        let ticket = self.inbox.post(parts)?;
        if ticket.is_some()
            && let Err(fault) = self.resume()
        {
            self.fail(fault);
            // The ticket is void; what was complete before is still given by `poll`.
            self.check()?;
        }
        Ok(ticket)
    }

    fn flush(&mut self, _: &[Slice]) -> Result<Option<Ticket>> {
        self.check()?;
        Ok(self.inbox.flush())
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        if let Some(done) = self.inbox.complete() {
            return Ok(Some(done));
        }
        self.check()?;
        let moved = self.advance();
        if let Err(fault) = moved {
            self.fail(fault);
        }
        match self.inbox.complete() {
            Some(done) => Ok(Some(done)),
            None => self.check().map(|()| None),
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let wanted = (0..self.lanes.len()).filter(|&lane| self.wants(lane));
        wanted.map(|lane| self.lanes[lane].socket.as_raw_fd()).collect()
    }
}
