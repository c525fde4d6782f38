//! What the two sides of a verbs channel say to each other over tcp, before and beside the queue pairs.

use super::gid::{Gid, GidKind};
use crate::wire::{Decoder, Encoder, Malformed};

/// The longest message in bytes.
pub(super) const MAX_FRAME_BYTES: usize = 16 << 10;

/// The most GIDs of a port that are told.
const MAX_GIDS: usize = 64;

/// The longest text in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// A port, as the other side needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Device and port, for people.
    pub(super) name: String,
    /// MTU as the library counts it.
    pub(super) mtu: u8,
    /// Whether it is InfiniBand.
    pub(super) infiniband: bool,
    pub(super) lid: u32,
    pub(super) gids: Vec<Gid>,
}

/// One side's queue pairs, and the number of the first packet of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) pairs: Vec<u32>,
    pub(super) first_packet: u32,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// Each side's first: where it is.
    Place(Place),
    /// The connecting side's: try these GIDs, by their indexes there and here, with these queue pairs.
    Try { attempt: u32, theirs: u8, ours: u8, mtu: u8, numbers: Numbers },
    /// The listening side's: its queue pairs are connected.
    Ready { attempt: u32, numbers: Numbers },
    /// The listening side's: they cannot be.
    Failed { attempt: u32, why: String },
    /// The connecting side's: its packets are answered, so the channel stands.
    Done,
    /// The sender's last: how many messages it has sent.
    Goodbye { messages: u64 },
    /// A message was longer than its receive, after that many others.
    Truncated { messages: u64, message_bytes: u64, posted_bytes: u64 },
    /// The side that says this has failed.
    Broken { why: String },
}

impl Frame {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        match self {
            Self::Place(place) => {
                out.u8(1).bytes(clip(&place.name)).u8(place.mtu).u8(place.infiniband.into()).u32(place.lid);
                let gids = &place.gids[..place.gids.len().min(MAX_GIDS)];
                out.u32(gids.len() as u32);
                for gid in gids {
                    out.u8(gid.index).u8(u8::from(gid.kind == GidKind::RoceV2)).raw(&gid.bytes);
                }
            }
            Self::Try { attempt, theirs, ours, mtu, numbers } => {
                numbers.encode(out.u8(2).u32(*attempt).u8(*theirs).u8(*ours).u8(*mtu));
            }
            Self::Ready { attempt, numbers } => numbers.encode(out.u8(3).u32(*attempt)),
            Self::Failed { attempt, why } => _ = out.u8(4).u32(*attempt).bytes(clip(why)),
            Self::Done => _ = out.u8(5),
            Self::Goodbye { messages } => _ = out.u8(6).u64(*messages),
            Self::Truncated { messages, message_bytes, posted_bytes } => {
                out.u8(7).u64(*messages).u64(*message_bytes).u64(*posted_bytes);
            }
            Self::Broken { why } => _ = out.u8(8).bytes(clip(why)),
        }
        out.0
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn decode(bytes: &[u8], max_pairs: usize) -> Result<Self, Malformed> {
        let mut fields = Decoder::new(bytes);
        let frame = match fields.u8()? {
            1 => Self::Place(Place {
                name: fields.text(MAX_TEXT_BYTES)?,
                mtu: mtu(&mut fields)?,
                infiniband: fields.u8()? != 0,
                lid: fields.u32()?,
                gids: gids(&mut fields)?,
            }),
            2 => Self::Try {
                attempt: fields.u32()?,
                theirs: fields.u8()?,
                ours: fields.u8()?,
                mtu: mtu(&mut fields)?,
                numbers: Numbers::decode(&mut fields, max_pairs)?,
            },
            3 => Self::Ready { attempt: fields.u32()?, numbers: Numbers::decode(&mut fields, max_pairs)? },
            4 => Self::Failed { attempt: fields.u32()?, why: fields.text(MAX_TEXT_BYTES)? },
            5 => Self::Done,
            6 => Self::Goodbye { messages: fields.u64()? },
            7 => Self::Truncated {
                messages: fields.u64()?,
                message_bytes: fields.u64()?,
                posted_bytes: fields.u64()?,
            },
            8 => Self::Broken { why: fields.text(MAX_TEXT_BYTES)? },
            other => return Err(Malformed(format!("message of kind {other}"))),
        };
        fields.end()?;
        Ok(frame)
    }
}

impl Numbers {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.first_packet).u32(self.pairs.len() as u32);
        for &pair in &self.pairs {
            out.u32(pair);
        }
    }

    fn decode(fields: &mut Decoder<'_>, max_pairs: usize) -> Result<Self, Malformed> {
        let first_packet = fields.u32()?;
        let count = fields.u32()? as usize;
        if !(1..=max_pairs).contains(&count) {
            return Err(Malformed(format!("{count} queue pairs, where 1 to {max_pairs} are allowed")));
        }
        let pairs = (0..count).map(|_| fields.u32()).collect::<Result<_, _>>()?;
        Ok(Self { pairs, first_packet })
    }
}

fn mtu(fields: &mut Decoder<'_>) -> Result<u8, Malformed> {
    let mtu = fields.u8()?;
    if (1..=5).contains(&mtu) { Ok(mtu) } else { Err(Malformed(format!("MTU number {mtu}"))) }
}

fn gids(fields: &mut Decoder<'_>) -> Result<Vec<Gid>, Malformed> {
    let count = fields.u32()? as usize;
    if count > MAX_GIDS {
        return Err(Malformed(format!("{count} GIDs")));
    }
    let gid = |_| {
        let index = fields.u8()?;
        let kind = if fields.u8()? == 1 { GidKind::RoceV2 } else { GidKind::Other };
        Ok(Gid { index, kind, bytes: fields.array()?, interface: None })
    };
    (0..count).map(gid).collect()
}

/// As much of a text as is told.
fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_say_what_they_were_given() {
        let numbers = Numbers { pairs: vec![17, 0x00ff_ffff], first_packet: 5 };
        let gid = Gid { index: 3, kind: GidKind::RoceV2, bytes: [9; 16], interface: None };
        let place =
            Place { name: "rxe0 port 1".into(), mtu: 5, infiniband: false, lid: 7, gids: vec![gid; 2] };
        for frame in [
            Frame::Place(place),
            Frame::Try { attempt: 1, theirs: 1, ours: 2, mtu: 5, numbers: numbers.clone() },
            Frame::Ready { attempt: 1, numbers },
            Frame::Failed { attempt: 2, why: "no way".into() },
            Frame::Done,
            Frame::Goodbye { messages: 1 << 40 },
            Frame::Truncated { messages: 1, message_bytes: 2, posted_bytes: 3 },
            Frame::Broken { why: "a cable".into() },
        ] {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes, 2).unwrap(), frame);
            assert!((0..bytes.len()).all(|len| Frame::decode(&bytes[..len], 2).is_err()));
        }
        let long = Frame::Broken { why: "ä".repeat(1000) };
        assert!(matches!(Frame::decode(&long.encode(), 1), Ok(Frame::Broken { why }) if why.len() == 1024));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Frame::decode(&bytes, 8);
        }
    }
}
