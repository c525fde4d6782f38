//! Connecting a tcp channel: the first address that answers, then all sockets to it.

use std::{
    collections::VecDeque,
    net::{SocketAddr, TcpStream},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with},
};

use super::{Berth, CANDIDATE_PATIENCE, CONNECT_PATIENCE, HELLO_PATIENCE, ListenerId, prepare, send::Sender};
use crate::{
    Error, Hello, Purpose, Result, Secret,
    channel::{Connecting, SendChannel},
    deadline::Deadline,
    secret::random_bytes,
};

/// A channel being connected.
#[derive(Debug)]
pub(super) struct Dialing {
    secret: Secret,
    /// The channel's first socket, which the others follow.
    berth: Berth,
    candidates: VecDeque<SocketAddr>,
    calls: Vec<Call>,
    deadline: Deadline,
}

/// One socket being connected.
#[derive(Debug)]
struct Call {
    peer: SocketAddr,
    berth: Berth,
    stream: TcpStream,
    stage: Stage,
    deadline: Deadline,
}

#[derive(Debug)]
enum Stage {
    Connecting,
    Greeting(Box<Hello>),
    Ready,
}

impl Dialing {
    /// Starts to connect `sockets` sockets to the listener.
    pub(super) fn new(
        listener: ListenerId,
        candidates: Vec<SocketAddr>,
        sockets: usize,
        secret: Secret,
    ) -> Result<Self> {
        let count = u8::try_from(sockets).expect("Options::check bounds it by MAX_SOCKETS");
        let berth = Berth { listener, channel: random_bytes()?, index: 0, count };
        let deadline = Deadline::after(CONNECT_PATIENCE);
        Ok(Self { secret, berth, candidates: candidates.into(), calls: Vec::new(), deadline })
    }

    /// Tries the next address with the first socket, until one can be tried.
    fn dial_next(&mut self, mut cause: Error) -> Result<()> {
        self.calls.clear();
        while let Some(peer) = self.candidates.pop_front() {
            match Call::dial(peer, self.berth) {
                Ok(call) => {
                    self.calls.push(call);
                    return Ok(());
                }
                Err(error) => cause = error,
            }
        }
        Err(cause)
    }

    /// Once the first socket is ready, the others follow it to the same address.
    fn dial_others(&mut self) -> Result<()> {
        let peer = self.calls[0].peer;
        for index in 1..self.berth.count {
            self.calls.push(Call::dial(peer, Berth { index, ..self.berth })?);
        }
        Ok(())
    }
}

impl Connecting for Dialing {
    fn poll(&mut self) -> Result<Option<Box<dyn SendChannel>>> {
        if self.calls.is_empty() {
            self.dial_next(lost("the listener", "none of its addresses can be reached"))?;
        }
        for index in 0..self.calls.len() {
            if let Err(error) = self.calls[index].advance(&self.secret) {
                if index > 0 || self.deadline.is_over() {
                    return Err(error);
                }
                tracing::debug!(%error, "trying the listener's next address");
                self.dial_next(error)?;
                return Ok(None);
            }
        }
        if !self.calls.iter().all(|call| matches!(call.stage, Stage::Ready)) {
            return if self.deadline.is_over() {
                Err(lost(self.calls[0].peer, "it did not answer in time"))
            } else {
                Ok(None)
            };
        }
        if self.calls.len() < usize::from(self.berth.count) {
            self.dial_others()?;
            return Ok(None);
        }
        let peer = self.calls[0].peer.to_string();
        let sockets = self.calls.drain(..).map(|call| call.stream).collect();
        Ok(Some(Box::new(Sender::new(peer, sockets))))
    }
}

impl Call {
    fn dial(peer: SocketAddr, berth: Berth) -> Result<Self> {
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
            .map_err(|errno| Error::io(format!("socket for {peer}"), errno))?;
        match connect(&socket, &peer) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(lost(peer, errno)),
        }
        let stream = TcpStream::from(socket);
        prepare(&stream)?;
        Ok(Self {
            peer,
            berth,
            stream,
            stage: Stage::Connecting,
            deadline: Deadline::after(CANDIDATE_PATIENCE),
        })
    }

    /// Moves on as far as possible now.
    fn advance(&mut self, secret: &Secret) -> Result<()> {
        if let Stage::Connecting = self.stage {
            if let Some(error) = self.stream.take_error().map_err(|error| Error::io("SO_ERROR", error))? {
                return Err(lost(self.peer, error));
            }
            if self.stream.peer_addr().is_err() {
                return self.in_time("it did not answer in time");
            }
            let hello =
                Hello::initiate(secret, Purpose::TcpChannel, &self.berth.encode())?.with_peer(self.peer);
            self.stage = Stage::Greeting(Box::new(hello));
            self.deadline = Deadline::after(HELLO_PATIENCE);
        }
        if let Stage::Greeting(hello) = &mut self.stage {
            let Some(said) = hello.advance(&mut self.stream)? else {
                return self.in_time("it did not finish its hello in time");
            };
            if said.payload != self.berth.listener {
                let reason = "it is another listener than the one meant; its address is outdated".into();
                return Err(Error::Refused { peer: self.peer.to_string(), reason });
            }
            self.stage = Stage::Ready;
        }
        Ok(())
    }

    fn in_time(&self, cause: &str) -> Result<()> {
        if self.deadline.is_over() { Err(lost(self.peer, cause)) } else { Ok(()) }
    }
}

fn lost(peer: impl ToString, cause: impl ToString) -> Error {
    Error::PeerLost { peer: peer.to_string(), cause: cause.to_string() }
}
