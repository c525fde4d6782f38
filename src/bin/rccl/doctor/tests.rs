//! Verdicts on facts made up for the purpose: what must be said, and how badly.

use super::{Check, Report, Verdict, facts::Facts};
use crate::topo::{
    Machine,
    net::{Gid, Interface, Kind, Rdma},
    pci::{Gpu, Link},
    tree::Tree,
};

/// A machine with nothing to complain of.
fn sound() -> Facts {
    let directory = tempfile::tempdir().unwrap();
    let mut machine = Machine::read(&Tree::at(directory.path()), &[], 8);
    machine.cpu.threads = 8;
    machine.memory.available_bytes = 64 << 30;
    machine.memory.transparent_shared = Some("advise".to_owned());
    machine.interfaces =
        vec![interface("lo", Kind::Loopback, None), interface("eth0", Kind::Hardware, Some(100_000))];
    Facts {
        machine,
        ranks: 4,
        descriptors: Some(65_536),
        locked_bytes: Some(8 << 20),
        shared_memory: Ok(()),
        futex: Ok(()),
        loopback_v4: Ok(()),
        loopback_v6: Err("no".to_owned()),
        instructions: vec!["AVX2"],
        environment: Vec::new(),
        library_options: Ok(()),
        rdma_counters: Vec::new(),
        rdma: Err("this machine has no RDMA device".to_owned()),
        preload_file: None,
        access_control: Vec::new(),
    }
}

fn interface(name: &str, kind: Kind, speed_mbps: Option<u32>) -> Interface {
    Interface {
        name: name.to_owned(),
        kind,
        driver: None,
        state: "up".to_owned(),
        speed_mbps,
        mtu: 1500,
        addresses: Vec::new(),
        pci: None,
        numa_node: None,
    }
}

fn gpu(lanes: u32) -> Gpu {
    let best = Link { gigatransfers: 16.0, lanes: 16 };
    Gpu {
        address: "0000:01:00.0".to_owned(),
        device: "2684".to_owned(),
        name: None,
        driver: Some("nvidia".to_owned()),
        link: Some(Link { gigatransfers: 2.5, lanes }),
        link_max: Some(best),
        numa_node: None,
        bridges: Vec::new(),
        boot_display: false,
        nvlinks: None,
    }
}

fn check(facts: &Facts, name: &str) -> Check {
    let report = Report::new(facts, false);
    report.checks.into_iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no check {name}"))
}

#[test]
fn a_sound_machine() {
    let report = Report::new(&sound(), false);
    assert_eq!(report.verdict, Verdict::Ok, "{}", report.text());
    assert!(report.checks.iter().all(|check| check.fix.is_none()));
    let usable: Vec<(&str, bool)> = report.transports.iter().map(|it| (it.name, it.usable)).collect();
    assert_eq!(usable, [("shm", true), ("tcp", true), ("verbs", false)]);
}

#[test]
fn what_is_not_ok_says_what_to_do() {
    let mut facts = sound();
    facts.shared_memory = Err("memfd_create: Operation not permitted".to_owned());
    facts.descriptors = Some(64);
    facts.machine.memory.transparent_shared = Some("never".to_owned());
    facts.ranks = 9;
    let report = Report::new(&facts, false);
    assert_eq!(report.verdict, Verdict::Fail);
    for check in &report.checks {
        assert_eq!(check.verdict == Verdict::Ok, check.fix.is_none(), "{check:?}");
    }
    assert_eq!(check(&facts, "shared memory").verdict, Verdict::Fail);
    assert_eq!(check(&facts, "open files").verdict, Verdict::Fail);
    assert_eq!(check(&facts, "huge pages").verdict, Verdict::Warn);
    assert_eq!(check(&facts, "processors").verdict, Verdict::Warn);
    assert!(!report.transports[0].usable && report.transports[0].reason.contains("memfd_create"));
}

#[test]
fn variables_that_make_no_sense() {
    let cases = [
        ("NCCL_P2P_DISABLE", "yes", "0 or 1"),
        ("RCCL_IB_TIMEOUT", "99", "1 to 31"),
        ("NCCL_P2P_LEVEL", "FAR", "PHB"),
        ("NCCL_SOCKET_IFNAME", "wlan", "lo eth0"),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", "lo eth0"),
    ];
    for (key, value, hint) in cases {
        let mut facts = sound();
        facts.environment = vec![(key.to_owned(), value.to_owned())];
        let check = check(&facts, "variables");
        assert_eq!(check.verdict, Verdict::Fail, "{check:?}");
        assert!(check.found.contains(key) && check.found.contains(hint), "{}", check.found);
    }
}

#[test]
fn variables_that_do() {
    for (key, value) in [
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_P2P_LEVEL", "sys"),
        ("NCCL_P2P_LEVEL", "3"),
        ("NCCL_SOCKET_IFNAME", "^docker"),
        ("RCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_UNHEARD_OF", "x"),
        ("NCCL_P2P_DISABLE", ""),
    ] {
        let mut facts = sound();
        facts.environment = vec![(key.to_owned(), value.to_owned())];
        assert_eq!(check(&facts, "variables").verdict, Verdict::Ok, "{key}={value}");
    }
}

#[test]
fn what_the_library_refuses_is_a_failure() {
    let mut facts = sound();
    facts.library_options = Err("environment variable RCCL_TIMEOUT_S is `x`".to_owned());
    let check = check(&facts, "variables");
    assert_eq!(check.verdict, Verdict::Fail);
    assert!(check.found.contains("RCCL_TIMEOUT_S"));
}

#[test]
fn a_misspelt_variable_and_a_hidden_secret() {
    let mut facts = sound();
    facts.environment = vec![("RCCL_P2P_DISABEL".to_owned(), "1".to_owned())];
    assert_eq!(check(&facts, "variables").verdict, Verdict::Warn);
    facts.environment = vec![("RCCL_SECRET".to_owned(), "hush".to_owned())];
    assert!(!Report::new(&facts, false).text().contains("hush"));
}

#[test]
fn a_shim_is_reported() {
    let mut facts = sound();
    facts.environment = vec![("LD_PRELOAD".to_owned(), "/usr/lib/libvgpu.so".to_owned())];
    let check = check(&facts, "preloaded libraries");
    assert_eq!(check.verdict, Verdict::Warn);
    assert!(check.found.contains("libvgpu"));
}

#[test]
fn switching_shared_memory_off() {
    let mut facts = sound();
    facts.environment = vec![("NCCL_SHM_DISABLE".to_owned(), "1".to_owned())];
    let transports = Report::new(&facts, false).transports;
    assert!(!transports[0].usable && transports[0].reason.contains("NCCL_SHM_DISABLE"));
}

#[test]
fn gpus_are_judged_only_where_there_are_some() {
    assert!(Report::new(&sound(), false).checks.iter().all(|check| check.name != "IOMMU"));

    let mut facts = sound();
    facts.machine.gpus = vec![gpu(16), gpu(4)];
    facts.machine.host.nvidia_driver = Some("570.124.06".to_owned());
    facts.machine.host.iommu_types = vec!["DMA-FQ".to_owned()];
    facts.access_control =
        vec![("0000:00:01.1".to_owned(), Some(0x1d)), ("0000:00:03.1".to_owned(), Some(0))];
    assert_eq!(check(&facts, "NVIDIA driver").verdict, Verdict::Ok);
    assert!(check(&facts, "GPU links").found.contains("4 of 16 lanes"));
    assert_eq!(check(&facts, "IOMMU").verdict, Verdict::Warn);
    let fix = check(&facts, "PCI redirection (ACS)").fix.unwrap();
    assert!(fix.contains("setpci -s 0000:00:01.1 ECAP_ACS+6.w=0000") && !fix.contains("00:03.1"), "{fix}");
}

#[test]
fn an_idle_link_is_no_fault() {
    let mut facts = sound();
    facts.machine.gpus = vec![gpu(16)];
    facts.machine.host.nvidia_driver = Some("560.35".to_owned());
    assert_eq!(check(&facts, "GPU links").verdict, Verdict::Ok);
    assert_eq!(check(&facts, "NVIDIA driver").verdict, Verdict::Warn);
}

#[test]
fn rdma_ports_and_what_ails_them() {
    let mut facts = sound();
    let gid = Gid { index: 3, address: "10.0.0.1".to_owned(), kind: "RoCE v2", chosen: true };
    facts.machine.rdma = vec![Rdma {
        device: "mlx5_0".to_owned(),
        port: 1,
        link_layer: "Ethernet".to_owned(),
        state: "4: ACTIVE".to_owned(),
        rate: "100 Gb/sec (4X EDR)".to_owned(),
        gids: 1,
        mtu_bytes: Some(4096),
        addresses: vec![gid],
        interface: Some("eth0".to_owned()),
        pci: None,
        numa_node: None,
    }];
    facts.rdma = Ok("mlx5_0 port 1".to_owned());
    facts.locked_bytes = None;
    let only = Report::new(&facts, true);
    assert_eq!((only.verdict, only.checks.len()), (Verdict::Ok, 6), "{}", only.text());
    assert!(only.transports[2].usable && check(&facts, "RDMA address").found.contains("GID 3 (10.0.0.1"));

    facts.machine.rdma[0].state = "1: DOWN".to_owned();
    facts.machine.rdma[0].mtu_bytes = Some(1024);
    facts.machine.rdma[0].addresses[0].chosen = false;
    facts.rdma_counters = vec![("mlx5_0:1".to_owned(), "packet_seq_err".to_owned(), 7)];
    for (name, words) in [
        ("RDMA link", "ip link set eth0 up"),
        ("RDMA MTU", "ip link set eth0 mtu 9000"),
        ("RDMA address", "NCCL_IB_GID_INDEX"),
        ("RDMA counters", "priority flow control"),
    ] {
        let check = check(&facts, name);
        assert!(check.verdict == Verdict::Warn && check.fix.unwrap().contains(words), "{name}");
    }
}
