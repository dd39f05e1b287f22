/* NCCL on top of the device crate's stand-in for the CUDA driver, which is in front of this: every step takes 200 ms. */
#include <time.h>

typedef void *ptr;
enum { SUCCESS = 0, IN_PROGRESS = 7, NOT_READY = 600 };

static int aborted, astray;
static double enqueued, taken;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Read by the tests: communicators aborted, and calls made outside of the card's context. */
uintptr_t fake_aborted(void) { return aborted; }
uintptr_t fake_astray(void) { return astray; }

#undef cuStreamQuery
int cuStreamQuery(Handle stream) { int code = stand_in_stream_query(stream); return !code && now() < taken + 0.2 ? NOT_READY : code; }

static void look(void) { astray += current() != PRIMARY; }
static int enqueue(void) { look(); enqueued = now(); return IN_PROGRESS; }
int ncclGetVersion(int *version) { *version = 22703; return 0; }
int ncclGetUniqueId(ptr id) { return 0; }
struct id { char bytes[128]; };
int ncclCommInitRankConfig(ptr *comm, int ranks, struct id id, int rank, ptr config) { *comm = (ptr)0x77; return enqueue(); }
int ncclCommGetAsyncError(ptr comm, int *state) {
    look();
    if (now() < enqueued + 0.2) *state = IN_PROGRESS;
    else { if (taken < enqueued) taken = now(); *state = SUCCESS; }
    return 0;
}
/* Like the CUDA runtime below NCCL, it makes its card's context current and does not restore the previous one. */
int ncclCommAbort(ptr comm) { look(); cuCtxSetCurrent(0xBAD); aborted++; return 0; }
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
