//! BLAKE3 of sixteen messages at once.

use std::arch::x86_64::*;

use super::{
    Digest, Framing, LANES, Word, Words, message_of_pairs, splat, transpose_to_digests, transpose_to_words,
};

const INITIAL: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const ROOT: u32 = 8;
/// The flags of a message of one block.
const SINGLE_BLOCK: u32 = CHUNK_START | CHUNK_END | ROOT;

/// The permutation of the message words between rounds.
const MESSAGE_PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn initial() -> Words {
    let mut words = [_mm512_setzero_si512(); 8];
    for (word, number) in words.iter_mut().zip(INITIAL) {
        *word = splat(number);
    }
    words
}

macro_rules! mix {
    ($v:ident, $a:expr, $b:expr, $c:expr, $d:expr, $x:expr, $y:expr) => {
        $v[$a] = _mm512_add_epi32(_mm512_add_epi32($v[$a], $v[$b]), $x);
        $v[$d] = _mm512_ror_epi32::<16>(_mm512_xor_si512($v[$d], $v[$a]));
        $v[$c] = _mm512_add_epi32($v[$c], $v[$d]);
        $v[$b] = _mm512_ror_epi32::<12>(_mm512_xor_si512($v[$b], $v[$c]));
        $v[$a] = _mm512_add_epi32(_mm512_add_epi32($v[$a], $v[$b]), $y);
        $v[$d] = _mm512_ror_epi32::<8>(_mm512_xor_si512($v[$d], $v[$a]));
        $v[$c] = _mm512_add_epi32($v[$c], $v[$d]);
        $v[$b] = _mm512_ror_epi32::<7>(_mm512_xor_si512($v[$b], $v[$c]));
    };
}

#[target_feature(enable = "avx512f,avx512bw")]
fn compress(chain: &Words, mut m: [Word; 16], bytes: u32, flags: u32) -> Words {
    let zero = _mm512_setzero_si512();
    let mut v = [zero; 16];
    v[..8].copy_from_slice(chain);
    v[8..12].copy_from_slice(&initial()[..4]);
    (v[14], v[15]) = (splat(bytes), splat(flags));
    for round in 0..7 {
        if round > 0 {
            let before = m;
            for (word, from) in m.iter_mut().zip(MESSAGE_PERMUTATION) {
                *word = before[from];
            }
        }
        mix!(v, 0, 4, 8, 12, m[0], m[1]);
        mix!(v, 1, 5, 9, 13, m[2], m[3]);
        mix!(v, 2, 6, 10, 14, m[4], m[5]);
        mix!(v, 3, 7, 11, 15, m[6], m[7]);
        mix!(v, 0, 5, 10, 15, m[8], m[9]);
        mix!(v, 1, 6, 11, 12, m[10], m[11]);
        mix!(v, 2, 7, 8, 13, m[12], m[13]);
        mix!(v, 3, 4, 9, 14, m[14], m[15]);
    }
    let mut words = [zero; 8];
    for (index, word) in words.iter_mut().enumerate() {
        *word = _mm512_xor_si512(v[index], v[8 + index]);
    }
    words
}

/// Shifts a byte string right by one byte: the last byte of `before`, then the first three of `word` (little-endian).
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn shift_in_byte(before: Word, word: Word) -> Word {
    _mm512_or_si512(_mm512_srli_epi32::<24>(before), _mm512_slli_epi32::<8>(word))
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn hash_digests(framing: Framing, messages: &[Digest; LANES]) -> [Digest; LANES] {
    let message = transpose_to_words::<false>(messages);
    let zero = _mm512_setzero_si512();
    let mut words = [zero; 16];
    transpose_to_digests::<false>(&match framing.prefix {
        Some(prefix) => {
            words[0] = _mm512_or_si512(splat(prefix.into()), _mm512_slli_epi32::<8>(message[0]));
            for index in 1..8 {
                words[index] = shift_in_byte(message[index - 1], message[index]);
            }
            words[8] = shift_in_byte(message[7], zero);
            compress(&initial(), words, 33, SINGLE_BLOCK)
        }
        None => {
            words[..8].copy_from_slice(&message);
            compress(&initial(), words, 32, SINGLE_BLOCK)
        }
    })
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn hash_pairs(framing: Framing, low: &[Digest; LANES], high: &[Digest; LANES]) -> [Digest; LANES] {
    let message = message_of_pairs(&transpose_to_words::<false>(low), &transpose_to_words::<false>(high));
    let zero = _mm512_setzero_si512();
    transpose_to_digests::<false>(&match framing.prefix {
        Some(prefix) => {
            let (mut words, mut rest) = ([zero; 16], [zero; 16]);
            words[0] = _mm512_or_si512(splat(prefix.into()), _mm512_slli_epi32::<8>(message[0]));
            for index in 1..16 {
                words[index] = shift_in_byte(message[index - 1], message[index]);
            }
            rest[0] = shift_in_byte(message[15], zero);
            let chain = compress(&initial(), words, 64, CHUNK_START);
            compress(&chain, rest, 1, CHUNK_END | ROOT)
        }
        None => compress(&initial(), message, 64, SINGLE_BLOCK),
    })
}
