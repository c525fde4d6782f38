//! RDMA: the port, its addresses, the size of its packets, and what its counters tell.

use super::{Check, facts::Facts};
use crate::topo::net::Rdma;

/// The largest RoCE packet's payload in bytes, and what its headers add to it.
const LARGEST_BYTES: u32 = 4096;
const HEADER_BYTES: u32 = 104;

/// Counters that grow when packets are lost or receivers are not ready, and what they are called by drivers.
const TROUBLE: [&str; 12] = [
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "out_of_seq_request",
    "rcvd_seq_err",
    "completer_retry_err",
    "retry_exceeded_err",
    "rnr_nak_retry_err",
    "retry_rnr_exceeded_err",
    "symbol_error",
    "link_downed",
    "port_rcv_errors",
];

/// The checks of RDMA; none on a machine without it.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    if facts.machine.rdma.is_empty() {
        return Vec::new();
    }
    let mut checks = vec![usable(facts)];
    for port in &facts.machine.rdma {
        checks.push(state(port));
        checks.push(gid(port));
        checks.push(mtu(facts, port));
    }
    checks.push(counters(facts));
    checks
}

fn name(port: &Rdma) -> String {
    format!("{} port {}", port.device, port.port)
}

fn usable(facts: &Facts) -> Check {
    match &facts.rdma {
        Ok(port) => Check::ok("RDMA", format!("{port} is taken first")),
        Err(error) => Check::warn(
            "RDMA",
            error.clone(),
            "see what the message names; without RDMA ranks on other machines are reached by TCP",
        ),
    }
}

fn state(port: &Rdma) -> Check {
    if port.state.contains("ACTIVE") {
        return Check::ok("RDMA link", format!("{}: {}, {}", name(port), port.state, port.rate));
    }
    let interface = port.interface.as_deref().unwrap_or("its interface");
    Check::warn(
        "RDMA link",
        format!("{}: {}", name(port), port.state),
        format!("see its cable, and bring {interface} up: ip link set {interface} up"),
    )
}

fn gid(port: &Rdma) -> Check {
    let title = "RDMA address";
    match port.addresses.iter().find(|gid| gid.chosen) {
        Some(gid) => {
            Check::ok(title, format!("{}: GID {} ({}, {})", name(port), gid.index, gid.address, gid.kind))
        }
        None if port.addresses.is_empty() && port.mtu_bytes.is_none() => Check::warn(
            title,
            format!("{}: cannot be asked for", name(port)),
            "install rdma-core's library (Debian: libibverbs1 ibverbs-providers), and let this process open /dev/infiniband/*",
        ),
        None => Check::warn(
            title,
            format!("{}: none of its {} GIDs may be used", name(port), port.addresses.len()),
            "give its interface an IP address, so that it gets a GID of RoCE v2, or unset NCCL_IB_GID_INDEX",
        ),
    }
}

fn mtu(facts: &Facts, port: &Rdma) -> Check {
    let title = "RDMA MTU";
    let interface = facts.machine.interfaces.iter().find(|it| Some(&it.name) == port.interface.as_ref());
    match (port.mtu_bytes, interface) {
        (Some(bytes), Some(interface))
            if bytes < LARGEST_BYTES && interface.mtu < LARGEST_BYTES + HEADER_BYTES =>
        {
            let name = &interface.name;
            Check::warn(
                title,
                format!(
                    "{}: packets of {bytes} bytes, since {name} has MTU {}",
                    self::name(port),
                    interface.mtu
                ),
                format!(
                    "raise it on both hosts and on the switches between: ip link set {name} mtu 9000 (or 4200 at least)"
                ),
            )
        }
        (Some(bytes), _) => Check::ok(title, format!("{}: packets of {bytes} bytes", name(port))),
        (None, _) => Check::ok(title, format!("{}: unknown", name(port))),
    }
}

fn counters(facts: &Facts) -> Check {
    let title = "RDMA counters";
    let bad =
        |(_, counter, value): &&(String, String, u64)| *value > 0 && TROUBLE.contains(&counter.as_str());
    let found: Vec<_> = facts.rdma_counters.iter().filter(bad).collect();
    if found.is_empty() {
        return Check::ok(title, format!("{} of them tell of no trouble", facts.rdma_counters.len()));
    }
    let list: Vec<_> = found.iter().map(|(port, name, value)| format!("{port} {name} {value}")).collect();
    Check::warn(
        title,
        format!("packets were lost or links went down since boot: {}", list.join(", ")),
        "if they grow while you measure: turn on priority flow control or ECN for RoCE on switches and hosts, check cables",
    )
}
