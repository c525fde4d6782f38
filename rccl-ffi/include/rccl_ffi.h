/* rccl: collective communication through the host relay. Not AMD's RCCL.
 *
 * Every function returns a status code and lets no Rust panic out. Codes and functions are only ever added.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */

#ifndef RCCL_FFI_H
#define RCCL_FFI_H

/* Generated from rccl-ffi/src by `cargo xtask header`. Do not edit. */

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
} rccl_status;

/*
 What a function of the C interface returns: one of the codes above. A plain integer, since a newer library may
 return a code that an older header does not name.
 */
typedef int32_t rccl_status_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

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
