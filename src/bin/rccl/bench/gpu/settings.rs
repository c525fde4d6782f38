//! What the options mean for buffers in GPU memory.

use rccl::cuda::{CudaOptions, CudaProtocol};
use rccl_core::{Collective, DataType, ReduceOp};

use super::super::options::{Options, Path, PeerName, Protocol, Transport};
use crate::error::{Error, Result};

/// How ranks use GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Gpus {
    /// Devices of this machine. Rank `r` has device `r` modulo their number.
    pub(in super::super) devices: u32,
    /// Whether some ranks share a GPU.
    pub(in super::super) shared: bool,
    /// Whether all ranks are threads of one process: those that share a GPU and did not ask for processes of their own.
    pub(in super::super) together: bool,
    /// The protocol of all calls; `None` chooses by size.
    pub(in super::super) protocol: Option<CudaProtocol>,
    /// Whether operations are captured in graphs.
    pub(in super::super) graph: bool,
}

/// Ranks that are measured at most: the words of the measured limit take room.
const MOST_RANKS: u32 = 16;

/// Ranks unless told otherwise: one a GPU, two where there is one GPU.
pub(in super::super) fn usual_ranks(devices: u32) -> u32 {
    devices.clamp(2, MOST_RANKS)
}

impl Gpus {
    /// # Errors
    /// [`Error::Usage`] naming the option that GPUs cannot serve in this version.
    pub(in super::super) fn new(options: &Options, devices: u32, ranks: u32) -> Result<Self> {
        if options.collective != Collective::AllReduce {
            let reason =
                format!("cuda reduces only (all-reduce); {} is measured on host memory", options.collective);
            return Err(Error::usage("--device", reason));
        }
        check_route(options)?;
        if matches!(options.peer, Some(PeerName::Gloo | PeerName::Openmpi)) {
            return Err(Error::usage(
                "--peer",
                "gloo and openmpi move host memory; on GPUs compare with nccl",
            ));
        }
        let plain = Self::of_ranks(devices, ranks)?;
        if plain.shared && options.record && options.peer.is_some() {
            let reason =
                format!("{ranks} ranks share {devices} GPU(s): there is nothing to compare, nor to keep");
            return Err(Error::usage("--record", reason));
        }
        let protocol = match options.protocol {
            Protocol::Auto => None,
            named => Some(named.name().parse()?),
        };
        let library = CudaOptions { protocol, algorithm: options.algorithm.0, ..CudaOptions::default() };
        library.check().map_err(|error| Error::usage("--algorithm", error.to_string()))?;
        let together = plain.together && !options.separate;
        Ok(Self { together, protocol, graph: options.graph, ..plain })
    }

    /// How so many ranks use so many GPUs, for the rest as the library likes.
    ///
    /// # Errors
    /// [`Error::Usage`] for more ranks than can be measured.
    pub(in super::super) fn of_ranks(devices: u32, ranks: u32) -> Result<Self> {
        if ranks > MOST_RANKS {
            let reason = format!("{ranks} ranks; on GPUs at most {MOST_RANKS} are measured");
            return Err(Error::usage("--ranks", reason));
        }
        let shared = ranks > devices;
        Ok(Self { devices, shared, together: shared, protocol: None, graph: false })
    }

    /// Who shares what, in words.
    pub(in super::super) fn seating(self, ranks: u32) -> String {
        let Self { devices, shared, together, .. } = self;
        match (shared, together) {
            (false, _) => format!("one process a rank, each with a GPU of its own ({ranks} of {devices})"),
            (true, true) => format!(
                "{ranks} ranks share {devices} GPU(s), as threads of one process (RCCL_ALLOW_SHARED_GPU=1): that shows \
                 results, not what separate GPUs take"
            ),
            (true, false) => format!(
                "{ranks} ranks share {devices} GPU(s), as processes whose work takes turns (RCCL_ALLOW_SHARED_GPU=1): \
                 that shows results, and no times"
            ),
        }
    }

    /// What GPUs can reduce.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the first type or operator that they cannot.
    pub(in super::super) fn check_work(data_types: &[DataType], ops: &[Option<ReduceOp>]) -> Result<()> {
        let types = [DataType::Float, DataType::Half, DataType::Bfloat16];
        if let Some(other) = data_types.iter().find(|it| !types.contains(it)) {
            let reason = format!("GPUs reduce float, half and bfloat16 in this version, not {other}");
            return Err(Error::usage("--dtype", reason));
        }
        match ops.iter().flatten().find(|op| !matches!(op, ReduceOp::Sum | ReduceOp::Avg)) {
            None => Ok(()),
            Some(other) => Err(Error::usage(
                "--op",
                format!("GPUs reduce with sum and avg in this version, not {}", other.name()),
            )),
        }
    }
}

fn check_route(options: &Options) -> Result<()> {
    match options.path {
        Path::Auto | Path::Host => {}
        Path::P2p => {
            let reason = "p2p is not built in this version; GPUs reach each other through the host";
            return Err(Error::usage("--path", reason));
        }
        Path::Net => return Err(Error::usage("--path", "net does not join GPUs in this version; use host")),
    }
    match options.transport {
        None | Some(Transport::Auto | Transport::Shm) => Ok(()),
        Some(other) => Err(Error::usage(
            "--transport",
            format!("GPUs of one machine share its memory; {} does not join them", other.name()),
        )),
    }
}
