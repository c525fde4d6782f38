//! Version 9: NCCL 2.24 and later: messages longer than 2 GiB, and devices made of several.

use std::ffi::{c_char, c_int, c_void};

use super::{DeviceList, FourDevices, Logger, NcclResult, assert_layout, shared};
use crate::net::device::Description;

/// What a device is: `ncclNetProperties_v9_t`.
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
    /// Whether a registration holds for all connections.
    pub reg_is_global: c_int,
    /// Whether received bytes must be flushed.
    pub force_flush: c_int,
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
    /// Whether part of the transport runs on the device: 0, on the host alone.
    pub net_device_type: c_int,
    /// Its version: 0, none.
    pub net_device_version: c_int,
    /// The devices it is made of; itself if it is physical.
    pub v_props: FourDevices,
    /// The longest message.
    pub max_p2p_bytes: usize,
    /// The longest message of a collective network.
    pub max_coll_bytes: usize,
}

impl From<&Description> for Properties {
    fn from(it: &Description) -> Self {
        Self {
            name: it.name.as_ptr(),
            pci_path: it.pci_path_pointer(),
            guid: it.guid,
            ptr_support: super::PTR_HOST,
            reg_is_global: 0,
            force_flush: 0,
            speed: it.speed_mbps,
            port: 0,
            latency: 0.0,
            max_comms: it.max_connections,
            max_recvs: 1,
            net_device_type: 0,
            net_device_version: 0,
            v_props: DeviceList::of(&it.parts),
            max_p2p_bytes: it.max_message_bytes,
            max_coll_bytes: it.max_message_bytes,
        }
    }
}

assert_layout!(Properties: 104; force_flush 32 speed 36 max_recvs 52 v_props 64 max_p2p_bytes 88 max_coll_bytes 96);

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
    pub connect:
        Option<unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> NcclResult>,
    /// Takes the next connection, polled.
    pub accept: Option<unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> NcclResult>,
    /// Registers memory.
    pub reg_mr:
        Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> NcclResult>,
    /// NULL: devices do not reach our buffers.
    pub reg_mr_dma_buf: Option<
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            usize,
            c_int,
            u64,
            c_int,
            *mut *mut c_void,
        ) -> NcclResult,
    >,
    /// Deregisters memory.
    pub dereg_mr: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> NcclResult>,
    /// Sends.
    pub isend: Option<
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            usize,
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
            *mut usize,
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
    /// NULL: there is no device side.
    pub device_mr: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> NcclResult>,
    /// NULL: nobody is to be told.
    pub irecv_consumed: Option<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> NcclResult>,
    /// Makes one device of several.
    pub make_v_device: Option<unsafe extern "C" fn(*mut c_int, *mut FourDevices) -> NcclResult>,
}

// SAFETY: the table is constant, and its entries may be called from any thread.
unsafe impl Sync for Net {}

/// What NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // NCCL's name.
pub static ncclNetPlugin_v9: Net = Net {
    name: shared::NAME,
    init: Some(shared::init),
    devices: Some(shared::devices),
    properties: Some(shared::properties::<Properties>),
    listen: Some(shared::listen),
    connect: Some(shared::connect_v7),
    accept: Some(shared::accept_v7),
    reg_mr: Some(shared::register),
    reg_mr_dma_buf: None,
    dereg_mr: Some(shared::deregister),
    isend: Some(shared::send),
    irecv: Some(shared::receive),
    iflush: Some(shared::flush),
    test: Some(shared::test),
    close_send: Some(shared::close_send),
    close_recv: Some(shared::close_receive),
    close_listen: Some(shared::close_listen),
    device_mr: None,
    irecv_consumed: None,
    make_v_device: Some(shared::make_virtual::<FourDevices>),
};

assert_layout!(Net: 160; name 0 init 8 make_v_device 152);
