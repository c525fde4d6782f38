//! A member of a group, as it introduces itself to the others.

use std::{fmt, net::SocketAddr};

use rccl_core::Rank;

use crate::{
    HostId, Result,
    host::host_name,
    interface::MAX_ADDRESSES,
    wire::{Decoder, Encoder, Malformed},
};

/// The longest payload of a member in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 10;

/// The longest host name that is passed on, in bytes.
const MAX_HOST_NAME_BYTES: usize = 256;

/// The most bytes a member takes when encoded: rank, host, host name, process, addresses, payload.
pub(crate) const MAX_MEMBER_BYTES: usize =
    4 + 16 + 4 + MAX_HOST_NAME_BYTES + 4 + 4 + 19 * MAX_ADDRESSES + 4 + MAX_PAYLOAD_BYTES;

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its rank.
    pub rank: Rank,
    /// The host it runs on.
    pub host: HostId,
    /// The host's name, for people.
    pub host_name: String,
    /// Its process, as that host numbers it.
    pub pid: u32,
    /// Where it listened while the group formed, in order of preference.
    pub addresses: Vec<SocketAddr>,
    /// What it told the others, at most [`MAX_PAYLOAD_BYTES`].
    pub payload: Vec<u8>,
}

impl Member {
    /// This process as a member.
    pub(crate) fn this(
        rank: Rank,
        host: Option<HostId>,
        addresses: Vec<SocketAddr>,
        payload: Vec<u8>,
    ) -> Result<Self> {
        let host = host.map_or_else(HostId::this, Ok)?;
        let mut host_name = host_name();
        while host_name.len() > MAX_HOST_NAME_BYTES {
            host_name.pop();
        }
        Ok(Self { rank, host, host_name, pid: std::process::id(), addresses, payload })
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.rank.0).raw(&self.host.0).bytes(self.host_name.as_bytes()).u32(self.pid);
        encoder.addresses(&self.addresses).bytes(&self.payload);
    }

    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> std::result::Result<Self, Malformed> {
        Ok(Self {
            rank: Rank(decoder.u32()?),
            host: HostId(decoder.array()?),
            host_name: decoder.text(MAX_HOST_NAME_BYTES)?,
            pid: decoder.u32()?,
            addresses: decoder.addresses(MAX_ADDRESSES)?,
            payload: decoder.bytes(MAX_PAYLOAD_BYTES)?.to_vec(),
        })
    }

    /// Where it runs, for people.
    pub(crate) fn place(&self) -> String {
        format!("process {} on {}", self.pid, self.host_name)
    }
}

/// The rank and where it runs: `rank 3 (process 4711 on node1)`.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({})", self.rank, self.place())
    }
}

/// Ascending ranks for people: `rank 3`, `ranks 0, 2-5, 9`.
pub(crate) fn ranks_text(ranks: impl IntoIterator<Item = Rank>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for Rank(rank) in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let one = matches!(runs[..], [(first, last)] if first == last);
    let runs = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    format!("{} {}", if one { "rank" } else { "ranks" }, runs.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_comes_back() {
        let addresses = vec!["10.0.0.1:1".parse().unwrap(); MAX_ADDRESSES];
        let member = Member::this(Rank(3), None, addresses, vec![7; MAX_PAYLOAD_BYTES]).unwrap();
        let mut encoder = Encoder::default();
        member.encode(&mut encoder);
        assert!(encoder.0.len() <= MAX_MEMBER_BYTES);
        let mut decoder = Decoder::new(&encoder.0);
        assert_eq!(Member::decode(&mut decoder).unwrap(), member);
        decoder.end().unwrap();
    }

    #[test]
    fn ranks_are_told_briefly() {
        assert_eq!(ranks_text([Rank(3)]), "rank 3");
        assert_eq!(ranks_text([0, 2, 3, 4, 5, 9, 10].map(Rank)), "ranks 0, 2-5, 9, 10");
    }
}
