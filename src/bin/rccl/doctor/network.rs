//! TCP and the interfaces under it.

use super::{Check, facts::Facts};
use crate::topo::net;

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    vec![loopback(facts), version_6(facts), interfaces(facts)]
}

fn loopback(facts: &Facts) -> Check {
    match &facts.loopback_v4 {
        Ok(()) => Check::ok("loopback", "TCP to 127.0.0.1 works"),
        Err(error) => Check::fail(
            "loopback",
            format!("TCP to 127.0.0.1: {error}"),
            "bring it up: ip link set lo up (sandboxes and firewalls may forbid it)",
        ),
    }
}

fn version_6(facts: &Facts) -> Check {
    match &facts.loopback_v6 {
        Ok(()) => Check::ok("IPv6", "TCP to ::1 works"),
        // Most groups never need it.
        Err(error) => Check::ok("IPv6", format!("not available ({error}); only IPv4 addresses are used")),
    }
}

fn interfaces(facts: &Facts) -> Check {
    let name = "interfaces";
    let describe = |it: &net::Interface| {
        let speed = it.speed_mbps.map_or_else(|| "speed unknown".to_owned(), |mbps| format!("{mbps} Mbit/s"));
        format!("{} ({speed}, MTU {})", it.name, it.mtu)
    };
    let outward: Vec<&net::Interface> = facts.outward().collect();
    let list = outward.iter().map(|it| describe(it)).collect::<Vec<_>>().join(", ");
    if outward.is_empty() {
        return Check::ok(name, "only virtual ones: ranks on other machines may not be reachable");
    }
    if outward.iter().all(|it| it.kind == net::Kind::Paravirtual) {
        return Check::ok(
            name,
            format!("{list}; imitated by a hypervisor, so the real speed shows only in `rccl bench`"),
        );
    }
    let fastest = outward.iter().filter_map(|it| it.speed_mbps).max();
    if fastest.is_some_and(|mbps| mbps < 10_000) {
        return Check::warn(
            name,
            format!("{list}: slower than 10 Gbit/s"),
            "between machines this is the limit; connect faster adapters, or keep groups within a machine",
        );
    }
    Check::ok(name, list)
}
