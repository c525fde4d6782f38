//! `cargo xtask kernels [--check]`: compiles the CUDA kernels with NVRTC, without a CUDA toolkit.
//!
//! The compiler comes from its Python wheel, of one exact version, into `.cache/kernels`. The results are committed, so
//! that nobody needs this to build; NVRTC is deterministic, so `--check` can compare bytes.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const NVRTC_VERSION: &str = "12.9.86";
const KERNELS: &str = "rccl-transport/kernels";
const BUILT: &str = "rccl-transport/kernels/built";

/// Compiles the kernels into the tree, or with `check` compares what is there with a fresh compilation.
///
/// # Errors
/// Where the compiler cannot be fetched or the kernels do not compile; with `check`, if a committed file differs.
pub(crate) fn run(check: bool) -> Result<(), Box<dyn Error>> {
    let root = workspace();
    let cache = root.join(".cache/kernels");
    let library = compiler(&cache)?;
    let out = if check { cache.join("built") } else { root.join(BUILT) };
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    python(&[&root.join("xtask/nvrtc.py"), &library, &root.join(KERNELS), &out])?;
    if check { compare(&root.join(BUILT), &out) } else { Ok(()) }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// The path of NVRTC's library, fetched if it is not in the cache.
fn compiler(cache: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let unpacked = cache.join(format!("nvrtc-{NVRTC_VERSION}"));
    let library = unpacked.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    if library.exists() {
        return Ok(library);
    }
    let wheels = cache.join("wheels");
    fs::create_dir_all(&wheels)?;
    let package = format!("nvidia-cuda-nvrtc-cu12=={NVRTC_VERSION}");
    python(
        &["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]
            .map(Path::new)
            .into_iter()
            .chain([wheels.as_path(), Path::new(&package)])
            .collect::<Vec<_>>(),
    )?;
    let wheel = fs::read_dir(&wheels)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains(&format!("nvrtc_cu12-{NVRTC_VERSION}")))
        .ok_or_else(|| format!("pip fetched no wheel of {package} into {}", wheels.display()))?;
    // Unpacked beside and renamed, so that an interrupted run leaves no half compiler behind.
    let partial = cache.join("nvrtc-partial");
    python(&[Path::new("-m"), Path::new("zipfile"), Path::new("-e"), &wheel, &partial])?;
    fs::rename(&partial, &unpacked)?;
    fs::remove_file(&wheel)?;
    Ok(library)
}

fn python<P: AsRef<Path>>(arguments: &[P]) -> Result<(), Box<dyn Error>> {
    let mut command = Command::new("python3");
    command.args(arguments.iter().map(|argument| argument.as_ref().as_os_str()));
    let status =
        command.status().map_err(|error| format!("{command:?}: {error}; python3 with pip is needed"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// Compares two folders of compiled kernels, byte by byte.
fn compare(committed: &Path, fresh: &Path) -> Result<(), Box<dyn Error>> {
    let names = |folder: &Path| -> std::io::Result<Vec<_>> {
        let mut names: Vec<_> =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>()?;
        names.sort();
        Ok(names)
    };
    let (have, want) = (names(committed)?, names(fresh)?);
    if have != want {
        return Err(format!(
            "{}: has {have:?}, should have {want:?}; run `cargo xtask kernels`",
            committed.display()
        )
        .into());
    }
    for name in want {
        if fs::read(committed.join(&name))? != fs::read(fresh.join(&name))? {
            let path = committed.join(&name);
            return Err(format!(
                "{}: not what the sources compile to; run `cargo xtask kernels`",
                path.display()
            )
            .into());
        }
    }
    Ok(())
}
