//! Shared memory, huge pages, memory nodes.

use super::{Check, facts::Facts};
use crate::size;

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![shared_memory(facts), futex(facts), huge_pages(facts), available(facts)];
    checks.extend(odd_nodes(facts));
    checks
}

fn shared_memory(facts: &Facts) -> Check {
    let name = "shared memory";
    match &facts.shared_memory {
        Ok(()) => Check::ok(name, "memory without a file works (no /dev/shm needed)"),
        Err(error) => Check::fail(
            name,
            error.clone(),
            "allow memfd_create in the container's seccomp profile, or name a directory that ranks share in RCCL_SHM_DIR",
        ),
    }
}

fn futex(facts: &Facts) -> Check {
    let name = "waking";
    match &facts.futex {
        Ok(()) => Check::ok(name, "a waiter is woken across mappings"),
        Err(error) => Check::fail(
            name,
            error.clone(),
            "use --transport tcp; the sandbox or kernel breaks shared futexes",
        ),
    }
}

fn huge_pages(facts: &Facts) -> Check {
    let name = "huge pages";
    let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    match facts.machine.memory.transparent_shared.as_deref() {
        Some(choice @ ("always" | "within_size" | "advise" | "force")) => {
            Check::ok(name, format!("shared memory can have them ({choice})"))
        }
        Some(choice) => Check::warn(
            name,
            format!(
                "shared memory gets none ({choice}): large transfers spend more time on address translation"
            ),
            format!("as root on the host: echo advise > {file}"),
        ),
        None => Check::warn(
            name,
            "this kernel has none for shared memory",
            "use a kernel built with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
    }
}

fn available(facts: &Facts) -> Check {
    let name = "memory";
    let memory = &facts.machine.memory;
    let free = memory.available_bytes.min(memory.limit_bytes.unwrap_or(u64::MAX));
    // Stations of a rank, generously.
    let needed = u64::from(facts.ranks) * (64 << 20);
    if free < needed {
        return Check::warn(
            name,
            format!(
                "{} available, {} ranks may want {}",
                size::human(free),
                facts.ranks,
                size::human(needed)
            ),
            "free memory, raise the container's limit, or run fewer ranks",
        );
    }
    Check::ok(name, format!("{} available", size::human(free)))
}

/// Memory without processors (GPUs' or expanders' memory shown as a node) misleads programs that spread over nodes.
fn odd_nodes(facts: &Facts) -> Option<Check> {
    let odd: Vec<String> = facts
        .machine
        .numa_nodes
        .iter()
        .filter(|node| node.cpus.is_empty() && node.memory_bytes > 0)
        .map(|node| node.node.to_string())
        .collect();
    (!odd.is_empty()).then(|| {
        Check::warn(
            "memory nodes",
            format!(
                "node {} has memory but no CPUs; host buffers there are slow or cannot be registered",
                odd.join(", ")
            ),
            "bind programs to a node with CPUs: numactl --cpunodebind=0 --membind=0",
        )
    })
}
