//! Copying between host memories with several threads.
//!
//! One core copies some 8 – 14 GB/s, a fraction of what memory or a bus takes. A large copy is therefore cut into shares,
//! which the calling thread and a set of copy threads claim one by one. The copy threads are shared by all copies of the
//! process, start with the first large copy, and do nothing but copy: a copy never waits for a copy thread that has not
//! begun a share of it, so callers cannot deadlock, however many there are and on whatever thread they run.

use std::{
    sync::{
        Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    thread::Thread,
    time::{Duration, Instant},
};

use bytemuck::Pod;

use crate::affinity::unbound;

/// Shorter copies stay on the calling thread: they end before a copy thread has woken up.
const PARALLEL_BYTES: usize = 1 << 20;

/// Bytes of a share. Large enough that claiming one costs nothing, small enough that all threads end at about the same
/// time.
const SHARE_BYTES: usize = 64 << 10;

/// Number of shares for which one more thread is worth waking: all copy threads of sixteen cores work on a piece of 4 MiB.
const SHARES_PER_THREAD: usize = 4;

/// Bytes of a cache line. Shares begin at one, so that no two threads write to the same line.
const LINE_BYTES: usize = 64;

/// Maximum number of copy threads. A dozen cores saturate the memory bandwidth that one bus can use.
const MAX_COPY_THREADS: usize = 15;

/// How long an idle copy thread spins before it parks. The pieces of one upload follow each other within this time, and
/// waking a parked thread takes tens of microseconds.
const SPIN: Duration = Duration::from_micros(40);

/// Number of parked copy threads that a caller, or a copy thread that was woken, wakes. Waking all of them would keep the
/// caller from copying, and one by one the last would come too late.
const WAKES: usize = 2;

/// Copies all elements, with several threads if there are many.
///
/// Each thread writes its share in order, which write-combined memory needs for its full rate. On x86-64, large copies
/// bypass the processor's caches, because the next reader is a device or another core.
///
/// # Panics
/// When the slices differ in length.
///
/// ```
/// let (from, mut to) = (vec![7u32; 1 << 20], vec![0; 1 << 20]);
/// evener_device::copy_parallel(&from, &mut to);
/// assert_eq!(from, to);
/// ```
pub fn copy_parallel<T: Pod>(from: &[T], to: &mut [T]) {
    copy_with(usize::MAX, from, to);
}

/// Copies with so many threads at most, the calling one included. For benchmarks: [`copy_parallel`] decides by itself.
#[doc(hidden)]
pub fn copy_with<T: Pod>(threads: usize, from: &[T], to: &mut [T]) {
    assert_eq!(from.len(), to.len(), "`from` and `to` must have the same length");
    let (from, to): (&[u8], &mut [u8]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    if to.len() < PARALLEL_BYTES {
        return to.copy_from_slice(from);
    }
    COPY_THREADS.copy(threads.saturating_sub(1), from, to);
}

/// A copy in progress. The thread that claims a share copies it, and the caller returns only when every share is copied: the
/// pointers are valid for as long as there is a share to claim or to copy.
struct ParallelCopy {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
    /// Number of the next share to claim.
    next: AtomicUsize,
    /// Shares that are not copied yet.
    left: AtomicUsize,
    /// Number of copy threads that may still join.
    joins_left: AtomicUsize,
    caller: Thread,
}

// SAFETY: the pointers are used only to copy claimed shares, which do not overlap, while the caller's exclusive borrow of
// the target and shared borrow of the source last (`CopyThreads::copy` does not return before).
unsafe impl Send for ParallelCopy {}
// SAFETY: as for `Send`; `next`, `left` and `joins_left` are atomic, and no share is claimed twice.
unsafe impl Sync for ParallelCopy {}

impl ParallelCopy {
    /// Bytes between the start of a cache line and the target.
    fn misalignment(&self) -> usize {
        self.to as usize % LINE_BYTES
    }

    fn shares(&self) -> usize {
        (self.bytes + self.misalignment()).div_ceil(SHARE_BYTES)
    }

    fn is_claimed(&self) -> bool {
        self.next.load(Relaxed) >= self.shares()
    }

    /// Joins as a copy thread. Returns false if enough copy threads have joined.
    fn join(&self) -> bool {
        !self.is_claimed()
            && self.joins_left.fetch_update(AcqRel, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Claims and copies shares until all are claimed.
    fn work(&self) {
        let shares = self.shares();
        loop {
            let index = self.next.fetch_add(1, Relaxed);
            if index >= shares {
                return;
            }
            // Every share but the first begins at a cache line of the target.
            let share_start =
                |index: usize| (index * SHARE_BYTES).saturating_sub(self.misalignment()).min(self.bytes);
            let (start, end) = (share_start(index), share_start(index + 1));
            // SAFETY: the share was claimed by this thread alone and is not copied yet, so the caller still waits and
            // both slices are borrowed; `start..end` is within both, and shares do not overlap.
            let (from, to) = unsafe {
                (
                    std::slice::from_raw_parts(self.from.add(start), end - start),
                    std::slice::from_raw_parts_mut(self.to.add(start), end - start),
                )
            };
            stream(from, to);
            // The copied bytes happen before the caller's return.
            if self.left.fetch_sub(1, AcqRel) == 1 {
                self.caller.unpark();
            }
        }
    }

    /// Waits until every share is copied. All are claimed, so this takes as long as a thread needs for one.
    fn wait(&self) {
        let start = Instant::now();
        let mut has_parked = false;
        while self.left.load(Acquire) > 0 {
            if start.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                // A copy thread was interrupted in the middle of its share.
                std::thread::park();
                has_parked = true;
            }
        }
        if has_parked {
            // An `unpark` that ended the wait may have been meant for code around it, such as an executor.
            self.caller.unpark();
        }
    }
}

/// The copy threads, and the copies that they may join.
struct CopyThreads {
    count: usize,
    queue: Mutex<CopyQueue>,
    /// Number of copies in the queue, to be read without the lock.
    queued: AtomicUsize,
    wake: Condvar,
}

#[derive(Default)]
struct CopyQueue {
    /// The oldest first.
    copies: Vec<Arc<ParallelCopy>>,
    parked: usize,
}

static COPY_THREADS: LazyLock<CopyThreads> = LazyLock::new(|| {
    let cores = unbound(std::thread::available_parallelism).map_or(1, usize::from);
    let start = |index: &usize| {
        let thread = std::thread::Builder::new().name(format!("evener-copy-{index}"));
        // The new thread's first access to `COPY_THREADS` waits until this initializer has returned.
        unbound(|| thread.spawn(|| COPY_THREADS.run_copies())).is_ok()
    };
    // If the system starts no more threads, there are fewer.
    let count = (0..(cores - 1).min(MAX_COPY_THREADS)).take_while(start).count();
    CopyThreads { count, queue: Mutex::default(), queued: AtomicUsize::new(0), wake: Condvar::new() }
});

impl CopyThreads {
    fn queue(&self) -> MutexGuard<'_, CopyQueue> {
        // Nothing is left half-done under this lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies on this thread and on at most `threads` copy threads.
    fn copy(&self, threads: usize, from: &[u8], to: &mut [u8]) {
        let mut copy = ParallelCopy {
            from: from.as_ptr(),
            to: to.as_mut_ptr(),
            bytes: to.len(),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            joins_left: AtomicUsize::new(0),
            caller: std::thread::current(),
        };
        let shares = copy.shares();
        let threads = threads.min(self.count).min(shares / SHARES_PER_THREAD);
        (copy.left, copy.joins_left) = (AtomicUsize::new(shares), AtomicUsize::new(threads));
        if threads == 0 {
            return copy.work();
        }
        let copy = Arc::new(copy);
        let mut queue = self.queue();
        queue.copies.push(copy.clone());
        self.queued.store(queue.copies.len(), Relaxed);
        let parked = queue.parked;
        drop(queue);
        self.wake(parked.min(threads));
        copy.work();
        let mut queue = self.queue();
        queue.copies.retain(|queued| !Arc::ptr_eq(queued, &copy));
        self.queued.store(queue.copies.len(), Relaxed);
        drop(queue);
        copy.wait();
    }

    /// Wakes some of the parked copy threads.
    fn wake(&self, parked: usize) {
        (0..parked.min(WAKES)).for_each(|_| self.wake.notify_one());
    }

    /// Runs on each copy thread, until the process ends: joins one copy after another.
    fn run_copies(&self) {
        loop {
            self.next().work();
        }
    }

    /// Waits for a copy to join.
    fn next(&self) -> Arc<ParallelCopy> {
        let start = Instant::now();
        let mut has_parked = false;
        loop {
            if self.queued.load(Relaxed) > 0 || start.elapsed() >= SPIN {
                let mut queue = self.queue();
                loop {
                    let found = queue.copies.iter().find(|copy| copy.join()).cloned();
                    if let Some(copy) = found {
                        let parked = queue.parked.min(copy.joins_left.load(Relaxed));
                        drop(queue);
                        if has_parked && !copy.is_claimed() {
                            self.wake(parked);
                        }
                        return copy;
                    }
                    if start.elapsed() < SPIN {
                        break;
                    }
                    queue.parked += 1;
                    queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.parked -= 1;
                    has_parked = true;
                }
            }
            std::thread::yield_now();
        }
    }
}

/// Copies with stores that bypass the caches, so that no line is read before it is overwritten. The source is
/// prefetched: these stores keep the processor from looking far enough ahead by itself.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stream(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };

    const BLOCK_BYTES: usize = 4 * LINE_BYTES;
    const AHEAD_BYTES: usize = 1024;
    let head = to.as_ptr().align_offset(LINE_BYTES).min(to.len());
    let ((from_head, from), (to_head, to)) = (from.split_at(head), to.split_at_mut(head));
    to_head.copy_from_slice(from_head);
    let ((from, from_tail), (to, to_tail)) =
        (from.as_chunks::<BLOCK_BYTES>(), to.as_chunks_mut::<BLOCK_BYTES>());
    for (from, to) in from.iter().zip(to) {
        for line in 0..4 {
            let ahead = from.as_ptr().wrapping_add(AHEAD_BYTES + line * LINE_BYTES);
            // SAFETY: SSE is part of x86-64. A prefetch of an address that is not mapped does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
        }
        let (from, to) = (from.as_ptr().cast::<__m128i>(), to.as_mut_ptr().cast::<__m128i>());
        // SAFETY: both blocks have 256 bytes, the target is aligned to a cache line, and SSE2 is part of x86-64.
        unsafe {
            let block: [__m128i; 16] = std::array::from_fn(|part| _mm_loadu_si128(from.add(part)));
            for (part, value) in block.into_iter().enumerate() {
                _mm_stream_si128(to.add(part), value);
            }
        }
    }
    to_tail.copy_from_slice(from_tail);
    // SAFETY: SSE is part of x86-64. The fence orders the stores before those that follow.
    unsafe { _mm_sfence() };
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn stream(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod test {
    use super::*;

    fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at.wrapping_mul(31) + at / 251 + seed) as u8).collect()
    }

    /// Copies into the middle of a longer vector and checks every byte of it.
    fn check(threads: usize, bytes: usize, from_at: usize, to_at: usize) {
        let from = pattern(from_at + bytes, to_at);
        let mut to = vec![0xEE; to_at + bytes + 70];
        copy_with(threads, &from[from_at..], &mut to[to_at..to_at + bytes]);
        let context = format!("{bytes} bytes from {from_at} to {to_at} by {threads}");
        assert!(to[to_at..to_at + bytes] == from[from_at..], "{context}");
        assert!(to[..to_at].iter().chain(&to[to_at + bytes..]).all(|byte| *byte == 0xEE), "{context}");
    }

    #[test]
    fn everything_arrives_in_any_length_from_and_to_any_place() {
        let lengths = [0, 1, 63, 1000, PARALLEL_BYTES - 1, PARALLEL_BYTES, PARALLEL_BYTES + 1];
        let more = [8 * SHARE_BYTES + LINE_BYTES - 1, 11 * SHARE_BYTES + 12_345];
        for bytes in lengths.into_iter().chain(more) {
            for (from_at, to_at) in [(0, 0), (1, 0), (0, 1), (3, 63), (64, 65), (17, 16)] {
                check(usize::MAX, bytes, from_at, to_at);
                check(1, bytes, from_at, to_at);
            }
        }
    }

    #[test]
    fn elements_of_any_type_are_copied() {
        let from: Vec<u64> = (0..300_000).collect();
        let mut to = vec![0; from.len()];
        copy_parallel(&from, &mut to);
        assert_eq!(from, to);
    }

    #[test]
    #[should_panic(expected = "same length")]
    fn slices_of_different_lengths_are_refused() {
        copy_parallel(&[1u8, 2], &mut [0; 3]);
    }

    #[test]
    fn many_callers_at_once_get_their_own_bytes() {
        std::thread::scope(|scope| {
            for caller in 0..8 {
                scope.spawn(move || {
                    for round in 0..20 {
                        let bytes = PARALLEL_BYTES + caller * 77_777 + round * 4099;
                        check(usize::MAX, bytes, caller, (round * 5) % 64);
                    }
                });
            }
        });
    }

    #[test]
    fn a_caller_on_a_thread_of_rayons_is_served() {
        // As many callers as rayon has threads, each in a copy.
        rayon::scope(|scope| {
            for caller in 0..2 * rayon::current_num_threads() {
                scope.spawn(move |_| check(usize::MAX, 3 * PARALLEL_BYTES + caller, 0, caller));
            }
        });
    }

    #[test]
    fn copy_threads_park_and_wake_again() {
        for _ in 0..10 {
            check(usize::MAX, 4 * PARALLEL_BYTES, 0, 0);
            std::thread::sleep(4 * SPIN);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        // Other tests copy too, but not for ever.
        while COPY_THREADS.queue().parked < COPY_THREADS.count {
            assert!(
                Instant::now() < deadline,
                "{} of {} parked",
                COPY_THREADS.queue().parked,
                COPY_THREADS.count
            );
            std::thread::sleep(SPIN);
        }
    }

    #[test]
    fn a_copy_that_parks_leaves_the_thread_unparked() {
        let (from, mut to) = ([1u8; 8], [0u8; 8]);
        let copy = Arc::new(ParallelCopy {
            from: from.as_ptr(),
            to: to.as_mut_ptr(),
            bytes: to.len(),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(1),
            joins_left: AtomicUsize::new(0),
            caller: std::thread::current(),
        });
        let shared = copy.clone();
        let thread = std::thread::spawn(move || {
            // Long enough that the caller parks.
            std::thread::sleep(Duration::from_millis(50));
            shared.work();
        });
        // Meant for code around the copy.
        std::thread::current().unpark();
        copy.wait();
        let start = Instant::now();
        std::thread::park_timeout(Duration::from_secs(10));
        assert!(start.elapsed() < Duration::from_secs(5), "the unpark is lost");
        thread.join().unwrap();
        assert_eq!(from, to);
    }
}
