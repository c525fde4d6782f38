//! Version 11: NCCL 2.28 and later: a context for each communicator.

use std::ffi::{c_char, c_int, c_void};

use super::{
    Attributes, CommConfig, DeviceList, FourDevices, Logger, NcclResult, Profiler, assert_layout, shared,
};
use crate::net::device::Description;

/// What a device is: `ncclNetProperties_v11_t`.
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
    /// The most requests that can be made into one.
    pub max_multi_request_size: c_int,
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
            max_multi_request_size: 1,
        }
    }
}

assert_layout!(Properties: 112; v_props 64 max_p2p_bytes 88 max_coll_bytes 96 max_multi_request_size 104);

/// A table, of properties `P` and lists of devices `L`: later versions have other ones, and the same functions.
#[derive(Debug)]
#[repr(C)]
pub struct Table<P, L> {
    /// The plugin's name.
    pub name: *const c_char,
    /// Prepares the plugin for a communicator.
    pub init: Option<
        unsafe extern "C" fn(
            *mut *mut c_void,
            u64,
            *const CommConfig,
            Option<Logger>,
            Option<Profiler>,
        ) -> NcclResult,
    >,
    /// How many devices there are.
    pub devices: Option<unsafe extern "C" fn(*mut c_int) -> NcclResult>,
    /// What a device is.
    pub properties: Option<unsafe extern "C" fn(c_int, *mut P) -> NcclResult>,
    /// Listens.
    pub listen: Option<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> NcclResult>,
    /// Connects, polled.
    pub connect: Option<
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> NcclResult,
    >,
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
    pub make_v_device: Option<unsafe extern "C" fn(*mut c_int, *mut L) -> NcclResult>,
    /// Ends what `init` began.
    pub finalize: Option<unsafe extern "C" fn(*mut c_void) -> NcclResult>,
    /// NULL: nothing here depends on it.
    pub set_net_attr: Option<unsafe extern "C" fn(*mut c_void, *mut Attributes) -> NcclResult>,
}

// SAFETY: the table is constant, and its entries may be called from any thread.
unsafe impl<P, L> Sync for Table<P, L> {}

impl<P: super::Properties, L: DeviceList> Table<P, L> {
    /// Its functions.
    pub(super) const NEW: Self = Self {
        name: shared::NAME,
        init: Some(shared::init_v11),
        devices: Some(shared::devices),
        properties: Some(shared::properties::<P>),
        listen: Some(shared::listen_v11),
        connect: Some(shared::connect_v11),
        accept: Some(shared::accept_v7),
        reg_mr: Some(shared::register),
        reg_mr_dma_buf: None,
        dereg_mr: Some(shared::deregister),
        isend: Some(shared::send_v10),
        irecv: Some(shared::receive_v10),
        iflush: Some(shared::flush),
        test: Some(shared::test),
        close_send: Some(shared::close_send),
        close_recv: Some(shared::close_receive),
        close_listen: Some(shared::close_listen),
        device_mr: None,
        irecv_consumed: None,
        make_v_device: Some(shared::make_virtual::<L>),
        finalize: Some(shared::finalize),
        set_net_attr: None,
    };
}

/// The table: `ncclNet_v11_t`.
pub type Net = Table<Properties, FourDevices>;

/// What NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // NCCL's name.
pub static ncclNetPlugin_v11: Net = Net::NEW;

assert_layout!(Net: 176; name 0 init 8 set_net_attr 168);
