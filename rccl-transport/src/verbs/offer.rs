//! The two small formats on the queue pairs: offers of receives, and the number that comes with a message's last write.

use crate::{
    Slice,
    channel::MAX_GROUP,
    fault::{Fault, Step},
    sys::memory,
    wire::{Decoder, Encoder, Malformed},
};

use super::pairs::ROOM_BYTES;

/// Bytes of a place in an offer.
const PLACE_BYTES: usize = 30;

/// The most receives in one offer.
pub(super) const MAX_PLACES: usize = MAX_GROUP;

const _: () = assert!(MAX_PLACES * PLACE_BYTES < ROOM_BYTES);

/// Where a message may be written: one receive of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) tag: u64,
    pub(super) key: u32,
    /// Its place in its group.
    pub(super) part: u8,
    /// How many the group has.
    pub(super) group: u8,
}

/// Writes an offer to the front of a room; its length in bytes.
pub(super) fn write_offer(room: &Slice, places: &[Place]) -> usize {
    let mut out = Encoder(Vec::with_capacity(ROOM_BYTES));
    out.u8(places.len() as u8);
    for place in places {
        out.u64(place.address).u64(place.bytes).u64(place.tag).u32(place.key).u8(place.part).u8(place.group);
    }
    memory::write(room, 0, &out.0);
    out.0.len()
}

/// The groups of an offer of `len` bytes.
pub(super) fn read_offer(room: &Slice, len: usize) -> Step<Vec<Vec<Place>>> {
    let mut bytes = [0; ROOM_BYTES];
    let bytes = bytes.get_mut(..len.min(room.len())).unwrap_or_default();
    memory::read(room, 0, bytes);
    decode(bytes).map_err(|malformed| Fault::protocol(malformed.0))
}

fn decode(bytes: &[u8]) -> Result<Vec<Vec<Place>>, Malformed> {
    let mut fields = Decoder::new(bytes);
    let count = fields.u8()?;
    let mut groups: Vec<Vec<Place>> = Vec::new();
    for _ in 0..count {
        let place = Place {
            address: fields.u64()?,
            bytes: fields.u64()?,
            tag: fields.u64()?,
            key: fields.u32()?,
            part: fields.u8()?,
            group: fields.u8()?,
        };
        match groups.last_mut() {
            Some(group) if place.part > 0 => group.push(place),
            _ => groups.push(vec![place]),
        }
    }
    fields.end()?;
    let is_whole = |group: &Vec<Place>| {
        let alike = |(part, place): (usize, &Place)| {
            usize::from(place.part) == part && usize::from(place.group) == group.len()
        };
        group.len() <= MAX_GROUP && group.iter().enumerate().all(alike)
    };
    if groups.iter().all(is_whole) { Ok(groups) } else { Err(Malformed("an offer of half a group".into())) }
}

/// What the number of a noticed write says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Notice {
    /// The message's number; 8 bits of it are told, since no more than 256 are outstanding.
    pub(super) message: u64,
    /// The receive of its group that it was written to.
    pub(super) part: u8,
    /// Over how many queue pairs it was spread, 1 to 8.
    pub(super) stripes: u64,
    /// Whole writes of this stripe before the noticed one; below 2^18.
    pub(super) whole_writes: u64,
}

impl Notice {
    pub(super) const fn number(self) -> u32 {
        let stripes = (self.stripes as u32 - 1) & 7;
        (self.message as u32 & 0xff) << 24
            | (self.part as u32 & 7) << 21
            | stripes << 18
            | self.whole_writes as u32 & 0x3_ffff
    }

    /// The notice behind a number, of a message from `first` on.
    pub(super) const fn of(number: u32, first: u64) -> Self {
        let ahead = (number >> 24).wrapping_sub(first as u32) & 0xff;
        Self {
            message: first + ahead as u64,
            part: (number >> 21 & 7) as u8,
            stripes: (number >> 18 & 7) as u64 + 1,
            whole_writes: (number & 0x3_ffff) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Region;

    fn place(part: u8, group: u8) -> Place {
        Place { address: 1 << 40, bytes: 1 << 33, tag: u64::MAX, key: 7, part, group }
    }

    #[test]
    fn offers_keep_their_groups() {
        let room = Region::zeroed(ROOM_BYTES).slice(0..ROOM_BYTES);
        let groups = vec![vec![place(0, 1)], vec![place(0, 3), place(1, 3), place(2, 3)], vec![place(0, 1)]];
        let len = write_offer(&room, &groups.concat());
        assert_eq!(read_offer(&room, len).unwrap(), groups);
        assert!(read_offer(&room, len - 1).is_err());
        for wrong in [&[place(1, 2)][..], &[place(0, 2)], &[place(0, 2), place(2, 2)], &[place(0, 9)]] {
            let len = write_offer(&room, wrong);
            assert!(read_offer(&room, len).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn notices_survive(first in 0..1_u64 << 40, ahead in 0..256_u64, part in 0..8_u8, stripes in 1..9_u64, whole_writes in 0..1_u64 << 18) {
            let notice = Notice { message: first + ahead, part, stripes, whole_writes };
            prop_assert_eq!(Notice::of(notice.number(), first), notice);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..260)) {
            let _ = decode(&bytes);
        }
    }
}
