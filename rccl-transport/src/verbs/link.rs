//! The tcp connection beside a channel's queue pairs.

use std::{
    collections::VecDeque,
    net::TcpStream,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::OnceLock,
};

use super::{
    MAX_QUEUE_PAIRS,
    exchange::{Frame, MAX_FRAME_BYTES},
};
use crate::{
    Error, Result,
    fault::{Fault, Step},
    wire::{FrameReader, FrameWriter},
};

/// Messages to and from the other side, without blocking.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    reader: FrameReader,
    writing: VecDeque<FrameWriter>,
}

impl Link {
    /// Over a connection that has authenticated and does not block.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, reader: FrameReader::new(MAX_FRAME_BYTES), writing: VecDeque::new() }
    }

    /// Sends a message as soon as the connection takes it. Few are sent, so they need no other bound.
    ///
    /// # Errors
    /// The connection's end.
    pub(super) fn say(&mut self, frame: &Frame) -> Step<()> {
        self.writing.push_back(FrameWriter::new(&frame.encode()));
        self.push()
    }

    fn push(&mut self) -> Step<()> {
        while let Some(writer) = self.writing.front_mut() {
            if !writer.advance(&mut self.stream)? {
                break;
            }
            self.writing.pop_front();
        }
        Ok(())
    }

    /// The next message, if one has come.
    ///
    /// # Errors
    /// The connection's end, and what is no message.
    pub(super) fn hear(&mut self) -> Step<Option<Frame>> {
        self.push()?;
        match self.reader.advance(&mut self.stream) {
            Ok(None) => Ok(None),
            Ok(Some(bytes)) => {
                let frame = Frame::decode(&bytes, MAX_QUEUE_PAIRS);
                frame.map(Some).map_err(|malformed| Fault::protocol(malformed.0))
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Fault::Lost("its process is gone or has closed the channel".into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What to wait for reading on.
    pub(super) fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// A descriptor that is always ready, for whoever waits although there is something to do already.
///
/// # Errors
/// [`Error::Io`] if there is no descriptor left, the first time.
pub(super) fn always_ready() -> Result<RawFd> {
    static READY: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(ready) = READY.get() {
        return Ok(ready.as_raw_fd());
    }
    let ready = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC)
        .map_err(|errno| Error::io("eventfd", errno))?;
    Ok(READY.get_or_init(|| ready).as_raw_fd())
}
