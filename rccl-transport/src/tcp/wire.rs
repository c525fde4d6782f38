//! What goes over the sockets of a channel: chunks of messages, each behind a header.
//!
//! ```text
//! magic u32 | length u32 | message u64 | tag u64 | total u64 | offset u64 | `length` bytes of the message from `offset`
//! ```
//! All numbers are little endian. The first chunk of every message (offset 0) goes over the first socket, so that these
//! arrive in the order sent and the other sockets need no looking at between long messages. All other chunks go over
//! whichever socket takes them.

use crate::{inbox::Announcement, outbox::Chunk};

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 40;

/// The longest chunk in bytes where a channel has several sockets.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// The longest first chunk in bytes where a channel has several sockets: short, since only the first socket takes it.
pub(super) const FIRST_CHUNK_BYTES: usize = 64 << 10;

/// The longest chunk in bytes where there is one socket.
pub(super) const SOLE_CHUNK_BYTES: usize = 1 << 30;

/// Starts every header; anything else there means that the two sides lost each other.
const MAGIC: u32 = u32::from_le_bytes(*b"rcc1");

/// The header of a chunk.
pub(super) fn encode(chunk: &Chunk) -> [u8; HEADER_BYTES] {
    let length = u32::try_from(chunk.slice.len()).expect("at most SOLE_CHUNK_BYTES");
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    for (field, value) in [chunk.message, chunk.tag, chunk.total, chunk.offset].into_iter().enumerate() {
        bytes[8 + 8 * field..16 + 8 * field].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// What a header says; `None` if it is not one.
pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Announcement> {
    let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (short(0) == MAGIC).then(|| Announcement {
        message: long(8),
        tag: long(16),
        total: long(24),
        offset: long(32),
        length: u64::from(short(4)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn headers_say_what_they_were_given() {
        let slice = Region::zeroed(9).slice(2..9);
        let bytes =
            encode(&Chunk { message: 1 << 40, tag: u64::MAX, total: 1 << 33, offset: 1 << 32, slice });
        let said =
            Announcement { message: 1 << 40, tag: u64::MAX, total: 1 << 33, offset: 1 << 32, length: 7 };
        assert_eq!(decode(&bytes), Some(said));
        for byte in 0..4 {
            let mut wrong = bytes;
            wrong[byte] ^= 1;
            assert_eq!(decode(&wrong), None);
        }
    }
}
