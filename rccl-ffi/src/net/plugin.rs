//! What the entries of all tables do.
//!
//! # Safety
//! Every function takes pointers as NCCL gives them: to room for what is answered, to arrays as long as is said beside
//! them, and to objects that the plugin gave NCCL (listener, connection, registration, request, context), each ended once
//! and not used afterwards. NCCL calls from several threads: registration beside sends and tests of the same connection,
//! different connections at once. NULL where something is needed is answered with an error.

use std::{
    ffi::{c_int, c_void},
    ptr::NonNull,
    sync::Arc,
};

use parking_lot::Mutex;
use rccl_transport::channel::{MAX_GROUP, Part};

use super::{
    Failure, Outcome,
    abi::{CommConfig, DeviceList, HANDLE_BYTES, Logger, NcclResult, PTR_HOST, Properties},
    connection::{Connection, Dials, Listener, Memory, Request},
    device::Devices,
    handle::Bytes,
    log,
    settings::settings,
};

pub(super) use super::length;

/// No traffic class is asked for.
pub(super) const NO_TRAFFIC_CLASS: c_int = -1;

/// What NCCL gets from `init` for a communicator.
#[derive(Debug)]
struct Context {
    communicator: u64,
    traffic_class: c_int,
}

/// Runs the body of an entry and turns its outcome into NCCL's code. A failure is said once, with its text.
pub(super) fn answer(entry: &str, body: impl FnOnce() -> Outcome) -> NcclResult {
    /// The failure said last, so that polling a dead connection does not fill the log.
    static SAID: Mutex<String> = Mutex::new(String::new());
    match body() {
        Ok(()) => NcclResult::SUCCESS,
        Err(failure) => {
            let text = format!("{entry}: {failure}");
            let mut said = SAID.lock();
            if *said != text {
                log::warn(&text);
                *said = text;
            }
            failure.code
        }
    }
}

fn missing(what: &str) -> Failure {
    Failure::argument(format!("NULL where {what} is needed"))
}

/// What a pointer that NCCL got from us points to.
unsafe fn object<'a, T>(pointer: *const c_void, what: &str) -> Outcome<&'a T> {
    // SAFETY: the module's promise: NULL or an object that NCCL has not ended.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or_else(|| missing(what))
}

/// Room that NCCL gives.
unsafe fn room<T>(pointer: *mut T, what: &str) -> Outcome<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| missing(what))
}

/// The connection, unless the process that made it was forked.
unsafe fn connection<'a>(pointer: *mut c_void) -> Outcome<&'a Connection> {
    // SAFETY: the module's promise.
    let connection: &Connection = unsafe { object(pointer, "a connection") }?;
    if connection.is_ours() { Ok(connection) } else { Err(forked()) }
}

fn forked() -> Failure {
    let text = "this process was forked after NCCL was set up; only the one that set it up may use it";
    Failure::new(NcclResult::INVALID_USAGE, text)
}

pub(super) fn init(logger: Option<Logger>) -> Outcome {
    log::set(logger);
    let settings = settings()?;
    let devices = Devices::of_process()?;
    log::info(&format!(
        "rccl {} with {} devices, shared memory {}, {} helping threads",
        env!("CARGO_PKG_VERSION"),
        devices.count(),
        if settings.shm { "on" } else { "off" },
        settings.threads
    ));
    Ok(())
}

pub(super) unsafe fn init_context(
    context: *mut *mut c_void,
    communicator: u64,
    config: *const CommConfig,
    logger: Option<Logger>,
) -> Outcome {
    init(logger)?;
    // SAFETY: the module's promise.
    let context = unsafe { room(context, "room for a context") }?;
    // SAFETY: the module's promise.
    let traffic_class = unsafe { traffic_class(config) };
    let made = Box::new(Context { communicator, traffic_class });
    // SAFETY: room, checked above.
    unsafe { context.write(Box::into_raw(made).cast()) };
    Ok(())
}

pub(super) unsafe fn traffic_class(config: *const CommConfig) -> c_int {
    // SAFETY: the module's promise: a configuration or NULL.
    unsafe { config.as_ref() }.map_or(NO_TRAFFIC_CLASS, |config| config.traffic_class)
}

pub(super) unsafe fn context_class(context: *mut c_void) -> c_int {
    // SAFETY: the module's promise: a context or NULL.
    unsafe { context.cast::<Context>().as_ref() }.map_or(NO_TRAFFIC_CLASS, |context| context.traffic_class)
}

pub(super) unsafe fn finalize(context: *mut c_void) -> Outcome {
    if let Some(context) = NonNull::new(context.cast::<Context>()) {
        // SAFETY: the module's promise: made by `init_context`, ended once.
        let context = unsafe { Box::from_raw(context.as_ptr()) };
        log::info(&format!("done with communicator {:#x}", context.communicator));
    }
    Ok(())
}

pub(super) unsafe fn devices(count: *mut c_int) -> Outcome {
    // SAFETY: the module's promise.
    let count = unsafe { room(count, "room for a number") }?;
    let devices = Devices::of_process()?.count() as c_int;
    // SAFETY: room, checked above.
    unsafe { count.write(devices) };
    Ok(())
}

pub(super) unsafe fn properties<P: Properties>(device: c_int, properties: *mut P) -> Outcome {
    // SAFETY: the module's promise.
    let properties = unsafe { room(properties, "room for properties") }?;
    let device = Devices::of_process()?.by_number(device)?;
    // SAFETY: room, checked above.
    unsafe { properties.write(P::from(device)) };
    Ok(())
}

pub(super) unsafe fn make_virtual<L: DeviceList>(device: *mut c_int, parts: *mut L) -> Outcome {
    // SAFETY: the module's promise.
    let device = unsafe { room(device, "room for a number") }?;
    // SAFETY: the module's promise: a list or NULL.
    let parts = unsafe { parts.as_ref() }.ok_or_else(|| missing("a list of devices"))?;
    let numbers =
        parts.numbers().ok_or_else(|| Failure::argument("a list of more devices than it has room for"))?;
    let number = Devices::of_process()?.fuse(numbers)?;
    // SAFETY: room, checked above.
    unsafe { device.write(number) };
    Ok(())
}

pub(super) unsafe fn listen(device: c_int, handle: *mut Bytes, listener: *mut *mut c_void) -> Outcome {
    // SAFETY: the module's promise.
    let handle = unsafe { room(handle, "room for a handle") }?;
    // SAFETY: the module's promise.
    let listener = unsafe { room(listener, "room for a listener") }?;
    let (made, bytes) = Listener::new(Devices::of_process()?.by_number(device)?)?;
    // SAFETY: room for HANDLE_BYTES, checked above.
    unsafe { handle.write(bytes) };
    // SAFETY: room, checked above.
    unsafe { listener.write(Box::into_raw(Box::new(made)).cast()) };
    Ok(())
}

/// The connection is NULL while it is being made. The class of traffic is not used yet: a TCP connection has it set by
/// whoever configures the hosts.
pub(super) unsafe fn connect(
    device: c_int,
    handle: *mut Bytes,
    connection: *mut *mut c_void,
    _: c_int,
) -> Outcome {
    static DIALS: std::sync::LazyLock<Dials> = std::sync::LazyLock::new(Dials::default);
    // SAFETY: the module's promise.
    let connection = unsafe { room(connection, "room for a connection") }?;
    // SAFETY: room, checked above.
    unsafe { connection.write(std::ptr::null_mut()) };
    // SAFETY: the module's promise: nobody else looks at a handle while it is being connected.
    let handle = unsafe { handle.as_mut() }.ok_or_else(|| missing("a handle"))?;
    if let Some(made) = DIALS.connect(Devices::of_process()?.by_number(device)?, handle)? {
        // SAFETY: room, checked above.
        unsafe { connection.write(Arc::into_raw(made).cast_mut().cast()) };
    }
    Ok(())
}

/// The connection is NULL while nobody has connected.
pub(super) unsafe fn accept(listener: *mut c_void, connection: *mut *mut c_void) -> Outcome {
    // SAFETY: the module's promise.
    let connection = unsafe { room(connection, "room for a connection") }?;
    // SAFETY: room, checked above.
    unsafe { connection.write(std::ptr::null_mut()) };
    // SAFETY: the module's promise.
    let listener: &Listener = unsafe { object(listener, "a listener") }?;
    if !listener.is_ours() {
        return Err(forked());
    }
    if let Some(made) = listener.accept()? {
        // SAFETY: room, checked above.
        unsafe { connection.write(Arc::into_raw(made).cast_mut().cast()) };
    }
    Ok(())
}

pub(super) unsafe fn register(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> Outcome {
    // SAFETY: the module's promise.
    unsafe { self::connection(connection) }?;
    // SAFETY: the module's promise.
    let memory = unsafe { room(memory, "room for a registration") }?;
    if kind != PTR_HOST {
        return Err(Failure::argument(format!(
            "memory of kind {kind}, where only that of the host was offered"
        )));
    }
    // SAFETY: the module's promise: the memory stays until `deregister`.
    let made = unsafe { Memory::new(data, bytes) }?;
    // SAFETY: room, checked above.
    unsafe { memory.write(Box::into_raw(Box::new(made)).cast()) };
    Ok(())
}

/// Never fails: an error would make NCCL stop cleaning up.
pub(super) unsafe fn deregister(connection: *mut c_void, memory: *mut c_void) -> Outcome {
    let Some(memory) = NonNull::new(memory.cast::<Memory>()) else { return Ok(()) };
    // SAFETY: the module's promise: made by `register`, ended once.
    let memory = unsafe { Box::from_raw(memory.as_ptr()) };
    // SAFETY: the module's promise.
    if let Ok(connection) = unsafe { self::connection(connection) } {
        connection.release(&memory);
    }
    Ok(())
}

pub(super) unsafe fn send(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: the module's promise.
    let request = unsafe { room(request, "room for a request") }?;
    // SAFETY: room, checked above.
    unsafe { request.write(std::ptr::null_mut()) };
    // SAFETY: the module's promise.
    let connection = unsafe { self::connection(connection) }?;
    // SAFETY: the module's promise.
    let slice = unsafe { slice(memory, data, bytes) }?;
    // SAFETY: room, checked above.
    unsafe { request.write(pointer(connection.send(slice, tag)?)) };
    Ok(())
}

/// The bytes of a message: within the memory registered for it, or by themselves where none was.
unsafe fn slice(memory: *mut c_void, data: *mut c_void, bytes: usize) -> Outcome<rccl_transport::Slice> {
    // SAFETY: the module's promise: a registration or NULL.
    match unsafe { memory.cast::<Memory>().as_ref() } {
        Some(memory) => memory.slice(data, bytes),
        // SAFETY: the module's promise: the memory stays until the request is done.
        None => unsafe { Memory::new(data, bytes) }?.slice(data, bytes),
    }
}

fn pointer(request: Option<&Request>) -> *mut c_void {
    request.map_or(std::ptr::null_mut(), |request| std::ptr::from_ref(request).cast_mut().cast())
}

/// `sizes` are `int` or `size_t`, by version.
pub(super) unsafe fn receive<L: Copy + TryInto<usize>>(
    connection: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut L,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: the module's promise.
    let request = unsafe { room(request, "room for a request") }?;
    // NCCL may put 1 here, which says that it does not need the completion; it polls what it finds here afterwards.
    // SAFETY: room, checked above.
    unsafe { request.write(std::ptr::null_mut()) };
    // SAFETY: the module's promise.
    let connection = unsafe { self::connection(connection) }?;
    let parts = usize::try_from(count).ok().filter(|count| (1..=MAX_GROUP).contains(count));
    let parts = parts.ok_or_else(|| Failure::argument(format!("a group of {count} receives")))?;
    // SAFETY: the module's promise: as many as `count`, or NULL; so the next three.
    let data = unsafe { list(data, parts) }.ok_or_else(|| missing("a list of receives"))?;
    // SAFETY: as above.
    let sizes = unsafe { list(sizes, parts) }.ok_or_else(|| missing("a list of lengths"))?;
    // SAFETY: as above.
    let tags = unsafe { list(tags, parts) };
    // SAFETY: as above.
    let memory = unsafe { list(memory, parts) };
    let part = |index: usize| {
        let start = data[index];
        let tag = tags.map_or(0, |tags| tags[index]);
        let memory = memory.map_or(std::ptr::null_mut(), |memory| memory[index]);
        let bytes = sizes[index].try_into().map_err(|_| Failure::argument("a negative length"))?;
        // SAFETY: the module's promise.
        let slice = unsafe { slice(memory, start, bytes) }?;
        Ok(Part { slice, tag: u64::from(tag.cast_unsigned()) })
    };
    let parts = (0..parts).map(part).collect::<Outcome<Vec<_>>>()?;
    // SAFETY: room, checked above.
    unsafe { request.write(pointer(connection.receive(parts)?)) };
    Ok(())
}

/// An array that NCCL gives, unless it is NULL.
unsafe fn list<'a, T>(start: *mut T, count: usize) -> Option<&'a [T]> {
    // SAFETY: the caller's promise: that many, which nobody changes during the call.
    (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, count) })
}

/// Nothing is to be done, which NULL as the request says.
pub(super) unsafe fn flush(request: *mut *mut c_void) -> Outcome {
    // SAFETY: the module's promise.
    let request = unsafe { room(request, "room for a request") }?;
    // SAFETY: room, checked above.
    unsafe { request.write(std::ptr::null_mut()) };
    Ok(())
}

pub(super) unsafe fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> Outcome {
    // SAFETY: the module's promise.
    let done = unsafe { room(done, "room for a number") }?;
    // SAFETY: room, checked above.
    unsafe { done.write(0) };
    // SAFETY: the module's promise.
    let request: &Request = unsafe { object(request, "a request") }?;
    // SAFETY: the module's promise: its connection has not been closed.
    let connection = unsafe { connection(request.connection().cast_mut().cast()) }?;
    let Some(tested) = connection.test(request)? else { return Ok(()) };
    // SAFETY: room, checked above.
    unsafe { done.write(1) };
    if !sizes.is_null() {
        let lengths = tested.lengths();
        // SAFETY: the module's promise: room for as many as the request has parts.
        unsafe { sizes.copy_from_nonoverlapping(lengths.as_ptr(), lengths.len()) };
    }
    Ok(())
}

/// Never fails, as [`deregister`].
pub(super) unsafe fn close(connection: *mut c_void) -> Outcome {
    if connection.is_null() {
        return Ok(());
    }
    // SAFETY: the module's promise: made by `connect` or `accept`, ended once.
    let connection = unsafe { Arc::from_raw(connection.cast_const().cast::<Connection>()) };
    if connection.is_ours() {
        connection.close();
    } else {
        // Its locks may be held for ever by threads that this process does not have.
        std::mem::forget(connection);
    }
    Ok(())
}

/// Never fails, as [`deregister`].
pub(super) unsafe fn close_listener(listener: *mut c_void) -> Outcome {
    let Some(listener) = NonNull::new(listener.cast::<Listener>()) else { return Ok(()) };
    // SAFETY: the module's promise: made by `listen`, ended once.
    drop(unsafe { Box::from_raw(listener.as_ptr()) });
    Ok(())
}

const _: () = assert!(size_of::<Bytes>() == HANDLE_BYTES);
