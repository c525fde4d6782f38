//! Which algorithm and which segment a call gets: pure functions of what all ranks agreed on at creation.

use rccl_core::{Algorithm, Collective, Group, Request};

/// The numbers that decide, equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// The algorithm that the user named, if any.
    pub(crate) algorithm: Option<Algorithm>,
    /// All-reduces of at most this many bytes take one hop.
    pub(crate) oneshot_bytes: u64,
    /// Data bytes of a slot: no segment is longer.
    pub(crate) slot_bytes: u64,
}

/// Segments shorter than this cost more in words than they gain in overlap.
const MIN_SEGMENT_BYTES: u64 = 16 << 10;

/// A message is cut into about this many segments, so that the hops overlap.
const PIPELINE_DEPTH: u64 = 4;

impl Thresholds {
    /// The algorithm for a request: the one named by the user where it implements the collective, else by size. Only
    /// algorithms that add in rank order and round once are chosen, so the choice never changes a result.
    pub(crate) fn algorithm(&self, request: &Request) -> Algorithm {
        let named = self.algorithm.filter(|named| request.collective.algorithms().contains(named));
        named.unwrap_or(match request.collective {
            Collective::AllReduce if bytes(request) > self.oneshot_bytes => Algorithm::Relay,
            _ => Algorithm::Oneshot,
        })
    }

    /// Elements of a segment for a request carried out by `algorithm`.
    pub(crate) fn segment(&self, group: Group, request: &Request, algorithm: Algorithm) -> u64 {
        let spread = match (request.collective, algorithm) {
            (Collective::AllReduce, Algorithm::Relay | Algorithm::Ring) => u64::from(group.size()),
            _ => 1,
        };
        let message = rccl_core::split::segments(bytes(request), spread * PIPELINE_DEPTH);
        let segment = message.max(MIN_SEGMENT_BYTES).min(self.slot_bytes);
        // A power of two, so that segments keep whatever alignment their part has.
        let segment = 1 << segment.max(8).ilog2();
        rccl_core::split::elements(segment, request.data_type)
    }
}

/// Bytes of a request's larger message; the two sides of a send-recv need not be equal, and each is known to both its
/// ends.
fn bytes(request: &Request) -> u64 {
    request.count.max(request.receive_count).saturating_mul(request.data_type.size_bytes() as u64)
}
