//! `rccl doctor`: what is wrong with this machine for collective communication, and how to put it right.

mod environment;
mod facts;
mod gpu;
mod limits;
mod memory;
mod net;
mod network;
mod rdma;
#[cfg(test)]
mod tests;
mod transports;

use std::{fmt::Write as _, process::ExitCode};

use serde::Serialize;

use crate::{error::Result, output};
use facts::Facts;
use transports::Transport;

/// Say what is wrong with this machine for collective communication, and how to put it right
///
/// Exit status: 0 if everything needed works (warnings included), 1 if a check fails.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    /// Ranks that shall run on this machine [default: one a GPU, at least 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A part of the machine to look at alone.
#[derive(Debug, clap::Subcommand)]
enum Part {
    Net(net::Options),
    /// RDMA: lockable memory, ports, GIDs, MTU, counters
    Rdma {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but slower or less safely than it could.
    Warn,
    /// Something needed does not work.
    Fail,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do about it; none where nothing need be done.
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), fix: Some(fix.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fail, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Everything the doctor has to say.
#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    verdict: Verdict,
    checks: Vec<Check>,
    transports: Vec<Transport>,
}

impl Report {
    fn new(facts: &Facts, rdma_only: bool) -> Self {
        let mut checks = Vec::new();
        if rdma_only {
            checks.push(limits::locked_memory(facts));
        } else {
            checks.extend(limits::checks(facts));
            checks.extend(memory::checks(facts));
            checks.extend(network::checks(facts));
            checks.extend(gpu::checks(facts));
            checks.extend(environment::checks(facts));
        }
        checks.extend(rdma::checks(facts));
        Self {
            machine: facts.machine.summary(),
            verdict: checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok),
            checks,
            transports: transports::of(facts),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.machine);
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        // Writing to a string cannot fail.
        for check in &self.checks {
            let verdict = match check.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warn => "WARN",
                Verdict::Fail => "FAIL",
            };
            let _ = writeln!(text, "{verdict}  {:width$}  {}", check.name, check.found);
            if let Some(fix) = &check.fix {
                let _ = writeln!(text, "      {:width$}  -> {fix}", "");
            }
        }
        let _ = writeln!(text, "\nTransports");
        for it in &self.transports {
            let usable = if it.usable { "usable    " } else { "not usable" };
            let _ = writeln!(text, "  {:<5}  {usable}  {}", it.name, it.reason);
        }
        let count = |verdict| self.checks.iter().filter(|check| check.verdict == verdict).count();
        let (failed, warned) = (count(Verdict::Fail), count(Verdict::Warn));
        let _ = write!(text, "\n{} checks, {warned} to look at, {failed} failed", self.checks.len());
        text
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let (rdma_only, json) = match &options.part {
        Some(Part::Net(options)) => return net::run(options),
        Some(Part::Rdma { json }) => (true, *json),
        None => (false, options.json),
    };
    let report = Report::new(&Facts::gather(options.ranks), rdma_only);
    if json {
        output::json(&report)?;
    } else {
        output::line(report.text())?;
    }
    Ok(if report.verdict == Verdict::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
