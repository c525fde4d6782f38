//! `cargo xtask peers`: the libraries that rccl is measured against, in a cache folder.
//!
//! What the workers are and how to start them: benches/peers/README.md.

mod gloo;
mod openmpi;
mod trial;

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::Result;

/// Longest that one download or build may run.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// A library to measure against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// torch.distributed with gloo, on the CPU.
    Gloo,
    /// Open MPI.
    Openmpi,
}

/// What to fetch and what to do with it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Which peers [default: all]
    peers: Vec<Peer>,
    /// Print where everything is, as one JSON object
    #[arg(long)]
    print_json: bool,
    /// Run a few all-reduces with each peer and print time and bandwidth
    #[arg(long = "try")]
    trial: bool,
    /// Ranks of the trial
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64), requires = "trial")]
    ranks: u32,
    /// Sizes of the trial in bytes
    #[arg(long, value_delimiter = ',', default_value = "1048576", requires = "trial")]
    bytes: Vec<u64>,
    /// Collective of the trial
    #[arg(long, default_value = "all-reduce", requires = "trial")]
    collective: String,
    /// Rounds of the trial; the median is shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..), requires = "trial")]
    rounds: u32,
}

/// Where the peers lie, what is to be said of them, as benches/peers/README.md lists it.
struct Installed {
    gloo: Option<gloo::Gloo>,
    openmpi: Option<openmpi::OpenMpi>,
}

/// Fetches what is missing, then does what was asked.
///
/// # Errors
/// When a peer cannot be fetched or built, or a trial fails.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result {
    let cache = cache_folder(root)?;
    let wanted = |peer| arguments.peers.is_empty() || arguments.peers.contains(&peer);
    let mut installed = Installed { gloo: gloo::find(root, &cache), openmpi: openmpi::find(root, &cache) };
    if wanted(Peer::Gloo) && installed.gloo.is_none() {
        installed.gloo = Some(gloo::install(root, &cache).map_err(|e| format!("gloo: {e}"))?);
    }
    if wanted(Peer::Openmpi) && installed.openmpi.is_none() {
        installed.openmpi = Some(openmpi::install(root, &cache).map_err(|e| format!("openmpi: {e}"))?);
    }
    let json = serde_json::to_string_pretty(&installed.describe())?;
    fs::write(cache.join("peers.json"), format!("{json}\n"))?;
    if arguments.print_json {
        println!("{json}");
    } else {
        eprintln!("peers: ready in {}", cache.display());
    }
    if arguments.trial {
        for peer in [Peer::Gloo, Peer::Openmpi].into_iter().filter(|p| wanted(*p)) {
            trial::run(&installed, peer, arguments)?;
        }
    }
    Ok(())
}

impl Installed {
    fn describe(&self) -> Value {
        let mut object = Map::new();
        let mut set = |key: &str, value: &Path| object.insert(key.into(), value.to_string_lossy().into());
        if let Some(gloo) = &self.gloo {
            set("python", &gloo.python);
            set("gloo_script", &gloo.script);
            set("gloo_version", Path::new(&gloo.version));
        }
        if let Some(openmpi) = &self.openmpi {
            set("mpirun", &openmpi.mpirun);
            set("openmpi_worker", &openmpi.worker);
            set("openmpi_version", Path::new(&openmpi.version));
        }
        let env = self.environment().into_iter().map(|(k, v)| (k, v.into()));
        object.insert("env".into(), Value::Object(env.collect()));
        Value::Object(object)
    }

    /// Variables that either worker can be given.
    fn environment(&self) -> Vec<(String, String)> {
        let gloo = self.gloo.iter().flat_map(gloo::Gloo::environment);
        gloo.chain(self.openmpi.iter().flat_map(openmpi::OpenMpi::environment)).collect()
    }
}

/// `$RCCL_CACHE/peers`, or `.cache/peers` in the workspace; made if missing.
fn cache_folder(root: &Path) -> Result<PathBuf> {
    let base = env::var_os("RCCL_CACHE")
        .filter(|v| !v.is_empty())
        .map_or_else(|| root.join(".cache"), PathBuf::from);
    let folder = std::path::absolute(base)?.join("peers");
    fs::create_dir_all(&folder)
        .map_err(|e| format!("{}: {e} (RCCL_CACHE names another folder)", folder.display()))?;
    Ok(folder)
}

/// A folder that counts as complete once a file in it, written last, names the recipe that filled it.
struct Recipe<'a> {
    folder: PathBuf,
    name: &'a str,
}

impl Recipe<'_> {
    fn is_complete(&self) -> bool {
        fs::read_to_string(self.folder.join("recipe")).is_ok_and(|n| n == self.name)
    }

    /// Empties the folder: what an interrupted or older run left is not built upon.
    fn begin(&self) -> Result {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        Ok(fs::create_dir_all(&self.folder)?)
    }

    fn complete(&self) -> Result {
        Ok(fs::write(self.folder.join("recipe"), self.name)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_complete_only_when_the_same_one_was_completed() {
        let folder = tempfile::tempdir().unwrap();
        let recipe = |name| Recipe { folder: folder.path().join("x"), name };
        assert!(!recipe("a 1").is_complete());
        recipe("a 1").begin().unwrap();
        assert!(!recipe("a 1").is_complete());
        recipe("a 1").complete().unwrap();
        assert!(recipe("a 1").is_complete());
        assert!(!recipe("a 2").is_complete());
        recipe("a 2").begin().unwrap();
        assert!(!recipe("a 1").is_complete());
    }
}
