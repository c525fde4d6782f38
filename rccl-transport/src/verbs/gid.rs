//! The addresses of a port, and which pairs of them may reach each other.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// What an entry of a GID table is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// RoCE version 2: packets are UDP over IP and can be routed.
    RoceV2,
    /// RoCE version 1 or InfiniBand.
    Other,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u8,
    /// What it is for.
    pub kind: GidKind,
    /// Its 16 bytes, which for RoCE are an IPv6 address, or an IPv4 address in one.
    pub bytes: [u8; 16],
    /// The network interface that it belongs to, where there is one.
    pub interface: Option<String>,
}

impl Gid {
    /// The IP address, IPv4 where it stands for one.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        let address = Ipv6Addr::from(self.bytes);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// The order of preference: families that are routed in most networks first.
    pub(super) fn class(&self) -> Class {
        match self.address() {
            IpAddr::V4(_) => Class::V4,
            IpAddr::V6(address) if address.is_unicast_link_local() => Class::LinkLocal,
            IpAddr::V6(_) => Class::V6,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID {} ({})", self.index, self.address())
    }
}

/// What GIDs must have in common to reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    V4,
    V6,
    LinkLocal,
}

impl Class {
    /// Its place in the order of preference.
    pub(super) const fn order(self, v6_first: bool) -> u8 {
        match self {
            Self::V6 if v6_first => 0,
            class => 1 + class as u8,
        }
    }
}

/// The most pairs that are tried.
const MAX_PAIRS: usize = 8;

/// The pairs of addresses that may reach each other, the likeliest first: of one family and kind, IPv4 before IPv6 unless
/// `v6_first`, then those that have the most leading bits in common, as addresses of one network do.
pub(super) fn pairs(ours: &[Gid], theirs: &[Gid], v6_first: bool) -> Vec<(Gid, Gid)> {
    let mut found = Vec::new();
    for our in ours {
        for their in theirs.iter().filter(|their| their.class() == our.class() && their.kind == our.kind) {
            let common = (u128::from_be_bytes(our.bytes) ^ u128::from_be_bytes(their.bytes)).leading_zeros();
            let family = our.class().order(v6_first);
            let order = (our.kind != GidKind::RoceV2, family, 128 - common, our.index, their.index);
            found.push((order, our.clone(), their.clone()));
        }
    }
    found.sort_by_key(|&(order, ..)| order);
    found.truncate(MAX_PAIRS);
    found.into_iter().map(|(_, our, their)| (our, their)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str) -> Gid {
        let bytes = match address.parse().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Gid { index, kind: GidKind::RoceV2, bytes, interface: None }
    }

    fn indexes(ours: &[Gid], theirs: &[Gid], v6_first: bool) -> Vec<(u8, u8)> {
        pairs(ours, theirs, v6_first).iter().map(|(our, their)| (our.index, their.index)).collect()
    }

    #[test]
    fn addresses_of_one_family_and_network_come_first() {
        let ours = [gid(0, "fe80::1"), gid(1, "192.168.7.1"), gid(2, "10.0.0.1"), gid(3, "fd00::1")];
        let theirs = [gid(0, "fe80::2"), gid(1, "10.0.0.2"), gid(5, "fd00::2")];
        assert_eq!(indexes(&ours, &theirs, false), [(2, 1), (1, 1), (3, 5), (0, 0)]);
        assert_eq!(indexes(&ours, &theirs, true), [(3, 5), (2, 1), (1, 1), (0, 0)]);
    }

    #[test]
    fn version_2_comes_before_others_and_kinds_do_not_mix() {
        let old = Gid { kind: GidKind::Other, ..gid(1, "10.0.0.1") };
        let new = gid(2, "10.0.0.1");
        assert_eq!(
            indexes(&[old.clone(), new.clone()], &[old.clone(), new.clone()], false),
            [(2, 2), (1, 1)]
        );
        assert_eq!(indexes(&[old], &[new], false), []);
        assert_eq!(gid(3, "10.0.0.1").to_string(), "GID 3 (10.0.0.1)");
    }
}
