//! The parameters of kernels.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use evener_schedule::KernelParams;

use crate::space::{Number, Space};

/// Words after those of the chunk.
const WORDS: usize = 28;

/// The parameters of every generated kernel: the chunk's, and up to 28 words of values. Values of 64 bits come first.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    chunk: KernelParams,
    words: [u32; WORDS - 1],
    /// Words that were pushed or taken. On devices its place is unused.
    used: u32,
}

impl Default for Params {
    fn default() -> Self {
        Params::zeroed()
    }
}

/// A value that is a parameter.
pub trait Value: Copy {
    /// Its words.
    fn words(self) -> ([u32; 2], usize);
    /// The value of words.
    fn of(words: [u32; 2]) -> Self;
}

macro_rules! values {
    ($($ty:ty, $bits:ty, $count:literal, $into:expr, $from:expr;)*) => {$(
        impl Value for $ty {
            fn words(self) -> ([u32; 2], usize) {
                let into: fn($ty) -> $bits = $into;
                let wide = into(self) as u64;
                ([wide as u32, (wide >> 32) as u32], $count)
            }
            fn of(words: [u32; 2]) -> Self {
                let from: fn($bits) -> $ty = $from;
                from((u64::from(words[0]) | u64::from(words[1]) << 32) as $bits)
            }
        }
    )*};
}
values! {
    i32, u32, 1, |value| value as u32, |bits| bits as i32;
    u32, u32, 1, |value| value, |bits| bits;
    i64, u64, 2, |value| value as u64, |bits| bits as i64;
    u64, u64, 2, |value| value, |bits| bits;
    isize, u64, 2, |value| value as u64, |bits| bits as isize;
    usize, u64, 2, |value| value as u64, |bits| bits as usize;
    f32, u32, 1, f32::to_bits, f32::from_bits;
    f64, u64, 2, f64::to_bits, f64::from_bits;
    bool, u32, 1, u32::from, |bits| bits != 0;
}

impl Params {
    /// Adds a value.
    pub fn push<V: Value>(&mut self, value: V) {
        let (words, count) = value.words();
        let at = self.used as usize;
        self.words[at..at + count].copy_from_slice(&words[..count]);
        self.used += count as u32;
    }

    /// Ends what is pushed: values are then taken from the first on.
    pub(crate) fn rewound(mut self) -> Self {
        self.used = 0;
        self
    }

    /// Takes the next value.
    pub fn take<V: Value>(&mut self) -> V {
        let at = self.used as usize;
        let count = V::of([0; 2]).words().1;
        let mut words = [0; 2];
        words[..count].copy_from_slice(&self.words[at..at + count]);
        self.used += count as u32;
        V::of(words)
    }

    /// The iterations of the chunk.
    pub fn space<T: Number>(&self, start: T) -> Space<T>
    where
        Range<T>: Iterator<Item = T>,
    {
        let first = u64::from(self.chunk.first[0]) | u64::from(self.chunk.first[1]) << 32;
        Space::part(start, first, self.chunk.count as usize)
    }
}
