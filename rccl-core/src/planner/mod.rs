//! The algorithms: from a group and a request to a plan. Pure functions; nothing else computes an offset.

pub mod oneshot;
pub mod relay;
pub mod ring;

use crate::{Algorithm, Collective, Error, Group, Plan, Request, Result};

/// Parts that ranks own start at multiples of this many bytes, so that no two ranks write one cache line and vectors
/// stay aligned where the caller's buffer is.
pub const PART_ALIGN_BYTES: u64 = 64;

/// The plan of `request` by `algorithm` for one member of a group, moving at most `segment` elements a message.
///
/// # Errors
/// Whatever [`Request::check`] finds; [`Error::Algorithm`] if the algorithm does not implement the collective;
/// [`Error::EmptySegment`] if `segment` is 0.
pub fn plan(group: Group, request: &Request, algorithm: Algorithm, segment: u64) -> Result<Plan> {
    use Algorithm::{Oneshot, Relay, Ring};
    use Collective::{AllGather, AllReduce, Broadcast, ReduceScatter, SendRecv};
    match (request.collective, algorithm) {
        (AllReduce, Oneshot) => oneshot::all_reduce(group, request, segment),
        (AllReduce, Relay) => relay::all_reduce(group, request, segment),
        (AllReduce, Ring) => ring::all_reduce(group, request, segment),
        (AllGather, Oneshot) => oneshot::all_gather(group, request, segment),
        (AllGather, Ring) => ring::all_gather(group, request, segment),
        (ReduceScatter, Oneshot) => oneshot::reduce_scatter(group, request, segment),
        (ReduceScatter, Ring) => ring::reduce_scatter(group, request, segment),
        (Broadcast, Oneshot) => oneshot::broadcast(group, request, segment),
        (Broadcast, Ring) => ring::broadcast(group, request, segment),
        (SendRecv, Oneshot) => oneshot::send_recv(group, request, segment),
        (collective, algorithm) => Err(Error::Algorithm { collective, algorithm }),
    }
}
