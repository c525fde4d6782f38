//! The identifier that a group's root makes and every member is given: where the root listens, and the group's secret.

use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    str::FromStr,
};

use sha2::{Digest, Sha256};

use crate::{
    Error, Result, Secret,
    hello::PROTOCOL_VERSION,
    secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE},
    wire::{Decoder, Encoder, Malformed},
};

/// Names the host and port where rank 0 starts the root.
pub(crate) const ROOT_VARIABLE: &str = "RCCL_ROOT";

const MAGIC: [u8; 4] = *b"rcid";
const TEXT_PREFIX: &str = "rccl1-";
const CHECKSUM_BYTES: usize = 4;
/// Bytes left for addresses, each 7 (IPv4) or 19 (IPv6) long.
const ADDRESS_BYTES: usize = UniqueId::BYTES - MAGIC.len() - 2 - 1 - 1 - 32 - CHECKSUM_BYTES;

/// Identifies a group before it exists: the addresses of its root and its secret, in the 128 bytes of an NCCL unique id.
/// Whoever has it can join, so it is passed on like a password; `Debug` hides the secret, `Display` does not.
///
/// ```
/// use rccl_transport::{Secret, UniqueId};
///
/// let secret = Secret::random()?;
/// let id = UniqueId::from_address_and_secret("10.0.0.1:29400".parse().unwrap(), &secret);
/// assert_eq!(UniqueId::from_bytes(&id.to_bytes())?, id);
/// assert_eq!(id.to_string().parse::<UniqueId>()?, id);
/// # Ok::<(), rccl_transport::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    addresses: Vec<SocketAddr>,
    secret: Secret,
    fixed: bool,
}

impl UniqueId {
    /// Its length in bytes.
    pub const BYTES: usize = 128;

    /// The identifier of a root that listens on `addresses`, best first; as many as there is room for.
    #[must_use]
    pub(crate) fn new(addresses: &[SocketAddr], secret: &Secret) -> Self {
        let mut room = ADDRESS_BYTES;
        let fitting = addresses.iter().take_while(|address| {
            let bytes = encoded_bytes(address);
            let fits = bytes <= room;
            room = room.saturating_sub(bytes);
            fits
        });
        Self { addresses: fitting.map(without_scope).collect(), secret: secret.clone(), fixed: false }
    }

    /// The identifier of a root at an address that everyone was told beforehand, with a secret that everyone has (see
    /// [`Secret::from_env`]). Members that come before the root listens try again until their deadline.
    #[must_use]
    pub fn from_address_and_secret(address: SocketAddr, secret: &Secret) -> Self {
        Self { addresses: vec![without_scope(&address)], secret: secret.clone(), fixed: true }
    }

    /// The identifier that `RCCL_ROOT=host:port` gives, with the secret that [`Secret::from_env`] gives; `None` if
    /// `RCCL_ROOT` is not set. Rank 0 starts the root (see [`crate::Root::start_for`]). Without a secret the root must be at
    /// a loopback address. Asks the host's resolver for the name, which blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming `RCCL_ROOT` if it is no such address or needs a secret; as [`Secret::from_env`].
    pub fn from_env() -> Result<Option<Self>> {
        let Some(root) = std::env::var_os(ROOT_VARIABLE) else { return Ok(None) };
        Self::from_root(&root.to_string_lossy(), Secret::from_env()?).map(Some)
    }

    fn from_root(root: &str, secret: Option<Secret>) -> Result<Self> {
        let invalid =
            |reason: String| Error::Invalid { what: ROOT_VARIABLE.into(), value: root.into(), reason };
        let found = root.to_socket_addrs();
        let found = found.map_err(|error| invalid(format!("it is not the root's host:port ({error})")))?;
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in found.filter(|address| address.port() != 0) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(invalid("it needs an address and a port other than 0".into()));
        }
        let secret = match secret {
            Some(secret) => secret,
            None if addresses.iter().all(|address| address.ip().is_loopback()) => Secret::well_known(),
            None => {
                return Err(invalid(format!(
                    "others can reach this address, so the group needs a secret: set {SECRET_VARIABLE} or \
                     {SECRET_FILE_VARIABLE} on all ranks"
                )));
            }
        };
        Ok(Self { fixed: true, ..Self::new(&addresses, &secret) })
    }

    /// Where the root listens, best first.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Whether members may come before the root listens.
    #[must_use]
    pub const fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// The group's secret.
    pub(crate) const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The bytes to hand to the other members.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut encoder = Encoder::default();
        encoder.raw(&MAGIC).raw(&PROTOCOL_VERSION.to_le_bytes()).u8(u8::from(self.fixed));
        encoder.u8(u8::try_from(self.addresses.len()).expect("the room for addresses is small"));
        encoder.raw(self.secret.expose());
        for address in &self.addresses {
            encoder.address(address);
        }
        let mut bytes = [0; Self::BYTES];
        bytes[..encoder.0.len()].copy_from_slice(&encoder.0);
        let (body, tail) = bytes.split_at_mut(Self::BYTES - CHECKSUM_BYTES);
        tail.copy_from_slice(&checksum(body));
        bytes
    }

    /// The identifier that `bytes` are.
    ///
    /// # Errors
    /// [`Error::Invalid`] saying whether they are damaged, of another version, or no identifier of rccl at all.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        Self::decode(bytes).map_err(|Malformed(reason)| invalid(format!("{} bytes", Self::BYTES), reason))
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> std::result::Result<Self, Malformed> {
        let (body, tail) = bytes.split_at(Self::BYTES - CHECKSUM_BYTES);
        let mut decoder = Decoder::new(body);
        if decoder.array()? != MAGIC {
            return Err(Malformed("it was not made by rccl".into()));
        }
        let version = u16::from_le_bytes(decoder.array()?);
        if version != PROTOCOL_VERSION {
            return Err(Malformed(format!(
                "it was made by version {version} of rccl's protocol and this is version {PROTOCOL_VERSION}; install the \
                 same rccl everywhere"
            )));
        }
        if checksum(body) != tail {
            return Err(Malformed("its checksum is wrong: some bytes were changed on the way".into()));
        }
        let fixed = match decoder.u8()? {
            flag @ 0..=1 => flag == 1,
            flag => return Err(Malformed(format!("it has the unknown flag {flag}"))),
        };
        let count = decoder.u8()?;
        let secret = Secret::from_bytes(decoder.array()?);
        let addresses = (0..count).map(|_| decoder.address()).collect::<std::result::Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(Malformed("it has no address".into()));
        }
        Ok(Self { addresses, secret, fixed })
    }
}

const fn encoded_bytes(address: &SocketAddr) -> usize {
    if address.is_ipv4() { 7 } else { 19 }
}

fn without_scope(address: &SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    digest[..CHECKSUM_BYTES].try_into().expect("a digest is longer")
}

fn invalid(value: String, reason: String) -> Error {
    Error::Invalid { what: "the unique id".into(), value, reason }
}

/// Shows where the root listens, but not the secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId")
            .field("addresses", &self.addresses)
            .field("fixed", &self.fixed)
            .field("secret", &self.secret)
            .finish()
    }
}

/// The text that [`UniqueId::from_str`] reads: `rccl1-` and 256 hexadecimal digits, the secret among them.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TEXT_PREFIX)?;
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    /// # Errors
    /// [`Error::Invalid`] saying whether the text is foreign, cut off or damaged; it is not repeated, as it may hold the
    /// secret.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let shown = || format!("a text of {} characters", text.chars().count());
        let Some(digits) = text.strip_prefix(TEXT_PREFIX) else {
            return Err(invalid(
                shown(),
                format!("it does not begin with `{TEXT_PREFIX}`: it was not made by this rccl"),
            ));
        };
        if let Some(wrong) = digits.chars().find(|digit| !digit.is_ascii_hexdigit()) {
            return Err(invalid(shown(), format!("`{wrong}` is no hexadecimal digit")));
        }
        if digits.len() != 2 * Self::BYTES {
            let (have, want) = (digits.len(), 2 * Self::BYTES);
            let how = if have < want { "cut off" } else { "too long" };
            return Err(invalid(
                shown(),
                format!("it is {how}: {have} hexadecimal digits where there should be {want}"),
            ));
        }
        let mut bytes = [0; Self::BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let nibbles = pair.iter().map(|&digit| (digit as char).to_digit(16).unwrap_or(0));
            *byte = u8::try_from(nibbles.fold(0, |value, nibble| 16 * value + nibble)).unwrap_or(0);
        }
        Self::decode(&bytes).map_err(|Malformed(reason)| invalid(shown(), reason))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> UniqueId {
        let addresses = ["10.0.0.1:1", "[2001:db8::1]:2", "127.0.0.1:3"].map(|text| text.parse().unwrap());
        UniqueId::new(&addresses, &Secret::from_bytes([0xab; 32]))
    }

    #[test]
    fn bytes_and_text_come_back() {
        let id = example();
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
        assert_eq!(format!(" {id}\n").parse::<UniqueId>().unwrap(), id);
        assert_eq!(id.addresses().len(), 3);
        assert!(!format!("{id:?}").contains("ab, ab") && !format!("{id:?}").contains("abab"));
        let fixed =
            UniqueId::from_address_and_secret("[::1]:5".parse().unwrap(), &Secret::from_bytes([1; 32]));
        assert!(UniqueId::from_bytes(&fixed.to_bytes()).unwrap().is_fixed());
    }

    #[test]
    fn addresses_fill_the_room_and_no_more() {
        let many: Vec<SocketAddr> =
            (1..20).map(|port| format!("[2001:db8::1]:{port}").parse().unwrap()).collect();
        assert_eq!(UniqueId::new(&many, &Secret::from_bytes([0; 32])).addresses(), &many[..4]);
        let many: Vec<SocketAddr> = (1..20).map(|port| format!("10.0.0.1:{port}").parse().unwrap()).collect();
        let id = UniqueId::new(&many, &Secret::from_bytes([0; 32]));
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap().addresses(), &many[..12]);
    }

    #[test]
    fn foreign_cut_and_damaged_ones_are_told_apart() {
        let text = example().to_string();
        let error = |text: &str| text.parse::<UniqueId>().unwrap_err().to_string();
        assert!(error("ncclid").contains("it was not made by this rccl"));
        assert!(error(&text[..100]).contains("cut off: 94 hexadecimal digits where there should be 256"));
        assert!(error(&format!("{text}00")).contains("too long"));
        assert!(error(&text.replace('a', "z")).contains("`z` is no hexadecimal digit"));
        assert!(error(&text.replace("abab", "abac")).contains("checksum"));
        assert!(error(&"rccl1-00".replace("00", &"0".repeat(256))).contains("not made by rccl"));
        let mut bytes = example().to_bytes();
        bytes[4] = 9;
        let error = UniqueId::from_bytes(&bytes).unwrap_err().to_string();
        assert!(error.contains("version 9") && error.contains("version 1;"), "{error}");
    }

    #[test]
    fn a_root_in_the_environment_needs_a_secret_unless_it_is_here() {
        let secret = || Some(Secret::from_bytes([5; 32]));
        let id = UniqueId::from_root("10.0.0.1:29400", secret()).unwrap();
        assert_eq!((id.addresses(), id.is_fixed()), (&["10.0.0.1:29400".parse().unwrap()][..], true));
        assert!(UniqueId::from_root("127.0.0.1:29400", None).is_ok());
        let error = |root: &str, secret| UniqueId::from_root(root, secret).unwrap_err().to_string();
        assert!(error("10.0.0.1:29400", None).starts_with("RCCL_ROOT is `10.0.0.1:29400`: others can reach"));
        for nonsense in ["", "10.0.0.1", "10.0.0.1:port", "10.0.0.1:0", ":1"] {
            let error = error(nonsense, secret());
            assert!(error.starts_with(&format!("RCCL_ROOT is `{nonsense}`: it ")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_are_no_id(mut bytes in prop::collection::vec(any::<u8>(), UniqueId::BYTES), true_magic: bool) {
            if true_magic {
                bytes[..6].copy_from_slice(&example().to_bytes()[..6]);
            }
            let bytes = <[u8; UniqueId::BYTES]>::try_from(bytes).unwrap();
            prop_assert!(UniqueId::from_bytes(&bytes).is_err());
        }

        #[test]
        fn random_bytes_with_a_true_checksum_never_panic(mut bytes in prop::collection::vec(any::<u8>(), UniqueId::BYTES)) {
            bytes[..6].copy_from_slice(&example().to_bytes()[..6]);
            let sum = checksum(&bytes[..UniqueId::BYTES - CHECKSUM_BYTES]);
            bytes[UniqueId::BYTES - CHECKSUM_BYTES..].copy_from_slice(&sum);
            let _ = UniqueId::from_bytes(&bytes.try_into().unwrap());
        }

        #[test]
        fn random_text_is_no_id(text in "(rccl1-)?[0-9a-fé]{0,300}") {
            prop_assert!(text.parse::<UniqueId>().is_err());
        }
    }
}
