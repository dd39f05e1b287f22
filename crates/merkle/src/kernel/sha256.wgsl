// SHA-256. The words of a digest are numbers in registers and big-endian bytes in memory.

// Not a constant: drivers copy an indexed constant for every access.
var<private> ROUND_CONSTANTS: array<u32, 64> = array<u32, 64>(
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u,
);

const INITIAL = array<u32, 8>(
    0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u,
);

fn to_memory_order(word: u32) -> u32 {
    return swap_bytes(word);
}

fn schedule(word: u32, early: u32, middle: u32, late: u32) -> u32 {
    let sigma0 = rotate_right(early, 7u) ^ rotate_right(early, 18u) ^ (early >> 3u);
    let sigma1 = rotate_right(late, 17u) ^ rotate_right(late, 19u) ^ (late >> 10u);
    return word + middle + sigma0 + sigma1;
}

fn step(
    a: u32, b: u32, c: u32, d: ptr<function, u32>, e: u32, f: u32, g: u32, h: ptr<function, u32>, word: u32,
) {
    let sum1 = rotate_right(e, 6u) ^ rotate_right(e, 11u) ^ rotate_right(e, 25u);
    let first = *h + sum1 + ((e & f) ^ (~e & g)) + word;
    let sum0 = rotate_right(a, 2u) ^ rotate_right(a, 13u) ^ rotate_right(a, 22u);
    *d += first;
    *h = first + sum0 + ((a & b) ^ (a & c) ^ (b & c));
}

// Sixteen rounds are unrolled, so that the words stay in registers, and looped over four times.
fn compress(before: array<u32, 8>, message: array<u32, 16>) -> array<u32, 8> {
    var w0 = message[0];
    var w1 = message[1];
    var w2 = message[2];
    var w3 = message[3];
    var w4 = message[4];
    var w5 = message[5];
    var w6 = message[6];
    var w7 = message[7];
    var w8 = message[8];
    var w9 = message[9];
    var w10 = message[10];
    var w11 = message[11];
    var w12 = message[12];
    var w13 = message[13];
    var w14 = message[14];
    var w15 = message[15];
    var a = before[0];
    var b = before[1];
    var c = before[2];
    var d = before[3];
    var e = before[4];
    var f = before[5];
    var g = before[6];
    var h = before[7];
    for (var round = 0u; round < 64u; round += 16u) {
        if (round > 0u) {
            w0 = schedule(w0, w1, w9, w14);
            w1 = schedule(w1, w2, w10, w15);
            w2 = schedule(w2, w3, w11, w0);
            w3 = schedule(w3, w4, w12, w1);
            w4 = schedule(w4, w5, w13, w2);
            w5 = schedule(w5, w6, w14, w3);
            w6 = schedule(w6, w7, w15, w4);
            w7 = schedule(w7, w8, w0, w5);
            w8 = schedule(w8, w9, w1, w6);
            w9 = schedule(w9, w10, w2, w7);
            w10 = schedule(w10, w11, w3, w8);
            w11 = schedule(w11, w12, w4, w9);
            w12 = schedule(w12, w13, w5, w10);
            w13 = schedule(w13, w14, w6, w11);
            w14 = schedule(w14, w15, w7, w12);
            w15 = schedule(w15, w0, w8, w13);
        }
        step(a, b, c, &d, e, f, g, &h, ROUND_CONSTANTS[round + 0u] + w0);
        step(h, a, b, &c, d, e, f, &g, ROUND_CONSTANTS[round + 1u] + w1);
        step(g, h, a, &b, c, d, e, &f, ROUND_CONSTANTS[round + 2u] + w2);
        step(f, g, h, &a, b, c, d, &e, ROUND_CONSTANTS[round + 3u] + w3);
        step(e, f, g, &h, a, b, c, &d, ROUND_CONSTANTS[round + 4u] + w4);
        step(d, e, f, &g, h, a, b, &c, ROUND_CONSTANTS[round + 5u] + w5);
        step(c, d, e, &f, g, h, a, &b, ROUND_CONSTANTS[round + 6u] + w6);
        step(b, c, d, &e, f, g, h, &a, ROUND_CONSTANTS[round + 7u] + w7);
        step(a, b, c, &d, e, f, g, &h, ROUND_CONSTANTS[round + 8u] + w8);
        step(h, a, b, &c, d, e, f, &g, ROUND_CONSTANTS[round + 9u] + w9);
        step(g, h, a, &b, c, d, e, &f, ROUND_CONSTANTS[round + 10u] + w10);
        step(f, g, h, &a, b, c, d, &e, ROUND_CONSTANTS[round + 11u] + w11);
        step(e, f, g, &h, a, b, c, &d, ROUND_CONSTANTS[round + 12u] + w12);
        step(d, e, f, &g, h, a, b, &c, ROUND_CONSTANTS[round + 13u] + w13);
        step(c, d, e, &f, g, h, a, &b, ROUND_CONSTANTS[round + 14u] + w14);
        step(b, c, d, &e, f, g, h, &a, ROUND_CONSTANTS[round + 15u] + w15);
    }
    return array<u32, 8>(before[0] + a, before[1] + b, before[2] + c, before[3] + d, before[4] + e, before[5] + f, before[6] + g, before[7] + h);
}

// Hashes a digest, for rules that hash twice.
fn again(digest: array<u32, 8>) -> array<u32, 8> {
    if (DOUBLE == 0u) {
        return digest;
    }
    return compress(INITIAL, array<u32, 16>(
        digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        0x80000000u, 0u, 0u, 0u, 0u, 0u, 0u, 256u,
    ));
}

const MESSAGE_BLOCKS = (MESSAGE_BYTES + 8u) / 64u + 1u;

fn leaf_hash(leaf: u32) -> array<u32, 8> {
    var digest = INITIAL;
    for (var block = 0u; block < MESSAGE_BLOCKS; block++) {
        var words: array<u32, 16>;
        for (var i = 0u; i < 16u; i++) {
            var word = message_word(leaf, block * 16u + i);
            if (block * 16u + i == MESSAGE_BYTES / 4u) {
                word |= 0x80u << (8u * (MESSAGE_BYTES % 4u));
            }
            words[i] = swap_bytes(word);
        }
        if (block + 1u == MESSAGE_BLOCKS) {
            words[14] = MESSAGE_BYTES >> 29u;
            words[15] = MESSAGE_BYTES << 3u;
        }
        digest = compress(digest, words);
    }
    return again(digest);
}

// One call in a loop, because drivers inline every call.
fn node_hash(left: array<u32, 8>, right: array<u32, 8>) -> array<u32, 8> {
    var message = array<u32, 16>(
        left[0], left[1], left[2], left[3], left[4], left[5], left[6], left[7],
        right[0], right[1], right[2], right[3], right[4], right[5], right[6], right[7],
    );
    var padding: array<u32, 16>;
    padding[0] = 0x80000000u;
    padding[15] = 8u * (64u + PREFIXED);
    if (PREFIXED != 0u) {
        padding[0] = (message[15] << 24u) | 0x00800000u;
        for (var word = 15u; word > 0u; word--) {
            message[word] = (message[word] >> 8u) | (message[word - 1u] << 24u);
        }
        message[0] = (message[0] >> 8u) | 0x01000000u;
    }
    var digest = INITIAL;
    for (var block = 0u; block < 2u; block++) {
        digest = compress(digest, message);
        message = padding;
    }
    return again(digest);
}
