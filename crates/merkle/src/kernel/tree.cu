// Reduces aligned blocks of leaves to their roots, one block a workgroup. In front of this come definitions
// (LEAF_BYTES, PREFIXED, DOUBLE) and a hash function, which gives `leaf_hash`, `node_hash`, and what a
// digest's words are in memory (`in_memory`, its own inverse).

struct Params {
    unsigned log_leaves_a_thread;
    // The input is digests, which are taken as they are.
    unsigned hashed;
    // Every node is written out, level by level, and not the root alone.
    unsigned whole;
    // The block that the first workgroup has.
    unsigned first_block;
};

#define THREADS 256
#define LOG_THREADS 8
// A thread reduces at most 1 << MOST leaves by itself.
#define MOST 8

// Where a level's nodes begin among the nodes of a block of 1 << height leaves.
static __device__ __forceinline__ unsigned level_start(unsigned height, unsigned level) {
    return (2u << height) - (2u << (height - level));
}

static __device__ __forceinline__ Digest load(const unsigned *from) {
    const uint4 *halves = reinterpret_cast<const uint4 *>(from);
    const uint4 low = __ldg(halves), high = __ldg(halves + 1);
    return {{in_memory(low.x), in_memory(low.y), in_memory(low.z), in_memory(low.w), in_memory(high.x),
             in_memory(high.y), in_memory(high.z), in_memory(high.w)}};
}

static __device__ __forceinline__ void store(unsigned *to, const Digest &digest) {
    const unsigned *w = digest.words;
    reinterpret_cast<uint4 *>(to)[0] =
        make_uint4(in_memory(w[0]), in_memory(w[1]), in_memory(w[2]), in_memory(w[3]));
    reinterpret_cast<uint4 *>(to)[1] =
        make_uint4(in_memory(w[4]), in_memory(w[5]), in_memory(w[6]), in_memory(w[7]));
}

extern "C" __global__ void __launch_bounds__(THREADS, GROUPS_AT_ONCE)
merkle(const unsigned *in, unsigned *out, Params p) {
    __shared__ unsigned shared[8][THREADS];
    const unsigned thread = threadIdx.x;
    const unsigned long long block = p.first_block + blockIdx.x;
    const unsigned alone = p.log_leaves_a_thread, height = alone + LOG_THREADS;
    unsigned *nodes = out + (block << (height + 1)) * 8;

    // A thread reduces its own leaves first: the roots of complete subtrees wait in `waiting`, one a level, as the ones of
    // a binary counter do.
    Digest waiting[MOST + 1];
    Digest digest;
    for (unsigned own = 0; own < 1u << alone; own++) {
#if KEEP_TOGETHER
        // Warps that are at the same place share what is in the instruction cache.
        __syncthreads();
#endif
        unsigned index = (thread << alone) + own;
        const unsigned long long leaf = (block << height) + index;
        digest = p.hashed ? load(in + leaf * 8) : leaf_hash(in, leaf);
        if (p.whole) store(nodes + index * 8, digest);
        unsigned level = 0;
        for (; own >> level & 1; level++) {
            digest = node_hash(waiting[level], digest);
            index >>= 1;
            if (p.whole) store(nodes + (level_start(height, level + 1) + index) * 8, digest);
        }
        waiting[level] = digest;
    }

    // Then the workgroup reduces the threads' nodes together.
    for (unsigned level = alone + 1; level <= height; level++) {
        for (unsigned word = 0; word < 8; word++) shared[word][thread] = digest.words[word];
        __syncthreads();
        const unsigned count = 1u << (height - level);
        if (thread < count) {
            Digest left, right;
            for (unsigned word = 0; word < 8; word++) {
                left.words[word] = shared[word][2 * thread];
                right.words[word] = shared[word][2 * thread + 1];
            }
            digest = node_hash(left, right);
            if (p.whole) store(nodes + (level_start(height, level) + thread) * 8, digest);
        }
        __syncthreads();
    }
    if (thread == 0 && !p.whole) store(out + block * 8, digest);
}
