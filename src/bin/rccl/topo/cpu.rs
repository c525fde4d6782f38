//! Processors, their caches, and the memory nodes they belong to.

use std::collections::BTreeSet;

use serde::Serialize;

use super::tree::{Tree, cpu_list, field, kilobytes};

/// The processors as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Cpu {
    /// The model's name.
    pub(crate) model: String,
    /// Processor packages.
    pub(crate) sockets: usize,
    /// Cores that run instructions of their own.
    pub(crate) cores: usize,
    /// What the kernel schedules on: threads of cores.
    pub(crate) threads: usize,
    /// Threads this process may use, after affinity and the control group's quota.
    pub(crate) usable: usize,
    /// Its caches.
    pub(crate) caches: Vec<Cache>,
}

/// All caches of one level and kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Cache {
    /// 1 is nearest to the core.
    pub(crate) level: u32,
    /// "Data", "Instruction" or "Unified".
    pub(crate) kind: String,
    /// Bytes of one of them.
    pub(crate) bytes: u64,
    /// How many the machine has.
    pub(crate) instances: usize,
}

/// A part of the memory, and the processors nearest to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Node {
    /// The kernel's number for it.
    pub(crate) node: u32,
    /// The threads that belong to it, as the kernel lists them.
    pub(crate) cpus: String,
    /// Bytes of memory.
    pub(crate) memory_bytes: u64,
}

pub(crate) fn read(tree: &Tree, usable: usize) -> Cpu {
    let cpuinfo = tree.text("/proc/cpuinfo").unwrap_or_default();
    let online = cpu_list(&tree.text("/sys/devices/system/cpu/online").unwrap_or_default());
    let number = |cpu: u32, name: &str| {
        tree.number::<i64>(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}")).unwrap_or(0)
    };
    let sockets: BTreeSet<i64> = online.iter().map(|&cpu| number(cpu, "physical_package_id")).collect();
    let cores: BTreeSet<(i64, i64, i64)> = online
        .iter()
        .map(|&cpu| (number(cpu, "physical_package_id"), number(cpu, "die_id"), number(cpu, "core_id")))
        .collect();
    // ARM kernels give no model name.
    let model =
        field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "Model")).unwrap_or(std::env::consts::ARCH);
    Cpu {
        model: model.to_owned(),
        sockets: sockets.len(),
        cores: cores.len(),
        threads: online.len(),
        usable,
        caches: caches(tree, &online),
    }
}

fn caches(tree: &Tree, online: &[u32]) -> Vec<Cache> {
    let mut seen = BTreeSet::new();
    let mut caches: Vec<Cache> = Vec::new();
    for cpu in online {
        let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
        for index in tree.names(&directory).iter().filter(|name| name.starts_with("index")) {
            let text = |name: &str| tree.text(&format!("{directory}/{index}/{name}")).unwrap_or_default();
            let (Ok(level), kind) = (text("level").parse(), text("type")) else { continue };
            let Some(bytes) = text("size").strip_suffix('K').and_then(|k| k.parse::<u64>().ok()) else {
                continue;
            };
            // Each thread that shares a cache lists it; the list of the sharers names it.
            if !seen.insert((level, kind.clone(), text("shared_cpu_list"))) {
                continue;
            }
            match caches.iter_mut().find(|cache| (cache.level, &cache.kind) == (level, &kind)) {
                Some(cache) => cache.instances += 1,
                None => caches.push(Cache { level, kind, bytes: bytes * 1024, instances: 1 }),
            }
        }
    }
    caches
}

pub(crate) fn nodes(tree: &Tree) -> Vec<Node> {
    let directory = "/sys/devices/system/node";
    let mut nodes: Vec<Node> = tree
        .names(directory)
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .map(|node: u32| Node {
            node,
            cpus: tree.text(&format!("{directory}/node{node}/cpulist")).unwrap_or_default(),
            memory_bytes: tree
                .text(&format!("{directory}/node{node}/meminfo"))
                .and_then(|text| field(&text, &format!("Node {node} MemTotal")).and_then(kilobytes))
                .unwrap_or(0),
        })
        .collect();
    nodes.sort_by_key(|node| node.node);
    nodes
}
