use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ONE_AT_A_TIME: LaneSpec = LaneSpec { depth: 1, most_items: None, may_hang: true, expected: None };

fn ms(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

fn run_of(answer: Answer) -> Chunk {
    match answer {
        Answer::Run(chunk) => chunk,
        other => panic!("a chunk was expected, not {other:?}"),
    }
}

#[test]
fn no_items_and_no_lanes_end_at_once() {
    let mut nothing = Run::new(0, &[ONE_AT_A_TIME], &Shares::Pulled, Settings::default());
    assert_eq!(nothing.outcome(), Some(&Outcome::Complete));
    assert_eq!(nothing.ask(0, ms(0)), Answer::Ended);
    let nobody = Run::new(5, &[], &Shares::Pulled, Settings::default());
    assert_eq!(nobody.outcome(), Some(&Outcome::NoLaneLeft));
}

#[test]
fn a_fixed_split_hands_out_exactly_its_shares() {
    let lanes = [ONE_AT_A_TIME; 3];
    let mut run = Run::new(10, &lanes, &Shares::Fixed(crate::equal(10, 3)), Settings::default());
    let items: Vec<_> = (0..3).map(|lane| run_of(run.ask(lane, ms(0))).items).collect();
    assert_eq!(items, [0..4, 4..7, 7..10]);
}

#[test]
fn a_share_that_does_not_fit_at_once_stays_its_lanes_own() {
    let settings = Settings { most_items: Some(3), ..Settings::default() };
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Fixed(crate::equal(10, 2)), settings);
    for items in [0..3, 3..5] {
        let chunk = run_of(run.ask(0, ms(0)));
        assert_eq!(chunk.items, items);
        run.finished(chunk.id, ms(1));
    }
    assert!(matches!(run.ask(0, ms(1)), Answer::Wait { .. }), "the rest is the other lane's");
    assert_eq!(run_of(run.ask(1, ms(1))).items, 5..8);
}

#[test]
fn a_first_result_wins_and_the_other_is_dropped() {
    let mut run = Run::new(4, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    let slow = run_of(run.ask(0, ms(0)));
    while !run.is_drained() {
        let chunk = run_of(run.ask(1, ms(1)));
        assert_eq!(run.finished(chunk.id, ms(1)), Verdict::Accept);
    }
    let rescue = run_of(run.ask(1, ms(3)));
    assert_eq!((rescue.items.clone(), rescue.purpose), (slow.items.clone(), Purpose::Rescue));
    assert_eq!(run.ask(0, ms(3)), Answer::Wait { until: None }, "it has its hands full still");
    assert_eq!(run.finished(rescue.id, ms(1)), Verdict::Accept);
    assert_eq!(run.outcome(), Some(&Outcome::Complete));
    assert_eq!(run.finished(slow.id, ms(100)), Verdict::Drop);
    assert_eq!((run.tallies()[1].rescues, run.tallies()[0].dropped), (1, 1));
}

#[test]
fn nobody_rescues_what_does_not_fit_it() {
    let small = LaneSpec { most_items: Some(2), ..ONE_AT_A_TIME };
    let shares = Shares::Fixed(vec![8, 0]);
    let mut run = Run::new(8, &[ONE_AT_A_TIME, small], &shares, Settings::default());
    run.adaptive = true;
    let slow = run_of(run.ask(0, ms(0)));
    assert_eq!(slow.items, 0..8);
    assert!(matches!(run.ask(1, ms(1)), Answer::Wait { .. }));
}

#[test]
fn what_does_not_fit_is_halved_on_its_lane() {
    let mut run = Run::new(8, &[ONE_AT_A_TIME], &Shares::Fixed(vec![8]), Settings::default());
    for items in [0..8, 0..4] {
        let chunk = run_of(run.ask(0, ms(0)));
        assert_eq!(chunk.items, items);
        run.failed(chunk.id, Failure::TooLarge, ms(0));
    }
    let mut seen = Vec::new();
    while run.outcome().is_none() {
        let chunk = run_of(run.ask(0, ms(1)));
        assert!(len(&chunk.items) <= 2);
        seen.push(chunk.items.clone());
        run.finished(chunk.id, ms(1));
    }
    seen.sort_by_key(|items| items.start);
    assert_eq!(seen, [0..2, 2..4, 4..6, 6..8]);
}

#[test]
fn a_lane_that_failed_comes_back_after_a_canary_and_its_next_quarantine_is_longer() {
    let mut run = Run::new(1_000, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    let lost = run_of(run.ask(0, ms(0)));
    run.failed(lost.id, Failure::Untrusted, ms(10));
    assert_eq!(run.state(0), State::Quarantined { until: ms(110) });
    assert_eq!(run.ask(0, ms(50)), Answer::Wait { until: Some(ms(110)) });
    let canary = run_of(run.ask(0, ms(110)));
    assert_eq!(canary.purpose, Purpose::Canary);
    run.failed(canary.id, Failure::Untrusted, ms(120));
    assert_eq!(run.state(0), State::Quarantined { until: ms(320) });
    let canary = run_of(run.ask(0, ms(320)));
    run.finished(canary.id, ms(1));
    assert_eq!(run.state(0), State::Healthy);
    assert_eq!(run.finished(lost.id, ms(1)), Verdict::Drop, "what was given up on is not accepted later");
}

#[test]
fn the_last_lane_to_fail_ends_the_run_and_a_task_error_does_at_once() {
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    for lane in 0..2 {
        let chunk = run_of(run.ask(lane, ms(0)));
        run.failed(chunk.id, Failure::Untrusted, ms(0));
    }
    assert_eq!(run.outcome(), Some(&Outcome::NoLaneLeft));
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    let chunk = run_of(run.ask(1, ms(0)));
    run.failed(chunk.id, Failure::Task, ms(0));
    assert_eq!(run.outcome(), Some(&Outcome::TaskFailed(0..1)));
}

#[test]
fn a_chunk_that_takes_many_times_its_estimate_has_hung() {
    let mut run = Run::new(1_000, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    let first = run_of(run.ask(0, ms(0)));
    assert_eq!(run.next_deadline(), None, "nothing is known yet");
    run.finished(first.id, ms(1));
    let second = run_of(run.ask(0, ms(1)));
    let deadline = run.next_deadline().unwrap();
    assert!(run.overdue(deadline - ms(1)).is_empty());
    assert_eq!(run.overdue(deadline), [second.id]);
    assert!(matches!(run.state(0), State::Quarantined { .. }));
    assert_eq!(run_of(run.ask(1, deadline)).items.start, second.items.start, "somebody else does it");
}

#[test]
fn a_chunk_that_hangs_after_it_was_rescued_is_found_out_too() {
    let mut run = Run::open(&[ONE_AT_A_TIME; 2], Settings::default());
    run.grow(3);
    for lane in 0..2 {
        let chunk = run_of(run.ask(lane, ms(0)));
        run.finished(chunk.id, ms(1));
    }
    let hung = run_of(run.ask(0, ms(1)));
    let rescue = run_of(run.ask(1, ms(20)));
    assert_eq!((&rescue.items, rescue.purpose), (&hung.items, Purpose::Rescue));
    assert_eq!(run.finished(rescue.id, ms(1)), Verdict::Accept);
    let deadline = run.next_deadline().unwrap();
    assert_eq!(run.overdue(deadline), [hung.id]);
    assert!(matches!(run.state(0), State::Quarantined { .. }));
    assert!(run.is_drained(), "its items are done: nothing is given back");
    run.lane_failed(1, Failure::Unable, deadline);
    assert_eq!(run.outcome(), Some(&Outcome::NoLaneLeft), "nobody waits for a lane that hangs");
}

#[test]
fn the_first_chunk_of_a_lane_has_hung_when_it_takes_a_thousand_times_what_others_take() {
    let mut run = Run::new(1_000, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    let stranger = run_of(run.ask(0, ms(0)));
    assert_eq!(run.next_deadline(), None, "nobody has shown anything");
    let known = run_of(run.ask(1, ms(0)));
    run.finished(known.id, ms(10));
    assert_eq!(run.next_deadline(), Some(ms(10_000)));
    assert!(run.overdue(ms(9_999)).is_empty());
    assert_eq!(run.overdue(ms(10_000)), [stranger.id]);
}

#[test]
fn a_lane_that_was_retired_does_not_come_back_because_another_hand_of_it_failed() {
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    run.lane_failed(0, Failure::Unable, ms(0));
    run.lane_failed(0, Failure::Untrusted, ms(0));
    assert_eq!((run.state(0), run.tallies()[0].quarantines), (State::Retired, 0));
}

#[test]
fn every_error_of_a_device_decides_what_comes_next() {
    use evener_device::{
        Device, Kernel,
        testing::{Failure as Injected, Fault, Faults},
    };
    let expected = |injected| match injected {
        Injected::OutOfMemory => Failure::TooLarge,
        Injected::Lost | Injected::TimedOut | Injected::BadResult => Failure::Untrusted,
        Injected::WillNotCompile | Injected::Unsupported => Failure::Unable,
        Injected::Task => Failure::Task,
    };
    for injected in Injected::ALL {
        let (device, faults) = Faults::wrap(&Device::cpu());
        faults.at(1, Fault::Fail(injected));
        let error = device.compile(&Kernel::new("nothing").rust(|_| Ok(()))).unwrap_err();
        assert_eq!(Failure::from(&error), expected(injected), "{error}");
    }
}

/// What happens next, in a run that a property test drives.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Ask { lane: usize },
    End { which: usize, took: u64 },
    Fail { which: usize, failure: Failure },
    Pass { milliseconds: u64 },
}

fn happenings() -> impl proptest::strategy::Strategy<Value = Vec<Happening>> {
    let failure = prop_oneof![
        3 => Just(Failure::Untrusted),
        3 => Just(Failure::TooLarge),
        1 => Just(Failure::Unable),
    ];
    let happening = prop_oneof![
        8 => (0..6usize).prop_map(|lane| Happening::Ask { lane }),
        6 => (any::<usize>(), 0..5_000u64).prop_map(|(which, took)| Happening::End { which, took }),
        1 => (any::<usize>(), failure).prop_map(|(which, failure)| Happening::Fail { which, failure }),
        2 => (0..20_000u64).prop_map(|milliseconds| Happening::Pass { milliseconds }),
    ];
    prop::collection::vec(happening, 0..400)
}

/// Drives a run through the happenings, checking what must hold at every step. Gives every answer, as text.
fn drive(items: u64, depths: &[usize], fixed: bool, happenings: &[Happening]) -> (Run, Vec<String>) {
    let lanes: Vec<_> = depths
        .iter()
        .map(|&depth| LaneSpec { depth, most_items: None, may_hang: true, expected: None })
        .collect();
    let strategy = if fixed { Shares::Fixed(crate::equal(items, lanes.len())) } else { Shares::Pulled };
    let mut run = Run::new(items, &lanes, &strategy, Settings::default());
    let mut now = ms(0);
    let mut running: Vec<Chunk> = Vec::new();
    let mut accepted = BTreeMap::new();
    let mut answers = Vec::new();
    for &happening in happenings {
        match happening {
            Happening::Ask { lane } => {
                let lane = lane % lanes.len();
                let answer = run.ask(lane, now);
                answers.push(format!("{answer:?}"));
                if let Answer::Run(chunk) = answer {
                    assert!(chunk.items.start < chunk.items.end && chunk.items.end <= items);
                    assert_eq!(chunk.lane, lane);
                    running.push(chunk);
                    let held = running.iter().filter(|chunk| chunk.lane == lane).count();
                    assert!(held <= depths[lane], "lane {lane} has {held} chunks in hand");
                }
            }
            Happening::End { which, took } if !running.is_empty() => {
                let chunk = running.swap_remove(which % running.len());
                if run.finished(chunk.id, ms(took)) == Verdict::Accept {
                    let before = accepted.insert(chunk.items.start, chunk.items.end);
                    assert_eq!(before, None, "accepted twice: {:?}", chunk.items);
                }
            }
            Happening::Fail { which, failure } if !running.is_empty() => {
                let chunk = running.swap_remove(which % running.len());
                run.failed(chunk.id, failure, now);
                // A lane that is set aside begins afresh.
                if run.state(chunk.lane) != State::Healthy {
                    running.retain(|other| other.lane != chunk.lane);
                }
            }
            Happening::Pass { milliseconds } => {
                now += ms(milliseconds);
                for hung in run.overdue(now) {
                    if let Some(lane) = running.iter().find(|chunk| chunk.id == hung).map(|chunk| chunk.lane)
                    {
                        running.retain(|chunk| chunk.lane != lane);
                    }
                }
            }
            _ => {}
        }
    }
    // From here on nothing fails: while a lane is healthy, the run must come to its end.
    let mut rounds = 0;
    while run.outcome().is_none() {
        now += ms(200);
        for lane in 0..lanes.len() {
            while let Answer::Run(chunk) = run.ask(lane, now) {
                running.push(chunk);
            }
        }
        for chunk in std::mem::take(&mut running) {
            if run.finished(chunk.id, ms(1)) == Verdict::Accept {
                assert_eq!(accepted.insert(chunk.items.start, chunk.items.end), None);
            }
        }
        rounds += 1;
        assert!(rounds < 100_000, "no progress: {run:?}");
    }
    if run.outcome() == Some(&Outcome::Complete) {
        let mut next = 0;
        for (start, end) in accepted {
            assert_eq!(start, next, "items {next}..{start} are missing");
            next = end;
        }
        assert_eq!(next, items);
    }
    (run, answers)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_every_item_is_accepted_once_and_no_lane_has_too_much(
        items in 1..5_000u64,
        depths in prop::collection::vec(1..3usize, 1..6),
        fixed in any::<bool>(),
        happenings in happenings(),
    ) {
        let (run, _) = drive(items, &depths, fixed, &happenings);
        let counted: u64 = run.tallies().iter().map(|tally| tally.items).sum();
        prop_assert_eq!(counted, run.done());
    }

    #[test]
    fn the_answers_are_a_function_of_the_events_alone(
        items in 1..5_000u64,
        depths in prop::collection::vec(1..3usize, 1..6),
        happenings in happenings(),
    ) {
        prop_assert_eq!(drive(items, &depths, false, &happenings).1, drive(items, &depths, false, &happenings).1);
    }
}
