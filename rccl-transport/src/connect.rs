//! Connections to whichever of a peer's addresses answers first.
//!
//! Attempts start in order of preference, the next one when all before it have failed or [`STAGGER`] has passed ("happy
//! eyeballs"), and go on side by side until one succeeds: an address that swallows packets costs no more than the stagger.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

use crate::{
    Error, Hello, Result,
    deadline::{Deadline, wait},
    interface::with_scopes,
};

/// How long an attempt goes on alone before the next one is started beside it.
pub const STAGGER: Duration = Duration::from_millis(200);

/// Connections that may wait to be accepted: every member of the largest group at once.
const BACKLOG: i32 = 4096;

/// Listens on `address`; port 0 picks a free one. Non-blocking, and closed on exec.
///
/// # Errors
/// [`Error::Io`] if the address is not this host's or the port is taken.
pub fn listen_on(address: SocketAddr) -> Result<TcpListener> {
    let open = || -> rustix::io::Result<_> {
        let socket = socket_for(&address)?;
        // A launcher may start the next run on the same port right away.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    Ok(open().map_err(|errno| Error::io(format!("listen on {address}"), errno))?.into())
}

fn socket_for(address: &SocketAddr) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Connects to the first of `addresses`, all of one peer, that can be reached. The stream is non-blocking and sends small
/// messages at once. Blocks until then or until the deadline. Who answers is for a [`Hello`] to say.
///
/// # Errors
/// With every address and why it failed: [`Error::PeerLost`] if none can be reached, [`Error::Timeout`] if some did not
/// answer.
///
/// ```
/// use rccl_transport::{connect, deadline::Deadline};
/// use std::{net::TcpListener, time::Duration};
///
/// let listener = TcpListener::bind("127.0.0.1:0").unwrap();
/// let address = listener.local_addr().unwrap();
/// let (_stream, reached) = connect::connect_any(&[address], &Deadline::after(Duration::from_secs(10)))?;
/// assert_eq!(reached, address);
/// # Ok::<(), rccl_transport::Error>(())
/// ```
pub fn connect_any(addresses: &[SocketAddr], deadline: &Deadline) -> Result<(TcpStream, SocketAddr)> {
    let connected =
        Race::new("the peer", addresses, Box::new(|_| Ok(None)))?.finish("a connection", deadline)?;
    Ok((connected.stream, connected.address))
}

/// Makes the hello to be said at an address, if one is to be.
pub(crate) type Greet = Box<dyn Fn(SocketAddr) -> Result<Option<Hello>> + Send>;

/// The attempt that won.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
}

/// Attempts to reach one peer at several addresses, polled.
pub(crate) struct Race {
    peer: String,
    greet: Greet,
    waiting: VecDeque<SocketAddr>,
    running: Vec<Attempt>,
    failed: Vec<(SocketAddr, Error)>,
    last_start: Option<Instant>,
}

#[derive(Debug)]
struct Attempt {
    address: SocketAddr,
    stream: TcpStream,
    /// `None` until the connection stands.
    hello: Option<Hello>,
}

impl Race {
    /// Attempts at the `addresses` of `peer`, none of which has been started.
    pub(crate) fn new(peer: impl fmt::Display, addresses: &[SocketAddr], greet: Greet) -> Result<Self> {
        let waiting = with_scopes(addresses)?.into();
        let peer = peer.to_string();
        Ok(Self { peer, greet, waiting, running: Vec::new(), failed: Vec::new(), last_start: None })
    }

    /// Moves on as far as possible without blocking. `None`: wait for what [`Race::watch`] and [`Race::wake`] say.
    ///
    /// # Errors
    /// When the last attempt has failed.
    pub(crate) fn advance(&mut self) -> Result<Option<Connected>> {
        loop {
            let mut index = 0;
            while index < self.running.len() {
                match self.running[index].advance(&self.greet) {
                    Ok(false) => index += 1,
                    Ok(true) => {
                        let Attempt { address, stream, .. } = self.running.swap_remove(index);
                        return Ok(Some(Connected { stream, address }));
                    }
                    Err(error) => {
                        let attempt = self.running.swap_remove(index);
                        self.failed.push((attempt.address, error));
                    }
                }
            }
            if !self.running.is_empty() && self.wake().is_none_or(|left| !left.is_zero()) {
                return Ok(None);
            }
            let Some(address) = self.waiting.pop_front() else { return Err(self.defeat()) };
            self.last_start = Some(Instant::now());
            match Attempt::start(address) {
                Ok(attempt) => self.running.push(attempt),
                Err(error) => self.failed.push((address, error)),
            }
        }
    }

    /// How long until the next attempt is due, if one is left.
    pub(crate) fn wake(&self) -> Option<Duration> {
        let last = self.last_start.filter(|_| !self.waiting.is_empty())?;
        Some(STAGGER.saturating_sub(last.elapsed()))
    }

    /// Adds what to wait for.
    pub(crate) fn watch<'a>(&'a self, descriptors: &mut Vec<PollFd<'a>>) {
        descriptors.extend(self.running.iter().map(|attempt| {
            let flags = attempt.hello.as_ref().map_or(PollFlags::OUT, Hello::interest);
            PollFd::from_borrowed_fd(attempt.stream.as_fd(), flags)
        }));
    }

    /// Every address and how it stands with it.
    pub(crate) fn status(&self) -> String {
        let mut text = String::new();
        for (address, error) in &self.failed {
            let why = match error {
                Error::Io { source, .. } => source.to_string(),
                Error::PeerLost { cause, .. } => cause.clone(),
                Error::Refused { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            let _ = write!(text, "{address}: {why}; ");
        }
        for attempt in &self.running {
            let what = if attempt.hello.is_some() { "connected, but no hello yet" } else { "no answer" };
            let _ = write!(text, "{}: {what}; ", attempt.address);
        }
        for address in &self.waiting {
            let _ = write!(text, "{address}: not tried yet; ");
        }
        text.truncate(text.trim_end_matches("; ").len());
        if text.is_empty() { "it has no address".into() } else { text }
    }

    /// Whether every attempt failed because nobody listens there (yet).
    pub(crate) fn nobody_listens(&self) -> bool {
        let closed = |(_, error): &(SocketAddr, Error)| matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused);
        self.running.is_empty() && self.waiting.is_empty() && self.failed.iter().any(closed)
    }

    fn defeat(&self) -> Error {
        let refused = self.failed.iter().any(|(_, error)| matches!(error, Error::Refused { .. }));
        let peer = self.peer.clone();
        if refused {
            Error::Refused { peer, reason: self.status() }
        } else {
            Error::PeerLost {
                peer,
                cause: format!("none of its addresses can be reached ({})", self.status()),
            }
        }
    }

    /// Blocks until an attempt has won.
    pub(crate) fn finish(&mut self, what: &str, deadline: &Deadline) -> Result<Connected> {
        loop {
            if let Some(connected) = self.advance()? {
                return Ok(connected);
            }
            deadline.check(&format!("{what} ({})", self.status()))?;
            let mut descriptors = Vec::new();
            self.watch(&mut descriptors);
            let next = self.wake().map_or(*deadline, |left| deadline.at_most(left));
            wait(&mut descriptors, &next)?;
        }
    }
}

impl fmt::Debug for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Race({})", self.status())
    }
}

impl Attempt {
    fn start(address: SocketAddr) -> Result<Self> {
        let failed = |errno: Errno| Error::io(format!("connect to {address}"), errno);
        let socket = socket_for(&address).map_err(failed)?;
        sockopt::set_tcp_nodelay(&socket, true).map_err(failed)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(failed(errno)),
        }
        Ok(Self { address, stream: socket.into(), hello: None })
    }

    /// Whether the connection stands and the hello, if one is to be said, has been said.
    fn advance(&mut self, greet: &Greet) -> Result<bool> {
        if self.hello.is_none() {
            if !self.is_connected()? {
                return Ok(false);
            }
            match greet(self.address)? {
                None => return Ok(true),
                Some(hello) => self.hello = Some(hello),
            }
        }
        let Some(hello) = &mut self.hello else { return Ok(false) };
        Ok(hello.advance(&mut self.stream)?.is_some())
    }

    fn is_connected(&self) -> Result<bool> {
        let failed = |error| Error::io(format!("connect to {}", self.address), error);
        if let Some(error) = self.stream.take_error().map_err(failed)? {
            return Err(failed(error));
        }
        match self.stream.peer_addr() {
            // A free port of this host can be given to the very socket that connects to it.
            Ok(peer) if self.stream.local_addr().is_ok_and(|local| local == peer) => {
                Err(failed(io::ErrorKind::ConnectionRefused.into()))
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}

/// A port of this host where nobody listens, which nobody else gets while the socket is kept, but which [`listen_on`] can
/// still listen on.
#[cfg(test)]
pub(crate) fn reserve(address: &str) -> Result<(std::os::fd::OwnedFd, SocketAddr)> {
    let address: SocketAddr = address.parse().expect("an address");
    let failed = |errno: Errno| Error::io(format!("reserve {address}"), errno);
    let socket = socket_for(&address).map_err(failed)?;
    sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    let socket = TcpListener::from(socket);
    let address = socket.local_addr().map_err(|error| Error::io("getsockname", error))?;
    Ok((socket.into(), address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Purpose, Secret};

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = listen_on("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn closed_ports_fail_at_once_and_are_all_named() {
        let [(_one, one), (_two, two)] = ["127.0.0.1:0"; 2].map(|text| reserve(text).unwrap());
        let error = connect_any(&[one, two], &Deadline::after(LONG)).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        for address in [one, two] {
            assert!(error.to_string().contains(&format!("{address}: Connection refused")), "{error}");
        }
        let error = connect_any(&[], &Deadline::after(LONG)).unwrap_err().to_string();
        assert!(error.contains("it has no address"), "{error}");
    }

    #[test]
    fn an_address_that_swallows_packets_does_not_hold_up_the_next() {
        let (_listener, open) = listener();
        let (full, silent) = listener();
        // With its queue shortened and filled, the kernel drops what else comes.
        rustix::net::listen(&full, 0).unwrap();
        let _queued = connect_any(&[silent], &Deadline::after(LONG)).unwrap();
        let error = connect_any(&[silent], &Deadline::after(Duration::from_millis(5))).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{silent}: no answer")), "{error}");
        let (_stream, address) = connect_any(&[silent, open], &Deadline::after(LONG)).unwrap();
        assert_eq!(address, open);
    }

    #[test]
    fn whoever_does_not_know_the_secret_loses_the_race() {
        let secret = Secret::random().unwrap();
        let ((wrong, first), (right, second)) = (listener(), listener());
        let strange = Secret::random().unwrap();
        let answer = |listener: TcpListener, secret: Secret| {
            std::thread::spawn(move || {
                let deadline = Deadline::after(LONG);
                crate::deadline::wait_one(&listener, PollFlags::IN, &deadline).unwrap();
                let (mut stream, _) = listener.accept().unwrap();
                Hello::respond(&secret, Purpose::Control)
                    .unwrap()
                    .finish(&mut stream, &deadline)
                    .map(|hello| hello.payload)
            })
        };
        let (wrong, right) = (answer(wrong, strange), answer(right, secret.clone()));
        let greet: Greet = Box::new(move |address| {
            Ok(Some(Hello::initiate(&secret, Purpose::Control, b"me")?.with_peer(address)))
        });
        let connected = Race::new("rank 1", &[first, second], greet)
            .unwrap()
            .finish("a hello", &Deadline::after(LONG))
            .unwrap();
        assert_eq!(connected.address, second);
        assert_eq!(right.join().unwrap().unwrap(), b"me");
        assert!(matches!(wrong.join().unwrap(), Err(Error::Refused { .. })));
    }
}
