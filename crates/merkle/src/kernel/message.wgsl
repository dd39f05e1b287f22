// Reads leaves as messages: little-endian words of four bytes, zero past the end. The code before this one defines
// LEAF_BYTES, the size of a leaf, and PREFIXED: 1 if a byte 0 is hashed before a leaf and a byte 1 before a node.

@group(0) @binding(0) var<storage, read> input: array<u32>;

const MESSAGE_BYTES = LEAF_BYTES + PREFIXED;

fn rotate_right(value: u32, count: u32) -> u32 {
    return (value >> count) | (value << (32u - count));
}

fn swap_bytes(value: u32) -> u32 {
    return ((value & 0xffu) << 24u) | ((value & 0xff00u) << 8u) | ((value >> 8u) & 0xff00u) | (value >> 24u);
}

fn leaf_word(leaf: u32, index: u32) -> u32 {
    if (index * 4u >= LEAF_BYTES) {
        return 0u;
    }
    let at = leaf * LEAF_BYTES + index * 4u;
    let shift = (at % 4u) * 8u;
    var word = input[at / 4u];
    if (shift != 0u) {
        let next = min(at / 4u + 1u, arrayLength(&input) - 1u);
        word = (word >> shift) | (input[next] << (32u - shift));
    }
    let left = LEAF_BYTES - index * 4u;
    if (left < 4u) {
        word &= (1u << (8u * left)) - 1u;
    }
    return word;
}

// Returns a word of a leaf's message, including the prefix.
fn message_word(leaf: u32, index: u32) -> u32 {
    if (PREFIXED == 0u) {
        return leaf_word(leaf, index);
    }
    var before = 0u;
    if (index > 0u) {
        before = leaf_word(leaf, index - 1u) >> 24u;
    }
    return before | (leaf_word(leaf, index) << 8u);
}
