//! Reading the kernel's text files, from the real root or from a copy of another machine's.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A directory that looks like `/`: the machine itself, or files captured from one.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// This machine.
    pub(crate) fn machine() -> Self {
        Self::at("/")
    }

    /// The tree below `root`.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The real place of `path`, which is absolute in the tree.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file without surrounding white space. Files that are absent or that the kernel refuses to read (the
    /// speed of an interface that is down, for one) are `None`.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub(crate) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(self.path(path)).ok()
    }

    /// The number in a file.
    pub(crate) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; none if there is no such directory.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The last component of what a symbolic link points to.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Where a path leads once all symbolic links are followed, absolute in the tree.
    pub(crate) fn resolved(&self, path: &str) -> Option<String> {
        let root = fs::canonicalize(&self.root).ok()?;
        let full = fs::canonicalize(self.path(path)).ok()?;
        Some(Path::new("/").join(full.strip_prefix(root).ok()?).to_string_lossy().into_owned())
    }
}

/// The numbers of a kernel list such as `0-3,8,10-11`. Parts that make no sense are left out.
pub(crate) fn cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        // A kernel has at most 8192 CPUs; a longer range is not a CPU list.
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>())
            && last.checked_sub(first).is_some_and(|more| more < 8192)
        {
            cpus.extend(first..=last);
        }
    }
    cpus
}

/// The choice that a kernel file marks among several: `madvise` in `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(choice, _)| choice)
}

/// The value after `key` and a colon in a file of such lines (`/proc/cpuinfo`, `/proc/meminfo`, `/proc/self/status`).
pub(crate) fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// Bytes in a field such as `24689064 kB`.
pub(crate) fn kilobytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cpu_list(""), [0u32; 0]);
        assert_eq!(cpu_list("7,junk,3-1,0-4000000000"), [7]);
    }

    #[test]
    fn choices_and_fields() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("0"), None);
        let text = "MemTotal:       24689064 kB\nModel name\t: x : y\n";
        assert_eq!(field(text, "MemTotal").and_then(kilobytes), Some(24_689_064 * 1024));
        assert_eq!(field(text, "Model name"), Some("x : y"));
        assert_eq!(field(text, "Model"), None);
    }

    #[test]
    fn a_tree_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::at(directory.path());
        fs::create_dir_all(tree.path("/sys/a")).unwrap();
        fs::write(tree.path("/sys/a/mtu"), "1500\n").unwrap();
        std::os::unix::fs::symlink("a", tree.path("/sys/b")).unwrap();
        assert_eq!(tree.number::<u32>("/sys/b/mtu"), Some(1500));
        assert_eq!(tree.names("/sys"), ["a", "b"]);
        assert_eq!(tree.link_name("/sys/b").as_deref(), Some("a"));
        assert_eq!(tree.resolved("/sys/b").as_deref(), Some("/sys/a"));
        assert_eq!(tree.text("/sys/none"), None);
    }
}
