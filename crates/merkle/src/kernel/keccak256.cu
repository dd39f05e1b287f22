// Keccak-256. The words of a digest are the same in registers and in memory.

#define MIN_BLOCKS_PER_SM 2
#define SYNC_WARPS 0
// The sponge's rate in words of eight bytes.
#define RATE 17

static __device__ __forceinline__ u64 rotate_left64(u64 value, int count) {
    return count == 0 ? value : value << count | value >> (64 - count);
}

static __device__ __forceinline__ constexpr int rotation(int index) {
    constexpr int rotations[25] = {0,  1,  62, 28, 27, 36, 44, 6,  55, 20, 3,  10, 43,
                                   25, 39, 41, 45, 15, 21, 8,  18, 2,  61, 56, 14};
    return rotations[index];
}

static __constant__ u64 round_constants[24] = {
    0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000, 0x000000000000808b,
    0x0000000080000001, 0x8000000080008081, 0x8000000000008009, 0x000000000000008a, 0x0000000000000088,
    0x0000000080008009, 0x000000008000000a, 0x000000008000808b, 0x800000000000008b, 0x8000000000008089,
    0x8000000000008003, 0x8000000000008002, 0x8000000000000080, 0x000000000000800a, 0x800000008000000a,
    0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008};

static __device__ __forceinline__ void permute(u64 (&s)[25]) {
#pragma unroll 2
    for (int round = 0; round < 24; round++) {
        u64 column[5], moved[25];
#pragma unroll
        for (int x = 0; x < 5; x++) column[x] = s[x] ^ s[x + 5] ^ s[x + 10] ^ s[x + 15] ^ s[x + 20];
#pragma unroll
        for (int i = 0; i < 25; i++) s[i] ^= column[(i + 4) % 5] ^ rotate_left64(column[(i + 1) % 5], 1);
        // The step π: word (x, y) moves to (y, 2x + 3y).
#pragma unroll
        for (int i = 0; i < 25; i++) {
            const int x = i % 5, y = i / 5;
            moved[y + 5 * ((2 * x + 3 * y) % 5)] = rotate_left64(s[i], rotation(i));
        }
#pragma unroll
        for (int i = 0; i < 25; i++)
            s[i] = moved[i] ^ ~moved[i - i % 5 + (i + 1) % 5] & moved[i - i % 5 + (i + 2) % 5];
        s[0] ^= round_constants[round];
    }
}

// Converts a word of a digest between registers and memory.
static __device__ __forceinline__ unsigned to_memory_order(unsigned word) {
    return word;
}

static __device__ __forceinline__ u64 both(unsigned low, unsigned high) {
    return u64(high) << 32 | low;
}

static __device__ __forceinline__ Digest squeeze(const u64 (&s)[25]) {
    Digest digest;
#pragma unroll
    for (int word = 0; word < 4; word++) {
        digest.words[2 * word] = unsigned(s[word]);
        digest.words[2 * word + 1] = unsigned(s[word] >> 32);
    }
    return digest;
}

#define MESSAGE_BLOCKS (MESSAGE_BYTES / (8 * RATE) + 1)

static __device__ __noinline__ Digest leaf_hash(const unsigned *in, u64 leaf) {
    u64 s[25] = {};
#pragma unroll 1
    for (unsigned block = 0; block < MESSAGE_BLOCKS; block++) {
        const unsigned first = MESSAGE_BLOCKS == 1 ? 0 : block * 2 * RATE;
#pragma unroll
        for (unsigned i = 0; i < RATE; i++) {
            const unsigned low = first + 2 * i, high = low + 1, end = MESSAGE_BYTES / 4;
            const unsigned mark = 1u << 8 * (MESSAGE_BYTES % 4);
            s[i] ^= both(message_word(in, leaf, low) | (low == end ? mark : 0),
                         message_word(in, leaf, high) | (high == end ? mark : 0));
        }
        if (first + 2 * RATE == MESSAGE_BLOCKS * 2 * RATE) s[RATE - 1] ^= 0x8000000000000000;
        permute(s);
    }
    return squeeze(s);
}

static __device__ __noinline__ Digest node_hash(Digest left, Digest right) {
    unsigned message[18] = {};
#pragma unroll
    for (int word = 0; word < 8; word++) message[word] = left.words[word], message[8 + word] = right.words[word];
    message[16] = 1;
#if PREFIXED
#pragma unroll
    for (int word = 16; word > 0; word--) message[word] = __funnelshift_l(message[word - 1], message[word], 8);
    message[0] = message[0] << 8 | 1;
#endif
    u64 s[25] = {};
#pragma unroll
    for (int i = 0; i < 9; i++) s[i] = both(message[2 * i], message[2 * i + 1]);
    s[RATE - 1] ^= 0x8000000000000000;
    permute(s);
    return squeeze(s);
}
