//! What iterations contribute to a variable, collected so that the result is that of the plain loop.

use std::ops::AddAssign;

/// A number that iterations add up.
pub trait Summand: Copy {
    /// The number, for integers of up to 64 bits: their sums are the same in any order.
    fn wide(self) -> Option<i128>;
    /// The sum modulo the width.
    fn wrapping_add(self, other: Self) -> Self;
    /// Zero.
    const ZERO: Self;
    /// The smallest and largest value, for integers.
    const RANGE: (i128, i128);
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Summand for $ty {
            fn wide(self) -> Option<i128> {
                Some(self as i128)
            }
            fn wrapping_add(self, other: Self) -> Self {
                <$ty>::wrapping_add(self, other)
            }
            const ZERO: Self = 0;
            const RANGE: (i128, i128) = (<$ty>::MIN as i128, <$ty>::MAX as i128);
        }
    )*};
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64, isize, usize);

macro_rules! floats {
    ($($ty:ty),*) => {$(
        impl Summand for $ty {
            fn wide(self) -> Option<i128> {
                None
            }
            fn wrapping_add(self, other: Self) -> Self {
                self + other
            }
            const ZERO: Self = 0.0;
            const RANGE: (i128, i128) = (0, 0);
        }
    )*};
}
floats!(f32, f64);

/// The sum of a part of a loop.
///
/// Integers are added at once, with the extremes that the sum passed through, so that an overflow of the plain loop is found.
/// Floating-point numbers are kept, to be added in order.
#[derive(Debug)]
pub struct Sum<T> {
    total: T,
    now: i128,
    low: i128,
    high: i128,
    terms: Vec<T>,
    is_fast: bool,
}

impl<T: Summand> Sum<T> {
    /// A sum of numbers of the same type.
    pub fn like(_: &impl Like<T>, is_fast: bool) -> Self {
        Sum { total: T::ZERO, now: 0, low: 0, high: 0, terms: Vec::new(), is_fast }
    }

    /// Adds the sum to a variable. Returns `false` if the plain loop would overflow on the way.
    pub fn combine(self, into: &mut T, add: impl Fn(&mut T, T)) -> bool {
        match into.wide() {
            Some(value) => {
                let (least, most) = T::RANGE;
                if cfg!(debug_assertions) && (value + self.low < least || value + self.high > most) {
                    return false;
                }
                *into = into.wrapping_add(self.total);
            }
            None if self.is_fast => add(into, self.total),
            None => self.terms.into_iter().for_each(|term| add(into, term)),
        }
        true
    }
}

/// A variable of a type, or a reference to one.
pub trait Like<T> {}
impl<T: Summand> Like<T> for T {}
impl<T: Summand> Like<T> for &mut T {}

impl<T: Summand> AddAssign<T> for Sum<T> {
    #[inline(always)]
    fn add_assign(&mut self, term: T) {
        match term.wide() {
            Some(wide) => {
                self.total = self.total.wrapping_add(term);
                if cfg!(debug_assertions) {
                    self.now += wide;
                    self.low = self.low.min(self.now);
                    self.high = self.high.max(self.now);
                }
            }
            None if self.is_fast => self.total = self.total.wrapping_add(term),
            None => self.terms.push(term),
        }
    }
}

/// Contributions in their order.
#[derive(Debug)]
pub struct Terms<T>(Vec<T>);

impl<T> Terms<T> {
    /// No contributions.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Terms(Vec::new())
    }

    /// One more, kept.
    pub fn push(&mut self, term: T) {
        self.0.push(term);
    }

    /// One more, combined with those before: for operations whose order does not matter.
    #[inline(always)]
    pub fn fold(&mut self, term: T, combine: impl Fn(T, T) -> T) {
        let combined = match self.0.pop() {
            Some(before) => combine(before, term),
            None => term,
        };
        self.0.push(combined);
    }

    /// The contributions.
    pub fn into_values(self) -> Vec<T> {
        self.0
    }
}

/// The contribution of the iteration that a kernel's Rust body does now.
#[derive(Debug)]
pub struct Slot<'a, T> {
    slots: &'a mut [T],
    at: usize,
    bit: u32,
    is_there: bool,
}

impl<'a, T> Slot<'a, T> {
    /// The contributions of a chunk. The bit says that an iteration has one.
    pub fn new(slots: &'a mut [T], bit: u32) -> Self {
        Slot { slots, at: 0, bit, is_there: false }
    }

    /// Begins an iteration.
    pub fn begin(&mut self, at: usize) {
        (self.at, self.is_there) = (at, false);
    }

    /// Sets the iteration's contribution.
    pub fn set(&mut self, term: T) {
        self.slots[self.at] = term;
        self.is_there = true;
    }

    /// The bit, if the iteration has contributed.
    pub fn present(&self) -> u32 {
        if self.is_there { self.bit } else { 0 }
    }
}
