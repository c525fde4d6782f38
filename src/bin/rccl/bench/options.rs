//! The options of `rccl bench`.

use std::path::PathBuf;

use clap::ValueEnum;
use rccl_core::{Algorithm, Collective};

use crate::{names, size};

/// Measure a collective, check every result, and compare with other libraries
///
/// Starts one process a rank, lets them run the collective on buffers of growing size, and prints time and bandwidth of each.
/// Options and columns mean what they mean in nccl-tests. Without sizes: 1 KiB to 64 MiB by 4, first over shared memory and
/// then over TCP, in less than 20 seconds.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXPLANATION, args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(super) part: Option<Part>,

    /// Which collective
    #[arg(default_value = "all-reduce", value_parser = names::collective())]
    pub(super) collective: Collective,

    /// Smallest size in bytes; K, M and G (powers of 1024) are understood here and below [default: 1K]
    #[arg(short = 'b', long, visible_alias = "minbytes", value_parser = size::parse, value_name = "SIZE", help_heading = "Sizes")]
    pub(super) min_bytes: Option<u64>,
    /// Largest size [default: 64M, or the smallest where that is larger]
    #[arg(short = 'e', long, visible_alias = "maxbytes", value_parser = size::parse, value_name = "SIZE", help_heading = "Sizes")]
    pub(super) max_bytes: Option<u64>,
    /// What each size is multiplied by to give the next [default: 4]
    #[arg(short = 'f', long, visible_alias = "stepfactor", value_parser = clap::value_parser!(u64).range(2..), help_heading = "Sizes")]
    pub(super) factor: Option<u64>,
    /// What is added to each size to give the next, instead of multiplying
    #[arg(short = 'i', long, visible_alias = "stepbytes", value_parser = size::parse, value_name = "SIZE", conflicts_with = "factor", help_heading = "Sizes")]
    pub(super) step_bytes: Option<u64>,

    /// Types of the elements, separated by commas, or `all`
    #[arg(
        short = 'd',
        long,
        visible_alias = "datatype",
        default_value = "float",
        value_name = "TYPES",
        help_heading = "What is done"
    )]
    pub(super) dtype: String,
    /// How contributions are combined: names separated by commas, or `all`
    #[arg(short = 'o', long, default_value = "sum", value_name = "OPS", help_heading = "What is done")]
    pub(super) op: String,
    /// Root of a broadcast
    #[arg(short = 'r', long, default_value_t = 0, value_name = "RANK", help_heading = "What is done")]
    pub(super) root: u32,
    /// Ranks on this machine, one process each [default: 2, or as many as there are GPUs]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "What is done")]
    pub(super) ranks: Option<u32>,
    /// How it is done; `auto` chooses by size, as applications get it
    #[arg(long, default_value = "auto", value_parser = names::algorithm_or_auto(), help_heading = "What is done")]
    pub(super) algorithm: names::Choice<Algorithm>,
    /// What carries the bytes [default: auto; without sizes shm, then tcp]
    #[arg(long, value_enum, help_heading = "What is done")]
    pub(super) transport: Option<Transport>,
    /// The kind of path: host is shared memory, net is TCP, or RDMA where the transport says so
    #[arg(long, value_enum, default_value_t = Path::Auto, help_heading = "What is done")]
    pub(super) path: Path,
    /// How messages are signalled between GPUs; host memory knows no choice
    #[arg(long, value_enum, default_value_t = Protocol::Auto, help_heading = "What is done")]
    pub(super) protocol: Protocol,
    /// Where the buffers lie. On GPUs: one process each; where ranks share GPUs, threads of one process
    #[arg(long, value_enum, default_value_t = Device::Host, help_heading = "What is done")]
    pub(super) device: Device,
    /// Start a process a rank even where ranks share GPUs: their work then takes turns, milliseconds a call
    #[arg(long, help_heading = "What is done")]
    pub(super) separate: bool,
    /// Capture operations on GPUs in graphs of up to 20, and launch those
    #[arg(long, help_heading = "What is done")]
    pub(super) graph: bool,

    /// Timed operations [default: as many as fill 20 ms, at least 20 where that takes no longer than half a second]
    #[arg(short = 'n', long, visible_alias = "iters", value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT", help_heading = "How it is measured")]
    pub(super) iterations: Option<u32>,
    /// Operations before the clock starts [default: 5, fewer where they take long]
    #[arg(
        short = 'w',
        long,
        visible_alias = "warmup_iters",
        value_name = "COUNT",
        help_heading = "How it is measured"
    )]
    pub(super) warmup: Option<u32>,
    /// Operations on fresh random data whose every element is checked, in each round; 0 checks nothing
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000), value_name = "COUNT", help_heading = "How it is measured")]
    pub(super) check: u32,
    /// Wait for each operation before the next is enqueued, as in nccl-tests; calls on host memory block anyway
    #[arg(short = 'z', long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1), value_name = "0|1", help_heading = "How it is measured")]
    pub(super) blocking: u32,
    /// Batches of each size, of which the median counts [default: 1, with a peer 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "COUNT", help_heading = "How it is measured")]
    pub(super) rounds: Option<u32>,
    /// Also time operations one by one, and show percentiles
    #[arg(long, help_heading = "How it is measured")]
    pub(super) percentiles: bool,
    /// Seconds that one batch may take before the benchmark gives up
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400), value_name = "SECONDS", help_heading = "How it is measured")]
    pub(super) timeout: u32,

    /// Another library to measure in turns with this one; `cargo xtask peers` fetches gloo and openmpi
    #[arg(long, value_enum, help_heading = "Comparison")]
    pub(super) peer: Option<PeerName>,
    /// A variable for the peer; may be given several times
    #[arg(long, value_name = "K=V", requires = "peer", help_heading = "Comparison")]
    pub(super) peer_env: Vec<String>,
    /// The file of NCCL [default: libnccl.so.2 where the loader finds it, or that of Python's package nvidia-nccl]
    #[arg(long, value_name = "PATH", requires = "peer", help_heading = "Comparison")]
    pub(super) nccl_library: Option<PathBuf>,

    /// Write one JSON object a point to a file, or to standard output with `-` (the table then goes to standard error)
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    pub(super) json: Option<PathBuf>,
    /// Write the same points as comma separated values
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) csv: Option<PathBuf>,
    /// Draw bus bandwidth over size
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    pub(super) plot: Option<PathBuf>,
    /// Write the same points to benches/record, named after the time and what was measured
    #[arg(long, help_heading = "Output")]
    pub(super) record: bool,
}

/// What else than collectives can be measured.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Part {
    Channel(super::channel::Options),
}

const EXPLANATION: &str = "\
Columns:
  size      bytes of the larger of a rank's two buffers
  count     elements: of the buffers, or of one rank's chunk for all-gather and reduce-scatter
  time      microseconds an operation: those of the batch on the slowest rank, divided by its length
  algbw     size / time, in 1e9 bytes a second
  busbw     algbw times what the collective moves over each rank's link for each byte: 2(n-1)/n for all-reduce, (n-1)/n for
            all-gather and reduce-scatter, 1 for broadcast and send-recv; comparable over collectives and numbers of ranks
  #wrong    elements that differ, in any bit, from what the algorithm must give
  device    microseconds an operation by the GPU's own clock
  limit     the busbw that the same number of bytes would have if all ranks only copied them from one buffer to another, all at once;
            on GPUs, if copy engines brought them through host memory to all other ranks, without adding, in the best pieces
  ratio     the peer's time / ours: above 1 we are faster; the median over the rounds

Examples:
  rccl bench                                          all-reduce over shared memory, then over TCP
  rccl bench all-gather -b 8 -e 1G -f 2 --ranks 4     the sizes of nccl-tests
  rccl bench -b 4K -e 4K --percentiles                how steady small operations are
  rccl bench --transport tcp --algorithm ring         one transport, one algorithm
  rccl bench --peer gloo --transport tcp --record     compare, and keep the points
  rccl bench --device cuda -b 8 -e 1G --peer nccl --peer-env NCCL_P2P_DISABLE=1
                                                      GPUs through host memory, in turns with NCCL doing the same
  rccl bench --device cuda -b 8 -e 32K --graph        small operations in CUDA graphs

Exit status: 0 all results right, 1 some wrong, 2 an option makes no sense, 3 a process died, hung or reported a failure.
Variables: RCCL_* and NCCL_* act on the measured processes as on any other; see `rccl doctor`.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Shared memory between ranks of one machine; between machines RDMA where both have it, else TCP
    Auto,
    /// Shared memory
    Shm,
    /// TCP, also within the machine
    Tcp,
    /// RDMA, also within the machine: RoCE and InfiniBand
    Verbs,
}

impl Transport {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// The best that works
    Auto,
    /// Directly from GPU to GPU
    P2p,
    /// Through host memory
    Host,
    /// Through the network
    Net,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// By size
    Auto,
    /// Flags beside data
    Ll,
    /// Stripes of kernel blocks
    Stripe,
    /// Copy engines
    Bulk,
}

impl Protocol {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ll => "ll",
            Self::Stripe => "stripe",
            Self::Bulk => "bulk",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// Host memory
    Host,
    /// GPU memory
    Cuda,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerName {
    /// torch.distributed with gloo, over TCP
    Gloo,
    /// Open MPI, over shared memory or TCP as the transport says
    Openmpi,
    /// NCCL, on GPUs
    Nccl,
}
