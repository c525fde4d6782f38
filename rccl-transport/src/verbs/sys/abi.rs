//! The C side of libibverbs: the structs and constants that are used, laid out as its headers say.
//!
//! Enums are plain integers: a newer library may return a value that nobody knew when this was compiled. Of structs that
//! the library allocates, only the beginning is described. `lab/reference` compares all of this with rdma-core's headers.

#![allow(non_camel_case_types, missing_docs)]

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::offset_of,
};

/// The data path of a device, in its order; the slots named `_` are served by the library's exported functions.
#[repr(C)]
pub struct ibv_context_ops {
    _control: [*const c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _shared: [*const c_void; 12],
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _rest: [*const c_void; 5],
}

/// An opened device, as far as it is looked at.
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// A device of the list; opaque.
#[repr(C)]
pub struct ibv_device {
    _opaque: [u8; 0],
}

/// A protection domain; opaque.
#[repr(C)]
pub struct ibv_pd {
    _opaque: [u8; 0],
}

/// A completion channel.
#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// A completion queue, as far as it is looked at.
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// A queue pair, as far as it is looked at.
#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
}

/// A memory registration.
#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// What a device can do.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ibv_device_attr {
    pub fw_ver: [u8; 64],
    /// Big endian.
    pub node_guid: u64,
    /// Big endian.
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    _atomics: [c_int; 6],
    _rest: [c_int; 14],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// The state of a port.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ibv_port_attr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Of libraries newer than those of 2023; room for them to write.
    _newer: [u32; 4],
}

/// A piece of local memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A request to send or to write.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: c_uint,
    /// Big endian.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub(super) _union: [u32; 5],
    pub(super) _qp_type: [u64; 7],
}

/// A request to receive.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

/// A completion.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Big endian.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// Sizes of a queue pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// How a queue pair is made.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// The global part of a path.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(8))]
pub struct ibv_global_route {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// A path.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// What a queue pair is changed to.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_qp_attr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// Something that happened to a device.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ibv_async_event {
    /// A pointer to what it happened to, or a port's number in the low half.
    pub element: u64,
    pub event_type: u32,
}

macro_rules! layout {
    ($($struct:ident $size:literal { $($field:ident $offset:literal),* $(,)? })*) => {
        /// Name, field ("" for the whole) and its size or offset in bytes, of everything that is used.
        pub const LAYOUT: &[(&str, &str, usize)] = &[
            $((stringify!($struct), "", size_of::<$struct>()),
            $((stringify!($struct), stringify!($field), offset_of!($struct, $field)),)*)*
        ];
        $(const _: () = assert!(size_of::<$struct>() == $size);
        $(const _: () = assert!(offset_of!($struct, $field) == $offset);)*)*
    };
}

// Sizes of structs that the library allocates are those of the part described, and are left out of the comparison.
#[cfg(target_pointer_width = "64")]
layout! {
    ibv_context_ops 256 { poll_cq 88, req_notify_cq 96, post_send 200, post_recv 208 }
    ibv_context 280 { ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272 }
    ibv_comp_channel 16 { fd 8 }
    ibv_cq 32 { cqe 28 }
    ibv_qp 56 { qp_num 52 }
    ibv_mr 48 { lkey 36, rkey 40 }
    ibv_device_attr 232 {
        node_guid 64, vendor_id 96, max_qp_wr 112, max_cqe 132, local_ca_ack_delay 226, phys_port_cnt 227,
    }
    ibv_port_attr 68 {
        state 0, active_mtu 8, gid_tbl_len 12, max_msg_sz 20, lid 34, active_width 43, active_speed 44, link_layer 46,
    }
    ibv_sge 16 { addr 0, length 8, lkey 12 }
    ibv_send_wr 128 {
        wr_id 0, next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32, imm_data 36, remote_addr 40, rkey 48,
    }
    ibv_recv_wr 32 { wr_id 0, next 8, sg_list 16, num_sge 24 }
    ibv_wc 48 {
        wr_id 0, status 8, opcode 12, vendor_err 16, byte_len 20, imm_data 24, qp_num 28, wc_flags 36,
    }
    ibv_qp_cap 20 { max_inline_data 16 }
    ibv_qp_init_attr 64 { send_cq 8, recv_cq 16, cap 32, qp_type 52, sq_sig_all 56 }
    ibv_global_route 24 { dgid 0, flow_label 16, sgid_index 20, hop_limit 21, traffic_class 22 }
    ibv_ah_attr 32 { grh 0, dlid 24, sl 26, is_global 29, port_num 30 }
    ibv_qp_attr 144 {
        qp_state 0, path_mtu 8, rq_psn 20, sq_psn 24, dest_qp_num 28, qp_access_flags 32, ah_attr 56, pkey_index 120,
        max_rd_atomic 126, max_dest_rd_atomic 127, min_rnr_timer 128, port_num 129, timeout 130, retry_cnt 131,
        rnr_retry 132,
    }
    ibv_async_event 16 { element 0, event_type 8 }
}

macro_rules! constants {
    ($($name:ident: $type:ty = $value:literal;)*) => {
        $(pub const $name: $type = $value;)*
        /// Every constant and its value.
        pub const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

constants! {
    IBV_QPS_INIT: u32 = 1;
    IBV_QPS_RTR: u32 = 2;
    IBV_QPS_RTS: u32 = 3;
    IBV_QPS_ERR: u32 = 6;
    IBV_QPT_RC: u32 = 2;
    IBV_QP_STATE: c_int = 1;
    IBV_QP_ACCESS_FLAGS: c_int = 8;
    IBV_QP_PKEY_INDEX: c_int = 16;
    IBV_QP_PORT: c_int = 32;
    IBV_QP_AV: c_int = 128;
    IBV_QP_PATH_MTU: c_int = 256;
    IBV_QP_TIMEOUT: c_int = 512;
    IBV_QP_RETRY_CNT: c_int = 1024;
    IBV_QP_RNR_RETRY: c_int = 2048;
    IBV_QP_RQ_PSN: c_int = 4096;
    IBV_QP_MAX_QP_RD_ATOMIC: c_int = 8192;
    IBV_QP_MIN_RNR_TIMER: c_int = 32768;
    IBV_QP_SQ_PSN: c_int = 65536;
    IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 131_072;
    IBV_QP_DEST_QPN: c_int = 1_048_576;
    IBV_ACCESS_LOCAL_WRITE: c_int = 1;
    IBV_ACCESS_REMOTE_WRITE: c_int = 2;
    IBV_WR_RDMA_WRITE: u32 = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
    IBV_WR_SEND: u32 = 2;
    IBV_SEND_SIGNALED: c_uint = 2;
    IBV_SEND_INLINE: c_uint = 8;
    IBV_WC_SUCCESS: u32 = 0;
    IBV_WC_WR_FLUSH_ERR: u32 = 5;
    IBV_WC_RECV: u32 = 128;
    IBV_WC_RECV_RDMA_WITH_IMM: u32 = 129;
    IBV_WC_WITH_IMM: u32 = 2;
    IBV_PORT_ACTIVE: u32 = 4;
    IBV_LINK_LAYER_INFINIBAND: u8 = 1;
    IBV_LINK_LAYER_ETHERNET: u8 = 2;
    IBV_EVENT_QP_FATAL: u32 = 1;
    IBV_EVENT_QP_REQ_ERR: u32 = 2;
    IBV_EVENT_QP_ACCESS_ERR: u32 = 3;
    IBV_EVENT_DEVICE_FATAL: u32 = 8;
    IBV_EVENT_PORT_ACTIVE: u32 = 9;
    IBV_EVENT_PORT_ERR: u32 = 10;
    IBV_EVENT_GID_CHANGE: u32 = 18;
}

impl ibv_send_wr {
    /// A request that does nothing until it is filled in.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        remote_addr: 0,
        rkey: 0,
        _union: [0; 5],
        _qp_type: [0; 7],
    };
}
