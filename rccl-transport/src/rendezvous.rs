//! Where the members of a group find each other: the root waits until every rank has come and then tells everyone who and
//! where the others are.
//!
//! A member connects to the root, authenticates and introduces itself. The root answers once: with the table of all
//! members, or with the reason why there will be no group (a rank that did not come in time, two that claim to be the same
//! one, a member that went away). Each rank sends and receives O(size) bytes, the root O(size²).

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use rccl_core::Group;
use rustix::event::{EventfdFlags, PollFlags};

use crate::{
    Error, Hello, Purpose, Result, Secret, UniqueId,
    connect::{Race, listen_on},
    deadline::{Deadline, wait, wait_one},
    interface::{Choice, with_scopes},
    member::{MAX_MEMBER_BYTES, Member},
    reception::{PATIENCE, Reception},
    wire::{Decoder, Encoder, FrameReader, FrameWriter, Malformed},
};

mod service;

/// How a root serves its group.
#[derive(Debug, Clone)]
pub struct RootOptions {
    /// How long it waits for the members; 10 minutes unless told otherwise.
    pub deadline: Duration,
    /// How long a connection may take to authenticate and introduce itself; 5 seconds unless told otherwise.
    pub patience: Duration,
    /// The interfaces to listen on.
    pub choice: Choice,
}

impl Default for RootOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(600), patience: PATIENCE, choice: Choice::any() }
    }
}

/// The root of one group: listening sockets and a thread that serves them until every member has been told about the
/// others, the deadline has passed or the root is dropped. Dropping it waits for no member: those that still wait are told.
///
/// ```
/// use rccl_transport::rendezvous::{Root, RootOptions};
///
/// let (root, id) = Root::start(&RootOptions::default())?;
/// println!("give this to the other members, and to nobody else: {id}");
/// # drop(root);
/// # Ok::<(), rccl_transport::Error>(())
/// ```
#[derive(Debug)]
pub struct Root {
    wake: Arc<OwnedFd>,
    strangers: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Root {
    /// Starts a root on free ports of the interfaces chosen, with a fresh secret.
    ///
    /// # Errors
    /// As [`Choice::addresses`]; [`Error::Io`] if no address can be listened on, or without threads or randomness.
    pub fn start(options: &RootOptions) -> Result<(Self, UniqueId)> {
        let secret = Secret::random()?;
        let listeners = listen_on_all(&options.choice.addresses()?)?;
        let id = UniqueId::new(&addresses_of(&listeners)?, &secret);
        Ok((Self::serve(listeners, &secret, options)?, id))
    }

    /// Starts the root that an id with a fixed address promises (see [`UniqueId::from_address_and_secret`]).
    ///
    /// # Errors
    /// [`Error::Io`] if none of its addresses can be listened on, because they are not this host's or the port is taken.
    pub fn start_for(id: &UniqueId, options: &RootOptions) -> Result<Self> {
        Self::serve(listen_on_all(&with_scopes(id.addresses())?)?, id.secret(), options)
    }

    fn serve(listeners: Vec<TcpListener>, secret: &Secret, options: &RootOptions) -> Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("eventfd", errno))?;
        let (wake, strangers) = (Arc::new(wake), Arc::new(AtomicU64::new(0)));
        let reception =
            Reception::new(listeners, &rendezvous_secret(secret), Purpose::Rendezvous, b"", options.patience);
        let service = service::Service::new(reception, Arc::clone(&wake), Arc::clone(&strangers), options)?;
        let thread = std::thread::Builder::new()
            .name("rccl-root".into())
            .spawn(move || service.run())
            .map_err(|error| Error::io("start the root's thread", error))?;
        Ok(Self { wake, strangers, thread: Some(thread) })
    }

    /// Connections dropped so far because they did not authenticate or introduce themselves in time.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::Relaxed)
    }

    /// Whether it has ended: every member was told about the others, or the deadline has passed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Root {
    /// Lets it serve on its own until every member has been told about the others or the deadline has passed.
    pub fn detach(mut self) {
        self.thread = None;
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // The counter of an eventfd takes one more unless 2^64 roots were dropped.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        // The thread never blocks but in poll(2), on the eventfd too.
        let _ = thread.join();
    }
}

/// Listens on every address that can be; some cannot for reasons of their own, such as IPv6 addresses still being checked.
pub(crate) fn listen_on_all(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>> {
    let (mut listeners, mut first_error) = (Vec::new(), None);
    for &address in addresses {
        match listen_on(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                tracing::debug!("{error}");
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

pub(crate) fn addresses_of(listeners: &[TcpListener]) -> Result<Vec<SocketAddr>> {
    let address =
        |listener: &TcpListener| listener.local_addr().map_err(|error| Error::io("getsockname", error));
    listeners.iter().map(address).collect()
}

fn rendezvous_secret(secret: &Secret) -> Secret {
    secret.derive("rendezvous")
}

/// A member's introduction to the root.
#[derive(Debug, PartialEq, Eq)]
struct Registration {
    size: u32,
    /// When the member wants an answer, even if there is no group by then, in ms from now.
    answer_within_ms: u64,
    /// How long the member waits in all, for the error that says so.
    deadline_ms: u64,
    member: Member,
}

const MAX_REGISTRATION_BYTES: usize = 4 + 8 + 8 + MAX_MEMBER_BYTES;

impl Registration {
    fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.u32(self.size).u64(self.answer_within_ms).u64(self.deadline_ms);
        self.member.encode(&mut encoder);
        encoder.0
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let registration = Self {
            size: decoder.u32()?,
            answer_within_ms: decoder.u64()?,
            deadline_ms: decoder.u64()?,
            member: Member::decode(&mut decoder)?,
        };
        decoder.end()?;
        Ok(registration)
    }
}

/// What the root answers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// The members in order of rank, and a number that tells this group from others with the same secret.
    Table { nonce: [u8; 32], members: Vec<Member> },
    /// Some ranks did not come within the deadline of the root or a member.
    Late { waiting_for: String, after_ms: u64 },
    /// What was said does not fit together.
    Refused { peer: String, reason: String },
    /// A member or the root went away.
    Lost { peer: String, cause: String },
}

const MAX_TEXT_BYTES: usize = 64 << 10;

impl Answer {
    fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        match self {
            Self::Table { nonce, members } => {
                encoder.u8(0).raw(nonce).u32(u32::try_from(members.len()).expect("groups are small"));
                members.iter().for_each(|member| member.encode(&mut encoder));
            }
            Self::Late { waiting_for, after_ms } => {
                encoder.u8(1).bytes(waiting_for.as_bytes()).u64(*after_ms);
            }
            Self::Refused { peer, reason } => {
                encoder.u8(2).bytes(peer.as_bytes()).bytes(reason.as_bytes());
            }
            Self::Lost { peer, cause } => {
                encoder.u8(3).bytes(peer.as_bytes()).bytes(cause.as_bytes());
            }
        }
        encoder.0
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let answer = match decoder.u8()? {
            0 => {
                let nonce = decoder.array()?;
                let count = decoder.u32()?.min(Group::MAX_SIZE);
                let members = (0..count).map(|_| Member::decode(&mut decoder));
                Self::Table { nonce, members: members.collect::<std::result::Result<_, _>>()? }
            }
            1 => Self::Late { waiting_for: decoder.text(MAX_TEXT_BYTES)?, after_ms: decoder.u64()? },
            2 => Self::Refused { peer: decoder.text(MAX_TEXT_BYTES)?, reason: decoder.text(MAX_TEXT_BYTES)? },
            3 => Self::Lost { peer: decoder.text(MAX_TEXT_BYTES)?, cause: decoder.text(MAX_TEXT_BYTES)? },
            kind => return Err(Malformed(format!("an answer of the unknown kind {kind}"))),
        };
        decoder.end()?;
        Ok(answer)
    }
}

/// How often a fixed address is tried again while nobody listens there. The network tells nobody when that changes.
const RETRY: Duration = Duration::from_millis(50);

/// How much longer than its deadline a member waits for the root to say which ranks are missing.
const GRACE: Duration = Duration::from_secs(1);

/// Introduces `member` to the root and waits for everyone else: the members in order of rank and the group's nonce.
pub(crate) fn meet(
    id: &UniqueId,
    size: u32,
    member: Member,
    deadline: &Deadline,
) -> Result<(Vec<Member>, [u8; 32])> {
    let mut stream = introduce(id, size, member, deadline)?;
    answer(&mut stream, size, deadline)
}

/// Connects to the root and says who `member` is.
pub(crate) fn introduce(id: &UniqueId, size: u32, member: Member, deadline: &Deadline) -> Result<TcpStream> {
    let mut stream = reach(id, deadline)?;
    // Early enough for the root's answer, which names the ranks that are missing, to come before the deadline.
    let left = deadline.remaining();
    let answer_within = left - (left / 10).min(Duration::from_millis(500));
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (answer_within_ms, deadline_ms) = (ms(answer_within), ms(deadline.length()));
    let registration = Registration { size, answer_within_ms, deadline_ms, member };
    let mut writer = FrameWriter::new(&registration.encode());
    while !writer.advance(&mut stream).map_err(lost)? {
        if !wait_one(&stream, PollFlags::OUT, deadline)? {
            return Err(deadline.error("an introduction to the group's root"));
        }
    }
    Ok(stream)
}

fn lost(error: std::io::Error) -> Error {
    Error::PeerLost { peer: "the root of the group".into(), cause: format!("{error} (did its process end?)") }
}

/// Waits for what the root says to a member that has been introduced.
pub(crate) fn answer(
    stream: &mut TcpStream,
    size: u32,
    deadline: &Deadline,
) -> Result<(Vec<Member>, [u8; 32])> {
    let mut reader = FrameReader::new(MAX_TEXT_BYTES * 2 + size as usize * MAX_MEMBER_BYTES);
    let patient = Deadline::after(deadline.remaining() + GRACE);
    let answer = loop {
        if let Some(frame) = reader.advance(stream).map_err(lost)? {
            break frame;
        }
        if !wait_one(stream, PollFlags::IN, &patient)? {
            return Err(deadline.error("an answer of the group's root"));
        }
    };
    let malformed = |reason| Error::Refused { peer: "the root of the group".into(), reason };
    match Answer::decode(&answer).map_err(|Malformed(reason)| malformed(reason))? {
        Answer::Table { nonce, members } => {
            let in_order = members.iter().zip(0..).all(|(member, rank)| member.rank.0 == rank);
            if members.len() != size as usize || !in_order {
                return Err(malformed(format!(
                    "its table of {} members is not that of {size}",
                    members.len()
                )));
            }
            Ok((members, nonce))
        }
        Answer::Late { waiting_for, after_ms } => {
            Err(Error::Timeout { waiting_for, after: Duration::from_millis(after_ms) })
        }
        Answer::Refused { peer, reason } => Err(Error::Refused { peer, reason }),
        Answer::Lost { peer, cause } => Err(Error::PeerLost { peer, cause }),
    }
}

/// An authenticated connection to the root.
fn reach(id: &UniqueId, deadline: &Deadline) -> Result<TcpStream> {
    let secret = rendezvous_secret(id.secret());
    loop {
        let secret = secret.clone();
        let greet =
            move |address| Ok(Some(Hello::initiate(&secret, Purpose::Rendezvous, b"")?.with_peer(address)));
        let mut race = Race::new("the root of the group", id.addresses(), Box::new(greet))?;
        match race.finish("a connection to the root of the group", deadline) {
            Ok(connected) => return Ok(connected.stream),
            Err(_) if id.is_fixed() && race.nobody_listens() => {
                wait(&mut [], &deadline.at_most(RETRY))?;
                let what = format!("a root listening at {} (rank 0 starts it)", race.status());
                deadline.check(&what)?;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
