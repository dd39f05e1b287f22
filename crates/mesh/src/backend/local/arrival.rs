//! The step that each member has reached, in one word per member.
//!
//! # The protocol
//! Members go through the same steps, 1, 2, 3 …. A member *arrives* at a step by raising the number in its own word
//! from the step before. All have arrived once every word has reached the step.
//!
//! A word can be *closed*, with a reason, by its member when it leaves or by another member that timed out. The number
//! and the closed bit are one word, and both arriving and closing are a compare-and-exchange on it. So a word that was
//! closed below a step never reaches it, and a word that has reached the step can no longer be closed below it.
//!
//! This gives the invariant that everything else relies on: **either every member sees all words reach a step, or none
//! does.** A member gives up a step only when it sees, or makes, a word that is closed below it; then no member can
//! ever see all words there. A member that lends memory at a step may therefore take it back after giving up: no member
//! accesses it before all have arrived.
//!
//! A member that works on lent memory between two steps *finishes* with a plain addition, which also works on a closed
//! word: another thread of the member may close the word at any time. So members that wait for the second step compare
//! the numbers alone ([`Arrivals::have_finished`]): the work continues even if the word is closed.
//!
//! Members are threads, or processes that share the memory of the words. `tests/loom` checks the protocol with loom.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const CLOSED: u64 = 1 << 63;
/// The first bit of the reason.
const REASON: u32 = 60;
const STEP: u64 = (1 << REASON) - 1;

/// Why a member's word is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Another member timed out waiting for this one.
    TimedOut,
    Left,
    Panicked,
    Failed,
}

/// Whether all members have arrived at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepState {
    AllArrived,
    NeverArrives(usize, Closed),
    Waiting,
}

/// The step that one member has reached. Zeroed memory is valid: no step reached.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Arrival(AtomicU64);

impl Arrival {
    pub(crate) fn new() -> Self {
        Arrival(AtomicU64::new(0))
    }

    #[cfg(not(loom))]
    #[inline]
    fn load_latest(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// Reads the newest value by a read-modify-write: with a plain load, loom would also try never seeing a new value.
    #[cfg(loom)]
    fn load_latest(&self) -> u64 {
        self.0.fetch_or(0, loom::sync::atomic::Ordering::Acquire)
    }

    /// Arrives at a step, unless the word is closed.
    #[inline]
    pub(crate) fn arrive(&self, step: u64) -> Result<(), Closed> {
        match self.0.compare_exchange(step - 1, step, SeqCst, SeqCst) {
            Ok(_) => Ok(()),
            Err(found) => Err(closed(found).unwrap_or(Closed::Failed)),
        }
    }

    /// Arrives at the step after one at which all arrived, which cannot fail.
    #[inline]
    pub(crate) fn finish(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// Returns whether the word is closed, at any step.
    pub(crate) fn closed(&self) -> Option<Closed> {
        closed(self.0.load(SeqCst))
    }

    /// Closes the word, unless it is closed already.
    pub(crate) fn close(&self, why: Closed) {
        self.close_below(STEP, why);
    }

    /// Closes the word if it has not reached a step. Returns whether it never will.
    pub(crate) fn close_below(&self, step: u64, why: Closed) -> bool {
        let mut found = self.0.load(SeqCst);
        loop {
            if found & STEP >= step {
                return false;
            }
            if closed(found).is_some() {
                return true;
            }
            match self.0.compare_exchange(found, found | CLOSED | (why as u64) << REASON, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(now) => found = now,
            }
        }
    }
}

fn closed(state: u64) -> Option<Closed> {
    if state & CLOSED == 0 {
        return None;
    }
    Some(match state >> REASON & 0b111 {
        0 => Closed::TimedOut,
        1 => Closed::Left,
        2 => Closed::Panicked,
        _ => Closed::Failed,
    })
}

/// The arrivals of all members of a group.
pub(crate) trait Arrivals {
    fn len(&self) -> usize;

    fn of(&self, member: usize) -> &Arrival;

    #[inline]
    fn arrive(&self, member: usize, step: u64) -> Result<(), Closed> {
        self.of(member).arrive(step)
    }

    /// Returns whether all members have reached a step. `arrived` counts members that were seen there, for the next
    /// call.
    #[inline]
    fn step_state(&self, step: u64, arrived: &mut usize) -> StepState {
        while *arrived < self.len() {
            let state = self.of(*arrived).load_latest();
            if state & STEP < step {
                return closed(state)
                    .map_or(StepState::Waiting, |why| StepState::NeverArrives(*arrived, why));
            }
            *arrived += 1;
        }
        StepState::AllArrived
    }

    /// Returns whether all members have finished a step at which all arrived; as [`step_state`](Self::step_state), but
    /// a closed word counts by its number alone, because its member is still working.
    #[inline]
    fn have_finished(&self, step: u64, arrived: &mut usize) -> bool {
        while *arrived < self.len() && self.of(*arrived).load_latest() & STEP >= step {
            *arrived += 1;
        }
        *arrived == self.len()
    }

    /// Returns a member that will never reach a step.
    fn never_arriving(&self, step: u64) -> Option<(usize, Closed)> {
        (0..self.len()).find_map(|member| {
            let state = self.of(member).0.load(SeqCst);
            closed(state).filter(|_| state & STEP < step).map(|why| (member, why))
        })
    }

    /// Closes all members that have not reached a step, and returns those that never will; none if all arrived
    /// meanwhile.
    fn give_up(&self, step: u64) -> Vec<usize> {
        (0..self.len()).filter(|member| self.of(*member).close_below(step, Closed::TimedOut)).collect()
    }
}
