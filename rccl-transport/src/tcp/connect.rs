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
        Ok(Self { secret, first, sockets, deadline: Deadline::after(options.patience) })
    }

    /// Moves all sockets on; whether they all stand.
    fn advance(&mut self) -> Result<bool> {
        for socket in &mut self.sockets {
            socket.advance()?;
        }
        if let [Dial::Done { peer, .. }] = self.sockets[..] {
            // The first socket has found an address; the others follow it there.
            for index in 1..self.first.count {
                self.sockets.push(Dial::start(&[peer], &self.secret, Berth { index, ..self.first })?);
            }
        }
        Ok(self.sockets.iter().all(|socket| matches!(socket, Dial::Done { .. })))
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
