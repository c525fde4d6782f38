//! Entries whose shape is the same in several versions.
//!
//! Every entry runs in [`guard`], hands its arguments on to [`plugin`] and turns the outcome into NCCL's code.

#![allow(clippy::missing_safety_doc)] // Called by NCCL alone; what it promises is said once, on `plugin`.

use std::ffi::{c_char, c_int, c_void};

use super::{CommConfig, DeviceList, Logger, NcclResult, Profiler, Properties};
use crate::{boundary::guard, net::plugin};

/// The plugin's name, which `NCCL_NET` selects it by.
pub const NAME: *const c_char = c"rccl".as_ptr();

/// Prepares the plugin; versions 5 to 9.
pub unsafe extern "C" fn init(logger: Option<Logger>) -> NcclResult {
    guard(|| plugin::answer("init", || plugin::init(logger)))
}

/// Prepares the plugin; version 10. The profiler is not used: it has no event that fits.
pub unsafe extern "C" fn init_v10(logger: Option<Logger>, _: Option<Profiler>) -> NcclResult {
    guard(|| plugin::answer("init", || plugin::init(logger)))
}

/// Prepares the plugin for a communicator; from version 11 on.
pub unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    communicator: u64,
    config: *const CommConfig,
    logger: Option<Logger>,
    _: Option<Profiler>,
) -> NcclResult {
    guard(|| {
        // SAFETY: NCCL gives a configuration or NULL, and room for a pointer.
        plugin::answer("init", || unsafe { plugin::init_context(context, communicator, config, logger) })
    })
}

/// How many devices there are.
pub unsafe extern "C" fn devices(count: *mut c_int) -> NcclResult {
    // SAFETY: NCCL gives room for a number.
    guard(|| plugin::answer("devices", || unsafe { plugin::devices(count) }))
}

/// What a device is.
pub unsafe extern "C" fn properties<P: Properties>(device: c_int, properties: *mut P) -> NcclResult {
    // SAFETY: NCCL gives room for the properties of its version.
    guard(|| plugin::answer("getProperties", || unsafe { plugin::properties(device, properties) }))
}

/// Listens; versions 5 to 10.
pub unsafe extern "C" fn listen(
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL gives room for a handle and a pointer.
    guard(|| plugin::answer("listen", || unsafe { plugin::listen(device, handle.cast(), listener) }))
}

/// Listens; from version 11 on.
pub unsafe extern "C" fn listen_v11(
    _: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: what NCCL promises of `listen` is the same.
    unsafe { listen(device, handle, listener) }
}

/// Connects, or goes on with it; versions 5 and 6.
pub unsafe extern "C" fn connect(
    device: c_int,
    handle: *mut c_void,
    connection: *mut *mut c_void,
) -> NcclResult {
    guard(|| {
        // SAFETY: NCCL gives a handle that stays where it is while it retries, and room for a pointer.
        plugin::answer("connect", || unsafe {
            plugin::connect(device, handle.cast(), connection, plugin::NO_TRAFFIC_CLASS)
        })
    })
}

/// Connects, or goes on with it; versions 7 to 9. There is nothing for the device side.
pub unsafe extern "C" fn connect_v7(
    device: c_int,
    handle: *mut c_void,
    connection: *mut *mut c_void,
    _: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: what NCCL promises of `connect` is the same.
    unsafe { connect(device, handle, connection) }
}

/// Connects, or goes on with it; version 10.
pub unsafe extern "C" fn connect_v10(
    device: c_int,
    config: *const CommConfig,
    handle: *mut c_void,
    connection: *mut *mut c_void,
    _: *mut *mut c_void,
) -> NcclResult {
    guard(|| {
        plugin::answer("connect", || {
            // SAFETY: NCCL gives a configuration or NULL.
            let class = unsafe { plugin::traffic_class(config) };
            // SAFETY: as for `connect`.
            unsafe { plugin::connect(device, handle.cast(), connection, class) }
        })
    })
}

/// Connects, or goes on with it; from version 11 on.
pub unsafe extern "C" fn connect_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    connection: *mut *mut c_void,
    _: *mut *mut c_void,
) -> NcclResult {
    guard(|| {
        plugin::answer("connect", || {
            // SAFETY: NCCL gives the context that `init` gave it.
            let class = unsafe { plugin::context_class(context) };
            // SAFETY: as for `connect`.
            unsafe { plugin::connect(device, handle.cast(), connection, class) }
        })
    })
}

/// Takes the next connection, if there is one; versions 5 and 6.
pub unsafe extern "C" fn accept(listener: *mut c_void, connection: *mut *mut c_void) -> NcclResult {
    // SAFETY: NCCL gives a listener that `listen` gave it, and room for a pointer.
    guard(|| plugin::answer("accept", || unsafe { plugin::accept(listener, connection) }))
}

/// Takes the next connection, if there is one; from version 7 on.
pub unsafe extern "C" fn accept_v7(
    listener: *mut c_void,
    connection: *mut *mut c_void,
    _: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: what NCCL promises of `accept` is the same.
    unsafe { accept(listener, connection) }
}

/// Registers memory; versions 5 to 7.
pub unsafe extern "C" fn register_int(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    guard(|| {
        plugin::answer("regMr", || {
            let bytes = plugin::length(bytes)?;
            // SAFETY: NCCL gives memory that stays until `deregMr`, and room for a pointer.
            unsafe { plugin::register(connection, data, bytes, kind, memory) }
        })
    })
}

/// Registers memory; from version 8 on.
pub unsafe extern "C" fn register(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL gives memory that stays until `deregMr`, and room for a pointer.
    guard(|| plugin::answer("regMr", || unsafe { plugin::register(connection, data, bytes, kind, memory) }))
}

/// Deregisters memory: when it returns nobody touches it.
pub unsafe extern "C" fn deregister(connection: *mut c_void, memory: *mut c_void) -> NcclResult {
    // SAFETY: NCCL gives a connection and a registration of it, once.
    guard(|| plugin::answer("deregMr", || unsafe { plugin::deregister(connection, memory) }))
}

/// Sends; versions 5 to 8.
pub unsafe extern "C" fn send_int(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    guard(|| {
        plugin::answer("isend", || {
            let bytes = plugin::length(bytes)?;
            // SAFETY: NCCL keeps the data until the request is done or the memory deregistered.
            unsafe { plugin::send(connection, data, bytes, tag, memory, request) }
        })
    })
}

/// Sends; version 9.
pub unsafe extern "C" fn send(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    guard(|| {
        // SAFETY: NCCL keeps the data until the request is done or the memory deregistered.
        plugin::answer("isend", || unsafe { plugin::send(connection, data, bytes, tag, memory, request) })
    })
}

/// Sends; from version 10 on.
pub unsafe extern "C" fn send_v10(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: what NCCL promises of `send` is the same.
    unsafe { send(connection, data, bytes, tag, memory, request) }
}

/// Receives; versions 5 to 8.
pub unsafe extern "C" fn receive_int(
    connection: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut c_int,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    guard(|| {
        // SAFETY: NCCL gives arrays of `count`, whose memory it keeps until the request is done or the memory deregistered.
        plugin::answer("irecv", || unsafe {
            plugin::receive(connection, count, data, bytes, tags, memory, request)
        })
    })
}

/// Receives; version 9.
pub unsafe extern "C" fn receive(
    connection: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    guard(|| {
        // SAFETY: as for `receive_int`.
        plugin::answer("irecv", || unsafe {
            plugin::receive(connection, count, data, bytes, tags, memory, request)
        })
    })
}

/// Receives; from version 10 on.
pub unsafe extern "C" fn receive_v10(
    connection: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: what NCCL promises of `receive` is the same.
    unsafe { receive(connection, count, data, bytes, tags, memory, request) }
}

/// Makes received bytes visible to a device. They are in host memory, where everyone sees them: nothing is to be done.
pub unsafe extern "C" fn flush(
    _: *mut c_void,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut c_int,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL gives room for a pointer.
    guard(|| plugin::answer("iflush", || unsafe { plugin::flush(request) }))
}

/// Whether a request is done, and how long its messages were.
pub unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, bytes: *mut c_int) -> NcclResult {
    // SAFETY: NCCL gives a request that is not done, room for a number, and for as many as the request has parts or NULL.
    guard(|| plugin::answer("test", || unsafe { plugin::test(request, done, bytes) }))
}

/// Ends the sending side of a connection, whatever is outstanding.
pub unsafe extern "C" fn close_send(connection: *mut c_void) -> NcclResult {
    // SAFETY: NCCL gives a connection that `connect` gave it, once.
    guard(|| plugin::answer("closeSend", || unsafe { plugin::close(connection) }))
}

/// Ends the receiving side of a connection, whatever is outstanding.
pub unsafe extern "C" fn close_receive(connection: *mut c_void) -> NcclResult {
    // SAFETY: NCCL gives a connection that `accept` gave it, once.
    guard(|| plugin::answer("closeRecv", || unsafe { plugin::close(connection) }))
}

/// Ends a listener; connections made through it live on.
pub unsafe extern "C" fn close_listen(listener: *mut c_void) -> NcclResult {
    // SAFETY: NCCL gives a listener that `listen` gave it, once.
    guard(|| plugin::answer("closeListen", || unsafe { plugin::close_listener(listener) }))
}

/// Makes one device of several.
pub unsafe extern "C" fn make_virtual<L: DeviceList>(device: *mut c_int, parts: *mut L) -> NcclResult {
    // SAFETY: NCCL gives a list of its version and room for a number.
    guard(|| plugin::answer("makeVDevice", || unsafe { plugin::make_virtual(device, parts) }))
}

/// Ends what `init` began for a communicator.
pub unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    // SAFETY: NCCL gives the context that `init` gave it, once.
    guard(|| plugin::answer("finalize", || unsafe { plugin::finalize(context) }))
}
