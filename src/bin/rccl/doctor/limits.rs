//! What the process may use: descriptors, locked memory, processors.

use super::{Check, facts::Facts};
use crate::size;

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    vec![descriptors(facts), locked_memory(facts), processors(facts), instructions(facts)]
}

/// Descriptors a rank needs: two channels each way to every other rank, stations, and what the program itself has open.
fn descriptors_needed(ranks: u32) -> u64 {
    64 + 8 * u64::from(ranks)
}

fn descriptors(facts: &Facts) -> Check {
    let name = "open files";
    let needed = descriptors_needed(facts.ranks);
    match facts.descriptors {
        None => Check::ok(name, "no limit"),
        Some(limit) if limit < needed => Check::fail(
            name,
            format!("at most {limit}, and {} ranks need about {needed} each", facts.ranks),
            "raise it with `ulimit -n 65536` (containers: --ulimit nofile=65536)",
        ),
        // Ranks of other machines count too, and programs open many files of their own.
        Some(limit) if limit < 4096 => Check::warn(
            name,
            format!("at most {limit}: enough for {} ranks here, not for large groups", facts.ranks),
            "raise it with `ulimit -n 65536` (containers: --ulimit nofile=65536)",
        ),
        Some(limit) => Check::ok(name, format!("at most {limit}")),
    }
}

pub(super) fn locked_memory(facts: &Facts) -> Check {
    let name = "locked memory";
    // What two stations of the usual size and their messages take.
    let wanted = 64 << 20;
    match facts.locked_bytes {
        None => Check::ok(name, "no limit"),
        Some(limit) if limit < wanted && !facts.machine.rdma.is_empty() => Check::warn(
            name,
            format!("at most {}, but RDMA adapters register memory by locking it", size::human(limit)),
            "raise it with `ulimit -l unlimited` (containers: --ulimit memlock=-1; also within mpirun and systemd units)",
        ),
        Some(limit) => {
            let why = if facts.machine.rdma.is_empty() {
                " (only RDMA needs more; there is none here)"
            } else {
                ""
            };
            Check::ok(name, format!("at most {}{why}", size::human(limit)))
        }
    }
}

fn processors(facts: &Facts) -> Check {
    let name = "processors";
    let cpu = &facts.machine.cpu;
    let usable = format!("{} of {} threads usable, {} ranks", cpu.usable, cpu.threads, facts.ranks);
    if (cpu.usable as u64) < u64::from(facts.ranks) {
        return Check::warn(
            name,
            format!("{usable}: ranks must take turns, which costs a scheduling delay at every step"),
            "run fewer ranks, or give this process more CPUs (affinity, `--cpus` of the container)",
        );
    }
    Check::ok(name, usable)
}

fn instructions(facts: &Facts) -> Check {
    let name = "instruction sets";
    let list = facts.instructions.join(", ");
    if facts.instructions.iter().any(|it| ["AVX-512", "AVX2", "NEON"].contains(it)) {
        return Check::ok(name, format!("{list} for reductions"));
    }
    let found = if list.is_empty() { "none".to_owned() } else { list };
    Check::warn(
        name,
        format!("{found}: the processor adds without wide vectors"),
        "in a virtual machine, pass the host's processor model through (QEMU: -cpu host)",
    )
}
