//! Secret values in the host's memory.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use rayon::prelude::*;
use zeroize::Zeroize;

/// Values that a thread zeroes at once.
const SHARE: usize = 1 << 12;
/// Up to this many values, one thread zeroes them sooner than others are awake.
const MAX_INLINE: usize = 1 << 14;

/// Secret values, which are zeroed when they are dropped, many of them in the threads of the current rayon pool: one thread
/// takes some milliseconds for a million scalars. `Debug` does not show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets<T: Zeroize + Send>(Vec<T>);

impl<T: Zeroize + Send> Secrets<T> {
    fn zero(&mut self) {
        self.0.spare_capacity_mut().zeroize();
        match self.0.len() <= MAX_INLINE {
            true => self.0.iter_mut().zeroize(),
            false => self.0.par_chunks_mut(SHARE).for_each(|share| share.iter_mut().zeroize()),
        }
    }
}

impl<T: Zeroize + Send> Drop for Secrets<T> {
    fn drop(&mut self) {
        self.zero();
    }
}

impl<T: Zeroize + Send> From<Vec<T>> for Secrets<T> {
    fn from(values: Vec<T>) -> Self {
        Secrets(values)
    }
}

impl<T: Zeroize + Send> Deref for Secrets<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Zeroize + Send> DerefMut for Secrets<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<T: Zeroize + Send> fmt::Debug for Secrets<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} values)", self.0.len())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn few_and_many_values_are_zeroed_and_not_shown() {
        for len in [0, 1, MAX_INLINE, MAX_INLINE + 1, 5 * MAX_INLINE + 3] {
            let mut secrets = Secrets::from(vec![u64::MAX; len]);
            assert_eq!(format!("{secrets:?}"), format!("Secrets({len} values)"));
            secrets.zero();
            assert!(secrets.len() == len && secrets.iter().all(|&value| value == 0), "{len} values");
        }
    }
}
