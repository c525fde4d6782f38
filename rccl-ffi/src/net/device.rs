//! The devices that NCCL is told of: one for each network interface that may be used, and those that it made of several.

use std::{
    ffi::{CString, c_char, c_int},
    sync::OnceLock,
};

use parking_lot::RwLock;
use rccl_transport::{HostId, interface::Interface};

use super::{Failure, Outcome, settings::settings};

/// What NCCL itself assumes of an interface that does not tell its speed.
const UNKNOWN_SPEED_MBPS: u32 = 10_000;

/// As many connections as there are ports.
const MAX_CONNECTIONS: c_int = 65_536;

/// The longest message: what NCCL allows.
const MAX_MESSAGE_BYTES: usize = 1 << 40;

/// Devices that NCCL may make besides the physical ones.
const MAX_VIRTUAL: usize = 1024;

/// A device.
#[derive(Debug)]
pub struct Description {
    /// The interface's name; of several, their names joined by `+`.
    pub name: CString,
    /// Where in /sys its PCI device is.
    pub pci_path: Option<CString>,
    /// Tells it from the devices of this and other machines.
    pub guid: u64,
    /// Nominal speed in Mbit/s, of all interfaces together.
    pub speed_mbps: c_int,
    /// The most connections it takes.
    pub max_connections: c_int,
    /// The longest message in bytes.
    pub max_message_bytes: usize,
    /// The physical devices it is made of; itself if it is one.
    pub parts: Vec<c_int>,
    /// Their interfaces, in the same order.
    pub interfaces: Vec<Interface>,
}

impl Description {
    /// The path for C, NULL if there is none.
    #[must_use]
    pub fn pci_path_pointer(&self) -> *const c_char {
        self.pci_path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr())
    }

    fn physical(index: c_int, interface: Interface) -> Self {
        let path = interface.pci_path.as_ref().map(|path| format!("/sys/devices/{path}"));
        Self {
            guid: guid(path.as_deref().unwrap_or(&interface.name)),
            name: c_string(interface.name.clone()),
            pci_path: path.map(c_string),
            speed_mbps: speed(&interface),
            max_connections: MAX_CONNECTIONS,
            max_message_bytes: MAX_MESSAGE_BYTES,
            parts: vec![index],
            interfaces: vec![interface],
        }
    }

    fn fused(members: &[&Self]) -> Self {
        let names: Vec<_> = members.iter().map(|member| member.name.to_string_lossy()).collect();
        let name = names.join("+");
        Self {
            guid: guid(&name),
            name: c_string(name),
            pci_path: members[0].pci_path.clone(),
            speed_mbps: members.iter().fold(0, |sum, member| sum.saturating_add(member.speed_mbps)),
            max_connections: MAX_CONNECTIONS,
            max_message_bytes: MAX_MESSAGE_BYTES,
            parts: members.iter().flat_map(|member| member.parts.iter().copied()).collect(),
            interfaces: members.iter().flat_map(|member| member.interfaces.iter().cloned()).collect(),
        }
    }
}

fn speed(interface: &Interface) -> c_int {
    let known = Some(interface.speed_mbps).filter(|&mbps| mbps > 0);
    c_int::try_from(known.unwrap_or(UNKNOWN_SPEED_MBPS)).unwrap_or(c_int::MAX)
}

fn c_string(text: String) -> CString {
    CString::new(text.replace('\0', "")).expect("no zero is left")
}

/// A number for a place in this machine (64-bit FNV-1a).
fn guid(place: &str) -> u64 {
    let machine = HostId::machine().map_or([0; 16], |id| id.0);
    let bytes = machine.iter().chain(place.as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The devices of this process, by number. NCCL keeps pointers into them, so they are never freed; interfaces that
/// appear later are not looked for, since numbers must go on meaning the same.
#[derive(Debug)]
pub(super) struct Devices(RwLock<Vec<&'static Description>>);

impl Devices {
    /// The devices of this process, found at the first call.
    ///
    /// # Errors
    /// A variable that leaves none, or what the operating system says; the same at every call.
    pub(super) fn of_process() -> Outcome<&'static Self> {
        static DEVICES: OnceLock<Outcome<Devices>> = OnceLock::new();
        DEVICES.get_or_init(Self::find).as_ref().map_err(Clone::clone)
    }

    fn find() -> Outcome<Self> {
        let interfaces = settings()?.choice.interfaces()?;
        Ok(Self::of(interfaces))
    }

    fn of(interfaces: Vec<Interface>) -> Self {
        let numbered = (0..).zip(interfaces);
        let physical = numbered.map(|(index, it)| &*Box::leak(Box::new(Description::physical(index, it))));
        Self(RwLock::new(physical.collect()))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.read().len()
    }

    /// The device with this number.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn by_number(&self, number: c_int) -> Outcome<&'static Description> {
        let devices = self.0.read();
        let found = usize::try_from(number).ok().and_then(|index| devices.get(index).copied());
        found.ok_or_else(|| Failure::argument(format!("there is no device {number} of {}", devices.len())))
    }

    /// The number of the device made of these. Made at the first call; a single device is itself.
    ///
    /// # Errors
    /// If there are none, if one does not exist or stands there twice, or if too many have been made.
    pub(super) fn fuse(&self, numbers: &[c_int]) -> Outcome<c_int> {
        if let [one] = *numbers {
            return self.by_number(one).map(|_| one);
        }
        let members = numbers.iter().map(|&number| self.by_number(number)).collect::<Outcome<Vec<_>>>()?;
        if members.is_empty() {
            return Err(Failure::argument("a virtual device made of none"));
        }
        let fused = Description::fused(&members);
        let repeated = |(at, part): (usize, &c_int)| fused.parts[..at].contains(part);
        if fused.parts.iter().enumerate().any(repeated) {
            return Err(Failure::argument(format!("a virtual device of {:?}", fused.parts)));
        }
        let mut devices = self.0.write();
        if let Some(known) = devices.iter().position(|it| it.parts == fused.parts) {
            return Ok(known as c_int);
        }
        if devices.len() >= MAX_VIRTUAL {
            return Err(Failure::argument(format!("there are {MAX_VIRTUAL} devices already")));
        }
        devices.push(Box::leak(Box::new(fused)));
        Ok(devices.len() as c_int - 1)
    }
}

#[cfg(test)]
mod tests {
    use rccl_transport::interface::Kind;

    use super::*;

    fn interface(name: &str, speed_mbps: u32, pci: Option<&str>) -> Interface {
        let addresses = vec!["10.0.0.1:0".parse().unwrap()];
        Interface {
            name: name.into(),
            kind: Kind::Real,
            speed_mbps,
            pci_path: pci.map(Into::into),
            addresses,
        }
    }

    #[test]
    fn devices_keep_their_numbers_when_some_are_fused() {
        let pci = Some("pci0000:00/0000:00:01.0");
        let devices = Devices::of(vec![interface("eth0", 25_000, pci), interface("eth1", 0, None)]);
        let one = devices.by_number(0).unwrap();
        assert_eq!(one.pci_path.as_deref(), Some(c"/sys/devices/pci0000:00/0000:00:01.0"));
        assert_ne!(one.guid, devices.by_number(1).unwrap().guid);
        assert!(devices.by_number(1).unwrap().pci_path_pointer().is_null());
        assert_eq!(devices.fuse(&[1]).unwrap(), 1);
        assert_eq!([devices.fuse(&[0, 1]).unwrap(), devices.fuse(&[0, 1]).unwrap()], [2, 2]);
        let both = devices.by_number(2).unwrap();
        assert_eq!((&*both.name, both.speed_mbps, devices.count()), (c"eth0+eth1", 35_000, 3));
        for nonsense in [&[][..], &[0, 0], &[0, 2], &[0, 7], &[-1]] {
            assert!(devices.fuse(nonsense).is_err(), "{nonsense:?}");
        }
    }
}
