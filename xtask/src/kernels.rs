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

use sha2::{Digest, Sha256};

const NVRTC_VERSION: &str = "12.9.86";
const KERNELS: &str = "rccl-transport/kernels";
const BUILT: &str = "rccl-transport/kernels/built";
const COMPILE: &str = "xtask/nvrtc.py";
/// Beside the compiled kernels: what they were compiled from.
const DIGEST: &str = "sources.sha256";

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
    python(&[&root.join(COMPILE), &library, &root.join(KERNELS), &out])?;
    fs::write(out.join(DIGEST), digest(&root)?)?;
    if check { compare(&root.join(BUILT), &out) } else { Ok(()) }
}

/// Checks, without a compiler, that the committed kernels were compiled from these sources.
///
/// # Errors
/// If they were not, or a file cannot be read.
pub(crate) fn check_sources(root: &Path) -> crate::Result {
    let path = root.join(BUILT).join(DIGEST);
    let committed = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if committed == digest(root)? {
        return Ok(());
    }
    Err(format!(
        "{}: the kernels' sources have changed since they were compiled; run `cargo xtask kernels`",
        path.display()
    )
    .into())
}

/// A digest of everything that decides what the compiled kernels are.
fn digest(root: &Path) -> Result<String, Box<dyn Error>> {
    let mut sources: Vec<PathBuf> = fs::read_dir(root.join(KERNELS))?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?
        .into_iter()
        .filter(|path| path.is_file())
        .collect();
    sources.sort();
    sources.push(root.join(COMPILE));
    let mut hash = Sha256::new();
    hash.update(NVRTC_VERSION);
    for source in sources {
        let bytes = fs::read(&source)?;
        let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        hash.update(format!("\0{name}\0{}\0", bytes.len()));
        hash.update(bytes);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_source_shows() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join(BUILT)).unwrap();
        fs::create_dir_all(root.join("xtask")).unwrap();
        fs::write(root.join(COMPILE), "compile").unwrap();
        let source = root.join(KERNELS).join("a.cu");
        fs::write(&source, "one").unwrap();
        fs::write(root.join(BUILT).join(DIGEST), digest(root).unwrap()).unwrap();
        check_sources(root).unwrap();
        fs::write(&source, "two").unwrap();
        assert!(check_sources(root).unwrap_err().to_string().contains("cargo xtask kernels"));
        fs::write(&source, "one").unwrap();
        fs::write(root.join(KERNELS).join("b.cuh"), "").unwrap();
        assert!(check_sources(root).is_err());
    }
}
