//! Memory that a device can reach: its own, and registered host memory.

use std::{ffi::c_void, sync::Arc};

use super::{
    PrimaryContext,
    device::forget_failure,
    driver::driver_call,
    sys::{self, CUdeviceptr},
};
use crate::{Error, Region, Result};

/// An allocation in a device's memory. Freed when dropped, which may wait for the device's unfinished work: let that end
/// (or abort it) first.
#[derive(Debug)]
pub struct DeviceMemory {
    context: PrimaryContext,
    start: CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// Allocates `len` bytes (at least 1), with arbitrary contents, aligned to 256 bytes.
    ///
    /// # Errors
    /// [`Error::Device`], code 2 if there is not enough.
    pub fn new(context: &PrimaryContext, len: usize) -> Result<Self> {
        let _guard = context.enter()?;
        let mut start = 0;
        // SAFETY: writes one address; freed in `Drop`.
        unsafe { driver_call!(context.driver(), cuMemAlloc_v2(&mut start, len.max(1))) }?;
        Ok(Self { context: context.clone(), start, len })
    }

    /// Its first byte, as an address of the device.
    #[must_use]
    pub const fn start(&self) -> CUdeviceptr {
        self.start
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The context it was allocated in.
    #[must_use]
    pub const fn context(&self) -> &PrimaryContext {
        &self.context
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let freed = self.context.enter().and_then(|_guard| {
            // SAFETY: allocated by `new`, freed once.
            unsafe { driver_call!(self.context.driver(), cuMemFree_v2(self.start)) }
        });
        forget_failure(freed);
    }
}

const REGISTER_PORTABLE: u32 = 1;
const REGISTER_DEVICEMAP: u32 = 2;

/// A region of host memory, locked and mapped for all devices of the process. Ends when dropped.
#[derive(Debug)]
pub struct HostRegistration {
    context: PrimaryContext,
    region: Arc<Region>,
}

impl HostRegistration {
    /// Registers the region for every context of the process. Takes a while: some 70 us a MiB.
    ///
    /// # Errors
    /// [`Error::Device`]: code 712 if a part of it is registered already, 1 for an empty region, 2 if the system will not
    /// lock so much.
    pub fn new(context: &PrimaryContext, region: &Arc<Region>) -> Result<Self> {
        let _guard = context.enter()?;
        let (start, len) = (region.start().as_ptr().cast(), region.len());
        let flags = REGISTER_PORTABLE | REGISTER_DEVICEMAP;
        // SAFETY: the region is valid memory and is kept until it has been unregistered in `Drop`.
        unsafe { driver_call!(context.driver(), cuMemHostRegister_v2(start, len, flags)) }?;
        Ok(Self { context: context.clone(), region: Arc::clone(region) })
    }

    /// The region.
    #[must_use]
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where `context`'s device sees the region's first byte.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn device_start(&self, context: &PrimaryContext) -> Result<CUdeviceptr> {
        let _guard = context.enter()?;
        let mut address = 0;
        let start: *mut c_void = self.region.start().as_ptr().cast();
        // SAFETY: writes one address; the memory is registered, portable, as long as `self` lives.
        unsafe { driver_call!(context.driver(), cuMemHostGetDevicePointer_v2(&mut address, start, 0)) }?;
        Ok(address)
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let unregistered = self.context.enter().and_then(|_guard| {
            // SAFETY: registered by `new`, unregistered once, before the region can go.
            unsafe {
                driver_call!(self.context.driver(), cuMemHostUnregister(self.region.start().as_ptr().cast()))
            }
        });
        forget_failure(unregistered);
    }
}

/// What kind of memory a pointer points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerKind {
    /// Memory that CUDA does not know: pageable host memory, memory that was freed, or no memory at all.
    Unknown,
    /// Host memory that was allocated or registered with CUDA.
    Host,
    /// Memory of one device.
    Device {
        /// The device's ordinal.
        ordinal: u32,
    },
    /// Managed memory, which moves.
    Managed,
}

/// What CUDA knows of a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerInfo {
    /// The kind of memory.
    pub kind: PointerKind,
    /// Start of the allocation or registration it lies in, 0 if unknown.
    pub range_start: u64,
    /// Bytes of it, 0 if unknown.
    pub range_bytes: u64,
}

const MEMORY_TYPE: i32 = 2;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
const RANGE_START: i32 = 11;
const RANGE_SIZE: i32 = 12;
const TYPE_HOST: u64 = 1;
const TYPE_DEVICE: u64 = 2;

impl PointerInfo {
    /// Asks about `address`, which may be any number: it is not accessed.
    ///
    /// # Errors
    /// [`Error::Device`], but not for a pointer that CUDA does not know.
    pub fn of(context: &PrimaryContext, address: u64) -> Result<Self> {
        let _guard = context.enter()?;
        let mut attributes = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE];
        // The driver writes 1, 4 or 8 bytes of each.
        let mut values = [0u64; 5];
        let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        let count = attributes.len() as u32;
        // SAFETY: five attributes, each with a place of 8 bytes, the most that any of them needs.
        let asked = unsafe {
            driver_call!(
                context.driver(),
                cuPointerGetAttributes(count, attributes.as_mut_ptr(), places.as_mut_ptr(), address)
            )
        };
        match asked {
            Err(Error::Device { code, .. }) if code == sys::INVALID_VALUE.0 => values = [0; 5],
            result => result?,
        }
        let [memory_type, managed, ordinal, range_start, range_bytes] = values;
        let kind = match memory_type {
            _ if managed & 0xff != 0 => PointerKind::Managed,
            TYPE_HOST => PointerKind::Host,
            TYPE_DEVICE => PointerKind::Device { ordinal: ordinal as u32 },
            _ => PointerKind::Unknown,
        };
        Ok(Self { kind, range_start, range_bytes })
    }
}
