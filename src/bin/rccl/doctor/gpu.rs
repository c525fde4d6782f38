//! GPUs on the PCI bus and what stands between them. Nothing is said where there are none.

use super::{Check, facts::Facts};
use crate::topo::pci::Gpu;

/// Bits of the access control services that send transfers between devices up to the root: request, completion and
/// upstream forwarding redirection.
const REDIRECT_BITS: u16 = 0x1c;

/// Driver branches in which peer-to-peer between GeForce cards was reported to hang collectives.
const BAD_BRANCHES: [&str; 2] = ["545", "560"];

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let gpus = &facts.machine.gpus;
    if gpus.is_empty() {
        return Vec::new();
    }
    let mut checks = vec![driver(facts), links(gpus)];
    checks.extend(mixed(gpus));
    if gpus.len() > 1 {
        checks.push(address_translation(facts));
        checks.extend(redirection(facts));
    }
    checks
}

fn driver(facts: &Facts) -> Check {
    let name = "NVIDIA driver";
    let gpus = &facts.machine.gpus;
    let unbound = gpus.iter().filter(|gpu| gpu.driver.as_deref() != Some("nvidia")).count();
    match &facts.machine.host.nvidia_driver {
        None => Check::warn(
            name,
            format!("not loaded, {} GPU(s) on the bus", gpus.len()),
            "install it (containers: --gpus all with the NVIDIA container toolkit); host buffers work without",
        ),
        Some(version) if BAD_BRANCHES.iter().any(|branch| version.starts_with(branch)) => Check::warn(
            name,
            format!("{version}: peer-to-peer in this branch was reported to hang"),
            "use branch 570 or later; rccl itself trusts peer-to-peer only after checking it",
        ),
        Some(version) if unbound > 0 => Check::warn(
            name,
            format!("{version}, but {unbound} of {} GPU(s) are bound to something else", gpus.len()),
            "see `rccl topo`; devices given to virtual machines (vfio-pci) cannot be used here",
        ),
        Some(version) => Check::ok(name, format!("{version}, {} GPU(s)", gpus.len())),
    }
}

fn links(gpus: &[Gpu]) -> Check {
    let name = "GPU links";
    let mut narrow = Vec::new();
    let mut slow = Vec::new();
    for gpu in gpus {
        if let (Some(now), Some(best)) = (gpu.link, gpu.link_max) {
            if now.lanes < best.lanes {
                narrow.push(format!("{} has {} of {} lanes", gpu.address, now.lanes, best.lanes));
            } else if now.gigatransfers < best.gigatransfers {
                slow.push(gpu.address.clone());
            }
        }
    }
    if !narrow.is_empty() {
        return Check::warn(
            name,
            narrow.join(", "),
            "reseat the card or riser, or use a slot with all lanes (slots share lanes with others; chipset slots have 4)",
        );
    }
    let mut found =
        format!("all lanes of {} GPU(s) in use", gpus.iter().filter(|gpu| gpu.link.is_some()).count());
    if !slow.is_empty() {
        // Idle links slow down to save power, so this alone is no fault.
        found.push_str(&format!("; {} at reduced speed now, as idle links are", slow.join(", ")));
    }
    Check::ok(name, found)
}

fn mixed(gpus: &[Gpu]) -> Option<Check> {
    let mut devices: Vec<&str> = gpus.iter().map(|gpu| gpu.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    (devices.len() > 1).then(|| {
        Check::ok("GPU models", format!("{} different ones: the slowest sets the pace", devices.len()))
    })
}

fn address_translation(facts: &Facts) -> Check {
    let name = "IOMMU";
    let host = &facts.machine.host;
    let translating = host.iommu_types.iter().any(|kind| kind.starts_with("DMA"));
    let fix = "where nothing else needs it: iommu=pt (or amd_iommu=off, intel_iommu=off) on the kernel's command line. \
               The relay through host memory is not affected; other libraries that trust peer-to-peer hang or corrupt \
               data (NCCL_P2P_DISABLE=1 helps them)";
    if translating {
        return Check::warn(
            name,
            format!(
                "translates device addresses ({}): peer-to-peer between GPUs is slow or broken",
                host.iommu_types.join(", ")
            ),
            fix,
        );
    }
    if host.hypervisor.is_some() {
        return Check::ok(
            name,
            "decided by the hypervisor; peer-to-peer between passed-through GPUs is often claimed, seldom works",
        );
    }
    Check::ok(name, if host.iommus.is_empty() { "off" } else { "passes device addresses through" })
}

fn redirection(facts: &Facts) -> Option<Check> {
    let name = "PCI redirection (ACS)";
    if facts.access_control.is_empty() {
        return None;
    }
    let redirecting: Vec<&str> = facts
        .access_control
        .iter()
        .filter(|(_, bits)| bits.is_some_and(|bits| bits & REDIRECT_BITS != 0))
        .map(|(bridge, _)| bridge.as_str())
        .collect();
    if !redirecting.is_empty() {
        let commands: Vec<String> =
            redirecting.iter().map(|bridge| format!("setpci -s {bridge} ECAP_ACS+6.w=0000")).collect();
        return Some(Check::warn(
            name,
            format!(
                "on at {}: transfers between GPUs take the way over the root, or hang",
                redirecting.join(", ")
            ),
            format!("switch ACS off in the firmware, or as root: {}", commands.join("; ")),
        ));
    }
    if facts.access_control.iter().any(|(_, bits)| bits.is_none()) {
        return Some(Check::ok(name, "not visible without root; run `sudo rccl doctor` to see it"));
    }
    Some(Check::ok(name, "off at all bridges above GPUs"))
}
