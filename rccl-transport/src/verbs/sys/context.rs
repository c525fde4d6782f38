//! Devices: the list of their names, an opened one, its ports, and what happens to it.

use std::{
    ffi::CStr,
    io,
    mem::MaybeUninit,
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
};

use super::{
    abi::{
        ibv_async_event, ibv_context, ibv_context_ops, ibv_device, ibv_device_attr, ibv_pd, ibv_port_attr,
    },
    functions::{Functions, functions},
};
use crate::{Error, Result};

/// The library's list of devices, freed when dropped.
struct List {
    functions: &'static Functions,
    start: NonNull<*mut ibv_device>,
    len: usize,
}

impl List {
    fn new() -> Result<Self> {
        let functions = functions()?;
        let mut len = 0;
        // SAFETY: the out pointer is a live integer.
        let start = unsafe { (functions.ibv_get_device_list)(&raw mut len) };
        let start = NonNull::new(start).ok_or_else(|| {
            super::unavailable(format!("ibv_get_device_list: {}", io::Error::last_os_error()))
        })?;
        Ok(Self { functions, start, len: usize::try_from(len).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = NonNull<ibv_device>> {
        (0..self.len).filter_map(|index| {
            // SAFETY: the list has `len` entries and a null one after them.
            let entry = unsafe { self.start.add(index) };
            // SAFETY: as above; the entry is a pointer that the library wrote.
            NonNull::new(unsafe { entry.read() })
        })
    }

    fn name(&self, device: NonNull<ibv_device>) -> String {
        // SAFETY: a device of a list that has not been freed.
        let name = unsafe { (self.functions.ibv_get_device_name)(device.as_ptr()) };
        // SAFETY: the device's name, a C string that lives as long as the list.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is freed once; opened devices stay.
        unsafe { (self.functions.ibv_free_device_list)(self.start.as_ptr()) };
    }
}

/// The names of this machine's RDMA devices.
///
/// # Errors
/// [`Error::Unavailable`] without the library or the kernel's part of it.
pub(crate) fn names() -> Result<Vec<String>> {
    let list = List::new()?;
    Ok(list.devices().map(|device| list.name(device)).collect())
}

/// Something that happened to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// One of the library's events.
    pub(crate) kind: u32,
    /// The port, where it is about a port.
    pub(crate) port: u32,
}

/// An opened device with one protection domain.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) functions: &'static Functions,
    pub(super) raw: NonNull<ibv_context>,
    pub(super) domain: NonNull<ibv_pd>,
}

// SAFETY: the library's objects may be used from any thread; it takes its own locks.
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is none, or it cannot be opened.
    pub(crate) fn open(name: &str) -> Result<Arc<Self>> {
        let list = List::new()?;
        let device = list.devices().find(|&device| list.name(device) == name);
        let device =
            device.ok_or_else(|| super::unavailable(format!("this machine has no device {name}")))?;
        let functions = list.functions;
        // SAFETY: a device of a list that has not been freed.
        let raw = NonNull::new(unsafe { (functions.ibv_open_device)(device.as_ptr()) });
        let cannot = |what| {
            let error = io::Error::last_os_error();
            super::unavailable(format!("{what} of {name}: {error}; may this process open /dev/infiniband/*?"))
        };
        let raw = raw.ok_or_else(|| cannot("ibv_open_device"))?;
        // SAFETY: a context just opened.
        let Some(domain) = NonNull::new(unsafe { (functions.ibv_alloc_pd)(raw.as_ptr()) }) else {
            let error = cannot("ibv_alloc_pd");
            // SAFETY: opened above, with nothing made of it.
            unsafe { (functions.ibv_close_device)(raw.as_ptr()) };
            return Err(error);
        };
        let context = Self { functions, raw, domain };
        nonblocking(context.events())?;
        Ok(Arc::new(context))
    }

    /// The descriptor that is readable when something has happened to the device.
    pub(crate) const fn events(&self) -> RawFd {
        // SAFETY: the context lives until `self` is dropped, and this field does not change.
        unsafe { self.raw.as_ref() }.async_fd
    }

    pub(super) const fn data_path(&self) -> &ibv_context_ops {
        // SAFETY: the context lives until `self` is dropped, and its driver filled the table when it was opened.
        &unsafe { self.raw.as_ref() }.ops
    }

    /// What has happened since last asked, if anything has.
    pub(crate) fn next_event(&self) -> Option<Event> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the out pointer has room for an event; the descriptor does not block.
        if unsafe { (self.functions.ibv_get_async_event)(self.raw.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: zeroed, then filled by the library.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: an event that was just taken; acknowledged once.
        unsafe { (self.functions.ibv_ack_async_event)(&raw mut event) };
        Some(Event { kind: event.event_type, port: (event.element & 0xffff_ffff) as u32 })
    }

    /// What the device can do.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn device_attr(&self) -> Result<ibv_device_attr> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the out pointer has room.
        let code = unsafe { (self.functions.ibv_query_device)(self.raw.as_ptr(), attr.as_mut_ptr()) };
        check("ibv_query_device", code)?;
        // SAFETY: plain integers, zeroed and then filled.
        Ok(unsafe { attr.assume_init() })
    }

    /// The state of a port, from 1.
    ///
    /// # Errors
    /// [`Error::Io`], as for a port that the device has not.
    pub(crate) fn port_attr(&self, port: u8) -> Result<ibv_port_attr> {
        let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the out pointer has room for what any version of the library writes.
        let code = unsafe { (self.functions.ibv_query_port)(self.raw.as_ptr(), port, attr.as_mut_ptr()) };
        check("ibv_query_port", code)?;
        // SAFETY: plain integers, zeroed and then filled.
        Ok(unsafe { attr.assume_init() })
    }

    /// An entry of a port's GID table.
    ///
    /// # Errors
    /// [`Error::Io`], as for an index that the table has not.
    pub(crate) fn gid(&self, port: u8, index: i32) -> Result<[u8; 16]> {
        let mut gid = [0; 16];
        // SAFETY: the context is open, and the out pointer leads to 16 live bytes.
        let code = unsafe { (self.functions.ibv_query_gid)(self.raw.as_ptr(), port, index, &raw mut gid) };
        // Says -1 and sets no error where the table ends.
        if code == 0 { Ok(gid) } else { check("ibv_query_gid", libc::ENOENT).map(|()| gid) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: whatever was made of the domain holds the context by an `Arc`, so nothing is left of it.
        let code = unsafe { (self.functions.ibv_dealloc_pd)(self.domain.as_ptr()) };
        if code != 0 {
            tracing::warn!("ibv_dealloc_pd: {}", io::Error::from_raw_os_error(code));
        }
        // SAFETY: opened by `open`, closed once.
        let code = unsafe { (self.functions.ibv_close_device)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!("ibv_close_device: {code}");
        }
    }
}

/// Makes reading from a descriptor of the library not block.
pub(super) fn nonblocking(fd: RawFd) -> Result<()> {
    // SAFETY: the library keeps the descriptor open for as long as the object that it belongs to, which the caller holds.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::ioctl_fionbio(fd, true).map_err(|errno| Error::io("FIONBIO of an RDMA descriptor", errno))
}

/// The error that a function's result stands for: the library returns error numbers, sometimes negated.
pub(super) fn check(call: &'static str, code: i32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::io(call, io::Error::from_raw_os_error(code.abs()))) }
}
