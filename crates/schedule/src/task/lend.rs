//! Memory that the caller of a run lends to worker threads, which may outlive the run.
//!
//! A device that hangs blocks its worker thread, and the run must end without it. So worker threads are not scoped: they
//! may live on when the caller's items are gone. A worker therefore never gets a reference that it could keep:
//! [`LentItems::read`] lends the items while a closure runs, and fails after the run's end. The run's end waits for such
//! closures, which copy a chunk to a device's memory or run a task's code on the processor, but never wait for a device.
#![allow(unsafe_code)] // Every block relies on the gate, which loom tests.

use std::{
    collections::TryReserveError,
    mem::{ManuallyDrop, MaybeUninit},
    ops::Range,
    ptr::NonNull,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use super::gate::Gate;
use crate::contain::contain;

/// A slice of the run's caller, which waits in [`LentItems::revoke`] until no thread reads it.
#[derive(Debug)]
pub(crate) struct LentItems<T> {
    start: *const T,
    len: usize,
    gate: Gate,
}

// SAFETY: `read` only makes shared references from the pointer, and `T: Sync` lets threads share them.
unsafe impl<T: Sync> Send for LentItems<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for LentItems<T> {}

impl<T> LentItems<T> {
    /// Lends a slice.
    ///
    /// # Safety
    /// The slice must live, and not be written to, until `revoke` has returned.
    pub(crate) unsafe fn new(items: &[T]) -> Self {
        LentItems { start: items.as_ptr(), len: items.len(), gate: Gate::new() }
    }

    /// Lends a range of the items while the closure runs, or returns `None` after `revoke`.
    pub(crate) fn read<R>(&self, range: Range<usize>, closure: impl FnOnce(&[T]) -> R) -> Option<R> {
        let _inside = self.gate.enter()?;
        // SAFETY: this thread is inside the gate, so `revoke` has not returned, and the caller of `new` keeps the slice
        // alive until then.
        let items = unsafe { std::slice::from_raw_parts(self.start, self.len) };
        Some(closure(&items[range]))
    }

    /// Whether `revoke` was called.
    pub(crate) fn is_revoked(&self) -> bool {
        self.gate.is_closed()
    }

    /// Stops lending, and waits until no thread reads.
    pub(crate) fn revoke(&self) {
        self.gate.close();
    }
}

/// One result slot per item, each written once, by the lane whose result was accepted.
///
/// The slots are behind a pointer, and no reference to all of them is made while lanes may write: each lane writes to its
/// own slots.
#[derive(Debug)]
pub(crate) struct ResultSlots<T> {
    start: NonNull<MaybeUninit<T>>,
    len: usize,
    capacity: usize,
    gate: Gate,
    /// Whether the memory belongs to the caller of the run.
    is_lent: bool,
    /// Whether the memory was taken as the results, or was freed, or was never owned.
    is_taken: AtomicBool,
}

// SAFETY: results are moved in by one thread and out by another (`T: Send`); the callers of `slice` and `start` give each
// slot to one thread only.
unsafe impl<T: Send> Sync for ResultSlots<T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for ResultSlots<T> {}

impl<T> ResultSlots<T> {
    /// Allocates `count` empty slots.
    pub(crate) fn new(count: usize) -> Result<Self, TryReserveError> {
        let mut slots: Vec<MaybeUninit<T>> = Vec::new();
        slots.try_reserve_exact(count)?;
        // SAFETY: the vector has this capacity, and `MaybeUninit` needs no initialisation.
        unsafe { slots.set_len(count) };
        advise_huge_pages(&mut slots);
        let mut slots = ManuallyDrop::new(slots);
        let start = NonNull::from(slots.as_mut_slice()).cast();
        let (len, capacity) = (slots.len(), slots.capacity());
        let (gate, is_taken) = (Gate::new(), AtomicBool::new(false));
        Ok(ResultSlots { start, len, capacity, gate, is_lent: false, is_taken })
    }

    /// Slots in the caller's memory, where the results stay when they are taken.
    ///
    /// # Safety
    /// The memory must live, and nothing else may use it, until `close` or `take` has returned.
    pub(crate) unsafe fn lent(slots: &mut [T]) -> Self
    where
        T: Copy,
    {
        let (start, len) = (NonNull::from(&mut *slots).cast(), slots.len());
        ResultSlots {
            start,
            len,
            capacity: 0,
            gate: Gate::new(),
            is_lent: true,
            is_taken: AtomicBool::new(true),
        }
    }

    /// Stops writes, and waits until no thread writes.
    pub(crate) fn close(&self) {
        self.gate.close();
    }

    /// Keeps the slots from being taken while the guard lives, or returns `None` if they are closed.
    pub(crate) fn guard(&self) -> Option<super::gate::GateGuard<'_>> {
        self.gate.enter()
    }

    /// Pointer to the first slot of a range. The one lane that has the range may write to it while it has a guard.
    pub(crate) fn start(&self, range: Range<usize>) -> NonNull<MaybeUninit<T>> {
        assert!(range.start <= range.end && range.end <= self.len, "slots {range:?} of {}", self.len);
        // SAFETY: the assertion keeps the range within the slots.
        unsafe { self.start.add(range.start) }
    }

    /// Returns a range of the slots, to write to.
    ///
    /// # Safety
    /// A guard of these slots must live as long as the slice, and no other thread may use the range.
    #[expect(clippy::mut_from_ref, reason = "what the caller promises makes it exclusive")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [MaybeUninit<T>] {
        let count = range.len();
        // SAFETY: the caller's guard keeps the slots alive, `start` checks the range, and only the caller has it.
        unsafe { std::slice::from_raw_parts_mut(self.start(range).as_ptr(), count) }
    }

    /// Waits until no thread writes, and returns the results in order if the ranges cover every slot. Otherwise drops
    /// the results and returns `None`.
    ///
    /// # Safety
    /// Exactly the slots of these ranges must have been written.
    pub(crate) unsafe fn take(&self, written: &[Range<u64>]) -> Option<Vec<T>> {
        self.close();
        let count: u64 = written.iter().map(|range| range.end - range.start).sum();
        if self.is_lent {
            return (count == self.len as u64).then(Vec::new);
        }
        if self.is_taken.swap(true, SeqCst) {
            return None;
        }
        // SAFETY: pointer, length and capacity are those of the vector of `new`, the gate is closed with no thread
        // inside, and `is_taken` lets only one caller come here.
        let mut slots = unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) };
        if count == slots.len() as u64 {
            let (start, len, capacity) = (slots.as_mut_ptr(), slots.len(), slots.capacity());
            std::mem::forget(slots);
            // SAFETY: pointer, length and capacity are those of the vector just forgotten, and every slot was written.
            return Some(unsafe { Vec::from_raw_parts(start.cast::<T>(), len, capacity) });
        }
        for range in written {
            for slot in &mut slots[range.start as usize..range.end as usize] {
                // Dropping a result runs the user's code, and its panic would hide how the run ended.
                // SAFETY: the caller says that the slot was written, and it is not used again.
                contain(|| unsafe { slot.assume_init_drop() });
            }
        }
        None
    }
}

impl<T> Drop for ResultSlots<T> {
    fn drop(&mut self) {
        if !*self.is_taken.get_mut() {
            // SAFETY: pointer and capacity are those of the vector in `new`; `drop` is exclusive, and `is_taken` is
            // false. Written results leak, because it is not known which slots were written; every run that ends calls
            // `take`.
            drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
        }
    }
}

/// Asks the system for huge pages for large results: each first write to a page is a page fault, and with small pages the
/// faults take longer than many tasks.
#[cfg(all(target_os = "linux", not(miri)))]
fn advise_huge_pages<T>(slots: &mut [MaybeUninit<T>]) {
    // The allocator may reuse smaller blocks, whose pages are mapped already.
    const MIN_BYTES: usize = 32 << 20;
    const PAGE: usize = 4096;
    let bytes = size_of_val(slots);
    if bytes < MIN_BYTES {
        return;
    }
    let start = (slots.as_mut_ptr() as usize).next_multiple_of(PAGE);
    let end = slots.as_mut_ptr() as usize + bytes;
    // SAFETY: the range is within the slots, and the advice does not change their contents.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn advise_huge_pages<T>(_: &mut [MaybeUninit<T>]) {}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn revoked_items_are_not_lent() {
        let items = vec![1, 2, 3];
        // SAFETY: the items outlive `revoke`.
        let lent = unsafe { LentItems::new(&items) };
        assert_eq!(lent.read(1..3, <[i32]>::to_vec), Some(vec![2, 3]));
        lent.revoke();
        assert_eq!(lent.read(0..1, <[i32]>::to_vec), None);
    }

    #[test]
    fn no_thread_reads_revoked_items() {
        for _ in 0..if cfg!(miri) { 3 } else { 200 } {
            let mut items: Vec<u64> = (0..8).collect();
            // SAFETY: the items do not change before `revoke`.
            let lent = Arc::new(unsafe { LentItems::new(&items) });
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
            lent.revoke();
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
            let slots = ResultSlots::new(4).unwrap();
            let guard = slots.guard().unwrap();
            let write = |range: Range<usize>| {
                // SAFETY: the guard is alive, and each slot is written once.
                for (slot, number) in unsafe { slots.slice(range.clone()) }.iter_mut().zip(range) {
                    slot.write(result(number));
                }
            };
            write(2..4);
            if !missing {
                write(0..2);
            }
            drop(guard);
            let written: &[Range<u64>] = if missing { &[const { 2..4 }] } else { &[2..4, 0..2] };
            // SAFETY: these were written.
            let taken = unsafe { slots.take(written) };
            let numbers = taken.map(|results| results.into_iter().map(|it| it.0).collect::<Vec<_>>());
            assert_eq!(numbers, (!missing).then(|| vec![0, 1, 2, 3]));
            assert_eq!(Arc::strong_count(&counted), 1, "nothing leaks");
            assert!(slots.guard().is_none());
        }
    }
}
