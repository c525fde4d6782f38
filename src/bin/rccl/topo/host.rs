//! What kind of machine this is: bare, virtual, a container, WSL; which drivers are loaded.

use serde::Serialize;

use super::tree::{Tree, field};

/// The system as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Host {
    /// The kernel's release.
    pub(crate) kernel: String,
    /// Maker and product, as the firmware says.
    pub(crate) product: Option<String>,
    /// The hypervisor, where the machine is virtual.
    pub(crate) hypervisor: Option<String>,
    /// The kind of container this process runs in.
    pub(crate) container: Option<String>,
    /// The version of the NVIDIA driver, where it is loaded.
    pub(crate) nvidia_driver: Option<String>,
    /// Units that translate addresses of devices; none where that is switched off.
    pub(crate) iommus: Vec<String>,
    /// How they translate: the types of the groups of devices ("DMA", "DMA-FQ", "identity").
    pub(crate) iommu_types: Vec<String>,
}

pub(crate) fn read(tree: &Tree) -> Host {
    let dmi = |name: &str| tree.text(&format!("/sys/class/dmi/id/{name}")).filter(|text| !text.is_empty());
    let kernel = tree.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let product = match (dmi("sys_vendor"), dmi("product_name")) {
        (Some(vendor), Some(product)) => Some(format!("{vendor} {product}")),
        (vendor, product) => vendor.or(product),
    };
    let flags = tree.text("/proc/cpuinfo").unwrap_or_default();
    let virtual_cpu = field(&flags, "flags").is_some_and(|it| it.split(' ').any(|flag| flag == "hypervisor"));
    Host {
        hypervisor: hypervisor(&kernel, product.as_deref().unwrap_or_default(), virtual_cpu),
        container: container(tree),
        nvidia_driver: nvidia_driver(tree),
        iommus: tree.names("/sys/class/iommu"),
        iommu_types: iommu_types(tree),
        kernel,
        product,
    }
}

/// The hypervisor's name from what it leaves in the kernel's release, the firmware's strings and the processor's flags.
fn hypervisor(kernel: &str, product: &str, virtual_cpu: bool) -> Option<String> {
    let kernel = kernel.to_ascii_lowercase();
    if kernel.contains("microsoft") || kernel.contains("wsl") {
        return Some("WSL".to_owned());
    }
    let known = [
        ("QEMU", "QEMU/KVM"),
        ("KVM", "KVM"),
        ("VMware", "VMware"),
        ("VirtualBox", "VirtualBox"),
        ("Xen", "Xen"),
        ("Microsoft Corporation Virtual", "Hyper-V"),
        ("Amazon EC2", "EC2"),
        ("Google", "Google Compute Engine"),
        ("OpenStack", "OpenStack"),
    ];
    // Cloud providers' bare machines carry their names too, so the processor's flag decides.
    virtual_cpu.then(|| {
        let name = known.iter().find(|(mark, _)| product.contains(mark)).map_or("unknown", |(_, name)| name);
        name.to_owned()
    })
}

fn container(tree: &Tree) -> Option<String> {
    if tree.exists("/.dockerenv") {
        return Some("docker".to_owned());
    }
    if tree.exists("/run/.containerenv") {
        return Some("podman".to_owned());
    }
    let groups = tree.text("/proc/1/cgroup").unwrap_or_default();
    let marks = [
        ("kubepods", "kubernetes"),
        ("docker", "docker"),
        ("containerd", "containerd"),
        ("libpod", "podman"),
        ("/lxc", "lxc"),
        ("machine.slice", "systemd-nspawn"),
    ];
    marks.iter().find(|(mark, _)| groups.contains(mark)).map(|(_, name)| (*name).to_owned())
}

fn nvidia_driver(tree: &Tree) -> Option<String> {
    tree.text("/sys/module/nvidia/version").or_else(|| {
        // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build ..."
        let text = tree.text("/proc/driver/nvidia/version")?;
        let is_version =
            |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
        text.split_whitespace().find(is_version).map(str::to_owned)
    })
}

fn iommu_types(tree: &Tree) -> Vec<String> {
    let groups = "/sys/kernel/iommu_groups";
    let mut types: Vec<String> =
        tree.names(groups).iter().filter_map(|group| tree.text(&format!("{groups}/{group}/type"))).collect();
    types.sort();
    types.dedup();
    types
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hypervisors() {
        let name = |kernel, product, flag| hypervisor(kernel, product, flag);
        assert_eq!(name("5.15.90.1-microsoft-standard-WSL2", "", true).as_deref(), Some("WSL"));
        assert_eq!(name("6.8.0", "QEMU Standard PC (Q35 + ICH9, 2009)", true).as_deref(), Some("QEMU/KVM"));
        assert_eq!(name("6.8.0", "ASUS Pro WS WRX90E-SAGE SE", false), None);
        assert_eq!(name("6.8.0", "Amazon EC2 g6e.metal", false), None);
        assert_eq!(name("6.8.0", "", true).as_deref(), Some("unknown"));
    }
}
