// Reduces aligned blocks of leaves to their roots, one block per workgroup. The code before this one defines
// LEAF_BYTES, PREFIXED and DOUBLE and a hash function: `leaf_hash`, `node_hash`, and `to_memory_order`, which converts
// a word of a digest between registers and memory and is its own inverse.

struct Params {
    unsigned log_leaves_per_thread;
    // The input is leaf hashes.
    unsigned prehashed;
    // Write every node, level by level, instead of the root only.
    unsigned all_nodes;
    // The block of the first workgroup.
    unsigned first_block;
};

#define THREADS 256
#define LOG_THREADS 8
// A thread reduces at most 1 << MAX_LOG_LEAVES_PER_THREAD leaves by itself.
#define MAX_LOG_LEAVES_PER_THREAD 8

// Returns the index of a level's first node among the nodes of a block of 1 << height leaves.
static __device__ __forceinline__ unsigned level_start(unsigned height, unsigned level) {
    return (2u << height) - (2u << (height - level));
}

static __device__ __forceinline__ Digest load(const unsigned *from) {
    const uint4 *halves = reinterpret_cast<const uint4 *>(from);
    const uint4 low = __ldg(halves), high = __ldg(halves + 1);
    return {{to_memory_order(low.x), to_memory_order(low.y), to_memory_order(low.z), to_memory_order(low.w),
             to_memory_order(high.x), to_memory_order(high.y), to_memory_order(high.z), to_memory_order(high.w)}};
}

static __device__ __forceinline__ void store(unsigned *to, const Digest &digest) {
    const unsigned *w = digest.words;
    reinterpret_cast<uint4 *>(to)[0] =
        make_uint4(to_memory_order(w[0]), to_memory_order(w[1]), to_memory_order(w[2]), to_memory_order(w[3]));
    reinterpret_cast<uint4 *>(to)[1] =
        make_uint4(to_memory_order(w[4]), to_memory_order(w[5]), to_memory_order(w[6]), to_memory_order(w[7]));
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
merkle(const unsigned *in, unsigned *out, Params p) {
    __shared__ unsigned shared[8][THREADS];
    const unsigned thread = threadIdx.x;
    const unsigned long long block = p.first_block + blockIdx.x;
    const unsigned log_own_leaves = p.log_leaves_per_thread, height = log_own_leaves + LOG_THREADS;
    unsigned *nodes = out + (block << (height + 1)) * 8;

    // A thread reduces its own leaves first: `pending` holds the roots of complete subtrees, one per level, like the set
    // bits of a binary counter.
    Digest pending[MAX_LOG_LEAVES_PER_THREAD + 1];
    Digest digest;
    for (unsigned own = 0; own < 1u << log_own_leaves; own++) {
#if SYNC_WARPS
        // Warps at the same instruction share the instruction cache.
        __syncthreads();
#endif
        unsigned index = (thread << log_own_leaves) + own;
        const unsigned long long leaf = (block << height) + index;
        digest = p.prehashed ? load(in + leaf * 8) : leaf_hash(in, leaf);
        if (p.all_nodes) store(nodes + index * 8, digest);
        unsigned level = 0;
        for (; own >> level & 1; level++) {
            digest = node_hash(pending[level], digest);
            index >>= 1;
            if (p.all_nodes) store(nodes + (level_start(height, level + 1) + index) * 8, digest);
        }
        pending[level] = digest;
    }

    // Then the workgroup reduces the threads' digests.
    for (unsigned level = log_own_leaves + 1; level <= height; level++) {
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
            if (p.all_nodes) store(nodes + (level_start(height, level) + thread) * 8, digest);
        }
        __syncthreads();
    }
    if (thread == 0 && !p.all_nodes) store(out + block * 8, digest);
}
