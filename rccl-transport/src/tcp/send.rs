//! The sending end of a tcp channel.

use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, AsRawFd, RawFd},
};

use super::{
    ROUNDS,
    wire::{self, CHUNK_BYTES, FIRST_CHUNK_BYTES, HEADER_BYTES, SOLE_CHUNK_BYTES},
};
use crate::{Slice, ends::Writer, fault::Step, outbox::Outbox, sys::socket};

/// Writes chunks to its sockets. Written means that the kernel has taken every byte.
#[derive(Debug)]
pub(super) struct Sockets(Vec<Lane>);

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

impl Sockets {
    /// Writes to connected, non-blocking sockets.
    pub(super) fn new(sockets: Vec<TcpStream>) -> Self {
        Self(sockets.into_iter().map(|socket| Lane { socket, flight: None }).collect())
    }

    /// Sends (the rest of) one chunk over a lane; whether the lane took all of it, and so may take more.
    fn push(&mut self, lane: usize, outbox: &mut Outbox) -> Step<bool> {
        if self.0[lane].flight.is_none() {
            self.0[lane].flight = self.next_flight(lane, outbox);
        }
        let Lane { socket, flight: slot } = &mut self.0[lane];
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
        outbox.written(flight.message);
        *slot = None;
        Ok(true)
    }

    /// The next chunk for a lane that has none, if it may take it: first chunks go over the first lane only.
    fn next_flight(&self, lane: usize, outbox: &mut Outbox) -> Option<Flight> {
        let first = outbox.next_offset()? == 0;
        if first && lane > 0 {
            return None;
        }
        let most = match (self.0.len(), first) {
            (1, _) => SOLE_CHUNK_BYTES,
            (_, true) => FIRST_CHUNK_BYTES,
            (_, false) => CHUNK_BYTES,
        };
        let chunk = outbox.next_chunk(most)?;
        Some(Flight { message: chunk.message, header: wire::encode(&chunk), payload: chunk.slice, sent: 0 })
    }
}

impl Writer for Sockets {
    fn advance(&mut self, outbox: &mut Outbox) -> Step<()> {
        for _ in 0..ROUNDS {
            let mut moved = false;
            for lane in 0..self.0.len() {
                moved |= self.push(lane, outbox)?;
            }
            if !moved {
                break;
            }
        }
        Ok(())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.0.iter().filter(|lane| lane.flight.is_some()).map(|lane| lane.socket.as_raw_fd()).collect()
    }
}

/// Whether a call is only to be made again.
pub(super) fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
