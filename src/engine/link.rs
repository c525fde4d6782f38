use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

use super::frame::{Frame, MAX_FRAME_BYTES};

/// The control link to one peer. Non-blocking.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
    /// When the peer was last heard of.
    pub(crate) heard: Instant,
    /// Whether the peer has said goodbye.
    pub(crate) left: bool,
}

/// The most bytes that wait to be sent to a peer that does not read. Such a peer is stopped; heartbeats it did not read are
/// of no use to it later.
const MAX_OUTBOX_BYTES: usize = 64 << 10;

/// Why a link can no longer be used.
pub(crate) type Broken = String;

impl Link {
    /// A link over an authenticated, non-blocking stream.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, inbox: Vec::new(), outbox: VecDeque::new(), heard: Instant::now(), left: false }
    }

    /// The descriptor to wait on.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether bytes wait for the link to become writable.
    pub(crate) fn is_full(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Queues a frame and sends what can be sent.
    pub(crate) fn send(&mut self, frame: &Frame) -> Result<(), Broken> {
        if self.outbox.len() < MAX_OUTBOX_BYTES {
            self.outbox.extend(frame.encode());
        }
        self.flush()
    }

    /// Sends what can be sent.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        while !self.outbox.is_empty() {
            let (bytes, _) = self.outbox.as_slices();
            match self.stream.write(bytes) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Reads the frames that have arrived. A closed or broken link is reported after the frames that came before.
    pub(crate) fn receive(&mut self, frames: &mut Vec<Frame>) -> Result<(), Broken> {
        let mut bytes = [0; MAX_FRAME_BYTES];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("its connection was closed without a goodbye".to_owned()),
                Ok(len) => {
                    self.heard = Instant::now();
                    self.inbox.extend_from_slice(&bytes[..len]);
                    while let Some(frame) = Frame::decode(&mut self.inbox)? {
                        self.left |= frame == Frame::Goodbye;
                        frames.push(frame);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}
