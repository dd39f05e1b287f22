// Reads leaves as messages: little-endian words of four bytes, zero past the end. The code before this one defines
// LEAF_BYTES, the size of a leaf, and PREFIXED: 1 if a byte 0 is hashed before a leaf and a byte 1 before a node.

typedef unsigned long long u64;

struct Digest {
    unsigned words[8];
};

#define MESSAGE_BYTES (LEAF_BYTES + PREFIXED)

static __device__ __forceinline__ unsigned rotate_right(unsigned value, int count) {
    return __funnelshift_r(value, value, count);
}

static __device__ __forceinline__ unsigned swap_bytes(unsigned value) {
    return __byte_perm(value, 0, 0x0123);
}

static __device__ __forceinline__ unsigned leaf_word(const unsigned *in, u64 leaf, unsigned index) {
    if (index * 4 >= LEAF_BYTES) return 0;
#if LEAF_BYTES % 16 == 0
    // Loads sixteen bytes; the compiler merges the four loads of the same sixteen bytes.
    const uint4 words = __ldg(reinterpret_cast<const uint4 *>(in) + leaf * (LEAF_BYTES / 16) + index / 4);
    return index % 4 == 0 ? words.x : index % 4 == 1 ? words.y : index % 4 == 2 ? words.z : words.w;
#elif LEAF_BYTES % 4 == 0
    return in[leaf * (LEAF_BYTES / 4) + index];
#else
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(in) + leaf * LEAF_BYTES;
    unsigned word = 0;
#pragma unroll
    for (unsigned byte = 0; byte < 4; byte++)
        if (index * 4 + byte < LEAF_BYTES) word |= unsigned(bytes[index * 4 + byte]) << 8 * byte;
    return word;
#endif
}

// Returns a word of a leaf's message, including the prefix.
static __device__ __forceinline__ unsigned message_word(const unsigned *in, u64 leaf, unsigned index) {
#if PREFIXED
    const unsigned before = index == 0 ? 0 : leaf_word(in, leaf, index - 1) >> 24;
    return before | leaf_word(in, leaf, index) << 8;
#else
    return leaf_word(in, leaf, index);
#endif
}
