//! Shared libraries that are loaded at run time, so that a program starts where they are missing.

use std::{
    ffi::{CStr, CString, c_void},
    ptr::NonNull,
};

/// A shared library, loaded for the rest of the process's life: drivers start threads and are never unloaded.
#[derive(Debug)]
pub struct Library {
    handle: NonNull<c_void>,
}

// SAFETY: the handle is only passed to `dlsym`, which may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as for `Send`.
unsafe impl Sync for Library {}

impl Library {
    /// Loads `path`, a file's path or a name on the loader's search path. The error is what the loader said.
    ///
    /// # Safety
    /// The library's initialisers run; it must be one that may be loaded into this process.
    pub(crate) unsafe fn load(path: &str) -> Result<Self, String> {
        let name = CString::new(path).map_err(|_| "the path contains a zero byte".to_owned())?;
        // SAFETY: `name` is a C string; the caller vouches for the library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if let Some(handle) = NonNull::new(handle) {
            return Ok(Self { handle });
        }
        // SAFETY: `dlerror` has no precondition; its result is copied before the next call on this thread.
        let message = unsafe { libc::dlerror() };
        if message.is_null() {
            return Err("unknown reason".to_owned());
        }
        // SAFETY: not null (checked), and then a C string that lives until the next call on this thread.
        Err(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned())
    }

    /// The address of `name` (which ends with a zero byte), if the library has it.
    pub(crate) fn symbol(&self, name: &'static str) -> Option<NonNull<c_void>> {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
        // SAFETY: the handle came from `dlopen` and is never closed; `name` is a C string.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}
