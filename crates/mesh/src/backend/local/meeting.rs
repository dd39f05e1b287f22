//! Members that meet in shared memory: slots, what they lend one another, and how they wait.

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
    slots::Slots,
    standing::{Closed, Look, Standings},
    wait::{self, spin},
};

/// What a member gives is copied to the meeting's own memory where it is no larger than this: then one step suffices,
/// since nobody's own memory is lent.
pub(crate) const SMALL_BYTES: usize = 512;

/// A sleeper looks by itself this often, whatever wakes it.
const NAP: Duration = Duration::from_millis(20);

/// Members that meet.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(super) slots: Slots,
    seats: Box<[Seat]>,
    /// There are more members than cores: whoever waits gives its core away.
    crowded: bool,
}

/// What belongs to one member beside its slot.
#[derive(Debug)]
#[repr(align(128))]
struct Seat {
    /// Lent memory and weights, by the parity of the call.
    lent: [Lent; 2],
    /// Copies of what is small, by the parity of the call.
    copies: [Copy; 2],
    sleeper: Sleeper,
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
struct Copy(UnsafeCell<[u8; SMALL_BYTES]>);

#[derive(Debug)]
#[repr(align(128))]
struct Sleeper {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

// SAFETY: the only thing that is not `Sync` is `Copy`, and the steps of the slots order who touches it: see there.
unsafe impl Sync for Meeting {}

/// Why waiting ended without all being there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// This member will never come.
    Never(usize, Closed),
    /// These did not come in time.
    TimedOut(Vec<usize>),
}

impl Meeting {
    pub(crate) fn new(members: usize) -> Self {
        let seat = |_| Seat {
            lent: std::array::from_fn(|_| Lent {
                input: AtomicPtr::default(),
                output: AtomicPtr::default(),
                weight: AtomicU64::new(0),
            }),
            copies: std::array::from_fn(|_| Copy(UnsafeCell::new([0; SMALL_BYTES]))),
            sleeper: Sleeper { asleep: AtomicBool::new(false), thread: Mutex::new(None) },
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Meeting {
            slots: Slots::new(members),
            seats: (0..members).map(seat).collect(),
            crowded: members > cores,
        }
    }

    /// Copies what a member gives at a call to the meeting's own memory.
    ///
    /// # Safety
    /// Called by the member itself, after it has seen all arrive at the call before this one, and before it arrives at
    /// this one. `given` is at most [`SMALL_BYTES`].
    #[inline]
    pub(super) unsafe fn copy_in(&self, member: usize, call: u64, given: &[u8]) {
        let copy = self.seats[member].copies[(call & 1) as usize].0.get().cast::<u8>();
        // SAFETY: nobody reads it now, see `Copy`; it has room, and is not the caller's.
        unsafe { std::ptr::copy_nonoverlapping(given.as_ptr(), copy, given.len()) };
    }

    /// Where the copy of what a member gave at a call is.
    #[inline]
    pub(super) fn copied(&self, member: usize, call: u64) -> *const u8 {
        self.seats[member].copies[(call & 1) as usize].0.get().cast::<u8>().cast_const()
    }

    /// Writes what a member lends at a call, to be seen by whoever sees it arrive.
    #[inline]
    pub(super) fn lend(&self, member: usize, call: u64, input: *mut u8, output: *mut u8) {
        let lent = &self.seats[member].lent[(call & 1) as usize];
        lent.input.store(input, Relaxed);
        lent.output.store(output, Relaxed);
    }

    /// What a member lends at a call at which it has arrived.
    #[inline]
    pub(super) fn lent(&self, member: usize, call: u64) -> (*mut u8, *mut u8) {
        let lent = &self.seats[member].lent[(call & 1) as usize];
        (lent.input.load(Relaxed), lent.output.load(Relaxed))
    }

    /// Writes a member's weight.
    pub(super) fn set_weight(&self, member: usize, call: u64, weight: f64) {
        self.seats[member].lent[(call & 1) as usize].weight.store(weight.to_bits(), Relaxed);
    }

    /// A member's weight.
    pub(super) fn weight(&self, member: usize, call: u64) -> f64 {
        f64::from_bits(self.seats[member].lent[(call & 1) as usize].weight.load(Relaxed))
    }

    /// Wakes whoever sleeps. To be called after arriving, finishing or closing.
    #[inline]
    pub(super) fn wake(&self, me: usize) {
        for (member, seat) in self.seats.iter().enumerate() {
            // Whoever goes to sleep says so first and looks then; whoever arrives does so first and asks then.
            // Whichever comes second sees the other.
            if member != me && seat.sleeper.asleep.load(SeqCst) {
                seat.sleeper.rouse();
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
        hopeless: &dyn Fn() -> Option<(usize, Closed)>,
    ) -> Result<(), Stopped> {
        let mut there = 0;
        let look = || match self.slots.look(step, &mut there) {
            Look::All => Some(Ok(())),
            Look::Never(member, why) => Some(Err(Stopped::Never(member, why))),
            Look::Waiting => None,
        };
        spin(self.crowded, look, |waited| {
            if let Some((member, why)) = hopeless() {
                // Unless it came first. From here on it cannot come any more.
                self.slots.of(member).close_below(step, why);
            }
            if let Some((member, why)) = self.slots.never(step) {
                return Some(Err(Stopped::Never(member, why)));
            }
            if waited >= timeout {
                let missing = self.slots.give_up(step);
                self.wake(me);
                return Some(if missing.is_empty() { Ok(()) } else { Err(Stopped::TimedOut(missing)) });
            }
            let awake = || self.slots.look(step, &mut 0) != Look::Waiting;
            self.sleep(me, waited, NAP.min(timeout - waited), awake)
        })
    }

    /// Waits until all have finished what they began at the step before, at which all were. Neither a timeout nor a slot
    /// that is closed meanwhile ends it: every member touches memory that others have lent until it has finished.
    #[inline]
    pub(super) fn wait_until_finished(&self, me: usize, step: u64) {
        let mut there = 0;
        let look = || self.slots.have_finished(step, &mut there).then_some(());
        let awake = || self.slots.have_finished(step, &mut 0);
        spin(self.crowded, look, |waited| self.sleep(me, waited, NAP, awake));
    }

    /// A member that has waited long enough sleeps until another wakes it, or for a nap.
    fn sleep<R>(
        &self,
        me: usize,
        waited: Duration,
        nap: Duration,
        awake: impl FnOnce() -> bool,
    ) -> Option<R> {
        if wait::nap(waited).is_some() {
            self.seats[me].sleeper.sleep(nap, awake);
        }
        None
    }

    /// Closes a member's slot.
    pub(super) fn close(&self, member: usize, why: Closed) {
        self.slots.close(member, why);
        self.wake(usize::MAX);
    }
}

impl Sleeper {
    /// Sleeps until roused, or so long, unless `awake` says that there is no need.
    fn sleep(&self, nap: Duration, awake: impl FnOnce() -> bool) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.asleep.store(true, SeqCst);
        if !awake() {
            thread::park_timeout(nap);
        }
        self.asleep.store(false, SeqCst);
    }

    #[cold]
    fn rouse(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }
}
