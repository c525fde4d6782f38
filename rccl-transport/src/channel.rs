//! Channels: one-way, ordered messages between registered regions. The contract is that of an NCCL network plugin, so that
//! the plugin is a thin layer over it.
//!
//! Nothing here blocks. What cannot be done now is answered with `None` and asked for again later; whoever drives the
//! channel decides how long to wait and when to give up.
//!
//! *Stable*: tcp, shm, verbs and sim implement these traits.

use std::fmt;

use crate::{Result, Slice};

/// Names one posted message of one channel. Tickets of a channel are unique while outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A message that has been sent, or a receive that has been filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The post it answers.
    pub ticket: Ticket,
    /// Bytes of each message of the post: one for a send, one for each part of a receive, in the order posted.
    pub lengths: Lengths,
}

/// The lengths, in bytes, of up to [`MAX_GROUP`] messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    bytes: [u64; MAX_GROUP],
    count: usize,
}

/// The most receives that can be posted as one group.
pub const MAX_GROUP: usize = 8;

impl Lengths {
    /// The length of a single message.
    #[must_use]
    pub const fn one(bytes: u64) -> Self {
        let mut all = [0; MAX_GROUP];
        all[0] = bytes;
        Self { bytes: all, count: 1 }
    }

    /// `count` lengths, all 0.
    ///
    /// # Panics
    /// If `count` exceeds [`MAX_GROUP`].
    #[must_use]
    pub const fn zeroed(count: usize) -> Self {
        assert!(count <= MAX_GROUP);
        Self { bytes: [0; MAX_GROUP], count }
    }
}

impl std::ops::Deref for Lengths {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.bytes[..self.count]
    }
}

impl std::ops::DerefMut for Lengths {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.bytes[..self.count]
    }
}

impl fmt::Debug for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

/// One part of a grouped receive: where a message goes, and which one it may be.
#[derive(Debug, Clone)]
pub struct Part {
    /// Memory for the message, at least as long as it.
    pub slice: Slice,
    /// The tag its sender gave the message. Tags tell messages apart within one group only; between groups, order rules.
    pub tag: u64,
}

/// What a transport can do, as data.
#[derive(Debug, Clone, PartialEq)]
pub struct Caps {
    /// The transport's name: "tcp", "shm", "verbs" or "sim".
    pub name: &'static str,
    /// The device underneath, for people: an interface's or adapter's name.
    pub device: String,
    /// Nominal speed in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
    /// Messages that may be outstanding on one channel before a post is answered with `None`.
    pub depth: usize,
    /// Receives that may be grouped, 1 to [`MAX_GROUP`].
    pub max_group: usize,
    /// The longest message in bytes.
    pub max_message_bytes: u64,
    /// Whether regions must be registered with [`Transport::register`] before they are posted.
    pub needs_registration: bool,
}

/// Where a listener can be reached. Opaque to all but its transport; at most 120 bytes, so that it fits an NCCL handle
/// with a few bytes to spare.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address(pub Vec<u8>);

/// The longest [`Address`] in bytes.
pub const MAX_ADDRESS_BYTES: usize = 120;

/// A way to make channels: one for each kind of link and device.
pub trait Transport: Send + Sync + fmt::Debug {
    /// What it can do.
    fn caps(&self) -> &Caps;

    /// Starts to listen for channels.
    ///
    /// # Errors
    /// Those of the operating system.
    fn listen(&self) -> Result<Box<dyn Listener>>;

    /// Starts to connect to a listener. The result is polled.
    ///
    /// # Errors
    /// An address that is not this transport's, or what the operating system says at once.
    fn connect(&self, address: &Address) -> Result<Box<dyn Connecting>>;

    /// Makes a region known to the device. May run beside posting on any channel. The region is unknown again, and no
    /// longer touched by anybody, when the returned guard has been dropped.
    ///
    /// # Errors
    /// Where the device cannot address the memory or a limit on locked memory stands in the way.
    fn register(&self, region: &std::sync::Arc<crate::Region>) -> Result<Registration>;
}

/// Keeps a region registered; dropping it deregisters, and returns only when nobody touches the memory any more.
#[derive(Debug)]
pub struct Registration {
    _guard: Option<Box<dyn RegistrationGuard>>,
}

impl Registration {
    /// The registration of a transport that needs none.
    #[must_use]
    pub const fn nothing() -> Self {
        Self { _guard: None }
    }

    /// A registration that ends when `guard` is dropped.
    #[must_use]
    pub fn new(guard: Box<dyn RegistrationGuard>) -> Self {
        Self { _guard: Some(guard) }
    }
}

/// What a transport drops to deregister a region.
pub trait RegistrationGuard: Send + Sync + fmt::Debug {}

/// A listening endpoint. Strangers that connect are dropped and counted, without disturbing anyone.
pub trait Listener: Send + fmt::Debug {
    /// Where it can be reached.
    fn address(&self) -> Address;

    /// The next channel whose connection has been established and authenticated, if there is one.
    ///
    /// # Errors
    /// Those of the listening socket itself; failing connections only count as strangers.
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvChannel>>>;

    /// Connections dropped so far because they did not authenticate.
    fn strangers(&self) -> u64;
}

/// A connection being made.
pub trait Connecting: Send + fmt::Debug {
    /// The channel, once it is established and authenticated.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`] or [`crate::Error::Refused`]; the attempt is over then.
    fn poll(&mut self) -> Result<Option<Box<dyn SendChannel>>>;
}

/// The sending end of a channel.
pub trait SendChannel: Send + fmt::Debug {
    /// Sends `slice`, after everything posted before. The memory may be read until the completion has been polled.
    /// `None` if the channel is full.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`]; the channel is dead then, but outstanding memory is no longer touched.
    fn post(&mut self, slice: &Slice, tag: u64) -> Result<Option<Ticket>>;

    /// Moves bytes if possible, and gives the next completion, in the order posted.
    ///
    /// # Errors
    /// As [`SendChannel::post`].
    fn poll(&mut self) -> Result<Option<Completion>>;

    /// The descriptors to wait on (for writing or reading) while posts are outstanding; empty if the channel must be polled.
    fn descriptors(&self) -> Vec<std::os::fd::RawFd>;
}

/// The receiving end of a channel.
pub trait RecvChannel: Send + fmt::Debug {
    /// Receives the next messages, one for each part (1 to [`Caps::max_group`]), told apart by their tags. The memory may
    /// be written until the completion has been polled. `None` if too much is outstanding.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`]; [`crate::Error::Truncated`] if a message is longer than its part. The channel is dead
    /// then, but outstanding memory is no longer touched.
    fn post(&mut self, parts: &[Part]) -> Result<Option<Ticket>>;

    /// Makes completed receives visible to the device that owns `slices`. Host memory is visible at once.
    ///
    /// # Errors
    /// As [`RecvChannel::post`].
    fn flush(&mut self, slices: &[Slice]) -> Result<Option<Ticket>>;

    /// Moves bytes if possible, and gives the next completion, in the order posted.
    ///
    /// # Errors
    /// As [`RecvChannel::post`].
    fn poll(&mut self) -> Result<Option<Completion>>;

    /// The descriptors to wait on (for reading) while receives are outstanding; empty if the channel must be polled.
    fn descriptors(&self) -> Vec<std::os::fd::RawFd>;
}
