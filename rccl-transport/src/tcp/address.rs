//! The address of a listener on tcp sockets: a mark (`T1` of tcp), who it is (8 bytes), and every address it can be reached at.

use std::net::SocketAddr;

use super::ListenerId;
use crate::{
    Error, Result,
    channel::{Address, MAX_ADDRESS_BYTES},
    wire::{Decoder, Encoder, Malformed},
};

/// Whose address it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    mark: [u8; 2],
    name: &'static str,
}

/// Of a tcp listener.
pub(crate) const TCP: Kind = Kind { mark: *b"T1", name: "tcp" };

/// Of a verbs listener, whose connections begin on tcp sockets.
pub(crate) const VERBS: Kind = Kind { mark: *b"V1", name: "verbs" };

/// As many IPv4 addresses as fit.
pub(super) const MAX_CANDIDATES: usize = 15;

/// Encodes an address; `None` if it is too long.
pub(crate) fn encode(kind: Kind, id: ListenerId, candidates: &[SocketAddr]) -> Option<Address> {
    let mut bytes = Encoder::default();
    bytes.raw(&kind.mark).raw(&id).addresses(candidates);
    (bytes.0.len() <= MAX_ADDRESS_BYTES).then_some(Address(bytes.0))
}

/// The listener and its addresses, in the order it prefers.
///
/// # Errors
/// [`Error::Invalid`] if the address is not that of such a listener.
pub(crate) fn decode(kind: Kind, address: &Address) -> Result<(ListenerId, Vec<SocketAddr>)> {
    try_decode(kind, &address.0).map_err(|Malformed(why)| Error::Invalid {
        what: "address".into(),
        value: format!("{:02x?}", address.0),
        reason: format!("it is not what a {} listener's `address()` gave, byte for byte: {why}", kind.name),
    })
}

/// The socket addresses under which a tcp listener can be reached, for people and for tests.
///
/// # Errors
/// [`Error::Invalid`] if the address is not that of a tcp listener.
pub fn candidates(address: &Address) -> Result<Vec<SocketAddr>> {
    decode(TCP, address).map(|(_, candidates)| candidates)
}

fn try_decode(kind: Kind, bytes: &[u8]) -> std::result::Result<(ListenerId, Vec<SocketAddr>), Malformed> {
    let mut fields = Decoder::new(bytes);
    if fields.array()? != kind.mark {
        return Err(Malformed(format!("it does not begin with {}", kind.mark.escape_ascii())));
    }
    let id = fields.array()?;
    let candidates = fields.addresses(MAX_CANDIDATES)?;
    fields.end()?;
    Ok((id, candidates))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn addresses_survive_encoding(id: ListenerId, candidates in prop::collection::vec(any::<SocketAddr>(), 1..8)) {
            let plain: Vec<_> = candidates.iter().map(|at| SocketAddr::new(at.ip(), at.port())).collect();
            match encode(TCP, id, &plain) {
                Some(address) => prop_assert_eq!(decode(TCP, &address).unwrap(), (id, plain)),
                None => prop_assert!(plain.len() > 5),
            }
        }

        #[test]
        fn other_bytes_are_refused_or_mean_something(bytes in prop::collection::vec(any::<u8>(), 0..130)) {
            let marked = [&TCP.mark[..], &[0; 8], &[1, 0, 0, 0], &bytes].concat();
            for bytes in [bytes, marked] {
                if let Ok((id, candidates)) = decode(TCP, &Address(bytes.clone())) {
                    prop_assert_eq!(encode(TCP, id, &candidates).map(|address| address.0), Some(bytes));
                }
            }
        }
    }

    #[test]
    fn as_many_addresses_fit_as_promised() {
        let v4 = "127.0.0.1:80".parse().unwrap();
        assert!(encode(TCP, [0; 8], &[v4; MAX_CANDIDATES]).is_some());
        assert!(encode(TCP, [0; 8], &[v4; MAX_CANDIDATES + 1]).is_none());
        let v6 = "[::1]:80".parse().unwrap();
        assert!(encode(TCP, [0; 8], &[v6; 5]).is_some());
        assert!(encode(TCP, [0; 8], &[v6; 6]).is_none());
    }
}
