//! Checks of the tree itself: who depends on whom, how long files are, what names they hold.

use std::{fs, path::Path, process::Command};

use super::steps::{LIMIT, cargo};
use crate::{Result, command};

/// A package, how it is resolved, and the packages that must not be among its dependencies.
struct Rule {
    package: &'static str,
    arguments: &'static [&'static str],
    forbidden: &'static [&'static str],
}

const COMMAND_LINE: &[&str] =
    &["clap", "clap_complete", "comfy-table", "csv", "indicatif", "tracing-subscriber"];

/// The dependency rule of ARCHITECTURE.md.
const RULES: &[Rule] = &[
    Rule {
        package: "rccl-core",
        arguments: &[],
        forbidden: &[
            "rccl-transport",
            "rccl",
            "rccl-ffi",
            "libc",
            "rustix",
            "getrandom",
            "crossbeam",
            "tracing",
        ],
    },
    Rule { package: "rccl-transport", arguments: &[], forbidden: &["rccl", "rccl-ffi"] },
    Rule { package: "rccl", arguments: &[], forbidden: &["rccl-ffi"] },
    Rule { package: "rccl", arguments: &["--no-default-features"], forbidden: COMMAND_LINE },
    Rule { package: "rccl-ffi", arguments: &[], forbidden: COMMAND_LINE },
];

/// Every rule holds.
pub(super) fn dependencies(root: &Path) -> Result {
    for rule in RULES {
        let mut arguments =
            vec!["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
        arguments.extend(["--package", rule.package]);
        arguments.extend(rule.arguments);
        let tree = command::output(&mut cargo(root, &arguments), LIMIT)?;
        let found = forbidden_in(&tree, rule.forbidden);
        let what = format!("{} {}", rule.package, rule.arguments.join(" "));
        if !found.is_empty() {
            return Err(format!("{} must not depend on {}", what.trim_end(), found.join(", ")).into());
        }
        println!("{}: none of {}", what.trim_end(), rule.forbidden.join(", "));
    }
    Ok(())
}

/// Which of `forbidden` the output of `cargo tree` names. The first line is the package itself.
fn forbidden_in<'a>(tree: &str, forbidden: &[&'a str]) -> Vec<&'a str> {
    let used: Vec<_> = tree.lines().skip(1).filter_map(|l| l.split_whitespace().next()).collect();
    forbidden.iter().copied().filter(|name| used.contains(name)).collect()
}

/// Lines of code above which a file is listed.
const LONG_FILE_LINES: usize = 500;

/// Lists the Rust files that have grown long: a hint to the reader, not a failure.
pub(super) fn lengths(root: &Path) -> Result {
    let mut long = 0;
    for path in tracked(root)?.iter().filter(|p| p.ends_with(".rs")) {
        let lines = code_lines(&fs::read_to_string(root.join(path))?);
        if lines > LONG_FILE_LINES {
            println!("{path}: {lines} lines of code");
            long += 1;
        }
    }
    println!("{long} files of more than {LONG_FILE_LINES} lines of code");
    Ok(())
}

/// Lines that are neither blank nor a comment alone.
fn code_lines(source: &str) -> usize {
    source.lines().map(str::trim_start).filter(|l| !l.is_empty() && !l.starts_with("//")).count()
}

/// Hosts of package registries, written so that this file does not name them.
const HOSTS: &[&str] = &[
    concat!("py", "pi.org"),
    concat!("python", "hosted.org"),
    concat!("deb.", "debian.org"),
    concat!("static.", "crates.io"),
    concat!("index.", "crates.io"),
    concat!("registry.", "npmjs.org"),
];

/// Absolute folders that exist on one person's machine only.
const FOLDERS: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/Use", "rs/")];

/// No tracked file names a registry host or a local path.
pub(super) fn names(root: &Path) -> Result {
    let mut found = Vec::new();
    let paths = tracked(root)?;
    for path in paths.iter().filter(|p| !p.ends_with("Cargo.lock")) {
        // What is not text (pictures, compiled kernels) has no names to check; a removed file neither.
        let Ok(source) = fs::read_to_string(root.join(path)) else { continue };
        for (index, line) in source.lines().enumerate() {
            if let Some(name) = local_name(line) {
                found.push(format!("{path}:{}: names {name}", index + 1));
            }
        }
    }
    if found.is_empty() {
        println!("{} files name no registry host and no local path", paths.len());
        return Ok(());
    }
    Err(found.join("\n").into())
}

/// The registry host or local folder that `line` names.
fn local_name(line: &str) -> Option<&'static str> {
    let host = HOSTS.iter().copied().find(|h| line.contains(h));
    // A folder counts only where an absolute path begins: `net/work/` is none.
    let begins = |f: &&str| {
        line.match_indices(*f).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || "._-/}~*".contains(c))
        })
    };
    host.or_else(|| FOLDERS.iter().copied().find(begins))
}

/// The paths of all files under version control.
fn tracked(root: &Path) -> Result<Vec<String>> {
    let list = command::output(Command::new("git").args(["ls-files", "-z"]).current_dir(root), LIMIT)?;
    Ok(list.trim_end().split('\0').filter(|p| !p.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_dependency_is_found_by_its_whole_name() {
        let tree = "rccl v0.1.0 (/x)\nrccl-core v0.1.0 (/x/core)\nclap_lex v1.0.0\nlibc v0.2.1\n";
        assert_eq!(forbidden_in(tree, &["libc", "clap", "rccl"]), ["libc"]);
    }

    #[test]
    fn comments_and_blank_lines_are_not_code() {
        assert_eq!(code_lines("//! a\n\n/// b\nfn f() {\n    // c\n    g(); // d\n}\n"), 3);
    }

    #[test]
    fn local_names_are_found_where_a_path_begins() {
        let folder = FOLDERS[2];
        assert_eq!(local_name(&format!("see {folder}main")), Some(folder));
        assert_eq!(local_name(&format!("see net{folder}main")), None);
        assert_eq!(local_name(&format!("from {}", HOSTS[0])), Some(HOSTS[0]));
        assert_eq!(local_name("nothing here"), None);
    }
}
