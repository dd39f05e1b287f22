// The parameters of all kernels of a multi-scalar multiplication.
struct Params {
    unsigned count;
    unsigned window_bits;
    unsigned windows;
    // 1 if all windows share one set of buckets, because the points of each window are precomputed.
    unsigned is_shared;
    unsigned buckets;
    unsigned segments;
    // The first level of a tree that a launch computes, and the number of its levels.
    unsigned level;
    unsigned levels;
};

// Loads and stores values of a multiple of 16 bytes, 16 bytes at a time.
template <class T> static __device__ __forceinline__ T load(const T *from) {
    T value;
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / 16; i++) ((uint4 *)&value)[i] = ((const uint4 *)from)[i];
    return value;
}

template <class T> static __device__ __forceinline__ void store(T *to, const T &value) {
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / 16; i++) ((uint4 *)to)[i] = ((const uint4 *)&value)[i];
}

// Entries of a segment: one thread adds them up.
static __device__ __forceinline__ unsigned segment_length(unsigned entries, unsigned segments) {
    const unsigned length = (entries + segments - 1) / segments;
    return length < MIN_SEGMENT ? MIN_SEGMENT : length;
}
