use std::{fmt, time::Duration};

use crate::Interfaces;

/// How the devices of a host reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CudaProtocol {
    /// One kernel with flags beside the data: up to 512 KiB; larger calls are chosen by size.
    Ll,
    /// One kernel with chunks in slots, one hop.
    Stripe,
    /// One kernel with chunks in slots, two hops: fewer bytes from 3 ranks on.
    Relay,
    /// Copy engines.
    Bulk,
}

impl fmt::Display for CudaProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ll => "ll",
            Self::Stripe => "stripe",
            Self::Relay => "relay",
            Self::Bulk => "bulk",
        })
    }
}

/// How a [`super::CudaCommunicator`] is made. The first four must be equal on all ranks; creation checks that.
#[derive(Debug, Clone)]
pub struct CudaOptions {
    /// The protocol of all calls; `None` chooses by size.
    pub protocol: Option<CudaProtocol>,
    /// Calls of at most this many bytes use `ll` (at most 512 KiB); `None` takes a value that suits the size of the group.
    pub ll_bytes: Option<u64>,
    /// Calls of at least this many bytes use `bulk`; `None` takes a value that suits the size of the group.
    pub bulk_bytes: Option<u64>,
    /// Whether ranks of one process may share a device. Work of each must then be on streams of its own, not the default
    /// stream. Ranks of different processes cannot share one: kernels that wait for each other would take turns.
    pub allow_shared_gpu: bool,
    /// How long creation may take before it gives up and names the missing ranks.
    pub init_timeout: Duration,
    /// The interfaces on which the ranks, all of one host, find each other to share memory; the loopback unless told.
    pub interfaces: Interfaces,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            protocol: None,
            ll_bytes: None,
            bulk_bytes: None,
            allow_shared_gpu: false,
            init_timeout: Duration::from_secs(120),
            interfaces: Interfaces::loopback(),
        }
    }
}
