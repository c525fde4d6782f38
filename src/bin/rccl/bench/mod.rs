//! `rccl bench`: how fast collectives are, whether they are right, and how that compares.

mod channel;
mod data;
mod gpu;
mod launch;
mod measure;
mod message;
mod options;
mod peer;
mod plot;
mod record;
mod settings;
mod statistics;
mod table;
mod tune;
mod worker;

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{error::Result, topo::Machine};
use launch::{Team, Workers};
use measure::{Row, Spec};
pub(crate) use options::Options;
use options::Transport;
use peer::Peer;
use record::{Provenance, Record, Sinks};
use settings::Settings;
use table::Columns;
pub(crate) use tune::{TuneOptions, tune};
pub(crate) use worker::{WorkerOptions, run as run_worker};

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(options::Part::Channel(options)) = &options.part {
        return channel::run(options);
    }
    let settings = options.settings(gpu::devices)?;
    let machine = Machine::here();
    let mut campaign = Campaign {
        options,
        settings: &settings,
        provenance: Provenance::here(&machine),
        sinks: Sinks::open(options.json.as_deref(), options.csv.as_deref(), options.record)?,
        table: Output::new(options),
        wrong: (settings.checks > 0).then_some(0),
        points: Vec::new(),
    };
    for (index, &transport) in settings.transports.iter().enumerate() {
        if index > 0 {
            campaign.table.line("")?;
        }
        campaign.over(transport)?;
    }
    if let Some(path) = &options.plot {
        plot::write(path, &campaign.points)?;
    }
    let busbw: Vec<f64> = campaign.points.iter().map(|point| point.ours_busbw).collect();
    campaign.table.line(&table::footer(campaign.wrong, &busbw))?;
    Ok(if campaign.wrong.unwrap_or(0) > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Everything that one run measures.
struct Campaign<'a> {
    options: &'a Options,
    settings: &'a Settings,
    provenance: Provenance,
    sinks: Sinks,
    table: Output,
    /// Wrong elements so far; none where nothing is checked.
    wrong: Option<u64>,
    /// Every point so far.
    points: Vec<Record>,
}

impl Campaign<'_> {
    /// All sizes, types and operators over one transport.
    fn over(&mut self, transport: Transport) -> Result<()> {
        let settings = self.settings;
        let mut workers = Workers::start(settings, transport, &Team::Ours)?;
        let mut peer = self.options.peer.map(|name| Peer::start(name, settings, transport)).transpose()?;
        let recorded = self.sinks.start_record(&what(settings, &workers.transport))?;
        let columns = Columns {
            percentiles: self.options.percentiles,
            device: settings.gpus.is_some(),
            peer: peer.is_some(),
            in_place: settings.collective != rccl_core::Collective::SendRecv,
        };
        self.head(transport, &workers, peer.as_ref())?;
        self.table.line(&columns.header())?;

        let mut seeds = 1..;
        let mut peer_in_place = false;
        for &data_type in &settings.data_types {
            for &op in &settings.ops {
                for &bytes in &settings.sizes {
                    let spec = Spec::new(settings, data_type, op, bytes);
                    self.table.busy(&format!("{} {data_type} {}", crate::size::human(bytes), spec.op_name()));
                    let row = measure::row(settings, &spec, &mut workers, peer.as_mut(), &mut seeds)?;
                    self.table.line(&columns.row(&row))?;
                    peer_in_place |= row
                        .points
                        .iter()
                        .any(|it| !it.in_place && it.peer.as_ref().is_some_and(|p| p.in_place));
                    self.keep(&workers.transport, &spec, &row, peer.as_ref())?;
                }
            }
        }
        self.table.idle();
        if peer_in_place {
            self.table.line("# The peer works in place only: that is what stands under out-of-place, too")?;
        }
        if let Some(path) = recorded {
            self.table.line(&format!("# Recorded in {}", path.display()))?;
            self.sinks.end_record();
        }
        drop(peer);
        workers.finish()
    }

    /// The lines above the table.
    fn head(&mut self, transport: Transport, workers: &Workers, peer: Option<&Peer>) -> Result<()> {
        let &Settings { collective, ranks, algorithm, rounds, .. } = self.settings;
        let algorithm = algorithm.map_or("auto", |algorithm| algorithm.name());
        let transport = transport.name();
        self.table.line(&format!("# {}", self.provenance.machine))?;
        let way = self.settings.gpus.map_or_else(
            || format!("transport {transport}"),
            |gpus| {
                let graph = if gpus.graph { ", in graphs" } else { "" };
                format!("GPU memory, protocol {}{graph}", self.options.protocol.name())
            },
        );
        self.table.line(&format!("# {collective}, {ranks} ranks, {way}, algorithm {algorithm}"))?;
        if let Some(gpus) = self.settings.gpus {
            self.table.line(&format!("# {}", gpus.seating(ranks)))?;
        }
        self.table.line(&format!("# {}{}", workers.describe, workers.created()))?;
        self.table.line(&format!("# {rounds} round(s); times are the slowest rank's"))?;
        if let (Some(peer), Some(name)) = (peer, self.options.peer) {
            self.table.line(&format!("# peer {} {} {}", name.name(), peer.version(), peer.env()))?;
            if let Some(note) = peer.note() {
                self.table.line(&format!("# {note}"))?;
            }
        }
        self.table.line("#")
    }

    /// Counts a line's points and writes them to the files.
    fn keep(&mut self, transport: &str, spec: &Spec, row: &Row, peer: Option<&Peer>) -> Result<()> {
        let gpus = self.settings.gpus;
        for point in &row.points {
            if let (Some(sum), Some(wrong)) = (&mut self.wrong, point.wrong) {
                *sum += wrong;
            }
            let compared = point.peer.as_ref();
            let record = Record {
                what: what(self.settings, transport),
                machine: self.provenance.machine.clone(),
                driver: self.provenance.driver.clone(),
                commit: self.provenance.commit.clone(),
                command: self.provenance.command.clone(),
                collective: spec.collective.name().to_owned(),
                dtype: spec.data_type.name().to_owned(),
                op: spec.op_name().to_owned(),
                bytes: row.bytes,
                in_place: point.in_place,
                ranks: spec.ranks,
                processes: if gpus.is_some_and(|gpus| gpus.together) { 1 } else { spec.ranks },
                algorithm: self.settings.algorithm.map_or("auto", |it| it.name()).to_owned(),
                protocol: self.options.protocol.name().to_owned(),
                path: if transport == "shm" { "host" } else { "net" }.to_owned(),
                transport: transport.to_owned(),
                graph: gpus.is_some_and(|gpus| gpus.graph),
                env: self.provenance.env.clone(),
                ours_us: point.us,
                ours_busbw: point.busbw,
                ours_cpu_s_per_gb: point.cpu_s_per_gb,
                peer_cpu_s_per_gb: compared.map(|it| it.cpu_s_per_gb),
                peer: compared.and(self.options.peer).map_or("none", |name| name.name()).to_owned(),
                peer_version: compared.and(peer).map(|peer| peer.version().to_owned()),
                peer_env: compared.and(peer).map(|peer| peer.env().to_owned()).unwrap_or_default(),
                peer_us: compared.map(|it| it.us),
                peer_busbw: compared.map(|it| it.busbw),
                ratio: compared.map(|it| it.ratio),
                limit_busbw: row.limit_busbw,
                wrong: point.wrong,
            };
            self.sinks.write(&record)?;
            self.points.push(record);
        }
        Ok(())
    }
}

/// What is measured, as records are named: ranks that share GPUs are no measure of GPUs without peer-to-peer.
fn what(settings: &Settings, transport: &str) -> String {
    match settings.gpus {
        None if transport == "verbs" => transport.to_owned(),
        None => format!("cpu-{transport}"),
        Some(gpus) if gpus.shared => "gpu-shared".to_owned(),
        Some(_) => "gpu-no-p2p".to_owned(),
    }
}

/// The group's meeting place, and its id. All ranks are on this machine, so nothing need listen to the outside.
fn rendezvous() -> Result<(rccl::Root, rccl::UniqueId)> {
    let options = rccl::RootOptions { choice: rccl::Interfaces::loopback(), ..rccl::RootOptions::default() };
    Ok(rccl::Root::start(&options).map_err(rccl::Error::from)?)
}

/// Where the table goes: standard output, or standard error where JSON takes that; with a spinner below it on terminals.
struct Output {
    to_stderr: bool,
    spinner: ProgressBar,
}

impl Output {
    fn new(options: &Options) -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let spinner = ProgressBar::with_draw_target(None, target);
        spinner.set_style(ProgressStyle::default_spinner());
        let to_stderr = options.json.as_deref().is_some_and(|path| path == "-");
        Self { to_stderr, spinner }
    }

    fn line(&self, text: &str) -> Result<()> {
        self.spinner.suspend(|| {
            if self.to_stderr { writeln!(io::stderr(), "{text}") } else { writeln!(io::stdout(), "{text}") }
        })?;
        Ok(())
    }

    fn busy(&self, text: &str) {
        self.spinner.set_message(text.to_owned());
        self.spinner.enable_steady_tick(Duration::from_millis(200));
    }

    fn idle(&self) {
        self.spinner.finish_and_clear();
    }
}
