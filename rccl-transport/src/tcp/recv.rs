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
    /// The other side has closed the connection. What came before over other lanes is still to be read.
    ended: bool,
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
        let lane =
            |socket| Lane { socket, landing: None, ahead: ReadAhead::new(), stalled: false, ended: false };
        Self(sockets.into_iter().map(lane).collect())
    }

    /// Whether something is expected on a lane: new messages begin on the first.
    fn wants(&self, lane: usize, inbox: &Inbox) -> bool {
        let Lane { landing, stalled, ended, .. } = &self.0[lane];
        let due = inbox.awaits_chunk() || (lane == 0 && inbox.awaits_message());
        !ended && (landing.is_some() || (due && !stalled))
    }

    /// Whether something is awaited that can come over no lane any more.
    fn is_lost(&self, inbox: &Inbox) -> bool {
        let ended = self.0.iter().any(|lane| lane.ended);
        let torn = || self.0.iter().any(|lane| lane.landing.is_some());
        let awaited = || inbox.awaits_message() || inbox.awaits_chunk() || torn();
        ended && awaited() && !(0..self.0.len()).any(|lane| self.wants(lane, inbox))
    }
}

impl Lane {
    /// Reads a lane once; whether there may be more.
    fn pull(&mut self, inbox: &mut Inbox) -> Step<bool> {
        let Self { socket, landing, ahead, .. } = &mut *self;
        let room = ahead.room();
        let missing = landing.as_ref().map_or(0, |landing| landing.slice.len() - landing.filled);
        let asked = missing + room.len();
        let target = landing.as_ref().map(|landing| (&landing.slice, landing.filled));
        let got = match socket::recv(socket.as_fd(), target, room) {
            Ok(0) => {
                self.ended = true;
                return Ok(false);
            }
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
        if self.is_lost(inbox) { Err(Fault::Lost("it closed the connection".into())) } else { Ok(()) }
    }

    fn descriptors(&self, inbox: &Inbox) -> Vec<RawFd> {
        let wanted = (0..self.0.len()).filter(|&lane| self.wants(lane, inbox));
        wanted.map(|lane| self.0[lane].socket.as_raw_fd()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::TcpListener,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{Region, channel::Part, outbox::Outbox};

    /// Both ends of a connection; the second does not block.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        far.set_nonblocking(true).unwrap();
        (near, far)
    }

    /// Two lanes whose other ends are at hand, and an inbox with receives of `lengths` bytes.
    fn lanes(lengths: &[usize]) -> (TcpStream, TcpStream, Sockets, Inbox) {
        let ((one, far_one), (two, far_two)) = (pair(), pair());
        let mut inbox = Inbox::new(8);
        for &len in lengths {
            inbox.post(&[Part { slice: Region::zeroed(len).slice(0..len), tag: 0 }]).unwrap().unwrap();
        }
        (one, two, Sockets::new(vec![far_one, far_two]), inbox)
    }

    /// The chunks of messages of `lengths` bytes, as they go over the wire.
    fn chunks(lengths: &[usize], most: usize) -> Vec<Vec<u8>> {
        let mut outbox = Outbox::new(8);
        for &len in lengths {
            outbox.post(&Region::zeroed(len).slice(0..len), 0).unwrap();
        }
        let chunk = |chunk| [&wire::encode(&chunk)[..], &vec![0; chunk.slice.len()]].concat();
        std::iter::from_fn(|| outbox.next_chunk(most).map(chunk)).collect()
    }

    /// Advances until `done`, or gives the fault. What was complete before the fault counts first.
    fn until(sockets: &mut Sockets, inbox: &mut Inbox, done: fn(&Sockets, &mut Inbox) -> bool) -> Step<()> {
        let started = Instant::now();
        while !done(sockets, inbox) {
            assert!(started.elapsed() < Duration::from_secs(60));
            if let Err(fault) = sockets.advance(inbox) {
                return if done(sockets, inbox) { Ok(()) } else { Err(fault) };
            }
        }
        Ok(())
    }

    fn first_has_ended(sockets: &Sockets, _: &mut Inbox) -> bool {
        sockets.0[0].ended
    }

    fn is_complete(_: &Sockets, inbox: &mut Inbox) -> bool {
        inbox.complete().is_some()
    }

    #[test]
    fn the_end_of_one_lane_waits_for_what_others_still_bring() {
        let (mut one, mut two, mut sockets, mut inbox) = lanes(&[300, 4]);
        let chunks = chunks(&[300], 200);
        one.write_all(&chunks[0]).unwrap();
        drop(one);
        until(&mut sockets, &mut inbox, first_has_ended).unwrap();
        two.write_all(&chunks[1]).unwrap();
        drop(two);
        until(&mut sockets, &mut inbox, is_complete).unwrap();
        let fault = until(&mut sockets, &mut inbox, is_complete).unwrap_err();
        assert_eq!(fault, Fault::Lost("it closed the connection".into()));
    }

    #[test]
    fn an_end_within_a_chunk_is_a_loss() {
        for bytes in [0, 1, 39, 40, 239] {
            let (mut one, two, mut sockets, mut inbox) = lanes(&[200]);
            one.write_all(&chunks(&[200], 200)[0][..bytes]).unwrap();
            drop((one, two));
            let fault = until(&mut sockets, &mut inbox, is_complete).unwrap_err();
            assert_eq!(fault, Fault::Lost("it closed the connection".into()), "after {bytes} bytes");
        }
    }

    #[test]
    fn garbage_is_a_loss_and_writes_nothing() {
        let (mut one, _two, mut sockets, mut inbox) = lanes(&[200]);
        one.write_all(&[0x5a; 500]).unwrap();
        let fault = until(&mut sockets, &mut inbox, is_complete).unwrap_err();
        assert_eq!(fault, Fault::protocol("no header where one is due"));
    }

    #[test]
    fn read_ahead_waits_for_its_receive() {
        let (mut one, _two, mut sockets, mut inbox) = lanes(&[4]);
        one.write_all(&chunks(&[4, 0, 6], 10).concat()).unwrap();
        until(&mut sockets, &mut inbox, is_complete).unwrap();
        assert!(sockets.descriptors(&inbox).is_empty());
        for len in [0, 6] {
            let slice = Region::zeroed(len).slice(0..len);
            inbox.post(&[Part { slice, tag: 0 }]).unwrap().unwrap();
            sockets.resume(&mut inbox).unwrap();
        }
        until(&mut sockets, &mut inbox, is_complete).unwrap();
        until(&mut sockets, &mut inbox, is_complete).unwrap();
    }
}
