//! The driver: loaded once, never required.

use std::{
    env,
    ffi::{CStr, c_char},
    fmt,
    sync::{Arc, OnceLock},
};

use super::sys::{self, CUresult, Functions, Library};
use crate::{Error, Result};

/// The variable that names another library in place of `libcuda.so.1`.
pub const LIBRARY_VARIABLE: &str = "RCCL_LIBCUDA";
const LIBRARY: &str = "libcuda.so.1";

/// Calls a driver function and checks its code: `driver_call!(driver, cuMemFree_v2(pointer))` is a `Result<()>`. A missing
/// function is [`Error::Unavailable`]. To be used in an unsafe block, as one unsafe operation.
macro_rules! driver_call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        match $driver.functions().$name {
            Some(function) => $driver.check(stringify!($name), function($($argument),*)),
            None => Err($driver.missing(stringify!($name))),
        }
    };
}
pub(super) use driver_call;

/// The CUDA driver.
///
/// Clones share it. Functions of newer drivers that this one lacks give [`Error::Unavailable`] when called; codes that
/// nobody knows are kept as numbers in [`Error::Device`].
///
/// ```
/// use rccl_transport::{Error, cuda::Driver};
///
/// // SAFETY: there is no such file to be loaded.
/// let error = unsafe { Driver::open_path("/nonexistent/libcuda.so.1") }.unwrap_err();
/// assert!(matches!(error, Error::Unavailable { .. }), "{error}");
/// ```
#[derive(Clone)]
pub struct Driver {
    functions: Arc<Functions>,
}

impl Driver {
    /// The machine's driver: `libcuda.so.1`, or what `RCCL_LIBCUDA` names. Loaded and initialised at the first call;
    /// later ones are free.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is none; [`Error::Device`] if it does not initialise (100: no device, 34: a stub,
    /// 803: the kernel module has another version). Both are remembered: a driver does not appear while a process runs.
    pub fn open() -> Result<Self> {
        static OPENED: OnceLock<Result<Driver>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| {
            let path = env::var(LIBRARY_VARIABLE).unwrap_or_else(|_| LIBRARY.to_owned());
            // SAFETY: it is the machine's driver, or what the user explicitly named in its place.
            unsafe { Self::open_path(&path) }
        });
        match opened {
            Ok(driver) => Ok(driver.clone()),
            Err(Error::Unavailable { what, reason }) => {
                Err(Error::Unavailable { what: what.clone(), reason: reason.clone() })
            }
            Err(Error::Device { call, code, name }) => {
                Err(Error::Device { call, code: *code, name: name.clone() })
            }
            Err(other) => Err(Error::Unavailable { what: LIBRARY.to_owned(), reason: other.to_string() }),
        }
    }

    /// Loads and initialises the driver at `path`.
    ///
    /// # Errors
    /// As [`Driver::open`].
    ///
    /// # Safety
    /// The library's functions must be what their names promise.
    pub unsafe fn open_path(path: &str) -> Result<Self> {
        // SAFETY: passed on to the caller.
        let library = unsafe { Library::open(path)? };
        let driver = Self { functions: Arc::new(Functions::look_up(&library)) };
        // SAFETY: `cuInit` may be called at any time; 0 is the only flag value.
        unsafe { driver_call!(driver, cuInit(0)) }?;
        Ok(driver)
    }

    /// The newest CUDA version it serves, as 1000 * major + 10 * minor.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn version(&self) -> Result<u32> {
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { driver_call!(self, cuDriverGetVersion(&mut version)) }?;
        Ok(version.unsigned_abs())
    }

    /// Whether waits and writes of words can be enqueued many at once.
    #[must_use]
    pub fn has_batch_operations(&self) -> bool {
        self.functions.cuStreamBatchMemOp_v2.is_some()
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The error for a function that the driver lacks.
    #[cold]
    pub(super) fn missing(&self, name: &'static str) -> Error {
        // Not through `version`, which would come back here in a library that lacks that function too.
        let version = match self.functions.cuDriverGetVersion {
            Some(_) => self
                .version()
                .map_or_else(|_| "unknown".to_owned(), |v| format!("{}.{}", v / 1000, v % 1000 / 10)),
            None => "unknown".to_owned(),
        };
        Error::Unavailable {
            what: name.to_owned(),
            reason: format!(
                "the installed driver (for CUDA {version}) lacks this function; install a newer one"
            ),
        }
    }

    /// Turns a code into a result.
    pub(super) fn check(&self, call: &'static str, code: CUresult) -> Result<()> {
        if code == sys::SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &'static str, code: CUresult) -> Error {
        Error::Device { call, code: code.0, name: self.name_of(code) }
    }

    /// The driver's name and description of a code.
    fn name_of(&self, code: CUresult) -> String {
        let text = |function: Option<unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult>| {
            let mut text = std::ptr::null();
            // SAFETY: writes one pointer, or leaves it null for a code that the driver does not know.
            let found = unsafe { function?(code, &mut text) };
            if found != sys::SUCCESS || text.is_null() {
                return None;
            }
            // SAFETY: not null (checked): then one of the driver's static strings.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (text(self.functions.cuGetErrorName), text(self.functions.cuGetErrorString)) {
            (Some(name), Some(description)) => format!("{name}, {description}"),
            (Some(name), None) => name,
            (None, _) => "a code that the driver has no name for".to_owned(),
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
