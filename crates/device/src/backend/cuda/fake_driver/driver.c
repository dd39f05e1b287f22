// A fake CUDA driver with one card of 141 GiB and 132 multiprocessors. It computes and copies nothing. It tracks the current
// context of each thread, the references to the primary context, the memory in use, and whether a green context is destroyed
// before the streams and contexts that were made from it.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uintptr_t Handle;

enum { OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, ILLEGAL_ADDRESS = 700 };
enum { MULTIPROCESSORS = 1, UNITS = 132, STEP = 8, MAX_COUNT = 4096 };

static const Handle PROGRAMS_CONTEXT = 0xCAFE, PRIMARY = 0x1000;
static const uint64_t TOTAL = 141ull << 30;

static __thread Handle stack[64];
static __thread int depth;
static int retained, resets, broken, fail_next, orphans;
static uint64_t used;

static Handle current(void) { return depth ? stack[depth - 1] : PROGRAMS_CONTEXT; }

// Functions for the tests.
uintptr_t fake_current(void) { return current(); }
uintptr_t fake_resets(void) { return resets; }
uintptr_t fake_retained(void) { return retained; }
uintptr_t fake_orphans(void) { return orphans; }
uintptr_t fake_used_mebibytes(void) { return used >> 20; }
uintptr_t fake_fault(void) { return fail_next = 1; }
uintptr_t fake_retain(void) { return ++retained; }

static int enter(void) {
    if (fail_next) { fail_next = 0; broken = 1; }
    if (current() != PRIMARY) return INVALID_CONTEXT;
    return broken ? ILLEGAL_ADDRESS : 0;
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorName(int code, const char **name) { *name = "FAKE"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "of the fake driver"; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 0; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "fake card", length); return 0; }
int cuDeviceGetUuid(void *uuid, int device) { memset(uuid, 7, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = TOTAL; return 0; }
int cuDeviceGetAttribute(int *value, unsigned attribute, int device) {
    *value = attribute == 16 ? UNITS : attribute == 18 ? 0 : attribute == 75 ? 9 : attribute == 76 ? 0 : 1024;
    return 0;
}

int cuDevicePrimaryCtxRetain(Handle *context, int device) { retained++; *context = PRIMARY; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) {
    if (--retained == 0) { broken = 0; used = 0; }
    return 0;
}
uintptr_t fake_release(void) { return cuDevicePrimaryCtxRelease_v2(0); }
int cuDevicePrimaryCtxReset_v2(int device) { resets++; broken = 0; used = 0; return 0; }
int cuCtxGetCurrent(Handle *context) { *context = current(); return 0; }
int cuCtxSetCurrent(Handle context) { if (!depth) depth = 1; stack[depth - 1] = context; return 0; }
int cuCtxPushCurrent_v2(Handle context) { stack[depth++] = context; return 0; }
int cuCtxPopCurrent_v2(Handle *context) {
    if (!depth) return INVALID_CONTEXT;
    *context = stack[--depth];
    return 0;
}

static struct { uint64_t address, bytes; } blocks[MAX_COUNT];
static uint64_t next_address = 1ull << 40;
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    int code = enter();
    if (code) return code;
    if (bytes > TOTAL - used) return OUT_OF_MEMORY;
    for (int i = 0; i < MAX_COUNT; i++) {
        if (blocks[i].bytes) continue;
        blocks[i].address = *address = next_address;
        blocks[i].bytes = bytes;
        next_address += bytes;
        used += bytes;
        return 0;
    }
    return OUT_OF_MEMORY;
}
int cuMemFree_v2(uint64_t address) {
    int code = enter();
    for (int i = 0; i < MAX_COUNT && !code; i++)
        if (blocks[i].bytes && blocks[i].address == address) { used -= blocks[i].bytes; blocks[i].bytes = 0; }
    return code;
}
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = TOTAL - used; *total = TOTAL; return enter(); }
int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) { return enter(); }
int cuMemHostUnregister(void *memory) { return enter(); }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Handle stream) { return enter(); }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, Handle stream) { return enter(); }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Handle stream) { return enter(); }
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Handle stream) { return enter(); }
int cuMemsetD16Async(uint64_t to, unsigned short value, size_t count, Handle stream) { return enter(); }
int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, Handle stream) { return enter(); }
int cuModuleLoadData(Handle *module, const void *image) { *module = 1; return enter(); }
int cuModuleUnload(Handle module) { return enter(); }
int cuModuleGetFunction(Handle *function, Handle module, const char *name) { *function = 1; return enter(); }
int cuFuncGetAttribute(int *value, unsigned attribute, Handle function) { *value = attribute == 0 ? 1024 : 0; return enter(); }
int cuFuncSetAttribute(Handle function, unsigned attribute, int value) { return enter(); }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Handle function, int threads, size_t shared) {
    *blocks = 2048 / threads;
    return enter();
}
static int launched;
int cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y, unsigned z,
                   unsigned shared, Handle stream, void **parameters, void **extra) { launched++; return enter(); }
static int captured, replayed;
uintptr_t fake_replayed(void) { return replayed; }
int cuStreamBeginCapture_v2(Handle stream, int mode) { captured = launched; return enter(); }
int cuStreamEndCapture(Handle stream, Handle *graph) { *graph = 1; return enter(); }
int cuGraphInstantiateWithFlags(Handle *exec, Handle graph, unsigned long long flags) { *exec = launched - captured; return enter(); }
int cuGraphLaunch(Handle exec, Handle stream) { replayed += exec; return enter(); }
int cuGraphDestroy(Handle graph) { return enter(); }
int cuGraphExecDestroy(Handle exec) { return enter(); }
int cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) { return enter(); }
int cuStreamQuery(Handle stream) { return enter(); }
int cuEventCreate(Handle *event, unsigned flags) { *event = 1; return enter(); }
int cuEventDestroy_v2(Handle event) { return enter(); }
int cuEventRecord(Handle event, Handle stream) { return enter(); }
int cuEventQuery(Handle event) { return enter(); }
int cuEventElapsedTime(float *milliseconds, Handle one, Handle other) { *milliseconds = 1; return enter(); }

// Streams and green contexts. A stream's handle is the green context that it was made on, and 1 000 000.
typedef struct { uint32_t kind; uint32_t cut_from; char internal[88]; uint32_t units; } Resource;
static struct { int alive, streams, cut_from; } greens[MAX_COUNT];
static Resource described[MAX_COUNT];
static int next_green = 1, next_description;

int cuStreamCreate(Handle *stream, unsigned flags) { *stream = 1000000; return enter(); }
int cuStreamDestroy_v2(Handle stream) { greens[stream - 1000000].streams--; return enter(); }
int cuDeviceGetDevResource(int device, Resource *resource, unsigned kind) {
    resource->kind = kind; resource->cut_from = 0; resource->units = UNITS;
    return 0;
}
int cuGreenCtxGetDevResource(Handle green, Resource *resource, unsigned kind) {
    *resource = described[green];
    resource->cut_from = green;
    return 0;
}
int cuDevSmResourceSplitByCount(Resource *group, unsigned *groups, const Resource *from, Resource *rest, unsigned flags,
                                unsigned units) {
    unsigned taken = (units + STEP - 1) / STEP * STEP;
    if (taken > from->units) { *groups = 0; return 0; }
    *group = *from; *rest = *from;
    group->units = taken; rest->units = from->units - taken;
    *groups = 1;
    return 0;
}
int cuDevResourceGenerateDesc(Handle *description, Resource *resource, unsigned count) {
    described[MAX_COUNT - 1 - next_description] = *resource;
    *description = MAX_COUNT - 1 - next_description++;
    return 0;
}
int cuGreenCtxCreate(Handle *green, Handle description, int device, unsigned flags) {
    *green = next_green++;
    described[*green] = described[description];
    greens[*green].alive = 1;
    greens[*green].cut_from = described[description].cut_from;
    return enter();
}
int cuGreenCtxDestroy(Handle green) {
    orphans += greens[green].streams;
    for (int i = 1; i < next_green; i++) orphans += greens[i].alive && greens[i].cut_from == (int)green;
    greens[green].alive = 0;
    return enter();
}
int cuGreenCtxStreamCreate(Handle *stream, Handle green, unsigned flags, int priority) {
    *stream = 1000000 + green;
    greens[green].streams++;
    return enter();
}
