//! The machine as text.

use std::fmt::Write as _;

use comfy_table::Table;

use super::{Machine, net};
use crate::{output, size};

/// Sections with a heading each; what the machine does not have is said in one line.
pub(crate) fn text(machine: &Machine) -> String {
    let mut text = String::new();
    section(&mut text, "Machine", &host(machine));
    section(&mut text, "Processors", &processors(machine));
    section(&mut text, "Memory", &memory(machine));
    section(&mut text, "Network interfaces", &table(&interfaces(machine)));
    let rdma = if machine.rdma.is_empty() { "none".to_owned() } else { rdma(machine) };
    section(&mut text, "RDMA ports", &rdma);
    section(&mut text, "GPUs", &gpus(machine));
    text
}

fn section(text: &mut String, heading: &str, body: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{heading}");
    for line in body.lines() {
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    text.push('\n');
}

fn table(table: &Table) -> String {
    // The styles' own margin is one space; sections indent already.
    table.to_string().lines().map(|line| line.strip_prefix(' ').unwrap_or(line)).fold(
        String::new(),
        |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        },
    )
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn host(machine: &Machine) -> String {
    let host = &machine.host;
    let mut lines = vec![format!("kernel          Linux {}", host.kernel)];
    lines.extend(host.product.iter().map(|product| format!("product         {product}")));
    let kind = host.hypervisor.as_ref().map_or_else(|| "none".to_owned(), |name| format!("yes ({name})"));
    lines.push(format!("virtual         {kind}"));
    lines.push(format!("container       {}", host.container.as_deref().unwrap_or("none seen")));
    lines.push(format!("NVIDIA driver   {}", host.nvidia_driver.as_deref().unwrap_or("not loaded")));
    let iommu = match (host.iommus.is_empty(), host.iommu_types.is_empty()) {
        (true, _) => "off or not visible".to_owned(),
        (false, true) => "on".to_owned(),
        (false, false) => format!("on ({})", host.iommu_types.join(", ")),
    };
    lines.push(format!("IOMMU           {iommu}"));
    lines.join("\n")
}

fn processors(machine: &Machine) -> String {
    let cpu = &machine.cpu;
    let mut lines = vec![
        format!("model           {}", cpu.model),
        format!(
            "count           {} socket(s), {} core(s), {} thread(s), {} usable here",
            cpu.sockets, cpu.cores, cpu.threads, cpu.usable
        ),
    ];
    let caches: Vec<String> = cpu
        .caches
        .iter()
        .filter(|cache| cache.kind != "Instruction")
        .map(|cache| format!("L{} {} x {}", cache.level, cache.instances, size::human(cache.bytes)))
        .collect();
    lines.push(format!("caches          {}", caches.join(", ")));
    lines.extend(machine.numa_nodes.iter().map(|node| {
        let cpus = if node.cpus.is_empty() { "no CPUs".to_owned() } else { format!("CPUs {}", node.cpus) };
        format!("NUMA node {:<5} {cpus}, {}", node.node, size::human(node.memory_bytes))
    }));
    lines.join("\n")
}

fn memory(machine: &Machine) -> String {
    let memory = &machine.memory;
    let limit = memory.limit_bytes.map_or_else(|| "none".to_owned(), size::human);
    let pools: Vec<String> = memory
        .reserved
        .iter()
        .map(|pool| format!("{} of {} x {} free", pool.free, pool.pages, size::human(pool.page_bytes)))
        .collect();
    [
        format!(
            "total           {}, {} available, limit of the control group {limit}",
            size::human(memory.total_bytes),
            size::human(memory.available_bytes)
        ),
        format!(
            "huge pages      private memory: {}, shared memory: {}",
            memory.transparent.as_deref().unwrap_or("not built in"),
            memory.transparent_shared.as_deref().unwrap_or("not built in")
        ),
        format!("reserved pages  {}", if pools.is_empty() { "none".to_owned() } else { pools.join(", ") }),
    ]
    .join("\n")
}

fn interfaces(machine: &Machine) -> Table {
    let mut table =
        output::table(&["name", "kind", "driver", "state", "Mbit/s", "MTU", "PCI", "NUMA", "addresses"]);
    for it in &machine.interfaces {
        let kind = match it.kind {
            net::Kind::Loopback => "loopback",
            net::Kind::Hardware => "hardware",
            net::Kind::Paravirtual => "paravirtual",
            net::Kind::Software => "software",
        };
        table.add_row([
            it.name.clone(),
            kind.to_owned(),
            or_dash(it.driver.as_ref()),
            it.state.clone(),
            or_dash(it.speed_mbps),
            it.mtu.to_string(),
            or_dash(it.pci.as_ref()),
            or_dash(it.numa_node),
            if it.addresses.is_empty() { "-".to_owned() } else { it.addresses.join(" ") },
        ]);
    }
    table
}

fn rdma(machine: &Machine) -> String {
    let mut ports = output::table(&[
        "device",
        "port",
        "link",
        "state",
        "rate",
        "MTU",
        "GIDs",
        "interface",
        "PCI",
        "NUMA",
    ]);
    let mut gids = output::table(&["", "device", "port", "GID", "kind", "address"]);
    for it in &machine.rdma {
        ports.add_row([
            it.device.clone(),
            it.port.to_string(),
            it.link_layer.clone(),
            it.state.clone(),
            it.rate.clone(),
            or_dash(it.mtu_bytes),
            it.gids.to_string(),
            or_dash(it.interface.as_ref()),
            or_dash(it.pci.as_ref()),
            or_dash(it.numa_node),
        ]);
        for gid in &it.addresses {
            gids.add_row([
                if gid.chosen { "*" } else { "" }.to_owned(),
                it.device.clone(),
                it.port.to_string(),
                gid.index.to_string(),
                gid.kind.to_owned(),
                gid.address.clone(),
            ]);
        }
    }
    let mut text = table(&ports);
    if gids.row_count() > 0 {
        text.push('\n');
        text.push_str(&table(&gids));
        text.push_str("\n* is tried first; GPU memory goes through host memory: GPUDirect RDMA is not built in this version");
    }
    text
}

fn gpus(machine: &Machine) -> String {
    if machine.gpus.is_empty() {
        return "none on the PCI bus".to_owned();
    }
    let mut list = output::table(&[
        "",
        "PCI",
        "device",
        "driver",
        "link now",
        "link at best",
        "GB/s",
        "NVLinks",
        "NUMA",
    ]);
    for (index, gpu) in machine.gpus.iter().enumerate() {
        list.add_row([
            format!("GPU{index}"),
            gpu.address.clone(),
            gpu.name.clone().unwrap_or_else(|| format!("10de:{}", gpu.device)),
            gpu.driver.clone().unwrap_or_else(|| "none".to_owned()),
            or_dash(gpu.link),
            or_dash(gpu.link_max),
            or_dash(gpu.link_max.map(|link| format!("{:.1}", link.gigabytes()))),
            or_dash(gpu.nvlinks),
            or_dash(gpu.numa_node),
        ]);
    }
    let mut text = table(&list);
    if machine.gpus.len() > 1 {
        text.push('\n');
        text.push_str(&table(&pairs(machine)));
        text.push_str(
            "\nNV# so many NVLinks, PIX one PCIe switch, PXB several, PHB the processor's root bus, NODE the same memory node, \
             SYS between nodes",
        );
    }
    text
}

fn pairs(machine: &Machine) -> Table {
    let name = |address: &String| {
        let index = machine.gpus.iter().position(|gpu| gpu.address == *address);
        index.map_or_else(|| address.clone(), |index| format!("GPU{index}"))
    };
    let mut table = output::table(&["pair", "connection", "path", "why"]);
    for pair in &machine.gpu_pairs {
        table.add_row([
            format!("{} {}", name(&pair.one), name(&pair.other)),
            pair.connection(),
            pair.path.to_owned(),
            pair.reason.clone(),
        ]);
    }
    table
}
