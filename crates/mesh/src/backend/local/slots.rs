//! Where members meet: one slot each, with the number of the last step that the member has reached.
//!
//! # The protocol
//! Members go through the same steps, 1, 2, 3 …. A member *arrives* at a step by raising the number in its own slot
//! from the step before. All are there once every slot has reached the step.
//!
//! A slot can be *closed*, with a reason, by its member when it leaves or by another that has waited too long. The
//! number and the mark of being closed are one word, and both arriving and closing are a compare-and-exchange on it.
//! So a slot that was closed below a step never reaches it, and one that has reached the step can no longer be
//! closed below it.
//!
//! From that follows what everything else rests on: **either every member sees all slots reach a step, or none
//! does.** A member gives up a step only when it sees, or makes, a slot that is closed below it; then no member can
//! ever see all of them there. Whoever lends memory at a step may therefore take it back after giving up: nobody
//! looks at it before all are there.
//!
//! loom tries it in every order in `tests/loom`.

#[cfg(loom)]
use loom::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
#[cfg(not(loom))]
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// Set once a slot is closed.
const CLOSED: u64 = 1 << 63;
/// Where the reason begins.
const REASON: u32 = 60;
/// What is left for the number of the step.
const STEP: u64 = (1 << REASON) - 1;

/// Why a slot is closed.
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

/// The slots of all members.
#[derive(Debug)]
pub(crate) struct Slots(Box<[Slot]>);

/// One member's, on cache lines that nobody else writes to: neighbouring lines are fetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    state: AtomicU64,
    /// What the member says with its arrival, by the parity of the call.
    says: [[AtomicU64; 2]; 2],
}

impl Slot {
    /// The state at this moment.
    #[cfg(not(loom))]
    #[inline]
    fn seen(&self) -> u64 {
        self.state.load(SeqCst)
    }

    /// The newest state, by an operation that changes nothing: with a mere load, loom would also try never seeing
    /// anything new, forever.
    #[cfg(loom)]
    fn seen(&self) -> u64 {
        self.state.fetch_or(0, loom::sync::atomic::Ordering::Acquire)
    }
}

/// What there is to see at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// All are there.
    All,
    /// This member will never come.
    Never(usize, Closed),
    /// Somebody is yet to come.
    Waiting,
}

impl Slots {
    pub(crate) fn new(members: usize) -> Self {
        let slot = |_| Slot {
            state: AtomicU64::new(0),
            says: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
        };
        Slots((0..members).map(slot).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Writes what the member says at a call. To be heard by whoever sees it arrive.
    ///
    /// There are two places, used in turn: a member that is still reading what was said at the last call has not
    /// arrived at this one, and nobody gets to the next call, where the place is used again, before it has.
    #[inline]
    pub(crate) fn say(&self, member: usize, call: u64, words: [u64; 2]) {
        let places = &self.0[member].says[(call & 1) as usize];
        // Arriving, which comes next, publishes them.
        places[0].store(words[0], Relaxed);
        places[1].store(words[1], Relaxed);
    }

    /// What a member said at a call at which it has arrived.
    #[inline]
    pub(crate) fn said(&self, member: usize, call: u64) -> [u64; 2] {
        let places = &self.0[member].says[(call & 1) as usize];
        [places[0].load(Relaxed), places[1].load(Relaxed)]
    }

    /// Arrives at a step, unless the slot was closed.
    #[inline]
    pub(crate) fn arrive(&self, member: usize, step: u64) -> Result<(), Closed> {
        match self.0[member].state.compare_exchange(step - 1, step, SeqCst, SeqCst) {
            Ok(_) => Ok(()),
            Err(found) => Err(closed(found).unwrap_or(Closed::Failed)),
        }
    }

    /// Arrives at the step after one at which all were, where nothing can go wrong any more.
    #[inline]
    pub(crate) fn finish(&self, member: usize) {
        self.0[member].state.fetch_add(1, SeqCst);
    }

    /// Looks whether all have reached a step. `there` is how many were seen to be there, for the next look.
    #[inline]
    pub(crate) fn look(&self, step: u64, there: &mut usize) -> Look {
        while let Some(slot) = self.0.get(*there) {
            let state = slot.seen();
            if state & STEP < step {
                return match closed(state) {
                    Some(why) => Look::Never(*there, why),
                    None => Look::Waiting,
                };
            }
            *there += 1;
        }
        Look::All
    }

    /// Looks for a member that will never reach a step, among all of them.
    pub(crate) fn never(&self, step: u64) -> Option<(usize, Closed)> {
        self.0.iter().enumerate().find_map(|(member, slot)| {
            let state = slot.state.load(SeqCst);
            closed(state).filter(|_| state & STEP < step).map(|why| (member, why))
        })
    }

    /// Whether a member's slot is closed, wherever it stands.
    pub(crate) fn closed(&self, member: usize) -> Option<Closed> {
        closed(self.0[member].state.load(SeqCst))
    }

    /// Closes the slots of all that have not reached a step. Gives those that never will; none where all came in the
    /// meantime.
    pub(crate) fn give_up(&self, step: u64) -> Vec<usize> {
        let mut missing = Vec::new();
        for member in 0..self.len() {
            if self.close_below(member, step, Closed::TimedOut) {
                missing.push(member);
            }
        }
        missing
    }

    /// Closes a member's slot, unless it is closed already.
    pub(crate) fn close(&self, member: usize, why: Closed) {
        self.close_below(member, STEP, why);
    }

    /// Closes a slot that has not reached a step. Whether it never will.
    pub(crate) fn close_below(&self, member: usize, step: u64, why: Closed) -> bool {
        let state = &self.0[member].state;
        let mut found = state.load(SeqCst);
        loop {
            if found & STEP >= step {
                return false;
            }
            if closed(found).is_some() {
                return true;
            }
            match state.compare_exchange(found, found | CLOSED | (why as u64) << REASON, SeqCst, SeqCst) {
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

#[cfg(all(test, loom))]
mod with_loom {
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    use super::*;

    /// What members lend one another.
    struct Lent(UnsafeCell<u64>);
    // SAFETY: this is what loom is to find out.
    unsafe impl Sync for Lent {}
    // SAFETY: the same.
    unsafe impl Send for Lent {}

    /// One member's part in a call: lend, arrive, wait or give up, read what the others lent, finish, take back.
    /// Whether it succeeded.
    fn take_part(slots: &Slots, lent: &[Lent], member: usize, hasty: bool) -> bool {
        lent[member].0.with_mut(|it| unsafe { *it = 7 });
        slots.say(member, 1, [member as u64, 1]);
        if slots.arrive(member, 1).is_err() {
            return false;
        }
        let mut there = 0;
        loop {
            match slots.look(1, &mut there) {
                Look::All => break,
                Look::Never(..) => return take_back(lent, member, false),
                Look::Waiting if hasty => {
                    if !slots.give_up(1).is_empty() {
                        return take_back(lent, member, false);
                    }
                    thread::yield_now();
                }
                Look::Waiting => thread::yield_now(),
            }
        }
        for other in 0..slots.len() {
            assert_eq!(slots.said(other, 1), [other as u64, 1]);
            lent[other].0.with(|it| assert_eq!(unsafe { *it }, 7));
        }
        slots.finish(member);
        let mut there = 0;
        while slots.look(2, &mut there) != Look::All {
            thread::yield_now();
        }
        take_back(lent, member, true)
    }

    /// Takes back what was lent: nobody may be looking at it.
    fn take_back(lent: &[Lent], member: usize, success: bool) -> bool {
        lent[member].0.with_mut(|it| unsafe { *it = 0 });
        success
    }

    fn meet(hasty: &'static [bool]) {
        let slots = Arc::new(Slots::new(hasty.len()));
        let lent: Arc<Vec<Lent>> = Arc::new(hasty.iter().map(|_| Lent(UnsafeCell::new(0))).collect());
        let threads: Vec<_> = (1..hasty.len())
            .map(|member| {
                let (slots, lent) = (slots.clone(), lent.clone());
                thread::spawn(move || take_part(&slots, &lent, member, hasty[member]))
            })
            .collect();
        let first = take_part(&slots, &lent, 0, hasty[0]);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), first, "some succeeded and some did not");
        }
    }

    #[test]
    fn all_succeed_or_none_does_and_nothing_lent_is_touched_after_it_was_taken_back() {
        for hasty in [&[true, false][..], &[true, true]] {
            loom::model(move || meet(hasty));
        }
        // In every order with one preemption; with more it takes minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(1);
        model.check(|| meet(&[true, false, false]));
    }

    #[test]
    fn one_that_leaves_fails_the_others_or_has_been_there() {
        loom::model(|| {
            let slots = Arc::new(Slots::new(2));
            let other = slots.clone();
            let leaver = thread::spawn(move || {
                let there = other.arrive(1, 1).is_ok();
                other.close(1, Closed::Left);
                there
            });
            slots.arrive(0, 1).unwrap();
            let mut there = 0;
            let seen = loop {
                match slots.look(1, &mut there) {
                    Look::Waiting => thread::yield_now(),
                    seen => break seen,
                }
            };
            assert_eq!((seen, leaver.join().unwrap()), (Look::All, true));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod test {
    use super::*;

    #[test]
    fn a_slot_closed_below_a_step_never_reaches_it_and_one_that_was_there_counts() {
        let slots = Slots::new(3);
        slots.arrive(0, 1).unwrap();
        slots.arrive(1, 1).unwrap();
        slots.close(1, Closed::Left);
        assert_eq!(slots.look(1, &mut 0), Look::Waiting);
        assert_eq!(slots.never(1), None);
        assert_eq!(slots.give_up(1), [2]);
        assert_eq!(slots.arrive(2, 1), Err(Closed::TimedOut));
        assert_eq!(slots.look(1, &mut 0), Look::Never(2, Closed::TimedOut));
        assert_eq!(slots.never(2), Some((1, Closed::Left)));
    }

    #[test]
    fn nobody_is_given_up_who_came_in_the_meantime() {
        let slots = Slots::new(2);
        slots.arrive(0, 1).unwrap();
        slots.arrive(1, 1).unwrap();
        assert!(slots.give_up(1).is_empty());
        assert_eq!(slots.look(1, &mut 0), Look::All);
    }
}
