//! `rccl bench channel`: one channel between two processes, one way and to and fro, beside perftest.

mod ends;
mod partner;
mod perftest;

use std::process::ExitCode;

use clap::ValueEnum;
use rccl_core::Collective;

use super::{
    record::{Provenance, Record, Sinks},
    statistics::{gigabytes_per_second, median},
};
use crate::{
    error::{Error, Result},
    output, size,
    topo::Machine,
};
use ends::Ends;
use partner::Partner;

/// Measure one channel: the rate of messages one way from 64 KiB on, and half the round trip of short ones
///
/// Starts a second process. Over RDMA the two ends are the first and the last usable device of this machine, as `NCCL_IB_HCA`
/// allows; `--peer perftest` measures ib_write_bw and ib_send_lat between the same devices in turns with it.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What carries the bytes
    #[arg(long, value_enum, default_value_t = Kind::Verbs)]
    transport: Kind,
    /// Smallest message of those sent one way
    #[arg(short = 'b', long, default_value = "64K", value_parser = size::parse, value_name = "SIZE")]
    min_bytes: u64,
    /// Largest message
    #[arg(short = 'e', long, default_value = "1M", value_parser = size::parse, value_name = "SIZE")]
    max_bytes: u64,
    /// What each size is multiplied by to give the next
    #[arg(short = 'f', long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Queue pairs of the channel
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    queue_pairs: u8,
    /// Measurements of each size, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Another program to measure in turns with this one
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Write the points to benches/record
    #[arg(long)]
    record: bool,
    /// Be the other end
    #[arg(long, hide = true)]
    serve: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// TCP, by the loopback interface
    Tcp,
    /// Shared memory
    Shm,
    /// RDMA
    Verbs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// ib_write_bw and ib_send_lat of the package perftest
    Perftest,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    /// Messages one way, as fast as they go.
    OneWay,
    /// A message to and fro; half of that counts.
    RoundTrip,
}

/// Bytes of the message that goes to and fro.
const SHORT_BYTES: u64 = 8;

/// Bytes sent one way in a measurement, and the messages that go to and fro.
const STREAM_BYTES: u64 = 48 << 20;
const ROUND_TRIPS: u64 = 1000;

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
        }
    }
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    if options.serve {
        return partner::serve(options).map(|()| ExitCode::SUCCESS);
    }
    if options.peer.is_some() && options.transport != Kind::Verbs {
        return Err(Error::usage("--peer", "perftest measures RDMA; give --transport verbs"));
    }
    if options.min_bytes == 0 || options.max_bytes < options.min_bytes {
        return Err(Error::usage(
            "-b",
            "the smallest message has at least 1 byte, and no more than the largest",
        ));
    }
    let machine = Machine::here();
    let mut partner = Partner::start(options)?;
    let mut ends = partner.connect(options)?;
    output::line(format!("# {}", machine.summary()))?;
    output::line(format!(
        "# a channel over {}, {} queue pair(s), {}",
        options.transport.name(),
        options.queue_pairs,
        ends.describe()
    ))?;
    output::line("#\n#   test         bytes    us/message      GB/s     peer us   peer GB/s    ratio")?;
    let mut sinks = Sinks::open(None, None, options.record)?;
    let recorded = sinks.start_record(options.transport.name())?;
    let provenance = Provenance::here(&machine);
    let mut sizes = vec![(Test::RoundTrip, SHORT_BYTES)];
    let grown = std::iter::successors(Some(options.min_bytes), |bytes| bytes.checked_mul(options.factor));
    sizes.extend(grown.take_while(|&bytes| bytes <= options.max_bytes).map(|bytes| (Test::OneWay, bytes)));
    for (test, bytes) in sizes {
        let point = measure(options, &mut partner, &mut ends, test, bytes)?;
        show(test, bytes, &point)?;
        sinks.write(&record(options, &provenance, bytes, &point))?;
    }
    if let Some(path) = recorded {
        output::line(format!("# Recorded in {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A measured size.
struct Point {
    us: f64,
    cpu_s_per_gb: f64,
    /// The peer's time, and the median of the rounds' ratios.
    peer: Option<(f64, f64)>,
}

fn measure(
    options: &Options,
    partner: &mut Partner,
    ends: &mut Ends,
    test: Test,
    bytes: u64,
) -> Result<Point> {
    let messages = match test {
        Test::OneWay => (STREAM_BYTES / bytes).clamp(20, 5000),
        Test::RoundTrip => ROUND_TRIPS,
    };
    let (mut ours, mut theirs, mut ratios, mut cpu) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let (us, cpu_s) = partner.measure(ends, test, bytes, messages)?;
        ours.push(us);
        cpu.push(cpu_s / (messages * bytes) as f64 * 1e9);
        if options.peer.is_some() {
            let us = perftest::measure(ends.devices(), test, bytes, messages, options.queue_pairs)?;
            theirs.push(us);
            ratios.push(us / ours[ours.len() - 1]);
        }
    }
    let us = median(&ours).expect("there is a round");
    Ok(Point { us, cpu_s_per_gb: median(&cpu).unwrap_or(0.0), peer: median(&theirs).zip(median(&ratios)) })
}

fn show(test: Test, bytes: u64, point: &Point) -> Result<()> {
    let name = match test {
        Test::OneWay => "one way",
        Test::RoundTrip => "half a round",
    };
    let rate = gigabytes_per_second(bytes, point.us);
    let peer = point.peer.map_or_else(
        || format!("{:>11} {:>11} {:>8}", "-", "-", "-"),
        |(us, ratio)| format!("{us:>11.2} {:>11.4} {ratio:>8.3}", gigabytes_per_second(bytes, us)),
    );
    output::line(format!("{name:>14} {bytes:>9} {:>13.2} {rate:>9.4} {peer}", point.us))
}

fn record(options: &Options, provenance: &Provenance, bytes: u64, point: &Point) -> Record {
    Record {
        what: if options.transport == Kind::Verbs {
            "verbs".into()
        } else {
            format!("cpu-{}", options.transport.name())
        },
        machine: provenance.machine.clone(),
        driver: provenance.driver.clone(),
        commit: provenance.commit.clone(),
        command: provenance.command.clone(),
        collective: Collective::SendRecv.name().to_owned(),
        dtype: "uint8".to_owned(),
        op: "none".to_owned(),
        bytes,
        in_place: false,
        ranks: 2,
        processes: 2,
        algorithm: "auto".to_owned(),
        protocol: "auto".to_owned(),
        path: if options.transport == Kind::Shm { "host" } else { "net" }.to_owned(),
        transport: options.transport.name().to_owned(),
        graph: false,
        env: provenance.env.clone(),
        ours_us: point.us,
        ours_busbw: gigabytes_per_second(bytes, point.us),
        ours_cpu_s_per_gb: point.cpu_s_per_gb,
        peer_cpu_s_per_gb: None,
        peer: if point.peer.is_some() { "perftest" } else { "none" }.to_owned(),
        peer_version: point.peer.map(|_| perftest::version()),
        peer_env: String::new(),
        peer_us: point.peer.map(|(us, _)| us),
        peer_busbw: point.peer.map(|(us, _)| gigabytes_per_second(bytes, us)),
        ratio: point.peer.map(|(_, ratio)| ratio),
        limit_busbw: 0.0,
        wrong: None,
    }
}
