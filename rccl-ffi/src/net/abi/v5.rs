//! Version 5: NCCL 2.12 and later; the oldest table with receives in groups and connections that do not block.

use std::ffi::{c_char, c_int, c_void};

use super::{Logger, NcclResult, assert_layout, shared};
use crate::net::device::Description;

/// What a device is: `ncclNetProperties_v5_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Properties {
    /// Its name.
    pub name: *const c_char,
    /// Where in /sys its PCI device is; NULL if it has none.
    pub pci_path: *const c_char,
    /// Tells it from other devices.
    pub guid: u64,
    /// Kinds of memory that can be registered, a bit each.
    pub ptr_support: c_int,
    /// In Mbit/s.
    pub speed: c_int,
    /// The port of the adapter.
    pub port: c_int,
    /// In microseconds, 0 if unknown.
    pub latency: f32,
    /// The most connections.
    pub max_comms: c_int,
    /// The most receives in one group that NCCL shall post.
    pub max_recvs: c_int,
}

impl From<&Description> for Properties {
    fn from(it: &Description) -> Self {
        Self {
            name: it.name.as_ptr(),
            pci_path: it.pci_path_pointer(),
            guid: it.guid,
            ptr_support: super::PTR_HOST,
            speed: it.speed_mbps,
            port: 0,
            latency: 0.0,
            max_comms: it.max_connections,
            max_recvs: 1,
        }
    }
}

assert_layout!(Properties: 48; ptr_support 24 speed 28 latency 36 max_recvs 44);

/// The table.
#[derive(Debug)]
#[repr(C)]
pub struct Net {
    /// The plugin's name.
    pub name: *const c_char,
    /// Prepares the plugin.
    pub init: Option<unsafe extern "C" fn(Option<Logger>) -> NcclResult>,
    /// How many devices there are.
    pub devices: Option<unsafe extern "C" fn(*mut c_int) -> NcclResult>,
    /// What a device is.
    pub properties: Option<unsafe extern "C" fn(c_int, *mut Properties) -> NcclResult>,
    /// Listens.
    pub listen: Option<unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> NcclResult>,
    /// Connects, polled.
    pub connect: Option<unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> NcclResult>,
    /// Takes the next connection, polled.
    pub accept: Option<unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> NcclResult>,
    /// Registers memory.
    pub reg_mr:
        Option<unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, c_int, *mut *mut c_void) -> NcclResult>,
    /// Deregisters memory.
    pub dereg_mr: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> NcclResult>,
    /// Sends.
    pub isend: Option<
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            c_int,
            c_int,
            *mut c_void,
            *mut *mut c_void,
        ) -> NcclResult,
    >,
    /// Receives.
    pub irecv: Option<
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut *mut c_void,
            *mut c_int,
            *mut c_int,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> NcclResult,
    >,
    /// Makes received bytes visible to a device.
    pub iflush: Option<
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut *mut c_void,
            *mut c_int,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> NcclResult,
    >,
    /// Whether a request is done.
    pub test: Option<unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> NcclResult>,
    /// Ends a sending side.
    pub close_send: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
    /// Ends a receiving side.
    pub close_recv: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
    /// Ends a listener.
    pub close_listen: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
}

// SAFETY: the table is constant, and its entries may be called from any thread.
unsafe impl Sync for Net {}

/// What NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // NCCL's name.
pub static ncclNetPlugin_v5: Net = Net {
    name: shared::NAME,
    init: Some(shared::init),
    devices: Some(shared::devices),
    properties: Some(shared::properties::<Properties>),
    listen: Some(shared::listen),
    connect: Some(shared::connect),
    accept: Some(shared::accept),
    reg_mr: Some(shared::register_int),
    dereg_mr: Some(shared::deregister),
    isend: Some(shared::send_int),
    irecv: Some(shared::receive_int),
    iflush: Some(shared::flush),
    test: Some(shared::test),
    close_send: Some(shared::close_send),
    close_recv: Some(shared::close_receive),
    close_listen: Some(shared::close_listen),
};

assert_layout!(Net: 128; name 0 init 8 close_listen 120);
