//! Accepting tcp channels: strangers are dropped and counted, and the sockets of each channel gathered.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
};

use super::{Berth, HELLO_PATIENCE, ListenerId, address, prepare, recv::Receiver};
use crate::{
    Error, Hello, Purpose, Result, Secret,
    channel::{Address, Listener, RecvChannel},
    deadline::Deadline,
    secret::random_bytes,
};

/// Connections accepted in one call.
const ACCEPTS: usize = 64;

/// Connections that may be in their hello at once. The oldest makes room, so that silent strangers keep nobody out.
const MAX_GREETINGS: usize = 512;

/// Channels whose sockets may be gathering at once; as for greetings.
const MAX_GATHERINGS: usize = 512;

/// A listener on one port for each address.
#[derive(Debug)]
pub(super) struct Listening {
    id: ListenerId,
    address: Address,
    secret: Secret,
    sockets: Vec<TcpListener>,
    greetings: Vec<Greeting>,
    gatherings: Vec<Gathering>,
    strangers: u64,
}

/// A connection in its hello.
#[derive(Debug)]
struct Greeting {
    stream: TcpStream,
    peer: SocketAddr,
    hello: Hello,
    deadline: Deadline,
}

/// A channel some of whose sockets are there.
#[derive(Debug)]
struct Gathering {
    channel: [u8; 16],
    peer: SocketAddr,
    sockets: Vec<Option<TcpStream>>,
    deadline: Deadline,
}

impl Listening {
    /// Listens on a free port of each address.
    pub(super) fn new(addresses: &[IpAddr], secret: Secret) -> Result<Self> {
        let id = random_bytes()?;
        let mut sockets = Vec::new();
        let mut candidates = Vec::new();
        for &ip in addresses {
            let failed = |error| Error::io(format!("listening on {ip}"), error);
            let socket = TcpListener::bind((ip, 0)).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            candidates.push(socket.local_addr().map_err(failed)?);
            sockets.push(socket);
        }
        let address = address::encode(id, &candidates).expect("Options::check encoded as many");
        let (greetings, gatherings) = (Vec::new(), Vec::new());
        Ok(Self { id, address, secret, sockets, greetings, gatherings, strangers: 0 })
    }

    /// Accepts who has connected.
    fn accept(&mut self) -> Result<()> {
        for socket in &self.sockets {
            for _ in 0..ACCEPTS {
                let (stream, peer) = match socket.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // Gone again before it was accepted.
                    Err(error) if is_passing(&error) => continue,
                    Err(error) => return Err(Error::io(format!("accept on {socket:?}"), error)),
                };
                if prepare(&stream).is_err() {
                    self.strangers += 1;
                    continue;
                }
                let hello =
                    Hello::respond(&self.secret, Purpose::TcpChannel)?.answering(&self.id)?.with_peer(peer);
                self.greetings.push(Greeting {
                    stream,
                    peer,
                    hello,
                    deadline: Deadline::after(HELLO_PATIENCE),
                });
            }
        }
        Ok(())
    }

    /// Moves hellos on, and drops those that fail or take too long.
    fn greet(&mut self) {
        for mut greeting in std::mem::take(&mut self.greetings) {
            match greeting.hello.advance(&mut greeting.stream) {
                Ok(None) if !greeting.deadline.is_over() => self.greetings.push(greeting),
                Ok(Some(hello)) => match Berth::decode(&hello.payload) {
                    Some(berth) if berth.listener == self.id => self.gather(berth, greeting),
                    _ => self.strangers += 1,
                },
                outcome => {
                    tracing::debug!(peer = %greeting.peer, ?outcome, "dropped a stranger");
                    self.strangers += 1;
                }
            }
        }
        let excess = self.greetings.len().saturating_sub(MAX_GREETINGS);
        self.greetings.drain(..excess);
        self.strangers += excess as u64;
    }

    /// Puts an authenticated socket to its channel.
    fn gather(&mut self, berth: Berth, greeting: Greeting) {
        let count = usize::from(berth.count);
        let at = self.gatherings.iter().position(|gathering| gathering.channel == berth.channel);
        let at = at.unwrap_or_else(|| {
            self.gatherings.push(Gathering {
                channel: berth.channel,
                peer: greeting.peer,
                sockets: (0..count).map(|_| None).collect(),
                deadline: Deadline::after(HELLO_PATIENCE),
            });
            self.gatherings.len() - 1
        });
        match self.gatherings[at].sockets.get_mut(usize::from(berth.index)) {
            Some(place @ None) => *place = Some(greeting.stream),
            _ => self.strangers += 1,
        }
    }

    /// The first channel that is whole.
    fn whole(&mut self) -> Option<Gathering> {
        let is_whole = |gathering: &Gathering| gathering.sockets.iter().all(Option::is_some);
        if let Some(at) = self.gatherings.iter().position(is_whole) {
            return Some(self.gatherings.remove(at));
        }
        let before = self.gatherings.len();
        self.gatherings.retain(|gathering| !gathering.deadline.is_over());
        let excess = self.gatherings.len().saturating_sub(MAX_GATHERINGS);
        self.gatherings.drain(..excess);
        self.strangers += (before - self.gatherings.len()) as u64;
        None
    }
}

impl Listener for Listening {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvChannel>>> {
        self.accept()?;
        self.greet();
        let Some(gathering) = self.whole() else { return Ok(None) };
        let sockets = gathering.sockets.into_iter().flatten().collect();
        Ok(Some(Box::new(Receiver::new(gathering.peer.to_string(), sockets))))
    }

    fn strangers(&self) -> u64 {
        self.strangers
    }
}

/// Whether an error of accept(2) is that of the connection and not of the listener.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::TimedOut
    )
}
