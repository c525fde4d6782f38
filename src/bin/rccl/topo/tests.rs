//! The parsers on files as real machines have them.

use std::{fs, os::unix::fs::symlink};

use super::{
    Machine,
    net::{Address, Kind},
    render,
    tree::Tree,
};

/// Files and links of a tree: `(path, text)`; a text that starts with `->` is the target of a link.
fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
    let directory = tempfile::tempdir().unwrap();
    let tree = Tree::at(directory.path());
    for (path, text) in files {
        let path = tree.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match text.strip_prefix("->") {
            Some(target) => symlink(target, path).unwrap(),
            None => fs::write(path, text).unwrap(),
        }
    }
    (directory, tree)
}

const CPUINFO: &str = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9354 32-Core Processor\n\
                       flags\t\t: fpu vme avx2 avx512f\n";

fn two_sockets() -> Vec<(&'static str, &'static str)> {
    vec![
        ("/proc/cpuinfo", CPUINFO),
        ("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
        (
            "/proc/meminfo",
            "MemTotal:       24689064 kB\nMemFree:         9000000 kB\nMemAvailable:   20000000 kB\n",
        ),
        ("/proc/self/cgroup", "0::/a/b\n"),
        ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
        ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
        ("/proc/1/cgroup", "12:memory:/kubepods/burstable/pod1\n0::/\n"),
        ("/sys/devices/system/cpu/online", "0-3\n"),
        ("/sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
        ("/sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
        ("/sys/devices/system/cpu/cpu1/topology/physical_package_id", "1\n"),
        ("/sys/devices/system/cpu/cpu1/topology/core_id", "0\n"),
        ("/sys/devices/system/cpu/cpu2/topology/physical_package_id", "0\n"),
        ("/sys/devices/system/cpu/cpu2/topology/core_id", "0\n"),
        ("/sys/devices/system/cpu/cpu3/topology/physical_package_id", "1\n"),
        ("/sys/devices/system/cpu/cpu3/topology/core_id", "0\n"),
        ("/sys/devices/system/cpu/cpu0/cache/index3/level", "3\n"),
        ("/sys/devices/system/cpu/cpu0/cache/index3/type", "Unified\n"),
        ("/sys/devices/system/cpu/cpu0/cache/index3/size", "32768K\n"),
        ("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "0,2\n"),
        ("/sys/devices/system/cpu/cpu2/cache/index3/level", "3\n"),
        ("/sys/devices/system/cpu/cpu2/cache/index3/type", "Unified\n"),
        ("/sys/devices/system/cpu/cpu2/cache/index3/size", "32768K\n"),
        ("/sys/devices/system/cpu/cpu2/cache/index3/shared_cpu_list", "0,2\n"),
        ("/sys/devices/system/cpu/cpu1/cache/index3/level", "3\n"),
        ("/sys/devices/system/cpu/cpu1/cache/index3/type", "Unified\n"),
        ("/sys/devices/system/cpu/cpu1/cache/index3/size", "32768K\n"),
        ("/sys/devices/system/cpu/cpu1/cache/index3/shared_cpu_list", "1,3\n"),
        ("/sys/devices/system/node/node0/cpulist", "0,2\n"),
        ("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       12000000 kB\n"),
        ("/sys/devices/system/node/node1/cpulist", "\n"),
        ("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       12689064 kB\n"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        (
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always within_size advise [never] deny force\n",
        ),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500\n"),
        ("/sys/class/iommu/ivhd0", "->../../devices/iommu"),
        ("/sys/kernel/iommu_groups/0/type", "DMA-FQ\n"),
        ("/sys/kernel/iommu_groups/1/type", "DMA-FQ\n"),
    ]
}

fn devices() -> Vec<(&'static str, &'static str)> {
    const GPU: &str = "/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0";
    const GPU2: &str = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0";
    const NIC: &str = "/sys/devices/pci0000:40/0000:40:03.1/0000:42:00.0";
    let mut files = Vec::new();
    let mut add = |directory: &str, name: &str, text: &'static str| {
        files.push((&*Box::leak(format!("{directory}/{name}").into_boxed_str()), text));
    };
    for directory in [GPU, GPU2] {
        add(directory, "vendor", "0x10de\n");
        add(directory, "device", "0x2684\n");
        add(directory, "class", "0x030000\n");
        add(directory, "current_link_width", "16\n");
        add(directory, "max_link_speed", "16.0 GT/s PCIe\n");
        add(directory, "max_link_width", "16\n");
    }
    add(GPU, "current_link_speed", "2.5 GT/s PCIe\n");
    add(GPU, "numa_node", "0\n");
    add(GPU, "boot_vga", "1\n");
    add(GPU2, "current_link_speed", "16.0 GT/s PCIe\n");
    add(GPU2, "numa_node", "-1\n");
    add(NIC, "vendor", "0x15b3\n");
    add(NIC, "class", "0x020000\n");
    add(NIC, "numa_node", "1\n");
    add(NIC, "driver", "->../../../../bus/pci/drivers/mlx5_core");
    add(NIC, "net/enp66s0/mtu", "9000\n");
    add(NIC, "net/enp66s0/type", "1\n");
    add(NIC, "net/enp66s0/speed", "100000\n");
    add(NIC, "net/enp66s0/operstate", "up\n");
    add(NIC, "net/enp66s0/device", "->../../../0000:42:00.0");
    add(NIC, "infiniband/mlx5_0/device", "->../../../0000:42:00.0");
    add(NIC, "infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n");
    add(NIC, "infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    add(NIC, "infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    add(NIC, "infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0ac0:ebff:fe00:0001\n");
    add(NIC, "infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
    add(NIC, "infiniband/mlx5_0/ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    add(NIC, "infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "enp66s0\n");
    files.extend([
        ("/sys/bus/pci/drivers/mlx5_core/module", ""),
        ("/sys/bus/pci/devices/0000:01:00.0", "->../../../devices/pci0000:00/0000:00:01.1/0000:01:00.0"),
        ("/sys/bus/pci/devices/0000:41:00.0", "->../../../devices/pci0000:40/0000:40:01.1/0000:41:00.0"),
        ("/sys/bus/pci/devices/0000:42:00.0", "->../../../devices/pci0000:40/0000:40:03.1/0000:42:00.0"),
        ("/sys/class/net/enp66s0", "->../../devices/pci0000:40/0000:40:03.1/0000:42:00.0/net/enp66s0"),
        ("/sys/class/net/lo/mtu", "65536\n"),
        ("/sys/class/net/lo/type", "772\n"),
        ("/sys/class/net/lo/operstate", "unknown\n"),
        ("/sys/class/net/docker0/mtu", "1500\n"),
        ("/sys/class/net/docker0/type", "1\n"),
        ("/sys/class/net/docker0/speed", "-1\n"),
        ("/sys/class/net/docker0/operstate", "down\n"),
        ("/sys/class/net/bonding_masters", "\n"),
        (
            "/sys/class/infiniband/mlx5_0",
            "->../../devices/pci0000:40/0000:40:03.1/0000:42:00.0/infiniband/mlx5_0",
        ),
        (
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release\n",
        ),
        (
            "/proc/driver/nvidia/gpus/0000:01:00.0/information",
            "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   200\n",
        ),
    ]);
    files
}

#[test]
fn processors_and_memory() {
    let (_directory, tree) = tree(&two_sockets());
    let machine = Machine::read(&tree, &[], 3);
    assert_eq!(machine.cpu.model, "AMD EPYC 9354 32-Core Processor");
    assert_eq!(
        (machine.cpu.sockets, machine.cpu.cores, machine.cpu.threads, machine.cpu.usable),
        (2, 2, 4, 3)
    );
    assert_eq!(machine.cpu.caches.len(), 1);
    assert_eq!((machine.cpu.caches[0].bytes, machine.cpu.caches[0].instances), (32 << 20, 2));
    assert_eq!(machine.numa_nodes.len(), 2);
    assert_eq!((machine.numa_nodes[0].cpus.as_str(), machine.numa_nodes[1].cpus.as_str()), ("0,2", ""));
    assert_eq!(machine.numa_nodes[1].memory_bytes, 12_689_064 * 1024);
    assert_eq!(machine.memory.limit_bytes, Some(1 << 30));
    assert_eq!(machine.memory.transparent.as_deref(), Some("madvise"));
    assert_eq!(machine.memory.transparent_shared.as_deref(), Some("never"));
    assert_eq!((machine.memory.reserved[0].pages, machine.memory.reserved[0].free), (512, 500));
    assert_eq!(machine.host.container.as_deref(), Some("kubernetes"));
    assert_eq!(machine.host.hypervisor, None);
    assert_eq!(machine.host.iommu_types, ["DMA-FQ"]);
}

#[test]
fn gpus_without_a_bound_driver() {
    let (_directory, tree) = tree(&devices());
    let machine = Machine::read(&tree, &[], 1);
    assert_eq!(machine.gpus.len(), 2);
    let [first, second] = &machine.gpus[..] else { unreachable!() };
    assert_eq!((first.address.as_str(), first.device.as_str()), ("0000:01:00.0", "2684"));
    assert_eq!(first.name.as_deref(), Some("NVIDIA GeForce RTX 4090"));
    assert_eq!((first.driver.as_deref(), first.numa_node, first.boot_display), (None, Some(0), true));
    assert_eq!(first.link.unwrap().to_string(), "gen1 x16");
    assert_eq!(second.link_max.unwrap().to_string(), "gen4 x16");
    assert_eq!(second.bridges, ["pci0000:40", "0000:40:01.1"]);
    assert_eq!(second.numa_node, None);
    assert_eq!(machine.host.nvidia_driver.as_deref(), Some("570.124.06"));
}

#[test]
fn interfaces_and_adapters() {
    let (_directory, tree) = tree(&devices());
    let addresses = [Address { interface: "enp66s0".to_owned(), text: "10.0.0.1/24".to_owned() }];
    let machine = Machine::read(&tree, &addresses, 1);
    let names: Vec<&str> = machine.interfaces.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["docker0", "enp66s0", "lo"]);
    let kinds: Vec<Kind> = machine.interfaces.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [Kind::Software, Kind::Hardware, Kind::Loopback]);
    let nic = &machine.interfaces[1];
    assert_eq!((nic.speed_mbps, nic.mtu, nic.numa_node), (Some(100_000), 9000, Some(1)));
    assert_eq!((nic.driver.as_deref(), nic.pci.as_deref()), (Some("mlx5_core"), Some("0000:42:00.0")));
    assert_eq!(nic.addresses, ["10.0.0.1/24"]);
    assert_eq!(machine.interfaces[0].speed_mbps, None);
    let port = &machine.rdma[0];
    assert_eq!((port.device.as_str(), port.port, port.gids), ("mlx5_0", 1, 2));
    assert_eq!((port.interface.as_deref(), port.numa_node), (Some("enp66s0"), Some(1)));
}

#[test]
fn an_empty_tree_is_no_reason_to_fail() {
    let (_directory, tree) = tree(&[]);
    let machine = Machine::read(&tree, &[], 1);
    assert_eq!(machine.cpu.threads, 0);
    let text = render::text(&machine);
    assert!(text.contains("none on the PCI bus") && text.contains("not loaded"), "{text}");
}

#[test]
fn the_text_names_every_device() {
    let mut files = two_sockets();
    files.extend(devices());
    let (_directory, tree) = tree(&files);
    let text = render::text(&Machine::read(&tree, &[], 4));
    for part in ["GPU1", "0000:41:00.0", "gen4 x16", "enp66s0", "mlx5_0", "SYS", "kubernetes", "no CPUs"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}
