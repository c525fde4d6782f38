//! libibverbs's exported functions, looked up at run time.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::NonNull,
    sync::OnceLock,
};

use super::abi::*;
use crate::{Error, Result, sys::library::Library};

/// The library's name. It loads the drivers of the devices that it finds by itself.
const LIBRARY: &str = "libibverbs.so.1";

macro_rules! functions {
    ($($name:ident($($arg:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The library's functions that are used, all of which every version since 2008 has.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Looks every function up; the error is the name of one that is missing.
            fn look_up(library: &Library) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let symbol = library.symbol(concat!(stringify!($name), "\0")).ok_or(stringify!($name))?;
                        // SAFETY: the library's symbol of this name has this type, by its documentation.
                        unsafe {
                            std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($arg),*) $(-> $result)?>(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_get_device_name(*mut ibv_device) -> *const c_char;
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid(*mut ibv_context, u8, c_int, *mut [u8; 16]) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, u32);
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
    ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(*mut ibv_async_event);
}

/// The functions, loaded once for the process. A failure is kept as well: it does not mend itself.
///
/// # Errors
/// [`Error::Unavailable`] if there is no library, or it lacks a function.
pub(super) fn functions() -> Result<&'static Functions> {
    static LOADED: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
    LOADED.get_or_init(|| load(LIBRARY)).as_ref().map_err(|reason| unavailable(reason.clone()))
}

fn load(name: &str) -> std::result::Result<Functions, String> {
    // SAFETY: libibverbs may be loaded into any process; its initialisers only register its built-in drivers.
    let library = unsafe { Library::load(name) };
    let library = library.map_err(|message| {
        format!("{message}; install rdma-core's library (Debian: libibverbs1 ibverbs-providers), or use tcp")
    })?;
    Functions::look_up(&library).map_err(|missing| {
        format!("{name} has no function {missing}: it is not rdma-core's, or too old; install rdma-core's")
    })
}

/// The error that RDMA cannot be used here.
pub(crate) fn unavailable(reason: impl Into<String>) -> Error {
    Error::Unavailable { what: "RDMA (verbs)".into(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_and_a_missing_function_are_values() {
        let absent = load("libibverbs-of-nobody.so.1").unwrap_err();
        assert!(absent.contains("libibverbs-of-nobody.so.1") && absent.contains("libibverbs1"), "{absent}");
        let other = load("libc.so.6").unwrap_err();
        assert_eq!(
            other,
            "libc.so.6 has no function ibv_get_device_list: it is not rdma-core's, or too old; install rdma-core's"
        );
    }
}
