//! Memory that the caller of a run lends to threads which may outlive the run.
//!
//! A device that hangs holds on to its thread, and a run must end without it. So the threads of a run are not scoped:
//! they may live on after the run, when the items that it was given are gone. What they get is therefore never a
//! reference that they could keep, but leave to look for a moment: [`Lent::read`] lends the items while a closure
//! runs, and after the run's end, not at all. The caller waits at the end until nobody looks any more, which takes as
//! long as the host code that looks: copying a chunk to a device's memory, or a task's own code on the processor, but
//! never a call that waits for a device.
#![allow(unsafe_code)] // Each block says why it is sound; the gate is what they stand on, and loom has tried it.

use std::{
    mem::{ManuallyDrop, MaybeUninit},
    ops::Range,
    ptr::NonNull,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use super::gate::Gate;
use crate::contain::contain;

/// Items that belong to somebody else, who waits in [`Lent::take_back`] until they are let go.
#[derive(Debug)]
pub(crate) struct Lent<T> {
    start: *const T,
    len: usize,
    gate: Gate,
}

// SAFETY: all that is done with the pointer is to make shared references of it in `read`.
unsafe impl<T: Sync> Send for Lent<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Lent<T> {}

impl<T> Lent<T> {
    /// Lends a slice.
    ///
    /// # Safety
    /// The slice must stay as it is until `take_back` has returned.
    pub(crate) unsafe fn new(items: &[T]) -> Self {
        Lent { start: items.as_ptr(), len: items.len(), gate: Gate::new() }
    }

    /// Lends some of the items while the closure runs. Nothing where they were taken back.
    pub(crate) fn read<R>(&self, range: Range<usize>, look: impl FnOnce(&[T]) -> R) -> Option<R> {
        let _inside = self.gate.enter()?;
        // SAFETY: the gate is open and held, so `take_back` has not returned, and the slice is there still.
        let items = unsafe { std::slice::from_raw_parts(self.start, self.len) };
        Some(look(&items[range]))
    }

    /// Whether they are wanted back.
    pub(crate) fn is_wanted_back(&self) -> bool {
        self.gate.is_shut()
    }

    /// Lends nothing any more, and waits until nobody looks.
    pub(crate) fn take_back(&self) {
        self.gate.shut();
    }
}

/// Room for a result an item, each written once, by the lane whose result was accepted.
///
/// The memory is behind a pointer, and never a reference to all of it is made while lanes may write: each writes to slots
/// that no other has.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    start: NonNull<MaybeUninit<T>>,
    len: usize,
    capacity: usize,
    gate: Gate,
    /// Whether the memory belongs to the caller of the run.
    is_lent: bool,
    /// Whether the memory belongs to the results that were taken, or is freed.
    is_gone: AtomicBool,
}

// SAFETY: results are moved in from one thread and out to another; no two threads touch the same slot, as `slice` and
// `start` demand.
unsafe impl<T: Send> Sync for Slots<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Slots<T> {}

impl<T> Slots<T> {
    /// Room for so many.
    pub(crate) fn new(count: usize) -> Self {
        let mut slots: Vec<MaybeUninit<T>> = Vec::with_capacity(count);
        // SAFETY: the capacity is there, and a slot that may be uninitialised needs no initialising.
        unsafe { slots.set_len(count) };
        ask_for_large_pages(&mut slots);
        let mut slots = ManuallyDrop::new(slots);
        let start = NonNull::from(slots.as_mut_slice()).cast();
        let (len, capacity) = (slots.len(), slots.capacity());
        Slots { start, len, capacity, gate: Gate::new(), is_lent: false, is_gone: AtomicBool::new(false) }
    }

    /// Slots in memory that belongs to somebody else, where the results stay when they are taken.
    ///
    /// # Safety
    /// The memory must be there, and nobody else may touch it, until `close` or `take` has returned.
    pub(crate) unsafe fn lent(slots: &mut [T]) -> Self
    where
        T: Copy,
    {
        let (start, len) = (NonNull::from(&mut *slots).cast(), slots.len());
        Slots { start, len, capacity: 0, gate: Gate::new(), is_lent: true, is_gone: AtomicBool::new(true) }
    }

    /// Lets nobody write any more, and waits until nobody does.
    pub(crate) fn close(&self) {
        self.gate.shut();
    }

    /// Keeps the slots from being taken while this lives. Nothing where they were taken.
    pub(crate) fn hold(&self) -> Option<super::gate::Inside<'_>> {
        self.gate.enter()
    }

    /// Where some of the slots begin. They may be written to while a hold is alive, by the one lane that has them.
    pub(crate) fn start(&self, range: Range<usize>) -> NonNull<MaybeUninit<T>> {
        assert!(range.start <= range.end && range.end <= self.len, "slots {range:?} of {}", self.len);
        // SAFETY: the range is within the slots.
        unsafe { self.start.add(range.start) }
    }

    /// Some of the slots, to write to.
    ///
    /// # Safety
    /// A hold on these very slots must be alive for as long as the slice is, and nobody else may touch any of them.
    #[expect(clippy::mut_from_ref, reason = "what the caller promises makes it exclusive")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [MaybeUninit<T>] {
        let count = range.len();
        // SAFETY: the slots are there while they are held, `start` has checked the range, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start(range).as_ptr(), count) }
    }

    /// Waits until nobody writes any more, and takes what was written: all of it, in order, where the ranges cover
    /// every slot; otherwise it is dropped, and there is nothing to give.
    ///
    /// # Safety
    /// The ranges must be exactly those that were written.
    pub(crate) unsafe fn take(&self, written: &[Range<u64>]) -> Option<Vec<T>> {
        self.close();
        let count: u64 = written.iter().map(|range| range.end - range.start).sum();
        if self.is_lent {
            return (count == self.len as u64).then(Vec::new);
        }
        if self.is_gone.swap(true, SeqCst) {
            return None;
        }
        // SAFETY: the parts are those of the vector that was made in `new`, the gate is shut and nobody is inside, and
        // `is_gone` says that it is made once.
        let mut slots = unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) };
        if count == slots.len() as u64 {
            let (start, len, capacity) = (slots.as_mut_ptr(), slots.len(), slots.capacity());
            std::mem::forget(slots);
            // SAFETY: the parts are those of the vector just forgotten, and every slot of it was written.
            return Some(unsafe { Vec::from_raw_parts(start.cast::<T>(), len, capacity) });
        }
        for range in written {
            for slot in &mut slots[range.start as usize..range.end as usize] {
                // Dropping a result is the user's code, and its panic would hide how the run ended.
                // SAFETY: it was written, and is not used again.
                contain(|| unsafe { slot.assume_init_drop() });
            }
        }
        None
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        if !*self.is_gone.get_mut() {
            // SAFETY: as in `take`. What was written is not known, and leaks: it is taken wherever a run has ended.
            drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
        }
    }
}

/// Asks the system to back much memory with large pages: each page is found when it is first written to, and small ones
/// are so many that it takes longer than many a task. It is free to do otherwise.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask_for_large_pages<T>(slots: &mut [MaybeUninit<T>]) {
    // Less than this the allocator may have had before, so that nothing has to be found.
    const MUCH: usize = 32 << 20;
    const PAGE: usize = 4096;
    let bytes = size_of_val(slots);
    if bytes < MUCH {
        return;
    }
    let start = (slots.as_mut_ptr() as usize).next_multiple_of(PAGE);
    let end = slots.as_mut_ptr() as usize + bytes;
    // SAFETY: the range is within the slots, and the advice changes nothing about what is there.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn ask_for_large_pages<T>(_: &mut [MaybeUninit<T>]) {}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_taken_back_is_not_lent() {
        let items = vec![1, 2, 3];
        // SAFETY: the items outlive `take_back`.
        let lent = unsafe { Lent::new(&items) };
        assert_eq!(lent.read(1..3, <[i32]>::to_vec), Some(vec![2, 3]));
        lent.take_back();
        assert_eq!(lent.read(0..1, <[i32]>::to_vec), None);
    }

    #[test]
    fn nobody_looks_at_items_that_were_taken_back() {
        for _ in 0..if cfg!(miri) { 3 } else { 200 } {
            let mut items: Vec<u64> = (0..8).collect();
            // SAFETY: the items are as they are until `take_back`.
            let lent = Arc::new(unsafe { Lent::new(&items) });
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let lent = lent.clone();
                    std::thread::spawn(move || {
                        while let Some(sum) = lent.read(0..8, |items| items.iter().sum::<u64>()) {
                            assert_eq!(sum, 28);
                        }
                    })
                })
                .collect();
            std::thread::yield_now();
            lent.take_back();
            items.fill(99);
            drop(items);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    #[test]
    fn results_come_out_in_order_and_incomplete_ones_are_dropped() {
        let counted = Arc::new(());
        let result = |number: usize| (number, counted.clone());
        for missing in [false, true] {
            let slots = Slots::new(4);
            let hold = slots.hold().unwrap();
            let write = |range: Range<usize>| {
                // SAFETY: the slots are held, and each is written once.
                for (slot, number) in unsafe { slots.slice(range.clone()) }.iter_mut().zip(range) {
                    slot.write(result(number));
                }
            };
            write(2..4);
            if !missing {
                write(0..2);
            }
            drop(hold);
            let written: &[Range<u64>] = if missing { &[const { 2..4 }] } else { &[2..4, 0..2] };
            // SAFETY: these were written.
            let taken = unsafe { slots.take(written) };
            let numbers = taken.map(|results| results.into_iter().map(|it| it.0).collect::<Vec<_>>());
            assert_eq!(numbers, (!missing).then(|| vec![0, 1, 2, 3]));
            assert_eq!(Arc::strong_count(&counted), 1, "nothing leaks");
            assert!(slots.hold().is_none());
        }
    }
}
