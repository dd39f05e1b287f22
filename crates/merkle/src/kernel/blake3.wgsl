// BLAKE3 of messages up to 1024 bytes. The words of a digest are the same in registers and in memory.

const CHUNK_START = 1u;
const CHUNK_END = 2u;
const ROOT = 8u;

const INITIAL = array<u32, 8>(
    0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u,
);

fn to_memory_order(word: u32) -> u32 {
    return word;
}

fn mix(
    a: ptr<function, u32>, b: ptr<function, u32>, c: ptr<function, u32>, d: ptr<function, u32>, x: u32, y: u32,
) {
    *a += *b + x;
    *d = rotate_right(*d ^ *a, 16u);
    *c += *d;
    *b = rotate_right(*b ^ *c, 12u);
    *a += *b + y;
    *d = rotate_right(*d ^ *a, 8u);
    *c += *d;
    *b = rotate_right(*b ^ *c, 7u);
}

// Seven rounds, each with a permutation of the message words.
fn compress(chain: array<u32, 8>, m: array<u32, 16>, bytes: u32, flags: u32) -> array<u32, 8> {
    var v0 = chain[0];
    var v1 = chain[1];
    var v2 = chain[2];
    var v3 = chain[3];
    var v4 = chain[4];
    var v5 = chain[5];
    var v6 = chain[6];
    var v7 = chain[7];
    var v8 = INITIAL[0];
    var v9 = INITIAL[1];
    var v10 = INITIAL[2];
    var v11 = INITIAL[3];
    var v12 = 0u;
    var v13 = 0u;
    var v14 = bytes;
    var v15 = flags;
    mix(&v0, &v4, &v8, &v12, m[0], m[1]);
    mix(&v1, &v5, &v9, &v13, m[2], m[3]);
    mix(&v2, &v6, &v10, &v14, m[4], m[5]);
    mix(&v3, &v7, &v11, &v15, m[6], m[7]);
    mix(&v0, &v5, &v10, &v15, m[8], m[9]);
    mix(&v1, &v6, &v11, &v12, m[10], m[11]);
    mix(&v2, &v7, &v8, &v13, m[12], m[13]);
    mix(&v3, &v4, &v9, &v14, m[14], m[15]);
    mix(&v0, &v4, &v8, &v12, m[2], m[6]);
    mix(&v1, &v5, &v9, &v13, m[3], m[10]);
    mix(&v2, &v6, &v10, &v14, m[7], m[0]);
    mix(&v3, &v7, &v11, &v15, m[4], m[13]);
    mix(&v0, &v5, &v10, &v15, m[1], m[11]);
    mix(&v1, &v6, &v11, &v12, m[12], m[5]);
    mix(&v2, &v7, &v8, &v13, m[9], m[14]);
    mix(&v3, &v4, &v9, &v14, m[15], m[8]);
    mix(&v0, &v4, &v8, &v12, m[3], m[4]);
    mix(&v1, &v5, &v9, &v13, m[10], m[12]);
    mix(&v2, &v6, &v10, &v14, m[13], m[2]);
    mix(&v3, &v7, &v11, &v15, m[7], m[14]);
    mix(&v0, &v5, &v10, &v15, m[6], m[5]);
    mix(&v1, &v6, &v11, &v12, m[9], m[0]);
    mix(&v2, &v7, &v8, &v13, m[11], m[15]);
    mix(&v3, &v4, &v9, &v14, m[8], m[1]);
    mix(&v0, &v4, &v8, &v12, m[10], m[7]);
    mix(&v1, &v5, &v9, &v13, m[12], m[9]);
    mix(&v2, &v6, &v10, &v14, m[14], m[3]);
    mix(&v3, &v7, &v11, &v15, m[13], m[15]);
    mix(&v0, &v5, &v10, &v15, m[4], m[0]);
    mix(&v1, &v6, &v11, &v12, m[11], m[2]);
    mix(&v2, &v7, &v8, &v13, m[5], m[8]);
    mix(&v3, &v4, &v9, &v14, m[1], m[6]);
    mix(&v0, &v4, &v8, &v12, m[12], m[13]);
    mix(&v1, &v5, &v9, &v13, m[9], m[11]);
    mix(&v2, &v6, &v10, &v14, m[15], m[10]);
    mix(&v3, &v7, &v11, &v15, m[14], m[8]);
    mix(&v0, &v5, &v10, &v15, m[7], m[2]);
    mix(&v1, &v6, &v11, &v12, m[5], m[3]);
    mix(&v2, &v7, &v8, &v13, m[0], m[1]);
    mix(&v3, &v4, &v9, &v14, m[6], m[4]);
    mix(&v0, &v4, &v8, &v12, m[9], m[14]);
    mix(&v1, &v5, &v9, &v13, m[11], m[5]);
    mix(&v2, &v6, &v10, &v14, m[8], m[12]);
    mix(&v3, &v7, &v11, &v15, m[15], m[1]);
    mix(&v0, &v5, &v10, &v15, m[13], m[3]);
    mix(&v1, &v6, &v11, &v12, m[0], m[10]);
    mix(&v2, &v7, &v8, &v13, m[2], m[6]);
    mix(&v3, &v4, &v9, &v14, m[4], m[7]);
    mix(&v0, &v4, &v8, &v12, m[11], m[15]);
    mix(&v1, &v5, &v9, &v13, m[5], m[0]);
    mix(&v2, &v6, &v10, &v14, m[1], m[9]);
    mix(&v3, &v7, &v11, &v15, m[8], m[6]);
    mix(&v0, &v5, &v10, &v15, m[14], m[10]);
    mix(&v1, &v6, &v11, &v12, m[2], m[12]);
    mix(&v2, &v7, &v8, &v13, m[3], m[4]);
    mix(&v3, &v4, &v9, &v14, m[7], m[13]);
    return array<u32, 8>(v0 ^ v8, v1 ^ v9, v2 ^ v10, v3 ^ v11, v4 ^ v12, v5 ^ v13, v6 ^ v14, v7 ^ v15);
}

const MESSAGE_BLOCKS = (MESSAGE_BYTES + 63u) / 64u;

fn leaf_hash(leaf: u32) -> array<u32, 8> {
    var digest = INITIAL;
    for (var block = 0u; block < MESSAGE_BLOCKS; block++) {
        var words: array<u32, 16>;
        for (var i = 0u; i < 16u; i++) {
            words[i] = message_word(leaf, block * 16u + i);
        }
        var bytes = 64u;
        var flags = 0u;
        if (block == 0u) {
            flags |= CHUNK_START;
        }
        if (block + 1u == MESSAGE_BLOCKS) {
            flags |= CHUNK_END | ROOT;
            bytes = MESSAGE_BYTES - block * 64u;
        }
        digest = compress(digest, words, bytes, flags);
    }
    return digest;
}

fn node_hash(left: array<u32, 8>, right: array<u32, 8>) -> array<u32, 8> {
    var message = array<u32, 16>(
        left[0], left[1], left[2], left[3], left[4], left[5], left[6], left[7],
        right[0], right[1], right[2], right[3], right[4], right[5], right[6], right[7],
    );
    if (PREFIXED == 0u) {
        return compress(INITIAL, message, 64u, CHUNK_START | CHUNK_END | ROOT);
    }
    var rest: array<u32, 16>;
    rest[0] = message[15] >> 24u;
    for (var word = 15u; word > 0u; word--) {
        message[word] = (message[word] << 8u) | (message[word - 1u] >> 24u);
    }
    message[0] = (message[0] << 8u) | 1u;
    return compress(compress(INITIAL, message, 64u, CHUNK_START), rest, 1u, CHUNK_END | ROOT);
}
