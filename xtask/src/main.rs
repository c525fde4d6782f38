//! Automation of the workspace.

mod kernels;

use clap::Parser;

/// Automation of the workspace.
#[derive(Debug, Parser)]
enum Task {
    /// Compile the CUDA kernels into the tree.
    Kernels {
        /// Only compare the tree with a fresh compilation.
        #[arg(long)]
        check: bool,
    },
}

fn main() {
    let result = match Task::parse() {
        Task::Kernels { check } => kernels::run(check),
    };
    if let Err(error) = result {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
