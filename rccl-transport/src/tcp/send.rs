//! The sending end of a tcp channel.

use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, AsRawFd, RawFd},
};

use super::{
    DEPTH, ROUNDS,
    wire::{self, CHUNK_BYTES, FIRST_CHUNK_BYTES, HEADER_BYTES, SOLE_CHUNK_BYTES},
};
use crate::{
    Result, Slice,
    channel::{Completion, SendChannel, Ticket},
    fault::{Fault, Step},
    outbox::Outbox,
    sys::socket,
};

/// Sends messages in chunks over its sockets. Complete means that the kernel has taken every byte.
#[derive(Debug)]
pub(super) struct Sender {
    peer: String,
    lanes: Vec<Lane>,
    outbox: Outbox,
    fault: Option<Fault>,
}

#[derive(Debug)]
struct Lane {
    socket: TcpStream,
    flight: Option<Flight>,
}

/// A chunk of which the kernel has taken `sent` bytes, header included.
#[derive(Debug)]
struct Flight {
    message: u64,
    header: [u8; HEADER_BYTES],
    payload: Slice,
    sent: usize,
}

impl Sender {
    /// A sender over connected, non-blocking sockets.
    pub(super) fn new(peer: String, sockets: Vec<TcpStream>) -> Self {
        let lanes = sockets.into_iter().map(|socket| Lane { socket, flight: None }).collect();
        Self { peer, lanes, outbox: Outbox::new(DEPTH), fault: None }
    }

    /// Lets the kernel take what it takes now.
    fn advance(&mut self) -> Step<()> {
        for _ in 0..ROUNDS {
            let mut moved = false;
            for lane in 0..self.lanes.len() {
                moved |= self.push(lane)?;
            }
            if !moved {
                break;
            }
        }
        Ok(())
    }

    /// Sends (the rest of) one chunk over a lane; whether the lane took all of it, and so may take more.
    fn push(&mut self, lane: usize) -> Step<bool> {
        if self.lanes[lane].flight.is_none() {
            self.lanes[lane].flight = self.next_flight(lane);
        }
        let Lane { socket, flight: slot } = &mut self.lanes[lane];
        let Some(flight) = slot else { return Ok(false) };
        let head = flight.header.get(flight.sent..).unwrap_or_default();
        let from = flight.sent.saturating_sub(HEADER_BYTES);
        match socket::send(socket.as_fd(), head, &flight.payload, from) {
            Ok(sent) => flight.sent += sent,
            Err(error) if is_not_now(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if flight.sent < HEADER_BYTES + flight.payload.len() {
            return Ok(false);
        }
        self.outbox.written(flight.message);
        *slot = None;
        Ok(true)
    }

    /// The next chunk for a lane that has none, if it may take it: first chunks go over the first lane only.
    fn next_flight(&mut self, lane: usize) -> Option<Flight> {
        let first = self.outbox.next_offset()? == 0;
        if first && lane > 0 {
            return None;
        }
        let most = match (self.lanes.len(), first) {
            (1, _) => SOLE_CHUNK_BYTES,
            (_, true) => FIRST_CHUNK_BYTES,
            (_, false) => CHUNK_BYTES,
        };
        let chunk = self.outbox.next_chunk(most)?;
        Some(Flight { message: chunk.message, header: wire::encode(&chunk), payload: chunk.slice, sent: 0 })
    }

    /// Keeps the first fault, and lets go of sockets and memory.
    fn fail(&mut self, fault: Fault) {
        self.lanes.clear();
        self.outbox.fail();
        self.fault = Some(fault);
    }

    fn check(&self) -> Result<()> {
        self.fault.as_ref().map_or(Ok(()), |fault| Err(fault.error(&self.peer)))
    }
}

impl SendChannel for Sender {
    fn post(&mut self, slice: &Slice, tag: u64) -> Result<Option<Ticket>> {
        self.check()?;
        // What earlier posts left unsent, the kernel did not want a moment ago.
        let clogged = self.outbox.next_offset().is_some();
        let ticket = self.outbox.post(slice, tag);
        if ticket.is_some()
            && !clogged
            && let Err(fault) = self.advance()
        {
            self.fail(fault);
            // The ticket is void; what was complete before is still given by `poll`.
            self.check()?;
        }
        Ok(ticket)
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        if let Some(done) = self.outbox.complete() {
            return Ok(Some(done));
        }
        self.check()?;
        let moved = self.advance();
        if let Err(fault) = moved {
            self.fail(fault);
        }
        match self.outbox.complete() {
            Some(done) => Ok(Some(done)),
            None => self.check().map(|()| None),
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.lanes.iter().filter(|lane| lane.flight.is_some()).map(|lane| lane.socket.as_raw_fd()).collect()
    }
}

/// Whether a call is only to be made again.
pub(super) fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
