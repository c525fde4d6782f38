/* rccl: collective communication through the host relay. Not AMD's RCCL.
 *
 * Every function returns a status code and lets no Rust panic out. Codes and functions are only ever added.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */

#ifndef RCCL_FFI_H
#define RCCL_FFI_H

/* Generated from rccl-ffi/src by `cargo xtask header`. Do not edit. */

#include <stddef.h>
#include <stdint.h>

/*
 The status codes. A code never changes its meaning and is never used again; new ones go to the end.
 */
typedef enum {
  /*
   The call did what it says.
   */
  RCCL_STATUS_SUCCESS = 0,
  /*
   A bug in rccl: its code panicked. The message is on the standard error.
   */
  RCCL_STATUS_PANIC = 1,
  /*
   An argument is NULL or out of range.
   */
  RCCL_STATUS_INVALID_ARGUMENT = 2,
  /*
   Something that the machine does not have: a CUDA driver, a device that is new enough.
   */
  RCCL_STATUS_UNAVAILABLE = 3,
  /*
   The CUDA driver failed.
   */
  RCCL_STATUS_DEVICE = 4,
  /*
   Connections, memory or the operating system failed.
   */
  RCCL_STATUS_SYSTEM = 5,
  /*
   A rank has died or left.
   */
  RCCL_STATUS_PEER_LOST = 6,
  /*
   A rank still exists but has not shown any sign of life.
   */
  RCCL_STATUS_UNRESPONSIVE = 7,
  /*
   Something did not come within its deadline.
   */
  RCCL_STATUS_TIMEOUT = 8,
  /*
   Somebody aborted the communicator.
   */
  RCCL_STATUS_ABORTED = 9,
  /*
   Another rank failed for a reason of its own.
   */
  RCCL_STATUS_PEER_FAILED = 10,
  /*
   Ranks made different calls, or were created with different options.
   */
  RCCL_STATUS_MISMATCH = 11,
  /*
   The communicator was created before fork and used in the child.
   */
  RCCL_STATUS_FORKED = 12,
} rccl_status;

/*
 The type of an element. The numbers are NCCL's.
 */
typedef enum {
  /*
   Signed 8-bit integer.
   */
  RCCL_DATA_TYPE_INT8 = 0,
  /*
   Unsigned 8-bit integer.
   */
  RCCL_DATA_TYPE_UINT8 = 1,
  /*
   Signed 32-bit integer.
   */
  RCCL_DATA_TYPE_INT32 = 2,
  /*
   Unsigned 32-bit integer.
   */
  RCCL_DATA_TYPE_UINT32 = 3,
  /*
   Signed 64-bit integer.
   */
  RCCL_DATA_TYPE_INT64 = 4,
  /*
   Unsigned 64-bit integer.
   */
  RCCL_DATA_TYPE_UINT64 = 5,
  /*
   IEEE 754 binary16.
   */
  RCCL_DATA_TYPE_HALF = 6,
  /*
   IEEE 754 binary32.
   */
  RCCL_DATA_TYPE_FLOAT = 7,
  /*
   IEEE 754 binary64.
   */
  RCCL_DATA_TYPE_DOUBLE = 8,
  /*
   The upper half of a binary32.
   */
  RCCL_DATA_TYPE_BFLOAT16 = 9,
  /*
   OCP 8-bit float e4m3fn.
   */
  RCCL_DATA_TYPE_F8E4M3 = 10,
  /*
   OCP 8-bit float e5m2.
   */
  RCCL_DATA_TYPE_F8E5M2 = 11,
} rccl_data_type;

/*
 How contributions are combined. The numbers are NCCL's.
 */
typedef enum {
  /*
   The sum. Integers wrap.
   */
  RCCL_OPERATOR_SUM = 0,
  /*
   The product. Integers wrap.
   */
  RCCL_OPERATOR_PROD = 1,
  /*
   The smallest; any NaN gives NaN.
   */
  RCCL_OPERATOR_MIN = 2,
  /*
   The largest; any NaN gives NaN.
   */
  RCCL_OPERATOR_MAX = 3,
  /*
   The sum divided by the number of ranks.
   */
  RCCL_OPERATOR_AVG = 4,
} rccl_operator;

/*
 A group of ranks, as one of them holds it.
 */
typedef struct rccl_communicator rccl_communicator;

/*
 A rank's CUDA device in a group.
 */
typedef struct rccl_cuda_communicator rccl_cuda_communicator;

/*
 What a function of the C interface returns: one of the codes above. A plain integer, since a newer library may
 return a code that an older header does not name.
 */
typedef int32_t rccl_status_t;

/*
 Names a group that is to form, and holds its secret: only processes that know it can join. Plain bytes, to be passed by
 whatever means.
 */
typedef struct {
  /*
   Opaque.
   */
  uint8_t bytes[128];
} rccl_unique_id;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Makes the id of a new group in `id`, and serves the group from a thread of this process until it has formed, or until
 `RCCL_INIT_TIMEOUT_S` has passed.

 Never blocks for long; may be called from any thread.

 # Safety
 `id` is NULL or points to an id that may be written.
 */
rccl_status_t rccl_unique_id_create(rccl_unique_id *id);

/*
 Joins the group of `id` as `rank` of `size`, with the options that the environment's RCCL_* variables give, and stores
 the communicator in `communicator`. Blocks until all ranks have joined.

 # Safety
 `communicator` and `id` are NULL or point to a pointer that may be written and to an id.
 */
rccl_status_t rccl_communicator_create(rccl_communicator **communicator,
                                       const rccl_unique_id *id,
                                       int rank,
                                       int size);

/*
 Reduces `count` elements of type `data_type` (an rccl_data_type) from `input` of all ranks with `op` (an rccl_operator)
 into `output` of all ranks. `output` may be `input`. Host memory. Blocks until the result is there.

 # Safety
 `communicator` is NULL or a communicator that is not being destroyed; the buffers have `count` elements, are used by nobody
 else meanwhile, and lie apart or are the same.
 */
rccl_status_t rccl_all_reduce(const rccl_communicator *communicator,
                              const void *input,
                              void *output,
                              size_t count,
                              int data_type,
                              int op);

/*
 Stores in `status` the code of what made the communicator fail, on whatever rank, or RCCL_STATUS_SUCCESS if nothing did;
 rccl_last_error_text then says it in words. Never blocks; may be called from any thread. After waiting for a CUDA stream
 it tells whether the outputs of its collectives are valid.

 # Safety
 `communicator` is NULL or a communicator that is not being destroyed; `status` is NULL or points to a status that may be
 written.
 */
rccl_status_t rccl_communicator_async_error(const rccl_communicator *communicator,
                                            rccl_status_t *status);

/*
 Ends the communicator on all ranks: every call in progress and every later one fails with RCCL_STATUS_ABORTED, and device
 work that waits ends soon. It must still be destroyed. Never blocks; may be called from any thread.

 # Safety
 `communicator` is NULL or a communicator that is not being destroyed.
 */
rccl_status_t rccl_communicator_abort(const rccl_communicator *communicator);

/*
 Leaves the group and frees the communicator. NULL is fine. CUDA communicators made of it work on until they are destroyed.

 # Safety
 `communicator` is NULL or a communicator that nobody uses any more.
 */
rccl_status_t rccl_communicator_destroy(rccl_communicator *communicator);

/*
 Gives this rank of `communicator` a CUDA device (an ordinal after `CUDA_VISIBLE_DEVICES`), with the options that the
 environment's RCCL_* variables give, and stores the result in `cuda`. All ranks must call it; it succeeds on all of them
 or fails on all, and blocks until then. All ranks must live on one host.

 Returns RCCL_STATUS_UNAVAILABLE without a CUDA driver; RCCL_STATUS_PEER_FAILED on ranks that have what another one lacks.

 # Safety
 `cuda` is NULL or points to a pointer that may be written; `communicator` is NULL or a communicator that is not being
 destroyed.
 */
rccl_status_t rccl_cuda_communicator_create(rccl_cuda_communicator **cuda,
                                            const rccl_communicator *communicator,
                                            int device);

/*
 Enqueues an all-reduce of `count` elements in device memory on `stream` (a CUstream or cudaStream_t; NULL is the legacy
 default stream) and returns. `data_type` is RCCL_DATA_TYPE_FLOAT, _HALF or _BFLOAT16, `op` RCCL_OPERATOR_SUM or _AVG.
 `output` may be `input`. The stream may be under capture into a graph.

 # Safety
 `cuda` is NULL or a CUDA communicator that lives until the work, replays included, is done; the buffers have `count`
 elements and are used by nobody else until then; `stream` is a live stream.
 */
rccl_status_t rccl_cuda_all_reduce(const rccl_cuda_communicator *cuda,
                                   const void *input,
                                   void *output,
                                   size_t count,
                                   int data_type,
                                   int op,
                                   void *stream);

/*
 Frees the CUDA communicator, after waiting a bounded time for work in progress. NULL is fine.

 # Safety
 `cuda` is NULL or a CUDA communicator that nobody uses any more, in graphs neither.
 */
rccl_status_t rccl_cuda_communicator_destroy(rccl_cuda_communicator *cuda);

/*
 Says in English what made the last function fail that failed on this thread: what, where, and how to mend it. Empty if
 none did.

 Returns a string that is valid until the next function of rccl fails on this thread or the thread ends, and is not to be
 freed. Never NULL unless rccl has a bug. Never blocks.
 */
const char *rccl_last_error_text(void);

/*
 Says what a status code means, in one English sentence. Takes any number.

 Returns a string that lives as long as the process and is not to be freed. Never NULL. Never blocks; may be called
 from any thread.
 */
const char *rccl_status_text(rccl_status_t status);

/*
 Stores the version of the loaded library in `version`: major * 10000 + minor * 100 + patch, so 0.1.0 is 100.

 Never blocks; may be called from any thread. Returns RCCL_STATUS_INVALID_ARGUMENT if `version` is NULL.

 # Safety
 `version` is NULL or points to an `int` that may be written.
 */
rccl_status_t rccl_version(int *version);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RCCL_FFI_H */
