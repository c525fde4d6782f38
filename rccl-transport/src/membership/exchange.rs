//! One round of messages over the links of a group.

use std::{
    io::{self, ErrorKind},
    net::TcpStream,
    os::fd::AsFd,
};

use rccl_core::Rank;
use rustix::event::{PollFd, PollFlags};

use super::MAX_GATHER_BYTES;
use crate::{
    Error, Result,
    member::{Member, ranks_text},
    wire::{Encoder, FrameReader, FrameWriter},
};

/// What the messages of a round are about, so that members which do different things notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Gather = 1,
    Share = 2,
}

impl Kind {
    const fn name(byte: u8) -> &'static str {
        match byte {
            1 => "an all-gather",
            2 => "the sharing of a file",
            _ => "something unknown",
        }
    }
}

/// The kind, before the bytes of a message. Links keep the order, so messages need no number.
const PREFIX_BYTES: usize = 1;

/// A round under way, polled.
#[derive(Debug)]
pub(super) struct Exchange {
    kind: Kind,
    sending: Vec<(Rank, FrameWriter)>,
    receiving: Vec<(Rank, FrameReader)>,
    received: Vec<Vec<u8>>,
}

impl Exchange {
    /// Sends some ranks the same bytes and receives from some, in a group of `size`.
    pub(super) fn new(kind: Kind, send: Option<(&[Rank], &[u8])>, receive: &[Rank], size: usize) -> Self {
        let (to, bytes) = send.unwrap_or_default();
        let mut message = Encoder::default();
        message.u8(kind as u8).raw(bytes);
        let writer = FrameWriter::new(&message.0);
        let sending = to.iter().map(|&rank| (rank, writer.clone())).collect();
        let reader = || FrameReader::new(PREFIX_BYTES + MAX_GATHER_BYTES);
        let receiving = receive.iter().map(|&rank| (rank, reader())).collect();
        Self { kind, sending, receiving, received: vec![Vec::new(); size] }
    }

    /// Moves on without blocking; says whether the round is complete.
    pub(super) fn advance(&mut self, links: &mut [Option<TcpStream>], members: &[Member]) -> Result<bool> {
        let lost = |rank: Rank, error: io::Error| {
            let cause = match error.kind() {
                ErrorKind::UnexpectedEof => "it closed the connection".into(),
                _ => error.to_string(),
            };
            Error::PeerLost { peer: members[rank.index()].to_string(), cause }
        };
        let mut blocked = Vec::new();
        for (rank, mut writer) in std::mem::take(&mut self.sending) {
            if !writer.advance(link(links, rank, members)?).map_err(|error| lost(rank, error))? {
                blocked.push((rank, writer));
            }
        }
        self.sending = blocked;
        let mut waiting = Vec::new();
        for (rank, mut reader) in std::mem::take(&mut self.receiving) {
            match reader.advance(link(links, rank, members)?).map_err(|error| lost(rank, error))? {
                None => waiting.push((rank, reader)),
                Some(frame) => {
                    let check = check(self.kind, &frame);
                    check.map_err(|reason| Error::Refused {
                        peer: members[rank.index()].to_string(),
                        reason,
                    })?;
                    self.received[rank.index()] = frame[PREFIX_BYTES..].to_vec();
                }
            }
        }
        self.receiving = waiting;
        Ok(self.sending.is_empty() && self.receiving.is_empty())
    }

    /// Adds what to wait for.
    pub(super) fn watch<'a>(&self, links: &'a [Option<TcpStream>], descriptors: &mut Vec<PollFd<'a>>) {
        let readers = self.receiving.iter().map(|(rank, _)| (*rank, PollFlags::IN));
        let writers = self.sending.iter().map(|(rank, _)| (*rank, PollFlags::OUT));
        descriptors.extend(readers.chain(writers).filter_map(|(rank, flags)| {
            Some(PollFd::from_borrowed_fd(links[rank.index()].as_ref()?.as_fd(), flags))
        }));
    }

    /// The ranks that nothing, or not everything, has come from or gone to.
    pub(super) fn missing(&self) -> String {
        let mut ranks: Vec<Rank> = self.receiving.iter().map(|(rank, _)| *rank).collect();
        ranks.extend(self.sending.iter().map(|(rank, _)| *rank));
        ranks.sort();
        ranks.dedup();
        ranks_text(ranks)
    }

    /// What came, by rank.
    pub(super) fn into_received(self) -> Vec<Vec<u8>> {
        self.received
    }
}

fn link<'a>(links: &'a mut [Option<TcpStream>], rank: Rank, members: &[Member]) -> Result<&'a mut TcpStream> {
    links[rank.index()].as_mut().ok_or_else(|| Error::PeerLost {
        peer: members[rank.index()].to_string(),
        cause: "its link was taken out of the membership".into(),
    })
}

fn check(kind: Kind, frame: &[u8]) -> std::result::Result<(), String> {
    let Some(&theirs) = frame.first().filter(|_| frame.len() >= PREFIX_BYTES) else {
        return Err(format!("a message of {} bytes", frame.len()));
    };
    if theirs == kind as u8 {
        return Ok(());
    }
    Err(format!(
        "it takes part in {} while this rank takes part in {}",
        Kind::name(theirs),
        Kind::name(kind as u8)
    ))
}
