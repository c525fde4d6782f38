//! Collectives on CUDA streams.

use std::ffi::{c_int, c_void};

use rccl::cuda::{CudaCommunicator, CudaOptions};

use crate::{
    Status,
    boundary::guard,
    communicator::rccl_communicator,
    last_error::{code, failed, invalid},
    names, rccl_status_t,
};

/// A rank's CUDA device in a group.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct rccl_cuda_communicator {
    cuda: CudaCommunicator,
}

/// Gives this rank of `communicator` a CUDA device (an ordinal after `CUDA_VISIBLE_DEVICES`), with the options that the
/// environment's RCCL_* variables give, and stores the result in `cuda`. All ranks must call it; it succeeds on all of them
/// or fails on all, and blocks until then. All ranks must live on one host.
///
/// Returns RCCL_STATUS_UNAVAILABLE without a CUDA driver; RCCL_STATUS_PEER_FAILED on ranks that have what another one lacks.
///
/// # Safety
/// `cuda` is NULL or points to a pointer that may be written; `communicator` is NULL or a communicator that is not being
/// destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_cuda_communicator_create(
    cuda: *mut *mut rccl_cuda_communicator,
    communicator: *const rccl_communicator,
    device: c_int,
) -> rccl_status_t {
    guard(|| {
        // SAFETY: NULL or a communicator that lives during the call, as the caller promises.
        let Some(handle) = (unsafe { communicator.as_ref() }) else {
            return invalid("rccl_cuda_communicator_create: communicator is NULL");
        };
        let Ok(device) = u32::try_from(device) else {
            return invalid(&format!("rccl_cuda_communicator_create: device {device}"));
        };
        if cuda.is_null() {
            return invalid("rccl_cuda_communicator_create: cuda is NULL");
        }
        let made = CudaOptions::from_env().and_then(|options| handle.communicator.cuda(device, &options));
        match made {
            Ok(made) => {
                let made = Box::into_raw(Box::new(rccl_cuda_communicator { cuda: made }));
                // SAFETY: not NULL, checked above; that it may be written is the caller's promise.
                unsafe { cuda.write(made) };
                Status::Success.code()
            }
            Err(error) => failed(&error),
        }
    })
}

/// Enqueues an all-reduce of `count` elements in device memory on `stream` (a CUstream or cudaStream_t; NULL is the legacy
/// default stream) and returns. `data_type` is RCCL_DATA_TYPE_FLOAT, _HALF or _BFLOAT16, `op` RCCL_OPERATOR_SUM or _AVG.
/// `output` may be `input`. The stream may be under capture into a graph.
///
/// # Safety
/// `cuda` is NULL or a CUDA communicator that lives until the work, replays included, is done; the buffers have `count`
/// elements and are used by nobody else until then; `stream` is a live stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_cuda_all_reduce(
    cuda: *const rccl_cuda_communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    op: c_int,
    stream: *mut c_void,
) -> rccl_status_t {
    guard(|| {
        // SAFETY: NULL or a CUDA communicator that lives during the call, as the caller promises.
        let Some(handle) = (unsafe { cuda.as_ref() }) else {
            return invalid("rccl_cuda_all_reduce: cuda is NULL");
        };
        let (Some(data_type), Some(op)) = (names::data_type(data_type), names::operator(op)) else {
            return invalid(&format!("rccl_cuda_all_reduce: no data type {data_type} or no operator {op}"));
        };
        let (input, output, count) = (input.addr() as u64, output.addr() as u64, count as u64);
        // SAFETY: the caller vouches for buffers, stream and lifetime.
        code(unsafe { handle.cuda.all_reduce(input, output, count, data_type, op, stream) })
    })
}

/// Frees the CUDA communicator, after waiting a bounded time for work in progress. NULL is fine.
///
/// # Safety
/// `cuda` is NULL or a CUDA communicator that nobody uses any more, in graphs neither.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rccl_cuda_communicator_destroy(cuda: *mut rccl_cuda_communicator) -> rccl_status_t {
    guard(|| {
        if !cuda.is_null() {
            // SAFETY: made by `Box::into_raw`, and given back once, as the caller promises.
            drop(unsafe { Box::from_raw(cuda) });
        }
        Status::Success.code()
    })
}
