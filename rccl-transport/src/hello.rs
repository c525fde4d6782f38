//! The authenticated hello that every connection of the project starts with.
//!
//! Both sides send a greeting at once: magic, protocol version, purpose, role and a nonce (44 bytes). Then the initiator
//! proves that it knows the secret, and after it the responder: each by a payload of at most 1 KiB and an HMAC-SHA256
//! over both greetings, the payload and, for the responder, the initiator's proof. A connection thus costs two round
//! trips, and nothing of what a stranger says is looked at beyond a greeting's fixed fields.
//!
//! The hello says who is at the other end. It does not hide or protect what is sent afterwards: someone who can change
//! packets between the hosts can still change those.
//!
//! ```
//! use rccl_transport::{Hello, Purpose, Secret, deadline::Deadline};
//! use std::{os::unix::net::UnixStream, time::Duration};
//!
//! let secret = Secret::random()?;
//! let (mut left, mut right) = UnixStream::pair().unwrap();
//! let deadline = Deadline::after(Duration::from_secs(10));
//! let here = Hello::initiate(&secret, Purpose::Control, b"rank 1")?;
//! let there = Hello::respond(&secret, Purpose::Control)?.answering(b"rank 0")?;
//! std::thread::scope(|scope| {
//!     let responder = scope.spawn(|| there.finish(&mut right, &deadline));
//!     assert_eq!(here.finish(&mut left, &deadline)?.payload, b"rank 0");
//!     assert_eq!(responder.join().unwrap()?.payload, b"rank 1");
//!     Ok::<(), rccl_transport::Error>(())
//! })?;
//! # Ok::<(), rccl_transport::Error>(())
//! ```

use std::{
    fmt,
    io::{self, Read, Write},
    os::fd::AsFd,
};

use rustix::event::PollFlags;

use crate::{
    Error, Result, Secret,
    deadline::{Deadline, wait_one},
    secret::{Tag, random_bytes},
};

mod format;

use format::{
    ACCEPTED, GREETING_BYTES, GreetingBytes, HEADER_BYTES, REFUSED, Role, TAG_BYTES, check_greeting,
    check_header, check_magic, greeting,
};

/// The version of everything that goes over rccl's connections, the hello included. Only equal versions talk.
pub const PROTOCOL_VERSION: u16 = 1;

/// The longest payload of a hello in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1024;

/// What a connection is for. Both sides must mean the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// A control link between two members.
    Control = 1,
    /// A connection of a tcp channel.
    TcpChannel = 2,
    /// A member's connection to the root of its group.
    Rendezvous = 3,
    /// Passing a file descriptor between processes of one host.
    FilePassing = 4,
    /// The connection beside a verbs channel.
    VerbsChannel = 5,
}

impl Purpose {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Control,
            2 => Self::TcpChannel,
            3 => Self::Rendezvous,
            4 => Self::FilePassing,
            5 => Self::VerbsChannel,
            _ => return None,
        })
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "a control link",
            Self::TcpChannel => "a tcp channel",
            Self::Rendezvous => "a rendezvous",
            Self::FilePassing => "file passing",
            Self::VerbsChannel => "a verbs channel",
        })
    }
}

/// What the other side said, once it has proved that it knows the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHello {
    /// Its payload, at most [`MAX_PAYLOAD_BYTES`].
    pub payload: Vec<u8>,
}

#[derive(Debug)]
enum Stage {
    /// Reading the other side's greeting.
    Greeting,
    /// Reading the other side's proof; both greetings are known.
    Proof { theirs: GreetingBytes },
    /// Everything has been read; our own proof, or the word that theirs is wrong, is on its way.
    Flush(Result<PeerHello>),
    /// Returned a result.
    Over,
}

/// One side of a hello that is under way. Never blocks and reads no byte beyond the hello.
#[derive(Debug)]
pub struct Hello {
    secret: Secret,
    role: Role,
    purpose: Purpose,
    peer: String,
    payload: Vec<u8>,
    ours: GreetingBytes,
    /// The initiator's tag, which the responder's covers.
    initiator_tag: Tag,
    stage: Stage,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
}

impl Hello {
    /// Starts the side that made the connection. `payload` is sent once the other side has greeted back.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the payload exceeds [`MAX_PAYLOAD_BYTES`]; [`Error::Io`] without randomness.
    pub fn initiate(secret: &Secret, purpose: Purpose, payload: &[u8]) -> Result<Self> {
        Self::start(secret, Role::Initiator, purpose)?.with_payload(payload)
    }

    /// Starts the side that accepted the connection.
    ///
    /// # Errors
    /// [`Error::Io`] without randomness.
    pub fn respond(secret: &Secret, purpose: Purpose) -> Result<Self> {
        Self::start(secret, Role::Responder, purpose)
    }

    fn start(secret: &Secret, role: Role, purpose: Purpose) -> Result<Self> {
        let ours = greeting(purpose, role, &random_bytes()?);
        Ok(Self {
            secret: secret.clone(),
            role,
            purpose,
            peer: "the other side".into(),
            payload: Vec::new(),
            ours,
            initiator_tag: [0; TAG_BYTES],
            stage: Stage::Greeting,
            input: Vec::new(),
            output: ours.to_vec(),
            written: 0,
        })
    }

    /// Sets the payload of a responder, which is sent only to a side that has proved itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it exceeds [`MAX_PAYLOAD_BYTES`].
    pub fn answering(self, payload: &[u8]) -> Result<Self> {
        self.with_payload(payload)
    }

    /// Names the other side, for errors: an address or a rank.
    #[must_use]
    pub fn with_peer(mut self, peer: impl fmt::Display) -> Self {
        self.peer = peer.to_string();
        self
    }

    fn with_payload(mut self, payload: &[u8]) -> Result<Self> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(Error::Invalid {
                what: "the payload of a hello".into(),
                value: format!("{} bytes", payload.len()),
                reason: format!("it can have at most {MAX_PAYLOAD_BYTES}"),
            });
        }
        self.payload = payload.to_vec();
        Ok(self)
    }

    /// What to wait for before the next [`Hello::advance`] can get anywhere.
    #[must_use]
    pub const fn interest(&self) -> PollFlags {
        if self.written < self.output.len() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Moves on as far as a non-blocking `stream` allows. `None`: wait for [`Hello::interest`] and call again.
    ///
    /// # Errors
    /// [`Error::Refused`] if the other side is not rccl, another version, means something else, or does not know the
    /// secret (or finds that this side does not); [`Error::PeerLost`] if it goes away. The hello is over then, and the
    /// stream is to be dropped.
    pub fn advance<S: Read + Write>(&mut self, stream: &mut S) -> Result<Option<PeerHello>> {
        let outcome = self.step(stream);
        if !matches!(outcome, Ok(None)) {
            self.stage = Stage::Over;
        }
        outcome
    }

    /// Finishes the hello, blocking in poll(2) until it is done or the deadline has passed. Makes the stream non-blocking,
    /// and leaves it so.
    ///
    /// # Errors
    /// As [`Hello::advance`]; [`Error::Timeout`].
    pub fn finish<S: Read + Write + AsFd>(
        mut self,
        stream: &mut S,
        deadline: &Deadline,
    ) -> Result<PeerHello> {
        rustix::io::ioctl_fionbio(&*stream, true).map_err(|errno| Error::io("FIONBIO", errno))?;
        loop {
            if let Some(hello) = self.advance(stream)? {
                return Ok(hello);
            }
            if !wait_one(stream, self.interest(), deadline)? {
                return Err(deadline.error(format!("a hello from {}", self.peer)));
            }
        }
    }

    fn step<S: Read + Write>(&mut self, stream: &mut S) -> Result<Option<PeerHello>> {
        loop {
            if !self.flush(stream)? {
                return Ok(None);
            }
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Greeting => {
                    let complete = self.fill(stream, GREETING_BYTES)?;
                    // Garbage is refused at its first wrong byte, not when there is enough of it.
                    check_magic(&self.input).map_err(|reason| self.refused(reason))?;
                    if !complete {
                        self.stage = Stage::Greeting;
                        return Ok(None);
                    }
                    let theirs = check_greeting(&self.input, self.purpose, self.role)
                        .map_err(|reason| self.refused(reason))?;
                    self.input.clear();
                    self.stage = Stage::Proof { theirs };
                    if self.role == Role::Initiator {
                        self.prove(&theirs);
                    }
                }
                Stage::Proof { theirs } => {
                    let Some(outcome) = self.read_proof(stream, &theirs)? else {
                        self.stage = Stage::Proof { theirs };
                        return Ok(None);
                    };
                    match outcome {
                        Ok(_) if self.role == Role::Responder => self.prove(&theirs),
                        Ok(_) => {}
                        // So that the other side learns why.
                        Err(_) => self.output.extend_from_slice(&[REFUSED, 0, 0, 0]),
                    }
                    self.stage = Stage::Flush(outcome);
                }
                Stage::Flush(outcome) => return outcome.map(Some),
                Stage::Over => panic!("advance called on a hello that is over"),
            }
        }
    }

    /// What the other side's proof is worth, once it is complete.
    fn read_proof<S: Read + Write>(
        &mut self,
        stream: &mut S,
        theirs: &GreetingBytes,
    ) -> Result<Option<Result<PeerHello>>> {
        if !self.fill(stream, HEADER_BYTES)? {
            return Ok(None);
        }
        let payload_bytes = check_header(&self.input).map_err(|reason| self.refused(reason))?;
        if !self.fill(stream, HEADER_BYTES + payload_bytes + TAG_BYTES)? {
            return Ok(None);
        }
        let (payload, tag) = self.input[HEADER_BYTES..].split_at(payload_bytes);
        let tag: Tag = tag.try_into().expect("the tag is what is left");
        let (payload, role) = (payload.to_vec(), self.role.other());
        if !self.secret.verify(role.label(), &self.covered(role, theirs, &payload), &tag) {
            return Ok(Some(Err(self.refused("it does not know this group's secret".into()))));
        }
        if role == Role::Initiator {
            self.initiator_tag = tag;
        }
        Ok(Some(Ok(PeerHello { payload })))
    }

    /// Queues this side's proof.
    fn prove(&mut self, theirs: &GreetingBytes) {
        let tag = self.secret.tag(self.role.label(), &self.covered(self.role, theirs, &self.payload));
        if self.role == Role::Initiator {
            self.initiator_tag = tag;
        }
        let payload_bytes = u16::try_from(self.payload.len()).expect("with_payload checked the length");
        self.output.extend_from_slice(&[ACCEPTED, 0]);
        self.output.extend_from_slice(&payload_bytes.to_le_bytes());
        self.output.extend_from_slice(&self.payload);
        self.output.extend_from_slice(&tag);
    }

    /// What the proof of `role` covers: the initiator's greeting, the responder's, the payload, and for the responder the
    /// initiator's tag (and with it the initiator's payload).
    fn covered<'a>(&'a self, role: Role, theirs: &'a GreetingBytes, payload: &'a [u8]) -> [&'a [u8]; 4] {
        let (first, second) = match self.role {
            Role::Initiator => (&self.ours, theirs),
            Role::Responder => (theirs, &self.ours),
        };
        let before: &[u8] = if role == Role::Initiator { &[] } else { &self.initiator_tag };
        [first, second, payload, before]
    }

    /// Reads until `input` has `needed` bytes; `false` if the stream has no more for now.
    fn fill<S: Read>(&mut self, stream: &mut S, needed: usize) -> Result<bool> {
        let before = self.input.len();
        let mut have = before;
        if have >= needed {
            return Ok(true);
        }
        self.input.resize(needed, 0);
        let complete = loop {
            match stream.read(&mut self.input[have..]) {
                // What came before the end is looked at first: it may tell who this was.
                Ok(0) if have > before => break false,
                Ok(0) => return Err(self.lost("it closed the connection in the middle of the hello")),
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) => return Err(self.lost(error)),
            }
            if have == needed {
                break true;
            }
        };
        self.input.truncate(have);
        Ok(complete)
    }

    /// Writes what is queued; `false` if the stream takes no more for now.
    fn flush<S: Write>(&mut self, stream: &mut S) -> Result<bool> {
        while self.written < self.output.len() {
            match stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(self.lost("it takes no more bytes")),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(self.lost(error)),
            }
        }
        Ok(true)
    }

    fn lost(&self, cause: impl fmt::Display) -> Error {
        Error::PeerLost { peer: self.peer.clone(), cause: cause.to_string() }
    }

    fn refused(&self, reason: String) -> Error {
        Error::Refused { peer: self.peer.clone(), reason }
    }
}

#[cfg(test)]
mod tests;
