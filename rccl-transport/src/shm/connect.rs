//! Connecting a shm channel: the hello, then the memory, then the proof that it is shared.

use std::{
    io::{self, Read},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};

use super::{
    DEPTH, NAME_BYTES,
    ring::{ANSWER_BYTES, Nonce, RING_BYTES, Ring, RingWriter, write_nonce},
    socket_name,
};
use crate::{
    Error, Hello, Purpose, Region, Result, Secret,
    channel::{Connecting, SendChannel},
    deadline::Deadline,
    ends::Sending,
    secret::random_bytes,
    sys::{passing::pass, shared},
};

/// A channel being connected.
#[derive(Debug)]
pub(super) struct Dialing {
    name: String,
    secret: Secret,
    lends: bool,
    deadline: Deadline,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The listener's queue was full.
    Unconnected,
    Greeting {
        socket: UnixStream,
        hello: Box<Hello>,
    },
    /// The memory is with the other side, which owes the nonce.
    Proving {
        socket: UnixStream,
        memory: Arc<Region>,
        /// On the heap, where the other side tries to read it.
        nonce: Box<Nonce>,
        said: Vec<u8>,
    },
    Over,
}

impl Dialing {
    pub(super) fn new(
        name: [u8; NAME_BYTES],
        secret: &Secret,
        patience: Duration,
        lends: bool,
    ) -> Result<Self> {
        let (name, secret) = (socket_name(name), secret.clone());
        Ok(Self { name, secret, lends, deadline: Deadline::after(patience), stage: Stage::Unconnected })
    }

    fn lost(&self, cause: impl ToString) -> Error {
        Error::PeerLost { peer: format!("the process at @{}", self.name), cause: cause.to_string() }
    }

    /// Moves on by one stage if possible; whether it did. The stage is `Over` after an error.
    fn step(&mut self) -> Result<bool> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Unconnected => {
                let connected = self.connect()?;
                let moved = connected.is_some();
                self.stage = connected.unwrap_or(Stage::Unconnected);
                Ok(moved)
            }
            Stage::Greeting { mut socket, mut hello } => {
                if hello.advance(&mut socket)?.is_none() {
                    self.stage = Stage::Greeting { socket, hello };
                    return Ok(false);
                }
                self.stage = self.pass_memory(socket)?;
                Ok(true)
            }
            Stage::Proving { mut socket, memory, nonce, mut said } => {
                let missing = ANSWER_BYTES - said.len();
                let mut bytes = vec![0; missing];
                match socket.read(&mut bytes) {
                    Ok(0) => return Err(self.lost("it could not map the memory")),
                    Ok(count) => said.extend_from_slice(&bytes[..count]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(self.lost(error)),
                }
                self.stage = Stage::Proving { socket, memory, nonce, said };
                Ok(false)
            }
            Stage::Over => Ok(false),
        }
    }

    fn connect(&self) -> Result<Option<Stage>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let failed = |errno| Error::io("a unix socket", errno);
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        let address = SocketAddrUnix::new_abstract_name(self.name.as_bytes()).map_err(failed)?;
        match connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(self.lost(errno)),
        }
        let hello =
            Hello::initiate(&self.secret, Purpose::FilePassing, &[])?.with_peer(format!("@{}", self.name));
        Ok(Some(Stage::Greeting { socket: socket.into(), hello: Box::new(hello) }))
    }

    fn pass_memory(&self, socket: UnixStream) -> Result<Stage> {
        let (file, memory) = shared::create(RING_BYTES)?;
        let nonce = [u64::from_le_bytes(random_bytes()?), u64::from_le_bytes(random_bytes()?)];
        let nonce = Box::new(nonce);
        let original = if self.lends { std::ptr::from_ref(&*nonce) as u64 } else { 0 };
        write_nonce(&memory, *nonce, original);
        pass(&socket, &file).map_err(|errno| self.lost(errno))?;
        Ok(Stage::Proving { socket, memory, nonce, said: Vec::new() })
    }

    /// The channel, if the other side has answered.
    fn finish(&mut self) -> Result<Option<RingWriter>> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Proving { socket, memory, nonce, said } if said.len() == ANSWER_BYTES => {
                let (nonce_said, lends) = said.split_at(ANSWER_BYTES - 1);
                if nonce_said != nonce.map(u64::to_le_bytes).concat() {
                    return Err(self.lost("it maps other memory than this process"));
                }
                // Only that there is a lender counts on this side.
                let lender = (lends == [1] && self.lends).then_some(0);
                Ok(Some(RingWriter::new(Ring::new(memory, socket, lender))))
            }
            unfinished => {
                self.stage = unfinished;
                Ok(None)
            }
        }
    }
}

impl Connecting for Dialing {
    fn poll(&mut self) -> Result<Option<Box<dyn SendChannel>>> {
        while self.step()? {}
        if let Some(writer) = self.finish()? {
            let peer = format!("the process at @{}", self.name);
            return Ok(Some(Box::new(Sending::new(peer, DEPTH, writer))));
        }
        if self.deadline.is_over() && !matches!(self.stage, Stage::Over) {
            self.stage = Stage::Over;
            return Err(self.lost(format!("it did not answer within {:?}", self.deadline.length())));
        }
        Ok(None)
    }
}
