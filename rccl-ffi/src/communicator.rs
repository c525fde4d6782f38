//! Communicators and collectives on host memory.

use std::ffi::{c_int, c_void};

use rccl::{Communicator, Options, Request, Root, UniqueId};

use crate::{
    Status,
    boundary::guard,
    last_error::{code, failed, invalid},
    names, rccl_status_t,
};

/// Names a group that is to form, and holds its secret: only processes that know it can join. Plain bytes, to be passed by
/// whatever means.
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct rccl_unique_id {
    /// Opaque.
    pub bytes: [u8; 128],
}

const _: () = assert!(UniqueId::BYTES == 128);

/// A group of ranks, as one of them holds it.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct rccl_communicator {
    pub(crate) communicator: Communicator,
}

/// Makes the id of a new group in `id`, and serves the group from a thread of this process until it has formed, or until
/// `RCCL_INIT_TIMEOUT_S` has passed.
///
/// Never blocks for long; may be called from any thread.
///
/// # Safety
/// `id` is NULL or points to an id that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_unique_id_create(id: *mut rccl_unique_id) -> rccl_status_t {
    guard(|| {
        if id.is_null() {
            return invalid("rccl_unique_id_create: id is NULL");
        }
        let made = Options::from_env().and_then(|options| Ok(Root::start(&options.root())?));
        match made {
            Ok((root, made)) => {
                root.detach();
                // SAFETY: not NULL, checked above; that it may be written is the caller's promise.
                unsafe { id.write(rccl_unique_id { bytes: made.to_bytes() }) };
                Status::Success.code()
            }
            Err(error) => failed(&error),
        }
    })
}

/// Joins the group of `id` as `rank` of `size`, with the options that the environment's RCCL_* variables give, and stores
/// the communicator in `communicator`. Blocks until all ranks have joined.
///
/// # Safety
/// `communicator` and `id` are NULL or point to a pointer that may be written and to an id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_communicator_create(
    communicator: *mut *mut rccl_communicator,
    id: *const rccl_unique_id,
    rank: c_int,
    size: c_int,
) -> rccl_status_t {
    guard(|| {
        if communicator.is_null() || id.is_null() {
            return invalid("rccl_communicator_create: communicator or id is NULL");
        }
        let (Ok(rank), Ok(size)) = (u32::try_from(rank), u32::try_from(size)) else {
            return invalid(&format!("rccl_communicator_create: rank {rank} of {size}"));
        };
        // SAFETY: not NULL, checked above; that it points to an id is the caller's promise.
        let id = unsafe { id.read() };
        let joined = UniqueId::from_bytes(&id.bytes)
            .map_err(rccl::Error::from)
            .and_then(|id| Communicator::create(&id, rank, size, &Options::from_env()?));
        match joined {
            Ok(joined) => {
                let made = Box::into_raw(Box::new(rccl_communicator { communicator: joined }));
                // SAFETY: not NULL, checked above; that it may be written is the caller's promise.
                unsafe { communicator.write(made) };
                Status::Success.code()
            }
            Err(error) => failed(&error),
        }
    })
}

/// Reduces `count` elements of type `data_type` (an rccl_data_type) from `input` of all ranks with `op` (an rccl_operator)
/// into `output` of all ranks. `output` may be `input`. Host memory. Blocks until the result is there.
///
/// # Safety
/// `communicator` is NULL or a communicator that is not being destroyed; the buffers have `count` elements, are used by nobody
/// else meanwhile, and lie apart or are the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_all_reduce(
    communicator: *const rccl_communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    op: c_int,
) -> rccl_status_t {
    guard(|| {
        // SAFETY: NULL or a communicator that lives during the call, as the caller promises.
        let Some(handle) = (unsafe { communicator.as_ref() }) else {
            return invalid("rccl_all_reduce: communicator is NULL");
        };
        let (Some(data_type), Some(op)) = (names::data_type(data_type), names::operator(op)) else {
            return invalid(&format!("rccl_all_reduce: no data type {data_type} or no operator {op}"));
        };
        let request = Request::all_reduce(count as u64, data_type, op);
        // SAFETY: the caller vouches for the buffers.
        code(unsafe { handle.communicator.run(&request, input.cast(), output.cast()) })
    })
}

/// Stores in `status` the code of what made the communicator fail, on whatever rank, or RCCL_STATUS_SUCCESS if nothing did;
/// rccl_last_error_text then says it in words. Never blocks; may be called from any thread. After waiting for a CUDA stream
/// it tells whether the outputs of its collectives are valid.
///
/// # Safety
/// `communicator` is NULL or a communicator that is not being destroyed; `status` is NULL or points to a status that may be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_communicator_async_error(
    communicator: *const rccl_communicator,
    status: *mut rccl_status_t,
) -> rccl_status_t {
    guard(|| {
        // SAFETY: NULL or a communicator that lives during the call, as the caller promises.
        let Some(handle) = (unsafe { communicator.as_ref() }) else {
            return invalid("rccl_communicator_async_error: communicator is NULL");
        };
        if status.is_null() {
            return invalid("rccl_communicator_async_error: status is NULL");
        }
        let found = handle.communicator.async_error().map_or(Status::Success.code(), |error| failed(&error));
        // SAFETY: not NULL, checked above; that it may be written is the caller's promise.
        unsafe { status.write(found) };
        Status::Success.code()
    })
}

/// Ends the communicator on all ranks: every call in progress and every later one fails with RCCL_STATUS_ABORTED, and device
/// work that waits ends soon. It must still be destroyed. Never blocks; may be called from any thread.
///
/// # Safety
/// `communicator` is NULL or a communicator that is not being destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_communicator_abort(communicator: *const rccl_communicator) -> rccl_status_t {
    guard(|| {
        // SAFETY: NULL or a communicator that lives during the call, as the caller promises.
        let Some(handle) = (unsafe { communicator.as_ref() }) else {
            return invalid("rccl_communicator_abort: communicator is NULL");
        };
        handle.communicator.abort();
        Status::Success.code()
    })
}

/// Leaves the group and frees the communicator. NULL is fine. CUDA communicators made of it work on until they are destroyed.
///
/// # Safety
/// `communicator` is NULL or a communicator that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_communicator_destroy(communicator: *mut rccl_communicator) -> rccl_status_t {
    guard(|| {
        if !communicator.is_null() {
            // SAFETY: made by `Box::into_raw`, and given back once, as the caller promises.
            drop(unsafe { Box::from_raw(communicator) });
        }
        Status::Success.code()
    })
}
