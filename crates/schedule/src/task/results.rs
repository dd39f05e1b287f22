//! Where a task puts its results.
#![allow(unsafe_code)] // Each block says why it is sound.

use std::{fmt, marker::PhantomData, mem::MaybeUninit, ops::Range, ptr::NonNull};

/// Room for the results of a chunk, one an item, which a task fills in order.
///
/// Where a chunk's items can be stolen, so can their slots: then results can only be written for items that were claimed
/// before. So the slots are behind a pointer, and never a slice of all of them is made.
pub struct Results<'a, O> {
    slots: NonNull<MaybeUninit<O>>,
    /// The slots before this one may be written: they are this chunk's own for good.
    room: usize,
    /// The slots before this one are filled. Never above `room`.
    filled: usize,
    /// More was given than there is room for.
    overflowed: bool,
    /// All of them, where they are somewhere else.
    elsewhere: Option<&'a [O]>,
    /// What else is done with those that are kept.
    when_kept: Option<WhenKept<'a>>,
    lent: PhantomData<&'a mut [MaybeUninit<O>]>,
}

/// Told which results are kept, each once, counted from the chunk's first.
type WhenKept<'a> = Box<dyn FnMut(Range<usize>) + Send + 'a>;

// SAFETY: it is an exclusive slice of slots, but for those at the end that nobody has claimed, which it does not touch;
// and it may have a shared slice of results.
unsafe impl<O: Send + Sync> Send for Results<'_, O> {}
// SAFETY: a shared reference only gives shared references to results.
unsafe impl<O: Sync> Sync for Results<'_, O> {}

impl<'a, O> Results<'a, O> {
    /// Nothing yet, with room for as many as there are slots. What is in the slots is forgotten.
    pub(crate) fn new(slots: &'a mut [MaybeUninit<O>]) -> Self {
        let room = slots.len();
        // SAFETY: the slots are exclusively this one's for as long as it lives.
        let mut results = unsafe { Results::for_claims(NonNull::from(slots).cast()) };
        results.room = room;
        results
    }

    /// Nothing yet, and no room until [`Results::make_room`] says so. What is in the slots is forgotten.
    ///
    /// # Safety
    /// For as long as this lives, the slots must be there, and nothing else may touch the first so many of them as
    /// `make_room` has said.
    pub(crate) unsafe fn for_claims(slots: NonNull<MaybeUninit<O>>) -> Self {
        let (elsewhere, when_kept) = (None, None);
        Results { slots, room: 0, filled: 0, overflowed: false, elsewhere, when_kept, lent: PhantomData }
    }

    /// So many slots, counted from the first, may be written from now on.
    ///
    /// # Safety
    /// There are as many, and nothing else touches them for as long as this lives.
    pub(crate) unsafe fn make_room(&mut self, room: usize) {
        self.room = room.max(self.filled);
    }

    /// The results of the next part of a chunk, with no room yet.
    ///
    /// # Safety
    /// The part must be dropped, or added with [`Results::add_part`], before this is used in any other way.
    pub(crate) unsafe fn next_part<'p>(&mut self) -> Results<'p, O> {
        // SAFETY: the slots are there for as long as this lives, and those behind the filled ones are not touched through it
        // while the part lives.
        unsafe { Results::for_claims(self.slots.add(self.filled)) }
    }

    /// Adds the results of the part that was made last.
    pub(crate) fn add_part(&mut self, part: Results<'_, O>) {
        let count = part.len();
        part.leave();
        self.filled += count;
        self.room = self.room.max(self.filled);
    }

    /// The slots that may be written and are not filled.
    fn free(&mut self) -> &mut [MaybeUninit<O>] {
        // SAFETY: the slots before `room` are exclusively this one's, and `filled` is not above it.
        unsafe {
            std::slice::from_raw_parts_mut(self.slots.as_ptr().add(self.filled), self.room - self.filled)
        }
    }

    /// Takes the results out of the slots: they count as not there any more, and it is up to the caller to use them.
    fn take_filled(&mut self) -> &mut [MaybeUninit<O>] {
        let filled = std::mem::take(&mut self.filled);
        // SAFETY: as for `free`.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_ptr(), filled) }
    }

    /// Says where all of the results are: in memory of the task's state, such as what a device has copied them to. They
    /// are copied from there if they are accepted, and only then.
    pub fn lend(&mut self, results: &'a [O])
    where
        O: Copy,
    {
        self.overflowed |= self.filled > 0 || results.len() > self.room;
        self.elsewhere = Some(results);
    }

    /// Says what else is done with results that are accepted, while nobody can take them from the run: the thread that
    /// keeps them calls this with the numbers of those of the chunk's results, each once. It must not panic.
    pub(crate) fn when_kept(&mut self, act: impl FnMut(Range<usize>) + Send + 'a) {
        self.when_kept = Some(Box::new(act));
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
        let room = self.free();
        let count = results.len().min(room.len());
        room[..count].write_copy_of_slice(&results[..count]);
        self.filled += count;
        self.overflowed |= count < results.len();
    }

    /// Adds what a function makes of the next items, one each, for as long as it may go on: it is asked before every item
    /// but the first. Says how many it has added.
    pub(crate) fn fill<I>(&mut self, items: &[I], make: impl Fn(&I) -> O, go_on: impl Fn() -> bool) -> usize {
        // SAFETY: as for `free`, which cannot be borrowed beside the count.
        let room = unsafe {
            std::slice::from_raw_parts_mut(self.slots.as_ptr().add(self.filled), self.room - self.filled)
        };
        self.overflowed |= items.len() > room.len();
        let mut count = Count(&mut self.filled, 0);
        // Eight at a time, which the compiler unrolls: asking before every item costs half as much so.
        const UNROLLED: usize = 8;
        let all = room.len().min(items.len());
        let (slots, last_slots) = room[..all].as_chunks_mut::<UNROLLED>();
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
        if let Some(elsewhere) = self.elsewhere {
            return elsewhere;
        }
        // SAFETY: the slots before `filled` are filled, and exclusively this one's.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast::<O>(), self.filled) }
    }

    /// Whether there are so many, and no more were given.
    pub(crate) fn is_complete(&self, items: usize) -> bool {
        let in_one_place = self.elsewhere.is_none() || self.filled == 0;
        self.len() == items && !self.overflowed && in_one_place
    }

    /// Leaves the results in the slots, for whoever has them.
    pub(crate) fn leave(mut self) {
        let all = 0..self.len();
        self.when_kept.iter_mut().for_each(|act| act(all.clone()));
        if let Some(elsewhere) = self.elsewhere {
            // `is_complete` was asked: there are no more than there is room for.
            copy(elsewhere, &mut self.free()[..elsewhere.len()]);
        }
        self.filled = 0;
    }

    /// The results, moved to other slots, of which there must be as many.
    #[cfg(test)]
    fn move_to(self, slots: &mut [MaybeUninit<O>]) {
        let all = 0..self.len();
        self.move_parts(std::iter::once((all, slots)));
    }

    /// Some of the results, moved to other slots, of which there must be as many each. The parts are in order and apart;
    /// the other results are dropped.
    pub(crate) fn move_parts<'s>(
        mut self,
        parts: impl Iterator<Item = (Range<usize>, &'s mut [MaybeUninit<O>])>,
    ) where
        O: 's,
    {
        let mut when_kept = self.when_kept.take();
        let parts = parts.inspect(|(part, _)| when_kept.iter_mut().for_each(|act| act(part.clone())));
        if let Some(elsewhere) = self.elsewhere {
            parts.for_each(|(part, slots)| copy(&elsewhere[part], slots));
            return;
        }
        let filled = self.take_filled();
        // Everything is moved before anything is dropped: dropping is the user's code, and may panic.
        let (mut end, mut others) = (0, Vec::new());
        for (part, slots) in parts {
            assert!(end <= part.start, "the parts are in order");
            if end < part.start {
                others.push(end..part.start);
            }
            end = part.end;
            assert_eq!(part.len(), slots.len(), "as many slots as results");
            // SAFETY: these were filled and count as gone from here on, so nothing is dropped twice; two exclusive slices
            // do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(filled[part].as_ptr(), slots.as_mut_ptr(), slots.len()) };
        }
        others.push(end..filled.len());
        for part in others {
            // SAFETY: these were filled, and no part had them.
            unsafe { filled[part].assume_init_drop() };
        }
    }

    /// Moves the results out, which leaves room for as many.
    pub(crate) fn take(&mut self) -> Vec<O> {
        if let Some(elsewhere) = self.elsewhere.take() {
            let mut copied = Vec::with_capacity(elsewhere.len());
            copy(elsewhere, &mut copied.spare_capacity_mut()[..elsewhere.len()]);
            // SAFETY: so many were just written.
            unsafe { copied.set_len(elsewhere.len()) };
            return copied;
        }
        // SAFETY: these slots are filled, and count as empty from here on, so nothing is dropped twice.
        self.take_filled().iter().map(|slot| unsafe { slot.assume_init_read() }).collect()
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

/// Tells how many slots are filled even when the code that fills them panics. The count itself stays in a register.
struct Count<'c>(&'c mut usize, usize);

impl Drop for Count<'_> {
    fn drop(&mut self) {
        *self.0 += self.1;
    }
}

impl<O> Extend<O> for Results<'_, O> {
    fn extend<I: IntoIterator<Item = O>>(&mut self, results: I) {
        let mut results = results.into_iter();
        // SAFETY: as for `free`, which cannot be borrowed beside the count.
        let room = unsafe {
            std::slice::from_raw_parts_mut(self.slots.as_ptr().add(self.filled), self.room - self.filled)
        };
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
            // SAFETY: these slots are filled, and count as empty from here on.
            unsafe { self.take_filled().assume_init_drop() };
        }
    }
}

impl<O> fmt::Debug for Results<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Results({} of {})", self.filled, self.room)
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
    fn each_result_that_is_kept_is_told_once_and_no_other() {
        let (mut here, mut there, mut told) = (slots(6), slots::<u32>(6), Vec::new());
        let mut results = Results::new(&mut here);
        results.extend(0..6);
        results.when_kept(|part| told.push(part));
        let (left, right) = there.split_at_mut(3);
        results.move_parts([(1..2, &mut left[1..2]), (4..6, &mut right[1..3])].into_iter());
        let mut results = Results::new(&mut here);
        results.extend(0..3);
        results.when_kept(|part| told.push(part));
        results.leave();
        let mut results = Results::new(&mut here);
        results.extend(0..3);
        results.when_kept(|part| told.push(part));
        drop(results);
        assert_eq!(told, [1..2, 4..6, 0..3]);
    }

    #[test]
    fn parts_are_moved_and_the_rest_is_dropped() {
        let counted = Arc::new(());
        let (mut here, mut there) = (slots(6), slots(6));
        let mut results = Results::new(&mut here);
        results.extend((0..6).map(|number| (number, counted.clone())));
        let (left, right) = there.split_at_mut(3);
        results.move_parts([(1..2, &mut left[1..2]), (4..6, &mut right[1..3])].into_iter());
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
        struct Bomb(u32, bool);
        impl Drop for Bomb {
            fn drop(&mut self) {
                assert!(!std::mem::take(&mut self.1), "dropped");
            }
        }
        let mut from = slots(5);
        let mut to: Vec<MaybeUninit<Bomb>> = (0..5).map(|_| MaybeUninit::new(Bomb(99, false))).collect();
        let mut results = Results::new(&mut from);
        results.extend((0..5).map(|number| Bomb(number, number == 0)));
        let (left, right) = to.split_at_mut(2);
        let parts = [(1..2, &mut left[1..2]), (3..4, &mut right[1..2])];
        let moved = std::panic::AssertUnwindSafe(|| results.move_parts(parts.into_iter()));
        assert!(std::panic::catch_unwind(moved).is_err());
        // SAFETY: it was written at the beginning, and again.
        assert_eq!(unsafe { to[3].assume_init_ref() }.0, 3);
    }

    #[test]
    fn only_claimed_slots_are_written() {
        let mut slots = slots::<u32>(4);
        // SAFETY: the slots are there, and nothing else touches them.
        let mut results = unsafe { Results::for_claims(NonNull::from(slots.as_mut_slice()).cast()) };
        results.push(1);
        assert!(results.is_empty() && !results.is_complete(0), "there is no room yet");
        // SAFETY: as above.
        let mut results = unsafe { Results::for_claims(NonNull::from(slots.as_mut_slice()).cast()) };
        // SAFETY: as above.
        unsafe { results.make_room(2) };
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
