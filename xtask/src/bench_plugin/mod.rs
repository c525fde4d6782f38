//! `cargo xtask bench-plugin`: NCCL with the plugin and with its own sockets, in turns, on the GPUs of this machine.
//!
//! Each side is a pair of processes of benches/peers/nccl_net.py that wait for commands; every round measures each side once.
//! Whether the traffic took the way that was asked for is read from the loopback interface's counters.

mod record;
mod worker;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{Result, command, install};
use record::Point;
use worker::{Pair, Sample};

/// Ranks: the peers of one pair of processes.
const RANKS: usize = 2;

/// Longest that starting or stopping a helping program may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes from which on an operation's traffic stands out from everything else on the loopback interface.
const COUNTED_BYTES: u64 = 1 << 20;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Collectives: all-reduce, send-recv, all-to-all
    #[arg(long, value_delimiter = ',', default_value = "all-reduce")]
    collectives: Vec<String>,
    /// Sizes in bytes
    #[arg(long, value_delimiter = ',', default_value = "8,4096,32768,1048576,8388608,67108864")]
    bytes: Vec<u64>,
    /// Rounds; medians are kept
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Our variables, "K=V K=V"; may be repeated [default: RCCL_NET_SHM=0, then RCCL_NET_SHM=1]
    #[arg(long)]
    env: Vec<String>,
    /// The variables of NCCL's own sockets, "K=V K=V"; may be repeated [default: none, then two threads a connection]
    #[arg(long)]
    peer_env: Vec<String>,
    /// A Python that has PyTorch with CUDA
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// The folder of libnccl-net-rccl.so [default: built now, in .cache/plugin]
    #[arg(long)]
    plugin: Option<PathBuf>,
    /// The worker [default: benches/peers/nccl_net.py]
    #[arg(long)]
    worker: Option<PathBuf>,
    /// Where the record goes [default: benches/record]
    #[arg(long)]
    record: Option<PathBuf>,
    /// What was measured, where there is no repository [default: what git says]
    #[arg(long)]
    commit: Option<String>,
    /// Start NVIDIA's multi-process service for the time: needed where both ranks share a GPU
    #[arg(long)]
    mps: bool,
}

/// One side of the comparison.
struct Side {
    variables: String,
    pair: Pair,
    samples: Vec<Sample>,
}

/// Measures and writes the record.
///
/// # Errors
/// When a process dies, a result is wrong, or the traffic took another way than asked for.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result {
    let plugin = match &arguments.plugin {
        Some(folder) => std::path::absolute(folder)?,
        None => built(root)?,
    };
    let worker = arguments.worker.clone().unwrap_or_else(|| root.join("benches/peers/nccl_net.py"));
    let _service = if arguments.mps { Some(Service::start()?) } else { None };
    let start = |variables: &str, rank_variables: &[(&str, String)]| -> Result<Side> {
        let pair = Pair::start(&arguments.python, &worker, variables, rank_variables)?;
        Ok(Side { variables: variables.to_owned(), pair, samples: Vec::new() })
    };
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let with = [
        ("LD_LIBRARY_PATH", format!("{}:{path}", plugin.display())),
        ("NCCL_NET_PLUGIN", "rccl".into()),
        ("NCCL_NET", "rccl".into()),
    ];
    let without =
        [("NCCL_NET_PLUGIN", "none".into()), ("NCCL_NET", "Socket".into()), ("NCCL_IB_DISABLE", "1".into())];
    let or = |given: &[String], usual: &[&str]| -> Vec<String> {
        if given.is_empty() { usual.iter().map(ToString::to_string).collect() } else { given.to_vec() }
    };
    let ours = or(&arguments.env, &["RCCL_NET_SHM=0", "RCCL_NET_SHM=1"]);
    let peers = or(&arguments.peer_env, &["", "NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=1"]);
    let mut ours = ours.iter().map(|it| start(it, &with)).collect::<Result<Vec<_>>>()?;
    let mut peers = peers.iter().map(|it| start(it, &without)).collect::<Result<Vec<_>>>()?;
    let commit = arguments.commit.clone().map_or_else(|| record::commit(root), Ok)?;
    let folder = arguments.record.clone().unwrap_or_else(|| root.join("benches/record"));
    let mut file = record::File::create(&folder, &ours[0].pair.facts, commit)?;
    for collective in &arguments.collectives {
        for &bytes in &arguments.bytes {
            measure(arguments, collective, bytes, &mut ours, &mut peers)?;
            for our in &ours {
                for peer in &peers {
                    let point = Point::new(collective, bytes, our.view(), peer.view());
                    println!("{}", point.line());
                    file.write(&point)?;
                }
            }
        }
    }
    ours.into_iter().chain(peers).try_for_each(|side| side.pair.finish())?;
    println!("{}", file.path().display());
    Ok(())
}

impl Side {
    fn view(&self) -> record::View<'_> {
        record::View { variables: &self.variables, samples: &self.samples }
    }
}

/// Measures one point on all sides, in turns.
fn measure(
    arguments: &Arguments,
    collective: &str,
    bytes: u64,
    ours: &mut [Side],
    peers: &mut [Side],
) -> Result {
    let iterations = iterations(bytes);
    ours.iter_mut().chain(peers.iter_mut()).for_each(|side| side.samples.clear());
    for _ in 0..arguments.rounds {
        for side in ours.iter_mut() {
            let before = loopback_bytes()?;
            let sample = side.pair.measure(collective, bytes, iterations)?;
            check_way(
                collective,
                &side.variables,
                bytes * u64::from(iterations),
                loopback_bytes()? - before,
            )?;
            side.samples.push(sample);
        }
        for side in peers.iter_mut() {
            side.samples.push(side.pair.measure(collective, bytes, iterations)?);
        }
    }
    Ok(())
}

/// Few enough that a round takes a fraction of a second.
fn iterations(bytes: u64) -> u32 {
    ((256 << 20) / bytes.max(1)).clamp(4, 200) as u32
}

/// Whether the bytes went over the loopback interface, where sockets were asked for, and not, where shared memory was.
fn check_way(collective: &str, variables: &str, total_bytes: u64, counted_bytes: u64) -> Result {
    if total_bytes < COUNTED_BYTES * 4 {
        return Ok(());
    }
    let sockets = variables.split_whitespace().any(|it| it == "RCCL_NET_SHM=0");
    let least = if collective == "all-reduce" { total_bytes * RANKS as u64 } else { total_bytes / 2 };
    match (sockets, counted_bytes >= least / 10 * 9, counted_bytes <= total_bytes / 10) {
        (true, true, _) | (false, _, true) => Ok(()),
        _ => Err(format!(
            "with `{variables}` {collective} of {total_bytes} bytes in all put {counted_bytes} on the loopback interface"
        )
        .into()),
    }
}

fn loopback_bytes() -> Result<u64> {
    let path = "/sys/class/net/lo/statistics/tx_bytes";
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(text.trim().parse()?)
}

fn built(root: &Path) -> Result<PathBuf> {
    let folder = root.join(".cache/plugin");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("libnccl-net-rccl.so"), install::library(root)?)?;
    Ok(folder)
}

/// NVIDIA's multi-process service, stopped when dropped.
struct Service;

impl Service {
    fn start() -> Result<Self> {
        command::run(Command::new("nvidia-cuda-mps-control").arg("-d"), LIMIT)?;
        Ok(Self)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let mut stop = Command::new("sh");
        stop.args(["-c", "echo quit | nvidia-cuda-mps-control"]);
        if let Err(error) = command::run(&mut stop, LIMIT) {
            eprintln!("the multi-process service was not stopped: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_on_the_wrong_way_is_an_error() {
        let big = 100 << 20;
        for (variables, counted, right) in [
            ("RCCL_NET_SHM=0", 2 * big, true),
            ("RCCL_NET_SHM=0", big / 10, false),
            ("RCCL_NET_SHM=1", 1000, true),
            ("RCCL_NET_SHM=1", 2 * big, false),
        ] {
            assert_eq!(
                check_way("all-reduce", variables, big, counted).is_ok(),
                right,
                "{variables} {counted}"
            );
        }
        check_way("all-reduce", "RCCL_NET_SHM=0", 8, 0).unwrap();
        assert_eq!([iterations(8), iterations(64 << 20), iterations(1 << 30)], [200, 4, 4]);
    }
}
