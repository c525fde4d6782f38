//! What RDMA devices this machine has, as far as can be asked without using them.

use std::{fs, path::PathBuf};

use super::{
    gid::{Gid, GidKind},
    sys::{
        Context,
        abi::{IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE},
        names,
    },
};
use crate::Result;

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, as in `NCCL_IB_HCA`.
    pub name: String,
    /// The sysfs path of its PCI function; `None` if it is none, as soft-RoCE.
    pub pci_path: Option<String>,
    /// Its node's globally unique identifier.
    pub guid: u64,
    /// The most requests that a queue of it takes.
    pub max_requests: u32,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// What a port's packets look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    Infiniband,
    /// Something else, by the library's number.
    Other(u8),
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it can be used.
    pub active: bool,
    /// Its state in the kernel's words, as "ACTIVE" or "DOWN".
    pub state: String,
    /// What its packets look like.
    pub link_layer: LinkLayer,
    /// Its local identifier, for InfiniBand.
    pub lid: u16,
    /// Nominal speed in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
    /// The largest payload of a packet in bytes: that of the smaller of port and network interface.
    pub mtu_bytes: u32,
    /// Its addresses: the entries of the GID table that are in use.
    pub gids: Vec<Gid>,
}

/// The RDMA devices of this machine, in the library's order. Opens each for a moment.
///
/// # Errors
/// [`crate::Error::Unavailable`] without the library, or where the kernel has no RDMA.
///
/// ```
/// match rccl_transport::verbs::devices() {
///     Ok(devices) => devices.iter().for_each(|device| println!("{}", device.name)),
///     Err(error) => println!("no RDMA: {error}"),
/// }
/// ```
pub fn devices() -> Result<Vec<Device>> {
    let mut found = Vec::new();
    for name in names()? {
        match describe(&name) {
            Ok(device) => found.push(device),
            // One that cannot be opened, or is just being removed, does not hide the others.
            Err(error) => tracing::warn!("RDMA device {name} is left out: {error}"),
        }
    }
    Ok(found)
}

fn describe(name: &str) -> Result<Device> {
    let context = Context::open(name)?;
    let attr = context.device_attr()?;
    let ports = (1..=attr.phys_port_cnt).filter_map(|port| self::port(&context, name, port).ok());
    Ok(Device {
        name: name.to_owned(),
        pci_path: pci_path(name),
        guid: u64::from_be(attr.node_guid),
        max_requests: u32::try_from(attr.max_qp_wr).unwrap_or(0),
        ports: ports.collect(),
    })
}

/// The state of a port now.
///
/// # Errors
/// [`crate::Error::Io`].
pub(super) fn port(context: &Context, device: &str, number: u8) -> Result<Port> {
    let attr = context.port_attr(number)?;
    let state = text(device, number, "state");
    let word = state.split_once(": ").map_or(state.as_str(), |(_, word)| word);
    Ok(Port {
        number,
        active: attr.state == IBV_PORT_ACTIVE,
        state: if word.is_empty() { format!("state {}", attr.state) } else { word.to_owned() },
        link_layer: match attr.link_layer {
            IBV_LINK_LAYER_INFINIBAND => LinkLayer::Infiniband,
            IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            other => LinkLayer::Other(other),
        },
        lid: attr.lid,
        speed_mbps: speed_mbps(&text(device, number, "rate")),
        mtu_bytes: mtu_bytes(attr.active_mtu),
        gids: gids(context, device, number, attr.gid_tbl_len),
    })
}

/// The entries of a port's GID table that are in use, read afresh, since they follow the interface's addresses.
fn gids(context: &Context, device: &str, port: u8, len: i32) -> Vec<Gid> {
    let indexes = 0..u8::try_from(len).unwrap_or(u8::MAX);
    let entry = |index: u8| {
        let bytes = context.gid(port, index.into()).ok().filter(|bytes| bytes[8..] != [0; 8])?;
        let kind = match text(device, port, &format!("gid_attrs/types/{index}")).as_str() {
            "RoCE v2" => GidKind::RoceV2,
            _ => GidKind::Other,
        };
        let interface = text(device, port, &format!("gid_attrs/ndevs/{index}"));
        Some(Gid { index, kind, bytes, interface: (!interface.is_empty()).then_some(interface) })
    };
    indexes.filter_map(entry).collect()
}

/// What a file of a port in sysfs says; nothing if there is none.
fn text(device: &str, port: u8, file: &str) -> String {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/{file}");
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The number at the beginning of "100 Gb/sec (4X EDR)", in Mbit/s.
fn speed_mbps(rate: &str) -> u32 {
    let number = rate.split_whitespace().next().and_then(|number| number.parse::<f64>().ok());
    number.map_or(0, |gigabits| (gigabits * 1000.0) as u32)
}

/// Bytes of the library's number of an MTU; the least for numbers that are none.
pub(super) const fn mtu_bytes(mtu: u32) -> u32 {
    match mtu {
        1..=5 => 128 << mtu,
        _ => 256,
    }
}

/// The folder of the device's PCI function, if it has one.
fn pci_path(device: &str) -> Option<String> {
    let path = fs::canonicalize(PathBuf::from(format!("/sys/class/infiniband/{device}/device"))).ok()?;
    path.join("vendor").exists().then(|| path.to_string_lossy().into_owned())
}

/// A port's counters, name and value, sorted by name: of errors, retransmissions and packets, where the device has them.
#[must_use]
pub fn counters(device: &str, port: u8) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for folder in ["counters", "hw_counters"] {
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/{folder}");
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let value = fs::read_to_string(entry.path()).ok().and_then(|text| text.trim().parse().ok());
            if let Some(value) = value {
                found.push((entry.file_name().to_string_lossy().into_owned(), value));
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_mtus_are_understood() {
        assert_eq!(speed_mbps("2.5 Gb/sec (1X SDR)"), 2500);
        assert_eq!(speed_mbps("400 Gb/sec (4X NDR)"), 400_000);
        assert_eq!(speed_mbps(""), 0);
        assert_eq!([1, 3, 5, 6].map(mtu_bytes), [256, 1024, 4096, 256]);
    }
}
