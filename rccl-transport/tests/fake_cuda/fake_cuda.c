/* A driver library without a device, for tests of the loader and the wrappers. It keeps what those can get wrong: a stack
 * of contexts for each thread, the allocations and registrations, and what every call was given. Streams run at once.
 *
 * -DEMPTY leaves out everything; -DINIT_CODE=n makes cuInit fail; -DWITHOUT_BATCH leaves out cuStreamBatchMemOp_v2. fake_fail(name, code) makes every
 * later call of that function fail, fake_fail_on only those of one device's context. A call that needs a current context and finds none returns 201, as the real one does.
 */
#ifndef EMPTY
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef INIT_CODE
#define INIT_CODE 0
#endif

typedef unsigned int CUresult;
typedef uint64_t CUdeviceptr;
typedef struct { unsigned operation, padding; uint64_t address, value; unsigned flags, alias[5]; } MemOp;

static char failing[64];
static CUresult failing_code;
static int failing_device = -1;
static int retained[2], live_objects, batches;
static _Thread_local uintptr_t stack[16];
static _Thread_local int depth, capture_mode;
static struct { uintptr_t start; size_t bytes; int kind, device; } ranges[64];

void fake_fail_on(int device, const char *name, CUresult code) {
    failing_device = device; strncpy(failing, name, sizeof failing - 1); failing_code = code;
}
void fake_fail(const char *name, CUresult code) { strncpy(failing, name, sizeof failing - 1); failing_code = code; }
int fake_depth(void) { return depth; }
int fake_retained(int device) { return retained[device]; }
int fake_live_objects(void) { return live_objects; }
int fake_batches(void) { return batches; }

static int current_device(void);
static CUresult failure(const char *name) {
    return strcmp(failing, name) == 0 && (failing_device < 0 || failing_device == current_device()) ? failing_code : 0;
}

#define BEGIN if (failure(__func__)) return failure(__func__)
#define IN_CONTEXT BEGIN; if (depth == 0) return 201

static uintptr_t current(void) { return depth ? stack[depth - 1] : 0; }
static int current_device(void) { return (int)(current() & 15); }

CUresult cuInit(unsigned flags) { BEGIN; return flags ? 1 : INIT_CODE; }
CUresult cuDriverGetVersion(int *version) { *version = 12090; return 0; }

CUresult cuGetErrorName(CUresult code, const char **name) {
    *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *name ? 0 : 1;
}
CUresult cuGetErrorString(CUresult code, const char **text) {
    *text = code == 100 ? "no CUDA-capable device is detected" : NULL;
    return *text ? 0 : 1;
}

CUresult cuDeviceGetCount(int *count) { BEGIN; *count = 2; return 0; }
CUresult cuDeviceGet(int *device, int ordinal) { BEGIN; *device = ordinal; return ordinal < 2 ? 0 : 101; }
CUresult cuDeviceGetName(char *name, int len, int device) { BEGIN; strncpy(name, device ? "Fake 1" : "Fake 0", len); return 0; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : 0;
    return attribute > 200 ? 1 : 0;
}
CUresult cuDeviceGetUuid_v2(char *uuid, int device) { BEGIN; memset(uuid, 16 + device, 16); return 0; }
CUresult cuDeviceGetPCIBusId(char *name, int len, int device) {
    BEGIN; strncpy(name, device ? "0000:2a:00.0" : "0000:17:00.0", len); return 0;
}
CUresult cuDeviceGetByPCIBusId(int *device, const char *name) {
    BEGIN; *device = strcmp(name, "0000:2a:00.0") == 0; return *device || strcmp(name, "0000:17:00.0") == 0 ? 0 : 101;
}
CUresult cuDeviceCanAccessPeer(int *can, int device, int peer) { BEGIN; *can = device != peer; return 0; }

CUresult cuDevicePrimaryCtxRetain(uintptr_t *context, int device) {
    BEGIN; retained[device]++; *context = 0x1000 + device; return 0;
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) { BEGIN; retained[device]--; return 0; }
CUresult cuCtxGetCurrent(uintptr_t *context) { BEGIN; *context = current(); return 0; }
CUresult cuCtxPushCurrent_v2(uintptr_t context) { BEGIN; if (depth == 16) return 2; stack[depth++] = context; return 0; }
CUresult cuCtxPopCurrent_v2(uintptr_t *context) { BEGIN; if (!depth) return 201; *context = stack[--depth]; return 0; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { IN_CONTEXT; *least = 0; *greatest = -5; return 0; }
CUresult cuCtxEnablePeerAccess(uintptr_t peer, unsigned flags) { IN_CONTEXT; return peer == current() ? 101 : 704; }

/* What was enqueued, a letter each: W waits for an event, X for one from outside of the capture, R records, K is a kernel, N a
 * node that records, D a dependency of it. fake_capture says what every stream is found in: a capture's status and id. */
static char enqueued[256];
static int capture_status;
static uint64_t capture_id;
const char *fake_enqueued(void) { return enqueued; }
void fake_forget(void) { enqueued[0] = 0; }
void fake_capture(int status, uint64_t id) { capture_status = status, capture_id = id; }
static CUresult note(char what) {
    size_t at = strlen(enqueued);
    if (at + 1 < sizeof enqueued) enqueued[at] = what, enqueued[at + 1] = 0;
    return 0;
}

static CUresult remember(uintptr_t start, size_t bytes, int kind) {
    for (int i = 0; i < 64; i++)
        if (!ranges[i].bytes) {
            ranges[i].start = start, ranges[i].bytes = bytes, ranges[i].kind = kind, ranges[i].device = current_device();
            live_objects++;
            return 0;
        }
    return 2;
}
static CUresult forget(uintptr_t start) {
    for (int i = 0; i < 64; i++)
        if (ranges[i].bytes && ranges[i].start == start) { ranges[i].bytes = 0; live_objects--; return 0; }
    return 1;
}

CUresult cuMemAlloc_v2(CUdeviceptr *start, size_t bytes) {
    IN_CONTEXT;
    if (bytes > 1u << 30) return 2;
    *start = (uintptr_t)malloc(bytes);
    return remember(*start, bytes, 2);
}
CUresult cuMemFree_v2(CUdeviceptr start) { IN_CONTEXT; CUresult code = forget(start); if (!code) free((void *)start); return code; }
CUresult cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
    IN_CONTEXT; return bytes == 0 || flags != 3 ? 1 : remember((uintptr_t)start, bytes, 1);
}
CUresult cuMemHostUnregister(void *start) { IN_CONTEXT; return forget((uintptr_t)start); }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *start, unsigned flags) {
    IN_CONTEXT; *address = (uintptr_t)start; return flags ? 1 : 0;
}
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **places, CUdeviceptr address) {
    IN_CONTEXT;
    for (int i = 0; i < 64; i++) {
        if (!ranges[i].bytes || address < ranges[i].start || address >= ranges[i].start + ranges[i].bytes) continue;
        for (unsigned k = 0; k < count; k++) switch (attributes[k]) {
            case 2: *(unsigned *)places[k] = ranges[i].kind; break;
            case 8: *(unsigned char *)places[k] = 0; break;
            case 9: *(int *)places[k] = ranges[i].device; break;
            case 11: *(uint64_t *)places[k] = ranges[i].start; break;
            case 12: *(size_t *)places[k] = ranges[i].bytes; break;
            default: return 1;
        }
        return 0;
    }
    for (unsigned k = 0; k < count; k++) if (attributes[k] == 9) *(int *)places[k] = -2;
    return 0;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) {
    IN_CONTEXT; memcpy((void *)to, (void *)from, bytes); return 0;
}
CUresult cuMemsetD8Async(CUdeviceptr start, unsigned char value, size_t bytes, void *stream) {
    IN_CONTEXT; memset((void *)start, value, bytes); return 0;
}

CUresult cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    IN_CONTEXT; *stream = &live_objects; live_objects++; return flags == 1 && priority == -5 ? 0 : 1;
}
CUresult cuStreamDestroy_v2(void *stream) { IN_CONTEXT; live_objects--; return 0; }
CUresult cuStreamQuery(void *stream) { IN_CONTEXT; return 0; }
CUresult cuStreamSynchronize(void *stream) { IN_CONTEXT; return 0; }
CUresult cuStreamWaitEvent(void *stream, void *event, unsigned flags) { IN_CONTEXT; return note(flags ? 'X' : 'W'); }
CUresult cuThreadExchangeStreamCaptureMode(int *mode) { BEGIN; int was = capture_mode; capture_mode = *mode, *mode = was; return 0; }
/* A stream with this handle is another device's. */
CUresult cuStreamGetCtx(void *stream, uintptr_t *context) {
    IN_CONTEXT; *context = stream == (void *)0xf0e1 ? 0x1fff : current(); return 0;
}
CUresult cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void **tips, size_t *count) {
    static void *tip;
    IN_CONTEXT; *status = capture_status, *id = capture_id, *tips = &tip, *count = 1; return 0;
}

/* Nothing else runs that could fulfil a wait: an unfulfilled one is a mistake of the test's. */
CUresult cuStreamWaitValue32_v2(void *stream, CUdeviceptr word, uint32_t value, unsigned flags) {
    IN_CONTEXT;
    uint32_t have = *(volatile uint32_t *)word;
    return (flags == 0 ? (int32_t)(have - value) >= 0 : have == value) ? 0 : 702;
}
CUresult cuStreamWriteValue32_v2(void *stream, CUdeviceptr word, uint32_t value, unsigned flags) {
    IN_CONTEXT; *(volatile uint32_t *)word = value; return flags;
}
#ifndef WITHOUT_BATCH
CUresult cuStreamBatchMemOp_v2(void *stream, unsigned count, MemOp *ops, unsigned flags) {
    IN_CONTEXT;
    batches++;
    for (unsigned i = 0; i < count; i++) {
        CUresult code = ops[i].operation == 1 ? cuStreamWaitValue32_v2(stream, ops[i].address, ops[i].value, ops[i].flags)
                      : ops[i].operation == 2 ? cuStreamWriteValue32_v2(stream, ops[i].address, ops[i].value, ops[i].flags) : 1;
        if (code) return code;
    }
    return flags;
}
#endif

CUresult cuEventCreate(void **event, unsigned flags) { IN_CONTEXT; *event = &live_objects; live_objects++; return 0; }
CUresult cuEventDestroy_v2(void *event) { IN_CONTEXT; live_objects--; return 0; }
CUresult cuEventRecord(void *event, void *stream) { IN_CONTEXT; return note('R'); }
CUresult cuGraphAddEventRecordNode(void **node, void *graph, void **tips, size_t count, void *event) {
    BEGIN; *node = &live_objects; return note('N');
}
CUresult cuGraphAddDependencies(void *graph, void **from, void **to, size_t count) { BEGIN; return note('D'); }
CUresult cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b, unsigned c,
                        unsigned shared, void *stream, void **parameters, void **extra) {
    IN_CONTEXT; return note('K');
}
CUresult cuEventQuery(void *event) { IN_CONTEXT; return 0; }

CUresult cuModuleLoadData(void **module, const void *image) {
    IN_CONTEXT;
    /* Like a driver older than the cubins: only PTX is taken. */
    if (memcmp(image, "\177ELF", 4) == 0) return 209;
    *module = &live_objects, live_objects++;
    return 0;
}
CUresult cuModuleUnload(void *module) { IN_CONTEXT; live_objects--; return 0; }
CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    IN_CONTEXT; *function = &depth; return strncmp(name, "rccl_", 5) ? 500 : 0;
}
CUresult cuFuncGetAttribute(int *value, int attribute, void *function) { IN_CONTEXT; *value = 40 + attribute; return 0; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
    IN_CONTEXT; *blocks = 2048 / threads; return 0;
}
#endif
