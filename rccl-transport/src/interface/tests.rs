use super::*;

fn interface(name: &str, kind: Kind, speed_mbps: u32, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    Interface { name: name.into(), kind, speed_mbps, pci_path: None, addresses }
}

fn machine() -> Vec<Interface> {
    vec![
        interface("lo", Kind::Loopback, 0, &["127.0.0.1:0", "[::1]:0"]),
        interface("docker0", Kind::Virtual, 10_000, &["172.17.0.1:0"]),
        interface("eth0", Kind::Real, 1000, &["10.0.0.1:0", "[fe80::1%2]:0", "[2001:db8::1]:0"]),
        interface("eth1", Kind::Real, 100_000, &["10.1.0.1:0"]),
    ]
}

fn choice(variables: &[(&str, &str)]) -> Result<Choice> {
    Choice::from_lookup(|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    })
}

fn chosen(variables: &[(&str, &str)]) -> Vec<String> {
    let addresses = choice(variables).unwrap().among(&machine()).unwrap();
    addresses.iter().map(|address| address.ip().to_string()).collect()
}

#[test]
fn real_and_fast_comes_first_and_loopback_last() {
    let all = ["10.1.0.1", "10.0.0.1", "2001:db8::1", "fe80::1", "172.17.0.1", "127.0.0.1", "::1"];
    assert_eq!(chosen(&[]), all);
    let loopback = Choice::loopback().among(&machine()).unwrap();
    assert_eq!(loopback, ["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()]);
}

#[test]
fn variables_mean_what_they_mean_to_nccl() {
    assert_eq!(
        chosen(&[("NCCL_SOCKET_IFNAME", "eth"), ("NCCL_SOCKET_FAMILY", "AF_INET")]),
        ["10.1.0.1", "10.0.0.1"]
    );
    assert_eq!(chosen(&[("NCCL_SOCKET_IFNAME", "=eth1,lo"), ("NCCL_SOCKET_FAMILY", "AF_INET6")]), ["::1"]);
    assert_eq!(chosen(&[("NCCL_SOCKET_IFNAME", "^docker,lo,eth0")]), ["10.1.0.1"]);
    assert_eq!(chosen(&[("NCCL_SOCKET_IFNAME", "^=docker,lo,eth0")]), ["10.1.0.1", "172.17.0.1"]);
    assert_eq!(chosen(&[("NCCL_SOCKET_IFNAME", "eth0"), ("RCCL_SOCKET_IFNAME", "docker")]), ["172.17.0.1"]);
}

#[test]
fn nonsense_names_its_variable() {
    for value in ["", "^", "=", "eth0,", "a/b", "eth 0", "^^eth", "sixteen_letters_"] {
        let error = choice(&[("NCCL_SOCKET_IFNAME", value)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("NCCL_SOCKET_IFNAME is `{value}`: ")), "{error}");
    }
    let error = choice(&[("NCCL_SOCKET_FAMILY", "ipv4")]).unwrap_err().to_string();
    assert_eq!(error, "NCCL_SOCKET_FAMILY is `ipv4`: it is AF_INET or AF_INET6");
}

#[test]
fn a_variable_that_leaves_nothing_is_named_with_what_there_is() {
    let error = choice(&[("RCCL_SOCKET_IFNAME", "wlan")]).unwrap().among(&machine()).unwrap_err().to_string();
    assert!(error.starts_with("RCCL_SOCKET_IFNAME is `wlan`"), "{error}");
    assert!(error.ends_with("lo, docker0, eth0, eth1"), "{error}");
    let six = [("RCCL_SOCKET_IFNAME", "eth1"), ("NCCL_SOCKET_FAMILY", "AF_INET6")];
    let error = choice(&six).unwrap().among(&machine()).unwrap_err().to_string();
    assert!(error.starts_with("NCCL_SOCKET_FAMILY is `AF_INET6`"), "{error}");
    let error = Choice::any().among(&[]).unwrap_err().to_string();
    assert!(error.starts_with("the network cannot be used here"), "{error}");
}

#[test]
fn sysfs_tells_what_lies_under_an_interface() {
    let directory = tempfile::tempdir().unwrap();
    let net = directory.path().join("net");
    let device = directory.path().join("devices/pci0000:00/0000:00:01.0/0000:02:00.1/virtio0");
    fs::create_dir_all(&device).unwrap();
    for path in
        ["eth0", "bond0/lower_eth0", "br0/lower_bond0", "docker0/lower_veth1", "veth1", "loop/lower_loop"]
    {
        fs::create_dir_all(net.join(path)).unwrap();
    }
    std::os::unix::fs::symlink(&device, net.join("eth0/device")).unwrap();
    fs::write(net.join("eth0/speed"), "25000\n").unwrap();
    fs::write(net.join("veth1/speed"), "-1\n").unwrap();
    let kinds = ["eth0", "bond0", "br0", "docker0", "veth1", "loop", "gone"].map(|name| kind(&net, name, 0));
    let [real, none] = [Kind::Real, Kind::Virtual];
    assert_eq!(kinds, [real, real, real, none, none, none, none]);
    assert_eq!(["eth0", "veth1", "gone"].map(|name| speed_mbps(&net, name)), [25000, 0, 0]);
    assert_eq!(pci_path(&net, "eth0").unwrap(), "pci0000:00/0000:00:01.0/0000:02:00.1");
    assert_eq!(pci_path(&net, "veth1"), None);
}

#[test]
fn this_machine_has_a_loopback_interface() {
    let here = interfaces().unwrap();
    assert!(here.iter().any(|interface| interface.kind == Kind::Loopback), "{here:?}");
}

#[test]
fn link_local_addresses_are_tried_in_every_scope_of_this_host() {
    let [far, other] = ["[fe80::9]:7", "10.0.0.9:7"].map(|text| text.parse::<SocketAddr>().unwrap());
    assert_eq!(scoped(&far, &[2, 5]), ["[fe80::9%2]:7".parse().unwrap(), "[fe80::9%5]:7".parse().unwrap()]);
    assert_eq!(scoped(&other, &[2, 5]), [other]);
    assert_eq!(with_scopes(&[other]).unwrap(), [other]);
}
