//! Version 6: NCCL 2.13 to 2.32: memory registration by DMA-BUF, which host memory needs none of.

use std::ffi::{c_char, c_int, c_void};

use super::{Logger, NcclResult, assert_layout, shared};

pub use super::v5::Properties;

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
pub static ncclNetPlugin_v6: Net = Net {
    name: shared::NAME,
    init: Some(shared::init),
    devices: Some(shared::devices),
    properties: Some(shared::properties::<Properties>),
    listen: Some(shared::listen),
    connect: Some(shared::connect),
    accept: Some(shared::accept),
    reg_mr: Some(shared::register_int),
    reg_mr_dma_buf: None,
    dereg_mr: Some(shared::deregister),
    isend: Some(shared::send_int),
    irecv: Some(shared::receive_int),
    iflush: Some(shared::flush),
    test: Some(shared::test),
    close_send: Some(shared::close_send),
    close_recv: Some(shared::close_receive),
    close_listen: Some(shared::close_listen),
};

assert_layout!(Net: 136; name 0 init 8 close_listen 128);
