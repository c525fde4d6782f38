//! The 128 bytes that NCCL carries from a listener to whoever connects to it.
//!
//! ```text
//! magic 8 | version u16 | flags u8 | lengths u8, u8 | key 16 | address of the tcp listener | of the shm listener
//! ... | from byte 120 on: the connecting side's state while it retries, u64
//! ```
//! Numbers are little endian. The key is random: with the group's secret, or alone where there is none, it gives the
//! secret of the listener's connections. NCCL carries handles over its own bootstrap, so whoever can read that can connect
//! where no secret is set.

use rccl_transport::{Secret, channel::Address};

use super::{Failure, Outcome, abi::HANDLE_BYTES, abi::NcclResult};

/// No sockaddr, with which the handles of other transports begin, looks like this.
const MAGIC: [u8; 8] = *b"\x8frcclnet";

/// The version of the handle and of what is said over connections made with it.
const VERSION: u16 = 1;

/// The secret of the group is needed besides the key.
const NEEDS_SECRET: u8 = 1;

const HEADER_BYTES: usize = 8 + 2 + 1 + 2 + KEY_BYTES;
const KEY_BYTES: usize = 16;
const STATE_OFFSET: usize = HANDLE_BYTES - 8;

/// Room for both addresses.
const ROOM_BYTES: usize = STATE_OFFSET - HEADER_BYTES;

/// Bytes that the address of a shm listener has.
const SHM_ADDRESS_BYTES: usize = 34;

/// The longest address of a tcp listener that fits.
pub(super) const MAX_TCP_ADDRESS_BYTES: usize = ROOM_BYTES - SHM_ADDRESS_BYTES;

/// The bytes of a handle.
pub type Bytes = [u8; HANDLE_BYTES];

/// What a handle says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// Random bytes that the secret is derived from.
    pub key: [u8; KEY_BYTES],
    /// Whether the group has a secret.
    pub needs_secret: bool,
    /// Where the tcp listener is.
    pub tcp: Address,
    /// Where the shm listener is, if there is one.
    pub shm: Option<Address>,
}

impl Handle {
    /// Its bytes.
    ///
    /// # Panics
    /// If the addresses do not fit.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let shm = self.shm.as_ref().map_or(&[][..], |address| &address.0);
        let mut bytes = Vec::with_capacity(HANDLE_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.push(if self.needs_secret { NEEDS_SECRET } else { 0 });
        let short = |len: usize| u8::try_from(len).expect("addresses are short");
        bytes.extend_from_slice(&[short(self.tcp.0.len()), short(shm.len())]);
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&self.tcp.0);
        bytes.extend_from_slice(shm);
        assert!(bytes.len() <= STATE_OFFSET, "a handle of {} bytes", bytes.len());
        bytes.resize(HANDLE_BYTES, 0);
        bytes.try_into().expect("resized above")
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// Who listens is not rccl, or of another version.
    pub fn decode(bytes: &Bytes) -> Outcome<Self> {
        let refused = |text: String| Failure::new(NcclResult::REMOTE, text);
        if !bytes.starts_with(&MAGIC) {
            return Err(refused(
                "the other side's handle is not rccl's: it has not loaded this plugin. Every rank must load it \
                 (NCCL_NET_PLUGIN=rccl, the library in LD_LIBRARY_PATH); NCCL_NET=rccl makes ranks that cannot fail at once"
                    .into(),
            ));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(refused(format!(
                "the other side's plugin speaks version {version}, this one {VERSION}: install the same one everywhere"
            )));
        }
        let (flags, tcp, shm) = (bytes[10], usize::from(bytes[11]), usize::from(bytes[12]));
        if tcp + shm > ROOM_BYTES || flags > NEEDS_SECRET {
            return Err(refused("the other side's handle is damaged".into()));
        }
        let rest = &bytes[HEADER_BYTES..];
        Ok(Self {
            key: bytes[HEADER_BYTES - KEY_BYTES..HEADER_BYTES].try_into().expect("as long"),
            needs_secret: flags == NEEDS_SECRET,
            tcp: Address(rest[..tcp].to_vec()),
            shm: (shm > 0).then(|| Address(rest[tcp..tcp + shm].to_vec())),
        })
    }

    /// The secret of connections made with this handle, given the group's.
    ///
    /// # Errors
    /// If one side has a secret of the group and the other has not.
    pub fn secret(&self, group: Option<&Secret>) -> Outcome<Secret> {
        let missing = |who: &str, other: &str| {
            let text = format!(
                "RCCL_SECRET (or RCCL_SECRET_FILE) is set on {who} and not on {other}: set it on all"
            );
            Failure::new(NcclResult::INVALID_USAGE, text)
        };
        match (group, self.needs_secret) {
            (Some(group), true) => {
                let key: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
                Ok(group.derive(&format!("net plugin listener {key}")))
            }
            (None, false) => {
                let mut whole = *b"rccl net plugin!................";
                whole[KEY_BYTES..].copy_from_slice(&self.key);
                Ok(Secret::from_bytes(whole))
            }
            (Some(_), false) => Err(missing("this rank", "the other")),
            (None, true) => Err(missing("the other rank", "this one")),
        }
    }
}

/// The connecting side's state in a handle, 0 before the first try.
#[must_use]
pub fn state(bytes: &Bytes) -> u64 {
    u64::from_le_bytes(bytes[STATE_OFFSET..].try_into().expect("8 bytes"))
}

/// Puts the connecting side's state into a handle.
pub fn set_state(bytes: &mut Bytes, state: u64) {
    bytes[STATE_OFFSET..].copy_from_slice(&state.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_handle() -> impl Strategy<Value = Handle> {
        let address = |most| prop::collection::vec(any::<u8>(), 1..=most).prop_map(Address);
        let shm = prop::option::of(address(SHM_ADDRESS_BYTES));
        (any::<[u8; KEY_BYTES]>(), any::<bool>(), address(MAX_TCP_ADDRESS_BYTES), shm)
            .prop_map(|(key, needs_secret, tcp, shm)| Handle { key, needs_secret, tcp, shm })
    }

    proptest! {
        #[test]
        fn handles_survive_encoding_and_retries(handle in any_handle(), retry: u64) {
            let mut bytes = handle.encode();
            prop_assert_eq!(state(&bytes), 0);
            set_state(&mut bytes, retry);
            prop_assert_eq!(state(&bytes), retry);
            prop_assert_eq!(Handle::decode(&bytes).unwrap(), handle);
        }

        #[test]
        fn other_bytes_are_refused_or_mean_something(mut bytes in prop::collection::vec(any::<u8>(), HANDLE_BYTES), marked: bool) {
            if marked {
                bytes[..10].copy_from_slice(&[&MAGIC[..], &VERSION.to_le_bytes()].concat());
            }
            let bytes: Bytes = bytes.try_into().unwrap();
            if let Ok(handle) = Handle::decode(&bytes) {
                prop_assert_eq!(&handle.encode()[..HEADER_BYTES], &bytes[..HEADER_BYTES]);
            }
        }
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        let text = |bytes: &Bytes| Handle::decode(bytes).unwrap_err().text;
        assert!(text(&[0; HANDLE_BYTES]).contains("has not loaded this plugin"));
        let handle = Handle { key: [7; 16], needs_secret: false, tcp: Address(vec![1]), shm: None };
        let mut newer = handle.encode();
        newer[8] = 2;
        assert!(text(&newer).contains("speaks version 2, this one 1"));
        let mut damaged = handle.encode();
        damaged[11] = 200;
        assert!(text(&damaged).contains("damaged"));
    }

    #[test]
    fn both_sides_need_the_same_secret() {
        let handle = |needs_secret| Handle { key: [7; 16], needs_secret, tcp: Address(vec![1]), shm: None };
        let group = Secret::from_bytes([1; 32]);
        assert_ne!(handle(true).secret(Some(&group)).unwrap(), handle(false).secret(None).unwrap());
        assert!(handle(true).secret(None).unwrap_err().text.contains("set on the other rank"));
        assert!(handle(false).secret(Some(&group)).unwrap_err().text.contains("set on this rank"));
    }
}
