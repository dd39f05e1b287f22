//! Many messages at once, one in each lane of AVX-512's registers, for the messages of a tree.
//!
//! The general way to hash several messages at once keeps a buffer a message. A tree's messages all have one of two
//! lengths: a digest or leaf of 32 bytes, or two digests, each with at most a byte before it. So the padding is known
//! here when this is compiled, and the compiler folds what it makes of the message schedule.
#![allow(unsafe_code)] // Calling what needs the instructions, after asking for them, and nothing else.

mod blake3;
mod keccak256;
mod sha256;

use std::arch::x86_64::*;

use super::{Digest, Hash};

/// Sixteen 32-bit numbers, one a message.
type Word = __m512i;
/// A word of each message's digest: eight words of sixteen messages.
type Words = [Word; 8];

/// So many messages of 32-bit words are hashed at once.
const LANES: usize = 16;

/// Whether the processor has the instructions.
fn is_here() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// What is hashed, beside the digests themselves.
#[derive(Clone, Copy)]
pub(super) struct Around {
    pub(super) hash: Hash,
    /// A byte before them.
    pub(super) prefix: Option<u8>,
    /// Whether the hash is hashed once more.
    pub(super) double: bool,
}

/// Hashes as many messages of 32 bytes as there is room for. Nothing, and `false`, where that cannot be done here.
pub(super) fn hash_ones(around: Around, messages: &[Digest], out: &mut [Digest]) -> bool {
    if !is_here() {
        return false;
    }
    let ones = match around.hash {
        Hash::Sha256 => sha256::ones,
        Hash::Blake3 => blake3::ones,
        Hash::Keccak256 => {
            return keccak256::hash(around, bytemuck::cast_slice(messages), size_of::<Digest>(), out);
        }
    };
    for (messages, out) in messages.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let sixteen = padded(messages);
        // SAFETY: the processor has the instructions.
        let hashed = unsafe { ones(around, &sixteen) };
        out.copy_from_slice(&hashed[..out.len()]);
    }
    true
}

/// Hashes as many pairs of digests as there is room for. Nothing, and `false`, where that cannot be done here.
pub(super) fn hash_pairs(around: Around, children: &[Digest], out: &mut [Digest]) -> bool {
    if !is_here() {
        return false;
    }
    let pairs = match around.hash {
        Hash::Sha256 => sha256::pairs,
        Hash::Blake3 => blake3::pairs,
        Hash::Keccak256 => {
            return keccak256::hash(around, bytemuck::cast_slice(children), 2 * size_of::<Digest>(), out);
        }
    };
    for (children, out) in children.chunks(2 * LANES).zip(out.chunks_mut(LANES)) {
        let (low, high) = children.split_at(children.len().min(LANES));
        let (low, high) = (padded(low), padded(high));
        // SAFETY: the processor has the instructions.
        let hashed = unsafe { pairs(around, &low, &high) };
        out.copy_from_slice(&hashed[..out.len()]);
    }
    true
}

/// Sixteen digests: these, and where they are fewer, anything.
#[inline(always)]
fn padded(digests: &[Digest]) -> [Digest; LANES] {
    match digests.try_into() {
        Ok(sixteen) => sixteen,
        Err(_) => {
            let mut sixteen = [Digest::default(); LANES];
            sixteen[..digests.len()].copy_from_slice(digests);
            sixteen
        }
    }
}

/// The same number in every lane.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn splat(number: u32) -> Word {
    _mm512_set1_epi32(number as i32)
}

/// Two digests a message: the words of the left one, then those of the right one. Of neighbours, even ones are left.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn message_of_pairs(low: &Words, high: &Words) -> [Word; 16] {
    let even = order([0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30]);
    let odd = order([1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31]);
    let mut message = [_mm512_setzero_si512(); 16];
    for index in 0..8 {
        message[index] = _mm512_permutex2var_epi32(low[index], even, high[index]);
        message[8 + index] = _mm512_permutex2var_epi32(low[index], odd, high[index]);
    }
    message
}

/// Which lanes of two registers make a third: 0 to 15 of the first, 16 to 31 of the second.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn order(lanes: [u32; LANES]) -> Word {
    bytemuck::cast(lanes)
}

/// Words as they are in memory, or with the bytes of each swapped.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn in_order<const SWAPPED: bool>(word: Word) -> Word {
    const SWAP: [u8; 16] = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];
    if SWAPPED { _mm512_shuffle_epi8(word, bytemuck::cast([SWAP; 4])) } else { word }
}

/// The first halves of two registers; the second halves.
const HALVES: [[u32; LANES]; 2] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23],
    [8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31],
];

/// The words of sixteen digests, the same word of all of them in a register.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn columns<const SWAPPED: bool>(digests: &[Digest; LANES]) -> Words {
    let zero = _mm512_setzero_si512();
    let two: &[[u8; 64]; 8] = bytemuck::cast_ref(digests);
    // Four digests a register: their first four words, and their last four.
    let first = order([0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27]);
    let last = order([4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31]);
    let mut fours = [[zero; 4]; 2];
    for index in 0..4 {
        let a = in_order::<SWAPPED>(bytemuck::pod_read_unaligned(&two[2 * index]));
        let b = in_order::<SWAPPED>(bytemuck::pod_read_unaligned(&two[2 * index + 1]));
        fours[0][index] = _mm512_permutex2var_epi32(a, first, b);
        fours[1][index] = _mm512_permutex2var_epi32(a, last, b);
    }
    // Then eight digests a register, and two words of them.
    let low = order([0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23]);
    let high = order([8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31]);
    let mut words = [zero; 8];
    for (half, four) in fours.iter().enumerate() {
        for (pair, select) in [low, high].into_iter().enumerate() {
            let a = _mm512_permutex2var_epi32(four[0], select, four[1]);
            let b = _mm512_permutex2var_epi32(four[2], select, four[3]);
            words[4 * half + 2 * pair] = _mm512_permutex2var_epi32(a, order(HALVES[0]), b);
            words[4 * half + 2 * pair + 1] = _mm512_permutex2var_epi32(a, order(HALVES[1]), b);
        }
    }
    words
}

/// The other way round: sixteen digests of their words.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn rows<const SWAPPED: bool>(words: &Words) -> [Digest; LANES] {
    let zero = _mm512_setzero_si512();
    let low = order([0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]);
    let high = order([4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31]);
    let mut fours = [[zero; 4]; 2];
    for (half, four) in fours.iter_mut().enumerate() {
        for (side, select) in HALVES.into_iter().enumerate() {
            let a = _mm512_permutex2var_epi32(words[4 * half], order(select), words[4 * half + 1]);
            let b = _mm512_permutex2var_epi32(words[4 * half + 2], order(select), words[4 * half + 3]);
            four[2 * side] = _mm512_permutex2var_epi32(a, low, b);
            four[2 * side + 1] = _mm512_permutex2var_epi32(a, high, b);
        }
    }
    let first = order([0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29]);
    let second = order([2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31]);
    let mut two = [zero; 8];
    for index in 0..4 {
        let (a, b) = (fours[0][index], fours[1][index]);
        two[2 * index] = in_order::<SWAPPED>(_mm512_permutex2var_epi32(a, first, b));
        two[2 * index + 1] = in_order::<SWAPPED>(_mm512_permutex2var_epi32(a, second, b));
    }
    bytemuck::cast(two)
}
