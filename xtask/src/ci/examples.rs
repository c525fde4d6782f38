//! Runs the examples that need no GPU.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::steps::{LIMIT, cargo};
use crate::{Result, command};

/// Longest that one example may run.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(120);

/// What the module documentation of an example says where it cannot run on the host alone.
const NEEDS_GPU: &str = "needs a gpu";

/// Builds all examples, then runs each that needs no GPU: it must print something and exit with 0.
pub(super) fn run(root: &Path) -> Result {
    let sources = sources(&root.join("examples"))?;
    if sources.is_empty() {
        return Err("examples/ holds no example".into());
    }
    command::run(&mut cargo(root, &["build", "--locked", "--examples"]), LIMIT)?;
    for (name, path) in sources {
        if needs_gpu(&fs::read_to_string(&path)?) {
            println!("-- example {name}: needs a GPU, not run");
            continue;
        }
        println!("-- example {name}");
        let mut example = cargo(root, &["run", "--quiet", "--locked", "--example", &name]);
        if command::output_shown(&mut example, EXAMPLE_LIMIT)?.trim().is_empty() {
            return Err(format!("example {name} printed nothing").into());
        }
    }
    Ok(())
}

/// Names and main files, as cargo discovers them: `NAME.rs` and `NAME/main.rs`, sorted by name.
fn sources(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|s| s.to_str()).map(str::to_owned) else { continue };
        if path.extension().is_some_and(|e| e == "rs") {
            found.push((name, path));
        } else if path.join("main.rs").is_file() {
            found.push((name, path.join("main.rs")));
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the `//!` lines at the head say so.
fn needs_gpu(source: &str) -> bool {
    let head: Vec<_> = source.lines().take_while(|l| l.starts_with("//!")).collect();
    head.join(" ").to_lowercase().contains(NEEDS_GPU)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_head_says_what_an_example_needs() {
        assert!(needs_gpu("//! Streams.\n//! Needs a GPU.\nfn main() {}"));
        assert!(!needs_gpu("//! On the host.\nfn main() {} // needs a GPU"));
    }

    #[test]
    fn examples_are_found_as_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b.rs"), "").unwrap();
        fs::write(folder.path().join("notes.md"), "").unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/main.rs"), "").unwrap();
        let names: Vec<_> = sources(folder.path()).unwrap().into_iter().map(|s| s.0).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(sources(&folder.path().join("absent")).is_err());
    }
}
