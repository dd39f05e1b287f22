//! SHA-256 of sixteen messages at once.

use std::arch::x86_64::*;

use super::{
    Digest, Framing, LANES, Word, Words, message_of_pairs, splat, transpose_to_digests, transpose_to_words,
};

const ROUND_CONSTANTS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

const INITIAL: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/// The padding bit after a message, in the most significant byte of its word.
const PADDING_BIT: u32 = 0x8000_0000;

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn xor3(a: Word, b: Word, c: Word) -> Word {
    _mm512_xor_si512(_mm512_xor_si512(a, b), c)
}

/// One round, which computes its word of the message schedule from round 16 on. State words stay in their registers:
/// instead, the index of `a` rotates.
///
/// It is a function, not a macro: without optimisation every intermediate value has its own place on the stack, and those
/// of all rounds in one function took 2 MiB. With optimisation the compiler inlines it.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn round<const INDEX: usize>(state: &mut Words, words: &mut [Word; 16]) {
    let first_word = 64 - INDEX;
    let [a, b, c, d, e, f, g, h]: [usize; 8] = std::array::from_fn(|word| (first_word + word) % 8);
    if INDEX >= 16 {
        let (early, late) = (words[(INDEX + 1) % 16], words[(INDEX + 14) % 16]);
        // Plain operations, unlike `ternarylogic`, let the compiler fold constant words.
        let sigma0 =
            xor3(_mm512_ror_epi32::<7>(early), _mm512_ror_epi32::<18>(early), _mm512_srli_epi32::<3>(early));
        let sigma1 =
            xor3(_mm512_ror_epi32::<17>(late), _mm512_ror_epi32::<19>(late), _mm512_srli_epi32::<10>(late));
        let before = _mm512_add_epi32(words[INDEX % 16], words[(INDEX + 9) % 16]);
        words[INDEX % 16] = _mm512_add_epi32(before, _mm512_add_epi32(sigma0, sigma1));
    }
    let word = _mm512_add_epi32(words[INDEX % 16], splat(ROUND_CONSTANTS[INDEX]));
    let sum1 = _mm512_ternarylogic_epi32::<0x96>(
        _mm512_ror_epi32::<6>(state[e]),
        _mm512_ror_epi32::<11>(state[e]),
        _mm512_ror_epi32::<25>(state[e]),
    );
    let choice = _mm512_ternarylogic_epi32::<0xca>(state[e], state[f], state[g]);
    let first = _mm512_add_epi32(_mm512_add_epi32(state[h], word), _mm512_add_epi32(sum1, choice));
    let sum0 = _mm512_ternarylogic_epi32::<0x96>(
        _mm512_ror_epi32::<2>(state[a]),
        _mm512_ror_epi32::<13>(state[a]),
        _mm512_ror_epi32::<22>(state[a]),
    );
    let majority = _mm512_ternarylogic_epi32::<0xe8>(state[a], state[b], state[c]);
    state[d] = _mm512_add_epi32(state[d], first);
    state[h] = _mm512_add_epi32(first, _mm512_add_epi32(sum0, majority));
}

macro_rules! rounds {
    ($state:ident, $words:ident, $($index:literal)*) => { $(round::<$index>(&mut $state, &mut $words);)* };
}

/// One compression. It is a macro so that the compiler folds the constant words at each place of use.
macro_rules! compress {
    ($before:expr, $words:expr) => {{
        let before: Words = $before;
        let (mut state, mut words): (Words, [Word; 16]) = (before, $words);
        rounds!(state, words,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
            32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63);
        let mut after = before;
        for (after, state) in after.iter_mut().zip(state) {
            *after = _mm512_add_epi32(*after, state);
        }
        after
    }};
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn initial() -> Words {
    let mut state = [_mm512_setzero_si512(); 8];
    for (word, number) in state.iter_mut().zip(INITIAL) {
        *word = splat(number);
    }
    state
}

/// Shifts a byte string right by one byte: the last byte of `before`, then the first three of `word` (big-endian).
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn shift_in_byte(before: Word, word: Word) -> Word {
    _mm512_or_si512(_mm512_slli_epi32::<24>(before), _mm512_srli_epi32::<8>(word))
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn hash_digests(framing: Framing, messages: &[Digest; LANES]) -> [Digest; LANES] {
    let message = transpose_to_words::<true>(messages);
    let zero = _mm512_setzero_si512();
    let mut words = [zero; 16];
    let hashed = match framing.prefix {
        Some(prefix) => {
            words[0] = _mm512_or_si512(splat(u32::from(prefix) << 24), _mm512_srli_epi32::<8>(message[0]));
            for index in 1..8 {
                words[index] = shift_in_byte(message[index - 1], message[index]);
            }
            words[8] = shift_in_byte(message[7], splat(PADDING_BIT));
            words[15] = splat(8 * 33);
            compress!(initial(), words)
        }
        None => hash_32_bytes(&message),
    };
    transpose_to_digests::<true>(&if framing.double { hash_32_bytes(&hashed) } else { hashed })
}

#[target_feature(enable = "avx512f,avx512bw")]
fn hash_32_bytes(message: &Words) -> Words {
    let mut words = [_mm512_setzero_si512(); 16];
    words[..8].copy_from_slice(message);
    words[8] = splat(PADDING_BIT);
    words[15] = splat(8 * 32);
    compress!(initial(), words)
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn hash_pairs(framing: Framing, low: &[Digest; LANES], high: &[Digest; LANES]) -> [Digest; LANES] {
    let message = message_of_pairs(&transpose_to_words::<true>(low), &transpose_to_words::<true>(high));
    let zero = _mm512_setzero_si512();
    let mut padding = [zero; 16];
    let hashed = match framing.prefix {
        Some(prefix) => {
            let mut words = [zero; 16];
            words[0] = _mm512_or_si512(splat(u32::from(prefix) << 24), _mm512_srli_epi32::<8>(message[0]));
            for index in 1..16 {
                words[index] = shift_in_byte(message[index - 1], message[index]);
            }
            padding[0] = shift_in_byte(message[15], splat(PADDING_BIT));
            padding[15] = splat(8 * 65);
            compress!(compress!(initial(), words), padding)
        }
        None => {
            padding[0] = splat(PADDING_BIT);
            padding[15] = splat(8 * 64);
            compress!(compress!(initial(), message), padding)
        }
    };
    transpose_to_digests::<true>(&if framing.double { hash_32_bytes(&hashed) } else { hashed })
}
