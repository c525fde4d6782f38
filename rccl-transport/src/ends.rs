//! The two ends of a channel over a wire of bytes: what tcp and shm have in common.

use std::{fmt, os::fd::RawFd};

use crate::{
    Result, Slice,
    channel::{Completion, Part, RecvChannel, SendChannel, Ticket},
    fault::{Fault, Step},
    inbox::Inbox,
    outbox::Outbox,
};

/// Writes chunks of messages to wherever the other end reads them.
pub(crate) trait Writer: Send + fmt::Debug {
    /// Writes what can be written now. Bounded, however much there is.
    fn advance(&mut self, outbox: &mut Outbox) -> Step<()>;

    /// As [`SendChannel::descriptors`].
    fn descriptors(&self) -> Vec<RawFd>;
}

/// Reads chunks of messages to where the inbox wants them.
pub(crate) trait Reader: Send + fmt::Debug {
    /// Goes on with what has been read already and waited for a receive, without system calls.
    fn resume(&mut self, inbox: &mut Inbox) -> Step<()>;

    /// Reads what is there for posted receives. Bounded, however much there is.
    fn advance(&mut self, inbox: &mut Inbox) -> Step<()>;

    /// As [`RecvChannel::descriptors`].
    fn descriptors(&self, inbox: &Inbox) -> Vec<RawFd>;
}

/// The sending end. The first fault is kept in place of the wire, so that nothing is touched any more.
#[derive(Debug)]
pub(crate) struct Sending<W> {
    peer: String,
    /// Gone before the memory that it reads, also when dropped.
    wire: std::result::Result<W, Fault>,
    outbox: Outbox,
}

impl<W: Writer> Sending<W> {
    pub(crate) const fn new(peer: String, depth: usize, writer: W) -> Self {
        Self { peer, outbox: Outbox::new(depth), wire: Ok(writer) }
    }

    /// Writes what can be written now.
    fn advance(&mut self) -> Result<()> {
        let step =
            self.wire.as_mut().map_err(|fault| fault.clone()).and_then(|wire| wire.advance(&mut self.outbox));
        step.map_err(|fault| {
            let error = fault.error(&self.peer);
            self.wire = Err(fault);
            self.outbox.fail();
            error
        })
    }
}

impl<W: Writer> SendChannel for Sending<W> {
    fn post(&mut self, slice: &Slice, tag: u64) -> Result<Option<Ticket>> {
        if let Err(fault) = &self.wire {
            return Err(fault.error(&self.peer));
        }
        // What earlier posts left unwritten could not be written a moment ago.
        let clogged = self.outbox.next_offset().is_some();
        let ticket = self.outbox.post(slice, tag);
        if ticket.is_some() && !clogged {
            self.advance()?;
        }
        Ok(ticket)
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        if let Some(done) = self.outbox.complete() {
            return Ok(Some(done));
        }
        let moved = self.advance();
        match self.outbox.complete() {
            Some(done) => Ok(Some(done)),
            None => moved.map(|()| None),
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.wire.as_ref().map(W::descriptors).unwrap_or_default()
    }
}

/// The receiving end, as [`Sending`].
#[derive(Debug)]
pub(crate) struct Receiving<R> {
    peer: String,
    /// Gone before the memory that it writes, also when dropped.
    wire: std::result::Result<R, Fault>,
    inbox: Inbox,
}

impl<R: Reader> Receiving<R> {
    pub(crate) const fn new(peer: String, depth: usize, reader: R) -> Self {
        Self { peer, inbox: Inbox::new(depth), wire: Ok(reader) }
    }

    /// Lets the wire do something.
    fn step(&mut self, step: fn(&mut R, &mut Inbox) -> Step<()>) -> Result<()> {
        let step =
            self.wire.as_mut().map_err(|fault| fault.clone()).and_then(|wire| step(wire, &mut self.inbox));
        step.map_err(|fault| {
            let error = fault.error(&self.peer);
            self.wire = Err(fault);
            self.inbox.fail();
            error
        })
    }

    fn check(&self) -> Result<()> {
        self.wire.as_ref().map_or_else(|fault| Err(fault.error(&self.peer)), |_| Ok(()))
    }
}

impl<R: Reader> RecvChannel for Receiving<R> {
    fn post(&mut self, parts: &[Part]) -> Result<Option<Ticket>> {
        self.check()?;
        let ticket = self.inbox.post(parts)?;
        if ticket.is_some() {
            self.step(R::resume)?;
        }
        Ok(ticket)
    }

    fn flush(&mut self, _: &[Slice]) -> Result<Option<Ticket>> {
        self.check()?;
        Ok(self.inbox.flush())
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        if let Some(done) = self.inbox.complete() {
            return Ok(Some(done));
        }
        let moved = self.step(R::advance);
        match self.inbox.complete() {
            Some(done) => Ok(Some(done)),
            None => moved.map(|()| None),
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.wire.as_ref().map(|wire| wire.descriptors(&self.inbox)).unwrap_or_default()
    }
}
