//! Open MPI from Debian's packages, unpacked beside the system instead of installed, and the worker compiled for it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::SystemTime,
};

use super::{LIMIT, Recipe};
use crate::{Result, command};

const VERSION: &str = "4.1.4";

/// Open MPI and what its launcher, its library and its shared memory and TCP transports need. Names as in Debian 12.
const PACKAGES: [&str; 9] = [
    "openmpi-bin",
    "openmpi-common",
    "libopenmpi3",
    "libopenmpi-dev",
    "libpmix2",
    "libhwloc15",
    "libevent-core-2.1-7",
    "libevent-pthreads-2.1-7",
    "libmunge2",
];

/// Changes when the packages or the steps change.
const RECIPE: &str = "Open MPI 4.1.4 of Debian 12, recipe 1";

/// The unpacked Open MPI and the compiled worker.
pub(super) struct OpenMpi {
    prefix: PathBuf,
    pub(super) mpirun: PathBuf,
    pub(super) worker: PathBuf,
    pub(super) version: String,
}

impl OpenMpi {
    /// What relocates the packages, chooses shared memory, and lets root run it (in containers).
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let prefix = self.prefix.display();
        let libraries = library_folders(&self.prefix).map(|f| f.display().to_string()).join(":");
        [
            ("OPAL_PREFIX", format!("{prefix}")),
            // Its compression of large start-up data is a plugin that is not unpacked; one host has none to compress.
            ("PMIX_MCA_pcompress_base_silence_warning", "1".into()),
            ("LD_LIBRARY_PATH", libraries),
            ("OMPI_ALLOW_RUN_AS_ROOT", "1".into()),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".into()),
            ("OMPI_MCA_pml", "ob1".into()),
            ("OMPI_MCA_btl", "self,vader".into()),
            ("OMPI_MCA_btl_tcp_if_include", "lo".into()),
            // Components for networks whose libraries are not unpacked.
            ("OMPI_MCA_mca_base_component_show_load_errors", "0".into()),
            // One host needs no remote shell.
            ("OMPI_MCA_plm", "isolated".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// What an earlier run installed, if its worker is as new as the source.
pub(super) fn find(root: &Path, cache: &Path) -> Option<OpenMpi> {
    let recipe = recipe(cache);
    let prefix = recipe.folder.join("usr");
    let worker = recipe.folder.join("worker");
    let current = modified(&worker)? >= modified(&source(root))?;
    (recipe.is_complete() && current).then(|| OpenMpi {
        mpirun: prefix.join("bin/orterun"),
        worker,
        version: VERSION.into(),
        prefix,
    })
}

/// Fetches and unpacks what is missing and compiles the worker.
///
/// # Errors
/// When apt, dpkg or the C compiler fail.
pub(super) fn install(root: &Path, cache: &Path) -> Result<OpenMpi> {
    let recipe = recipe(cache);
    if !recipe.is_complete() {
        recipe.begin()?;
        unpack(&recipe.folder)?;
    }
    compile(&recipe.folder, &source(root))?;
    recipe.complete()?;
    find(root, cache).ok_or_else(|| "the finished installation is not found".into())
}

fn recipe(cache: &Path) -> Recipe<'static> {
    Recipe { folder: cache.join("openmpi"), name: RECIPE }
}

fn source(root: &Path) -> PathBuf {
    root.join("benches/peers/openmpi.c")
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn unpack(folder: &Path) -> Result {
    eprintln!("openmpi: fetching Debian's Open MPI {VERSION} (5 MB to fetch, 25 MB on disk)");
    let mut download = Command::new("apt-get");
    download
        .args(["download", "--quiet", "-o", "APT::Sandbox::User=root"])
        .args(PACKAGES)
        .current_dir(folder)
        .stdout(Stdio::null());
    if let Err(first) = command::run(&mut download, LIMIT) {
        // The lists of packages may be missing or old; only root may renew them.
        eprintln!("openmpi: {first}; renewing the lists of packages");
        let mut update = Command::new("apt-get");
        command::run(update.args(["update", "--quiet"]).stdout(Stdio::null()), LIMIT).and_then(|()| {
            command::run(&mut download, LIMIT)
        }).map_err(|e| {
            format!("{e}\nneeded: apt-get of Debian 12 on x86-64, its package archive, and its lists (`apt-get update` as root)")
        })?;
    }
    for entry in fs::read_dir(folder)? {
        let package = entry?.path();
        if package.extension().is_some_and(|e| e == "deb") {
            command::run(Command::new("dpkg").arg("-x").arg(&package).arg(folder), LIMIT)?;
            fs::remove_file(&package)?;
        }
    }
    Ok(())
}

fn compile(folder: &Path, source: &Path) -> Result {
    let libraries = library_folders(&folder.join("usr"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(folder.join("worker"))
        .arg(source);
    cc.arg("-I").arg(libraries[1].join("../include"));
    for library in &libraries {
        cc.arg("-L").arg(library).arg(format!("-Wl,-rpath-link,{}", library.display()));
    }
    command::run(cc.arg("-lmpi"), LIMIT)
        .map_err(|e| format!("{e}\nneeded: a C compiler (Debian: gcc)").into())
}

/// Where the libraries of the packages lie below `usr`.
fn library_folders(prefix: &Path) -> [PathBuf; 2] {
    let libraries = prefix.join("lib/x86_64-linux-gnu");
    let of_openmpi = libraries.join("openmpi/lib");
    [libraries, of_openmpi]
}
