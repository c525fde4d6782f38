//! One line of the table: rounds of a collective at one size, ours and the peer's in turns.

use std::iter;

use rccl_core::{Collective, DataType, ReduceOp};

use super::{
    gpu,
    launch::Workers,
    message::{Command, Job, Measured},
    peer::Peer,
    settings::Settings,
    statistics::{bus_factor, gigabytes_per_second, iterations, median, warmup},
};
use crate::{error::Result, plan};

/// What a line of the table measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spec {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    pub(super) data_type: DataType,
    /// None where nothing is reduced.
    pub(super) op: Option<ReduceOp>,
    pub(super) root: u32,
    /// Elements, as [`rccl_core::Request::count`] counts them.
    pub(super) count: u64,
}

/// A line of the table.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// Bytes of the larger buffer.
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) data_type: DataType,
    pub(super) op: Option<ReduceOp>,
    pub(super) root: Option<u32>,
    /// Out of place, and in place where that exists.
    pub(super) points: Vec<Point>,
    /// What copying alone would give, as a busbw.
    pub(super) limit_busbw: f64,
}

/// What was measured of one size, in place or not.
#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) in_place: bool,
    /// The median of the rounds.
    pub(super) us: f64,
    pub(super) algbw: f64,
    pub(super) busbw: f64,
    /// By the GPU's clock: the median of the rounds.
    pub(super) device_us: Option<f64>,
    /// Processor seconds of all ranks for each 1e9 bytes of the size.
    pub(super) cpu_s_per_gb: f64,
    /// Operations timed alone, each by the rank that took longest.
    pub(super) samples_us: Vec<f64>,
    /// Wrong elements on all ranks in all rounds; none where nothing was checked.
    pub(super) wrong: Option<u64>,
    pub(super) peer: Option<PeerPoint>,
}

/// What the peer did in the same rounds.
#[derive(Debug, Clone)]
pub(super) struct PeerPoint {
    pub(super) us: f64,
    pub(super) busbw: f64,
    pub(super) cpu_s_per_gb: f64,
    /// The median of the rounds' ratios: the peer's time / ours.
    pub(super) ratio: f64,
    /// Whether the peer worked in place, asked to or not.
    pub(super) in_place: bool,
}

/// One side's part of a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    /// Microseconds an operation, on the slowest rank.
    pub(super) us: f64,
    pub(super) cpu_s_per_gb: f64,
    pub(super) wrong: u64,
    pub(super) in_place: bool,
}

impl Spec {
    /// What `bytes` of the larger buffer amount to, rounded down to what all ranks can share.
    pub(super) fn new(settings: &Settings, data_type: DataType, op: Option<ReduceOp>, bytes: u64) -> Self {
        let &Settings { collective, ranks, root, .. } = settings;
        Self {
            collective,
            ranks,
            data_type,
            op,
            root,
            count: plan::count(collective, ranks, data_type, bytes),
        }
    }

    /// Bytes of the larger buffer.
    pub(super) fn bytes(&self) -> u64 {
        let chunk = self.count * self.data_type.size_bytes() as u64;
        match self.collective {
            Collective::AllGather | Collective::ReduceScatter => chunk * u64::from(self.ranks),
            Collective::AllReduce | Collective::Broadcast | Collective::SendRecv => chunk,
        }
    }

    pub(super) fn op_name(&self) -> &'static str {
        self.op.map_or("none", ReduceOp::name)
    }

    /// In 1e9 bytes a second, were an operation to take `us` microseconds.
    fn busbw(&self, us: f64) -> f64 {
        gigabytes_per_second(self.bytes(), us) * bus_factor(self.collective, self.ranks)
    }

    /// What finds out how long an operation takes.
    pub(super) fn job(&self, settings: &Settings, in_place: bool) -> Job {
        Job {
            collective: self.collective.name().to_owned(),
            data_type: self.data_type.name().to_owned(),
            op: self.op_name().to_owned(),
            root: self.root,
            count: self.count,
            in_place,
            warmup: 1,
            iterations: trial(self.bytes()),
            samples: 0,
            blocking: settings.blocking,
            graph: settings.gpus.is_some_and(|gpus| gpus.graph),
            checks: Vec::new(),
        }
    }

    fn cpu_s_per_gb(&self, cpu_s: f64, operations: u32) -> f64 {
        let bytes = self.bytes() as f64 * f64::from(operations);
        if bytes > 0.0 { cpu_s / bytes * 1e9 } else { 0.0 }
    }
}

/// Operations of the first batch, which finds out how long they take.
pub(super) const fn trial(bytes: u64) -> u32 {
    if bytes < 1 << 20 { 3 } else { 1 }
}

/// Measures a line. `seeds` gives fresh data for every round.
pub(super) fn row(
    settings: &Settings,
    spec: &Spec,
    workers: &mut Workers,
    mut peer: Option<&mut Peer>,
    seeds: &mut impl Iterator<Item = u64>,
) -> Result<Row> {
    let limit_busbw = match settings.gpus {
        Some(_) => spec.busbw(gpu::limit_us(workers, spec.ranks, spec.bytes())?),
        None => limit(spec, workers)?,
    };
    let modes: &[bool] = if spec.collective == Collective::SendRecv { &[false] } else { &[false, true] };
    let points = modes
        .iter()
        .map(|&in_place| point(settings, spec, in_place, workers, peer.as_deref_mut(), seeds))
        .collect::<Result<_>>()?;
    Ok(Row {
        bytes: spec.bytes(),
        count: spec.count,
        data_type: spec.data_type,
        op: spec.op,
        root: (spec.collective == Collective::Broadcast).then_some(spec.root),
        points,
        limit_busbw,
    })
}

/// How fast all ranks copy as many bytes at the same time, as a busbw.
fn limit(spec: &Spec, workers: &mut Workers) -> Result<f64> {
    let bytes = spec.bytes();
    // As if memory gave each rank 5e9 bytes a second; the exact number of copies does not matter.
    let copies = iterations(bytes as f64 / 5e3);
    let measured = workers.ask(&Command::Copy { bytes, iterations: copies })?;
    Ok(spec.busbw(slowest(&measured)))
}

fn point(
    settings: &Settings,
    spec: &Spec,
    in_place: bool,
    workers: &mut Workers,
    mut peer: Option<&mut Peer>,
    seeds: &mut impl Iterator<Item = u64>,
) -> Result<Point> {
    let mut job = spec.job(settings, in_place);
    let us = slowest(&workers.ask(&Command::Measure(job.clone()))?);
    fit(&mut job, settings, us);
    let mut peer_batch =
        peer.as_deref_mut().map(|peer| peer.prepare(settings, spec, in_place)).transpose()?.flatten();

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut samples_us, mut device_us) = (Vec::new(), Vec::new());
    for round in 0..settings.rounds {
        job.checks = seeds.by_ref().take(settings.checks as usize).collect();
        // Who goes first alternates, so that neither always finds the machine as the other left it.
        let our_turn = round % 2 == 0;
        for turn in [our_turn, !our_turn] {
            if turn {
                let measured = workers.ask(&Command::Measure(job.clone()))?;
                ours.push(batch(spec, &job, &measured));
                samples_us.extend(longest_samples(&measured));
                device_us.extend(measured.iter().filter_map(|it| it.device_us).reduce(f64::max));
            } else if let (Some(peer), Some(batch)) = (peer.as_deref_mut(), &mut peer_batch) {
                theirs.push(peer.measure(batch, spec, &job.checks)?);
            }
        }
    }
    let us = middle(ours.iter().map(|batch| batch.us));
    let wrong: u64 = ours.iter().map(|batch| batch.wrong).sum();
    Ok(Point {
        in_place,
        us,
        algbw: gigabytes_per_second(spec.bytes(), us),
        busbw: spec.busbw(us),
        device_us: median(&device_us),
        cpu_s_per_gb: middle(ours.iter().map(|batch| batch.cpu_s_per_gb)),
        samples_us,
        wrong: (settings.checks > 0).then_some(wrong),
        peer: (!theirs.is_empty()).then(|| compare(spec, &ours, &theirs)),
    })
}

/// Makes the job as long as a batch should be, where an operation takes `us` microseconds.
pub(super) fn fit(job: &mut Job, settings: &Settings, us: f64) {
    job.iterations = settings.iterations.unwrap_or_else(|| iterations(us));
    job.warmup = settings.warmup.unwrap_or_else(|| warmup(us));
    job.samples = settings.samples.min(job.iterations);
}

fn compare(spec: &Spec, ours: &[Batch], theirs: &[Batch]) -> PeerPoint {
    let us = middle(theirs.iter().map(|batch| batch.us));
    PeerPoint {
        us,
        busbw: spec.busbw(us),
        cpu_s_per_gb: middle(theirs.iter().map(|batch| batch.cpu_s_per_gb)),
        ratio: middle(iter::zip(theirs, ours).map(|(theirs, ours)| theirs.us / ours.us)),
        in_place: theirs.iter().any(|batch| batch.in_place),
    }
}

/// One side's part of a round, from what each worker measured.
pub(super) fn batch(spec: &Spec, job: &Job, measured: &[Measured]) -> Batch {
    Batch {
        us: slowest(measured),
        cpu_s_per_gb: spec.cpu_s_per_gb(measured.iter().map(|it| it.cpu_s).sum(), job.iterations),
        wrong: measured.iter().map(|it| it.wrong).sum(),
        in_place: job.in_place,
    }
}

impl Batch {
    /// A batch that a peer measured.
    pub(super) fn of_peer(
        spec: &Spec,
        us: f64,
        cpu_s: f64,
        operations: u32,
        wrong: u64,
        in_place: bool,
    ) -> Self {
        Self { us, cpu_s_per_gb: spec.cpu_s_per_gb(cpu_s, operations), wrong, in_place }
    }
}

/// The time of a batch is that of the rank that took longest.
pub(super) fn slowest(measured: &[Measured]) -> f64 {
    measured.iter().map(|it| it.us).fold(0.0, f64::max)
}

/// Of each operation that was timed alone, the time of the rank that took longest.
fn longest_samples(measured: &[Measured]) -> Vec<f64> {
    let count = measured.iter().map(|it| it.samples_us.len()).min().unwrap_or(0);
    (0..count).map(|index| measured.iter().map(|it| it.samples_us[index]).fold(0.0, f64::max)).collect()
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(&values.collect::<Vec<_>>()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(collective: Collective) -> Spec {
        Spec { collective, ranks: 4, data_type: DataType::Float, op: None, root: 0, count: 250 }
    }

    fn measured(us: f64, samples_us: &[f64]) -> Measured {
        Measured { us, device_us: None, samples_us: samples_us.to_vec(), cpu_s: 0.5, wrong: 1 }
    }

    #[test]
    fn sizes_are_those_of_the_larger_buffer() {
        assert_eq!(spec(Collective::AllReduce).bytes(), 1000);
        assert_eq!(spec(Collective::AllGather).bytes(), 4000);
        assert_eq!(spec(Collective::ReduceScatter).bytes(), 4000);
        assert_eq!(spec(Collective::AllReduce).busbw(1.0), 1.5);
    }

    #[test]
    fn the_slowest_rank_counts() {
        let both = [measured(2.0, &[1.0, 5.0]), measured(3.0, &[4.0, 2.0, 9.0])];
        assert_eq!(slowest(&both), 3.0);
        assert_eq!(longest_samples(&both), [4.0, 5.0]);
        let spec = spec(Collective::AllReduce);
        let job = Job {
            collective: spec.collective.name().to_owned(),
            data_type: spec.data_type.name().to_owned(),
            op: spec.op_name().to_owned(),
            root: 0,
            count: spec.count,
            in_place: false,
            warmup: 1,
            iterations: 1000,
            samples: 0,
            blocking: false,
            graph: false,
            checks: Vec::new(),
        };
        let batch = batch(&spec, &job, &both);
        assert_eq!((batch.us, batch.wrong), (3.0, 2));
        // One second for 1000 operations of 1000 bytes.
        assert_eq!(batch.cpu_s_per_gb, 1000.0);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let batches = |us: &[f64]| -> Vec<Batch> {
            us.iter().map(|&us| Batch { us, cpu_s_per_gb: 0.0, wrong: 0, in_place: false }).collect()
        };
        let point =
            compare(&spec(Collective::AllReduce), &batches(&[1.0, 2.0, 4.0]), &batches(&[3.0, 4.0, 4.0]));
        assert_eq!((point.us, point.ratio), (4.0, 2.0));
    }
}
