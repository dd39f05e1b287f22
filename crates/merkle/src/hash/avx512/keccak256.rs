//! Keccak-256 of eight messages at once, each shorter than the rate.

use std::arch::x86_64::*;

use super::{Digest, Framing, is_available};

/// The number of messages that are hashed at once.
const LANES: usize = 8;
/// The sponge's rate in bytes.
const RATE: usize = 136;

const ROUND_CONSTANTS: [u64; 24] = [
    0x0000000000000001,
    0x0000000000008082,
    0x800000000000808a,
    0x8000000080008000,
    0x000000000000808b,
    0x0000000080000001,
    0x8000000080008081,
    0x8000000000008009,
    0x000000000000008a,
    0x0000000000000088,
    0x0000000080008009,
    0x000000008000000a,
    0x000000008000808b,
    0x800000000000008b,
    0x8000000000008089,
    0x8000000000008003,
    0x8000000000008002,
    0x8000000000000080,
    0x000000000000800a,
    0x800000008000000a,
    0x8000000080008081,
    0x8000000000008080,
    0x0000000080000001,
    0x8000000080008008,
];

/// Hashes messages of one size. Returns `false`, with `out` unchanged, if they are longer than the rate, are hashed
/// twice, or the CPU lacks AVX-512.
pub(super) fn hash(framing: Framing, bytes: &[u8], size: usize, out: &mut [Digest]) -> bool {
    let prefix = framing.prefix.as_slice();
    let end = prefix.len() + size;
    if framing.double || end >= RATE || !is_available() {
        return false;
    }
    let mut padded = [[0u8; RATE]; LANES];
    for message in &mut padded {
        message[..prefix.len()].copy_from_slice(prefix);
        message[end] = 1;
        message[RATE - 1] |= 0x80;
    }
    for (messages, out) in bytes.chunks(LANES * size).zip(out.chunks_mut(LANES)) {
        for (padded, message) in padded.iter_mut().zip(messages.chunks(size)) {
            padded[prefix.len()..end].copy_from_slice(message);
        }
        let words = std::array::from_fn(|word| {
            padded
                .each_ref()
                .map(|message| bytemuck::pod_read_unaligned::<u64>(&message[8 * word..8 * word + 8]))
        });
        // SAFETY: `absorb` needs avx512f and avx512bw, which `is_available` has found above.
        let digests: [[u64; LANES]; 4] = unsafe { absorb(&words) };
        for (lane, out) in out.iter_mut().enumerate() {
            *out = Digest(bytemuck::cast(digests.each_ref().map(|word| word[lane])));
        }
    }
    true
}

/// One round. It is a macro, unrolled, so that the state stays in registers.
macro_rules! round {
    ($s:ident, $constant:expr, $($to:literal: $from:literal << $count:literal),*) => {{
        let mut columns = [_mm512_setzero_si512(); 5];
        let mut moved = [_mm512_setzero_si512(); 25];
        for x in 0..5 {
            let three = _mm512_ternarylogic_epi64::<0x96>($s[x], $s[x + 5], $s[x + 10]);
            columns[x] = _mm512_ternarylogic_epi64::<0x96>(three, $s[x + 15], $s[x + 20]);
        }
        let mut next = columns;
        for x in 0..5 {
            next[x] = _mm512_rol_epi64::<1>(columns[(x + 1) % 5]);
        }
        $(
            moved[$to] = _mm512_rol_epi64::<$count>(_mm512_ternarylogic_epi64::<0x96>(
                $s[$from],
                columns[($from + 4) % 5],
                next[$from % 5],
            ));
        )*
        $(
            // The step χ: word ^ (!next & next but one), along a row.
            $s[$to] = _mm512_ternarylogic_epi64::<0xd2>(
                moved[$to],
                moved[$to - $to % 5 + ($to + 1) % 5],
                moved[$to - $to % 5 + ($to + 2) % 5],
            );
        )*
        $s[0] = _mm512_xor_si512($s[0], _mm512_set1_epi64($constant as i64));
    }};
}

/// Absorbs the padded words of eight messages and returns the words of their digests.
#[target_feature(enable = "avx512f,avx512bw")]
fn absorb(message: &[[u64; LANES]; RATE / 8]) -> [[u64; LANES]; 4] {
    let mut state = [_mm512_setzero_si512(); 25];
    for (word, message) in state.iter_mut().zip(message) {
        *word = bytemuck::cast(*message);
    }
    for constant in ROUND_CONSTANTS {
        // The steps ρ and π: destination: source << rotation.
        round!(state, constant,
            0: 0 << 0, 1: 6 << 44, 2: 12 << 43, 3: 18 << 21, 4: 24 << 14, 5: 3 << 28, 6: 9 << 20, 7: 10 << 3, 8: 16 << 45, 9: 22 << 61, 10: 1 << 1, 11: 7 << 6, 12: 13 << 25, 13: 19 << 8, 14: 20 << 18, 15: 4 << 27, 16: 5 << 36, 17: 11 << 10, 18: 17 << 15, 19: 23 << 56, 20: 2 << 62, 21: 8 << 55, 22: 14 << 39, 23: 15 << 41, 24: 21 << 2);
    }
    [state[0], state[1], state[2], state[3]].map(bytemuck::cast)
}
