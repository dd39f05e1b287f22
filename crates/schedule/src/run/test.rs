use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A lane with one chunk in flight.
const ONE_AT_A_TIME: LaneSpec = LaneSpec::UNKNOWN;

fn ms(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

fn run_of(answer: Answer) -> LaneChunk {
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
    let without_lanes = Run::new(5, &[], &Shares::Pulled, Settings::default());
    assert_eq!(without_lanes.outcome(), Some(&Outcome::NoLaneLeft));
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
    let settings = Settings { max_items: Some(3), ..Settings::default() };
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Fixed(crate::equal(10, 2)), settings);
    for items in [0..3, 3..5] {
        let chunk = run_of(run.ask(0, ms(0)));
        assert_eq!(chunk.items, items);
        run.chunk_ended(chunk.id, ms(1), ms(1));
    }
    assert!(matches!(run.ask(0, ms(1)), Answer::Wait { .. }), "the rest is the other lane's");
    assert_eq!(run_of(run.ask(1, ms(1))).items, 5..8);
}

#[test]
fn a_straggler_is_copied_from_its_end_and_each_item_is_accepted_once() {
    let shares = Shares::Fixed(vec![8, 1]);
    let mut run = Run::new(9, &[ONE_AT_A_TIME; 2], &shares, Settings::default());
    let slow = run_of(run.ask(0, ms(0)));
    let quick = run_of(run.ask(1, ms(0)));
    run.adaptive = true;
    assert_eq!((slow.items.clone(), quick.items.clone()), (0..8, 8..9));
    assert_eq!(run.chunk_ended(quick.id, ms(1), ms(1)), Verdict::Accept);
    assert!(matches!(run.ask(1, ms(2)), Answer::Wait { .. }), "it should take eight milliseconds");
    let copy = run_of(run.ask(1, ms(20)));
    assert_eq!((copy.items.clone(), copy.purpose), (4..8, Purpose::Speculative));
    assert_eq!(run.chunk_ended(copy.id, ms(4), ms(24)), Verdict::Accept);
    let copy = run_of(run.ask(1, ms(24)));
    assert_eq!(copy.items, 2..4);
    let part = Verdict::AcceptPart(std::iter::once(0..4).collect());
    assert_eq!(run.chunk_ended(slow.id, ms(26), ms(26)), part);
    assert_eq!(run.outcome(), Some(&Outcome::Complete));
    assert_eq!(run.chunk_ended(copy.id, ms(4), ms(28)), Verdict::Drop);
    assert_eq!((run.tallies()[1].speculative, run.tallies()[1].dropped), (1, 1));
}

#[test]
fn as_many_items_as_lanes_are_each_done_once() {
    for lanes in [2, 16] {
        let mut run =
            Run::new(lanes as u64, &vec![ONE_AT_A_TIME; lanes], &Shares::Pulled, Settings::default());
        let chunks: Vec<_> = (0..lanes).map(|lane| run_of(run.ask(lane, ms(0)))).collect();
        run.chunk_ended(chunks[0].id, ms(300), ms(300));
        for now in [300, 310, 350, 600] {
            assert!(
                matches!(run.ask(0, ms(now)), Answer::Wait { .. }),
                "the others take as long, by all that is known"
            );
        }
        assert_eq!(run_of(run.ask(0, ms(700))).purpose, Purpose::Speculative, "and now they are late");
    }
}

#[test]
fn a_speculative_copy_has_no_more_items_than_fit_its_lane() {
    let small = LaneSpec { max_items: Some(2), ..ONE_AT_A_TIME };
    let mut run = Run::new(9, &[ONE_AT_A_TIME, small], &Shares::Fixed(vec![8, 1]), Settings::default());
    let _slow = run_of(run.ask(0, ms(0)));
    let quick = run_of(run.ask(1, ms(0)));
    run.adaptive = true;
    run.chunk_ended(quick.id, ms(1), ms(1));
    assert_eq!(run_of(run.ask(1, ms(50))).items, 6..8);
}

#[test]
fn only_items_that_are_not_begun_are_stolen() {
    let plain = LaneSpec { divisible: true, may_hang: false, ..ONE_AT_A_TIME };
    let mut run = Run::new(64, &[plain; 2], &Shares::Fixed(vec![60, 4]), Settings::default());
    let long = run_of(run.ask(0, ms(0)));
    let short = run_of(run.ask(1, ms(0)));
    run.adaptive = true;
    run.chunk_ended(short.id, ms(4), ms(4));
    let Answer::Steal { from, fraction, .. } = run.ask(1, ms(4)) else {
        panic!("there is something to steal")
    };
    assert_eq!((from, fraction), (long.id, 0.5));
    let Answer::Run(stolen) = run.stolen(1, from, Some(32..60), ms(4)) else { panic!("it was stolen") };
    assert_eq!((stolen.items.clone(), stolen.purpose), (32..60, Purpose::Steal));
    assert_eq!(run.chunk_ended(long.id, ms(25), ms(25)), Verdict::Accept);
    assert_eq!(run.done(), 36);
    let Answer::Steal { from, .. } = run.ask(0, ms(25)) else { panic!("there is something to steal back") };
    assert_eq!(from, stolen.id);
    assert!(run.can_be_stolen_from(stolen.id) && !run.can_be_stolen_from(long.id));
    assert!(matches!(run.stolen(0, from, None, ms(25)), Answer::Wait { .. }), "all of it is begun");
    assert!(!run.can_be_stolen_from(stolen.id), "what its worker gives back goes to the run");
    assert!(
        matches!(run.ask(0, ms(500)), Answer::Wait { .. }),
        "plain code that others can steal from is not copied"
    );
    assert!(run.shrink(stolen.id, 40, ms(501)), "its worker gives back what it has not begun");
    assert_eq!(run.chunk_ended(stolen.id, ms(497), ms(501)), Verdict::Accept);
    assert_eq!(run_of(run.ask(0, ms(501))).items.start, 40);
}

#[test]
fn the_chunk_with_most_items_left_ends_last_and_a_lane_that_finds_nothing_waits_before_it_asks() {
    let plain = LaneSpec { divisible: true, may_hang: false, ..ONE_AT_A_TIME };
    let mut run = Run::new(64, &[plain; 3], &Shares::Fixed(vec![30, 30, 4]), Settings::default());
    let chunks: Vec<LaneChunk> = (0..3).map(|lane| run_of(run.ask(lane, ms(0)))).collect();
    run.adaptive = true;
    assert_eq!(run.min_steal_items(2), None, "it has something to do");
    run.chunk_ended(chunks[2].id, ms(4), ms(4));
    assert_eq!(run.min_steal_items(2), Some(2), "two items take it two milliseconds");
    assert!(run.found_nothing(2, ms(4)).unwrap() > ms(4));
    assert_eq!(run.found_nothing(2, ms(5)), None, "it has waited");
    run.note_begun(chunks[0].id, 25, ms(25));
    run.note_begun(chunks[1].id, 40, ms(25));
    let Answer::Steal { from, .. } = run.ask(2, ms(25)) else { panic!("there is something to steal") };
    assert_eq!(from, chunks[1].id, "the first has come further");
    assert!(matches!(run.stolen(2, from, Some(50..60), ms(25)), Answer::Run(_)));
    run.settings.chunk_limit = Some(ms(9));
    assert_eq!(run.min_steal_items(1), None, "the user's limit is for chunks");
}

#[test]
fn expensive_items_are_stolen_before_everything_is_handed_out() {
    let plain = LaneSpec { divisible: true, may_hang: false, ..ONE_AT_A_TIME };
    let mut run = Run::new(100_000, &[plain; 2], &Shares::Pulled, Settings::default());
    let next = |run: &mut Run, lane, now| match run.ask(lane, now) {
        Answer::Run(chunk) => chunk,
        other => panic!("{other:?}"),
    };
    // A microsecond for each item, so far.
    let first = [next(&mut run, 0, ms(0)), next(&mut run, 1, ms(0))];
    for chunk in &first {
        let took = Duration::from_micros(len(&chunk.items));
        run.chunk_ended(chunk.id, took, took);
    }
    let chunks = [next(&mut run, 0, ms(2)), next(&mut run, 1, ms(2))];
    let took = Duration::from_micros(len(&chunks[1].items));
    run.chunk_ended(chunks[1].id, took, ms(2) + took);
    // The first lane is at one item for 10 ms: with those behind it, it would be at them after everything else is done.
    let late = ms(22);
    run.note_begun(chunks[0].id, chunks[0].items.start + 10, ms(12));
    run.note_begun(chunks[0].id, chunks[0].items.start + 10, late);
    assert!(!run.is_drained() && run.may_steal(late));
    let Answer::Steal { from, .. } = run.ask(1, late) else { panic!("there is something to steal") };
    assert_eq!(from, chunks[0].id);
    // Where its worker has claimed all of them, it gives them back soon: the other lane does something else meanwhile.
    assert!(matches!(run.stolen(1, from, None, late), Answer::Run(chunk) if chunk.purpose == Purpose::Work));
    assert!(run.can_be_stolen_from(from));
    assert!(!run.may_steal(late), "it is not looked all the time");
}

#[test]
fn plain_code_gets_chunks_of_several_calls_and_the_users_limit_keeps_chunks_short() {
    let plain = LaneSpec { divisible: true, may_hang: false, ..ONE_AT_A_TIME };
    let settings = Settings { max_items: Some(2), ..Settings::default() };
    let mut run = Run::new(1_000_000, &[plain; 2], &Shares::Pulled, settings);
    let first = run_of(run.ask(0, ms(0)));
    assert!(len(&first.items) > 2 && first.at_once == 2, "{first:?}");
    run.limit(0, 1);
    run.chunk_ended(first.id, ms(1), ms(1));
    assert_eq!(run_of(run.ask(0, ms(1))).at_once, 1);
    let limited = Settings { chunk_limit: Some(ms(40)), ..settings };
    let mut run = Run::new(1_000_000, &[plain; 2], &Shares::Pulled, limited);
    assert_eq!(len(&run_of(run.ask(0, ms(0))).items), 2);
    let limited = Settings { chunk_limit: Some(ms(40)), ..Settings::default() };
    let expected = Some(Expected { seconds_per_item: 1e-3, overhead_seconds: None, largest: 1e6 });
    let known = LaneSpec { expected, ..plain };
    let mut run = Run::new(1_000_000, &[known; 2], &Shares::Pulled, limited);
    assert_eq!(len(&run_of(run.ask(0, ms(0))).items), 10, "a quarter of the limit");
}

#[test]
fn expensive_items_are_done_although_many_of_them_take_longer_than_the_users_limit() {
    // Each takes 20 ms: at most four of them are done in time.
    let settings = Settings { chunk_limit: Some(ms(100)), ..Settings::default() };
    for strategy in [Shares::Pulled, Shares::Fixed(vec![400])] {
        let plain = LaneSpec { divisible: true, may_hang: false, ..ONE_AT_A_TIME };
        let mut run = Run::new(400, &[plain], &strategy, settings);
        let mut now = ms(0);
        while run.outcome().is_none() {
            assert!(now < Duration::from_secs(60), "{run:?}");
            let Answer::Run(chunk) = run.ask(0, now) else {
                now += ms(10);
                run.overdue(now);
                continue;
            };
            let takes = ms(20 * len(&chunk.items));
            if takes >= ms(100) {
                now += ms(100);
                assert_eq!(run.overdue(now), [chunk.id]);
            } else {
                now += takes;
                run.chunk_ended(chunk.id, takes, now);
            }
        }
        assert_eq!(run.outcome(), Some(&Outcome::Complete));
    }
}

#[test]
fn a_lane_that_would_take_longer_than_all_others_gets_no_items() {
    let known = |seconds_per_item| LaneSpec {
        expected: Some(Expected { seconds_per_item, overhead_seconds: None, largest: 10.0 }),
        ..ONE_AT_A_TIME
    };
    let mut run = Run::new(2, &[known(1.0), known(0.001)], &Shares::Pulled, Settings::default());
    assert!(matches!(run.ask(0, ms(0)), Answer::Wait { .. }));
    let first = run_of(run.ask(1, ms(0)));
    run.chunk_ended(first.id, ms(1), ms(1));
    while run.outcome().is_none() {
        assert!(matches!(run.ask(0, ms(1)), Answer::Wait { .. }));
        let next = run_of(run.ask(1, ms(1)));
        run.chunk_ended(next.id, ms(1), ms(2));
    }
}

#[test]
fn a_chunk_that_does_not_fit_is_halved_on_its_lane() {
    let mut run = Run::new(8, &[ONE_AT_A_TIME], &Shares::Fixed(vec![8]), Settings::default());
    for items in [0..8, 0..4] {
        let chunk = run_of(run.ask(0, ms(0)));
        assert_eq!(chunk.items, items);
        run.chunk_failed(chunk.id, FailureKind::TooLarge, ms(0));
    }
    let mut seen = Vec::new();
    while run.outcome().is_none() {
        let chunk = run_of(run.ask(0, ms(1)));
        assert!(len(&chunk.items) <= 2);
        seen.push(chunk.items.clone());
        run.chunk_ended(chunk.id, ms(1), ms(1));
    }
    seen.sort_by_key(|items| items.start);
    assert_eq!(seen, [0..2, 2..4, 4..6, 6..8]);
}

#[test]
fn chunks_that_did_not_fit_once_grow_again() {
    let settings = Settings { max_items: Some(64), ..Settings::default() };
    let mut run = Run::new(100_000, &[ONE_AT_A_TIME], &Shares::Fixed(vec![100_000]), settings);
    let chunk = run_of(run.ask(0, ms(0)));
    run.chunk_failed(chunk.id, FailureKind::TooLarge, ms(0));
    let sizes = |run: &mut Run, count: u64| -> Vec<u64> {
        let size = |_| {
            let chunk = run_of(run.ask(0, ms(1)));
            run.chunk_ended(chunk.id, ms(1), ms(1));
            len(&chunk.items)
        };
        (0..count).map(size).collect()
    };
    assert_eq!(sizes(&mut run, 8), [32; 8]);
    assert_eq!(sizes(&mut run, 9), [64; 9], "no more than the user's limit");
    let chunk = run_of(run.ask(0, ms(1)));
    run.chunk_failed(chunk.id, FailureKind::TooLarge, ms(1));
    assert_eq!(sizes(&mut run, 16), [32; 16], "the next time, it takes twice as long");
    assert_eq!(len(&run_of(run.ask(0, ms(1))).items), 64);
}

#[test]
fn a_lane_whose_chunks_do_not_fit_again_and_again_tries_larger_ones_less_and_less_often() {
    let mut run = Run::new(1 << 20, &[ONE_AT_A_TIME], &Shares::Fixed(vec![1 << 20]), Settings::default());
    let (mut ended, mut failed) = (0, 0);
    while run.outcome().is_none() {
        let chunk = run_of(run.ask(0, ms(1)));
        if len(&chunk.items) > 64 {
            run.chunk_failed(chunk.id, FailureKind::TooLarge, ms(1));
            failed += 1;
        } else {
            run.chunk_ended(chunk.id, ms(1), ms(1));
            ended += 1;
        }
    }
    assert!(ended >= (1 << 20) / 64 && failed < 14 + 24, "{ended} chunks ended, {failed} failed");
}

#[test]
fn a_lane_that_failed_comes_back_after_a_canary_and_its_next_quarantine_is_longer() {
    let mut run = Run::new(1_000, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    let lost = run_of(run.ask(0, ms(0)));
    run.chunk_failed(lost.id, FailureKind::Untrusted, ms(10));
    assert_eq!(run.state(0), LaneState::Quarantined { until: ms(110) });
    assert_eq!(run.ask(0, ms(50)), Answer::Wait { until: Some(ms(110)) });
    let canary = run_of(run.ask(0, ms(110)));
    assert_eq!(canary.purpose, Purpose::Canary);
    run.chunk_failed(canary.id, FailureKind::Untrusted, ms(120));
    assert_eq!(run.state(0), LaneState::Quarantined { until: ms(320) });
    let canary = run_of(run.ask(0, ms(320)));
    run.chunk_ended(canary.id, ms(1), ms(321));
    assert_eq!(run.state(0), LaneState::Healthy);
    assert_eq!(
        run.chunk_ended(lost.id, ms(1), ms(321)),
        Verdict::Drop,
        "what was given up on is not accepted later"
    );
}

#[test]
fn a_run_waits_for_lanes_that_may_come_back_and_a_task_error_ends_it_at_once() {
    let settings = Settings::default();
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, settings);
    for lane in 0..2 {
        let chunk = run_of(run.ask(lane, ms(0)));
        run.chunk_failed(chunk.id, FailureKind::Untrusted, ms(0));
    }
    assert_eq!(run.outcome(), None, "both may come back");
    let canary = run_of(run.ask(1, ms(100)));
    run.chunk_ended(canary.id, ms(1), ms(101));
    assert_eq!(run.state(1), LaneState::Healthy);
    assert!(run.overdue(ms(100_000)).is_empty() && run.outcome().is_none(), "one of them has");
    run.lane_failed(1, FailureKind::Untrusted, ms(100_000));
    run.overdue(ms(129_999));
    assert_eq!(run.outcome(), None);
    run.overdue(ms(130_000));
    assert_eq!(run.outcome(), Some(&Outcome::NoLaneLeft), "no lane came back for thirty seconds");

    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, settings);
    run.lane_failed(0, FailureKind::Unable, ms(0));
    run.lane_failed(1, FailureKind::Unable, ms(0));
    assert_eq!(run.outcome(), Some(&Outcome::NoLaneLeft), "who is unable does not come back");
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, settings);
    let chunk = run_of(run.ask(1, ms(0)));
    run.chunk_failed(chunk.id, FailureKind::Task, ms(0));
    assert_eq!(run.outcome(), Some(&Outcome::TaskFailed(0..1)));
}

/// A run in which a lane has a chunk that should take eight milliseconds, and another is idle.
fn with_straggler(settings: Settings) -> (Run, LaneChunk) {
    let mut run = Run::new(9, &[ONE_AT_A_TIME; 2], &Shares::Fixed(vec![8, 1]), settings);
    let straggler = run_of(run.ask(0, ms(0)));
    let quick = run_of(run.ask(1, ms(0)));
    run.adaptive = true;
    run.chunk_ended(quick.id, ms(1), ms(1));
    (run, straggler)
}

#[test]
fn a_lane_is_called_hung_only_once_others_have_done_its_items() {
    let mut run = Run::open_ended(&[ONE_AT_A_TIME; 2], Settings::default());
    run.grow(9);
    run.adaptive = false;
    let straggler = run_of(run.ask(0, ms(0)));
    run.adaptive = true;
    assert_eq!(straggler.items, 0..9);
    assert!(run.overdue(ms(900)).is_empty(), "slow is not hung");
    let mut now = 1_000;
    while run.done() < 9 {
        let copy = run_of(run.ask(1, ms(now)));
        now += len(&copy.items);
        run.chunk_ended(copy.id, ms(len(&copy.items)), ms(now));
    }
    assert!(run.overdue(ms(now + 499)).is_empty());
    assert_eq!(run.overdue(ms(now + 500)), [straggler.id]);
    assert!(matches!(run.state(0), LaneState::Quarantined { .. }));
    assert!(run.is_drained(), "its items are done: nothing is given back");
}

#[test]
fn the_users_limit_is_the_only_one() {
    let settings = Settings { chunk_limit: Some(Duration::from_secs(600)), ..Settings::default() };
    let (mut run, straggler) = with_straggler(settings);
    assert!(run.overdue(ms(599_999)).is_empty() && run.outcome().is_none());
    assert_eq!(run.overdue(ms(600_000)), [straggler.id]);
    assert_eq!(run_of(run.ask(1, ms(600_000))).items.start, 0, "its items are given back");
}

#[test]
fn a_run_whose_lanes_are_all_silent_ends_after_a_stated_time_and_waits_for_plain_code() {
    for (may_hang, outcome) in [(true, Some(Outcome::NoLaneLeft)), (false, None)] {
        let lane = LaneSpec { may_hang, ..ONE_AT_A_TIME };
        let mut run = Run::new(9, &[lane], &Shares::Pulled, Settings::default());
        let first = run_of(run.ask(0, ms(0)));
        run.chunk_ended(first.id, ms(700), ms(700));
        let silent = run_of(run.ask(0, ms(700)));
        assert!(run.overdue(ms(70_699)).is_empty(), "a hundred times the longest chunk");
        let hung = run.overdue(ms(70_700));
        assert_eq!((hung.contains(&silent.id), run.outcome()), (may_hang, outcome.as_ref()));
    }
}

#[test]
fn time_in_which_the_process_was_suspended_counts_for_no_chunk() {
    let (mut run, _straggler) = with_straggler(Settings::default());
    run.note_suspension(Duration::from_secs(5), ms(5_005));
    assert!(matches!(run.ask(1, ms(5_006)), Answer::Wait { .. }), "six milliseconds of eight have passed");
    assert_eq!(run_of(run.ask(1, ms(5_030))).purpose, Purpose::Speculative);
}

#[test]
fn the_bound_holds_through_copies_of_copies() {
    let (mut run, straggler) = with_straggler(Settings::default());
    assert_eq!(run.end_bound().all_handed_out_at, Some(ms(0)));
    let copy = run_of(run.ask(1, ms(20)));
    run.chunk_failed(copy.id, FailureKind::Untrusted, ms(30));
    let again = run_of(run.ask(1, ms(130)));
    assert_eq!((run.state(1), again.items.clone()), (LaneState::Quarantined { until: ms(130) }, 7..8));
    run.chunk_ended(again.id, ms(10), ms(140));
    run.chunk_ended(straggler.id, ms(150), ms(150));
    let end = run.end_bound();
    assert_eq!(run.outcome(), Some(&Outcome::Complete));
    assert!(end.all_handed_out_at.unwrap() + end.longest_in_flight >= ms(150), "{end:?}");
}

#[test]
fn a_lane_that_was_retired_does_not_come_back_because_another_worker_of_it_failed() {
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    run.lane_failed(0, FailureKind::Unable, ms(0));
    run.lane_failed(0, FailureKind::Untrusted, ms(0));
    assert_eq!((run.state(0), run.tallies()[0].quarantines), (LaneState::Retired, 0));
}

#[test]
fn every_error_of_a_device_decides_what_comes_next() {
    use evener_device::{
        Device, Kernel,
        testing::{Fault, Faults, InjectedError},
    };
    let expected = |injected| match injected {
        InjectedError::OutOfMemory => FailureKind::TooLarge,
        InjectedError::Lost | InjectedError::TimedOut | InjectedError::BadResult => FailureKind::Untrusted,
        InjectedError::WillNotCompile | InjectedError::Unsupported => FailureKind::Unable,
        InjectedError::Task => FailureKind::Task,
    };
    for injected in InjectedError::ALL {
        let (device, faults) = Faults::wrap(&Device::cpu());
        faults.at(1, Fault::Fail(injected));
        let error = device.compile(&Kernel::new("nothing").rust(|_| Ok(()))).unwrap_err();
        assert_eq!(FailureKind::from(&error), expected(injected), "{error}");
    }
}

#[test]
fn the_bound_holds_for_a_run_that_grows() {
    let mut run = Run::open_ended(&[ONE_AT_A_TIME], Settings::default());
    run.grow(1);
    let chunk = run_of(run.ask(0, ms(0)));
    run.chunk_ended(chunk.id, ms(1_000), ms(1_000));
    run.grow(1);
    let chunk = run_of(run.ask(0, ms(10_000)));
    run.close();
    run.chunk_ended(chunk.id, ms(5_000), ms(15_000));
    let end = run.end_bound();
    assert!(end.all_handed_out_at.unwrap() + end.longest_in_flight >= ms(15_000), "{end:?}");
}

#[test]
fn a_strong_lane_that_is_still_being_prepared_does_not_hold_up_the_others() {
    let cores = LaneSpec { divisible: true, may_hang: false, ..ONE_AT_A_TIME };
    let card = LaneSpec { score: 1_000.0, ..ONE_AT_A_TIME };
    let mut run = Run::new(500, &[card, cores], &Shares::Pulled, Settings::default());
    let mut now = ms(0);
    while run.outcome().is_none() {
        match run.ask(1, now) {
            Answer::Run(chunk) => {
                let took = ms(100 * len(&chunk.items));
                now += took;
                run.chunk_ended(chunk.id, took, now);
            }
            Answer::Wait { until } => now = until.unwrap(),
            other => panic!("{other:?}"),
        }
        assert!(now < ms(110_000), "{} of 500 are done; alone it takes 50 s", run.done());
    }
}

#[test]
fn lanes_that_wait_for_a_chunk_of_unknown_speed_do_not_ask_all_the_time() {
    let mut run = Run::new(1, &[ONE_AT_A_TIME; 3], &Shares::Pulled, Settings::default());
    run_of(run.ask(0, ms(0)));
    run_of(run.ask(1, ms(1_500)));
    let (mut now, mut asks) = (ms(2_000), 0);
    while now < ms(2_400) {
        let Answer::Wait { until } = run.ask(2, now) else { panic!("everything is covered") };
        now = until.unwrap();
        asks += 1;
    }
    assert!(asks < 440, "{asks} in 0.4 s");
}

#[test]
fn silence_does_not_end_a_run_while_a_lane_is_still_being_prepared() {
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    run_of(run.ask(0, ms(0)));
    run.overdue(ms(61_000));
    assert_eq!(run.outcome(), None);
}

#[test]
fn a_lane_that_is_ready_for_its_canary_keeps_an_open_run_alive() {
    let mut run = Run::open_ended(&[ONE_AT_A_TIME], Settings::default());
    run.lane_failed(0, FailureKind::Untrusted, ms(0));
    for seconds in 1..100 {
        assert!(matches!(run.ask(0, ms(seconds * 1_000)), Answer::Wait { .. }), "no item has come");
        run.overdue(ms(seconds * 1_000));
    }
    assert_eq!(run.outcome(), None);
}

#[test]
fn costs_and_settings_of_any_kind_end_the_run_and_never_panic() {
    let odd = [
        Settings { hung_factor: -1.0, silence_factor: f64::NAN, ..Settings::default() },
        Settings {
            max_fraction: f64::NAN,
            min_overheads: f64::NAN,
            max_growth: f64::NAN,
            ..Settings::default()
        },
        Settings { min_fraction: f64::INFINITY, max_fraction: -1.0, ..Settings::default() },
        Settings { first_quarantine: Duration::ZERO, hung_after: Duration::ZERO, ..Settings::default() },
        Settings { hung_factor: -1.0, hung_after: Duration::from_nanos(1), ..Settings::default() },
    ];
    for costs in [vec![1e-310, 0.0, 5e-324], vec![1e300, 1.0, 0.0, 1e308], vec![1e-320; 50], vec![1.0; 90]] {
        for (index, settings) in odd.into_iter().enumerate() {
            let lane = LaneSpec { divisible: index % 2 == 0, may_hang: index % 2 == 1, ..ONE_AT_A_TIME };
            let mut run = Run::new(costs.len() as u64, &[lane; 3], &Shares::Pulled, settings);
            run = run.with_costs(Costs::new(&costs));
            let (mut now, mut running) = (ms(0), Vec::new());
            for step in 0..2_000 {
                let mut answer = run.ask(step % 3, now);
                while let Answer::Steal { from, .. } = answer {
                    answer = run.stolen(step % 3, from, None, now);
                }
                if let Answer::Run(chunk) = answer {
                    running.push(chunk);
                }
                now += ms(3);
                if running.len() > 2 || step % 5 == 4 {
                    running.pop().map(|chunk| run.chunk_ended(chunk.id, ms(2), now));
                }
            }
            assert_eq!(run.outcome(), Some(&Outcome::Complete), "{costs:?} {settings:?}");
        }
    }
}

/// An event of a run that a property test drives.
#[derive(Debug, Clone, Copy)]
enum DriverEvent {
    Ask {
        lane: usize,
    },
    End {
        which: usize,
        took: u64,
    },
    GiveBack {
        which: usize,
        part: f64,
    },
    Fail {
        which: usize,
        failure: FailureKind,
    },
    Pass {
        milliseconds: u64,
    },
    Suspension {
        milliseconds: u64,
    },
    /// The lane's device is still to come.
    Await {
        lane: usize,
    },
    /// The lane's device is taken away after this time, or stays.
    SetEnd {
        lane: usize,
        after: Option<u64>,
    },
}

fn events() -> impl proptest::strategy::Strategy<Value = Vec<DriverEvent>> {
    let failure = prop_oneof![
        3 => Just(FailureKind::Untrusted),
        3 => Just(FailureKind::TooLarge),
        1 => Just(FailureKind::Unable),
    ];
    let event = prop_oneof![
        8 => (0..6usize).prop_map(|lane| DriverEvent::Ask { lane }),
        6 => (any::<usize>(), 0..5_000u64).prop_map(|(which, took)| DriverEvent::End { which, took }),
        2 => (any::<usize>(), 0.0..1.0).prop_map(|(which, part)| DriverEvent::GiveBack { which, part }),
        1 => (any::<usize>(), failure).prop_map(|(which, failure)| DriverEvent::Fail { which, failure }),
        2 => (0..20_000u64).prop_map(|milliseconds| DriverEvent::Pass { milliseconds }),
        1 => (0..20_000u64).prop_map(|milliseconds| DriverEvent::Suspension { milliseconds }),
        1 => (0..6usize).prop_map(|lane| DriverEvent::Await { lane }),
        1 => (0..6usize, prop::option::of(0..30_000u64)).prop_map(|(lane, after)| DriverEvent::SetEnd { lane, after }),
    ];
    prop::collection::vec(event, 0..400)
}

#[test]
fn lanes_in_reserve_are_needed_if_no_lane_is_healthy_or_all_are_silent() {
    let lanes = |may_hang| [LaneSpec { may_hang, ..ONE_AT_A_TIME }];
    let new = |may_hang| Run::new(10, &lanes(may_hang), &Shares::Pulled, Settings::default()).with_reserve();
    for failure in [FailureKind::Unable, FailureKind::Untrusted] {
        let mut run = new(true);
        assert!(!run.needs_reserve(ms(10)));
        run.lane_failed(0, failure, ms(10));
        assert!(run.needs_reserve(ms(10)) && run.outcome().is_none(), "{failure:?}");
        run.overdue(ms(3_600_000));
        assert_eq!(run.outcome(), None, "it does not end before the reserve is tried");
        run.add_lanes(&lanes(true));
        assert!(!run.needs_reserve(ms(3_600_000)));
        assert!(matches!(run.ask(1, ms(3_600_000)), Answer::Run(_)));
    }
    // A device that is never prepared, and one whose chunk never ends.
    let mut run = new(true);
    assert!(!run.needs_reserve(ms(999)) && run.needs_reserve(ms(1_000)));
    assert!(matches!(run.ask(0, ms(100)), Answer::Run(_)));
    assert!(!run.needs_reserve(ms(1_000)) && run.needs_reserve(ms(1_100)));
    // A chunk that is expected to take long is not silent before.
    let expected = Some(Expected { seconds_per_item: 1.0, overhead_seconds: None, largest: 8.0 });
    let slow = LaneSpec { expected, ..ONE_AT_A_TIME };
    let mut run = Run::new(8, &[slow], &Shares::Pulled, Settings::default()).with_reserve();
    let Answer::Run(chunk) = run.ask(0, ms(100)) else { panic!("nothing to do") };
    let takes = 1_000 * len(&chunk.items);
    assert!(!run.needs_reserve(ms(100 + 3 * takes)) && run.needs_reserve(ms(101 + 4 * takes)));
    // The run waits for plain code.
    let mut run = new(false);
    assert!(matches!(run.ask(0, ms(100)), Answer::Run(_)));
    assert!(!run.needs_reserve(ms(100_000)));
    assert!(!Run::new(10, &lanes(true), &Shares::Pulled, Settings::default()).needs_reserve(ms(100_000)));
}

#[test]
fn a_run_waits_for_a_device_that_is_still_to_come() {
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Pulled, Settings::default());
    run.lane_awaited(0, ms(0));
    run.lane_failed(1, FailureKind::Unable, ms(0));
    for hour in 1..5 {
        let now = ms(hour * 3_600_000);
        run.lane_awaited(0, now);
        run.overdue(now + ms(60_000));
        assert_eq!(run.outcome(), None, "it waits in a queue");
    }
    assert!(run.has_awaited());
    let now = ms(20_000_000);
    let canary = run_of(run.ask(0, now));
    assert_eq!(canary.purpose, Purpose::Canary);
    run.chunk_ended(canary.id, ms(1), now + ms(1));
    assert_eq!((run.state(0), run.tallies()[0].quarantines), (LaneState::Healthy, 0));
}

#[test]
fn a_device_that_has_come_since_a_worker_looked_keeps_its_chunk() {
    let lane = LaneSpec { depth: 2, ..ONE_AT_A_TIME };
    let mut run = Run::new(10, &[lane], &Shares::Pulled, Settings::default());
    assert!(run.lane_awaited(0, ms(0)));
    let canary = run_of(run.ask(0, ms(300)));
    // Another worker of the lane has looked before the device came.
    assert!(!run.lane_awaited(0, ms(301)));
    run.chunk_ended(canary.id, ms(1), ms(302));
    assert_eq!((run.state(0), run.tallies()[0].dropped), (LaneState::Healthy, 0));
}

#[test]
fn a_device_that_does_not_come_any_more_is_waited_for_as_any_other() {
    let mut run = Run::new(10, &[ONE_AT_A_TIME], &Shares::Pulled, Settings::default());
    run.lane_awaited(0, ms(0));
    run.overdue(ms(1_000_000));
    run.lane_failed(0, FailureKind::Untrusted, ms(1_000_000));
    run.overdue(ms(1_029_000));
    assert_eq!(run.outcome(), None);
    run.overdue(ms(1_030_000));
    assert_eq!(run.outcome(), Some(&Outcome::NoLaneLeft));
}

#[test]
fn a_device_that_is_taken_away_gets_what_it_can_finish_and_others_do_not_leave_it_the_rest() {
    let expected = Some(Expected { seconds_per_item: 1.0, overhead_seconds: Some(0.0), largest: 100.0 });
    let lane = LaneSpec { expected, ..ONE_AT_A_TIME };
    let mut run = Run::new(1_000, &[lane; 2], &Shares::Pulled, Settings::default());
    run.set_end(0, Some(ms(22_000)));
    let chunk = run_of(run.ask(0, ms(0)));
    assert!((1..=10).contains(&len(&chunk.items)), "half of the time until two seconds before: {chunk:?}");
    run.chunk_ended(chunk.id, ms(1_000 * len(&chunk.items)), ms(1_000 * len(&chunk.items)));
    assert!(matches!(run.ask(0, ms(19_000)), Answer::Wait { until: Some(_) }), "not even one item would end");
    // All but one item are done; the other lane does not leave it to the one that is drained.
    let mut now = ms(19_000);
    while run.outcome().is_none() {
        let chunk = run_of(run.ask(1, now));
        now += ms(1_000 * len(&chunk.items));
        run.chunk_ended(chunk.id, ms(1_000 * len(&chunk.items)), now);
        assert!(!matches!(run.ask(0, ms(19_500)), Answer::Run(_)), "it got a chunk that would not end");
    }
    assert_eq!(run.outcome(), Some(&Outcome::Complete));
    // The end may be moved.
    let mut run = Run::new(1_000, &[lane], &Shares::Pulled, Settings::default());
    run.set_end(0, Some(ms(1_000)));
    assert!(matches!(run.ask(0, ms(0)), Answer::Wait { until: Some(_) }));
    run.set_end(0, Some(ms(60_000)));
    assert!(matches!(run.ask(0, ms(0)), Answer::Run(_)));
}

#[test]
fn other_lanes_take_the_share_of_a_lane_that_is_not_ready_for_long() {
    let mut run = Run::new(10, &[ONE_AT_A_TIME; 2], &Shares::Fixed(vec![5, 5]), Settings::default());
    let Answer::Run(own) = run.ask(1, ms(0)) else { panic!("nothing to do") };
    run.chunk_ended(own.id, ms(1), ms(1));
    assert!(!matches!(run.ask(1, ms(5_000)), Answer::Run(_)));
    let Answer::Run(other) = run.ask(1, ms(10_000)) else {
        panic!("the run waits for a lane that is not ready")
    };
    assert_eq!(other.items, 0..5);
    run.chunk_ended(other.id, ms(1), ms(10_001));
    assert_eq!(run.outcome(), Some(&Outcome::Complete));
}

/// Drives a run, and checks the invariants at every step.
struct Driver {
    /// Lanes that are not in the run yet.
    reserve: Vec<LaneSpec>,
    run: Run,
    now: Time,
    /// Depth, and whether others can steal from it.
    lanes: Vec<(usize, bool)>,
    running: Vec<LaneChunk>,
    accepted: BTreeMap<u64, u64>,
    answers: Vec<String>,
}

impl Driver {
    /// The items of a chunk that its worker has not begun: here, the second half.
    fn not_begun(chunk: &LaneChunk) -> std::ops::Range<u64> {
        (chunk.items.start + len(&chunk.items).div_ceil(2))..chunk.items.end
    }

    /// Steals the most unclaimed items for a lane, if it may choose them itself. `None` if it has to ask.
    fn steal_most(&mut self, lane: usize) -> Option<Answer> {
        let least = self.run.min_steal_items(lane)?;
        let divisible = self.running.iter_mut().filter(|chunk| self.lanes[chunk.lane].1);
        let victim = divisible.max_by_key(|chunk| len(&Driver::not_begun(chunk)));
        let may_steal = |chunk: &&mut LaneChunk| {
            len(&Driver::not_begun(chunk)) >= least && self.run.can_be_stolen_from(chunk.id)
        };
        let Some(victim) = victim.filter(may_steal) else {
            let until = self.run.found_nothing(lane, self.now)?;
            assert!(until > self.now);
            return Some(Answer::Wait { until: Some(until) });
        };
        let taken = (Driver::not_begun(victim).start + Driver::not_begun(victim).end) / 2..victim.items.end;
        victim.items.end = taken.start;
        let from = victim.id;
        Some(self.run.stolen(lane, from, Some(taken), self.now))
    }

    fn ask(&mut self, lane: usize) -> bool {
        self.running
            .iter()
            .for_each(|chunk| self.run.note_begun(chunk.id, Driver::not_begun(chunk).start, self.now));
        let answer = self.steal_most(lane);
        let mut answer = answer.unwrap_or_else(|| self.run.ask(lane, self.now));
        while let Answer::Steal { from, fraction, max_items } = answer {
            let victim = self.running.iter_mut().find(|chunk| chunk.id == from).unwrap();
            assert!(self.lanes[victim.lane].1, "only what can be divided is stolen from");
            let not_begun = Driver::not_begun(victim);
            let count = (len(&not_begun) as f64 * fraction).ceil().min(max_items as f64) as u64;
            // A worker that has claimed everything may give some of it back later.
            let has_claimed_all = self.now.as_millis().is_multiple_of(3);
            let taken = (count > 0 && !has_claimed_all).then(|| not_begun.end - count..not_begun.end);
            if let Some(taken) = &taken {
                victim.items.end = taken.start;
            }
            answer = self.run.stolen(lane, from, taken, self.now);
        }
        self.run.attempts.assert_sound();
        self.answers.push(format!("{answer:?}"));
        let Answer::Run(chunk) = answer else { return false };
        let it = &self.run.lanes[lane];
        if let (Some(end), Some(pace)) = (it.ends_at, it.pace) {
            let expected = seconds(pace.time_of(len(&chunk.items) as f64));
            assert!(
                self.now + expected <= end,
                "{chunk:?} takes {expected:?}, and its device ends at {end:?}"
            );
        }
        assert!(chunk.items.start < chunk.items.end && chunk.items.end <= self.run.items);
        assert_eq!(chunk.lane, lane);
        if chunk.exclusive {
            let overlaps = |other: &LaneChunk| {
                other.items.start < chunk.items.end && chunk.items.start < other.items.end
            };
            assert!(!self.running.iter().any(overlaps), "an exclusive chunk shares items with another");
        }
        let alone = |other: &LaneChunk| {
            other.exclusive && other.items.start < chunk.items.end && chunk.items.start < other.items.end
        };
        assert!(!self.running.iter().any(alone), "{chunk:?} shares items with an exclusive chunk");
        self.running.push(chunk);
        let held = self.running.iter().filter(|chunk| chunk.lane == lane).count();
        assert!(held <= self.lanes[lane].0, "lane {lane} has {held} chunks in flight");
        true
    }

    fn end(&mut self, which: usize, took: Duration) {
        let chunk = self.running.swap_remove(which);
        let parts = match self.run.chunk_ended(chunk.id, took, self.now) {
            Verdict::Accept => vec![chunk.items.clone()],
            Verdict::AcceptPart(parts) => parts,
            Verdict::Drop => Vec::new(),
        };
        self.run.attempts.assert_sound();
        for part in parts {
            assert!(chunk.items.start <= part.start && part.end <= chunk.items.end && part.start < part.end);
            let before = self.accepted.range(..part.end).next_back();
            assert!(before.is_none_or(|(_, end)| *end <= part.start), "accepted twice: {part:?}");
            self.accepted.insert(part.start, part.end);
        }
    }

    /// Adds the lanes in reserve, if the run needs them.
    fn add_reserve(&mut self) {
        assert!(self.reserve.is_empty() || self.run.outcome() != Some(&Outcome::NoLaneLeft));
        if self.run.needs_reserve(self.now) {
            self.run.add_lanes(&std::mem::take(&mut self.reserve));
        }
    }

    /// Drops the chunks of lanes that were set aside.
    fn drop_removed(&mut self) {
        let run = &self.run;
        self.running.retain(|chunk| run.attempts.get(chunk.id).is_some());
        run.attempts.assert_sound();
    }

    fn apply(&mut self, event: DriverEvent) {
        self.add_reserve();
        let some = self.running.len();
        match event {
            DriverEvent::Ask { lane } => drop(self.ask(lane % self.run.tallies().len())),
            DriverEvent::End { which, took } if some > 0 => self.end(which % some, ms(took)),
            DriverEvent::GiveBack { which, part } if some > 0 => {
                let chunk = &mut self.running[which % some];
                let at = chunk.items.start + (len(&chunk.items) as f64 * part) as u64;
                if self.lanes[chunk.lane].1 && at > chunk.items.start {
                    chunk.items.end = chunk.items.end.min(at);
                    let id = chunk.id;
                    self.run.shrink(id, at, self.now);
                }
            }
            DriverEvent::Fail { which, failure } if some > 0 => {
                let chunk = self.running.swap_remove(which % some);
                self.run.chunk_failed(chunk.id, failure, self.now);
                self.drop_removed();
            }
            DriverEvent::Pass { milliseconds } => {
                self.now += ms(milliseconds);
                self.run.overdue(self.now);
                self.drop_removed();
            }
            DriverEvent::Suspension { milliseconds } => {
                self.now += ms(milliseconds);
                self.run.note_suspension(ms(milliseconds), self.now);
            }
            DriverEvent::Await { lane } => {
                let lane = lane % self.run.tallies().len();
                let failures = self.run.tallies()[lane].quarantines;
                self.run.lane_awaited(lane, self.now);
                assert_eq!(self.run.tallies()[lane].quarantines, failures, "it is no failure");
                self.drop_removed();
            }
            DriverEvent::SetEnd { lane, after } => {
                let lane = lane % self.run.tallies().len();
                self.run.set_end(lane, after.map(|after| self.now + ms(after)));
            }
            _ => {}
        }
    }
}

/// Drives a run through the events, and then to its end. Returns every answer as text.
fn drive(items: u64, lanes: &[(usize, bool)], fixed: bool, events: &[DriverEvent]) -> (Run, Vec<String>) {
    let specs: Vec<_> = lanes
        .iter()
        .map(|&(depth, divisible)| LaneSpec { depth, divisible, may_hang: !divisible, ..ONE_AT_A_TIME })
        .collect();
    let strategy = if fixed { Shares::Fixed(crate::equal(items, lanes.len())) } else { Shares::Pulled };
    let mut run = Run::new(items, &specs, &strategy, Settings::default());
    let mut reserve = Vec::new();
    if !fixed && specs.len() > 3 {
        // The last lanes are added if the others are not enough.
        reserve = specs[3..].to_vec();
        run = Run::new(items, &specs[..3], &strategy, Settings::default()).with_reserve();
    }
    let mut driver = Driver {
        reserve,
        run,
        now: ms(0),
        lanes: lanes.to_vec(),
        running: Vec::new(),
        accepted: BTreeMap::new(),
        answers: Vec::new(),
    };
    events.iter().for_each(|&event| driver.apply(event));
    // From here on nothing fails: while a lane may come back, the run must come to its end.
    for lane in 0..driver.run.tallies().len() {
        driver.run.set_end(lane, None);
    }
    let mut rounds = 0;
    while driver.run.outcome().is_none() {
        driver.now += ms(200);
        driver.add_reserve();
        for lane in 0..driver.run.tallies().len() {
            while driver.ask(lane) {}
        }
        while !driver.running.is_empty() {
            driver.end(0, ms(1));
        }
        rounds += 1;
        assert!(rounds < 100_000, "no progress: {:?}", driver.run);
    }
    let Driver { run, accepted, answers, now, .. } = driver;
    let all_retired = (0..run.tallies().len()).all(|lane| run.state(lane) == LaneState::Retired);
    match run.outcome() {
        Some(Outcome::Complete) => {
            let mut next = 0;
            for (start, end) in accepted {
                assert_eq!(start, next, "items {next}..{start} are missing");
                next = end;
            }
            assert_eq!(next, items);
            if !fixed {
                let end = run.end_bound();
                assert!(end.all_handed_out_at.is_some(), "{run:?}");
                assert!(
                    end.all_handed_out_at.unwrap() + end.longest_in_flight >= run.last_accepted(),
                    "{end:?} at {now:?}"
                );
            }
        }
        Some(Outcome::NoLaneLeft) => {
            // Here more time than any limit may pass at once.
            assert!(all_retired || events.iter().any(|it| matches!(it, DriverEvent::Pass { .. })));
        }
        other => panic!("{other:?}"),
    }
    (run, answers)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_item_is_accepted_once_and_no_lane_exceeds_its_depth(
        items in 1..5_000u64,
        lanes in prop::collection::vec((1..3usize, any::<bool>()), 1..6),
        fixed in any::<bool>(),
        events in events(),
    ) {
        let (run, _) = drive(items, &lanes, fixed, &events);
        let counted: u64 = run.tallies().iter().map(|tally| tally.items).sum();
        prop_assert_eq!(counted, run.done());
    }

    #[test]
    fn the_answers_are_a_function_of_the_events_alone(
        items in 1..5_000u64,
        lanes in prop::collection::vec((1..3usize, any::<bool>()), 1..6),
        events in events(),
    ) {
        prop_assert_eq!(drive(items, &lanes, false, &events).1, drive(items, &lanes, false, &events).1);
    }
}
