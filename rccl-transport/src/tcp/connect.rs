//! Connecting a tcp channel: the first address that answers, then all sockets to it.

use std::net::{SocketAddr, TcpStream};

use super::{Berth, DEPTH, ListenerId, Options, listener_secret, prepare, send::Sockets};
use crate::{
    Error, Hello, Purpose, Result, Secret,
    channel::{Connecting, SendChannel},
    connect::{Connected, Race},
    deadline::Deadline,
    ends::Sending,
    secret::random_bytes,
};

/// A channel being connected. It has no sockets any more once it is over.
#[derive(Debug)]
pub(super) struct Dialing {
    secret: Secret,
    first: Berth,
    /// The listener's addresses that further sockets are spread over; none if all go where the first one went.
    rails: Vec<SocketAddr>,
    sockets: Vec<Dial>,
    deadline: Deadline,
}

/// One socket being connected.
#[derive(Debug)]
enum Dial {
    Racing(Race),
    Done { stream: TcpStream, peer: SocketAddr },
}

impl Dialing {
    /// Starts to connect as many sockets as `options` says to the listener.
    pub(super) fn new(
        listener: ListenerId,
        candidates: &[SocketAddr],
        options: &Options,
        secret: &Secret,
    ) -> Result<Self> {
        let count = u8::try_from(options.sockets).expect("Options::check bounds it by MAX_SOCKETS");
        let secret = listener_secret(secret, listener);
        let first = Berth { channel: random_bytes()?, index: 0, count };
        let sockets = vec![Dial::start(candidates, &secret, first)?];
        let rails = if options.rails > 1 {
            candidates.iter().copied().take(options.rails).collect()
        } else {
            Vec::new()
        };
        Ok(Self { secret, first, rails, sockets, deadline: Deadline::after(options.patience) })
    }

    /// Moves all sockets on; whether they all stand.
    fn advance(&mut self) -> Result<bool> {
        for socket in &mut self.sockets {
            socket.advance()?;
        }
        if let [Dial::Done { peer, .. }] = self.sockets[..] {
            // The first socket has found an address; the others follow it there, or go to another rail if that works.
            for index in 1..self.first.count {
                let mut addresses = self.rail_of(index, peer);
                addresses.push(peer);
                self.sockets.push(Dial::start(&addresses, &self.secret, Berth { index, ..self.first })?);
            }
        }
        Ok(self.sockets.iter().all(|socket| matches!(socket, Dial::Done { .. })))
    }
}

impl Dialing {
    /// The address for a further socket, if it is to go elsewhere than the first, which went to `peer`.
    fn rail_of(&self, index: u8, peer: SocketAddr) -> Vec<SocketAddr> {
        let first = self.rails.iter().position(|&rail| rail == peer).unwrap_or(0);
        let rail = (first + usize::from(index)).checked_rem(self.rails.len()).map(|at| self.rails[at]);
        rail.into_iter().filter(|&rail| rail != peer).collect()
    }
}

impl Connecting for Dialing {
    fn poll(&mut self) -> Result<Option<Box<dyn SendChannel>>> {
        if self.sockets.is_empty() {
            return Ok(None);
        }
        if !self.advance()? {
            if self.deadline.is_over() {
                let cause =
                    format!("it did not answer within {:?} ({:?})", self.deadline.length(), self.sockets);
                return Err(Error::PeerLost { peer: "the listener".into(), cause });
            }
            return Ok(None);
        }
        let mut streams = Vec::new();
        let mut at = String::new();
        for socket in self.sockets.drain(..) {
            if let Dial::Done { stream, peer } = socket {
                prepare(&stream)?;
                streams.push(stream);
                at = peer.to_string();
            }
        }
        Ok(Some(Box::new(Sending::new(at, DEPTH, Sockets::new(streams)))))
    }
}

impl Dial {
    fn start(candidates: &[SocketAddr], secret: &Secret, berth: Berth) -> Result<Self> {
        let secret = secret.clone();
        let greet = move |peer| {
            Ok(Some(Hello::initiate(&secret, Purpose::TcpChannel, &berth.encode())?.with_peer(peer)))
        };
        Ok(Self::Racing(Race::new("the listener", candidates, Box::new(greet))?))
    }

    fn advance(&mut self) -> Result<()> {
        if let Self::Racing(race) = self
            && let Some(Connected { stream, address, .. }) = race.advance()?
        {
            *self = Self::Done { stream, peer: address };
        }
        Ok(())
    }
}
