//! NCCL, loaded at run time: the few functions that an all-reduce needs.

use std::{
    error::Error as _,
    ffi::{CStr, c_char, c_int, c_void},
    path::Path,
    ptr,
    sync::Arc,
};

use libloading::Library;
use rccl_core::{DataType, ReduceOp};
use rccl_transport::cuda::{PrimaryContext, Stream};

use super::gpu::{Reducer, Work, device_error};
use crate::error::{Error, Result};

type Code = c_int;
const SUCCESS: Code = 0;
const IN_PROGRESS: Code = 7;

/// What the ranks of a group meet by.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId(pub(crate) [u8; ID_BYTES]);

/// Bytes of a [`UniqueId`].
const ID_BYTES: usize = 128;

struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> Code,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    comm_init_rank: unsafe extern "C" fn(*mut *mut c_void, c_int, UniqueId, c_int) -> Code,
    comm_destroy: unsafe extern "C" fn(*mut c_void) -> Code,
    comm_get_async_error: unsafe extern "C" fn(*mut c_void, *mut Code) -> Code,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        *mut c_void,
        *mut c_void,
    ) -> Code,
    get_error_string: unsafe extern "C" fn(Code) -> *const c_char,
    /// Newer versions say more.
    get_last_error: Option<unsafe extern "C" fn(*mut c_void) -> *const c_char>,
}

/// The library. It is never unloaded: it starts threads.
#[derive(Clone)]
pub(crate) struct Nccl {
    functions: Arc<Functions>,
    path: String,
}

/// Looks a function up by its name.
macro_rules! symbol {
    ($library:expr, $path:expr, $name:literal) => {{
        // SAFETY: NCCL's function of this name has the type of the field it is stored in, in all versions 2.x.
        match unsafe { $library.get(concat!($name, "\0").as_bytes()) } {
            Ok(symbol) => *symbol,
            Err(error) => {
                return Err(Error::Processes(format!("{} has no {}: {error}", $path.display(), $name)))
            }
        }
    }};
}

impl Nccl {
    /// Loads NCCL from a file, or by its name from where the loader looks.
    ///
    /// # Errors
    /// [`Error::Processes`] with what the loader said.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        // SAFETY: it is NCCL, or what the user named in its place.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Error::Processes(format!(
                "cannot load NCCL: {cause}; install it (pip install nvidia-nccl-cu12), set LD_LIBRARY_PATH, or name the \
                 file with --nccl-library"
            ))
        })?;
        // SAFETY: as for `symbol!`.
        let get_last_error = unsafe { library.get(b"ncclGetLastError\0") }.ok().map(|symbol| *symbol);
        let functions = Functions {
            get_version: symbol!(library, path, "ncclGetVersion"),
            get_unique_id: symbol!(library, path, "ncclGetUniqueId"),
            comm_init_rank: symbol!(library, path, "ncclCommInitRank"),
            comm_destroy: symbol!(library, path, "ncclCommDestroy"),
            comm_get_async_error: symbol!(library, path, "ncclCommGetAsyncError"),
            all_reduce: symbol!(library, path, "ncclAllReduce"),
            get_error_string: symbol!(library, path, "ncclGetErrorString"),
            get_last_error,
        };
        std::mem::forget(library);
        Ok(Self { functions: Arc::new(functions), path: path.display().to_string() })
    }

    fn check(&self, call: &str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = |pointer: *const c_char| {
            if pointer.is_null() {
                return String::new();
            }
            // SAFETY: not null (checked), and then a C string that NCCL keeps.
            unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_owned()
        };
        // SAFETY: takes any code.
        let name = text(unsafe { (self.functions.get_error_string)(code) });
        let more = self.functions.get_last_error.map_or_else(String::new, |function| {
            // SAFETY: the communicator may be null.
            text(unsafe { function(ptr::null_mut()) })
        });
        let more = if more.is_empty() { more } else { format!(" ({more})") };
        Err(Error::Processes(format!("NCCL: {call}: {name}{more}; NCCL_DEBUG=WARN says more")))
    }

    /// Its version, and where it is from.
    ///
    /// # Errors
    /// What NCCL says.
    pub(crate) fn version(&self) -> Result<String> {
        let mut number = 0;
        // SAFETY: writes one integer.
        self.check("ncclGetVersion", unsafe { (self.functions.get_version)(&raw mut number) })?;
        let (major, minor, patch) = if number < 10_000 {
            (number / 1000, number / 100 % 10, number % 100)
        } else {
            (number / 10_000, number / 100 % 100, number % 100)
        };
        Ok(format!("{major}.{minor}.{patch}"))
    }

    /// The file that was loaded.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// What a new group meets by. The process must live until it has met.
    ///
    /// # Errors
    /// What NCCL says.
    pub(crate) fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: writes one id.
        self.check("ncclGetUniqueId", unsafe { (self.functions.get_unique_id)(&raw mut id) })?;
        Ok(id)
    }

    /// Takes a rank's place in a group. Blocks until all have.
    ///
    /// # Errors
    /// What NCCL says.
    pub(crate) fn join(
        &self,
        context: &PrimaryContext,
        id: UniqueId,
        rank: u32,
        ranks: u32,
    ) -> Result<NcclCommunicator> {
        // NCCL takes the device from the thread's current context.
        let _guard = context.enter().map_err(device_error)?;
        let mut raw = ptr::null_mut();
        let (rank, ranks) = (rank as c_int, ranks as c_int);
        // SAFETY: writes one handle, destroyed in `Drop`.
        let code = unsafe { (self.functions.comm_init_rank)(&raw mut raw, ranks, id, rank) };
        self.check("ncclCommInitRank", code)?;
        Ok(NcclCommunicator { nccl: self.clone(), context: context.clone(), raw })
    }
}

/// A rank of a group of NCCL's.
pub(crate) struct NcclCommunicator {
    nccl: Nccl,
    context: PrimaryContext,
    raw: *mut c_void,
}

// SAFETY: NCCL's communicators may be used from any thread, from one at a time; `&self` is never shared (no `Sync`).
unsafe impl Send for NcclCommunicator {}

impl Reducer for NcclCommunicator {
    unsafe fn enqueue(&self, work: &Work, input: u64, output: u64, stream: &Stream) -> Result<()> {
        let data_type = match work.data_type {
            DataType::Half => 6,
            DataType::Float => 7,
            DataType::Bfloat16 => 9,
            other => return Err(Error::Processes(format!("NCCL is not asked for {other}"))),
        };
        let op = match work.op {
            ReduceOp::Sum => 0,
            ReduceOp::Avg => 4,
            other => return Err(Error::Processes(format!("NCCL is not asked for {}", other.name()))),
        };
        let (input, output) = (input as usize as *const c_void, output as usize as *mut c_void);
        let count = work.count as usize;
        // SAFETY: the caller vouches for the buffers; communicator and stream are alive.
        let code = unsafe {
            (self.nccl.functions.all_reduce)(input, output, count, data_type, op, self.raw, stream.raw().0)
        };
        self.nccl.check("ncclAllReduce", code)
    }

    fn check(&self) -> Result<()> {
        let mut state = SUCCESS;
        // SAFETY: writes one code; the communicator is alive.
        let code = unsafe { (self.nccl.functions.comm_get_async_error)(self.raw, &raw mut state) };
        self.nccl.check("ncclCommGetAsyncError", code)?;
        if state == IN_PROGRESS { Ok(()) } else { self.nccl.check("a collective", state) }
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        let Ok(_guard) = self.context.enter() else { return };
        // SAFETY: made by `join`, destroyed once. The process ends; what NCCL says now interests nobody.
        unsafe { (self.nccl.functions.comm_destroy)(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = Nccl::load(Path::new("/nonexistent/libnccl.so.2")).err().unwrap().to_string();
        assert!(error.contains("/nonexistent/libnccl.so.2") && error.contains("--nccl-library"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        let error = Nccl::load(Path::new("libc.so.6")).err().unwrap().to_string();
        assert!(error.contains("has no ncclGetVersion"), "{error}");
    }
}
