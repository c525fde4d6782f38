//! What ranks tell each other over their control links: a length, a kind, and a few fields.

use rccl_transport::station::LABEL_BYTES;

use crate::Error;

/// A message between two engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A sign of life.
    Heartbeat,
    /// The sender leaves in good order.
    Goodbye,
    /// The sender's communicator has failed.
    Failed(Cause),
    /// The sender has been waiting for a while in its collective number `number`, which is this one.
    Call {
        /// How many collectives it began before.
        number: u64,
        /// The collective's label.
        label: [u8; LABEL_BYTES],
    },
}

/// An [`Error`] as it can be told to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    PeerLost { rank: u32, cause: String },
    Unresponsive { rank: u32, after_ms: u64 },
    Mismatch { ranks: [u32; 2], calls: [String; 2] },
    Aborted { rank: u32 },
    Other { rank: u32, cause: String },
}

/// The longest frame, with its length. Texts are cut to fit.
pub(crate) const MAX_FRAME_BYTES: usize = 1024;

/// The longest text in a frame.
const MAX_TEXT_BYTES: usize = 400;

impl Cause {
    /// What `rank` tells the others about an error of its own.
    pub(crate) fn new(error: &Error, rank: u32) -> Self {
        match error {
            Error::PeerLost { rank, cause } => Self::PeerLost { rank: *rank, cause: cause.clone() },
            Error::Unresponsive { rank, after } => {
                Self::Unresponsive { rank: *rank, after_ms: after.as_millis() as u64 }
            }
            Error::Mismatch { ranks, calls } => Self::Mismatch { ranks: *ranks, calls: calls.clone() },
            Error::Aborted { rank } => Self::Aborted { rank: *rank },
            Error::PeerFailed { rank, cause } => Self::Other { rank: *rank, cause: cause.clone() },
            other => Self::Other { rank, cause: other.to_string() },
        }
    }

    /// The error that a rank which is told this reports.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::PeerLost { rank, cause } => Error::PeerLost { rank, cause },
            Self::Unresponsive { rank, after_ms } => {
                Error::Unresponsive { rank, after: std::time::Duration::from_millis(after_ms) }
            }
            Self::Mismatch { ranks, calls } => Error::Mismatch { ranks, calls },
            Self::Aborted { rank } => Error::Aborted { rank },
            Self::Other { rank, cause } => Error::PeerFailed { rank, cause },
        }
    }
}

impl Frame {
    /// The frame as bytes on a link.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0, 0];
        match self {
            Self::Heartbeat => bytes.push(0),
            Self::Goodbye => bytes.push(1),
            Self::Failed(cause) => {
                bytes.push(2);
                encode_cause(cause, &mut bytes);
            }
            Self::Call { number, label } => {
                bytes.push(3);
                bytes.extend(number.to_le_bytes());
                bytes.extend(label);
            }
        }
        let len = (bytes.len() - 2) as u16;
        bytes[..2].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// Takes the first whole frame off `bytes`. `Ok(None)` if there is none yet; `Err` if this can never become one.
    pub(crate) fn decode(bytes: &mut Vec<u8>) -> Result<Option<Self>, &'static str> {
        let Some((len, rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
        let len = usize::from(u16::from_le_bytes(*len));
        if len == 0 || len > MAX_FRAME_BYTES - 2 {
            return Err("a frame of an impossible length");
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let frame = Self::decode_body(&mut Fields(body)).ok_or("a frame that makes no sense")?;
        bytes.drain(..2 + len);
        Ok(Some(frame))
    }

    fn decode_body(fields: &mut Fields<'_>) -> Option<Self> {
        let frame = match fields.byte()? {
            0 => Self::Heartbeat,
            1 => Self::Goodbye,
            2 => Self::Failed(decode_cause(fields)?),
            3 => Self::Call { number: fields.u64()?, label: fields.array()? },
            _ => return None,
        };
        fields.0.is_empty().then_some(frame)
    }
}

fn encode_cause(cause: &Cause, bytes: &mut Vec<u8>) {
    match cause {
        Cause::PeerLost { rank, cause } => {
            bytes.push(0);
            bytes.extend(rank.to_le_bytes());
            encode_text(cause, bytes);
        }
        Cause::Unresponsive { rank, after_ms } => {
            bytes.push(1);
            bytes.extend(rank.to_le_bytes());
            bytes.extend(after_ms.to_le_bytes());
        }
        Cause::Mismatch { ranks, calls } => {
            bytes.push(2);
            for (rank, call) in ranks.iter().zip(calls) {
                bytes.extend(rank.to_le_bytes());
                encode_text(call, bytes);
            }
        }
        Cause::Aborted { rank } => {
            bytes.push(3);
            bytes.extend(rank.to_le_bytes());
        }
        Cause::Other { rank, cause } => {
            bytes.push(4);
            bytes.extend(rank.to_le_bytes());
            encode_text(cause, bytes);
        }
    }
}

fn decode_cause(fields: &mut Fields<'_>) -> Option<Cause> {
    Some(match fields.byte()? {
        0 => Cause::PeerLost { rank: fields.u32()?, cause: fields.text()? },
        1 => Cause::Unresponsive { rank: fields.u32()?, after_ms: fields.u64()? },
        2 => {
            let (first, first_call) = (fields.u32()?, fields.text()?);
            let (second, second_call) = (fields.u32()?, fields.text()?);
            Cause::Mismatch { ranks: [first, second], calls: [first_call, second_call] }
        }
        3 => Cause::Aborted { rank: fields.u32()? },
        4 => Cause::Other { rank: fields.u32()?, cause: fields.text()? },
        _ => return None,
    })
}

fn encode_text(text: &str, bytes: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// The fields of a frame that are still to be read.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::from(self.array().map(u16::from_le_bytes)?);
        let text = self.0.get(..len)?;
        self.0 = &self.0[len..];
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> Vec<Frame> {
        let long = "ä".repeat(1000);
        vec![
            Frame::Heartbeat,
            Frame::Goodbye,
            Frame::Call { number: u64::MAX, label: [7; LABEL_BYTES] },
            Frame::Failed(Cause::PeerLost { rank: 3, cause: "gone".into() }),
            Frame::Failed(Cause::Unresponsive { rank: 3, after_ms: 2000 }),
            Frame::Failed(Cause::Mismatch { ranks: [0, 9], calls: ["a".into(), String::new()] }),
            Frame::Failed(Cause::Aborted { rank: 1 }),
            Frame::Failed(Cause::Other {
                rank: 1,
                cause: long.floor_char_boundary(MAX_TEXT_BYTES).to_string(),
            }),
        ]
    }

    #[test]
    fn frames_survive_any_fragmentation() {
        let wire: Vec<u8> = frames().iter().flat_map(Frame::encode).collect();
        for piece in 1..40 {
            let (mut inbox, mut got) = (Vec::new(), Vec::new());
            for bytes in wire.chunks(piece) {
                inbox.extend(bytes);
                while let Some(frame) = Frame::decode(&mut inbox).unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, frames());
            assert!(inbox.is_empty());
        }
    }

    #[test]
    fn long_texts_are_cut_on_a_character() {
        let text = "ä".repeat(1000);
        let frame = Frame::Failed(Cause::Mismatch { ranks: [0, 1], calls: [text.clone(), text] });
        let mut bytes = frame.encode();
        assert!(bytes.len() <= MAX_FRAME_BYTES);
        assert!(Frame::decode(&mut bytes).unwrap().is_some());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            while let Ok(Some(_)) = Frame::decode(&mut bytes) {}
        }
    }
}
