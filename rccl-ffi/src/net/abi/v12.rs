//! Version 12: NCCL 2.30 and later: virtual devices of up to eight, rails and planes.

use std::ffi::{c_char, c_int};

use super::{DeviceList, EightDevices, assert_layout, v11::Table};
use crate::net::device::Description;

/// What a device is: `ncclNetProperties_v12_t`.
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
    pub v_props: EightDevices,
    /// The longest message.
    pub max_p2p_bytes: usize,
    /// The longest message of a collective network.
    pub max_coll_bytes: usize,
    /// The most requests that can be made into one.
    pub max_multi_request_size: c_int,
    /// The rail it is on: -1, not known.
    pub rail_id: i16,
    /// The plane it is on: -1, not known.
    pub plane_id: i16,
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
            rail_id: -1,
            plane_id: -1,
        }
    }
}

assert_layout!(Properties: 128; name 0 pci_path 8 guid 16 ptr_support 24 reg_is_global 28 force_flush 32 speed 36 port 40 latency 44 max_comms 48 max_recvs 52 net_device_type 56 net_device_version 60 v_props 64 max_p2p_bytes 104 max_coll_bytes 112 max_multi_request_size 120 rail_id 124 plane_id 126);

/// The table: `ncclNet_v12_t`, that of version 11 but for what describes devices.
pub type Net = Table<Properties, EightDevices>;

/// What NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // NCCL's name.
pub static ncclNetPlugin_v12: Net = Net::NEW;

assert_layout!(Net: 176; name 0 init 8 set_net_attr 168);
