//! The address of a tcp listener: who it is and every address it can be reached at.
//!
//! ```text
//! "T1" | listener id, 8 bytes | for each address: 4 or 6 | 4 or 16 bytes | port u16, big endian
//! ```

use std::net::{IpAddr, SocketAddr};

use super::ListenerId;
use crate::{
    Error, Result,
    channel::{Address, MAX_ADDRESS_BYTES},
};

const MARK: [u8; 2] = *b"T1";

/// Encodes an address; `None` if it is too long.
pub(super) fn encode(id: ListenerId, candidates: &[SocketAddr]) -> Option<Address> {
    let mut bytes = [&MARK[..], &id[..]].concat();
    for candidate in candidates {
        match candidate.ip() {
            IpAddr::V4(ip) => {
                bytes.push(4);
                bytes.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes.push(6);
                bytes.extend(ip.octets());
            }
        }
        bytes.extend(candidate.port().to_be_bytes());
    }
    (bytes.len() <= MAX_ADDRESS_BYTES).then_some(Address(bytes))
}

/// The listener and its addresses, in the order it prefers.
///
/// # Errors
/// [`Error::Invalid`] if the address is not that of a tcp listener.
pub(super) fn decode(address: &Address) -> Result<(ListenerId, Vec<SocketAddr>)> {
    try_decode(&address.0).ok_or_else(|| Error::Invalid {
        what: "address".into(),
        value: format!("{:02x?}", address.0),
        reason: "it is not that of a tcp listener; pass on what its `address()` gave, byte for byte".into(),
    })
}

/// The socket addresses under which a tcp listener can be reached, for people and for tests.
///
/// # Errors
/// [`Error::Invalid`] if the address is not that of a tcp listener.
pub fn candidates(address: &Address) -> Result<Vec<SocketAddr>> {
    decode(address).map(|(_, candidates)| candidates)
}

fn try_decode(bytes: &[u8]) -> Option<(ListenerId, Vec<SocketAddr>)> {
    let (id, mut rest) = bytes.strip_prefix(&MARK)?.split_first_chunk()?;
    let mut candidates = Vec::new();
    while let Some((family, after)) = rest.split_first() {
        let (ip, after) = match family {
            4 => after.split_first_chunk::<4>().map(|(ip, after)| (IpAddr::from(*ip), after))?,
            6 => after.split_first_chunk::<16>().map(|(ip, after)| (IpAddr::from(*ip), after))?,
            _ => return None,
        };
        let (port, after) = after.split_first_chunk()?;
        candidates.push(SocketAddr::new(ip, u16::from_be_bytes(*port)));
        rest = after;
    }
    (!candidates.is_empty()).then_some((*id, candidates))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn addresses_survive_encoding(id: ListenerId, candidates in prop::collection::vec(any::<SocketAddr>(), 1..8)) {
            let plain: Vec<_> = candidates.iter().map(|at| SocketAddr::new(at.ip(), at.port())).collect();
            match encode(id, &plain) {
                Some(address) => prop_assert_eq!(decode(&address).unwrap(), (id, plain)),
                None => prop_assert!(plain.len() > 5),
            }
        }

        #[test]
        fn other_bytes_are_refused_or_mean_something(bytes in prop::collection::vec(any::<u8>(), 0..130)) {
            if let Ok((id, candidates)) = decode(&Address(bytes.clone())) {
                prop_assert_eq!(encode(id, &candidates).map(|address| address.0), Some(bytes));
            }
        }
    }

    #[test]
    fn a_cut_address_is_refused() {
        let whole = encode([7; 8], &["[::1]:80".parse().unwrap()]).unwrap();
        for len in 0..whole.0.len() {
            assert!(decode(&Address(whole.0[..len].to_vec())).is_err(), "{len} bytes");
        }
    }
}
