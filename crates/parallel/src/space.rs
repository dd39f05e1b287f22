//! The numbers that a loop runs over.

use std::ops::Range;

/// A type of loop variables.
pub trait Number: Copy + PartialOrd + Send + Sync {
    /// The number as a wide integer.
    fn wide(self) -> i128;
    /// The number from a wide integer that it can hold.
    fn narrow(wide: i128) -> Self;
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            fn wide(self) -> i128 {
                self as i128
            }
            fn narrow(wide: i128) -> Self {
                wide as $ty
            }
        }
    )*};
}
numbers!(i8, u8, i16, u16, i32, u32, i64, u64, isize, usize);

/// The numbers that a loop runs over.
#[derive(Debug, Clone, Copy)]
pub struct Space<T> {
    start: T,
    count: usize,
}

impl<T: Number> Space<T>
where
    Range<T>: Iterator<Item = T>,
{
    /// `start..end`.
    pub fn new(start: T, end: T) -> Self {
        let count = usize::try_from(end.wide() - start.wide()).unwrap_or(0);
        Space { start, count }
    }

    /// `start..=end`.
    pub fn inclusive(start: T, end: T) -> Self {
        let count = usize::try_from(end.wide() - start.wide() + 1).unwrap_or(0);
        Space { start, count }
    }

    /// Part of an earlier space: these iterations are `first` and on.
    pub(crate) fn part(start: T, first: u64, count: usize) -> Self {
        Space { start: T::narrow(start.wide() + i128::from(first)), count }
    }

    /// Number of iterations.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first number.
    pub fn start(&self) -> T {
        self.start
    }

    /// The numbers of some iterations. The last number of an inclusive range may be the largest of its type.
    pub fn range(&self, part: Range<usize>) -> impl Iterator<Item = T> + use<T> {
        let start = self.start.wide();
        let first = T::narrow(start + part.start as i128);
        let has_last = part.end > part.start;
        let last = T::narrow(start + part.end as i128 - if has_last { 1 } else { 0 });
        (first..last).chain(has_last.then_some(last))
    }

    /// The element at which the row of the first iteration begins.
    pub fn element(&self, width: usize, base: usize) -> usize {
        width.wrapping_mul(self.start.wide() as usize).wrapping_add(base)
    }

    /// Whether kernels can count the iterations.
    pub fn fits(&self) -> bool {
        (1..u32::MAX as usize).contains(&self.count) && self.start.wide() >= 0
    }
}
