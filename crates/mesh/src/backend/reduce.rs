//! The reduction of several vectors into one, in rank order, which all back ends use.
//!
//! Vectors are processed in blocks that fit the first-level cache: one pass per rank over an accumulator, then one copy
//! to each output. The loops run over plain slices, so that the compiler vectorizes them.

use std::{mem::MaybeUninit, ops::Range};

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::comm::{CollectiveDType, ReduceOp, Signature};

const BLOCK: usize = 1024;

/// The start of each rank's input vector, in rank order, and of each output vector.
///
/// An output may be one of the inputs, at the same address; otherwise they do not overlap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vectors<'a> {
    pub(crate) inputs: &'a [*const u8],
    pub(crate) outputs: &'a [*mut u8],
}

/// Reduces by the operation of a call, or to the weighted mean if it has none.
///
/// # Safety
/// As for [`reduce`], or [`weighted`] where the call has no operation.
pub(crate) unsafe fn called(
    signature: &Signature,
    weights: &[f64],
    vectors: Vectors<'_>,
    range: Range<usize>,
) {
    // SAFETY: the caller promises that in `range` inputs are readable, outputs writable, both aligned, and no other thread
    // accesses them.
    unsafe {
        match signature.operation {
            Some(operation) => reduce(signature.element, operation, vectors, range),
            None => weighted(signature.element, weights, vectors, range),
        }
    }
}

/// Reduces a range of the inputs, and writes the result to the same range of each output.
///
/// # Safety
/// In that range every input is readable and every output writable, aligned for the element, and accessed by no other
/// thread during the call. There is at least one input.
pub(crate) unsafe fn reduce(
    element: CollectiveDType,
    operation: ReduceOp,
    vectors: Vectors<'_>,
    range: Range<usize>,
) {
    macro_rules! dispatch {
        ($element:ty, $plain:ty, $mean:ty) => {{
            // SAFETY: the caller promises that in `range` inputs are readable, outputs writable, both aligned, and no other
            // thread accesses them.
            unsafe {
                match operation {
                    ReduceOp::Sum => fold::<$element, $plain>(vectors, range, Number::sum, None),
                    ReduceOp::Product => fold::<$element, $plain>(vectors, range, Number::product, None),
                    ReduceOp::Min => fold::<$element, $plain>(vectors, range, Number::least, None),
                    ReduceOp::Max => fold::<$element, $plain>(vectors, range, Number::greatest, None),
                    ReduceOp::Average => {
                        let count = vectors.inputs.len() as u32;
                        fold::<$element, $mean>(vectors, range, Number::sum, Some(count))
                    }
                }
            }
        }};
    }
    match element {
        CollectiveDType::F32 => dispatch!(f32, Plain, Plain),
        CollectiveDType::F64 => dispatch!(f64, Plain, Plain),
        CollectiveDType::F16 => dispatch!(f16, Half, Half),
        CollectiveDType::Bf16 => dispatch!(bf16, Half, Half),
        CollectiveDType::I32 => dispatch!(i32, Plain, Wide<i64>),
        CollectiveDType::I64 => dispatch!(i64, Plain, Wide<i128>),
        CollectiveDType::U8 => dispatch!(u8, Plain, Wide<i64>),
        CollectiveDType::U32 => dispatch!(u32, Plain, Wide<i64>),
        CollectiveDType::U64 => dispatch!(u64, Plain, Wide<i128>),
    }
}

/// Writes Σ wᵢ·xᵢ / Σ wᵢ of a range of the inputs to the same range of each output. An input with weight 0 is not read.
/// f16 and bf16 are reduced in f32, the others in f64. Writes nothing for integers, which have no weighted mean.
///
/// # Safety
/// As for [`reduce`]; there is one weight per input, and at least one is above 0.
pub(crate) unsafe fn weighted(
    element: CollectiveDType,
    weights: &[f64],
    vectors: Vectors<'_>,
    range: Range<usize>,
) {
    // SAFETY: the caller promises that in `range` inputs are readable, outputs writable, both aligned, and no other thread
    // accesses them.
    unsafe {
        match element {
            CollectiveDType::F32 => weigh::<f32, Wide<f64>>(weights, vectors, range),
            CollectiveDType::F64 => weigh::<f64, Plain>(weights, vectors, range),
            CollectiveDType::F16 => weigh::<f16, Half>(weights, vectors, range),
            CollectiveDType::Bf16 => weigh::<bf16, Half>(weights, vectors, range),
            _ => debug_assert!(false, "a weighted mean of integers"),
        }
    }
}

/// Reduces block by block, and divides by `mean`.
///
/// # Safety
/// As for [`reduce`].
// Inlined, all element types would need as much stack as the widest.
#[inline(never)]
unsafe fn fold<T: Copy, A: Accumulate<T>>(
    Vectors { inputs, outputs }: Vectors<'_>,
    range: Range<usize>,
    combine: impl Fn(A::Number, A::Number) -> A::Number + Copy,
    mean: Option<u32>,
) {
    let (mut sum, mut scratch, mut result) = (space(), (space(), space()), space());
    for start in range.clone().step_by(BLOCK) {
        let len = BLOCK.min(range.end - start);
        // SAFETY: within `range`, where the caller promises that inputs are readable and not written.
        let block =
            |input: *const u8| unsafe { std::slice::from_raw_parts(input.cast::<T>().add(start), len) };
        let sum = match inputs {
            [] => return,
            [only] => fill(&mut sum, A::wide(block(*only), &mut scratch.0).iter().copied()),
            [first, second, rest @ ..] => {
                let first = A::wide(block(*first), &mut scratch.0);
                let second = A::wide(block(*second), &mut scratch.1);
                let sum =
                    fill(&mut sum, first.iter().zip(second).map(|(first, second)| combine(*first, *second)));
                for input in rest {
                    for (sum, value) in sum.iter_mut().zip(A::wide(block(*input), &mut scratch.0)) {
                        *sum = combine(*sum, *value);
                    }
                }
                sum
            }
        };
        if let Some(count) = mean {
            sum.iter_mut().for_each(|sum| *sum = sum.divided(count));
        }
        let result = A::narrow(sum, &mut result);
        // SAFETY: within `range`, where the caller promises that outputs are writable; `result` is a local buffer.
        unsafe { copy_out(result, outputs, start) };
    }
}

/// Computes the weighted mean block by block.
///
/// # Safety
/// As for [`weighted`].
#[inline(never)]
unsafe fn weigh<T: Copy, A: Accumulate<T, Number: Weigh>>(
    weights: &[f64],
    Vectors { inputs, outputs }: Vectors<'_>,
    range: Range<usize>,
) {
    let total = A::Number::of_weight(weights.iter().sum());
    let (mut sum, mut scratch, mut result) = (space(), space(), space());
    for start in range.clone().step_by(BLOCK) {
        let len = BLOCK.min(range.end - start);
        let sum = fill(&mut sum, std::iter::repeat_n(A::Number::ZERO, len));
        for (&input, &weight) in inputs.iter().zip(weights).filter(|(_, weight)| **weight != 0.0) {
            // SAFETY: within `range`, where the caller promises that inputs are readable and not written.
            let block = unsafe { std::slice::from_raw_parts(input.cast::<T>().add(start), len) };
            let weight = A::Number::of_weight(weight);
            for (sum, value) in sum.iter_mut().zip(A::wide(block, &mut scratch)) {
                *sum = sum.plus_weighted(weight, *value);
            }
        }
        sum.iter_mut().for_each(|sum| *sum = sum.over(total));
        let result = A::narrow(sum, &mut result);
        // SAFETY: within `range`, where the caller promises that outputs are writable; `result` is a local buffer.
        unsafe { copy_out(result, outputs, start) };
    }
}

/// # Safety
/// Every output is writable for the length of `result` from `start` on, and does not overlap it.
unsafe fn copy_out<T: Copy>(result: &[T], outputs: &[*mut u8], start: usize) {
    for output in outputs {
        // SAFETY: the caller promises that every output is writable from `start` on for the length of `result` and does
        // not overlap it.
        unsafe {
            std::ptr::copy_nonoverlapping(result.as_ptr(), output.cast::<T>().add(start), result.len())
        };
    }
}

/// Scratch memory for a block, uninitialized because most element types use only some of it.
type Space<N> = [MaybeUninit<N>; BLOCK];

fn space<N: Copy>() -> Space<N> {
    [const { MaybeUninit::uninit() }; BLOCK]
}

/// Writes values to the start of the space, and returns them.
#[inline]
fn fill<N: Copy>(space: &mut Space<N>, values: impl ExactSizeIterator<Item = N>) -> &mut [N] {
    let len = values.len().min(BLOCK);
    let mut written = 0;
    for (slot, value) in space[..len].iter_mut().zip(values) {
        slot.write(value);
        written += 1;
    }
    // SAFETY: the loop above has initialized the first `written` elements.
    unsafe { std::slice::from_raw_parts_mut(space.as_mut_ptr().cast(), written) }
}

/// The number type in which elements are reduced.
trait Accumulate<T> {
    type Number: Number;
    /// Converts elements to numbers, in `scratch` if needed.
    fn wide<'a>(elements: &'a [T], scratch: &'a mut Space<Self::Number>) -> &'a [Self::Number];
    fn narrow<'a>(numbers: &'a [Self::Number], scratch: &'a mut Space<T>) -> &'a [T];
}

/// Reduces in the elements' own type.
struct Plain;

impl<T: Number> Accumulate<T> for Plain {
    type Number = T;
    fn wide<'a>(elements: &'a [T], _: &'a mut Space<T>) -> &'a [T] {
        elements
    }
    fn narrow<'a>(numbers: &'a [T], _: &'a mut Space<T>) -> &'a [T] {
        numbers
    }
}

/// Reduces f16 and bf16 in f32.
struct Half;

macro_rules! half {
    ($element:ty) => {
        impl Accumulate<$element> for Half {
            type Number = f32;
            fn wide<'a>(elements: &'a [$element], scratch: &'a mut Space<f32>) -> &'a [f32] {
                let wide = fill(scratch, elements.iter().map(|_| 0.0));
                elements.convert_to_f32_slice(wide);
                wide
            }
            fn narrow<'a>(numbers: &'a [f32], scratch: &'a mut Space<$element>) -> &'a [$element] {
                let narrow = fill(scratch, numbers.iter().map(|_| <$element>::ZERO));
                narrow.convert_from_f32_slice(numbers);
                narrow
            }
        }
    };
}
half!(f16);
half!(bf16);

/// Reduces in a wider type, which holds the sum of any number of ranks.
struct Wide<W>(std::marker::PhantomData<W>);

macro_rules! wide {
    ($($element:ty => $wide:ty),*) => {$(
        impl Accumulate<$element> for Wide<$wide> {
            type Number = $wide;
            fn wide<'a>(elements: &'a [$element], scratch: &'a mut Space<$wide>) -> &'a [$wide] {
                fill(scratch, elements.iter().map(|element| *element as $wide))
            }
            fn narrow<'a>(numbers: &'a [$wide], scratch: &'a mut Space<$element>) -> &'a [$element] {
                fill(scratch, numbers.iter().map(|number| *number as $element))
            }
        }
    )*};
}
wide!(i32 => i64, u8 => i64, u32 => i64, i64 => i128, u64 => i128, f32 => f64);

trait Number: Copy {
    const ZERO: Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    fn divided(self, count: u32) -> Self;
}

macro_rules! integer {
    ($($number:ty),*) => {$(
        impl Number for $number {
            const ZERO: Self = 0;
            fn sum(self, other: Self) -> Self { self.wrapping_add(other) }
            fn product(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn least(self, other: Self) -> Self { self.min(other) }
            fn greatest(self, other: Self) -> Self { self.max(other) }
            fn divided(self, count: u32) -> Self { self / count as $number }
        }
    )*};
}
integer!(i32, i64, i128, u8, u32, u64);

macro_rules! float {
    ($($number:ty),*) => {$(
        impl Number for $number {
            const ZERO: Self = 0.0;
            fn sum(self, other: Self) -> Self { self + other }
            fn product(self, other: Self) -> Self { self * other }
            // Returns `other` only if it is less, or the first NaN.
            fn least(self, other: Self) -> Self {
                if (other < self) | (other.is_nan() & !self.is_nan()) { other } else { self }
            }
            fn greatest(self, other: Self) -> Self {
                if (other > self) | (other.is_nan() & !self.is_nan()) { other } else { self }
            }
            fn divided(self, count: u32) -> Self { self / count as $number }
        }

        impl Weigh for $number {
            fn of_weight(weight: f64) -> Self { weight as $number }
            fn plus_weighted(self, weight: Self, value: Self) -> Self { self + weight * value }
            fn over(self, total: Self) -> Self { self / total }
        }
    )*};
}
float!(f32, f64);

trait Weigh: Number {
    fn of_weight(weight: f64) -> Self;
    fn plus_weighted(self, weight: Self, value: Self) -> Self;
    fn over(self, total: Self) -> Self;
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::comm::Element;

    fn reduced<T: Element>(operation: ReduceOp, inputs: &[&[T]]) -> Vec<T> {
        let mut output = vec![T::zeroed(); inputs[0].len()];
        let pointers: Vec<_> = inputs.iter().map(|input| input.as_ptr().cast()).collect();
        let vectors = Vectors { inputs: &pointers, outputs: &[output.as_mut_ptr().cast()] };
        // SAFETY: all are slices of this length, and no other thread accesses them.
        unsafe { reduce(T::TYPE, operation, vectors, 0..inputs[0].len()) };
        output
    }

    #[test]
    fn sums_of_integers_wrap_and_their_averages_do_not() {
        assert_eq!(reduced(ReduceOp::Sum, &[&[200u8, 1], &[100, 2]]), [44, 3]);
        assert_eq!(reduced(ReduceOp::Product, &[&[i32::MAX], &[2]]), [-2]);
        assert_eq!(reduced(ReduceOp::Average, &[&[200u8], &[101], &[255]]), [185]);
        assert_eq!(reduced(ReduceOp::Average, &[&[u64::MAX], &[u64::MAX - 2]]), [u64::MAX - 1]);
        assert_eq!(reduced(ReduceOp::Average, &[&[-3i64, i64::MIN], &[-4, i64::MIN]]), [-3, i64::MIN]);
    }

    #[test]
    fn nan_wins_and_zeros_of_both_signs_go_by_rank() {
        let (nan, a, b) = (f32::NAN, 1.0, 2.0);
        for operation in [ReduceOp::Min, ReduceOp::Max] {
            let result = reduced(operation, &[&[nan, a, a], &[b, nan, b], &[a, b, nan]]);
            assert!(result.iter().all(|it| it.is_nan()), "{operation}: {result:?}");
            let result = reduced(operation, &[&[-0.0f64, 0.0], &[0.0, -0.0]]);
            assert_eq!(result.map_signs(), [true, false]);
        }
    }

    #[test]
    fn halves_are_rounded_once() {
        // 2048 + 1 is not an f16: rounded after each step, the ones would be lost.
        let (big, one) = (f16::from_f32(2048.0), f16::ONE);
        assert_eq!(reduced(ReduceOp::Sum, &[&[big], &[one], &[one]]), [f16::from_f32(2050.0)]);
        let (big, one) = (bf16::from_f32(256.0), bf16::ONE);
        assert_eq!(reduced(ReduceOp::Sum, &[&[big], &[one], &[one]]), [bf16::from_f32(258.0)]);
    }

    #[test]
    fn a_weight_of_zero_is_not_read() {
        let mut output = [0.0f32; 2];
        let (first, second, third) = ([f32::NAN, f32::INFINITY], [1.0f32, 2.0], [4.0f32, 5.0]);
        let inputs = [first.as_ptr().cast(), second.as_ptr().cast(), third.as_ptr().cast()];
        let vectors = Vectors { inputs: &inputs, outputs: &[output.as_mut_ptr().cast()] };
        // SAFETY: all are arrays of two elements, and no other thread accesses them.
        unsafe { weighted(CollectiveDType::F32, &[0.0, 25.0, 10.0], vectors, 0..2) };
        assert_eq!(output, [(65.0f64 / 35.0) as f32, (100.0f64 / 35.0) as f32]);
    }

    trait Signs {
        fn map_signs(&self) -> Vec<bool>;
    }
    impl Signs for Vec<f64> {
        fn map_signs(&self) -> Vec<bool> {
            self.iter().map(|it| it.is_sign_negative()).collect()
        }
    }
}
