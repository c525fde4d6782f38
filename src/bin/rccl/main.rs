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

use std::{io::Write as _, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};

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
    Tune(bench::TuneOptions),
    /// Print what a shell needs to complete this command's arguments
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    #[command(hide = true)]
    BenchWorker(bench::WorkerOptions),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(options) => bench::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Topo(options) => topo::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Tune(options) => bench::tune(&options),
        Command::Completions { shell } => completions(shell),
        Command::BenchWorker(options) => bench::run_worker(&options),
    };
    match result {
        Ok(code) => code,
        // Whoever read the output, as in `rccl plan ... | head`, has seen enough.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Error::File { path, source })
            if path.as_os_str() == "-" && source.kind() == std::io::ErrorKind::BrokenPipe =>
        {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // Whoever closed standard error learns it from the status.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            error.exit_code()
        }
    }
}

fn completions(shell: clap_complete::Shell) -> error::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "rccl", &mut text);
    output::line(String::from_utf8_lossy(&text).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
