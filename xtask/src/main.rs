//! Automation of the workspace: `cargo xtask ci`, `header`, `kernels`, `lab`, `peers`, `install`, `bench-plugin`, `nccl-wheels`.

mod bench_plugin;
mod ci;
mod command;
mod glibc;
mod header;
mod install;
mod kernels;
mod lab;
mod nccl_wheels;
mod peers;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// What an automation task gives back: its error is text for a person.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Automation of the rccl workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check that a change must pass, in order, stopping at the first that fails
    Ci(ci::Arguments),
    /// Write the C header from the Rust sources
    Header {
        /// Write nothing; fail if the committed header differs
        #[arg(long)]
        check: bool,
    },
    /// Compile the CUDA kernels into the tree, without a CUDA toolkit
    Kernels {
        /// Write nothing; compare the tree with a fresh compilation
        #[arg(long)]
        check: bool,
    },
    /// Build the C library and NCCL plugin, and put them where others find them
    Install(install::Arguments),
    /// Measure NCCL with the plugin and without, in turns (needs a GPU and PyTorch)
    BenchPlugin(bench_plugin::Arguments),
    /// Let NCCL itself load the plugin, in versions that do so without a GPU (downloads some 800 MB)
    NcclWheels,
    /// Run a command, or the tests of RDMA, on a kernel with soft-RoCE in a small emulated machine
    Lab(lab::Arguments),
    /// Fetch the libraries that `rccl bench --peer` measures against
    Peers(peers::Arguments),
}

fn main() -> ExitCode {
    let root = workspace_root();
    let outcome = match Arguments::parse().task {
        Task::Ci(arguments) => ci::run(&root, &arguments),
        Task::Header { check: true } => header::check(&root),
        Task::Header { check: false } => header::write(&root),
        Task::Kernels { check } => kernels::run(check),
        Task::Install(arguments) => install::run(&root, &arguments),
        Task::BenchPlugin(arguments) => bench_plugin::run(&root, &arguments),
        Task::NcclWheels => nccl_wheels::run(&root),
        Task::Lab(arguments) => lab::run(&root, &arguments),
        Task::Peers(arguments) => peers::run(&root, &arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace's manifest: the one above this package.
fn workspace_root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}
