//! The shared library from outside: C programs that link it and open it, and the symbols it exports.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// What an exported name begins with: ours, and the tables that NCCL looks up.
const EXPORT_PREFIXES: [&str; 2] = ["rccl_", "nccl"];

/// The shared library, which cargo builds beside this test.
fn library() -> PathBuf {
    let test = env::current_exe().expect("the path of this test");
    let folder = test.parent().expect("the folder of this test");
    let library = folder.join("librccl_ffi.so");
    assert!(library.is_file(), "{} is not built", library.display());
    library
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command that must succeed and returns its standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("output in UTF-8")
}

/// Compiles `tests/c/NAME.c` into `folder` with the further arguments.
fn compile(name: &str, folder: &Path, arguments: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(package().join("include"));
    cc.arg(package().join("tests/c").join(name).with_extension("c")).arg("-o").arg(&program).args(arguments);
    run(&mut cc);
    program
}

/// The version of this package as the library numbers it.
fn version() -> String {
    let part = |text: &str| text.parse::<u32>().expect("a number");
    let (major, minor) = (part(env!("CARGO_PKG_VERSION_MAJOR")), part(env!("CARGO_PKG_VERSION_MINOR")));
    format!("{}\n", major * 10_000 + minor * 100 + part(env!("CARGO_PKG_VERSION_PATCH")))
}

#[test]
fn a_c_program_links_the_library_by_its_soname() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile("version", folder.path(), &[library().to_str().expect("a path in UTF-8")]);
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library().parent().expect("a folder"));
    assert_eq!(run(&mut command), version());
    let dynamic = run(Command::new("readelf").arg("-d").arg(library()));
    assert!(dynamic.contains("[librccl_ffi.so]"), "no soname in {dynamic}");
}

#[test]
fn a_closed_library_stays_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile("dlopen", folder.path(), &["-ldl"]);
    assert_eq!(run(Command::new(program).arg(library())), version());
}

#[test]
fn a_c_program_reduces_and_hears_why_it_cannot() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library();
    let program =
        compile("all_reduce", folder.path(), &[library.to_str().expect("a path in UTF-8"), "-lpthread"]);
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library.parent().expect("a folder"));
    command.env("RCCL_LIBCUDA", "/nonexistent/libcuda.so.1").env("RCCL_SOCKET_IFNAME", "lo");
    assert_eq!(run(&mut command), "right\n");
}

#[test]
fn a_c_program_drives_the_nccl_plugin() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile("net", folder.path(), &["-g", "-fsanitize=address,undefined", "-ldl"]);
    for shm in ["0", "1"] {
        let mut command = Command::new(&program);
        // What stays for the life of the process (devices, helpers) is no leak.
        command.arg(library()).env("RCCL_NET_SHM", shm).env("ASAN_OPTIONS", "detect_leaks=0");
        assert_eq!(run(&mut command), "ok\n", "RCCL_NET_SHM={shm}");
    }
}

#[test]
fn only_our_names_are_exported() {
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let names: Vec<_> = symbols.lines().filter_map(|l| l.split_whitespace().last()).collect();
    assert!(names.contains(&"rccl_version") && names.contains(&"rccl_status_text"), "{names:?}");
    for version in 5..=12 {
        let table = format!("ncclNetPlugin_v{version}");
        assert!(names.contains(&&*table), "{table} is missing");
    }
    let foreign: Vec<_> =
        names.iter().filter(|n| !EXPORT_PREFIXES.iter().any(|p| n.starts_with(p))).collect();
    assert!(foreign.is_empty(), "exported: {foreign:?}");
}

#[test]
fn the_header_is_also_cpp() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut cc = Command::new("c++");
    cc.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]);
    let source = folder.path().join("empty.cpp");
    std::fs::write(
        &source,
        "#include \"rccl_ffi.h\"\nint main() { return rccl_version(nullptr) == RCCL_STATUS_SUCCESS; }\n",
    )
    .expect("a file");
    run(cc.arg("-I").arg(package().join("include")).arg(&source));
}
