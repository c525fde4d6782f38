/* What the driver without a device lacks for `rccl bench --protocol bulk`: waits that others fulfil, a clock, and the kernel that
 * adds. Streams still run at once, in the order of their calls: the strictest device there can be. Compiled beside fake_cuda.c, whose
 * functions of these names are renamed. -DFORGETS makes the kernel leave its work out.
 */
#undef cuStreamWaitValue32_v2
#undef cuModuleGetFunction
#undef cuLaunchKernel
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef unsigned int CUresult;
typedef uint64_t CUdeviceptr;
/* As `ReduceParams` has it. */
typedef struct { uint64_t output, count; uint32_t sources; float divisor; uint64_t source[32]; } Reduce;

CUresult fake_wait_once(void *stream, CUdeviceptr word, uint32_t value, unsigned flags);
CUresult fake_get_function(void **function, void *module, const char *name);
static int reduces;

CUresult cuStreamWaitValue32_v2(void *stream, CUdeviceptr word, uint32_t value, unsigned flags) {
    time_t end = time(0) + 20;
    CUresult code;
    while ((code = fake_wait_once(stream, word, value, flags)) && time(0) < end) sched_yield();
    __sync_synchronize();
    return code;
}
CUresult cuEventElapsedTime(float *milliseconds, void *start, void *end) { *milliseconds = 1; return 0; }
CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    CUresult code = fake_get_function(function, module, name);
    if (strcmp(name, "rccl_reduce_local_float") == 0) *function = &reduces;
    return code;
}
CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        void *stream, void **parameters, void **extra) {
    if (function != &reduces) return 500;
#ifndef FORGETS
    const Reduce *p = parameters[0];
    for (uint64_t i = 0; i < p->count; i++) {
        float sum = ((const float *)p->source[0])[i];
        for (uint32_t k = 1; k < p->sources; k++) sum += ((const float *)p->source[k])[i];
        ((float *)p->output)[i] = sum / p->divisor;
    }
#endif
    return 0;
}
