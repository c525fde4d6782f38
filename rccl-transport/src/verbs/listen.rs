//! Accepting verbs channels.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use super::{
    DEPTH, Options,
    connect::{WAY_PATIENCE, place},
    device::Opened,
    exchange::{Frame, Numbers},
    gid::Gid,
    info::LinkLayer,
    link::Link,
    pairs::{End, Pairs, Way},
    recv::Receiver,
};
use crate::{
    Error, Purpose, Result, Secret,
    channel::{Address, Listener, RecvChannel},
    connect::listen_on,
    deadline::Deadline,
    ends::Receiving,
    reception::{self, Guest, Reception},
    secret::random_bytes,
    tcp::{self, address},
};

/// Channels that may be in the making at once; the oldest makes room.
const MAX_JOINING: usize = 1024;

/// How long a connection may take to become a channel. Its own side gives up before.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(40);

/// A listener on one tcp port for each address.
#[derive(Debug)]
pub(super) struct Listening {
    device: Arc<Opened>,
    options: Options,
    address: Address,
    reception: Reception<TcpListener>,
    joining: Vec<Joining>,
}

/// A connection that has authenticated and is becoming a channel.
#[derive(Debug)]
struct Joining {
    peer: String,
    link: Link,
    deadline: Deadline,
    /// Where the other side is, once it has told.
    theirs: Option<Vec<Gid>>,
    lid: u16,
    attempt: Option<Attempt>,
}

/// What the other side asked to be tried.
#[derive(Debug)]
struct Attempt {
    number: u32,
    way: Way,
    numbers: Numbers,
    pairs: Pairs,
    deadline: Deadline,
    connected: bool,
}

impl Listening {
    pub(super) fn new(device: &Arc<Opened>, options: &Options, secret: &Secret) -> Result<Self> {
        let id = random_bytes()?;
        let doors = options.addresses.iter().map(|&at| listen_on(at)).collect::<Result<Vec<_>>>()?;
        let candidates =
            doors.iter().map(TcpListener::local_addr).collect::<std::io::Result<Vec<SocketAddr>>>();
        let candidates = candidates.map_err(|error| Error::io("getsockname", error))?;
        let address =
            address::encode(address::VERBS, id, &candidates).expect("Options::check encoded as many");
        let secret = tcp::listener_secret(secret, id);
        let reception = Reception::new(doors, &secret, Purpose::VerbsChannel, &[], reception::PATIENCE);
        let (device, options) = (Arc::clone(device), options.clone());
        Ok(Self { device, options, address, reception, joining: Vec::new() })
    }

    fn greet(&mut self, guest: Guest<std::net::TcpStream>) -> Result<()> {
        tcp::prepare(&guest.stream)?;
        let mut link = Link::new(guest.stream);
        // A port that cannot be used now is the other side's error to report, not this listener's end.
        let frame = match place(&self.device, &self.options) {
            Ok(place) => Frame::Place(place),
            Err(error) => Frame::Broken { why: error.to_string() },
        };
        link.say(&frame).map_err(|fault| fault.error(&guest.from))?;
        self.joining.push(Joining {
            peer: guest.from,
            link,
            deadline: Deadline::after(PATIENCE),
            theirs: None,
            lid: 0,
            attempt: None,
        });
        Ok(())
    }
}

impl Joining {
    /// Moves on; the channel's pairs once they stand.
    fn advance(&mut self, device: &Arc<Opened>, options: &Options) -> Result<Option<Pairs>> {
        while let Some(frame) = self.link.hear().map_err(|fault| fault.error(&self.peer))? {
            match frame {
                Frame::Place(place) => {
                    self.peer = format!("{} ({})", self.peer, place.name);
                    self.lid = place.lid as u16;
                    self.theirs = Some(place.gids);
                }
                Frame::Try { attempt, theirs, ours, mtu, numbers } => {
                    // Whatever was tried before has failed.
                    self.attempt = None;
                    let begun = self.begin(attempt, theirs, ours, mtu, numbers, device);
                    if let Err(error) = begun {
                        self.say(&Frame::Failed { attempt, why: error.to_string() })?;
                    }
                }
                Frame::Done if self.attempt.as_ref().is_some_and(|attempt| attempt.connected) => {
                    return Ok(self.attempt.take().map(|attempt| attempt.pairs));
                }
                other => {
                    let cause = format!("protocol: {other:?} before the channel stands");
                    return Err(Error::PeerLost { peer: self.peer.clone(), cause });
                }
            }
        }
        self.connect(options)?;
        if self.deadline.is_over() { Err(self.deadline.error("a verbs channel")) } else { Ok(None) }
    }

    fn say(&mut self, frame: &Frame) -> Result<()> {
        self.link.say(frame).map_err(|fault| fault.error(&self.peer))
    }

    /// Makes the queue pairs for what is to be tried. "Ours" are this side's here.
    fn begin(
        &mut self,
        number: u32,
        ours: u8,
        theirs: u8,
        mtu: u8,
        numbers: Numbers,
        device: &Arc<Opened>,
    ) -> Result<()> {
        let port = device.port_now()?;
        let missing = |whose: &str, index: u8| Error::Invalid {
            what: format!("the GID index of {whose}"),
            value: index.to_string(),
            reason: "the GID table has no such entry any more".into(),
        };
        let known = self.theirs.iter().flatten().find(|gid| gid.index == theirs);
        let way = Way {
            ours: port
                .gids
                .into_iter()
                .find(|gid| gid.index == ours)
                .ok_or_else(|| missing(&device.name, ours))?,
            theirs: known.cloned().ok_or_else(|| missing("the other side", theirs))?,
            mtu,
            infiniband: port.link_layer == LinkLayer::Infiniband,
            lid: self.lid,
        };
        let pairs = Pairs::new(device, numbers.pairs.len(), End::Receiver)?;
        let deadline = Deadline::after(WAY_PATIENCE);
        self.attempt = Some(Attempt { number, way, numbers, pairs, deadline, connected: false });
        Ok(())
    }

    /// Connects the queue pairs if they are not yet, and says so.
    fn connect(&mut self, options: &Options) -> Result<()> {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| !attempt.connected) else { return Ok(()) };
        let frame = match attempt.pairs.connect(&attempt.numbers, &attempt.way, options) {
            Ok(true) => {
                attempt.connected = true;
                Frame::Ready { attempt: attempt.number, numbers: attempt.pairs.numbers() }
            }
            Ok(false) if !attempt.deadline.is_over() => return Ok(()),
            Ok(false) => Frame::Failed {
                attempt: attempt.number,
                why: "its kernel did not find the hardware address of our GID".into(),
            },
            Err(error) => Frame::Failed { attempt: attempt.number, why: error.to_string() },
        };
        if matches!(frame, Frame::Failed { .. }) {
            self.attempt = None;
        }
        self.say(&frame)
    }
}

impl Listener for Listening {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvChannel>>> {
        for guest in self.reception.advance()? {
            let from = guest.from.clone();
            if let Err(error) = self.greet(guest) {
                tracing::debug!("{from} left before its channel stood: {error}");
            }
        }
        let excess = self.joining.len().saturating_sub(MAX_JOINING);
        self.joining.drain(..excess);
        let mut index = 0;
        while index < self.joining.len() {
            match self.joining[index].advance(&self.device, &self.options) {
                Ok(None) => index += 1,
                Ok(Some(pairs)) => {
                    let Joining { peer, link, .. } = self.joining.remove(index);
                    return Ok(Some(Box::new(Receiving::new(peer, DEPTH, Receiver::new(pairs, link)))));
                }
                Err(error) => {
                    // It knows the secret, so it is no stranger; its own side has the reason as well.
                    let gone = self.joining.remove(index);
                    tracing::debug!("a channel from {} was not made: {error}", gone.peer);
                }
            }
        }
        Ok(None)
    }

    fn strangers(&self) -> u64 {
        self.reception.strangers()
    }
}
