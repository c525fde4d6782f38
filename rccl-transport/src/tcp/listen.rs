//! Accepting tcp channels: strangers are dropped and counted, and the sockets of each channel gathered.

use std::net::{SocketAddr, TcpListener, TcpStream};

use super::{Berth, DEPTH, address, listener_secret, prepare, recv::Sockets};
use crate::{
    Purpose, Result, Secret,
    channel::{Address, Listener, RecvChannel},
    connect::listen_on,
    deadline::Deadline,
    ends::Receiving,
    reception::{self, Guest, Reception},
    secret::random_bytes,
};

/// Channels whose sockets may be gathering at once; the oldest makes room.
const MAX_GATHERINGS: usize = 1024;

/// A listener on one port for each address.
#[derive(Debug)]
pub(super) struct Listening {
    address: Address,
    reception: Reception<TcpListener>,
    gatherings: Vec<Gathering>,
}

/// A channel some of whose sockets are there.
#[derive(Debug)]
struct Gathering {
    channel: [u8; 16],
    peer: String,
    sockets: Vec<Option<TcpStream>>,
    deadline: Deadline,
}

impl Listening {
    /// Listens on each address; port 0 takes a free one.
    pub(super) fn new(addresses: &[SocketAddr], secret: &Secret) -> Result<Self> {
        let id = random_bytes()?;
        let doors = addresses.iter().map(|&address| listen_on(address)).collect::<Result<Vec<_>>>()?;
        let candidates = doors.iter().map(TcpListener::local_addr).collect::<std::io::Result<Vec<_>>>();
        let candidates = candidates.map_err(|error| crate::Error::io("getsockname", error))?;
        let address = address::encode(address::TCP, id, &candidates).expect("Options::check encoded as many");
        let secret = listener_secret(secret, id);
        let reception = Reception::new(doors, &secret, Purpose::TcpChannel, &[], reception::PATIENCE);
        Ok(Self { address, reception, gatherings: Vec::new() })
    }

    /// Puts an authenticated socket to its channel; whether it has a place there.
    fn gather(&mut self, guest: Guest<TcpStream>) -> bool {
        let Some(berth) = Berth::decode(&guest.payload) else { return false };
        if prepare(&guest.stream).is_err() {
            return false;
        }
        let at = self.gatherings.iter().position(|gathering| gathering.channel == berth.channel);
        let at = at.unwrap_or_else(|| {
            self.gatherings.push(Gathering {
                channel: berth.channel,
                peer: guest.from,
                sockets: (0..berth.count).map(|_| None).collect(),
                deadline: Deadline::after(reception::PATIENCE),
            });
            self.gatherings.len() - 1
        });
        let place = self.gatherings[at].sockets.get_mut(usize::from(berth.index));
        let Some(place @ None) = place else { return false };
        *place = Some(guest.stream);
        true
    }

    /// The first channel that is whole.
    fn take_whole(&mut self) -> Option<Gathering> {
        let is_whole = |gathering: &Gathering| gathering.sockets.iter().all(Option::is_some);
        if let Some(at) = self.gatherings.iter().position(is_whole) {
            return Some(self.gatherings.remove(at));
        }
        self.gatherings.retain(|gathering| !gathering.deadline.is_over());
        let excess = self.gatherings.len().saturating_sub(MAX_GATHERINGS);
        self.gatherings.drain(..excess);
        None
    }
}

impl Listener for Listening {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvChannel>>> {
        for guest in self.reception.advance()? {
            if !self.gather(guest) {
                self.reception.count_stranger();
            }
        }
        let Some(Gathering { peer, sockets, .. }) = self.take_whole() else { return Ok(None) };
        let sockets = Sockets::new(sockets.into_iter().flatten().collect());
        Ok(Some(Box::new(Receiving::new(peer, DEPTH, sockets))))
    }

    fn strangers(&self) -> u64 {
        self.reception.strangers()
    }
}
