//! Network interfaces and RDMA adapters.

use rccl_transport::verbs;
use serde::Serialize;

use super::{pci, tree::Tree};

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Interface {
    /// Its name.
    pub(crate) name: String,
    /// What is behind it.
    pub(crate) kind: Kind,
    /// The kernel driver of the device behind it.
    pub(crate) driver: Option<String>,
    /// Whether it can carry packets: "up", "down", "unknown", ... (loopback is always "unknown").
    pub(crate) state: String,
    /// Nominal speed in 1e6 bit/s, where the driver knows it.
    pub(crate) speed_mbps: Option<u32>,
    /// The largest packet in bytes.
    pub(crate) mtu: u32,
    /// Its IP addresses with the length of the network's prefix.
    pub(crate) addresses: Vec<String>,
    /// The PCI device behind it.
    pub(crate) pci: Option<String>,
    /// The memory node nearest to it.
    pub(crate) numa_node: Option<u32>,
}

/// What is behind a network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The machine itself.
    Loopback,
    /// A device.
    Hardware,
    /// A device that a hypervisor imitates.
    Paravirtual,
    /// Only the kernel: bridges, tunnels, ends of virtual cables.
    Software,
}

/// Drivers of network devices that exist only in virtual machines.
const PARAVIRTUAL_DRIVERS: [&str; 6] = ["virtio_net", "vmxnet3", "hv_netvsc", "xen-netfront", "vif", "gve"];

/// An IP address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) interface: String,
    /// The address and the length of its network's prefix.
    pub(crate) text: String,
}

/// The machine's IP addresses, as the kernel lists them.
pub(crate) fn addresses() -> Vec<Address> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let text = |addr: &if_addrs::IfAddr| match addr {
        if_addrs::IfAddr::V4(v4) => format!("{}/{}", v4.ip, v4.prefixlen),
        if_addrs::IfAddr::V6(v6) => format!("{}/{}", v6.ip, v6.prefixlen),
    };
    interfaces.into_iter().map(|it| Address { text: text(&it.addr), interface: it.name }).collect()
}

pub(crate) fn interfaces(tree: &Tree, addresses: &[Address]) -> Vec<Interface> {
    // Plain files stand here too where bonding is loaded.
    let names = tree.names("/sys/class/net").into_iter();
    names
        .filter(|name| tree.exists(&format!("/sys/class/net/{name}/mtu")))
        .map(|name| interface(tree, name, addresses))
        .collect()
}

fn interface(tree: &Tree, name: String, addresses: &[Address]) -> Interface {
    let directory = format!("/sys/class/net/{name}");
    let device = tree.resolved(&format!("{directory}/device"));
    let driver = tree.link_name(&format!("{directory}/device/driver"));
    // ARPHRD_LOOPBACK
    let kind = if tree.number::<u32>(&format!("{directory}/type")) == Some(772) {
        Kind::Loopback
    } else if device.is_none() {
        Kind::Software
    } else if driver.as_deref().is_some_and(|driver| PARAVIRTUAL_DRIVERS.contains(&driver)) {
        Kind::Paravirtual
    } else {
        Kind::Hardware
    };
    let pci = device.as_deref().and_then(last_pci_address);
    Interface {
        kind,
        driver,
        state: tree.text(&format!("{directory}/operstate")).unwrap_or_else(|| "unknown".to_owned()),
        // The kernel says -1 where the driver does not know, and fails where the link is down.
        speed_mbps: tree
            .number::<i64>(&format!("{directory}/speed"))
            .and_then(|speed| u32::try_from(speed).ok())
            .filter(|&speed| speed > 0 && speed != u32::MAX),
        mtu: tree.number(&format!("{directory}/mtu")).unwrap_or(0),
        addresses: addresses.iter().filter(|it| it.interface == name).map(|it| it.text.clone()).collect(),
        numa_node: pci.as_ref().and_then(|pci| pci::numa_node(tree, &format!("/sys/bus/pci/devices/{pci}"))),
        pci,
        name,
    }
}

fn last_pci_address(path: &str) -> Option<String> {
    path.split('/').rev().find(|part| pci::is_address(part)).map(str::to_owned)
}

/// A port of an RDMA adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Rdma {
    /// The adapter's name.
    pub(crate) device: String,
    /// The port, from 1.
    pub(crate) port: u32,
    /// "Ethernet" (RoCE) or "InfiniBand".
    pub(crate) link_layer: String,
    /// As the kernel puts it: `4: ACTIVE`.
    pub(crate) state: String,
    /// As the kernel puts it: `100 Gb/sec (4X EDR)`.
    pub(crate) rate: String,
    /// Identifiers the port can be addressed by; RoCE has one for each IP address and version.
    pub(crate) gids: usize,
    /// The largest payload of a packet in bytes; unknown without rdma-core's library.
    pub(crate) mtu_bytes: Option<u32>,
    /// The identifiers in use; unknown without rdma-core's library.
    pub(crate) addresses: Vec<Gid>,
    /// The network interface of the same port.
    pub(crate) interface: Option<String>,
    /// The PCI device behind it.
    pub(crate) pci: Option<String>,
    /// The memory node nearest to it.
    pub(crate) numa_node: Option<u32>,
}

/// An identifier of an RDMA port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gid {
    /// Its index, as in `NCCL_IB_GID_INDEX`.
    pub(crate) index: u8,
    /// Its IP address, or the bytes in that form.
    pub(crate) address: String,
    /// "RoCE v2", or "other": RoCE v1 and InfiniBand.
    pub(crate) kind: &'static str,
    /// Whether it is the one that is tried first.
    pub(crate) chosen: bool,
}

/// Adds to the ports what rdma-core's library tells of them, if it is there.
pub(crate) fn ask_library(ports: &mut [Rdma]) {
    let options = verbs::Options::from_env().unwrap_or_else(|_| verbs::Options::loopback());
    for device in verbs::devices().into_iter().flatten() {
        for found in &device.ports {
            let is_it = |it: &&mut Rdma| it.device == device.name && it.port == u32::from(found.number);
            let Some(port) = ports.iter_mut().find(is_it) else { continue };
            let chosen = options.preferred_gid(found).map(|gid| gid.index);
            port.mtu_bytes = Some(found.mtu_bytes);
            port.addresses = found
                .gids
                .iter()
                .map(|gid| Gid {
                    index: gid.index,
                    address: gid.address().to_string(),
                    kind: if gid.kind == verbs::GidKind::RoceV2 { "RoCE v2" } else { "other" },
                    chosen: chosen == Some(gid.index),
                })
                .collect();
        }
    }
}

pub(crate) fn rdma(tree: &Tree) -> Vec<Rdma> {
    let class = "/sys/class/infiniband";
    let mut ports = Vec::new();
    for device in tree.names(class) {
        let directory = format!("{class}/{device}");
        let pci = tree.resolved(&format!("{directory}/device")).as_deref().and_then(last_pci_address);
        for name in tree.names(&format!("{directory}/ports")) {
            let Ok(port) = name.parse() else { continue };
            let text =
                |file: &str| tree.text(&format!("{directory}/ports/{name}/{file}")).unwrap_or_default();
            let gids = tree.names(&format!("{directory}/ports/{name}/gids"));
            let gids = gids.iter().filter(|gid| is_gid(&text(&format!("gids/{gid}")))).count();
            ports.push(Rdma {
                device: device.clone(),
                port,
                link_layer: text("link_layer"),
                state: text("state"),
                rate: text("rate"),
                gids,
                mtu_bytes: None,
                addresses: Vec::new(),
                interface: tree.text(&format!("{directory}/ports/{name}/gid_attrs/ndevs/0")),
                pci: pci.clone(),
                numa_node: pci::numa_node(tree, &format!("{directory}/device")),
            });
        }
    }
    ports
}

/// Whether an entry of a port's table of identifiers is in use: unused ones are all zero.
fn is_gid(text: &str) -> bool {
    text.chars().any(|c| c != '0' && c != ':')
}
