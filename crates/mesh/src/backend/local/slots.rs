//! A slot per thread, with the step that it has reached and the call that it announces.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::arrival::{Arrival, Arrivals};

#[derive(Debug)]
pub(crate) struct Slots(Box<[Slot]>);

/// One member's slot, on cache lines that no other member writes to: neighbouring lines are fetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    arrival: Arrival,
    /// The signature that the member announces, by parity of the call.
    announced: [[AtomicU64; 2]; 2],
}

impl Slots {
    pub(crate) fn new(members: usize) -> Self {
        let slot = |_| Slot {
            arrival: Arrival::new(),
            announced: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
        };
        Slots((0..members).map(slot).collect())
    }

    /// Announces a member's signature of a call, before it arrives.
    ///
    /// There are two copies, used in turn: a member that still reads the last call's has not arrived at this call, and
    /// no member gets to the next call, which reuses the copy, before it has.
    #[inline]
    pub(crate) fn announce(&self, member: usize, call: u64, words: [u64; 2]) {
        let slots = &self.0[member].announced[(call & 1) as usize];
        // The arrival that follows publishes them.
        slots[0].store(words[0], Relaxed);
        slots[1].store(words[1], Relaxed);
    }

    /// Returns the signature of a member that has arrived at a call.
    #[inline]
    pub(crate) fn announced(&self, member: usize, call: u64) -> [u64; 2] {
        let slots = &self.0[member].announced[(call & 1) as usize];
        [slots[0].load(Relaxed), slots[1].load(Relaxed)]
    }
}

impl Arrivals for Slots {
    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn of(&self, member: usize) -> &Arrival {
        &self.0[member].arrival
    }
}

#[cfg(all(test, loom))]
mod with_loom {
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    use super::{
        super::arrival::{Closed, StepState},
        *,
    };

    /// Memory that a member lends.
    struct Lent(UnsafeCell<u64>);
    // SAFETY: loom checks that no two threads access it at once.
    unsafe impl Sync for Lent {}
    // SAFETY: as for `Sync`.
    unsafe impl Send for Lent {}

    /// Runs one member's call: lend, arrive, wait or give up, read what the others lent, finish, take back. Returns
    /// whether it succeeded.
    fn take_part(slots: &Slots, lent: &[Lent], member: usize, hasty: bool) -> bool {
        lent[member].0.with_mut(|it| unsafe { *it = 7 });
        slots.announce(member, 1, [member as u64, 1]);
        if slots.arrive(member, 1).is_err() {
            return false;
        }
        let mut arrived = 0;
        loop {
            match slots.step_state(1, &mut arrived) {
                StepState::AllArrived => break,
                StepState::NeverArrives(..) => return take_back(lent, member, false),
                StepState::Waiting if hasty => {
                    if !slots.give_up(1).is_empty() {
                        return take_back(lent, member, false);
                    }
                    thread::yield_now();
                }
                StepState::Waiting => thread::yield_now(),
            }
        }
        for other in 0..slots.len() {
            assert_eq!(slots.announced(other, 1), [other as u64, 1]);
            lent[other].0.with(|it| assert_eq!(unsafe { *it }, 7));
        }
        slots.of(member).finish();
        let mut arrived = 0;
        while !slots.have_finished(2, &mut arrived) {
            thread::yield_now();
        }
        take_back(lent, member, true)
    }

    /// Takes back lent memory, which no member may be reading.
    fn take_back(lent: &[Lent], member: usize, success: bool) -> bool {
        lent[member].0.with_mut(|it| unsafe { *it = 0 });
        success
    }

    fn run_members(hasty: &'static [bool]) {
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
            loom::model(move || run_members(hasty));
        }
        // In every order with one preemption; with more it takes minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(1);
        model.check(|| run_members(&[true, false, false]));
    }

    /// Another thread of a member closes its slot at any point of the call, as `Communicator::poison` may.
    fn close_during_a_call() {
        let slots = Arc::new(Slots::new(2));
        let lent: Arc<Vec<Lent>> = Arc::new((0..2).map(|_| Lent(UnsafeCell::new(0))).collect());
        let (other, others, closing) = (slots.clone(), lent.clone(), slots.clone());
        let member = thread::spawn(move || take_part(&other, &others, 1, false));
        let closer = thread::spawn(move || closing.of(1).close(Closed::Failed));
        let first = take_part(&slots, &lent, 0, false);
        assert_eq!(member.join().unwrap(), first, "one succeeded and one did not");
        closer.join().unwrap();
    }

    #[test]
    fn a_slot_closed_during_a_call_changes_nothing_for_members_that_have_arrived() {
        // In every order with two preemptions; with more it takes minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(close_during_a_call);
    }

    #[test]
    fn a_member_that_leaves_fails_the_others_or_had_arrived() {
        loom::model(|| {
            let slots = Arc::new(Slots::new(2));
            let other = slots.clone();
            let leaver = thread::spawn(move || {
                let arrived = other.arrive(1, 1).is_ok();
                other.of(1).close(Closed::Left);
                arrived
            });
            slots.arrive(0, 1).unwrap();
            let mut arrived = 0;
            let seen = loop {
                match slots.step_state(1, &mut arrived) {
                    StepState::Waiting => thread::yield_now(),
                    seen => break seen,
                }
            };
            assert_eq!((seen, leaver.join().unwrap()), (StepState::AllArrived, true));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod test {
    use super::{
        super::arrival::{Closed, StepState},
        *,
    };

    #[test]
    fn a_slot_closed_below_a_step_never_reaches_it_and_one_that_had_arrived_counts() {
        let slots = Slots::new(3);
        slots.arrive(0, 1).unwrap();
        slots.arrive(1, 1).unwrap();
        slots.of(1).close(Closed::Left);
        assert_eq!(slots.step_state(1, &mut 0), StepState::Waiting);
        assert_eq!(slots.never_arriving(1), None);
        assert_eq!(slots.give_up(1), [2]);
        assert_eq!(slots.arrive(2, 1), Err(Closed::TimedOut));
        assert_eq!(slots.step_state(1, &mut 0), StepState::NeverArrives(2, Closed::TimedOut));
        assert_eq!(slots.never_arriving(2), Some((1, Closed::Left)));
    }

    #[test]
    fn a_member_that_arrived_meanwhile_is_not_given_up() {
        let slots = Slots::new(2);
        slots.arrive(0, 1).unwrap();
        slots.arrive(1, 1).unwrap();
        assert!(slots.give_up(1).is_empty());
        assert_eq!(slots.step_state(1, &mut 0), StepState::AllArrived);
    }
}
