//! The options of `rccl bench`, and what they mean together.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use rccl_core::{Algorithm, Collective, DataType, Group, ReduceOp, Scalar};

use crate::{
    error::{Error, Result},
    names, size,
};

/// Measure a collective, check every result, and compare with other libraries
///
/// Starts one process a rank, lets them run the collective on buffers of growing size, and prints time and bandwidth of each.
/// Options and columns mean what they mean in nccl-tests. Without sizes: 1 KiB to 64 MiB by 4, first over shared memory and
/// then over TCP, in less than 20 seconds.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXPLANATION)]
pub(crate) struct Options {
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
    #[arg(short = 'd', long, visible_alias = "datatype", default_value = "float", value_name = "TYPES", help_heading = "What is done")]
    pub(super) dtype: String,
    /// How contributions are combined: names separated by commas, or `all`
    #[arg(short = 'o', long, default_value = "sum", value_name = "OPS", help_heading = "What is done")]
    pub(super) op: String,
    /// Root of a broadcast
    #[arg(short = 'r', long, default_value_t = 0, value_name = "RANK", help_heading = "What is done")]
    pub(super) root: u32,
    /// Ranks, one process each on this machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "What is done")]
    pub(super) ranks: u32,
    /// How it is done; `auto` chooses by size, as applications get it
    #[arg(long, default_value = "auto", value_parser = names::or_auto(Algorithm::ALL.map(Algorithm::name)), help_heading = "What is done")]
    pub(super) algorithm: Choice<Algorithm>,
    /// What carries the bytes [default: auto; without sizes shm, then tcp]
    #[arg(long, value_enum, help_heading = "What is done")]
    pub(super) transport: Option<Transport>,
    /// The kind of path: host is shared memory, net is TCP
    #[arg(long, value_enum, default_value_t = Path::Auto, help_heading = "What is done")]
    pub(super) path: Path,
    /// How messages are signalled between GPUs; host memory knows no choice
    #[arg(long, value_enum, default_value_t = Protocol::Auto, help_heading = "What is done")]
    pub(super) protocol: Protocol,
    /// Where the buffers lie
    #[arg(long, value_enum, default_value_t = Device::Host, help_heading = "What is done")]
    pub(super) device: Device,

    /// Timed operations [default: as many as fill 20 ms, at least 20 where that takes no longer than half a second]
    #[arg(short = 'n', long, visible_alias = "iters", value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT", help_heading = "How it is measured")]
    pub(super) iterations: Option<u32>,
    /// Operations before the clock starts
    #[arg(short = 'w', long, visible_alias = "warmup_iters", default_value_t = 5, value_name = "COUNT", help_heading = "How it is measured")]
    pub(super) warmup: u32,
    /// Operations on fresh random data whose every element is checked, in each round; 0 checks nothing
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000), value_name = "COUNT", help_heading = "How it is measured")]
    pub(super) check: u32,
    /// As in nccl-tests; calls on host memory block anyway
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

    /// Another library to measure in turns with this one; `cargo xtask peers` fetches it
    #[arg(long, value_enum, help_heading = "Comparison")]
    pub(super) peer: Option<PeerName>,
    /// A variable for the peer; may be given several times
    #[arg(long, value_name = "K=V", requires = "peer", help_heading = "Comparison")]
    pub(super) peer_env: Vec<String>,

    /// Write one JSON object a point to a file, or to standard output with `-` (the table then goes to standard error)
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    pub(super) json: Option<PathBuf>,
    /// Write the same points as comma separated values
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) csv: Option<PathBuf>,
    /// Write the same points to benches/record/<time>-<what>.jsonl
    #[arg(long, help_heading = "Output")]
    pub(super) record: bool,
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
  limit     the busbw that the same number of bytes would have if all ranks only copied them from one buffer to another, all at once
  ratio     the peer's time / ours: above 1 we are faster; the median over the rounds

Examples:
  rccl bench                                          all-reduce over shared memory, then over TCP
  rccl bench all-gather -b 8 -e 1G -f 2 --ranks 4     the sizes of nccl-tests
  rccl bench -b 4K -e 4K --percentiles                how steady small operations are
  rccl bench --transport tcp --algorithm ring         one transport, one algorithm
  rccl bench --peer gloo --transport tcp --record     compare, and keep the points

Exit status: 0 all results right, 1 some wrong, 2 an option makes no sense, 3 a process died, hung or reported a failure.
Variables: RCCL_* and NCCL_* act on the measured processes as on any other; see `rccl doctor`.";

/// A value, or `auto`.
pub(crate) type Choice<T> = names::Choice<T>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Shared memory between ranks of one machine, TCP between machines
    Auto,
    /// Shared memory
    Shm,
    /// TCP, also within the machine
    Tcp,
    /// RDMA
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

/// The options after checking them against each other.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) collective: Collective,
    pub(super) sizes: Vec<u64>,
    pub(super) data_types: Vec<DataType>,
    /// The operators; `None` where nothing is reduced.
    pub(super) ops: Vec<Option<ReduceOp>>,
    pub(super) root: u32,
    pub(super) ranks: u32,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) transports: Vec<Transport>,
    pub(super) iterations: Option<u32>,
    pub(super) warmup: u32,
    pub(super) checks: u32,
    pub(super) rounds: u32,
    pub(super) samples: u32,
    pub(super) timeout: Duration,
    pub(super) peer_env: Vec<(String, String)>,
}

/// The most sizes one run measures: a bound against `-i 1`.
const MAX_SIZES: usize = 10_000;

impl Options {
    /// What the options mean together.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the option that makes no sense, and the core's refusals.
    pub(super) fn settings(&self) -> Result<Settings> {
        let collective = self.collective;
        self.check_device()?;
        Group::new(self.ranks, 0)?.member("root", self.root)?;
        if let Some(algorithm) = self.algorithm.0
            && !collective.algorithms().contains(&algorithm)
        {
            return Err(rccl_core::Error::Algorithm { collective, algorithm }.into());
        }
        let data_types = list("--dtype", &self.dtype, &DataType::ALL.map(DataType::name))?;
        let ops: Vec<ReduceOp> = list("--op", &self.op, &ReduceOp::NAMES)?;
        Ok(Settings {
            collective,
            sizes: self.sizes()?,
            data_types,
            ops: if collective.reduces() { ops.into_iter().map(Some).collect() } else { vec![None] },
            root: self.root,
            ranks: self.ranks,
            algorithm: self.algorithm.0,
            transports: self.transports()?,
            iterations: self.iterations,
            warmup: self.warmup,
            checks: self.check,
            rounds: self.rounds.unwrap_or(if self.peer.is_some() { 5 } else { 1 }),
            samples: if self.percentiles { 1000 } else { 0 },
            timeout: Duration::from_secs(self.timeout.into()),
            peer_env: self.peer_env.iter().map(|text| variable(text)).collect::<Result<_>>()?,
        })
    }

    fn check_device(&self) -> Result<()> {
        if self.device == Device::Cuda {
            return Err(Error::usage("--device", "cuda is not built in this version; only host memory is measured"));
        }
        if self.protocol != Protocol::Auto {
            let reason = "host memory has no such protocol; ll, stripe and bulk are ways to signal between GPUs";
            return Err(Error::usage("--protocol", reason));
        }
        if self.peer == Some(PeerName::Nccl) {
            return Err(Error::usage("--peer", "nccl moves GPU memory only; for host memory compare with gloo or openmpi"));
        }
        Ok(())
    }

    fn transports(&self) -> Result<Vec<Transport>> {
        let by_path = match self.path {
            Path::Auto => None,
            Path::Host => Some(Transport::Shm),
            Path::Net => Some(Transport::Tcp),
            Path::P2p => return Err(Error::usage("--path", "p2p leads from GPU to GPU; host memory has host and net")),
        };
        match (self.transport, by_path) {
            (Some(Transport::Verbs), _) => {
                Err(Error::usage("--transport", "verbs is not built in this version; use shm or tcp"))
            }
            (Some(transport), Some(path)) if transport != Transport::Auto && transport != path => {
                let reason = format!("{} is not what --path asks for; leave one of the two out", transport.name());
                Err(Error::usage("--transport", reason))
            }
            (_, Some(path)) => Ok(vec![path]),
            (Some(transport), None) => Ok(vec![transport]),
            (None, None) if self.min_bytes.is_none() && self.max_bytes.is_none() => {
                Ok(vec![Transport::Shm, Transport::Tcp])
            }
            (None, None) => Ok(vec![Transport::Auto]),
        }
    }

    fn sizes(&self) -> Result<Vec<u64>> {
        let (usual_min, usual_max) = (1 << 10, 64 << 20);
        let min = self.min_bytes.unwrap_or(usual_min.min(self.max_bytes.unwrap_or(usual_min)));
        let max = self.max_bytes.unwrap_or(usual_max.max(min));
        if min > max {
            let reason = format!("the smallest size, {min} bytes, is above the largest, {max} bytes (-e)");
            return Err(Error::usage("-b", reason));
        }
        if self.step_bytes == Some(0) {
            return Err(Error::usage("-i", "a step of 0 bytes never reaches the largest size"));
        }
        if min == 0 && max > 0 && self.step_bytes.is_none() {
            return Err(Error::usage("-b", "multiplying 0 bytes never reaches the largest size; start at 1, or use -i"));
        }
        let next = |&size: &u64| match self.step_bytes {
            Some(step) => size.checked_add(step),
            None => size.checked_mul(self.factor.unwrap_or(4)),
        };
        let sizes: Vec<u64> =
            std::iter::successors(Some(min), next).take_while(|&size| size <= max).take(MAX_SIZES + 1).collect();
        if sizes.len() > MAX_SIZES {
            return Err(Error::usage("-i", format!("gives more than {MAX_SIZES} sizes; use a larger step")));
        }
        Ok(sizes)
    }
}

/// Names separated by commas, or `all` of them.
fn list<T>(option: &'static str, text: &str, all: &[&'static str]) -> Result<Vec<T>>
where
    T: std::str::FromStr<Err = rccl_core::Error>,
{
    let parse = |name: &str| name.parse::<T>().map_err(|error| Error::usage(option, error.to_string()));
    if text == "all" { all.iter().map(|name| parse(name)).collect() } else { text.split(',').map(parse).collect() }
}

fn variable(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Error::usage("--peer-env", format!("`{text}` is no variable; write NAME=VALUE"))),
    }
}

/// The operator with a factor that shows: multiplying by 1 would hide a multiplication left out.
pub(super) fn factor(op: ReduceOp, data_type: DataType) -> ReduceOp {
    match op {
        ReduceOp::MulSum(_) if data_type.is_integer() => ReduceOp::MulSum(Scalar::from(3_i64)),
        ReduceOp::MulSum(_) => ReduceOp::MulSum(Scalar::from(0.75)),
        op => op,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn settings(line: &str) -> Result<Settings> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).expect(line).options.settings()
    }

    fn refusal(line: &str) -> String {
        settings(line).expect_err(line).to_string()
    }

    #[test]
    fn without_arguments() {
        let settings = settings("").unwrap();
        assert_eq!((settings.sizes[0], *settings.sizes.last().unwrap(), settings.sizes.len()), (1 << 10, 64 << 20, 9));
        assert_eq!(settings.transports, [Transport::Shm, Transport::Tcp]);
        assert_eq!((settings.ranks, settings.rounds, settings.algorithm), (2, 1, None));
        assert_eq!(settings.ops, [Some(ReduceOp::Sum)]);
    }

    #[test]
    fn sizes() {
        let sizes = |line| settings(line).unwrap().sizes;
        assert_eq!(sizes("-b 8 -e 128 -f 2"), [8, 16, 32, 64, 128]);
        assert_eq!(sizes("-b 1K -e 4K -i 1K"), [1024, 2048, 3072, 4096]);
        assert_eq!(sizes("-b 1G"), [1 << 30]);
        assert_eq!(sizes("-e 64"), [64]);
        assert_eq!(sizes("-b 3 -e 20 -f 3"), [3, 9]);
        assert!(refusal("-b 2K -e 1K").contains("above the largest"));
        assert!(refusal("-b 0 -e 1K").contains("never reaches"));
        assert!(refusal("-b 1 -e 1G -i 1").contains("larger step"));
        assert_eq!(sizes("-b 0 -e 0"), [0]);
    }

    #[test]
    fn lists() {
        assert_eq!(settings("-d half,double").unwrap().data_types, [DataType::Half, DataType::Double]);
        assert_eq!(settings("-d all -o all").unwrap().data_types.len(), 12);
        assert_eq!(settings("all-gather -o all").unwrap().ops, [None]);
        assert!(refusal("-d float,quad").contains("`quad` is no data type"));
    }

    #[test]
    fn what_host_memory_cannot_do() {
        for (line, hint) in [
            ("--device cuda", "not built in this version"),
            ("--protocol ll", "host memory has no such protocol"),
            ("--path p2p", "GPU to GPU"),
            ("--transport verbs", "not built in this version"),
            ("--path net --transport shm", "leave one of the two out"),
            ("--peer nccl", "gloo or openmpi"),
            ("all-gather --algorithm relay", "all-gather has no algorithm relay"),
            ("broadcast --root 2", "root is rank 2"),
            ("--peer gloo --peer-env X", "NAME=VALUE"),
        ] {
            let message = refusal(line);
            assert!(message.contains(hint), "{line}: {message}");
        }
        assert_eq!(settings("--path host").unwrap().transports, [Transport::Shm]);
        assert_eq!(settings("--peer gloo --peer-env A=b=c").unwrap().peer_env, [("A".to_owned(), "b=c".to_owned())]);
    }

    #[test]
    fn a_factor_that_shows() {
        let op = "mulsum".parse().unwrap();
        assert_eq!(factor(op, DataType::Int8), ReduceOp::MulSum(Scalar::from(3_i64)));
        assert!(factor(op, DataType::Half).check(DataType::Half).is_ok());
        assert_eq!(factor(ReduceOp::Max, DataType::Half), ReduceOp::Max);
    }
}
