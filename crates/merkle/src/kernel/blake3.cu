// BLAKE3 of messages up to 1024 bytes. The words of a digest are the same in registers and in memory.

#define MIN_BLOCKS_PER_SM 4
#define SYNC_WARPS 0
#define CHUNK_START 1
#define CHUNK_END 2
#define ROOT 8

static __device__ __forceinline__ constexpr unsigned initial_word(int index) {
    constexpr unsigned words[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    return words[index];
}

static __device__ __forceinline__ Digest initial() {
    Digest digest;
#pragma unroll
    for (int word = 0; word < 8; word++) digest.words[word] = initial_word(word);
    return digest;
}

static __device__ __forceinline__ void mix(unsigned (&v)[16], int a, int b, int c, int d, unsigned x, unsigned y) {
    v[a] += v[b] + x;
    v[d] = rotate_right(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate_right(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = rotate_right(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = rotate_right(v[b] ^ v[c], 7);
}

static __device__ __forceinline__ constexpr int permuted(int index) {
    constexpr int places[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
    return places[index];
}

static __device__ __forceinline__ Digest compress(const Digest &chain, unsigned (&m)[16], unsigned bytes, unsigned flags) {
    unsigned v[16];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = chain.words[i];
#pragma unroll
    for (int i = 0; i < 4; i++) v[8 + i] = initial_word(i);
    v[12] = 0, v[13] = 0, v[14] = bytes, v[15] = flags;
#pragma unroll
    for (int round = 0; round < 7; round++) {
#pragma unroll
        for (int i = 0; i < 4; i++) mix(v, i, 4 + i, 8 + i, 12 + i, m[2 * i], m[2 * i + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[8 + 2 * i], m[9 + 2 * i]);
        unsigned next[16];
#pragma unroll
        for (int i = 0; i < 16; i++) next[i] = m[permuted(i)];
#pragma unroll
        for (int i = 0; i < 16; i++) m[i] = next[i];
    }
    Digest digest;
#pragma unroll
    for (int i = 0; i < 8; i++) digest.words[i] = v[i] ^ v[8 + i];
    return digest;
}

// Converts a word of a digest between registers and memory.
static __device__ __forceinline__ unsigned to_memory_order(unsigned word) {
    return word;
}

#define MESSAGE_BLOCKS ((MESSAGE_BYTES + 63) / 64)

static __device__ __forceinline__ Digest leaf_hash(const unsigned *in, u64 leaf) {
    Digest digest = initial();
#pragma unroll 1
    for (unsigned block = 0; block < MESSAGE_BLOCKS; block++) {
        const unsigned first = MESSAGE_BLOCKS == 1 ? 0 : block * 16;
        unsigned m[16];
#pragma unroll
        for (unsigned i = 0; i < 16; i++) m[i] = message_word(in, leaf, first + i);
        const bool last = first + 16 == MESSAGE_BLOCKS * 16;
        const unsigned flags = (first == 0 ? CHUNK_START : 0) | (last ? CHUNK_END | ROOT : 0);
        digest = compress(digest, m, last ? MESSAGE_BYTES - (MESSAGE_BLOCKS - 1) * 64 : 64, flags);
    }
    return digest;
}

static __device__ __noinline__ Digest node_hash(Digest left, Digest right) {
    unsigned m[16];
#pragma unroll
    for (int word = 0; word < 8; word++) m[word] = left.words[word], m[8 + word] = right.words[word];
#if PREFIXED
    unsigned rest[16] = {m[15] >> 24};
#pragma unroll
    for (int word = 15; word > 0; word--) m[word] = __funnelshift_l(m[word - 1], m[word], 8);
    m[0] = m[0] << 8 | 1;
    return compress(compress(initial(), m, 64, CHUNK_START), rest, 1, CHUNK_END | ROOT);
#else
    return compress(initial(), m, 64, CHUNK_START | CHUNK_END | ROOT);
#endif
}
