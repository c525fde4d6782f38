//! The bytes of a hello, made and checked without doing anything.

use super::{MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Purpose};
use crate::secret::Tag;

/// The first byte is no ASCII and the line ends differ, so that no protocol made of text begins like this.
const MAGIC: [u8; 8] = *b"\x8frccl\r\n\0";

pub(super) const NONCE_BYTES: usize = 32;
/// Magic, version (u16, little endian like all numbers here), purpose, role, nonce.
pub(super) const GREETING_BYTES: usize = MAGIC.len() + 2 + 1 + 1 + NONCE_BYTES;
/// Verdict, a zero byte, payload length (u16). The payload and the tag follow an accepting verdict.
pub(super) const HEADER_BYTES: usize = 4;
pub(super) const TAG_BYTES: usize = size_of::<Tag>();

pub(super) type GreetingBytes = [u8; GREETING_BYTES];

pub(super) const ACCEPTED: u8 = 1;
pub(super) const REFUSED: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Role {
    Initiator = 0,
    Responder = 1,
}

impl Role {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Initiator => "hello of the initiator",
            Self::Responder => "hello of the responder",
        }
    }
}

pub(super) fn greeting(purpose: Purpose, role: Role, nonce: &[u8; NONCE_BYTES]) -> GreetingBytes {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes[10] = purpose as u8;
    bytes[11] = role as u8;
    bytes[12..].copy_from_slice(nonce);
    bytes
}

/// Checks as much of the magic and the version as has arrived.
pub(super) fn check_magic(bytes: &[u8]) -> Result<(), String> {
    let arrived = bytes.len().min(MAGIC.len());
    if bytes[..arrived] != MAGIC[..arrived] {
        return Err(format!(
            "it does not speak rccl (this side speaks version {PROTOCOL_VERSION}): a side without rccl, or something \
             else listens at this address"
        ));
    }
    let Some(&[low, high]) = bytes.get(8..10) else { return Ok(()) };
    let version = u16::from_le_bytes([low, high]);
    if version != PROTOCOL_VERSION {
        return Err(format!(
            "it speaks version {version} of rccl's protocol and this side version {PROTOCOL_VERSION}; install the \
             same rccl on both"
        ));
    }
    Ok(())
}

/// The greeting of a side that means what this side means, if `bytes` are one.
pub(super) fn check_greeting(bytes: &[u8], purpose: Purpose, role: Role) -> Result<GreetingBytes, String> {
    let theirs: GreetingBytes =
        bytes.try_into().map_err(|_| format!("a greeting of {} bytes", bytes.len()))?;
    check_magic(&theirs)?;
    match Purpose::from_byte(theirs[10]) {
        Some(meant) if meant == purpose => {}
        Some(meant) => return Err(format!("it wants {meant}, this side {purpose}: a wrong address")),
        None => return Err(format!("it wants something unknown (purpose {})", theirs[10])),
    }
    if theirs[11] != role.other() as u8 {
        return Err("it is on the same end of the connection as this side".into());
    }
    Ok(theirs)
}

/// The length in bytes of the payload that follows the header of a proof.
pub(super) fn check_header(bytes: &[u8]) -> Result<usize, String> {
    let Some(&[verdict, zero, low, high]) = bytes.get(..HEADER_BYTES) else {
        return Err(format!("a header of {} bytes", bytes.len()));
    };
    let payload_bytes = usize::from(u16::from_le_bytes([low, high]));
    match (verdict, zero) {
        (ACCEPTED, 0) if payload_bytes <= MAX_PAYLOAD_BYTES => Ok(payload_bytes),
        (ACCEPTED, 0) => {
            Err(format!("a payload of {payload_bytes} bytes; at most {MAX_PAYLOAD_BYTES} are allowed"))
        }
        (REFUSED, 0) => Err("it says that this side does not know its group's secret".into()),
        _ => Err(format!("a proof that starts with {verdict} and {zero}")),
    }
}
