//! Accepting shm channels: the hello, then the memory.

use std::{
    io::Write,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::Arc,
};

use rustix::{io::Errno, net::sockopt};

use super::{
    DEPTH, encode,
    ring::{RING_BYTES, Ring, RingReader, can_borrow, read_nonce},
    socket_name,
};
use crate::{
    Error, HostId, Purpose, Region, Result, Secret,
    channel::{Address, Listener, RecvChannel},
    deadline::Deadline,
    ends::Receiving,
    reception::{self, Guest, Reception},
    secret::random_bytes,
    sys::{passing::receive, shared},
};

/// Connections that may owe their memory at once; the oldest makes room.
const MAX_GUESTS: usize = 1024;

/// A listener on an abstract unix socket.
#[derive(Debug)]
pub(super) struct Listening {
    address: Address,
    reception: Reception<UnixListener>,
    /// Those who have authenticated and owe their memory.
    guests: Vec<(UnixStream, Deadline)>,
}

impl Listening {
    pub(super) fn new(host: HostId, secret: &Secret) -> Result<Self> {
        let name = random_bytes()?;
        let failed = |error| Error::io("listening on an abstract unix socket", error);
        let address = SocketAddr::from_abstract_name(socket_name(name)).map_err(failed)?;
        let door = UnixListener::bind_addr(&address).map_err(failed)?;
        door.set_nonblocking(true).map_err(failed)?;
        let reception = Reception::new(vec![door], secret, Purpose::FilePassing, &[], reception::PATIENCE);
        Ok(Self { address: encode(host, name), reception, guests: Vec::new() })
    }

    /// The first guest whose memory is here, and the memory.
    fn take_ready(&mut self) -> Option<RingReader> {
        let mut index = 0;
        while index < self.guests.len() {
            match receive_memory(&mut self.guests[index].0) {
                Ok(None) if !self.guests[index].1.is_over() => index += 1,
                Ok(Some((memory, lender))) => {
                    let (socket, _) = self.guests.remove(index);
                    return Some(RingReader::new(Ring::new(memory, socket, lender)));
                }
                outcome => {
                    tracing::debug!(?outcome, "dropped a process that passed no memory");
                    self.guests.remove(index);
                    self.reception.count_stranger();
                }
            }
        }
        let excess = self.guests.len().saturating_sub(MAX_GUESTS);
        self.guests.drain(..excess);
        None
    }
}

impl Listener for Listening {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvChannel>>> {
        for Guest { stream, .. } in self.reception.advance()? {
            self.guests.push((stream, Deadline::after(reception::PATIENCE)));
        }
        let Some(reader) = self.take_ready() else { return Ok(None) };
        Ok(Some(Box::new(Receiving::new("a process of this host".into(), DEPTH, reader))))
    }

    fn strangers(&self) -> u64 {
        self.reception.strangers()
    }
}

/// The memory of a ring, and the writer's process if its memory can be read.
type Found = (Arc<Region>, Option<i32>);

/// Maps the memory that comes over the socket, and answers with the nonce in it.
fn receive_memory(socket: &mut UnixStream) -> Result<Option<Found>> {
    let lost = |cause: &dyn ToString| Error::PeerLost {
        peer: "a process of this host".into(),
        cause: cause.to_string(),
    };
    let file = match receive(socket) {
        Ok(Some(file)) => file,
        Ok(None) => return Err(lost(&"it passed no memory")),
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(lost(&errno)),
    };
    let memory = shared::open(&file, RING_BYTES)?;
    let [one, two] = read_nonce(&memory).map(u64::to_le_bytes);
    // Nothing has been written on this side of the socket since the hello, so these few bytes fit.
    let writer = sockopt::socket_peercred(&*socket).map(|it| it.pid.as_raw_nonzero().get());
    let lender = writer.ok().filter(|&process| can_borrow(&memory, process));
    let answer = [&one[..], &two, &[u8::from(lender.is_some())]].concat();
    socket.write_all(&answer).map_err(|error| lost(&error))?;
    Ok(Some((memory, lender)))
}
