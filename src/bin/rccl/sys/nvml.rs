//! NVIDIA's management library, loaded at run time where there is one: what joins two GPUs.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    ptr,
};

use libloading::Library;

const SUCCESS: c_int = 0;
const ENABLED: c_uint = 1;
/// Links that a GPU has at most, more than any has so far.
const MOST_LINKS: c_uint = 64;
const READS: c_int = 0;
const WRITES: c_int = 1;

type Device = *mut c_void;

/// Where a device is on the bus.
#[repr(C)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

/// The library, ready for use. It is never unloaded.
pub(crate) struct Nvml {
    device_by_bus_id: unsafe extern "C" fn(*const c_char, *mut Device) -> c_int,
    link_state: unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_int,
    link_remote: unsafe extern "C" fn(Device, c_uint, *mut PciInfo) -> c_int,
    peer_status: unsafe extern "C" fn(Device, Device, c_int, *mut c_int) -> c_int,
    shutdown: unsafe extern "C" fn() -> c_int,
}

impl Nvml {
    /// Loads and starts it; none where that is impossible: no driver, or one without these functions.
    pub(crate) fn load() -> Option<Self> {
        // SAFETY: it is the driver's library.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: NVML's function of this name has this type.
        let init: unsafe extern "C" fn() -> c_int = *unsafe { library.get(b"nvmlInit_v2\0") }.ok()?;
        let nvml = Self {
            // SAFETY: NVML's function of this name has the field's type, as have those below.
            device_by_bus_id: *unsafe { library.get(b"nvmlDeviceGetHandleByPciBusId_v2\0") }.ok()?,
            // SAFETY: as above.
            link_state: *unsafe { library.get(b"nvmlDeviceGetNvLinkState\0") }.ok()?,
            // SAFETY: as above.
            link_remote: *unsafe { library.get(b"nvmlDeviceGetNvLinkRemotePciInfo_v2\0") }.ok()?,
            // SAFETY: as above.
            peer_status: *unsafe { library.get(b"nvmlDeviceGetP2PStatus\0") }.ok()?,
            // SAFETY: as above.
            shutdown: *unsafe { library.get(b"nvmlShutdown\0") }.ok()?,
        };
        std::mem::forget(library);
        // SAFETY: may be called at any time.
        let started = unsafe { init() } == SUCCESS;
        // What did not start must not be shut down.
        if started {
            Some(nvml)
        } else {
            std::mem::forget(nvml);
            None
        }
    }

    fn device(&self, address: &str) -> Option<Device> {
        let address = CString::new(address).ok()?;
        let mut device = ptr::null_mut();
        // SAFETY: reads a C string, writes one handle.
        let code = unsafe { (self.device_by_bus_id)(address.as_ptr(), &raw mut device) };
        (code == SUCCESS).then_some(device)
    }

    /// What is at the other end of each active NVLink of the GPU at a PCI address: a PCI address in small letters with a
    /// domain of four digits, or nothing where that is not told.
    pub(crate) fn links(&self, address: &str) -> Vec<Option<String>> {
        let Some(device) = self.device(address) else { return Vec::new() };
        (0..MOST_LINKS)
            .filter(|&link| self.active(device, link))
            .map(|link| self.remote(device, link))
            .collect()
    }

    fn active(&self, device: Device, link: c_uint) -> bool {
        let mut state = 0;
        // SAFETY: writes one number; links that do not exist are refused.
        let code = unsafe { (self.link_state)(device, link, &raw mut state) };
        code == SUCCESS && state == ENABLED
    }

    fn remote(&self, device: Device, link: c_uint) -> Option<String> {
        let mut info = PciInfo {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id: [0; 32],
        };
        // SAFETY: writes one `PciInfo`, whose layout is that of nvmlPciInfo_t.
        let code = unsafe { (self.link_remote)(device, link, &raw mut info) };
        (code == SUCCESS).then(|| format!("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device))
    }

    /// Whether the driver says that the first GPU can read and write the second's memory: 0 for yes, otherwise its reason.
    /// `None` if it does not tell.
    pub(crate) fn peer_status(&self, one: &str, other: &str) -> Option<i32> {
        let (one, other) = (self.device(one)?, self.device(other)?);
        let ask = |what| {
            let mut status = 0;
            // SAFETY: both handles are valid; writes one number.
            let code = unsafe { (self.peer_status)(one, other, what, &raw mut status) };
            (code == SUCCESS).then_some(status)
        };
        Some(ask(READS)?.max(ask(WRITES)?))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was started, once.
        unsafe { (self.shutdown)() };
    }
}

const _: () = assert!(size_of::<PciInfo>() == 68);
