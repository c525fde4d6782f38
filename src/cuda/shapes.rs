//! Which protocol, in which shape, for which call: the same on all ranks.
//!
//! The numbers are those measured best for 2 ranks on PCIe 5 (float sums, one process a device): `ll` 41 us at 512 KiB,
//! `stripe` 68 at 1 MiB, where `bulk` takes 71; from 2 MiB on `bulk` wins (102 against 114).

use rccl_core::Algorithm;
use rccl_transport::cuda::relay::{
    BulkShape, Call, Protocol, RELAY_SLOT_BYTES, SLOT_BYTES, StripeShape, bulk_slot_bytes,
};

use super::{CudaOptions, CudaProtocol};

/// What an `ll` station holds.
const LL_STATION_BYTES: u64 = 512 << 10;
const LL_BLOCKS: u32 = 64;
const STRIPES: u32 = 8;
const RELAY_STRIPES: u32 = 16;
const BULK_FROM_BYTES: u64 = (1 << 20) + 1;

/// Blocks that may wait for each other, on every rank's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) ll: u32,
    pub(super) stripe: u32,
    pub(super) relay: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Shapes {
    forced: Option<CudaProtocol>,
    algorithm: Option<Algorithm>,
    pub(super) ll_bytes: u64,
    pub(super) bulk_bytes: u64,
    ranks: u32,
    room: Room,
    /// Whether copy engines serve one rank each.
    copies_apart: bool,
}

impl Shapes {
    /// `copies_apart` says whether copy engines serve one rank each; only then they are chosen by size.
    pub(super) fn new(options: &CudaOptions, ranks: u32, room: Room, copies_apart: bool) -> Self {
        // Every rank reads from all others: what pays for two ranks pays for fewer bytes between more.
        let peers = u64::from(ranks.max(2) - 1);
        let suits = 1 << (LL_STATION_BYTES / peers).ilog2();
        let bulk = if ranks <= 2 { BULK_FROM_BYTES } else { u64::MAX };
        let forced = match options.algorithm {
            Some(Algorithm::Relay) => Some(CudaProtocol::Stripe),
            _ => options.protocol,
        };
        Self {
            forced,
            algorithm: options.algorithm,
            ll_bytes: options.ll_bytes.unwrap_or(suits).min(LL_STATION_BYTES),
            bulk_bytes: if copies_apart { options.bulk_bytes.unwrap_or(bulk) } else { u64::MAX },
            ranks,
            room,
            copies_apart,
        }
    }

    /// Whether a call of this protocol may be captured. The nodes of several ranks' graphs can end up in one hardware queue,
    /// and then those of one rank come before all those of another for which they wait.
    pub(super) const fn may_be_captured(&self, protocol: &Protocol) -> bool {
        self.copies_apart || !matches!(protocol, Protocol::Bulk(_))
    }

    pub(super) fn choose(&self, call: &Call) -> Protocol {
        let bytes = call.count * call.data_type.size_bytes() as u64;
        let by_size = || match () {
            () if bytes <= self.ll_bytes => CudaProtocol::Ll,
            () if bytes >= self.bulk_bytes => CudaProtocol::Bulk,
            () => CudaProtocol::Stripe,
        };
        match self.forced.filter(|&forced| forced != CudaProtocol::Ll || bytes <= LL_STATION_BYTES) {
            Some(forced) => self.shape(forced, bytes),
            None => self.shape(by_size(), bytes),
        }
    }

    fn shape(&self, protocol: CudaProtocol, bytes: u64) -> Protocol {
        // Two hops move fewer bytes from three ranks on.
        let by_size = if self.ranks <= 2 { Algorithm::Oneshot } else { Algorithm::Relay };
        match (protocol, self.algorithm.unwrap_or(by_size)) {
            (CudaProtocol::Ll, _) => Protocol::Ll(LL_BLOCKS.min(self.room.ll)),
            (CudaProtocol::Stripe, Algorithm::Relay) => {
                Protocol::Relay(stripe(RELAY_STRIPES.min(self.room.relay), RELAY_SLOT_BYTES, bytes))
            }
            (CudaProtocol::Stripe, _) => {
                Protocol::Stripe(stripe(STRIPES.min(self.room.stripe), SLOT_BYTES, bytes))
            }
            (CudaProtocol::Bulk, _) => Protocol::Bulk(bulk(bytes, bulk_slot_bytes(self.ranks))),
        }
    }
}

/// Small calls spread over all stripes; large ones fill the slots.
fn stripe(stripes: u32, slot_bytes: usize, bytes: u64) -> StripeShape {
    let each = bytes.div_ceil(u64::from(stripes)).next_multiple_of(128);
    let chunk_bytes = each.clamp(1024, slot_bytes as u64) as u32;
    let lag = if each <= slot_bytes as u64 { 1 } else { 3 };
    StripeShape { stripes, workers: 512, chunk_bytes, lag }
}

/// Enough chunks to overlap, each large enough to hide the cost of its words.
fn bulk(bytes: u64, slot_bytes: usize) -> BulkShape {
    let (chunk_bytes, slots) = match bytes >> 20 {
        0..4 => (1 << 20, 4),
        4..8 => (2 << 20, 4),
        8..64 => (4 << 20, 2),
        _ => (slot_bytes, 2),
    };
    BulkShape { chunk_bytes: chunk_bytes.min(slot_bytes), slots }
}

#[cfg(test)]
mod tests {
    use rccl_core::DataType;

    use super::*;

    fn call(bytes: u64) -> Call {
        Call { data_type: DataType::Float, count: bytes / 4, input: 256, output: 256, average: false }
    }

    const ROOM: Room = Room { ll: 264, stripe: 132, relay: 132 };

    #[test]
    fn the_protocol_follows_the_size() {
        let two = Shapes::new(&CudaOptions::default(), 2, ROOM, true);
        assert_eq!(two.choose(&call(4)), Protocol::Ll(64));
        assert_eq!(two.choose(&call(512 << 10)), Protocol::Ll(64));
        assert!(matches!(two.choose(&call((512 << 10) + 4)), Protocol::Stripe(_)));
        assert!(matches!(two.choose(&call(1 << 20)), Protocol::Stripe(_)));
        assert!(matches!(two.choose(&call((1 << 20) + 4)), Protocol::Bulk(_)));
        let four = Shapes::new(&CudaOptions::default(), 4, ROOM, true);
        assert!(matches!(four.choose(&call(128 << 10)), Protocol::Ll(_)));
        assert!(matches!(four.choose(&call(64 << 20)), Protocol::Relay(_)));
    }

    #[test]
    fn options_win_where_they_can() {
        let ll = CudaOptions { protocol: Some(CudaProtocol::Ll), ..CudaOptions::default() };
        let ll = Shapes::new(&ll, 2, ROOM, true);
        assert!(matches!(ll.choose(&call(512 << 10)), Protocol::Ll(_)));
        assert!(matches!(ll.choose(&call(8 << 20)), Protocol::Bulk(_)));
        let few = Room { ll: 3, stripe: 2, relay: 1 };
        let options = CudaOptions { ll_bytes: Some(8), bulk_bytes: Some(1 << 30), ..CudaOptions::default() };
        let narrow = Shapes::new(&options, 2, few, true);
        assert_eq!(narrow.choose(&call(8)), Protocol::Ll(3));
        let Protocol::Stripe(shape) = narrow.choose(&call(8 << 20)) else { panic!("no stripe") };
        assert_eq!((shape.stripes, shape.chunk_bytes, shape.lag), (2, 32 << 10, 3));
        let relay = CudaOptions { algorithm: Some(Algorithm::Relay), ..CudaOptions::default() };
        let relay = Shapes::new(&relay, 2, ROOM, true);
        assert!(matches!(relay.choose(&call(4)), Protocol::Relay(_)));
        let oneshot = CudaOptions { algorithm: Some(Algorithm::Oneshot), ..CudaOptions::default() };
        assert!(matches!(Shapes::new(&oneshot, 4, ROOM, true).choose(&call(1 << 20)), Protocol::Stripe(_)));
    }

    #[test]
    fn copy_engines_are_left_out_where_ranks_share_them_and_chunks_fit_their_slots() {
        let shared = Shapes::new(&CudaOptions::default(), 2, ROOM, false);
        assert!(matches!(shared.choose(&call(1 << 30)), Protocol::Stripe(_)));
        let bulk = CudaOptions { protocol: Some(CudaProtocol::Bulk), ..CudaOptions::default() };
        for ranks in [2, 3, 8, 32] {
            let Protocol::Bulk(shape) = Shapes::new(&bulk, ranks, ROOM, true).choose(&call(1 << 30)) else {
                panic!("another protocol")
            };
            assert_eq!(shape.chunk_bytes, bulk_slot_bytes(ranks));
        }
    }
}
