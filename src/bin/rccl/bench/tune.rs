//! `rccl tune`: from which size on which way of all-reduce is faster here, as variables that a group agrees on.

use std::process::ExitCode;

use rccl::cuda::CudaProtocol;
use rccl_core::{Algorithm, Collective, DataType, ReduceOp};
use serde_json::json;

use super::{
    gpu::{self, Gpus, usual_ranks},
    launch::{Team, Workers},
    measure::{Spec, batch, fit, slowest},
    message::Command,
    options::{Device, Transport},
    settings::Settings,
    statistics::median,
    table::time,
};
use crate::{
    error::{Error, Result},
    output, size,
    topo::Machine,
};

/// Find the sizes at which all-reduce should change its way on this machine
///
/// Measures float sums by each way, in turns, and prints variables. Set them alike for all ranks: a group checks that when it
/// is created. They suit groups of as many ranks as were measured, on machines like this one.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  rccl tune                              host memory, 2 ranks\n  \
    rccl tune --transport tcp --ranks 4    over TCP, 4 ranks\n  \
    rccl tune --device cuda > rccl.env     all GPUs; lines that start with # are remarks\n\n\
    Exit status: 0, 2 if an option makes no sense, 3 if a measurement broke down or gave a wrong result.")]
pub(crate) struct TuneOptions {
    /// Where the buffers lie
    #[arg(long, value_enum, default_value_t = Device::Host)]
    device: Device,
    /// Ranks on this machine [default: 2, or as many as there are GPUs]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Option<u32>,
    /// What carries the bytes of host memory
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    transport: Transport,
    /// Batches of each size and way, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print JSON: the variables and what was measured
    #[arg(long)]
    json: bool,
}

/// Two ways, and the variable that says where one ends and the other begins.
struct Choice {
    variable: &'static str,
    /// The way of small calls, and that of large ones.
    ways: [Way; 2],
    /// The sizes between which the change is looked for, each twice the one before.
    bytes: (u64, u64),
    /// Whether the variable names the first size of the large way, not the last of the small one.
    names_first: bool,
}

/// A way of all-reduce.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Host(Algorithm),
    Gpu(CudaProtocol),
}

/// What was measured for a choice.
struct Measured {
    sizes: Vec<u64>,
    /// Microseconds by either way, a pair for each size.
    us: Vec<[f64; 2]>,
    /// The large way's time / the small way's: the median of the rounds' ratios.
    ratios: Vec<f64>,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Host(algorithm) => algorithm.name(),
            Self::Gpu(protocol) => protocol.name(),
        }
    }
}

const HOST: [Choice; 1] = [Choice {
    variable: "RCCL_ONESHOT_BYTES",
    ways: [Way::Host(Algorithm::Oneshot), Way::Host(Algorithm::Relay)],
    bytes: (1 << 10, 1 << 20),
    names_first: false,
}];

const GPUS: [Choice; 2] = [
    Choice {
        variable: "RCCL_LL_BYTES",
        ways: [Way::Gpu(CudaProtocol::Ll), Way::Gpu(CudaProtocol::Stripe)],
        bytes: (8 << 10, 512 << 10),
        names_first: false,
    },
    Choice {
        variable: "RCCL_BULK_BYTES",
        ways: [Way::Gpu(CudaProtocol::Stripe), Way::Gpu(CudaProtocol::Bulk)],
        bytes: (256 << 10, 64 << 20),
        names_first: true,
    },
];

pub(crate) fn tune(options: &TuneOptions) -> Result<ExitCode> {
    let settings = options.settings()?;
    let choices: &[Choice] = if settings.gpus.is_some() { &GPUS } else { &HOST };
    let machine = Machine::here().summary();
    let mut variables = serde_json::Map::new();
    let mut measurements = Vec::new();
    for (index, choice) in choices.iter().enumerate() {
        let measured = measure(options, &settings, choice)?;
        let value = choice.value(&measured);
        variables.insert(choice.variable.to_owned(), json!(value));
        measurements.push(measured.as_json(choice));
        if !options.json {
            if index == 0 {
                output::line(head(&machine, &settings))?;
            }
            output::line(measured.as_text(choice, value))?;
        }
    }
    if options.json {
        output::json(&json!({
            "machine": machine,
            "ranks": settings.ranks,
            "shared_gpus": settings.gpus.is_some_and(|gpus| gpus.shared),
            "variables": variables,
            "measured": measurements,
        }))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn head(machine: &str, settings: &Settings) -> String {
    let &Settings { ranks, rounds, ref transports, .. } = settings;
    let place = match settings.gpus {
        None => format!("host memory, transport {}", transports[0].name()),
        Some(gpus) => format!("GPU memory; {}", gpus.seating(ranks)),
    };
    format!("# {machine}\n# {ranks} ranks, {place}\n# medians of {rounds} rounds, in turns")
}

impl TuneOptions {
    fn settings(&self) -> Result<Settings> {
        if self.transport == Transport::Verbs {
            return Err(Error::usage("--transport", "verbs is not built in this version; use shm or tcp"));
        }
        let (ranks, gpus) = match self.device {
            Device::Host => (self.ranks.unwrap_or(2), None),
            Device::Cuda => {
                let devices = gpu::devices()?;
                let ranks = self.ranks.unwrap_or_else(|| usual_ranks(devices));
                (ranks, Some(Gpus::of_ranks(devices, ranks)?))
            }
        };
        Ok(Settings {
            collective: Collective::AllReduce,
            sizes: Vec::new(),
            data_types: vec![DataType::Float],
            ops: vec![Some(ReduceOp::Sum)],
            root: 0,
            ranks,
            algorithm: None,
            transports: vec![self.transport],
            iterations: None,
            warmup: None,
            checks: 1,
            rounds: self.rounds,
            samples: 0,
            blocking: false,
            timeout: std::time::Duration::from_secs(120),
            peer_env: Vec::new(),
            nccl_library: None,
            gpus,
        })
    }
}

/// The settings that force a way.
fn forced(settings: &Settings, way: Way) -> Settings {
    match way {
        Way::Host(algorithm) => Settings { algorithm: Some(algorithm), ..settings.clone() },
        Way::Gpu(protocol) => {
            let gpus = settings.gpus.map(|gpus| Gpus { protocol: Some(protocol), ..gpus });
            Settings { gpus, ..settings.clone() }
        }
    }
}

fn measure(options: &TuneOptions, settings: &Settings, choice: &Choice) -> Result<Measured> {
    let (first, last) = choice.bytes;
    let sizes: Vec<u64> =
        std::iter::successors(Some(first), |bytes| Some(bytes * 2)).take_while(|&it| it <= last).collect();
    let settings = choice.ways.map(|way| forced(settings, way));
    let start = |settings| Workers::start(settings, options.transport, &Team::Ours);
    let mut workers = [start(&settings[0])?, start(&settings[1])?];
    let mut seeds = 1..;
    let (mut us, mut ratios) = (Vec::new(), Vec::new());
    for &bytes in &sizes {
        let spec = Spec::new(&settings[0], DataType::Float, Some(ReduceOp::Sum), bytes);
        let mut jobs = [spec.job(&settings[0], false), spec.job(&settings[1], false)];
        for (job, workers) in jobs.iter_mut().zip(&mut workers) {
            let us = slowest(&workers.ask(&Command::Measure(job.clone()))?);
            fit(job, &settings[0], us);
        }
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..options.rounds {
            // Who goes first alternates.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for way in order {
                jobs[way].checks = seeds.by_ref().take(1).collect();
                let measured = workers[way].ask(&Command::Measure(jobs[way].clone()))?;
                let batch = batch(&spec, &jobs[way], &measured);
                if batch.wrong > 0 {
                    let way = choice.ways[way].name();
                    let reason = format!("{way}, {bytes} bytes: {} elements are wrong", batch.wrong);
                    return Err(Error::Processes(reason));
                }
                rounds[way].push(batch.us);
            }
        }
        let each: Vec<f64> = rounds[0].iter().zip(&rounds[1]).map(|(small, large)| large / small).collect();
        ratios.push(median(&each).unwrap_or(1.0));
        us.push(rounds.map(|us| median(&us).unwrap_or(0.0)));
    }
    workers.into_iter().try_for_each(Workers::finish)?;
    Ok(Measured { sizes, us, ratios })
}

/// No call has so many bytes.
const NEVER: u64 = i64::MAX as u64;

/// A ratio that counts no more than this: beyond, something else disturbed the measurement, or the choice is clear anyway.
const CLEAR_RATIO: f64 = 1.5;

/// For how many sizes, from the smallest on, the small way should be taken, given the ratios of the large way's times to the
/// small one's: then the product of what is lost at all sizes is least.
fn change(ratios: &[f64]) -> usize {
    let gain = |ratio: &f64| ratio.clamp(1.0 / CLEAR_RATIO, CLEAR_RATIO).ln();
    let gained = |count: usize| ratios[..count].iter().map(gain).sum::<f64>();
    (0..=ratios.len()).max_by(|&a, &b| gained(a).total_cmp(&gained(b))).unwrap_or(0)
}

impl Choice {
    /// What the variable should be.
    fn value(&self, measured: &Measured) -> u64 {
        let count = change(&measured.ratios);
        match (self.names_first, count) {
            (true, count) => measured.sizes.get(count).copied().unwrap_or(NEVER),
            (false, 0) => 0,
            (false, count) => measured.sizes[count - 1],
        }
    }
}

impl Measured {
    fn as_text(&self, choice: &Choice, value: u64) -> String {
        let [small, large] = choice.ways.map(Way::name);
        let mut text = format!("#\n# {:>10}{small:>12}{large:>12}{:>8}\n", "size", "ratio");
        text += &format!("# {:>10}{:>12}{:>12}\n", "(B)", "(us)", "(us)");
        for ((bytes, us), ratio) in self.sizes.iter().zip(&self.us).zip(&self.ratios) {
            text += &format!("# {bytes:>10}{:>12}{:>12}{ratio:>8.2}\n", time(us[0]), time(us[1]));
        }
        let count = change(&self.ratios);
        text += &match (count, self.sizes.get(count)) {
            (0, _) => format!("# {large} from {} on, the smallest measured\n", size::human(self.sizes[0])),
            (_, None) => format!("# {small} up to {}, the largest measured\n", size::human(choice.bytes.1)),
            (_, Some(&from)) => {
                format!("# {small} up to {}, then {large}\n", size::human(from / 2))
            }
        };
        text + &format!("{}={value}", choice.variable)
    }

    fn as_json(&self, choice: &Choice) -> serde_json::Value {
        let [small, large] = choice.ways.map(Way::name);
        let points: Vec<_> = self
            .sizes
            .iter()
            .zip(self.us.iter().zip(&self.ratios))
            .map(|(bytes, (us, ratio))| {
                json!({ "bytes": bytes, "us": { small: us[0], large: us[1] }, "ratio": ratio })
            })
            .collect();
        json!({ "variable": choice.variable, "points": points })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(us: &[[f64; 2]]) -> Measured {
        let ratios = us.iter().map(|us| us[1] / us[0]).collect();
        Measured { sizes: (0..us.len()).map(|index| 1024 << index).collect(), us: us.to_vec(), ratios }
    }

    #[test]
    fn the_change_is_where_the_least_time_is_lost() {
        assert_eq!(change(&[2.0, 1.5, 0.8, 0.5]), 2);
        assert_eq!(change(&[0.7, 0.8]), 0);
        assert_eq!(change(&[2.0, 1.5]), 2);
        // One measurement that went wrong changes nothing.
        assert_eq!(change(&[2.0, 0.95, 1.5, 0.8, 0.5]), 3);
        assert_eq!(change(&[2.0, 1.5, 0.6, 0.7, 11.0, 0.5]), 2);
        assert_eq!(change(&[]), 0);
    }

    #[test]
    fn variables_say_what_the_library_reads() {
        let [host] = HOST;
        let [ll, bulk] = GPUS;
        let middle = measured(&[[1.0, 2.0], [2.0, 3.0], [5.0, 4.0]]);
        // "At most so many bytes" and "at least so many bytes".
        assert_eq!([&host, &ll, &bulk].map(|choice| choice.value(&middle)), [2048, 2048, 4096]);
        let never = measured(&[[1.0, 2.0], [2.0, 3.0]]);
        assert_eq!([&ll, &bulk].map(|choice| choice.value(&never)), [2048, NEVER]);
        let always = measured(&[[2.0, 1.0]]);
        assert_eq!([&ll, &bulk].map(|choice| choice.value(&always)), [0, 1024]);
    }

    #[test]
    fn remarks_are_marked_and_the_variable_is_not() {
        let text = measured(&[[1.0, 2.0], [5.0, 4.0]]).as_text(&HOST[0], 1024);
        let plain: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(plain, ["RCCL_ONESHOT_BYTES=1024"]);
        assert!(text.contains("# oneshot up to 1 KiB, then relay"), "{text}");
        let text = measured(&[[2.0, 1.0]]).as_text(&HOST[0], 0);
        assert!(text.contains("# relay from 1 KiB on, the smallest measured"), "{text}");
    }
}
