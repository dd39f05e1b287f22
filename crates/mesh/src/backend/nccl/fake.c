/* NCCL and the CUDA driver as far as `nccl` uses them, for machines without a card: every step takes 200 ms, and the
   contexts of the one thread are a stack, at whose bottom is the program's own. */
#include <stddef.h>
#include <time.h>

typedef void *ptr;
enum { SUCCESS = 0, IN_PROGRESS = 7, NOT_READY = 600 };

static ptr contexts[16] = {(ptr)0xCAFE};
static int depth, aborted;
static double enqueued, taken;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* What the test asks. */
ptr fake_current(void) { return contexts[depth]; }
int fake_aborted(void) { return aborted; }

int cuPointerGetAttribute(ptr data, int which, unsigned long long address) { *(ptr *)data = (ptr)0x1234; return 0; }
int cuCtxPushCurrent_v2(ptr context) { contexts[++depth] = context; return 0; }
int cuCtxPopCurrent_v2(ptr *context) { *context = contexts[depth--]; return 0; }
int cuStreamCreate(ptr *stream, unsigned flags) { *stream = (ptr)0x55; return 0; }
int cuStreamQuery(ptr stream) { return now() < taken + 0.2 ? NOT_READY : SUCCESS; }
int cuStreamDestroy_v2(ptr stream) { return 0; }

static int enqueue(void) { enqueued = now(); return IN_PROGRESS; }
int ncclGetVersion(int *version) { *version = 22703; return 0; }
int ncclGetUniqueId(ptr id) { return 0; }
struct id { char bytes[128]; };
int ncclCommInitRankConfig(ptr *comm, int ranks, struct id id, int rank, ptr config) { *comm = (ptr)0x77; return enqueue(); }
int ncclCommGetAsyncError(ptr comm, int *state) {
    if (now() < enqueued + 0.2) *state = IN_PROGRESS;
    else { if (taken < enqueued) taken = now(); *state = SUCCESS; }
    return 0;
}
/* As the CUDA runtime below NCCL, it makes the card that it works on current and leaves that so. */
int ncclCommAbort(ptr comm) { contexts[depth] = (ptr)0xBAD; aborted++; return 0; }
int ncclAllReduce(ptr in, ptr out, size_t n, int type, int op, ptr comm, ptr stream) { return enqueue(); }
int ncclReduce(ptr in, ptr out, size_t n, int type, int op, int root, ptr comm, ptr stream) { return enqueue(); }
int ncclBroadcast(ptr in, ptr out, size_t n, int type, int root, ptr comm, ptr stream) { return enqueue(); }
int ncclAllGather(ptr in, ptr out, size_t n, int type, ptr comm, ptr stream) { return enqueue(); }
int ncclReduceScatter(ptr in, ptr out, size_t n, int type, int op, ptr comm, ptr stream) { return enqueue(); }
int ncclSend(ptr in, size_t n, int type, int to, ptr comm, ptr stream) { return enqueue(); }
int ncclRecv(ptr out, size_t n, int type, int from, ptr comm, ptr stream) { return enqueue(); }
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return enqueue(); }
const char *ncclGetErrorString(int code) { return "an error"; }
