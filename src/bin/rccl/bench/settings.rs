//! What the options mean together.

use std::{path::PathBuf, time::Duration};

use rccl_core::{Algorithm, Collective, DataType, Group, ReduceOp, Scalar};

use super::{
    gpu::{Gpus, usual_ranks},
    options::{Device, Options, Path, PeerName, Protocol, Transport},
};
use crate::error::{Error, Result};

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
    pub(super) warmup: Option<u32>,
    pub(super) checks: u32,
    pub(super) rounds: u32,
    pub(super) samples: u32,
    pub(super) blocking: bool,
    pub(super) timeout: Duration,
    pub(super) peer_env: Vec<(String, String)>,
    /// The file of NCCL, where it is named.
    pub(super) nccl_library: Option<PathBuf>,
    /// GPUs; none where buffers are in host memory.
    pub(super) gpus: Option<Gpus>,
}

/// The most sizes one run measures: a bound against `-i 1`.
const MAX_SIZES: usize = 10_000;

impl Options {
    /// What the options mean together. `devices` counts this machine's GPUs, where that matters.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the option that makes no sense, and the core's refusals.
    pub(super) fn settings(&self, devices: impl FnOnce() -> Result<u32>) -> Result<Settings> {
        let collective = self.collective;
        let (ranks, gpus) = match self.device {
            Device::Host => {
                self.check_host()?;
                (self.ranks.unwrap_or(2), None)
            }
            Device::Cuda => {
                let devices = devices()?;
                let ranks = self.ranks.unwrap_or_else(|| usual_ranks(devices));
                (ranks, Some(Gpus::new(self, devices, ranks)?))
            }
        };
        Group::new(ranks, 0)?.member("root", self.root)?;
        if let Some(algorithm) = self.algorithm.0
            && !collective.algorithms().contains(&algorithm)
        {
            return Err(rccl_core::Error::Algorithm { collective, algorithm }.into());
        }
        let data_types = list("--dtype", &self.dtype, &DataType::ALL.map(DataType::name))?;
        let ops: Vec<ReduceOp> = list("--op", &self.op, &ReduceOp::NAMES)?;
        let ops = if collective.reduces() { ops.into_iter().map(Some).collect() } else { vec![None] };
        if gpus.is_some() {
            Gpus::check_work(&data_types, &ops)?;
        }
        Ok(Settings {
            collective,
            sizes: self.sizes()?,
            data_types,
            ops,
            root: self.root,
            ranks,
            algorithm: self.algorithm.0,
            transports: if gpus.is_some() { vec![Transport::Auto] } else { self.transports()? },
            iterations: self.iterations,
            warmup: self.warmup,
            checks: self.check,
            rounds: self.rounds.unwrap_or(if self.peer.is_some() { 5 } else { 1 }),
            samples: if self.percentiles { 1000 } else { 0 },
            blocking: self.blocking == 1,
            timeout: Duration::from_secs(self.timeout.into()),
            peer_env: self.peer_env.iter().map(|text| variable(text)).collect::<Result<_>>()?,
            nccl_library: self.nccl_library.clone(),
            gpus,
        })
    }

    fn check_host(&self) -> Result<()> {
        if self.separate {
            return Err(Error::usage(
                "--separate",
                "host ranks are processes of their own; add --device cuda",
            ));
        }
        if self.graph {
            return Err(Error::usage("--graph", "graphs hold work of GPUs; add --device cuda"));
        }
        if self.protocol != Protocol::Auto {
            let reason =
                "host memory has no such protocol; ll, stripe and bulk are ways to signal between GPUs";
            return Err(Error::usage("--protocol", reason));
        }
        if self.peer == Some(PeerName::Nccl) {
            return Err(Error::usage(
                "--peer",
                "nccl moves GPU memory only: add --device cuda, or compare with gloo or openmpi",
            ));
        }
        Ok(())
    }

    fn transports(&self) -> Result<Vec<Transport>> {
        let by_path = match self.path {
            Path::Auto => None,
            Path::Host => Some(Transport::Shm),
            Path::Net => Some(Transport::Tcp),
            Path::P2p => {
                return Err(Error::usage(
                    "--path",
                    "p2p leads from GPU to GPU; host memory has host and net",
                ));
            }
        };
        match (self.transport, by_path) {
            (Some(Transport::Verbs), Some(Transport::Tcp)) => Ok(vec![Transport::Verbs]),
            (Some(transport), Some(path)) if transport != Transport::Auto && transport != path => {
                let reason =
                    format!("{} is not what --path asks for; leave one of the two out", transport.name());
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
        let memory_bytes = memory_bytes();
        if max > memory_bytes {
            let reason = format!(
                "buffers of {max} bytes need more memory than this machine has ({memory_bytes} bytes)"
            );
            return Err(Error::usage(if self.max_bytes.is_some() { "-e" } else { "-b" }, reason));
        }
        if self.step_bytes == Some(0) {
            return Err(Error::usage("-i", "a step of 0 bytes never reaches the largest size"));
        }
        if min == 0 && max > 0 && self.step_bytes.is_none() {
            return Err(Error::usage(
                "-b",
                "multiplying 0 bytes never reaches the largest size; start at 1, or use -i",
            ));
        }
        let next = |&size: &u64| {
            let next = match self.step_bytes {
                Some(step) => size.checked_add(step),
                None => size.checked_mul(self.factor.unwrap_or(4)),
            };
            next.filter(|&next| next > size)
        };
        let sizes: Vec<u64> = std::iter::successors(Some(min), next)
            .take_while(|&size| size <= max)
            .take(MAX_SIZES + 1)
            .collect();
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
    if text == "all" {
        all.iter().map(|name| parse(name)).collect()
    } else {
        text.split(',').map(parse).collect()
    }
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

/// Bytes of memory of this machine.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use rccl::cuda::CudaProtocol;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn settings(line: &str) -> Result<Settings> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).expect(line).options.settings(|| Ok(2))
    }

    fn refusal(line: &str) -> String {
        settings(line).expect_err(line).to_string()
    }

    #[test]
    fn without_arguments() {
        let settings = settings("").unwrap();
        assert_eq!(
            (settings.sizes[0], *settings.sizes.last().unwrap(), settings.sizes.len()),
            (1 << 10, 64 << 20, 9)
        );
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
        assert!(refusal("-b 18446744073709551615").contains("than this machine has"));
        assert!(refusal("-e 8388608G").contains("than this machine has"));
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
            ("--graph", "add --device cuda"),
            ("--protocol ll", "host memory has no such protocol"),
            ("--path p2p", "GPU to GPU"),
            ("--transport verbs --path host", "leave one of the two out"),
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
        assert_eq!(settings("--path net --transport verbs").unwrap().transports, [Transport::Verbs]);
        assert_eq!(
            settings("--peer gloo --peer-env A=b=c").unwrap().peer_env,
            [("A".to_owned(), "b=c".to_owned())]
        );
    }

    #[test]
    fn what_gpus_can_do() {
        let gpus = |line: &str| settings(line).expect(line).gpus.expect(line);
        let plain = gpus("--device cuda");
        assert_eq!((plain.devices, plain.shared, plain.protocol, plain.graph), (2, false, None, false));
        let shared = gpus("--device cuda --ranks 4 --graph");
        assert!(shared.shared && shared.together && shared.graph);
        assert!(!gpus("--device cuda --ranks 4 --separate").together);
        assert_eq!(settings("--device cuda").unwrap().ranks, 2);
        assert_eq!(settings("--device cuda").unwrap().transports, [Transport::Auto]);
        for (line, protocol) in [
            ("--protocol ll", CudaProtocol::Ll),
            ("--protocol bulk --algorithm oneshot", CudaProtocol::Bulk),
            ("--algorithm relay --protocol stripe", CudaProtocol::Stripe),
        ] {
            assert_eq!(gpus(&format!("--device cuda {line}")).protocol, Some(protocol), "{line}");
        }
    }

    #[test]
    fn what_gpus_cannot_do() {
        for (line, hint) in [
            ("all-gather --device cuda", "measured on host memory"),
            ("--device cuda --path p2p", "not built in this version"),
            ("--device cuda --path net", "use host"),
            ("--device cuda --transport tcp", "share its memory"),
            ("--device cuda --peer gloo", "compare with nccl"),
            ("--device cuda -d double", "not double"),
            ("--device cuda -o max", "not max"),
            ("--device cuda --algorithm ring", "not ring"),
            ("--device cuda --algorithm relay --protocol bulk", "oneshot only"),
            ("--device cuda --ranks 17", "at most 16"),
            ("--device cuda --ranks 3 --peer nccl --record", "nothing to compare"),
        ] {
            let message = refusal(line);
            assert!(message.contains(hint), "{line}: {message}");
        }
    }

    #[test]
    fn without_a_gpu_the_reason_is_passed_on() {
        let line = Line::try_parse_from(["bench", "--device", "cuda"]).unwrap();
        let error = line.options.settings(|| Err(Error::usage("--device", "no driver"))).unwrap_err();
        assert_eq!(error.to_string(), "--device: no driver");
    }

    #[test]
    fn a_factor_that_shows() {
        let op = "mulsum".parse().unwrap();
        assert_eq!(factor(op, DataType::Int8), ReduceOp::MulSum(Scalar::from(3_i64)));
        assert!(factor(op, DataType::Half).check(DataType::Half).is_ok());
        assert_eq!(factor(ReduceOp::Max, DataType::Half), ReduceOp::Max);
    }
}
