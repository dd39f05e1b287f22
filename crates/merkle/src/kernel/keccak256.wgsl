// Keccak-256 with each 64-bit word as two 32-bit words, the low one first, because not every device has 64-bit
// integers. The words of a digest are the same in registers and in memory.

// Not a constant: drivers copy an indexed constant for every access.
var<private> ROUND_CONSTANTS: array<vec2<u32>, 24> = array<vec2<u32>, 24>(
    vec2<u32>(0x00000001u, 0x00000000u),
    vec2<u32>(0x00008082u, 0x00000000u),
    vec2<u32>(0x0000808au, 0x80000000u),
    vec2<u32>(0x80008000u, 0x80000000u),
    vec2<u32>(0x0000808bu, 0x00000000u),
    vec2<u32>(0x80000001u, 0x00000000u),
    vec2<u32>(0x80008081u, 0x80000000u),
    vec2<u32>(0x00008009u, 0x80000000u),
    vec2<u32>(0x0000008au, 0x00000000u),
    vec2<u32>(0x00000088u, 0x00000000u),
    vec2<u32>(0x80008009u, 0x00000000u),
    vec2<u32>(0x8000000au, 0x00000000u),
    vec2<u32>(0x8000808bu, 0x00000000u),
    vec2<u32>(0x0000008bu, 0x80000000u),
    vec2<u32>(0x00008089u, 0x80000000u),
    vec2<u32>(0x00008003u, 0x80000000u),
    vec2<u32>(0x00008002u, 0x80000000u),
    vec2<u32>(0x00000080u, 0x80000000u),
    vec2<u32>(0x0000800au, 0x00000000u),
    vec2<u32>(0x8000000au, 0x80000000u),
    vec2<u32>(0x80008081u, 0x80000000u),
    vec2<u32>(0x00008080u, 0x80000000u),
    vec2<u32>(0x80000001u, 0x00000000u),
    vec2<u32>(0x80008008u, 0x80000000u),
);

// The sponge's rate in 64-bit words.
const RATE = 17u;

fn to_memory_order(word: u32) -> u32 {
    return word;
}

fn rotate_left(value: vec2<u32>, count: u32) -> vec2<u32> {
    var both = value;
    if (count >= 32u) {
        both = value.yx;
    }
    let shift = count % 32u;
    if (shift == 0u) {
        return both;
    }
    return (both << vec2<u32>(shift)) | (both.yx >> vec2<u32>(32u - shift));
}

fn permute(state: ptr<function, array<vec2<u32>, 25>>) {
    var s = *state;
    for (var round = 0u; round < 24u; round++) {
        let c0 = s[0] ^ s[5] ^ s[10] ^ s[15] ^ s[20];
        let c1 = s[1] ^ s[6] ^ s[11] ^ s[16] ^ s[21];
        let c2 = s[2] ^ s[7] ^ s[12] ^ s[17] ^ s[22];
        let c3 = s[3] ^ s[8] ^ s[13] ^ s[18] ^ s[23];
        let c4 = s[4] ^ s[9] ^ s[14] ^ s[19] ^ s[24];
        let d0 = c4 ^ rotate_left(c1, 1u);
        let d1 = c0 ^ rotate_left(c2, 1u);
        let d2 = c1 ^ rotate_left(c3, 1u);
        let d3 = c2 ^ rotate_left(c4, 1u);
        let d4 = c3 ^ rotate_left(c0, 1u);
        let m0 = s[0] ^ d0;
        let m1 = rotate_left(s[6] ^ d1, 44u);
        let m2 = rotate_left(s[12] ^ d2, 43u);
        let m3 = rotate_left(s[18] ^ d3, 21u);
        let m4 = rotate_left(s[24] ^ d4, 14u);
        let m5 = rotate_left(s[3] ^ d3, 28u);
        let m6 = rotate_left(s[9] ^ d4, 20u);
        let m7 = rotate_left(s[10] ^ d0, 3u);
        let m8 = rotate_left(s[16] ^ d1, 45u);
        let m9 = rotate_left(s[22] ^ d2, 61u);
        let m10 = rotate_left(s[1] ^ d1, 1u);
        let m11 = rotate_left(s[7] ^ d2, 6u);
        let m12 = rotate_left(s[13] ^ d3, 25u);
        let m13 = rotate_left(s[19] ^ d4, 8u);
        let m14 = rotate_left(s[20] ^ d0, 18u);
        let m15 = rotate_left(s[4] ^ d4, 27u);
        let m16 = rotate_left(s[5] ^ d0, 36u);
        let m17 = rotate_left(s[11] ^ d1, 10u);
        let m18 = rotate_left(s[17] ^ d2, 15u);
        let m19 = rotate_left(s[23] ^ d3, 56u);
        let m20 = rotate_left(s[2] ^ d2, 62u);
        let m21 = rotate_left(s[8] ^ d3, 55u);
        let m22 = rotate_left(s[14] ^ d4, 39u);
        let m23 = rotate_left(s[15] ^ d0, 41u);
        let m24 = rotate_left(s[21] ^ d1, 2u);
        s[0] = m0 ^ (~m1 & m2) ^ ROUND_CONSTANTS[round];
        s[1] = m1 ^ (~m2 & m3);
        s[2] = m2 ^ (~m3 & m4);
        s[3] = m3 ^ (~m4 & m0);
        s[4] = m4 ^ (~m0 & m1);
        s[5] = m5 ^ (~m6 & m7);
        s[6] = m6 ^ (~m7 & m8);
        s[7] = m7 ^ (~m8 & m9);
        s[8] = m8 ^ (~m9 & m5);
        s[9] = m9 ^ (~m5 & m6);
        s[10] = m10 ^ (~m11 & m12);
        s[11] = m11 ^ (~m12 & m13);
        s[12] = m12 ^ (~m13 & m14);
        s[13] = m13 ^ (~m14 & m10);
        s[14] = m14 ^ (~m10 & m11);
        s[15] = m15 ^ (~m16 & m17);
        s[16] = m16 ^ (~m17 & m18);
        s[17] = m17 ^ (~m18 & m19);
        s[18] = m18 ^ (~m19 & m15);
        s[19] = m19 ^ (~m15 & m16);
        s[20] = m20 ^ (~m21 & m22);
        s[21] = m21 ^ (~m22 & m23);
        s[22] = m22 ^ (~m23 & m24);
        s[23] = m23 ^ (~m24 & m20);
        s[24] = m24 ^ (~m20 & m21);
    }
    *state = s;
}

fn squeeze(s: array<vec2<u32>, 25>) -> array<u32, 8> {
    return array<u32, 8>(s[0].x, s[0].y, s[1].x, s[1].y, s[2].x, s[2].y, s[3].x, s[3].y);
}

const MESSAGE_BLOCKS = MESSAGE_BYTES / (8u * RATE) + 1u;

// Returns a word of a leaf's message with the padding bit after its end.
fn ended_word(leaf: u32, index: u32) -> u32 {
    let word = message_word(leaf, index);
    if (index == MESSAGE_BYTES / 4u) {
        return word | (1u << (8u * (MESSAGE_BYTES % 4u)));
    }
    return word;
}

fn leaf_hash(leaf: u32) -> array<u32, 8> {
    var s: array<vec2<u32>, 25>;
    for (var block = 0u; block < MESSAGE_BLOCKS; block++) {
        for (var i = 0u; i < RATE; i++) {
            let word = 2u * (block * RATE + i);
            s[i] ^= vec2<u32>(ended_word(leaf, word), ended_word(leaf, word + 1u));
        }
        if (block + 1u == MESSAGE_BLOCKS) {
            s[RATE - 1u].y ^= 0x80000000u;
        }
        permute(&s);
    }
    return squeeze(s);
}

fn node_hash(left: array<u32, 8>, right: array<u32, 8>) -> array<u32, 8> {
    var message = array<u32, 18>(
        left[0], left[1], left[2], left[3], left[4], left[5], left[6], left[7],
        right[0], right[1], right[2], right[3], right[4], right[5], right[6], right[7], 1u, 0u,
    );
    if (PREFIXED != 0u) {
        for (var word = 16u; word > 0u; word--) {
            message[word] = (message[word] << 8u) | (message[word - 1u] >> 24u);
        }
        message[0] = (message[0] << 8u) | 1u;
    }
    var s: array<vec2<u32>, 25>;
    for (var i = 0u; i < 9u; i++) {
        s[i] = vec2<u32>(message[2u * i], message[2u * i + 1u]);
    }
    s[RATE - 1u].y ^= 0x80000000u;
    permute(&s);
    return squeeze(s);
}
