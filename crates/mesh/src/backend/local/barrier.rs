//! A barrier of threads with the memory that they lend one another.

use std::{
    cell::{Cell, UnsafeCell},
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread::{self, Thread},
    time::Duration,
};

use super::{
    arrival::{Arrivals, Closed, StepState},
    slots::Slots,
    wait::{self, spin},
};

/// Inputs up to this size are copied to the barrier's memory: then one step suffices, because no member lends memory.
pub(crate) const SMALL_BYTES: usize = 512;

/// A parked thread polls this often, even if nothing unparks it.
const PARK_INTERVAL: Duration = Duration::from_millis(20);

/// A barrier of the members of a group, which are threads.
#[derive(Debug)]
pub(crate) struct SharedBarrier {
    pub(super) slots: Slots,
    data: Box<[MemberData]>,
    /// There are more members than cores: waiting threads yield at once.
    pub(super) oversubscribed: bool,
}

/// One member's memory beside its slot.
#[derive(Debug)]
#[repr(align(128))]
struct MemberData {
    /// Lent memory and weights, by parity of the call.
    lent: [LentMemory; 2],
    /// Copies of small inputs, by parity of the call.
    copies: [SmallCopy; 2],
    parker: Parker,
}

/// The memory that a member lends the others for one call, and its weight.
#[derive(Debug)]
struct LentMemory {
    input: AtomicPtr<u8>,
    output: AtomicPtr<u8>,
    weight: AtomicU64,
}

/// A copy of a small input. Its member writes it before arriving at a call; the others read it after that and before
/// arriving at the next call. The member writes it again at the call after the next, at which all have arrived.
#[derive(Debug)]
#[repr(align(128))]
struct SmallCopy(UnsafeCell<[u8; SMALL_BYTES]>);

#[derive(Debug)]
#[repr(align(128))]
struct Parker {
    parked: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

// SAFETY: only `SmallCopy` is not `Sync`, and the slots' steps order its accesses as it describes.
unsafe impl Sync for SharedBarrier {}

/// Why a wait ended before all members arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitError {
    NeverArrives(usize, Closed),
    TimedOut(Vec<usize>),
}

impl SharedBarrier {
    /// Creates a barrier for threads that have this number of cores together.
    pub(crate) fn new(members: usize, cores: usize) -> Self {
        let data = |_| MemberData {
            lent: std::array::from_fn(|_| LentMemory {
                input: AtomicPtr::default(),
                output: AtomicPtr::default(),
                weight: AtomicU64::new(0),
            }),
            copies: std::array::from_fn(|_| SmallCopy(UnsafeCell::new([0; SMALL_BYTES]))),
            parker: Parker { parked: AtomicBool::new(false), thread: Mutex::new(None) },
        };
        SharedBarrier {
            slots: Slots::new(members),
            data: (0..members).map(data).collect(),
            oversubscribed: members > cores,
        }
    }

    /// Copies a member's input of a call to the barrier's memory.
    ///
    /// # Safety
    /// Called by the member itself, after it has seen all arrive at the previous call and before it arrives at this
    /// one. `input` has at most [`SMALL_BYTES`].
    #[inline]
    pub(super) unsafe fn copy_in(&self, member: usize, call: u64, input: &[u8]) {
        let copy = self.data[member].copies[(call & 1) as usize].0.get().cast::<u8>();
        // SAFETY: no member reads the copy now, see `SmallCopy`; it holds `SMALL_BYTES`, and is not the caller's
        // memory.
        unsafe { std::ptr::copy_nonoverlapping(input.as_ptr(), copy, input.len()) };
    }

    #[inline]
    pub(super) fn copied(&self, member: usize, call: u64) -> *const u8 {
        self.data[member].copies[(call & 1) as usize].0.get().cast::<u8>().cast_const()
    }

    /// Publishes the memory that a member lends at a call, with its arrival.
    #[inline]
    pub(super) fn lend(&self, member: usize, call: u64, input: *mut u8, output: *mut u8) {
        let lent = &self.data[member].lent[(call & 1) as usize];
        lent.input.store(input, Relaxed);
        lent.output.store(output, Relaxed);
    }

    /// Returns the memory that a member lends at a call at which it has arrived.
    #[inline]
    pub(super) fn lent(&self, member: usize, call: u64) -> (*mut u8, *mut u8) {
        let lent = &self.data[member].lent[(call & 1) as usize];
        (lent.input.load(Relaxed), lent.output.load(Relaxed))
    }

    pub(super) fn set_weight(&self, member: usize, call: u64, weight: f64) {
        self.data[member].lent[(call & 1) as usize].weight.store(weight.to_bits(), Relaxed);
    }

    pub(super) fn weight(&self, member: usize, call: u64) -> f64 {
        f64::from_bits(self.data[member].lent[(call & 1) as usize].weight.load(Relaxed))
    }

    /// Unparks the other members. Called after arriving, finishing or closing.
    #[inline]
    pub(super) fn wake(&self, me: usize) {
        for (member, data) in self.data.iter().enumerate() {
            // A parking thread sets its flag and then polls; an arriving thread arrives and then reads the flag: one of
            // them sees the other.
            if member != me && data.parker.parked.load(SeqCst) {
                data.parker.unpark();
            }
        }
    }

    /// Waits until all members have reached a step. A timeout ends the wait for every member or for none. `left_member`
    /// is polled: it returns a member that has left, if its slot of this barrier does not show that.
    #[inline]
    pub(super) fn wait(
        &self,
        me: usize,
        step: u64,
        timeout: Duration,
        left_member: &dyn Fn() -> Option<(usize, Closed)>,
    ) -> Result<(), WaitError> {
        let mut arrived = 0;
        let poll = || match self.slots.step_state(step, &mut arrived) {
            StepState::AllArrived => Some(Ok(())),
            StepState::NeverArrives(member, why) => Some(Err(WaitError::NeverArrives(member, why))),
            StepState::Waiting => None,
        };
        let unpark_again = UnparkAgain::default();
        spin(self.oversubscribed, poll, |waited| {
            if let Some((member, why)) = left_member() {
                // Unless it arrived before. From now on it cannot arrive.
                self.slots.of(member).close_below(step, why);
            }
            if let Some((member, why)) = self.slots.never_arriving(step) {
                return Some(Err(WaitError::NeverArrives(member, why)));
            }
            if waited >= timeout {
                let missing = self.slots.give_up(step);
                self.wake(me);
                return Some(if missing.is_empty() { Ok(()) } else { Err(WaitError::TimedOut(missing)) });
            }
            let is_done = || self.slots.step_state(step, &mut 0) != StepState::Waiting;
            self.park(me, waited, PARK_INTERVAL.min(timeout - waited), is_done, &unpark_again)
        })
    }

    /// Waits until all members have finished the step before, at which all arrived. Neither a timeout nor a slot that
    /// is closed meanwhile ends the wait: members access lent memory until they have finished.
    #[inline]
    pub(super) fn wait_until_finished(&self, me: usize, step: u64) {
        let mut arrived = 0;
        let poll = || self.slots.have_finished(step, &mut arrived).then_some(());
        let is_done = || self.slots.have_finished(step, &mut 0);
        let unpark_again = UnparkAgain::default();
        spin(self.oversubscribed, poll, |waited| {
            self.park(me, waited, PARK_INTERVAL, is_done, &unpark_again)
        });
    }

    /// Parks a member that has waited long enough, until another unparks it or for `interval`.
    fn park<R>(
        &self,
        me: usize,
        waited: Duration,
        interval: Duration,
        is_done: impl FnOnce() -> bool,
        unpark_again: &UnparkAgain,
    ) -> Option<R> {
        if wait::sleep_time(waited).is_some() {
            unpark_again.0.set(true);
            self.data[me].parker.park(interval, is_done);
        }
        None
    }

    pub(super) fn close(&self, member: usize, why: Closed) {
        self.slots.of(member).close(why);
        self.wake(usize::MAX);
    }
}

/// Unparks the thread when dropped, if it has parked: an `unpark` that ended the wait may have been meant for code
/// around it, such as an executor that polls on this thread.
#[derive(Debug, Default)]
struct UnparkAgain(Cell<bool>);

impl Drop for UnparkAgain {
    fn drop(&mut self) {
        if self.0.get() {
            thread::current().unpark();
        }
    }
}

impl Parker {
    /// Parks the thread for at most `interval`, unless `is_done`.
    fn park(&self, interval: Duration, is_done: impl FnOnce() -> bool) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.parked.store(true, SeqCst);
        if !is_done() {
            thread::park_timeout(interval);
        }
        self.parked.store(false, SeqCst);
    }

    #[cold]
    fn unpark(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }
}
