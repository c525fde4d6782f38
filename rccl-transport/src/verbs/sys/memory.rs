//! Registered memory.

use std::{io, ptr::NonNull, sync::Arc};

use super::{
    Context,
    abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_mr},
};
use crate::Region;

/// A region that the device may read, and write for whoever knows its key. It keeps the region alive.
#[derive(Debug)]
pub(crate) struct Registered {
    context: Arc<Context>,
    raw: NonNull<ibv_mr>,
    region: Arc<Region>,
}

// SAFETY: the library's objects may be used from any thread; what is read of the registration does not change.
unsafe impl Send for Registered {}
// SAFETY: as for `Send`.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers all of a region, which must not be empty.
    ///
    /// # Errors
    /// What the operating system says; `ENOMEM` beyond the limit on locked memory.
    pub(crate) fn new(context: &Arc<Context>, region: &Arc<Region>) -> io::Result<Self> {
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: the region is readable and writable for its length, and the registration keeps it alive.
        let raw = unsafe {
            (context.functions.ibv_reg_mr)(
                context.domain.as_ptr(),
                region.start().as_ptr().cast(),
                region.len(),
                access,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { context: Arc::clone(context), raw, region: Arc::clone(region) })
    }

    /// The memory.
    pub(crate) const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The key by which this side names the memory.
    pub(crate) const fn local_key(&self) -> u32 {
        // SAFETY: the registration lives until `self` is dropped.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// The key by which the other side names it.
    pub(crate) const fn remote_key(&self) -> u32 {
        // SAFETY: as for `local_key`.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered by `new`, deregistered once; the device does not touch the memory after this returns.
        let code = unsafe { (self.context.functions.ibv_dereg_mr)(self.raw.as_ptr()) };
        if code != 0 {
            // The device may still touch the memory, so it must not be freed.
            tracing::error!("ibv_dereg_mr: {}; the memory is kept", io::Error::from_raw_os_error(code));
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}
