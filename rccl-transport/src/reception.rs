//! Who comes in through listening sockets: those who authenticate in time are guests, the others strangers, dropped and
//! counted without disturbing anyone.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    time::Duration,
};

use rustix::event::{PollFd, PollFlags};

use crate::{Error, Hello, Purpose, Result, Secret, deadline::Deadline};

/// How long a connection may take over its hello, unless told otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Connections in the middle of their hello; the oldest goes when one more comes. Twice the largest group.
const MAX_CALLERS: usize = 2048;

/// A listening socket.
pub(crate) trait Door: AsFd {
    /// A connection through it.
    type Stream: Read + Write + AsFd;

    /// The next connection, non-blocking, and who it is from.
    fn open(&self) -> io::Result<(Self::Stream, String)>;
}

impl Door for TcpListener {
    type Stream = TcpStream;

    fn open(&self) -> io::Result<(TcpStream, String)> {
        let (stream, from) = self.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok((stream, from.to_string()))
    }
}

impl Door for UnixListener {
    type Stream = UnixStream;

    fn open(&self) -> io::Result<(UnixStream, String)> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok((stream, "a process of this host".into()))
    }
}

/// A connection that has authenticated.
#[derive(Debug)]
pub(crate) struct Guest<S> {
    pub(crate) stream: S,
    pub(crate) from: String,
    pub(crate) payload: Vec<u8>,
}

/// Listening sockets and the connections that are in the middle of their hello, polled.
#[derive(Debug)]
pub(crate) struct Reception<D: Door> {
    doors: Vec<D>,
    secret: Secret,
    purpose: Purpose,
    answer: Vec<u8>,
    patience: Duration,
    callers: VecDeque<Caller<D::Stream>>,
    strangers: u64,
}

#[derive(Debug)]
struct Caller<S> {
    stream: S,
    from: String,
    hello: Hello,
    deadline: Deadline,
}

impl<D: Door> Reception<D> {
    /// Takes over listening sockets, which must be non-blocking. `answer` is told to those who authenticate.
    pub(crate) fn new(
        doors: Vec<D>,
        secret: &Secret,
        purpose: Purpose,
        answer: &[u8],
        patience: Duration,
    ) -> Self {
        let (secret, answer) = (secret.clone(), answer.to_vec());
        Self { doors, secret, purpose, answer, patience, callers: VecDeque::new(), strangers: 0 }
    }

    /// Connections dropped so far because they did not authenticate in time. Those that left by themselves do not count.
    pub(crate) const fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Counts one more stranger, found out after its hello.
    pub(crate) const fn count_stranger(&mut self) {
        self.strangers += 1;
    }

    /// Lets in whoever waits, without blocking, and gives those who have authenticated since.
    ///
    /// # Errors
    /// Those of the listening sockets themselves.
    pub(crate) fn advance(&mut self) -> Result<Vec<Guest<D::Stream>>> {
        for index in 0..self.doors.len() {
            self.accept(index)?;
        }
        let mut guests = Vec::new();
        for _ in 0..self.callers.len() {
            let Some(mut caller) = self.callers.pop_front() else { break };
            match caller.hello.advance(&mut caller.stream) {
                Ok(Some(hello)) => {
                    guests.push(Guest { stream: caller.stream, from: caller.from, payload: hello.payload });
                }
                Ok(None) if !caller.deadline.is_over() => self.callers.push_back(caller),
                Ok(None) => self.drop_stranger(&caller.from, "no hello in time"),
                // A member that tries several addresses at once leaves those that it does not need.
                Err(Error::PeerLost { .. }) => {
                    tracing::debug!("{} left before its hello was done", caller.from)
                }
                Err(error) => self.drop_stranger(&caller.from, &error),
            }
        }
        Ok(guests)
    }

    fn accept(&mut self, door: usize) -> Result<()> {
        // Bounded, so that a flood of strangers cannot keep everyone else waiting.
        for _ in 0..MAX_CALLERS {
            match self.doors[door].open() {
                Ok((stream, from)) => {
                    let hello =
                        Hello::respond(&self.secret, self.purpose)?.answering(&self.answer)?.with_peer(&from);
                    let deadline = Deadline::after(self.patience);
                    if self.callers.len() == MAX_CALLERS {
                        self.drop_oldest();
                    }
                    self.callers.push_back(Caller { stream, from, hello, deadline });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_exhausted(&error) => {
                    if !self.drop_oldest() {
                        return Err(Error::io("accept", error));
                    }
                }
                // Whoever came is gone again: not a fault of the socket.
                Err(error) => tracing::debug!("accept: {error}"),
            }
        }
        Ok(())
    }

    fn drop_oldest(&mut self) -> bool {
        let oldest = self.callers.pop_front();
        if let Some(caller) = &oldest {
            self.drop_stranger(&caller.from, "too many connections without a hello");
        }
        oldest.is_some()
    }

    fn drop_stranger(&mut self, from: &str, why: impl std::fmt::Display) {
        self.strangers += 1;
        tracing::debug!("dropped a stranger, {from}: {why}");
    }

    /// Adds what to wait for.
    pub(crate) fn watch<'a>(&'a self, descriptors: &mut Vec<PollFd<'a>>) {
        descriptors
            .extend(self.doors.iter().map(|door| PollFd::from_borrowed_fd(door.as_fd(), PollFlags::IN)));
        descriptors.extend(
            self.callers
                .iter()
                .map(|caller| PollFd::from_borrowed_fd(caller.stream.as_fd(), caller.hello.interest())),
        );
    }

    /// How long until the next caller's time is up.
    pub(crate) fn wake(&self) -> Option<Duration> {
        self.callers.iter().map(|caller| caller.deadline.remaining()).min()
    }
}

/// Whether no more connections can be held, by this process or by the machine.
fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [
        rustix::io::Errno::MFILE,
        rustix::io::Errno::NFILE,
        rustix::io::Errno::NOBUFS,
        rustix::io::Errno::NOMEM,
    ];
    exhausted.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{connect::listen_on, deadline::wait};

    const LONG: Duration = Duration::from_secs(60);

    /// Receives until there are `guests` guests and `strangers` strangers.
    fn receive(
        reception: &mut Reception<TcpListener>,
        guests: usize,
        strangers: u64,
    ) -> Vec<Guest<TcpStream>> {
        let deadline = Deadline::after(LONG);
        let mut found = Vec::new();
        while found.len() < guests || reception.strangers() < strangers {
            deadline.check("everyone").unwrap();
            found.extend(reception.advance().unwrap());
            let mut descriptors = Vec::new();
            reception.watch(&mut descriptors);
            let next =
                reception.wake().map_or(Duration::from_millis(1), |left| left.min(Duration::from_millis(1)));
            wait(&mut descriptors, &Deadline::after(next)).unwrap();
        }
        found
    }

    #[test]
    fn guests_come_in_and_strangers_are_counted() {
        let secret = Secret::random().unwrap();
        let door = listen_on("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = door.local_addr().unwrap();
        let mut reception = Reception::new(vec![door], &secret, Purpose::Control, b"welcome", LONG);
        let _silent = TcpStream::connect(address).unwrap();
        let mut garbage = TcpStream::connect(address).unwrap();
        garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut half = TcpStream::connect(address).unwrap();
        half.write_all(b"\x8frccl").unwrap();
        drop(half);
        let guest = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let hello = Hello::initiate(&secret, Purpose::Control, b"me").unwrap();
            hello.finish(&mut stream, &Deadline::after(LONG)).unwrap().payload
        });
        let guests = receive(&mut reception, 1, 1);
        assert_eq!(guests[0].payload, b"me");
        assert_eq!(guest.join().unwrap(), b"welcome");
        assert_eq!(reception.strangers(), 1);
        assert!(!reception.callers.is_empty(), "the silent one may still speak");
    }

    #[test]
    fn the_silent_are_dropped_when_patience_ends() {
        let secret = Secret::random().unwrap();
        let door = listen_on("127.0.0.1:0".parse().unwrap()).unwrap();
        let _silent = TcpStream::connect(door.local_addr().unwrap()).unwrap();
        let mut reception =
            Reception::new(vec![door], &secret, Purpose::Control, b"", Duration::from_millis(1));
        assert!(receive(&mut reception, 0, 1).is_empty());
        assert!(reception.wake().is_none());
    }

    #[test]
    fn a_flood_pushes_out_the_oldest() {
        let secret = Secret::random().unwrap();
        let door = listen_on("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut reception = Reception::new(vec![door], &secret, Purpose::Control, b"", PATIENCE);
        assert!(!reception.drop_oldest());
        let _first = TcpStream::connect(reception.doors[0].local_addr().unwrap()).unwrap();
        while reception.callers.is_empty() {
            reception.advance().unwrap();
        }
        assert!(reception.drop_oldest());
        assert_eq!(reception.strangers(), 1);
    }
}
