//! Runs the commands that README.md shows, so that they stay true.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::steps::{LIMIT, cargo};
use crate::{Result, command};

/// The line that marks the `sh` block after it as one to run: it needs no GPU.
const MARK: &str = "<!-- ci -->";

/// Longest that one block may run.
const BLOCK_LIMIT: Duration = Duration::from_secs(10 * 60);

/// One marked block.
#[derive(Debug, PartialEq)]
struct Block {
    /// The line of README.md on which the commands begin, from 1.
    line: usize,
    script: String,
}

/// Runs every marked block by `bash -euo pipefail` in the root of the workspace, with the `rccl` command just built
/// in the path.
pub(super) fn run(root: &Path) -> Result {
    let path = root.join("README.md");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let blocks = marked_blocks(&text)?;
    if blocks.is_empty() {
        return Err(
            format!("README.md marks no block to run: put the line {MARK} before a ```sh block").into()
        );
    }
    command::run(&mut cargo(root, &["build", "--locked", "--bins"]), LIMIT)?;
    let mut folders = vec![binaries(root)?];
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let search = env::join_paths(folders)?;
    for block in blocks {
        println!("-- README.md:{}\n{}", block.line, block.script.trim_end());
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &block.script]).current_dir(root).env("PATH", &search);
        // The flags of the other steps, so that a `cargo run` shown to readers finds everything built.
        shell.envs(cargo(root, &[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
        command::run(&mut shell, BLOCK_LIMIT).map_err(|e| format!("README.md:{}: {e}", block.line))?;
    }
    Ok(())
}

/// The folder of the commands that a debug build makes.
fn binaries(root: &Path) -> Result<PathBuf> {
    let mut metadata = cargo(root, &["metadata", "--locked", "--no-deps", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&command::output(&mut metadata, LIMIT)?)?;
    let target = metadata["target_directory"].as_str().ok_or("cargo metadata names no target_directory")?;
    Ok(Path::new(target).join("debug"))
}

/// The `sh` blocks that follow a mark; a mark without one is an error, so that none is lost by a slip.
fn marked_blocks(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        if line.trim() != MARK {
            continue;
        }
        if lines.next().is_none_or(|(fence, _)| fence.trim() != "```sh") {
            return Err(format!("README.md:{number}: {MARK} must stand right before a ```sh block").into());
        }
        let mut script = String::new();
        loop {
            match lines.next() {
                Some((end, _)) if end.trim() == "```" => break,
                Some((command, _)) => {
                    script.push_str(command);
                    script.push('\n');
                }
                None => return Err(format!("README.md:{number}: the block after {MARK} does not end").into()),
            }
        }
        blocks.push(Block { line: number + 2, script });
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_blocks_are_taken() {
        let text = "# x\n```sh\nno\n```\n<!-- ci -->\n```sh\none\ntwo\n```\n<!-- ci -->\n```sh\nthree\n```\n";
        let blocks = marked_blocks(text).unwrap();
        assert_eq!(
            blocks,
            [Block { line: 7, script: "one\ntwo\n".into() }, Block { line: 12, script: "three\n".into() }]
        );
    }

    #[test]
    fn a_mark_without_its_block_is_an_error() {
        for text in ["<!-- ci -->\n\n```sh\nx\n```\n", "<!-- ci -->", "<!-- ci -->\n```sh\nx\n"] {
            let error = marked_blocks(text).unwrap_err().to_string();
            assert!(error.starts_with("README.md:1: "), "{error}");
        }
    }
}
