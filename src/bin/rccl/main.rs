//! The `rccl` command: look at a machine, say what is wrong with it, show plans, and measure.

mod bench;
mod doctor;
mod error;
mod names;
mod output;
mod plan;
mod size;
mod sys;
mod topo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::Error;

/// Collective communication through the host relay, for GPUs without peer-to-peer (not AMD's RCCL).
#[derive(Debug, Parser)]
#[command(
    name = "rccl",
    version,
    max_term_width = 120,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(Box<bench::Options>),
    Plan(plan::Options),
    Topo(topo::Options),
    Doctor(doctor::Options),
    #[command(hide = true)]
    BenchWorker(bench::WorkerOptions),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(options) => bench::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Topo(options) => topo::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::BenchWorker(options) => bench::run_worker(&options),
    };
    match result {
        Ok(code) => code,
        // Whoever read the output, as in `rccl plan ... | head`, has seen enough.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            error.exit_code()
        }
    }
}
