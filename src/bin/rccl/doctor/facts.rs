//! What the checks judge: gathered first, so that judging is pure.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{Resource, getrlimit},
    thread::futex,
};

use crate::{
    sys::{self, Mapping},
    topo::{Machine, net, tree::Tree},
};

/// Everything that the checks look at.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) machine: Machine,
    /// Ranks that shall run on this machine.
    pub(super) ranks: u32,
    /// Descriptors this process may open; `None` is no limit.
    pub(super) descriptors: Option<u64>,
    /// Bytes this process may lock; `None` is no limit.
    pub(super) locked_bytes: Option<u64>,
    /// Whether memory without a file can be shared, and why not.
    pub(super) shared_memory: Result<(), String>,
    /// Whether a waiter in one mapping can be woken through another, and why not.
    pub(super) futex: Result<(), String>,
    /// Whether a byte gets through a connection to this machine by IP version 4, and why not.
    pub(super) loopback_v4: Result<(), String>,
    /// The same by version 6.
    pub(super) loopback_v6: Result<(), String>,
    /// Instruction sets the reduction can use, best first.
    pub(super) instructions: Vec<&'static str>,
    /// The process's environment.
    pub(super) environment: Vec<(String, String)>,
    /// What the library says of its variables.
    pub(super) library_options: Result<(), String>,
    /// The RDMA port that would be used, or why there is none.
    pub(super) rdma: Result<String, String>,
    /// The counters of RDMA ports: port, counter, value.
    pub(super) rdma_counters: Vec<(String, String, u64)>,
    /// Libraries forced into every process by the system.
    pub(super) preload_file: Option<String>,
    /// Bridges above GPUs with the control bits of their access control services; `None` where the kernel does not show
    /// them (without root).
    pub(super) access_control: Vec<(String, Option<u16>)>,
}

impl Facts {
    pub(super) fn gather(ranks: Option<u32>) -> Self {
        let machine = Machine::here();
        let tree = Tree::machine();
        let gpus = u32::try_from(machine.gpus.len()).unwrap_or(u32::MAX);
        Self {
            ranks: ranks.unwrap_or(gpus.max(2)),
            descriptors: getrlimit(Resource::Nofile).current,
            locked_bytes: getrlimit(Resource::Memlock).current,
            shared_memory: sys::shared_memory().map(drop).map_err(|error| error.to_string()),
            futex: futex_across_mappings().map_err(|error| error.to_string()),
            loopback_v4: loopback(Ipv4Addr::LOCALHOST.into()).map_err(|error| error.to_string()),
            loopback_v6: loopback(Ipv6Addr::LOCALHOST.into()).map_err(|error| error.to_string()),
            instructions: instructions(),
            environment: std::env::vars_os()
                .map(|(key, value)| {
                    (key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
                })
                .collect(),
            library_options: rccl::Options::from_env().map(drop).map_err(|error| error.to_string()),
            rdma: rdma().map_err(|error| error.to_string()),
            rdma_counters: rdma_counters(&machine),
            preload_file: tree.text("/etc/ld.so.preload").filter(|text| !text.is_empty()),
            access_control: access_control(&tree, &machine),
            machine,
        }
    }

    /// The value of a variable that is set and not empty.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let (_, value) = self.environment.iter().find(|(key, value)| key == name && !value.is_empty())?;
        Some(value)
    }

    /// Interfaces that lead out of the machine and are up.
    pub(super) fn outward(&self) -> impl Iterator<Item = &net::Interface> {
        let leads_out = |it: &&net::Interface| {
            matches!(it.kind, net::Kind::Hardware | net::Kind::Paravirtual) && it.state != "down"
        };
        self.machine.interfaces.iter().filter(leads_out)
    }
}

/// The port that the library would take.
fn rdma() -> rccl_transport::Result<String> {
    let options = rccl_transport::verbs::Options::from_env()?;
    let (device, port) = options.choose(&rccl_transport::verbs::devices()?)?;
    Ok(format!("{} port {}", device.name, port.number))
}

fn rdma_counters(machine: &Machine) -> Vec<(String, String, u64)> {
    let of = |it: &net::Rdma| {
        let port = format!("{}:{}", it.device, it.port);
        let counters = rccl_transport::verbs::counters(&it.device, u8::try_from(it.port).unwrap_or(1));
        counters.into_iter().map(move |(name, value)| (port.clone(), name, value))
    };
    machine.rdma.iter().flat_map(of).collect()
}

/// How long each of the trials may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Two mappings of the same memory: a thread sleeps on a word of one, and is woken through the other.
fn futex_across_mappings() -> io::Result<()> {
    let memory = sys::shared_memory()?;
    let (sleeper, waker) = (Mapping::new(&memory)?, Mapping::new(&memory)?);
    waker.word().store(7, Ordering::Release);
    if sleeper.word().load(Ordering::Acquire) != 7 {
        return Err(io::Error::other("two mappings of the same memory show different bytes"));
    }
    let patience = rustix::time::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| futex::wait(sleeper.word(), futex::Flags::empty(), 7, Some(&patience)));
        let deadline = Instant::now() + PATIENCE;
        // A wake that finds a sleeper is the proof; until the thread sleeps, wakes find none.
        while !sleeping.is_finished() && Instant::now() < deadline {
            if futex::wake(waker.word(), futex::Flags::empty(), 1)? == 1 {
                return Ok(());
            }
            thread::yield_now();
        }
        Err(io::Error::other("a waiter in one mapping is not woken through another mapping"))
    })
}

/// Sends one byte through a connection between two sockets of this process.
fn loopback(address: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind(SocketAddr::new(address, 0))?;
    let mut sender = TcpStream::connect_timeout(&listener.local_addr()?, PATIENCE)?;
    // The connection is established, so it is waiting to be accepted.
    let (mut receiver, _) = listener.accept()?;
    sender.set_write_timeout(Some(PATIENCE))?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    sender.write_all(&[42])?;
    let mut byte = [0];
    receiver.read_exact(&mut byte)?;
    if byte == [42] { Ok(()) } else { Err(io::Error::other("another byte arrived than was sent")) }
}

#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<&'static str> {
    let known = [
        ("AVX-512", std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bw")),
        ("AVX2", std::is_x86_feature_detected!("avx2")),
        ("F16C", std::is_x86_feature_detected!("f16c")),
        ("FMA", std::is_x86_feature_detected!("fma")),
    ];
    known.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

#[cfg(target_arch = "aarch64")]
fn instructions() -> Vec<&'static str> {
    let known = [
        ("NEON", std::arch::is_aarch64_feature_detected!("neon")),
        ("FP16", std::arch::is_aarch64_feature_detected!("fp16")),
    ];
    known.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instructions() -> Vec<&'static str> {
    Vec::new()
}

fn access_control(tree: &Tree, machine: &Machine) -> Vec<(String, Option<u16>)> {
    let mut bridges: Vec<String> = machine
        .gpus
        .iter()
        .flat_map(|gpu| gpu.bridges.iter().filter(|it| !it.starts_with("pci")).cloned())
        .collect();
    bridges.sort();
    bridges.dedup();
    bridges
        .into_iter()
        .filter_map(|bridge| {
            let config = tree.bytes(&format!("/sys/bus/pci/devices/{bridge}/config"))?;
            // Without root the kernel shows the first 64 bytes only.
            if config.len() < 4096 {
                return Some((bridge, None));
            }
            access_control_bits(&config).map(|bits| (bridge, Some(bits)))
        })
        .collect()
}

/// The control register of the access control services in a PCI Express configuration space, if the device has them.
fn access_control_bits(config: &[u8]) -> Option<u16> {
    const ACCESS_CONTROL_SERVICES: u32 = 0x000d;
    let mut offset = 0x100;
    // Each capability takes at least 8 of the 3840 bytes; a list that is longer runs in a circle.
    for _ in 0..480 {
        let header = u32::from_le_bytes(config.get(offset..offset + 4)?.try_into().ok()?);
        if header & 0xffff == ACCESS_CONTROL_SERVICES {
            return Some(u16::from_le_bytes(config.get(offset + 6..offset + 8)?.try_into().ok()?));
        }
        offset = (header >> 20) as usize & !3;
        if offset < 0x100 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_control_is_found_behind_other_capabilities() {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&(0x0001_u32 | 1 << 16 | 0x148 << 20).to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&(0x000d_u32 | 1 << 16).to_le_bytes());
        config[0x14e..0x150].copy_from_slice(&0x001d_u16.to_le_bytes());
        assert_eq!(access_control_bits(&config), Some(0x1d));
    }

    #[test]
    fn no_access_control() {
        assert_eq!(access_control_bits(&vec![0; 4096]), None);
        let mut circle = vec![0; 4096];
        circle[0x100..0x104].copy_from_slice(&(0x0001_u32 | 0x100 << 20).to_le_bytes());
        assert_eq!(access_control_bits(&circle), None);
        assert_eq!(access_control_bits(&[0; 64]), None);
    }

    #[test]
    fn the_trials_work_where_tests_run() {
        assert!(sys::shared_memory().is_ok());
        futex_across_mappings().unwrap();
        loopback(Ipv4Addr::LOCALHOST.into()).unwrap();
    }
}
