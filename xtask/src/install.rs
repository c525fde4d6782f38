//! `cargo xtask install`: the C library, the NCCL plugin and the command, as others expect to find them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    Result, command,
    glibc::{Library, Version},
};

/// Longest that building or stripping may take.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The oldest glibc that the library must start with: that of RHEL 8, Debian 10 and Ubuntu 18.10.
const OLDEST_GLIBC: Version = (2, 28);

/// Where to, and what.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder that gets lib, include, bin and share
    #[arg(long)]
    prefix: PathBuf,
    /// Put the plugin there as libnccl-net.so too, which NCCL looks for when no plugin is named: NCCL 2.27 to 2.29 forget the
    /// name after the last communicator is destroyed (nccl#1978)
    #[arg(long)]
    default_plugin: bool,
    /// Leave out the `rccl` command and its completions
    #[arg(long)]
    library_only: bool,
}

/// Builds and installs.
///
/// # Errors
/// When something does not build, needs a newer glibc than it may, or cannot be written.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result {
    let library = library(root)?;
    let prefix = std::path::absolute(&arguments.prefix)?;
    let lib = prefix.join("lib");
    let mut names = vec!["librccl_ffi.so", "libnccl-net-rccl.so"];
    if arguments.default_plugin {
        names.push("libnccl-net.so");
    }
    for name in names {
        put(&lib.join(name), &library, 0o755)?;
    }
    put(&prefix.join("include/rccl_ffi.h"), &fs::read(root.join("rccl-ffi/include/rccl_ffi.h"))?, 0o644)?;
    put(&lib.join("pkgconfig/rccl_ffi.pc"), package_config(&prefix).as_bytes(), 0o644)?;
    if !arguments.library_only {
        program(root, &prefix)?;
    }
    println!("NCCL finds the plugin with LD_LIBRARY_PATH={} NCCL_NET_PLUGIN=rccl", lib.display());
    Ok(())
}

/// The library as it is shipped: stripped, and needing no newer glibc than it may.
///
/// # Errors
/// As [`run`].
pub(crate) fn library(root: &Path) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    command::run(&mut cargo(root, &["build", "--locked", "--release", "--package", "rccl-ffi"]), LIMIT)?;
    let stripped = folder.path().join("stripped.so");
    let built = target(root).join("release/librccl_ffi.so");
    command::run(Command::new("strip").arg("--strip-all").arg("-o").arg(&stripped).arg(&built), LIMIT)?;
    let mut library = Library::new(fs::read(&stripped)?)?;
    library.forget_moves()?;
    let ((major, minor), symbols) = library.oldest_glibc()?;
    if (major, minor) > OLDEST_GLIBC {
        let symbols = symbols.join(", ");
        return Err(format!("{} needs glibc {major}.{minor} for {symbols}", built.display()).into());
    }
    println!("library: {} bytes stripped, glibc {major}.{minor} or later", library.bytes().len());
    Ok(library.bytes().to_vec())
}

fn program(root: &Path, prefix: &Path) -> Result {
    command::run(&mut cargo(root, &["build", "--locked", "--release", "--bin", "rccl"]), LIMIT)?;
    let built = target(root).join("release/rccl");
    put(&prefix.join("bin/rccl"), &fs::read(&built)?, 0o755)?;
    for (shell, path) in [
        ("bash", "share/bash-completion/completions/rccl"),
        ("zsh", "share/zsh/site-functions/_rccl"),
        ("fish", "share/fish/vendor_completions.d/rccl.fish"),
    ] {
        let text = command::output(Command::new(&built).args(["completions", shell]), LIMIT)?;
        put(&prefix.join(path), text.as_bytes(), 0o644)?;
    }
    Ok(())
}

fn package_config(prefix: &Path) -> String {
    format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\nName: rccl_ffi\n\
         Description: Collective communication through the host relay (not AMD's RCCL)\nVersion: {}\n\
         Libs: -L${{libdir}} -lrccl_ffi\nCflags: -I${{includedir}}\n",
        prefix.display(),
        env!("CARGO_PKG_VERSION")
    )
}

/// Writes beside the place and moves there, so that a process that has the old library mapped keeps it.
fn put(path: &Path, bytes: &[u8], mode: u32) -> Result {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let folder = path.parent().ok_or("a path without a folder")?;
    fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    std::io::Write::write_all(&mut file, bytes).map_err(failed)?;
    fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    println!("{}", path.display());
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root);
    command
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_and_the_package_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib/x.so");
        put(&path, b"old", 0o755).unwrap();
        put(&path, b"new", 0o755).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path().join("lib")).unwrap().count(), 1);
        let text = package_config(Path::new("/opt/rccl"));
        assert!(text.starts_with("prefix=/opt/rccl\n") && text.contains("-lrccl_ffi\n"), "{text}");
    }
}
