//! How far each member has come, in one word a member.
//!
//! # The protocol
//! GroupSpec go through the same steps, 1, 2, 3 …. A member *arrives* at a step by raising the number in its own word
//! from the step before. All are there once every word has reached the step.
//!
//! A word can be *closed*, with a reason, by its member when it leaves or by another that has waited too long. The
//! number and the mark of being closed are one word, and both arriving and closing are a compare-and-exchange on it.
//! So a word that was closed below a step never reaches it, and one that has reached the step can no longer be
//! closed below it.
//!
//! From that follows what everything else rests on: **either every member sees all words reach a step, or none
//! does.** A member gives up a step only when it sees, or makes, a word that is closed below it; then no member can
//! ever see all of them there. Whoever lends memory at a step may therefore take it back after giving up: nobody
//! looks at it before all are there.
//!
//! A member that works on lent memory between two steps *finishes* with a plain addition, which a closed word takes as
//! well: a word may be closed at any time by another thread of its member, also between the two. So those who wait for
//! the second step look at the numbers alone ([`Standings::have_finished`]). A word closed there says nothing about the
//! work, which goes on.
//!
//! GroupSpec may be threads, or processes that share the memory of the words. loom tries it in every order in
//! `tests/loom`.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Set once a word is closed.
const CLOSED: u64 = 1 << 63;
/// Where the reason begins.
const REASON: u32 = 60;
/// What is left for the number of the step.
const STEP: u64 = (1 << REASON) - 1;

/// Why a member takes no further part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Another member waited too long for this one.
    TimedOut,
    /// The member left.
    Left,
    /// The member panicked.
    Panicked,
    /// The member met an error.
    Failed,
}

/// What there is to see at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepState {
    /// All are there.
    AllArrived,
    /// This member will never come.
    NeverArrives(usize, Closed),
    /// Somebody is yet to come.
    Waiting,
}

/// How far one member has come. Zeros are one that has reached no step.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Arrival(AtomicU64);

impl Arrival {
    pub(crate) fn new() -> Self {
        Arrival(AtomicU64::new(0))
    }

    /// The word at this moment.
    #[cfg(not(loom))]
    #[inline]
    fn load_latest(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// The newest word, by an operation that changes nothing: with a mere load, loom would also try never seeing
    /// anything new, forever.
    #[cfg(loom)]
    fn load_latest(&self) -> u64 {
        self.0.fetch_or(0, loom::sync::atomic::Ordering::Acquire)
    }

    /// Arrives at a step, unless it was closed.
    #[inline]
    pub(crate) fn arrive(&self, step: u64) -> Result<(), Closed> {
        match self.0.compare_exchange(step - 1, step, SeqCst, SeqCst) {
            Ok(_) => Ok(()),
            Err(found) => Err(closed(found).unwrap_or(Closed::Failed)),
        }
    }

    /// Arrives at the step after one at which all were, where nothing can go wrong any more.
    #[inline]
    pub(crate) fn finish(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// Whether it is closed, wherever it stands.
    pub(crate) fn closed(&self) -> Option<Closed> {
        closed(self.0.load(SeqCst))
    }

    /// Closes it, unless it is closed already.
    pub(crate) fn close(&self, why: Closed) {
        self.close_below(STEP, why);
    }

    /// Closes it where it has not reached a step. Whether it never will.
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

/// GroupSpec that meet.
pub(crate) trait Arrivals {
    /// How many there are.
    fn len(&self) -> usize;

    /// How far one of them has come.
    fn of(&self, member: usize) -> &Arrival;

    /// One of them arrives at a step, unless it was closed.
    #[inline]
    fn arrive(&self, member: usize, step: u64) -> Result<(), Closed> {
        self.of(member).arrive(step)
    }

    /// Looks whether all have reached a step. `there` is how many were seen to be there, for the next look.
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

    /// Whether all have finished, after a step at which all have arrived; as [`look`](Self::look), but a closed word
    /// counts by its number alone, since its member is still at work.
    #[inline]
    fn have_finished(&self, step: u64, arrived: &mut usize) -> bool {
        while *arrived < self.len() && self.of(*arrived).load_latest() & STEP >= step {
            *arrived += 1;
        }
        *arrived == self.len()
    }

    /// Looks for a member that will never reach a step, among all of them.
    fn never_arriving(&self, step: u64) -> Option<(usize, Closed)> {
        (0..self.len()).find_map(|member| {
            let state = self.of(member).0.load(SeqCst);
            closed(state).filter(|_| state & STEP < step).map(|why| (member, why))
        })
    }

    /// Closes all that have not reached a step. Gives those that never will; none where all came in the meantime.
    fn give_up(&self, step: u64) -> Vec<usize> {
        (0..self.len()).filter(|member| self.of(*member).close_below(step, Closed::TimedOut)).collect()
    }
}
