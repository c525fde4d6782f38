//! Channels between two processes of one host, through memory they share.
//!
//! The sender makes the memory and passes it over a unix socket after the usual hello. It reads back the nonce that it put
//! there, told by the other side, which proves that both map the same memory. The socket stays open: its end is how each
//! side learns that the other is gone. Messages of any length go through a bounded ring of slots, copied in and out.
//! Long messages are taken straight out of the sender's memory where the kernel allows that. Channels are to be polled;
//! there is nothing to wait on.

mod connect;
mod listen;
mod ring;

use std::{sync::Arc, time::Duration};

use crate::{
    Error, HostId, Region, Result, Secret,
    channel::{self, Address, Caps, Connecting, Listener, MAX_GROUP, Registration},
    reception::PATIENCE,
};

/// Messages that may be outstanding on one channel: what NCCL may have outstanding, 32 groups of 8.
const DEPTH: usize = 32 * MAX_GROUP;

/// Bytes of the random name of a listener's socket.
const NAME_BYTES: usize = 16;

const MARK: [u8; 2] = *b"M1";

/// Makes channels through shared memory.
#[derive(Debug)]
pub struct Transport {
    host: HostId,
    secret: Secret,
    patience: Duration,
    lends: bool,
    caps: Caps,
}

impl Transport {
    /// A transport between the processes of this host that know `secret`.
    ///
    /// # Errors
    /// As [`HostId::this`].
    pub fn new(secret: Secret) -> Result<Self> {
        Ok(Self::on_host(HostId::this()?, secret))
    }

    /// A transport between the processes of `host` that know `secret`.
    #[must_use]
    pub fn on_host(host: HostId, secret: Secret) -> Self {
        let caps = Caps {
            name: "shm",
            device: "shared memory".into(),
            speed_mbps: 0,
            depth: DEPTH,
            max_group: MAX_GROUP,
            max_message_bytes: 1 << 40,
            needs_registration: false,
        };
        Self { host, secret, patience: PATIENCE, lends: true, caps }
    }

    /// Copies every message through the ring, also where the other side could read this process's memory.
    #[must_use]
    pub const fn without_lending(mut self) -> Self {
        self.lends = false;
        self
    }

    /// Gives connecting this long in all, where the other side may begin to accept late.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

impl channel::Transport for Transport {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn listen(&self) -> Result<Box<dyn Listener>> {
        Ok(Box::new(listen::Listening::new(self.host, &self.secret)?))
    }

    /// # Errors
    /// Besides those of the trait, [`Error::Unavailable`] if the listener is on another host.
    fn connect(&self, address: &Address) -> Result<Box<dyn Connecting>> {
        let (host, name) = decode(address)?;
        if host != self.host {
            return Err(Error::Unavailable {
                what: "shared memory".into(),
                reason: "the listener is on another host".into(),
            });
        }
        Ok(Box::new(connect::Dialing::new(name, &self.secret, self.patience, self.lends)?))
    }

    fn register(&self, _: &Arc<Region>) -> Result<Registration> {
        Ok(Registration::nothing())
    }
}

/// A listener's address: `M1`, its host, its name.
fn encode(host: HostId, name: [u8; NAME_BYTES]) -> Address {
    Address([&MARK[..], &host.0, &name].concat())
}

fn decode(address: &Address) -> Result<(HostId, [u8; NAME_BYTES])> {
    let split = || {
        let (host, name) = address.0.strip_prefix(&MARK)?.split_first_chunk()?;
        Some((HostId(*host), name.try_into().ok()?))
    };
    split().ok_or_else(|| Error::Invalid {
        what: "address".into(),
        value: format!("{:02x?}", address.0),
        reason: "it is not what a shm listener's `address()` gave, byte for byte".into(),
    })
}

/// The name of a listener's unix socket, which is abstract: it has no file, and is gone with the listener.
fn socket_name(name: [u8; NAME_BYTES]) -> String {
    format!("rccl-shm-{:032x}", u128::from_be_bytes(name))
}

/// The abstract name of the unix socket at which a shm listener can be reached, for people and for tests.
///
/// # Errors
/// [`Error::Invalid`] if the address is not that of a shm listener.
pub fn socket(address: &Address) -> Result<String> {
    decode(address).map(|(_, name)| socket_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_encoding_and_others_are_refused() {
        let address = encode(HostId([1; 16]), [2; NAME_BYTES]);
        assert_eq!(decode(&address).unwrap(), (HostId([1; 16]), [2; NAME_BYTES]));
        assert_eq!(socket(&address).unwrap(), format!("rccl-shm-{}", "02".repeat(16)));
        for len in 0..address.0.len() {
            assert!(decode(&Address(address.0[..len].to_vec())).is_err());
        }
    }

    #[test]
    fn another_host_is_out_of_reach() {
        use crate::channel::Transport as _;
        let transport = Transport::new(Secret::random().unwrap()).unwrap();
        let error = transport.connect(&encode(HostId([0; 16]), [0; NAME_BYTES])).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    }
}
