//! Where a task puts its results.
#![allow(unsafe_code)] // Each block says why it is sound.

use std::{fmt, mem::MaybeUninit};

/// Room for the results of a chunk, one an item, which a task fills in order.
pub struct Results<'a, O> {
    slots: &'a mut [MaybeUninit<O>],
    /// The slots before this one are filled.
    filled: usize,
    /// More was given than there is room for.
    overflowed: bool,
    /// All of them, where they are somewhere else.
    elsewhere: Option<&'a [O]>,
}

impl<'a, O> Results<'a, O> {
    /// Nothing yet, with room for as many as there are slots. What is in the slots is forgotten.
    pub(crate) fn new(slots: &'a mut [MaybeUninit<O>]) -> Self {
        Results { slots, filled: 0, overflowed: false, elsewhere: None }
    }

    /// Says where all of the results are: in memory of the task's state, such as what a device has copied them to. They
    /// are copied from there if they are accepted, and only then.
    pub fn lend(&mut self, results: &'a [O])
    where
        O: Copy,
    {
        self.overflowed |= self.filled > 0;
        self.elsewhere = Some(results);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.elsewhere.map_or(self.filled, <[O]>::len)
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the next result. One more than there are items makes the chunk fail.
    pub fn push(&mut self, result: O) {
        match self.slots.get_mut(self.filled) {
            Some(slot) => {
                slot.write(result);
                self.filled += 1;
            }
            None => self.overflowed = true,
        }
    }

    /// Adds copies of the next results.
    pub fn extend_from_slice(&mut self, results: &[O])
    where
        O: Copy,
    {
        let room = &mut self.slots[self.filled..];
        let count = results.len().min(room.len());
        room[..count].write_copy_of_slice(&results[..count]);
        self.filled += count;
        self.overflowed |= count < results.len();
    }

    /// The results so far.
    pub fn as_slice(&self) -> &[O] {
        if let Some(elsewhere) = self.elsewhere {
            return elsewhere;
        }
        // SAFETY: the slots before `filled` are filled.
        unsafe { self.slots[..self.filled].assume_init_ref() }
    }

    /// Whether there is one for each slot, and no more.
    pub(crate) fn is_complete(&self) -> bool {
        self.len() == self.slots.len() && !self.overflowed
    }

    /// Leaves the results in the slots, for whoever has them.
    pub(crate) fn leave(mut self) {
        if let Some(elsewhere) = self.elsewhere {
            copy(elsewhere, self.slots);
        }
        self.filled = 0;
    }

    /// The results, moved to other slots, of which there must be as many.
    pub(crate) fn move_to(mut self, slots: &mut [MaybeUninit<O>]) {
        if let Some(elsewhere) = self.elsewhere {
            return copy(elsewhere, slots);
        }
        let filled = std::mem::take(&mut self.filled);
        assert_eq!(filled, slots.len(), "as many slots as results");
        // SAFETY: both are slices of so many slots, and two exclusive slices do not overlap. The results count as gone
        // from here, so nothing is dropped twice.
        unsafe { std::ptr::copy_nonoverlapping(self.slots.as_ptr(), slots.as_mut_ptr(), filled) };
    }

    /// The results, moved out.
    pub(crate) fn into_vec(mut self) -> Vec<O> {
        if let Some(elsewhere) = self.elsewhere {
            copy(elsewhere, &mut self.slots[..elsewhere.len()]);
            self.filled = elsewhere.len();
        }
        let filled = std::mem::take(&mut self.filled);
        // SAFETY: these slots are filled, and count as empty from here on, so nothing is dropped twice.
        self.slots[..filled].iter().map(|slot| unsafe { slot.assume_init_read() }).collect()
    }
}

/// Copies results that were lent. Only those that may be copied can be: `Results::lend` asks for it.
fn copy<O>(from: &[O], to: &mut [MaybeUninit<O>]) {
    assert_eq!(from.len(), to.len(), "as many slots as results");
    // SAFETY: both are slices of so many, which do not overlap since one is exclusive; and `lend` takes only what may be
    // copied bit by bit.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr().cast::<MaybeUninit<O>>(), to.as_mut_ptr(), from.len())
    };
}

impl<O> Extend<O> for Results<'_, O> {
    fn extend<I: IntoIterator<Item = O>>(&mut self, results: I) {
        /// Tells how many slots are filled even when the iterator panics. The count itself stays in a register.
        struct Count<'c>(&'c mut usize, usize);
        impl Drop for Count<'_> {
            fn drop(&mut self) {
                *self.0 += self.1;
            }
        }
        let mut results = results.into_iter();
        let room = &mut self.slots[self.filled..];
        let mut count = Count(&mut self.filled, 0);
        for slot in room {
            let Some(result) = results.next() else { return };
            slot.write(result);
            count.1 += 1;
        }
        drop(count);
        self.overflowed |= results.next().is_some();
    }
}

impl<O> Drop for Results<'_, O> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<O>() {
            // SAFETY: these slots are filled, and nobody has them.
            unsafe { self.slots[..self.filled].assume_init_drop() };
        }
    }
}

impl<O> fmt::Debug for Results<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Results({} of {})", self.filled, self.slots.len())
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use super::*;

    fn slots<O>(count: usize) -> Vec<MaybeUninit<O>> {
        (0..count).map(|_| MaybeUninit::uninit()).collect()
    }

    #[test]
    fn results_are_complete_when_each_slot_has_one() {
        let mut slots = slots(3);
        let mut results = Results::new(&mut slots);
        results.push(1);
        results.extend([2]);
        assert_eq!((results.as_slice(), results.is_complete()), (&[1, 2][..], false));
        results.extend_from_slice(&[3]);
        assert!(results.is_complete());
        results.push(4);
        assert!(!results.is_complete(), "one too many");
        assert_eq!(results.into_vec(), [1, 2, 3]);
        let mut results = Results::new(&mut slots);
        results.extend(0..4);
        assert!(!results.is_complete());
    }

    #[test]
    fn results_that_are_lent_are_copied_only_when_they_are_wanted() {
        let lent = [7, 8, 9];
        let (mut slots, mut others) = (slots(3), slots(3));
        let mut results = Results::new(&mut slots);
        results.lend(&lent);
        assert!(results.is_complete());
        assert_eq!((results.len(), results.as_slice()), (3, &lent[..]));
        results.move_to(&mut others);
        let mut results = Results::new(&mut others);
        results.lend(&lent[..2]);
        assert!(!results.is_complete(), "too few");
        results.lend(&lent);
        assert_eq!(results.into_vec(), lent);
        let mut results = Results::new(&mut slots);
        results.push(1);
        results.lend(&lent);
        assert!(!results.is_complete(), "some are here and all are there");
    }

    #[test]
    fn nothing_leaks_and_nothing_is_dropped_twice_whatever_panics() {
        let counted = Arc::new(());
        let mut slots = slots(4);
        drop(Results::new(&mut slots));
        let mut results = Results::new(&mut slots);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            results.extend((0..4).map(|n| if n < 3 { counted.clone() } else { panic!("the fourth") }));
        }));
        assert!(panicked.is_err());
        assert_eq!((results.len(), Arc::strong_count(&counted)), (3, 4));
        drop(results);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
