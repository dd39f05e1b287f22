//! The expected results of collectives, computed one element and one rank at a time.

use evener_mesh::comm::{Element, ReduceOp};
use half::{bf16, f16};

/// An element type with reference reductions.
pub trait Sample: Element + Default {
    /// Makes a value from random bits.
    fn from_noise(noise: u64) -> Self;
    /// Reduces one value of each rank, in rank order.
    fn reduced(operation: ReduceOp, values: &[Self]) -> Self;
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl Sample for $number {
            fn from_noise(noise: u64) -> Self { noise as $number }
            fn reduced(operation: ReduceOp, values: &[Self]) -> Self {
                let fold = |step: fn($number, $number) -> $number| values[1..].iter().fold(values[0], |a, b| step(a, *b));
                match operation {
                    ReduceOp::Sum => fold(<$number>::wrapping_add),
                    ReduceOp::Product => fold(<$number>::wrapping_mul),
                    ReduceOp::Min => fold(Ord::min),
                    ReduceOp::Max => fold(Ord::max),
                    ReduceOp::Average => {
                        (values.iter().map(|it| *it as i128).sum::<i128>() / values.len() as i128) as $number
                    }
                }
            }
        }
    )*};
}
integers!(i32, i64, u8, u32, u64);

macro_rules! floats {
    ($($number:ty, $wide:ty, $widen:expr, $narrow:expr);*) => {$(
        impl Sample for $number {
            fn from_noise(noise: u64) -> Self {
                // Sometimes a zero of either sign, an infinity or NaN.
                let special = [0.0, -0.0, <$wide>::INFINITY, <$wide>::NEG_INFINITY, <$wide>::NAN];
                $narrow(match noise % 101 {
                    index @ 0..5 => special[index as usize],
                    _ => ((noise >> 40) as $wide / (1u64 << 21) as $wide) - 4.0,
                })
            }
            fn reduced(operation: ReduceOp, values: &[Self]) -> Self {
                let values: Vec<$wide> = values.iter().map(|it| $widen(*it)).collect();
                let fold = |step: fn($wide, $wide) -> $wide| values[1..].iter().fold(values[0], |a, b| step(a, *b));
                $narrow(match operation {
                    ReduceOp::Sum => fold(|a, b| a + b),
                    ReduceOp::Product => fold(|a, b| a * b),
                    ReduceOp::Min | ReduceOp::Max if values.iter().any(|it| it.is_nan()) => <$wide>::NAN,
                    ReduceOp::Min => fold(|a, b| if b < a { b } else { a }),
                    ReduceOp::Max => fold(|a, b| if b > a { b } else { a }),
                    ReduceOp::Average => fold(|a, b| a + b) / values.len() as $wide,
                })
            }
        }
    )*};
}
floats!(f32, f32, |it| it, |it| it; f64, f64, |it| it, |it| it;
    f16, f32, f16::to_f32, f16::from_f32; bf16, f32, bf16::to_f32, bf16::from_f32);

/// Returns a rank's input of a round.
pub fn given<T: Sample>(seed: u64, rank: usize, len: usize) -> Vec<T> {
    let mut state =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (rank as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    (0..len).map(|_| T::from_noise(next(&mut state))).collect()
}

/// Returns the next pseudorandom number (splitmix64).
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Reduces the vectors of all ranks.
pub fn reduced<T: Sample>(operation: ReduceOp, inputs: &[Vec<T>]) -> Vec<T> {
    let mut values = Vec::new();
    (0..inputs[0].len())
        .map(|index| {
            values.clear();
            values.extend(inputs.iter().map(|input| input[index]));
            T::reduced(operation, &values)
        })
        .collect()
}

/// Checks that values are bitwise equal, or both NaN.
pub fn assert_same<T: Sample>(what: &str, found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        // Only NaN differs from itself.
        #[allow(clippy::eq_op)]
        let both_nan = found != found && expected != expected;
        let same = both_nan || bytemuck::bytes_of(found) == bytemuck::bytes_of(expected);
        assert!(same, "{what}: element {index} is {found:?}, not {expected:?}");
    }
}
