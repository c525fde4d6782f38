//! Compiles the driver library without a device, for tests of several packages.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A folder that is removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A library of its own for every test: its state is global.
pub(crate) fn compile(test: &str, flags: &[&str]) -> (PathBuf, Folder) {
    let folder = std::env::temp_dir().join(format!("rccl-fake-cuda-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("libcuda.so");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let inside = Path::new("tests/fake_cuda/fake_cuda.c");
    let sources = [package.join(inside), package.join("rccl-transport").join(inside)];
    let source = sources.iter().find(|source| source.is_file()).expect("the source of the library");
    let status =
        Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&path).arg(source).args(flags).status();
    assert!(status.expect("a C compiler `cc` is needed").success());
    (path, Folder(folder))
}
