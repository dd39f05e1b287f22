//! The protocol of the slots against a model, with actions in random order, and the cores of a barrier.

use evener_device::Device;
use proptest::prelude::*;

use super::{
    arrival::{Arrivals, Closed, StepState},
    new_barrier,
    slots::Slots,
};

const MEMBERS: usize = 3;

/// The next action of a member, or of another thread of it.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// The member arrives at the step after the last one that it has seen all arrive at.
    Arrive(usize),
    /// The member polls the step that it has arrived at.
    Look(usize),
    /// The member times out, and gives up members that have not arrived.
    GiveUp(usize),
    /// The member's slot is closed, at any point.
    Close(usize),
}

fn action() -> impl Strategy<Value = Action> {
    (0..MEMBERS, 0..10u8).prop_map(|(member, kind)| match kind {
        0..4 => Action::Arrive(member),
        4..8 => Action::Look(member),
        8 => Action::GiveUp(member),
        _ => Action::Close(member),
    })
}

/// What a member has seen of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    All,
    Failed,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// It must never happen that one member sees all arrive at a step and another sees the step fail, that a closed
    /// slot arrives, or that a failed step is reached later.
    #[test]
    fn no_step_succeeds_for_one_member_and_fails_for_another(actions in prop::collection::vec(action(), 1..80)) {
        let slots = Slots::new(MEMBERS);
        // By member: its step, whether it knows the outcome, and whether it has left.
        let mut at = [0u64; MEMBERS];
        let mut settled = [true; MEMBERS];
        let mut gone = [false; MEMBERS];
        let mut verdicts: Vec<Option<Verdict>> = vec![None; 100];
        let mut decide = |step: u64, verdict: Verdict, settled: &mut bool, gone: &mut bool| {
            *settled = true;
            *gone |= verdict == Verdict::Failed;
            let before = verdicts[step as usize].replace(verdict);
            prop_assert!(before.is_none_or(|it| it == verdict), "step {step}: {before:?}, and then {verdict:?}");
            Ok(())
        };
        for action in actions {
            match action {
                Action::Arrive(member) if settled[member] && !gone[member] => {
                    let closed = slots.of(member).closed().is_some();
                    let arrived = slots.arrive(member, at[member] + 1);
                    prop_assert_eq!(arrived.is_err(), closed, "a slot arrives unless it is closed");
                    at[member] += 1;
                    match arrived {
                        Ok(()) => settled[member] = false,
                        Err(_) => decide(at[member], Verdict::Failed, &mut settled[member], &mut gone[member])?,
                    }
                }
                Action::Look(member) if !settled[member] => match slots.step_state(at[member], &mut 0) {
                    StepState::AllArrived => decide(at[member], Verdict::All, &mut settled[member], &mut gone[member])?,
                    StepState::NeverArrives(other, _) => {
                        prop_assert!(slots.of(other).closed().is_some() && at[other] <= at[member]);
                        decide(at[member], Verdict::Failed, &mut settled[member], &mut gone[member])?;
                    }
                    StepState::Waiting => {}
                },
                Action::GiveUp(member) if !settled[member] => {
                    let missing = slots.give_up(at[member]);
                    prop_assert!(!missing.contains(&member), "it has arrived itself");
                    let verdict = if missing.is_empty() { Verdict::All } else { Verdict::Failed };
                    decide(at[member], verdict, &mut settled[member], &mut gone[member])?;
                }
                Action::Close(member) => slots.of(member).close(Closed::Left),
                _ => {}
            }
        }
    }
}

#[test]
fn a_barrier_counts_all_the_cores_if_a_bound_thread_creates_it() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let part = Device::cpu().split(&[1]).unwrap().remove(0);
    let created = std::thread::spawn(move || {
        part.bind_thread(0);
        [cores, cores + 1].map(|members| new_barrier(members).oversubscribed)
    });
    assert_eq!(created.join().unwrap(), [false, true]);
}
