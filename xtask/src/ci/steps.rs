//! The steps and the cargo commands behind them.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use super::{checks, examples, readme};
use crate::{Result, command, header, kernels, lab};

/// Longest that one command of a step may run.
pub(crate) const LIMIT: Duration = Duration::from_secs(30 * 60);

/// One step of the run.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) run: fn(&Path) -> Result,
}

/// Cheap checks first, then what compiles, then what runs.
pub(super) const STEPS: &[Step] = &[
    Step { name: "fmt", about: "the code is formatted", run: fmt },
    Step {
        name: "names",
        about: "no file names a registry host or a path of one machine",
        run: checks::names,
    },
    Step { name: "lengths", about: "list of long source files (never fails)", run: checks::lengths },
    Step {
        name: "dependencies",
        about: "core <- transport <- rccl, ffi without cli",
        run: checks::dependencies,
    },
    Step { name: "header", about: "the C header matches the sources", run: header::check },
    Step {
        name: "kernels",
        about: "the compiled kernels are those of the sources",
        run: kernels::check_sources,
    },
    Step { name: "clippy", about: "no warning in any target", run: clippy },
    Step { name: "minimal", about: "the libraries build with no default features", run: minimal },
    Step { name: "cudarc", about: "what is for cudarc compiles without a warning", run: cudarc },
    Step { name: "docs", about: "the documentation builds without a warning", run: docs },
    Step { name: "doctest", about: "the examples in the documentation", run: doctest },
    Step { name: "test", about: "unit, simulation, conformance and C tests", run: test },
    Step { name: "lab", about: "the tests of RDMA, on an emulated machine that has it", run: lab::step },
    Step { name: "examples", about: "examples/ that need no GPU run and print", run: examples::run },
    Step { name: "readme", about: "the marked commands of README.md run", run: readme::run },
];

/// A cargo command in the workspace, with warnings as errors. Every step uses the same flags, so that nothing is
/// compiled twice.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root).env("RUSTFLAGS", flags_with_warnings_denied("RUSTFLAGS"));
    command
}

/// The value of `variable` with `-Dwarnings` added where it is not there yet.
fn flags_with_warnings_denied(variable: &str) -> String {
    let flags = env::var(variable).unwrap_or_default();
    if flags.split_whitespace().any(|f| f == "-Dwarnings") {
        return flags;
    }
    format!("{flags} -Dwarnings").trim_start().to_owned()
}

fn fmt(root: &Path) -> Result {
    command::run(&mut cargo(root, &["fmt", "--all", "--check"]), LIMIT)
}

fn clippy(root: &Path) -> Result {
    let arguments = ["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];
    command::run(&mut cargo(root, &arguments), LIMIT)
}

fn minimal(root: &Path) -> Result {
    let arguments = ["build", "--locked", "--workspace", "--exclude", "xtask", "--no-default-features"];
    command::run(&mut cargo(root, &arguments), LIMIT)
}

/// With no default features, whose dependencies the step before has compiled so.
fn cudarc(root: &Path) -> Result {
    let features = ["--no-default-features", "--features", "cudarc-cuda-12020"];
    let targets = ["--lib", "--example", "10-cuda-all-reduce"];
    let start = ["clippy", "--locked", "-p", "rccl"];
    let arguments = [&start[..], &features, &targets, &["--", "-D", "warnings"]].concat();
    command::run(&mut cargo(root, &arguments), LIMIT)
}

fn docs(root: &Path) -> Result {
    let mut command = cargo(root, &["doc", "--locked", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", flags_with_warnings_denied("RUSTDOCFLAGS"));
    command::run(&mut command, LIMIT)
}

fn test(root: &Path) -> Result {
    let arguments: &[&str] = if has_nextest(root) {
        &["nextest", "run", "--locked", "--workspace", "--no-fail-fast"]
    } else {
        &["test", "--locked", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"]
    };
    command::run(&mut cargo(root, arguments), LIMIT)
}

fn doctest(root: &Path) -> Result {
    command::run(&mut cargo(root, &["test", "--locked", "--workspace", "--doc"]), LIMIT)
}

fn has_nextest(root: &Path) -> bool {
    let mut version = cargo(root, &["nextest", "--version"]);
    version.stdout(Stdio::null()).stderr(Stdio::null());
    command::run(&mut version, LIMIT).is_ok()
}
