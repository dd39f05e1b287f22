//! Hashes many tree messages at once with AVX-512, one message in each SIMD lane.
//!
//! General multi-message hashing keeps a buffer per message. The messages of a tree have one of two lengths: a digest or
//! leaf of 32 bytes, or two digests, each with at most one byte before it. So the padding is a compile-time constant here,
//! and the compiler folds its part of the message schedule.
#![allow(unsafe_code)] // The only unsafe code is calls of `target_feature` functions after `is_available`.

mod blake3;
mod keccak256;
mod sha256;

use std::arch::x86_64::*;

use super::{Digest, Hash};

/// Sixteen 32-bit words, one of each message.
type Word = __m512i;
/// The eight words of a digest, for sixteen messages.
type Words = [Word; 8];

/// The number of messages that are hashed at once by functions with 32-bit words.
const LANES: usize = 16;

/// Returns whether the CPU has the AVX-512 instructions that this module uses.
fn is_available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// How a digest or a pair of digests becomes a message, and how it is hashed.
#[derive(Clone, Copy)]
pub(super) struct Framing {
    pub(super) hash: Hash,
    /// A byte before the digests.
    pub(super) prefix: Option<u8>,
    /// Whether the hash is hashed again.
    pub(super) double: bool,
}

/// Hashes messages of 32 bytes. Returns `false`, with `out` unchanged, if the CPU or the framing is not supported.
pub(super) fn hash_digests(framing: Framing, messages: &[Digest], out: &mut [Digest]) -> bool {
    if !is_available() {
        return false;
    }
    let hash = match framing.hash {
        Hash::Sha256 => sha256::hash_digests,
        Hash::Blake3 => blake3::hash_digests,
        Hash::Keccak256 => {
            return keccak256::hash(framing, bytemuck::cast_slice(messages), size_of::<Digest>(), out);
        }
    };
    for (messages, out) in messages.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let lanes = pad_to_lanes(messages);
        // SAFETY: `hash` needs avx512f and avx512bw, which `is_available` has found above.
        let hashed = unsafe { hash(framing, &lanes) };
        out.copy_from_slice(&hashed[..out.len()]);
    }
    true
}

/// Hashes pairs of digests. Returns `false`, with `out` unchanged, if the CPU or the framing is not supported.
pub(super) fn hash_pairs(framing: Framing, children: &[Digest], out: &mut [Digest]) -> bool {
    if !is_available() {
        return false;
    }
    let hash = match framing.hash {
        Hash::Sha256 => sha256::hash_pairs,
        Hash::Blake3 => blake3::hash_pairs,
        Hash::Keccak256 => {
            return keccak256::hash(framing, bytemuck::cast_slice(children), 2 * size_of::<Digest>(), out);
        }
    };
    for (children, out) in children.chunks(2 * LANES).zip(out.chunks_mut(LANES)) {
        let (low, high) = children.split_at(children.len().min(LANES));
        let (low, high) = (pad_to_lanes(low), pad_to_lanes(high));
        // SAFETY: `hash` needs avx512f and avx512bw, which `is_available` has found above.
        let hashed = unsafe { hash(framing, &low, &high) };
        out.copy_from_slice(&hashed[..out.len()]);
    }
    true
}

/// Copies up to sixteen digests into one array for all lanes; unused lanes are zero.
#[inline(always)]
fn pad_to_lanes(digests: &[Digest]) -> [Digest; LANES] {
    match digests.try_into() {
        Ok(sixteen) => sixteen,
        Err(_) => {
            let mut sixteen = [Digest::default(); LANES];
            sixteen[..digests.len()].copy_from_slice(digests);
            sixteen
        }
    }
}

/// Returns a register with the same number in every lane.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn splat(number: u32) -> Word {
    _mm512_set1_epi32(number as i32)
}

/// Joins siblings into messages of two digests: the words of the even digest, then those of the odd one.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn message_of_pairs(low: &Words, high: &Words) -> [Word; 16] {
    let even = lane_indices([0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30]);
    let odd = lane_indices([1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31]);
    let mut message = [_mm512_setzero_si512(); 16];
    for index in 0..8 {
        message[index] = _mm512_permutex2var_epi32(low[index], even, high[index]);
        message[8 + index] = _mm512_permutex2var_epi32(low[index], odd, high[index]);
    }
    message
}

/// Returns the index operand of `_mm512_permutex2var_epi32`: 0 to 15 are lanes of the first register, 16 to 31 of the
/// second.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn lane_indices(lanes: [u32; LANES]) -> Word {
    bytemuck::cast(lanes)
}

/// Swaps the bytes of each word if `SWAPPED` (for big-endian hash functions).
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn swap_bytes<const SWAPPED: bool>(word: Word) -> Word {
    const SWAP: [u8; 16] = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];
    if SWAPPED { _mm512_shuffle_epi8(word, bytemuck::cast([SWAP; 4])) } else { word }
}

/// Lane indices that join the first halves, and the second halves, of two registers.
const HALVES: [[u32; LANES]; 2] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23],
    [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31],
];

/// Transposes sixteen digests into words: register n holds word n of every digest.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn transpose_to_words<const SWAPPED: bool>(digests: &[Digest; LANES]) -> Words {
    let zero = _mm512_setzero_si512();
    let two: &[[u8; 64]; 8] = bytemuck::cast_ref(digests);
    // Each register holds four words of four digests: their first four words, or their last four.
    let first = lane_indices([0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27]);
    let last = lane_indices([4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31]);
    let mut fours = [[zero; 4]; 2];
    for index in 0..4 {
        let a = swap_bytes::<SWAPPED>(bytemuck::pod_read_unaligned(&two[2 * index]));
        let b = swap_bytes::<SWAPPED>(bytemuck::pod_read_unaligned(&two[2 * index + 1]));
        fours[0][index] = _mm512_permutex2var_epi32(a, first, b);
        fours[1][index] = _mm512_permutex2var_epi32(a, last, b);
    }
    // Then each register holds two words of eight digests.
    let low = lane_indices([0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23]);
    let high = lane_indices([8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31]);
    let mut words = [zero; 8];
    for (half, four) in fours.iter().enumerate() {
        for (pair, select) in [low, high].into_iter().enumerate() {
            let a = _mm512_permutex2var_epi32(four[0], select, four[1]);
            let b = _mm512_permutex2var_epi32(four[2], select, four[3]);
            words[4 * half + 2 * pair] = _mm512_permutex2var_epi32(a, lane_indices(HALVES[0]), b);
            words[4 * half + 2 * pair + 1] = _mm512_permutex2var_epi32(a, lane_indices(HALVES[1]), b);
        }
    }
    words
}

/// Transposes words back into sixteen digests: the inverse of [`transpose_to_words`].
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn transpose_to_digests<const SWAPPED: bool>(words: &Words) -> [Digest; LANES] {
    let zero = _mm512_setzero_si512();
    let low = lane_indices([0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]);
    let high = lane_indices([4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31]);
    let mut fours = [[zero; 4]; 2];
    for (half, four) in fours.iter_mut().enumerate() {
        for (side, select) in HALVES.into_iter().enumerate() {
            let a = _mm512_permutex2var_epi32(words[4 * half], lane_indices(select), words[4 * half + 1]);
            let b = _mm512_permutex2var_epi32(words[4 * half + 2], lane_indices(select), words[4 * half + 3]);
            four[2 * side] = _mm512_permutex2var_epi32(a, low, b);
            four[2 * side + 1] = _mm512_permutex2var_epi32(a, high, b);
        }
    }
    let first = lane_indices([0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29]);
    let second = lane_indices([2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31]);
    let mut two = [zero; 8];
    for index in 0..4 {
        let (a, b) = (fours[0][index], fours[1][index]);
        two[2 * index] = swap_bytes::<SWAPPED>(_mm512_permutex2var_epi32(a, first, b));
        two[2 * index + 1] = swap_bytes::<SWAPPED>(_mm512_permutex2var_epi32(a, second, b));
    }
    bytemuck::cast(two)
}
