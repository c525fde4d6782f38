//! torch with gloo, for the CPU alone.
//!
//! The index offers torch for Linux with CUDA only: some 5 GB of libraries besides torch itself, which cannot be
//! imported without them since it is linked to them. Nothing on the CPU calls them, so they are replaced by one small
//! library of absent functions, each of which answers 100, CUDA's "no device". Torch then says that there is no CUDA.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{LIMIT, Recipe};
use crate::{Result, command};

const TORCH: &str = "2.15.0";

/// What torch imports of Python packages beside those in itself.
const IMPORTED: &str = "typing_extensions==4.16.0";

/// Changes when the steps below change.
const RECIPE: &str = "torch 2.15.0, typing_extensions 4.16.0, absent CUDA 1";

/// How the functions of the absent libraries begin.
const ABSENT_PREFIXES: [&str; 7] = ["cu", "__cuda", "nccl", "nvrtc", "nvJitLink", "nvshmem", "nvml"];

/// An environment of Python that can run the worker.
pub(super) struct Gloo {
    pub(super) python: PathBuf,
    pub(super) script: PathBuf,
    pub(super) version: String,
}

impl Gloo {
    /// The loopback interface: gloo otherwise asks what the host's name resolves to.
    pub(super) fn environment(&self) -> [(String, String); 1] {
        [("GLOO_SOCKET_IFNAME".into(), "lo".into())]
    }
}

/// What an earlier run installed.
pub(super) fn find(root: &Path, cache: &Path) -> Option<Gloo> {
    let recipe = recipe(cache);
    recipe.is_complete().then(|| Gloo {
        python: recipe.folder.join("bin/python"),
        script: root.join("benches/peers/gloo.py"),
        version: format!("torch {TORCH}"),
    })
}

/// Makes the environment.
///
/// # Errors
/// When Python, pip, the index or the C compiler fail.
pub(super) fn install(root: &Path, cache: &Path) -> Result<Gloo> {
    let recipe = recipe(cache);
    recipe.begin()?;
    eprintln!("gloo: fetching torch {TORCH} for Python (0.5 GB to fetch, 1.2 GB on disk)");
    let mut venv = Command::new("python3");
    command::run(venv.args(["-m", "venv"]).arg(&recipe.folder), LIMIT).map_err(|e| {
        format!("{e}\nneeded: Python 3.10 to 3.14 with the module venv (Debian: python3-venv)")
    })?;
    let python = recipe.folder.join("bin/python");
    // pip's words go to the standard error: the standard output may be JSON for a program.
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-cache-dir",
    ]);
    pip.args([&format!("torch=={TORCH}"), IMPORTED]);
    eprint!(
        "{}",
        command::output(&mut pip, LIMIT).map_err(|e| format!(
            "{e}\nthe package index must be reachable, or the wheels named by PIP_FIND_LINKS"
        ))?
    );
    supply_absent_libraries(&torch_folder(&recipe.folder)?)?;
    let check = "import warnings; warnings.simplefilter('ignore'); import torch.distributed as d; print(d.is_gloo_available())";
    if command::output(Command::new(&python).args(["-c", check]), LIMIT)?.trim() != "True" {
        return Err("the installed torch has no gloo".into());
    }
    recipe.complete()?;
    find(root, cache).ok_or_else(|| "the finished environment is not found".into())
}

fn recipe(cache: &Path) -> Recipe<'static> {
    Recipe { folder: cache.join("gloo"), name: RECIPE }
}

/// `lib/pythonX.Y/site-packages/torch` of the environment.
fn torch_folder(environment: &Path) -> Result<PathBuf> {
    let library = environment.join("lib");
    for entry in fs::read_dir(&library)? {
        let torch = entry?.path().join("site-packages/torch");
        if torch.is_dir() {
            return Ok(torch);
        }
    }
    Err(format!("no torch below {}", library.display()).into())
}

/// Builds the library of absent functions beside torch's own, under each name that torch asks for.
fn supply_absent_libraries(torch: &Path) -> Result {
    let folder = torch.join("lib");
    let libraries = shared_objects(&folder)?;
    let mut symbols = BTreeSet::new();
    let mut needed = BTreeSet::new();
    for library in &libraries {
        let undefined = tool("nm", &["-D", "--undefined-only"], library)?;
        symbols.extend(undefined.lines().filter_map(absent_symbol).map(str::to_owned));
        needed
            .extend(tool("readelf", &["-d"], library)?.lines().filter_map(needed_library).map(str::to_owned));
    }
    let own: BTreeSet<_> = libraries.iter().filter_map(|l| l.file_name()).collect();
    let (source, versions) = absent_library(&symbols);
    let source_path = folder.join("absent.c");
    let versions_path = folder.join("absent.map");
    fs::write(&source_path, source)?;
    fs::write(&versions_path, versions)?;
    let library = folder.join("libabsent.so");
    let mut cc = Command::new("cc");
    cc.args(["-w", "-fno-builtin", "-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source_path);
    cc.arg(format!("-Wl,--version-script={}", versions_path.display()));
    command::run(&mut cc, LIMIT).map_err(|e| format!("{e}\nneeded: a C compiler (Debian: gcc)"))?;
    for name in needed.iter().filter(|n| is_of_cuda(n) && !own.contains(OsStr::new(n.as_str()))) {
        std::os::unix::fs::symlink("libabsent.so", folder.join(name))?;
    }
    Ok(())
}

fn shared_objects(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && path.file_name().is_some_and(|n| n.to_string_lossy().contains(".so")) {
            found.push(path);
        }
    }
    Ok(found)
}

fn tool(name: &str, arguments: &[&str], file: &Path) -> Result<String> {
    command::output(Command::new(name).args(arguments).arg(file), LIMIT)
        .map_err(|e| format!("{e}\nneeded: {name} (Debian: binutils)").into())
}

/// The `name` or `name@version` of a line of `nm`, if an absent library should define it.
fn absent_symbol(line: &str) -> Option<&str> {
    let symbol = line.split_whitespace().last()?;
    ABSENT_PREFIXES.iter().any(|p| symbol.starts_with(p)).then_some(symbol)
}

/// The library that a line of `readelf -d` needs.
fn needed_library(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("(NEEDED)")?;
    rest.split_once('[')?.1.strip_suffix(']')
}

/// Whether a library belongs to CUDA rather than to the system.
fn is_of_cuda(library: &str) -> bool {
    ["libcu", "libnccl", "libnv"].iter().any(|p| library.starts_with(p))
}

/// C source and version script that define every `name` or `name@version`. The loader insists that a name with a version is
/// found under that version.
fn absent_library(symbols: &BTreeSet<String>) -> (String, String) {
    let (mut source, mut versions) = (String::new(), String::new());
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut defined = BTreeSet::new();
    for symbol in symbols {
        let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
        if defined.insert(name) {
            let _ = writeln!(source, "int {name}(void) {{ return 100; }}");
            by_version.entry(version.trim_start_matches('@')).or_default().push(name);
        }
    }
    for (version, names) in by_version.into_iter().filter(|(version, _)| !version.is_empty()) {
        let _ = writeln!(versions, "{version} {{ global: {}; }};", names.join("; "));
    }
    (source, versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_tools_is_read() {
        assert_eq!(
            absent_symbol("                 U cudaMalloc@libcudart.so.13"),
            Some("cudaMalloc@libcudart.so.13")
        );
        assert_eq!(absent_symbol("                 U memcpy@GLIBC_2.14"), None);
        let line = " 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]";
        assert_eq!(needed_library(line), Some("libcudart.so.13"));
        assert_eq!(needed_library(" 0x000000000000000e (SONAME)  Library soname: [libtorch.so]"), None);
        assert!(is_of_cuda("libnvrtc.so.13") && !is_of_cuda("libc.so.6"));
    }

    #[test]
    fn every_symbol_is_defined_once_under_its_version() {
        let symbols = ["a@V1", "b", "c@V1", "d@V2"].map(str::to_owned).into();
        let (source, versions) = absent_library(&symbols);
        assert_eq!(source.lines().count(), 4);
        assert_eq!(versions, "V1 { global: a; c; };\nV2 { global: d; };\n");
    }
}
