//! Devices, and their primary contexts.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    marker::PhantomData,
    sync::Arc,
};

use super::{
    Driver,
    driver::driver_call,
    sys::{self, CUcontext, CUdevice, CUuuid},
};
use crate::{Error, Result};

/// What can be asked of a device with [`Device::attribute`]: the driver's number of it. Any other number may be asked too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute(pub i32);

impl Attribute {
    /// Multiprocessors.
    pub const MULTIPROCESSORS: Self = Self(16);
    /// Whether the driver limits how long kernels run (a display is attached).
    pub const KERNEL_TIMEOUT: Self = Self(17);
    /// Copy engines.
    pub const COPY_ENGINES: Self = Self(40);
    /// Whether host memory that is registered can be accessed at its host address.
    pub const HOST_ADDRESS_OF_REGISTERED: Self = Self(91);
    /// Whether atomics on host memory are atomic for the host too.
    pub const HOST_NATIVE_ATOMICS: Self = Self(86);
    /// Major compute capability.
    pub const CAPABILITY_MAJOR: Self = Self(75);
    /// Minor compute capability.
    pub const CAPABILITY_MINOR: Self = Self(76);
    /// Whether stream operations can wait for what a remote device wrote here.
    pub const FLUSH_REMOTE_WRITES: Self = Self(98);
    /// NUMA node of the host next to the device, -1 if unknown.
    pub const HOST_NUMA: Self = Self(134);
}

/// What can be asked of a pair of devices with [`Device::peer_attribute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAttribute(pub i32);

impl PeerAttribute {
    /// The driver's rank of the link's performance, 0 is best.
    pub const PERFORMANCE_RANK: Self = Self(1);
    /// Whether access is possible.
    pub const ACCESS: Self = Self(2);
    /// Whether atomics on the peer's memory are atomic.
    pub const NATIVE_ATOMICS: Self = Self(3);
}

/// A CUDA device.
#[derive(Debug, Clone)]
pub struct Device {
    driver: Driver,
    ordinal: CUdevice,
}

impl Device {
    /// The number of devices that this process may use.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn count(driver: &Driver) -> Result<u32> {
        let mut count = 0;
        // SAFETY: writes one integer.
        unsafe { driver_call!(driver, cuDeviceGetCount(&mut count)) }?;
        Ok(count.unsigned_abs())
    }

    /// The device with this ordinal, counted after `CUDA_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// [`Error::Device`] if there is none (code 101).
    pub fn by_ordinal(driver: &Driver, ordinal: u32) -> Result<Self> {
        let mut device = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: writes one integer.
        unsafe { driver_call!(driver, cuDeviceGet(&mut device, ordinal)) }?;
        Ok(Self { driver: driver.clone(), ordinal: device })
    }

    /// The device at a PCI address such as `0000:17:00.0`: what survives a change of `CUDA_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// [`Error::Device`] if there is none there that this process may use; [`Error::Invalid`] for a zero byte.
    pub fn by_pci_bus_id(driver: &Driver, bus_id: &str) -> Result<Self> {
        let name = CString::new(bus_id).map_err(|_| Error::Invalid {
            what: "PCI bus id".to_owned(),
            value: bus_id.escape_default().to_string(),
            reason: "it contains a zero byte; write it like 0000:17:00.0".to_owned(),
        })?;
        let mut device = 0;
        // SAFETY: writes one integer, reads a C string.
        unsafe { driver_call!(driver, cuDeviceGetByPCIBusId(&mut device, name.as_ptr())) }?;
        Ok(Self { driver: driver.clone(), ordinal: device })
    }

    /// The driver it belongs to.
    #[must_use]
    pub const fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its ordinal in this process.
    #[must_use]
    pub const fn ordinal(&self) -> u32 {
        self.ordinal.unsigned_abs()
    }

    /// Its product name.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn name(&self) -> Result<String> {
        self.text(|text, len| {
            // SAFETY: writes at most `len` bytes at `text`, which has as many.
            unsafe { driver_call!(self.driver, cuDeviceGetName(text, len, self.ordinal)) }
        })
    }

    /// Its PCI address, such as `0000:17:00.0`.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn pci_bus_id(&self) -> Result<String> {
        self.text(|text, len| {
            // SAFETY: writes at most `len` bytes at `text`, which has as many.
            unsafe { driver_call!(self.driver, cuDeviceGetPCIBusId(text, len, self.ordinal)) }
        })
    }

    fn text(&self, fill: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
        let mut bytes = [0u8; 256];
        fill(bytes.as_mut_ptr().cast(), 255)?;
        Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Its lasting identity.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn uuid(&self) -> Result<CUuuid> {
        let mut uuid = [0; 16];
        // SAFETY: writes 16 bytes.
        unsafe { driver_call!(self.driver, cuDeviceGetUuid_v2(&mut uuid, self.ordinal)) }?;
        Ok(uuid)
    }

    /// Bytes of its memory.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn memory_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: writes one size.
        unsafe { driver_call!(self.driver, cuDeviceTotalMem_v2(&mut bytes, self.ordinal)) }?;
        Ok(bytes as u64)
    }

    /// One of its attributes.
    ///
    /// # Errors
    /// [`Error::Device`]; also for an attribute that the driver does not know yet.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: writes one integer.
        unsafe { driver_call!(self.driver, cuDeviceGetAttribute(&mut value, attribute.0, self.ordinal)) }?;
        Ok(value)
    }

    /// Its compute capability, major and minor.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn capability(&self) -> Result<(u32, u32)> {
        let major = self.attribute(Attribute::CAPABILITY_MAJOR)?.unsigned_abs();
        Ok((major, self.attribute(Attribute::CAPABILITY_MINOR)?.unsigned_abs()))
    }

    /// Whether the driver claims that this device can access `peer`'s memory. A claim, to be verified with data.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn can_access_peer(&self, peer: &Self) -> Result<bool> {
        let mut can = 0;
        // SAFETY: writes one integer.
        unsafe { driver_call!(self.driver, cuDeviceCanAccessPeer(&mut can, self.ordinal, peer.ordinal)) }?;
        Ok(can != 0)
    }

    /// An attribute of the link from this device to `peer`.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn peer_attribute(&self, attribute: PeerAttribute, peer: &Self) -> Result<i32> {
        let mut value = 0;
        // SAFETY: writes one integer.
        unsafe {
            driver_call!(
                self.driver,
                cuDeviceGetP2PAttribute(&mut value, attribute.0, self.ordinal, peer.ordinal)
            )
        }?;
        Ok(value)
    }

    /// Its primary context, the one that the CUDA runtime and frameworks use, kept alive until the last clone is dropped.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn primary_context(&self) -> Result<PrimaryContext> {
        let mut raw = CUcontext::NULL;
        // SAFETY: writes one handle; released when the last clone is dropped.
        unsafe { driver_call!(self.driver, cuDevicePrimaryCtxRetain(&mut raw, self.ordinal)) }?;
        Ok(PrimaryContext { retained: Arc::new(Retained { device: self.clone(), raw }) })
    }
}

#[derive(Debug)]
struct Retained {
    device: Device,
    raw: CUcontext,
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: gives back what `primary_context` retained, once.
        let released =
            unsafe { driver_call!(self.device.driver, cuDevicePrimaryCtxRelease_v2(self.device.ordinal)) };
        forget_failure(released);
    }
}

/// Logs what went wrong in a `Drop`, where nobody can be told.
pub(super) fn forget_failure(result: Result<()>) {
    match result {
        Ok(()) => {}
        // The process is exiting, and the driver went first.
        Err(Error::Device { code, .. }) if code == sys::DEINITIALIZED.0 => {}
        Err(error) => tracing::warn!(%error, "while dropping a CUDA object"),
    }
}

/// A device's primary context, retained. Clones share it.
///
/// Every operation of this module that needs a current context makes it current for its own duration; a caller that issues
/// many holds a [`ContextGuard`] around them, which makes that free.
#[derive(Debug, Clone)]
pub struct PrimaryContext {
    retained: Arc<Retained>,
}

impl PrimaryContext {
    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.retained.device
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.retained.device.driver()
    }

    /// The driver's handle; valid while a clone lives.
    #[must_use]
    pub fn raw(&self) -> CUcontext {
        self.retained.raw
    }

    /// Makes it current on this thread until the guard is dropped, when the thread's context is again what it was.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn enter(&self) -> Result<ContextGuard<'_>> {
        let mut current = CUcontext::NULL;
        // SAFETY: writes one handle.
        unsafe { driver_call!(self.driver(), cuCtxGetCurrent(&mut current)) }?;
        let pushed = current != self.raw();
        if pushed {
            // SAFETY: the context is retained; the guard pops it.
            unsafe { driver_call!(self.driver(), cuCtxPushCurrent_v2(self.raw())) }?;
        }
        Ok(ContextGuard { context: self, pushed, _this_thread: PhantomData })
    }

    /// Lets this context access `peer`'s memory; fine if it could already.
    ///
    /// # Errors
    /// [`Error::Device`], where the driver refuses.
    pub fn enable_peer_access(&self, peer: &Self) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: both contexts are retained; flags must be 0.
        match unsafe { driver_call!(self.driver(), cuCtxEnablePeerAccess(peer.raw(), 0)) } {
            Err(Error::Device { code, .. }) if code == sys::PEER_ACCESS_ALREADY_ENABLED.0 => Ok(()),
            result => result,
        }
    }

    /// Free and total bytes of the device's memory.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        let _guard = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes.
        unsafe { driver_call!(self.driver(), cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok((free as u64, total as u64))
    }
}

/// Keeps a context current on the thread that made it.
#[derive(Debug)]
#[must_use = "the context is current only while the guard lives"]
pub struct ContextGuard<'a> {
    context: &'a PrimaryContext,
    pushed: bool,
    _this_thread: PhantomData<*mut ()>,
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = CUcontext::NULL;
            // SAFETY: pops what `enter` pushed on this thread (the guard is not `Send`).
            forget_failure(unsafe { driver_call!(self.context.driver(), cuCtxPopCurrent_v2(&mut popped)) });
        }
    }
}
