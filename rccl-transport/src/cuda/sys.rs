//! The C side of the CUDA driver: its types, and its functions as a table filled at run time.
//!
//! Codes and attributes are plain integers, never Rust enums: a newer driver may return a value that nobody knew when
//! this was compiled, and that must stay a value.

#![allow(non_snake_case)]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::NonNull,
};

use crate::{Error, Result};

/// What every driver function returns: 0 or an error code, known or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct CUresult(pub u32);

/// A device's ordinal in this process.
pub type CUdevice = c_int;
/// An address in a device's memory, or of host memory as a device sees it.
pub type CUdeviceptr = u64;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            #[repr(transparent)]
            pub struct $name(pub *mut c_void);

            // SAFETY: an opaque name that is only handed back to the driver, which may be called from any thread.
            unsafe impl Send for $name {}
            // SAFETY: as for `Send`.
            unsafe impl Sync for $name {}

            impl $name {
                /// The null handle.
                pub const NULL: Self = Self(std::ptr::null_mut());
            }
        )*
    };
}

handles! {
    /// A context.
    CUcontext,
    /// A stream; null is the legacy default stream of the current context.
    CUstream,
    /// An event.
    CUevent,
    /// A loaded module.
    CUmodule,
    /// A kernel of a module.
    CUfunction,
    /// A graph being described.
    CUgraph,
    /// A node of a graph.
    CUgraphNode,
    /// A graph that can be launched.
    CUgraphExec,
}

/// A device's lasting identity.
pub type CUuuid = [u8; 16];

/// Names an allocation of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CUipcMemHandle {
    /// Opaque bytes.
    pub reserved: [u8; 64],
}

/// One operation of `cuStreamBatchMemOp`: a wait for, or a write of, a 32-bit word. The driver's union is larger; the rest
/// is zero.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUstreamBatchMemOpParams {
    /// [`OP_WAIT_VALUE_32`] or [`OP_WRITE_VALUE_32`].
    pub operation: c_uint,
    _padding: c_uint,
    /// The word, as the device sees it.
    pub address: CUdeviceptr,
    /// The value, in the low half.
    pub value: u64,
    /// A `WAIT_VALUE_*` or 0.
    pub flags: c_uint,
    _alias: [c_uint; 5],
}

const _: () = assert!(size_of::<CUstreamBatchMemOpParams>() == 48);

impl CUstreamBatchMemOpParams {
    /// An operation on the 32-bit word at `address`.
    #[must_use]
    pub const fn new(operation: c_uint, address: CUdeviceptr, value: u32, flags: c_uint) -> Self {
        Self { operation, _padding: 0, address, value: value as u64, flags, _alias: [0; 5] }
    }
}

/// Batch operation: wait until a 32-bit word has a value.
pub const OP_WAIT_VALUE_32: c_uint = 1;
/// Batch operation: write a 32-bit word.
pub const OP_WRITE_VALUE_32: c_uint = 2;
/// Wait until `(word - value)` as a signed number is at least 0.
pub const WAIT_VALUE_GEQ: c_uint = 0;
/// Wait until the word equals the value.
pub const WAIT_VALUE_EQ: c_uint = 1;
/// Success.
pub const SUCCESS: CUresult = CUresult(0);
/// The answer of a query about unfinished work.
pub const NOT_READY: CUresult = CUresult(600);
/// The answer to a pointer that CUDA has never seen.
pub const INVALID_VALUE: CUresult = CUresult(1);
/// Peer access had been enabled before.
pub const PEER_ACCESS_ALREADY_ENABLED: CUresult = CUresult(704);
/// The driver is being torn down (the process is exiting).
pub const DEINITIALIZED: CUresult = CUresult(4);

macro_rules! functions {
    ($($name:ident($($arg:ty),* $(,)?);)*) => {
        /// The driver's functions. A function that the installed driver lacks is `None`.
        #[derive(Debug, Clone, Copy)]
        #[allow(missing_docs, reason = "each field has the name and the meaning of the driver's function")]
        pub struct Functions {
            $(pub $name: Option<unsafe extern "C" fn($($arg),*) -> CUresult>,)*
        }

        impl Functions {
            /// Looks every function up in `library`.
            #[must_use]
            pub fn look_up(library: &Library) -> Self {
                Self {
                    $($name: library.symbol(concat!(stringify!($name), "\0")).map(|symbol| {
                        // SAFETY: the driver's symbol of this name has this type, by its documentation.
                        unsafe {
                            std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($arg),*) -> CUresult>(symbol)
                        }
                    }),)*
                }
            }

            /// The names of all functions in the table.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];
        }
    };
}

functions! {
    // The driver.
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(CUresult, *mut *const c_char);
    cuGetErrorString(CUresult, *mut *const c_char);
    // Devices.
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetAttribute(*mut c_int, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
    cuDeviceGetByPCIBusId(*mut CUdevice, *const c_char);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    cuDeviceGetP2PAttribute(*mut c_int, c_int, CUdevice, CUdevice);
    // Contexts.
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuDevicePrimaryCtxGetState(CUdevice, *mut c_uint, *mut c_int);
    cuCtxGetCurrent(*mut CUcontext);
    cuCtxPushCurrent_v2(CUcontext);
    cuCtxPopCurrent_v2(*mut CUcontext);
    cuCtxGetDevice(*mut CUdevice);
    cuCtxSynchronize();
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuCtxEnablePeerAccess(CUcontext, c_uint);
    cuCtxDisablePeerAccess(CUcontext);
    // Memory.
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuPointerGetAttribute(*mut c_void, c_int, CUdeviceptr);
    cuPointerGetAttributes(c_uint, *mut c_int, *mut *mut c_void, CUdeviceptr);
    cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);
    // Memory of other processes.
    cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle(CUdeviceptr);
    // Streams.
    cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
    cuStreamDestroy_v2(CUstream);
    cuStreamQuery(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuStreamGetCtx(CUstream, *mut CUcontext);
    cuStreamWaitValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
    cuStreamWriteValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
    cuStreamBatchMemOp_v2(CUstream, c_uint, *mut CUstreamBatchMemOpParams, c_uint);
    cuStreamIsCapturing(CUstream, *mut c_int);
    cuStreamBeginCapture_v2(CUstream, c_int);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuThreadExchangeStreamCaptureMode(*mut c_int);
    // Events.
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuEventSynchronize(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
    // Modules and kernels.
    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuFuncGetAttribute(*mut c_int, c_int, CUfunction);
    cuFuncLoad(CUfunction);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void,
    );
    // Graphs.
    cuStreamGetCaptureInfo_v2(
        CUstream, *mut c_int, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize,
    );
    cuGraphAddEventRecordNode(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, CUevent);
    cuGraphAddDependencies(CUgraph, *const CUgraphNode, *const CUgraphNode, usize);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, u64);
    cuGraphLaunch(CUgraphExec, CUstream);
    cuGraphExecDestroy(CUgraphExec);
    cuGraphDestroy(CUgraph);
}

pub use crate::sys::library::Library;

impl Library {
    /// Loads a driver from `path`, a file's path or a name on the loader's search path.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with what the loader said.
    ///
    /// # Safety
    /// The library's initialisers run; it must be one that may be loaded into this process.
    pub unsafe fn open(path: &str) -> Result<Self> {
        // SAFETY: passed on to the caller.
        unsafe { Self::load(path) }.map_err(|message| Error::Unavailable {
            what: format!("the CUDA driver `{path}`"),
            reason: format!("{message}; install NVIDIA's driver, or use host buffers"),
        })
    }
}
