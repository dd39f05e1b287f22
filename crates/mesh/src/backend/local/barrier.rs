//! GroupSpec that meet in shared memory: slots, what they lend one another, and how they wait.

use std::{
    cell::UnsafeCell,
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

/// What a member gives is copied to the meeting's own memory where it is no larger than this: then one step suffices,
/// since nobody's own memory is lent.
pub(crate) const SMALL_BYTES: usize = 512;

/// A sleeper looks by itself this often, whatever wakes it.
const PARK_INTERVAL: Duration = Duration::from_millis(20);

/// GroupSpec that meet.
#[derive(Debug)]
pub(crate) struct SharedBarrier {
    pub(super) slots: Slots,
    data: Box<[MemberData]>,
    /// There are more members than cores: whoever waits gives its core away.
    oversubscribed: bool,
}

/// What belongs to one member beside its slot.
#[derive(Debug)]
#[repr(align(128))]
struct MemberData {
    /// Lent memory and weights, by the parity of the call.
    lent: [Lent; 2],
    /// Copies of what is small, by the parity of the call.
    copies: [SmallCopy; 2],
    parker: Parker,
}

/// What a member lends the others for one call.
#[derive(Debug)]
struct Lent {
    input: AtomicPtr<u8>,
    output: AtomicPtr<u8>,
    weight: AtomicU64,
}

/// Memory of the meeting's own. Written by its member before it arrives at a call, read by the others after that and
/// before they arrive at the next; the member writes it again only at the call after the next, at which they all have.
#[derive(Debug)]
#[repr(align(128))]
struct SmallCopy(UnsafeCell<[u8; SMALL_BYTES]>);

#[derive(Debug)]
#[repr(align(128))]
struct Parker {
    parked: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

// SAFETY: the only thing that is not `Sync` is `Copy`, and the steps of the slots order who touches it: see there.
unsafe impl Sync for SharedBarrier {}

/// Why waiting ended without all being there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitError {
    /// This member will never come.
    NeverArrives(usize, Closed),
    /// These did not come in time.
    TimedOut(Vec<usize>),
}

impl SharedBarrier {
    pub(crate) fn new(members: usize) -> Self {
        let data = |_| MemberData {
            lent: std::array::from_fn(|_| Lent {
                input: AtomicPtr::default(),
                output: AtomicPtr::default(),
                weight: AtomicU64::new(0),
            }),
            copies: std::array::from_fn(|_| SmallCopy(UnsafeCell::new([0; SMALL_BYTES]))),
            parker: Parker { parked: AtomicBool::new(false), thread: Mutex::new(None) },
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        SharedBarrier {
            slots: Slots::new(members),
            data: (0..members).map(data).collect(),
            oversubscribed: members > cores,
        }
    }

    /// Copies what a member gives at a call to the meeting's own memory.
    ///
    /// # Safety
    /// Called by the member itself, after it has seen all arrive at the call before this one, and before it arrives at
    /// this one. `given` is at most [`SMALL_BYTES`].
    #[inline]
    pub(super) unsafe fn copy_in(&self, member: usize, call: u64, given: &[u8]) {
        let copy = self.data[member].copies[(call & 1) as usize].0.get().cast::<u8>();
        // SAFETY: nobody reads it now, see `Copy`; it has room, and is not the caller's.
        unsafe { std::ptr::copy_nonoverlapping(given.as_ptr(), copy, given.len()) };
    }

    /// Where the copy of what a member gave at a call is.
    #[inline]
    pub(super) fn copied(&self, member: usize, call: u64) -> *const u8 {
        self.data[member].copies[(call & 1) as usize].0.get().cast::<u8>().cast_const()
    }

    /// Writes what a member lends at a call, to be seen by whoever sees it arrive.
    #[inline]
    pub(super) fn lend(&self, member: usize, call: u64, input: *mut u8, output: *mut u8) {
        let lent = &self.data[member].lent[(call & 1) as usize];
        lent.input.store(input, Relaxed);
        lent.output.store(output, Relaxed);
    }

    /// What a member lends at a call at which it has arrived.
    #[inline]
    pub(super) fn lent(&self, member: usize, call: u64) -> (*mut u8, *mut u8) {
        let lent = &self.data[member].lent[(call & 1) as usize];
        (lent.input.load(Relaxed), lent.output.load(Relaxed))
    }

    /// Writes a member's weight.
    pub(super) fn set_weight(&self, member: usize, call: u64, weight: f64) {
        self.data[member].lent[(call & 1) as usize].weight.store(weight.to_bits(), Relaxed);
    }

    /// A member's weight.
    pub(super) fn weight(&self, member: usize, call: u64) -> f64 {
        f64::from_bits(self.data[member].lent[(call & 1) as usize].weight.load(Relaxed))
    }

    /// Wakes whoever sleeps. To be called after arriving, finishing or closing.
    #[inline]
    pub(super) fn wake(&self, me: usize) {
        for (member, data) in self.data.iter().enumerate() {
            // Whoever goes to sleep says so first and looks then; whoever arrives does so first and asks then.
            // Whichever comes second sees the other.
            if member != me && data.parker.parked.load(SeqCst) {
                data.parker.unpark();
            }
        }
    }

    /// Waits until all have reached a step; for so long, when it ends for every member or for none. `hopeless` is asked
    /// now and then for a member that is known by other means to be gone.
    #[inline]
    pub(super) fn wait(
        &self,
        me: usize,
        step: u64,
        timeout: Duration,
        known_gone: &dyn Fn() -> Option<(usize, Closed)>,
    ) -> Result<(), WaitError> {
        let mut arrived = 0;
        let poll = || match self.slots.step_state(step, &mut arrived) {
            StepState::AllArrived => Some(Ok(())),
            StepState::NeverArrives(member, why) => Some(Err(WaitError::NeverArrives(member, why))),
            StepState::Waiting => None,
        };
        spin(self.oversubscribed, poll, |waited| {
            if let Some((member, why)) = known_gone() {
                // Unless it came first. From here on it cannot come any more.
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
            self.park(me, waited, PARK_INTERVAL.min(timeout - waited), is_done)
        })
    }

    /// Waits until all have finished what they began at the step before, at which all were. Neither a timeout nor a slot
    /// that is closed meanwhile ends it: every member touches memory that others have lent until it has finished.
    #[inline]
    pub(super) fn wait_until_finished(&self, me: usize, step: u64) {
        let mut arrived = 0;
        let poll = || self.slots.have_finished(step, &mut arrived).then_some(());
        let is_done = || self.slots.have_finished(step, &mut 0);
        spin(self.oversubscribed, poll, |waited| self.park(me, waited, PARK_INTERVAL, is_done));
    }

    /// A member that has waited long enough sleeps until another wakes it, or for a nap.
    fn park<R>(
        &self,
        me: usize,
        waited: Duration,
        interval: Duration,
        is_done: impl FnOnce() -> bool,
    ) -> Option<R> {
        if wait::sleep_time(waited).is_some() {
            self.data[me].parker.park(interval, is_done);
        }
        None
    }

    /// Closes a member's slot.
    pub(super) fn close(&self, member: usize, why: Closed) {
        self.slots.close(member, why);
        self.wake(usize::MAX);
    }
}

impl Parker {
    /// Sleeps until roused, or so long, unless `awake` says that there is no need.
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
