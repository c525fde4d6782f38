//! Huge pages, for ordinary and for shared memory.

use serde::Serialize;

use super::tree::{Tree, chosen, field, kilobytes};

/// The machine's memory and the pages it comes in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// All of it, in bytes.
    pub(crate) total_bytes: u64,
    /// What a new program can have without swapping.
    pub(crate) available_bytes: u64,
    /// The control group's limit, if there is one.
    pub(crate) limit_bytes: Option<u64>,
    /// Transparent huge pages of private memory: "always", "madvise" or "never".
    pub(crate) transparent: Option<String>,
    /// Transparent huge pages of shared memory, which stations lie in: "always", "within_size", "advise", "never", ...
    pub(crate) transparent_shared: Option<String>,
    /// Pools of pages reserved for those who ask.
    pub(crate) reserved: Vec<Pool>,
}

/// A pool of reserved huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Pool {
    /// Bytes of a page.
    pub(crate) page_bytes: u64,
    /// Pages in the pool.
    pub(crate) pages: u64,
    /// Pages nobody has taken yet.
    pub(crate) free: u64,
}

pub(crate) fn read(tree: &Tree) -> Memory {
    let meminfo = tree.text("/proc/meminfo").unwrap_or_default();
    let bytes = |key| field(&meminfo, key).and_then(kilobytes).unwrap_or(0);
    let choice = |name: &str| {
        let text = tree.text(&format!("/sys/kernel/mm/transparent_hugepage/{name}"))?;
        chosen(&text).map(str::to_owned)
    };
    Memory {
        total_bytes: bytes("MemTotal"),
        available_bytes: bytes("MemAvailable"),
        limit_bytes: limit(tree),
        transparent: choice("enabled"),
        transparent_shared: choice("shmem_enabled"),
        reserved: pools(tree),
    }
}

/// The smallest limit between this process's control group and the root of the hierarchy it can see (version 2 only).
fn limit(tree: &Tree) -> Option<u64> {
    let groups = tree.text("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end_matches('/');
    let mut limits = Vec::new();
    let mut rest = path;
    loop {
        limits.extend(tree.number::<u64>(&format!("/sys/fs/cgroup{rest}/memory.max")));
        match rest.rfind('/') {
            Some(slash) => rest = &rest[..slash],
            None => return limits.into_iter().min(),
        }
    }
}

fn pools(tree: &Tree) -> Vec<Pool> {
    let directory = "/sys/kernel/mm/hugepages";
    let mut pools: Vec<Pool> = tree
        .names(directory)
        .iter()
        .filter_map(|name| {
            let page_bytes = kilobytes(name.strip_prefix("hugepages-")?)?;
            let number = |file: &str| tree.number(&format!("{directory}/{name}/{file}")).unwrap_or(0);
            Some(Pool { page_bytes, pages: number("nr_hugepages"), free: number("free_hugepages") })
        })
        .collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}
