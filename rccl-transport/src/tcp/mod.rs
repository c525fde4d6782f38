//! Channels over TCP: several non-blocking sockets each, authenticated, without threads.
//!
//! A message is cut into chunks, and each chunk goes over whichever socket takes it, so that a faster socket carries more.
//! The receiver reads payloads straight into posted memory and leaves its sockets unread while nothing is posted, which
//! holds the sender back.
//!
//! ```
//! use rccl_transport::{Region, Secret, channel::{Part, Transport as _}, tcp};
//! use std::time::{Duration, Instant};
//!
//! let transport = tcp::Transport::new(tcp::Options::loopback(), Secret::random()?)?;
//! let mut listener = transport.listen()?;
//! let mut connecting = transport.connect(&listener.address())?;
//! let (mut sender, mut receiver) = (None, None);
//! let give_up = Instant::now() + Duration::from_secs(60);
//! while sender.is_none() || receiver.is_none() {
//!     assert!(Instant::now() < give_up);
//!     if sender.is_none() { sender = connecting.poll()? }
//!     if receiver.is_none() { receiver = listener.poll_accept()? }
//! }
//! let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
//!
//! let message = Region::from_vec(b"hello".to_vec());
//! let room = Region::zeroed(16);
//! receiver.post(&[Part { slice: room.slice(0..16), tag: 0 }])?.expect("nothing is outstanding");
//! sender.post(&message.slice(0..5), 0)?.expect("nothing is outstanding");
//! let received = loop {
//!     assert!(Instant::now() < give_up);
//!     if let Some(done) = receiver.poll()? { break done }
//! };
//! assert_eq!(received.lengths[..], [5]);
//! # Ok::<(), rccl_transport::Error>(())
//! ```

pub(crate) mod address;
mod connect;
mod listen;
mod options;
mod recv;
mod send;
mod wire;

use std::{net::TcpStream, sync::Arc, time::Duration};

pub use self::{
    address::candidates,
    options::{DEFAULT_SOCKETS, MAX_SOCKETS, Options, SOCKETS_VARIABLE},
};
use crate::{
    Error, Region, Result, Secret,
    channel::{self, Address, Caps, Connecting, Listener, MAX_GROUP, Registration},
};

/// Messages that may be outstanding on one channel: what NCCL may have outstanding, 32 groups of 8.
const DEPTH: usize = 32 * MAX_GROUP;

/// Bytes read beyond a chunk's payload with the same system call. Short messages come whole with their header.
const READ_AHEAD_BYTES: usize = 16 << 10;

/// How often a call goes round all sockets of its channel before it returns, however much there is to do.
const ROUNDS: usize = 8;

/// Seconds without traffic before the kernel asks whether the other host is alive, and between its questions.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_QUESTIONS: u32 = 4;

/// Makes channels over TCP.
#[derive(Debug)]
pub struct Transport {
    options: Options,
    secret: Secret,
    caps: Caps,
}

impl Transport {
    /// A transport that listens on the addresses of `options` and talks to those who know `secret`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the options make no sense.
    pub fn new(options: Options, secret: Secret) -> Result<Self> {
        options.check()?;
        let caps = Caps {
            name: "tcp",
            device: options.device(),
            speed_mbps: options.speed_mbps,
            depth: DEPTH,
            max_group: MAX_GROUP,
            max_message_bytes: 1 << 40,
            needs_registration: false,
        };
        Ok(Self { options, secret, caps })
    }
}

impl channel::Transport for Transport {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn listen(&self) -> Result<Box<dyn Listener>> {
        Ok(Box::new(listen::Listening::new(&self.options.addresses, &self.secret)?))
    }

    fn connect(&self, address: &Address) -> Result<Box<dyn Connecting>> {
        let (id, candidates) = address::decode(address::TCP, address)?;
        Ok(Box::new(connect::Dialing::new(id, &candidates, &self.options, &self.secret)?))
    }

    fn register(&self, _: &Arc<Region>) -> Result<Registration> {
        Ok(Registration::nothing())
    }
}

/// Bytes of each of the two buffers of a socket whose other end is on this host: few enough that what one side has written is
/// still in the processor's cache when the other reads it. Left to itself the system lets them grow until it is not.
const LOCAL_BUFFER_BYTES: usize = 512 << 10;

/// Lets even a receiver that only waits notice that the other host has vanished. Sockets come here non-blocking and without
/// delay of small messages.
pub(crate) fn prepare(stream: &TcpStream) -> Result<()> {
    use rustix::net::sockopt;
    let ends = stream.local_addr().and_then(|near| Ok((near.ip(), stream.peer_addr()?.ip())));
    if ends.is_ok_and(|(near, far)| near == far) {
        sockopt::set_socket_send_buffer_size(stream, LOCAL_BUFFER_BYTES)
            .and_then(|()| sockopt::set_socket_recv_buffer_size(stream, LOCAL_BUFFER_BYTES))
            .map_err(|errno| Error::io("the size of a socket's buffers", errno))?;
    }
    sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, KEEPALIVE_QUESTIONS))
        .map_err(|errno| Error::io("SO_KEEPALIVE", errno))
}

/// Tells a listener from others that had its port before, or have the same address on another host. Random.
pub(crate) type ListenerId = [u8; 8];

/// The secret of a listener's connections: whoever means another listener does not know it.
pub(crate) fn listener_secret(secret: &Secret, id: ListenerId) -> Secret {
    secret.derive(&format!("tcp listener {:016x}", u64::from_le_bytes(id)))
}

/// A socket's place in its channel, which it tells in its hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Berth {
    /// The channel's random name.
    channel: [u8; 16],
    /// The socket's place among the channel's sockets.
    index: u8,
    /// How many there are.
    count: u8,
}

impl Berth {
    fn encode(self) -> Vec<u8> {
        [&self.channel[..], &[self.index, self.count]].concat()
    }

    /// What the bytes say; `None` if they make no sense.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (channel, rest) = bytes.split_first_chunk()?;
        let &[index, count] = rest else { return None };
        let sensible = index < count && usize::from(count) <= MAX_SOCKETS;
        sensible.then_some(Self { channel: *channel, index, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn berths_say_what_they_were_given() {
        let said = Berth { channel: [2; 16], index: 3, count: 4 };
        let bytes = said.encode();
        assert_eq!(Berth::decode(&bytes), Some(said));
        assert_eq!(Berth::decode(&bytes[1..]), None);
        for (index, count) in [(4, 4), (0, 0), (0, MAX_SOCKETS as u8 + 1)] {
            assert_eq!(Berth::decode(&Berth { index, count, ..said }.encode()), None);
        }
    }
}
