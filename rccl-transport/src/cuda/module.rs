//! Modules, kernels and their launch.

use std::{
    ffi::{CString, c_void},
    sync::Arc,
};

use super::{
    PrimaryContext, Stream,
    device::forget_failure,
    driver::driver_call,
    sys::{CUfunction, CUmodule},
};
use crate::{Error, Result};

#[derive(Debug)]
struct Loaded {
    context: PrimaryContext,
    raw: CUmodule,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let unloaded = self.context.enter().and_then(|_guard| {
            // SAFETY: loaded by `Module::load`, unloaded once, when no function of it is left.
            unsafe { driver_call!(self.context.driver(), cuModuleUnload(self.raw)) }
        });
        forget_failure(unloaded);
    }
}

/// Kernels, loaded into a context. Unloaded when the module and all its functions are dropped.
#[derive(Debug, Clone)]
pub struct Module {
    loaded: Arc<Loaded>,
}

impl Module {
    /// Loads a cubin, a fatbin, or PTX that ends with a zero byte.
    ///
    /// # Errors
    /// [`Error::Device`]: 209 if the image has nothing for this device, 222 if the PTX is newer than the driver.
    ///
    /// # Safety
    /// The image must be whole: the driver believes what its headers say of its length.
    pub unsafe fn load(context: &PrimaryContext, image: &[u8]) -> Result<Self> {
        let _guard = context.enter()?;
        let mut raw = CUmodule::NULL;
        // SAFETY: writes one handle; the caller vouches for the image.
        unsafe { driver_call!(context.driver(), cuModuleLoadData(&mut raw, image.as_ptr().cast())) }?;
        Ok(Self { loaded: Arc::new(Loaded { context: context.clone(), raw }) })
    }

    /// The kernel of this name. Loads its code: to be done before anything that spins can be resident.
    ///
    /// # Errors
    /// [`Error::Device`], code 500 if there is none; [`Error::Invalid`] for a name with a zero byte.
    pub fn function(&self, name: &str) -> Result<Function> {
        let symbol = CString::new(name).map_err(|_| Error::Invalid {
            what: "kernel name".to_owned(),
            value: name.escape_default().to_string(),
            reason: "it contains a zero byte".to_owned(),
        })?;
        let context = &self.loaded.context;
        let _guard = context.enter()?;
        let mut raw = CUfunction::NULL;
        // SAFETY: writes one handle; the module is loaded; the name is a C string.
        unsafe {
            driver_call!(context.driver(), cuModuleGetFunction(&mut raw, self.loaded.raw, symbol.as_ptr()))
        }?;
        Ok(Function { module: Arc::clone(&self.loaded), raw })
    }
}

/// What can be asked of a kernel with [`Function::attribute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionAttribute(pub i32);

impl FunctionAttribute {
    /// The most threads a block may have.
    pub const MAX_THREADS: Self = Self(0);
    /// Static shared memory of a block, in bytes.
    pub const SHARED_BYTES: Self = Self(1);
    /// Local memory of a thread, in bytes.
    pub const LOCAL_BYTES: Self = Self(3);
    /// Registers of a thread.
    pub const REGISTERS: Self = Self(4);
}

/// A kernel.
#[derive(Debug, Clone)]
pub struct Function {
    module: Arc<Loaded>,
    raw: CUfunction,
}

/// How many blocks of how many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks, at least 1.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32.
    pub threads: u32,
}

impl Function {
    /// Loads its code onto the device, which drivers otherwise do at the first launch and which may wait for whatever runs.
    /// Does nothing where the driver is too old to be told (before CUDA 12.4): there [`Function::attribute`] loads it.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn load(&self) -> Result<()> {
        let context = &self.module.context;
        let _guard = context.enter()?;
        // SAFETY: the module is loaded.
        match unsafe { driver_call!(context.driver(), cuFuncLoad(self.raw)) } {
            Err(Error::Unavailable { .. }) => self.attribute(FunctionAttribute::REGISTERS).map(drop),
            result => result,
        }
    }

    /// One of its attributes.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn attribute(&self, attribute: FunctionAttribute) -> Result<i32> {
        let context = &self.module.context;
        let _guard = context.enter()?;
        let mut value = 0;
        // SAFETY: writes one integer; the module is loaded.
        unsafe { driver_call!(context.driver(), cuFuncGetAttribute(&mut value, attribute.0, self.raw)) }?;
        Ok(value)
    }

    /// Blocks of `threads` threads that fit one multiprocessor together: times the multiprocessors, the largest grid whose
    /// blocks may wait for each other.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn blocks_per_multiprocessor(&self, threads: u32) -> Result<u32> {
        let context = &self.module.context;
        let _guard = context.enter()?;
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: writes one integer; the module is loaded.
        unsafe {
            driver_call!(
                context.driver(),
                cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.raw, threads, 0)
            )
        }?;
        Ok(blocks.unsigned_abs())
    }

    /// Enqueues the kernel on `stream`. `parameters` is its one parameter, a struct passed by value and copied before this
    /// returns.
    ///
    /// # Errors
    /// [`Error::Device`].
    ///
    /// # Safety
    /// `P` must have the layout of the kernel's parameter; what it points to must be valid, and used as the kernel demands,
    /// until the kernel is done. The stream must belong to the module's context.
    pub unsafe fn launch<P: Copy>(&self, stream: &Stream, shape: Shape, parameters: &P) -> Result<()> {
        let context = &self.module.context;
        let _guard = context.enter()?;
        let mut place = [std::ptr::from_ref(parameters).cast_mut().cast::<c_void>()];
        let Shape { blocks, threads } = shape;
        // SAFETY: one parameter, as the caller vouches; the driver only reads it.
        unsafe {
            driver_call!(
                context.driver(),
                cuLaunchKernel(
                    self.raw,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream.raw(),
                    place.as_mut_ptr(),
                    std::ptr::null_mut()
                )
            )
        }
    }
}
