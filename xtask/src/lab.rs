//! `cargo xtask lab`: the tests that need RDMA, or any command, on a kernel that has it (`lab/run.sh`).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    Result,
    ci::steps::{LIMIT, cargo},
    command,
};

/// What the lab can be told.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Kernel package [default: linux-image-6.12-amd64]; linux-image-amd64 is Debian 12's 6.1
    #[arg(long)]
    kernel: Option<String>,
    /// Seconds that the command may take in all
    #[arg(long, default_value_t = 300)]
    timeout: u32,
    /// A folder that the command may write to; may be repeated. All else that it writes is thrown away
    #[arg(long)]
    share: Vec<PathBuf>,
    /// Instead, compare what we know of libibverbs with rdma-core's headers, which are fetched
    #[arg(long, conflicts_with_all = ["command", "kernel", "share"])]
    reference: bool,
    /// Show the boot log and timings
    #[arg(short, long)]
    verbose: bool,
    /// The command, run as root in the workspace; without one the tests of RDMA
    #[arg(last = true)]
    command: Vec<String>,
}

/// Runs the command, or the tests.
///
/// # Errors
/// When the lab cannot be prepared, or the command fails.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result {
    if arguments.reference {
        return reference(root);
    }
    let mut lab = Command::new(root.join("lab/run.sh"));
    lab.current_dir(root).args(["-t", &arguments.timeout.to_string()]);
    if let Some(kernel) = &arguments.kernel {
        lab.args(["-k", kernel]);
    }
    for folder in &arguments.share {
        lab.arg("-s").arg(folder);
    }
    if arguments.verbose {
        lab.arg("-v");
    }
    lab.arg("--");
    if arguments.command.is_empty() {
        lab.args(["sh", "-ec", &tests(root)?]);
    } else {
        lab.args(&arguments.command);
    }
    // The lab keeps the limit itself, and says so; fetching its packages comes on top.
    command::run(&mut lab, LIMIT + Duration::from_secs(arguments.timeout.into()))
}

/// A step of `cargo xtask ci`: the headers, and the tests on the default kernel.
pub(crate) fn step(root: &Path) -> Result {
    reference(root)?;
    run(root, &Arguments { timeout: 900, ..Arguments::default() })
}

/// Builds the tests of RDMA; the shell commands that run them.
fn tests(root: &Path) -> Result<String> {
    let conformance = executable(root, "rccl-transport", "conformance")?;
    let verbs = executable(root, "rccl", "verbs")?;
    Ok(format!("'{}' verbs --test-threads 1; '{}'", conformance.display(), verbs.display()))
}

/// Builds a test; its program.
fn executable(root: &Path, package: &str, test: &str) -> Result<PathBuf> {
    let arguments = [
        "test",
        "--locked",
        "--no-run",
        "--message-format",
        "json-render-diagnostics",
        "-p",
        package,
        "--test",
        test,
    ];
    let messages = command::output(&mut cargo(root, &arguments), LIMIT)?;
    let program = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == test).then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    let last = program.fold(None, |_, program| Some(program));
    last.ok_or_else(|| format!("cargo built no program of the test {test} of {package}").into())
}

/// Compiles, against rdma-core's headers, assertions of every size, offset and constant that `rccl-transport` uses.
fn reference(root: &Path) -> Result {
    let folder = root.join(".cache/lab/headers");
    let include = folder.join("usr/include");
    if !include.join("infiniband/verbs.h").exists() {
        let partial = root.join(".cache/lab/headers-partial");
        fs::create_dir_all(&partial)?;
        let fetch = "apt-get -qq -o APT::Sandbox::User=root download libibverbs-dev || \
                     { apt-get -qq update; apt-get -qq -o APT::Sandbox::User=root download libibverbs-dev; }; \
                     dpkg-deb -x libibverbs-dev_*.deb . && rm libibverbs-dev_*.deb";
        command::run(Command::new("bash").args(["-euc", fetch]).current_dir(&partial), LIMIT)?;
        fs::rename(&partial, &folder)?;
    }
    let example = ["run", "--quiet", "--locked", "-p", "rccl-transport", "--example", "verbs-layout"];
    let source = folder.join("layout.c");
    let text = command::output(&mut cargo(root, &example), LIMIT)?;
    fs::write(&source, &text)?;
    let mut compiler = Command::new("cc");
    command::run(compiler.arg("-fsyntax-only").arg("-I").arg(&include).arg(&source), LIMIT)?;
    println!(
        "{} sizes, offsets and constants are those of rdma-core",
        text.matches("_Static_assert").count()
    );
    Ok(())
}
