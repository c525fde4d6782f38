//! `cargo xtask nccl-wheels`: NCCL's own loader on the plugin, in the versions that load it without a GPU.
//!
//! NCCL 2.18 to 2.21 load their network plugin in `ncclGetUniqueId`, which needs no GPU; later ones only with the first
//! communicator. Each version takes another table.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::{Result, command, install};

/// Longest that one download or start may take.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Versions on the package index, and the table each takes: the newest that it knows.
const VERSIONS: &[(&str, u32)] = &[("2.18.1", 6), ("2.19.3", 7), ("2.20.5", 8), ("2.21.5", 8)];

/// What NCCL is made to do: load its plugin.
const SCRIPT: &str = "import ctypes, sys; nccl = ctypes.CDLL(sys.argv[1]); \
                      sys.exit(nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)))";

/// Fetches what is missing into `.cache/nccl` and tries each version.
///
/// # Errors
/// When a wheel cannot be fetched, or a version does not take its table.
pub(crate) fn run(root: &Path) -> Result {
    let cache = root.join(".cache/nccl");
    let plugin = cache.join("plugin");
    fs::create_dir_all(&plugin)?;
    fs::write(plugin.join("libnccl-net-rccl.so"), install::library(root)?)?;
    for (version, table) in VERSIONS {
        let folder = cache.join(version);
        let library = folder.join("nvidia/nccl/lib/libnccl.so.2");
        if !library.is_file() {
            let package = format!("nvidia-nccl-cu12=={version}");
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target"]);
            command::run(pip.arg(&folder).arg(package), LIMIT)?;
        }
        let mut python = Command::new("python3");
        python.args(["-c", SCRIPT]).arg(&library).env("LD_LIBRARY_PATH", &plugin);
        python.env("NCCL_NET_PLUGIN", "rccl").env("NCCL_DEBUG", "INFO").stderr(Stdio::inherit());
        let said = command::output(&mut python, LIMIT)?;
        // It says what it took, or only what it did not find: older tables where it took this one at once.
        let took = said.contains(&format!("Loaded net plugin rccl (v{table})"));
        let silent = said.contains("Plugin name set by env to libnccl-net-rccl.so")
            && !said.contains("Failed to find ncclNetPlugin");
        if !took && !silent {
            return Err(format!("NCCL {version} did not take table v{table}:\n{said}").into());
        }
        println!("NCCL {version} took table v{table}");
    }
    Ok(())
}
