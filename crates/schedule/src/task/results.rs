//! The results of a chunk, which a task fills in.
#![allow(unsafe_code)]

use std::{fmt, marker::PhantomData, mem::MaybeUninit, ops::Range, ptr::NonNull};

/// The results of a chunk, one per item, which a task adds in order.
///
/// If a chunk's items can be stolen, so can their slots: only the slots of claimed items may be written. So the slots are
/// behind a pointer, and no slice of all of them is made.
pub struct Results<'a, O> {
    slots: NonNull<MaybeUninit<O>>,
    /// Number of slots that may be written: no other lane can steal them.
    capacity: usize,
    /// Number of filled slots, at most `capacity`.
    filled: usize,
    /// Whether the task added more results than `capacity`.
    overflowed: bool,
    /// All results, if they are in the task's own memory.
    borrowed: Option<&'a [O]>,
    /// Called with the accepted results.
    on_accept: Option<OnAccept<'a>>,
    lent: PhantomData<&'a mut [MaybeUninit<O>]>,
}

/// Called with ranges of accepted results, counted from the chunk's first. Each result is in one range.
type OnAccept<'a> = Box<dyn FnMut(Range<usize>) + Send + 'a>;

// SAFETY: it owns the slots before `capacity` exclusively and does not use the others; `borrowed` is a shared slice, which
// needs `O: Sync`.
unsafe impl<O: Send + Sync> Send for Results<'_, O> {}
// SAFETY: a shared reference only gives shared references to results.
unsafe impl<O: Sync> Sync for Results<'_, O> {}

impl<'a, O> Results<'a, O> {
    /// No results, with capacity for as many as there are slots. Old contents of the slots are not dropped.
    pub(crate) fn new(slots: &'a mut [MaybeUninit<O>]) -> Self {
        let capacity = slots.len();
        // SAFETY: `slots` is borrowed exclusively for `'a`, and the capacity is its length.
        let mut results = unsafe { Results::for_claims(NonNull::from(slots).cast()) };
        results.capacity = capacity;
        results
    }

    /// No results, and no capacity before [`Results::set_capacity`]. Old contents of the slots are not dropped.
    ///
    /// # Safety
    /// As long as the value lives, the slots must live, and nothing else may use those within its capacity.
    pub(crate) unsafe fn for_claims(slots: NonNull<MaybeUninit<O>>) -> Self {
        let (borrowed, on_accept) = (None, None);
        Results { slots, capacity: 0, filled: 0, overflowed: false, borrowed, on_accept, lent: PhantomData }
    }

    /// Sets how many slots, counted from the first, may be written.
    ///
    /// # Safety
    /// There must be as many slots, and nothing else may use them as long as the value lives.
    pub(crate) unsafe fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity.max(self.filled);
    }

    /// The results of the chunk's next segment, without capacity.
    ///
    /// # Safety
    /// The segment must be dropped, or appended with [`Results::append_segment`], before any other use of `self`.
    pub(crate) unsafe fn next_segment<'p>(&mut self) -> Results<'p, O> {
        // SAFETY: the slots live as long as `self`, which does not use those behind the filled ones while the segment
        // lives, as the caller promises.
        unsafe { Results::for_claims(self.slots.add(self.filled)) }
    }

    /// Appends the results of the last segment.
    pub(crate) fn append_segment(&mut self, segment: Results<'_, O>) {
        let count = segment.len();
        segment.leave_in_slots();
        self.filled += count;
        self.capacity = self.capacity.max(self.filled);
    }

    /// The slots that may be written and are not filled.
    fn free(&mut self) -> &mut [MaybeUninit<O>] {
        // SAFETY: the slots before `capacity` are exclusively this value's, and `filled` is at most `capacity`.
        unsafe {
            std::slice::from_raw_parts_mut(self.slots.as_ptr().add(self.filled), self.capacity - self.filled)
        }
    }

    /// Returns the filled slots and marks them as empty: the caller has to move or drop the results.
    fn take_filled(&mut self) -> &mut [MaybeUninit<O>] {
        let filled = std::mem::take(&mut self.filled);
        // SAFETY: as for `free`.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_ptr(), filled) }
    }

    /// Sets all results to a slice of the task's state, for example the memory that a device has copied them to. They
    /// are copied from there only if they are accepted.
    pub fn lend(&mut self, results: &'a [O])
    where
        O: Copy,
    {
        self.overflowed |= self.filled > 0 || results.len() > self.capacity;
        self.borrowed = Some(results);
    }

    /// Sets a closure that the accepting thread calls with the ranges of accepted results, while the run cannot end.
    /// It must not panic.
    pub(crate) fn on_accept(&mut self, act: impl FnMut(Range<usize>) + Send + 'a) {
        self.on_accept = Some(Box::new(act));
    }

    /// Number of results.
    pub fn len(&self) -> usize {
        self.borrowed.map_or(self.filled, <[O]>::len)
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the next result. The chunk fails if there are more results than items.
    pub fn push(&mut self, result: O) {
        match self.free().first_mut() {
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
        let free = self.free();
        let count = results.len().min(free.len());
        free[..count].write_copy_of_slice(&results[..count]);
        self.filled += count;
        self.overflowed |= count < results.len();
    }

    /// Adds a function's results for the next items, while `go_on`, which is called before every item but the first,
    /// returns `true`. Returns how many results were added.
    pub(crate) fn fill<I>(&mut self, items: &[I], make: impl Fn(&I) -> O, go_on: impl Fn() -> bool) -> usize {
        // SAFETY: as for `free`, which cannot be borrowed beside the count.
        let free = unsafe {
            std::slice::from_raw_parts_mut(self.slots.as_ptr().add(self.filled), self.capacity - self.filled)
        };
        self.overflowed |= items.len() > free.len();
        let mut count = FilledOnDrop(&mut self.filled, 0);
        // The compiler unrolls chunks of eight, which halves the cost of `go_on`.
        const UNROLLED: usize = 8;
        let all = free.len().min(items.len());
        let (slots, last_slots) = free[..all].as_chunks_mut::<UNROLLED>();
        let (items, last_items) = items[..all].as_chunks::<UNROLLED>();
        for (slots, items) in slots.iter_mut().zip(items) {
            let before = count.1;
            for index in 0..UNROLLED {
                slots[index].write(make(&items[index]));
                count.1 = before + index + 1;
                if !go_on() {
                    return count.1;
                }
            }
        }
        for (slot, item) in last_slots.iter_mut().zip(last_items) {
            slot.write(make(item));
            count.1 += 1;
            if !go_on() {
                break;
            }
        }
        count.1
    }

    /// The results so far.
    pub fn as_slice(&self) -> &[O] {
        if let Some(borrowed) = self.borrowed {
            return borrowed;
        }
        // SAFETY: the slots before `filled` are filled, and exclusively this value's.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast::<O>(), self.filled) }
    }

    /// Whether there are exactly `items` results.
    pub(crate) fn is_complete(&self, items: usize) -> bool {
        let is_mixed = self.borrowed.is_some() && self.filled > 0;
        self.len() == items && !self.overflowed && !is_mixed
    }

    /// Leaves the results in the slots, to the slots' owner.
    pub(crate) fn leave_in_slots(mut self) {
        let all = 0..self.len();
        self.on_accept.iter_mut().for_each(|act| act(all.clone()));
        if let Some(borrowed) = self.borrowed {
            // The caller has checked `is_complete`: they fit the capacity.
            copy(borrowed, &mut self.free()[..borrowed.len()]);
        }
        self.filled = 0;
    }

    /// Moves the results to as many other slots.
    #[cfg(test)]
    fn move_to(self, slots: &mut [MaybeUninit<O>]) {
        let all = 0..self.len();
        self.move_ranges(std::iter::once((all, slots)));
    }

    /// Moves ranges of the results to other slots, as many as the range has. The ranges are in order and do not overlap;
    /// the other results are dropped.
    pub(crate) fn move_ranges<'s>(
        mut self,
        ranges: impl Iterator<Item = (Range<usize>, &'s mut [MaybeUninit<O>])>,
    ) where
        O: 's,
    {
        let mut on_accept = self.on_accept.take();
        let ranges = ranges.inspect(|(range, _)| on_accept.iter_mut().for_each(|act| act(range.clone())));
        if let Some(borrowed) = self.borrowed {
            ranges.for_each(|(range, slots)| copy(&borrowed[range], slots));
            return;
        }
        let filled = self.take_filled();
        // All ranges are moved before any result is dropped: dropping runs the user's code, which may panic.
        let (mut end, mut others) = (0, Vec::new());
        for (range, slots) in ranges {
            assert!(end <= range.start, "the ranges are in order");
            if end < range.start {
                others.push(end..range.start);
            }
            end = range.end;
            assert_eq!(range.len(), slots.len(), "as many slots as results");
            // SAFETY: these slots were filled and are marked as empty, so no result is dropped twice; two exclusive
            // slices do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(filled[range].as_ptr(), slots.as_mut_ptr(), slots.len()) };
        }
        others.push(end..filled.len());
        for range in others {
            // SAFETY: these slots were filled, and no range has them.
            unsafe { filled[range].assume_init_drop() };
        }
    }

    /// Moves the results out, which empties their slots.
    pub(crate) fn take(&mut self) -> Vec<O> {
        if let Some(borrowed) = self.borrowed.take() {
            let mut copied = Vec::with_capacity(borrowed.len());
            copy(borrowed, &mut copied.spare_capacity_mut()[..borrowed.len()]);
            // SAFETY: `copy` has written all of these elements.
            unsafe { copied.set_len(borrowed.len()) };
            return copied;
        }
        // SAFETY: these slots are filled, and marked as empty, so no result is dropped twice.
        self.take_filled().iter().map(|slot| unsafe { slot.assume_init_read() }).collect()
    }
}

/// Copies results of `Results::lend`, which requires `O: Copy`.
fn copy<O>(from: &[O], to: &mut [MaybeUninit<O>]) {
    assert_eq!(from.len(), to.len(), "as many slots as results");
    // SAFETY: both slices have this length, they do not overlap because one is exclusive, and `lend` requires `O: Copy`.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr().cast::<MaybeUninit<O>>(), to.as_mut_ptr(), from.len())
    };
}

/// Adds a count to the number of filled slots when dropped, even by a panic. The count itself stays in a register.
struct FilledOnDrop<'c>(&'c mut usize, usize);

impl Drop for FilledOnDrop<'_> {
    fn drop(&mut self) {
        *self.0 += self.1;
    }
}

impl<O> Extend<O> for Results<'_, O> {
    fn extend<I: IntoIterator<Item = O>>(&mut self, results: I) {
        let mut results = results.into_iter();
        // SAFETY: as for `free`, which cannot be borrowed beside the count.
        let free = unsafe {
            std::slice::from_raw_parts_mut(self.slots.as_ptr().add(self.filled), self.capacity - self.filled)
        };
        let mut count = FilledOnDrop(&mut self.filled, 0);
        for slot in free {
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
            // SAFETY: these slots are filled, and marked as empty from here on.
            unsafe { self.take_filled().assume_init_drop() };
        }
    }
}

impl<O> fmt::Debug for Results<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Results({} of {})", self.filled, self.capacity)
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
        assert_eq!((results.as_slice(), results.is_complete(3)), (&[1, 2][..], false));
        results.extend_from_slice(&[3]);
        assert!(results.is_complete(3));
        results.push(4);
        assert!(!results.is_complete(3), "one too many");
        assert_eq!(results.take(), [1, 2, 3]);
        drop(results);
        let mut results = Results::new(&mut slots);
        results.extend(0..4);
        assert!(!results.is_complete(3));
    }

    #[test]
    fn results_that_are_lent_are_copied_only_when_they_are_wanted() {
        let lent = [7, 8, 9];
        let (mut slots, mut others) = (slots(3), slots(3));
        let mut results = Results::new(&mut slots);
        results.lend(&lent);
        assert!(results.is_complete(3));
        assert_eq!((results.len(), results.as_slice()), (3, &lent[..]));
        results.move_to(&mut others);
        let mut results = Results::new(&mut others);
        results.lend(&lent[..2]);
        assert!(!results.is_complete(3), "too few");
        results.lend(&lent);
        assert_eq!(results.take(), lent);
        let mut results = Results::new(&mut slots);
        results.push(1);
        results.lend(&lent);
        assert!(!results.is_complete(3), "some are here and all are there");
        drop(results);
        let mut results = Results::new(&mut slots);
        results.lend(&lent);
        results.push(1);
        assert!(!results.is_complete(3), "all are there and one is here");
    }

    #[test]
    fn on_accept_is_called_once_for_each_accepted_result_and_for_no_other() {
        let (mut here, mut there, mut accepted) = (slots(6), slots::<u32>(6), Vec::new());
        let mut results = Results::new(&mut here);
        results.extend(0..6);
        results.on_accept(|range| accepted.push(range));
        let (left, right) = there.split_at_mut(3);
        results.move_ranges([(1..2, &mut left[1..2]), (4..6, &mut right[1..3])].into_iter());
        let mut results = Results::new(&mut here);
        results.extend(0..3);
        results.on_accept(|range| accepted.push(range));
        results.leave_in_slots();
        let mut results = Results::new(&mut here);
        results.extend(0..3);
        results.on_accept(|range| accepted.push(range));
        drop(results);
        assert_eq!(accepted, [1..2, 4..6, 0..3]);
    }

    #[test]
    fn ranges_are_moved_and_the_rest_is_dropped() {
        let counted = Arc::new(());
        let (mut here, mut there) = (slots(6), slots(6));
        let mut results = Results::new(&mut here);
        results.extend((0..6).map(|number| (number, counted.clone())));
        let (left, right) = there.split_at_mut(3);
        results.move_ranges([(1..2, &mut left[1..2]), (4..6, &mut right[1..3])].into_iter());
        assert_eq!(Arc::strong_count(&counted), 4, "three were dropped");
        for slot in [1, 4, 5] {
            // SAFETY: these were moved there.
            let (number, _) = unsafe { there[slot].assume_init_read() };
            assert_eq!(number, slot);
        }
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn a_result_that_panics_when_it_is_dropped_keeps_no_other_from_being_moved() {
        struct PanicsOnDrop(u32, bool);
        impl Drop for PanicsOnDrop {
            fn drop(&mut self) {
                assert!(!std::mem::take(&mut self.1), "dropped");
            }
        }
        let mut from = slots(5);
        let mut to: Vec<MaybeUninit<PanicsOnDrop>> =
            (0..5).map(|_| MaybeUninit::new(PanicsOnDrop(99, false))).collect();
        let mut results = Results::new(&mut from);
        results.extend((0..5).map(|number| PanicsOnDrop(number, number == 0)));
        let (left, right) = to.split_at_mut(2);
        let parts = [(1..2, &mut left[1..2]), (3..4, &mut right[1..2])];
        let moved = std::panic::AssertUnwindSafe(|| results.move_ranges(parts.into_iter()));
        assert!(std::panic::catch_unwind(moved).is_err());
        // SAFETY: it was written at the beginning, and again.
        assert_eq!(unsafe { to[3].assume_init_ref() }.0, 3);
    }

    #[test]
    fn only_claimed_slots_are_written() {
        let mut slots = slots::<u32>(4);
        // SAFETY: the slots outlive the results, and no other code uses them.
        let mut results = unsafe { Results::for_claims(NonNull::from(slots.as_mut_slice()).cast()) };
        results.push(1);
        assert!(results.is_empty() && !results.is_complete(0), "there is no capacity yet");
        // SAFETY: the slots outlive the results, and no other code uses them.
        let mut results = unsafe { Results::for_claims(NonNull::from(slots.as_mut_slice()).cast()) };
        // SAFETY: the slots outlive the results, no other code uses them, and there are more than two.
        unsafe { results.set_capacity(2) };
        results.extend([1, 2]);
        assert!(results.is_complete(2));
        results.extend([3]);
        assert_eq!(results.as_slice(), [1, 2]);
        assert!(!results.is_complete(2));
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
