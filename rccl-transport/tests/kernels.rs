//! The kernels' own sources, run on a CPU with every CUDA thread as a fiber: many interleavings, each from a seed.
//!
//! `RCCL_SEEDS="COUNT FIRST"` runs others than the usual ones: a failure prints its seed.

use std::{path::Path, process::Command};

#[test]
fn kernels_are_right_under_many_interleavings() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = std::env::temp_dir().join(format!("rccl-emulated-kernels-{}", std::process::id()));
    let compiled = Command::new("c++")
        .args(["-std=c++17", "-O1", "-Wno-unknown-pragmas", "-I"])
        .arg(here.join("tests/emulated"))
        .arg("-I")
        .arg(here.join("kernels"))
        .arg(here.join("tests/emulated/main.cpp"))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C++ compiler `c++` is needed");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let seeds = std::env::var("RCCL_SEEDS").unwrap_or_else(|_| "24 0".to_owned());
    let ran = Command::new(&program).args(seeds.split_whitespace()).output();
    std::fs::remove_file(&program).unwrap();
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
