// SHA-256. The words of a digest are numbers in registers and big-endian bytes in memory.

#define MIN_BLOCKS_PER_SM 4
#define SYNC_WARPS 1

static __device__ __forceinline__ constexpr unsigned round_constant(int index) {
    constexpr unsigned constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    return constants[index];
}

static __device__ __forceinline__ Digest initial() {
    return {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

// All rounds are unrolled, so that the sixteen words stay in registers and constant padding is folded.
static __device__ __forceinline__ Digest compress(Digest before, unsigned (&w)[16]) {
    unsigned a = before.words[0], b = before.words[1], c = before.words[2], d = before.words[3];
    unsigned e = before.words[4], f = before.words[5], g = before.words[6], h = before.words[7];
#pragma unroll
    for (int i = 0; i < 64; i++) {
        if (i >= 16) {
            const unsigned early = w[(i + 1) % 16], late = w[(i + 14) % 16];
            w[i % 16] += w[(i + 9) % 16] +
                         (rotate_right(early, 7) ^ rotate_right(early, 18) ^ early >> 3) +
                         (rotate_right(late, 17) ^ rotate_right(late, 19) ^ late >> 10);
        }
        const unsigned sum1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        const unsigned first = h + sum1 + (e & f ^ ~e & g) + (round_constant(i) + w[i % 16]);
        const unsigned sum0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        const unsigned second = sum0 + (a & b ^ a & c ^ b & c);
        h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const unsigned after[8] = {a, b, c, d, e, f, g, h};
#pragma unroll
    for (int word = 0; word < 8; word++) before.words[word] += after[word];
    return before;
}

// Converts a word of a digest between registers and memory.
static __device__ __forceinline__ unsigned to_memory_order(unsigned word) {
    return swap_bytes(word);
}

// Hashes a digest, for rules that hash twice.
static __device__ __forceinline__ Digest again(const Digest &digest) {
#if DOUBLE
    unsigned w[16] = {};
#pragma unroll
    for (int word = 0; word < 8; word++) w[word] = digest.words[word];
    w[8] = 0x80000000;
    w[15] = 8 * 32;
    return compress(initial(), w);
#else
    return digest;
#endif
}

#define MESSAGE_BLOCKS ((MESSAGE_BYTES + 8) / 64 + 1)

static __device__ __forceinline__ Digest leaf_hash(const unsigned *in, u64 leaf) {
    Digest digest = initial();
#pragma unroll 1
    for (unsigned block = 0; block < MESSAGE_BLOCKS; block++) {
        // If there is only one block, its number is a compile-time constant.
        const unsigned first = MESSAGE_BLOCKS == 1 ? 0 : block * 16;
        unsigned w[16];
#pragma unroll
        for (unsigned i = 0; i < 16; i++) {
            unsigned word = message_word(in, leaf, first + i);
            if (first + i == MESSAGE_BYTES / 4) word |= 0x80u << 8 * (MESSAGE_BYTES % 4);
            w[i] = swap_bytes(word);
        }
        if (first + 16 == MESSAGE_BLOCKS * 16) {
            w[14] = (u64(MESSAGE_BYTES) * 8) >> 32;
            w[15] = unsigned(MESSAGE_BYTES * 8u);
        }
        digest = compress(digest, w);
    }
    return again(digest);
}

// Not inlined: two copies would not fit the instruction cache.
static __device__ __noinline__ Digest node_hash(Digest left, Digest right) {
    unsigned message[16], w[16], padding[16] = {};
#pragma unroll
    for (int word = 0; word < 8; word++) message[word] = left.words[word], message[8 + word] = right.words[word];
#if PREFIXED
    w[0] = 0x01000000 | message[0] >> 8;
#pragma unroll
    for (int word = 1; word < 16; word++) w[word] = __funnelshift_r(message[word], message[word - 1], 8);
    padding[0] = message[15] << 24 | 0x00800000;
#else
#pragma unroll
    for (int word = 0; word < 16; word++) w[word] = message[word];
    padding[0] = 0x80000000;
#endif
    padding[15] = 8 * (64 + PREFIXED);
    return again(compress(compress(initial(), w), padding));
}
