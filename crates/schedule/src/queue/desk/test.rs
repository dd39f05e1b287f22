use std::sync::Arc;

use evener_device::{Device, Error};

use super::*;
use crate::pool::Seat;

type TestDesk = Desk<u32, u32>;

fn ms(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

fn no_limits() -> Limits {
    Limits { piece: None, prepare: Duration::from_secs(300), silence: None }
}

/// A desk whose devices have one worker and these scores. The worker of device n has number n.
fn desk(scores: &[f64]) -> TestDesk {
    desk_with(scores, no_limits(), true)
}

fn desk_with(scores: &[f64], limits: Limits, may_hang: bool) -> TestDesk {
    let seat = |index| Arc::new(Seat::new(index, Device::cpu()));
    let line = |(index, &score): (usize, &f64)| Line::new(seat(index), score, 1, may_hang);
    let lines: Vec<_> = scores.iter().enumerate().map(line).collect();
    let mut desk = Desk::new(lines, BalancerSettings::default(), limits);
    (0..scores.len()).for_each(|line| assert_eq!(desk.hire(line), line as u64));
    desk
}

fn queued(desk: &TestDesk) -> Vec<usize> {
    desk.lines.iter().map(Line::queued).collect()
}

/// Has a hand begin with a piece, ready or not, and says which.
fn begin(desk: &mut TestDesk, hand: u64, now: Time) -> Option<u32> {
    let generation = desk.lines[hand as usize].seat.generation();
    match desk.ask(hand, Some(generation), now) {
        Next::Run { item, .. } => Some(*item),
        _ => None,
    }
}

fn lost() -> Error {
    Error::Lost { device: "cpu".into(), operation: "a test".into(), detail: "it is gone".into() }
}

/// Puts a piece into a device's queue, wherever it would be better off.
fn push(desk: &mut TestDesk, line: usize, item: u32, priority: i32) {
    let (promise, _) = Promise::new();
    let place = Place { priority: std::cmp::Reverse(priority), number: 1_000_000 + u64::from(item) };
    desk.outstanding += 1;
    desk.lines[line].push(Ticket { place, item: Arc::new(item), promise, failures: Vec::new() });
}

/// Has a device do a piece in so long.
fn teach(desk: &mut TestDesk, hand: u64, took: Duration) {
    push(desk, hand as usize, 0, 0);
    assert!(begin(desk, hand, ms(0)).is_some());
    assert!(desk.finished(hand, 0, took).is_none());
}

#[test]
fn pieces_go_where_they_are_done_first() {
    let mut unknown = desk(&[30.0, 10.0]);
    (0..8).for_each(|item| drop(unknown.submit(item, 0, ms(0))));
    assert_eq!(queued(&unknown), [6, 2], "by score, while nothing is known");

    let mut known = desk(&[30.0, 10.0]);
    teach(&mut known, 0, ms(40));
    teach(&mut known, 1, ms(10));
    (0..10).for_each(|item| drop(known.submit(item, 0, ms(50))));
    assert_eq!(queued(&known), [2, 8], "by time, once it is");
}

#[test]
fn a_failed_piece_goes_to_another_device_and_the_first_comes_back_after_a_canary() {
    let mut desk = desk(&[10.0, 10.0]);
    desk.submit(7, 0, ms(0)).unwrap();
    assert_eq!(begin(&mut desk, 0, ms(0)), Some(7));
    desk.failed(0, lost(), ms(10));
    assert_eq!((queued(&desk), desk.lines[0].seat.generation()), (vec![0, 1], 1));
    assert_eq!(begin(&mut desk, 1, ms(10)), Some(7));
    assert!(desk.finished(1, 7, ms(11)).is_none());

    (0..3).for_each(|item| drop(desk.submit(item, 0, ms(20))));
    assert_eq!(queued(&desk), [0, 3], "nothing goes to a device that is set aside");
    desk.send_canaries(ms(109));
    assert_eq!(queued(&desk), [0, 3], "not before its time");
    desk.send_canaries(ms(110));
    assert_eq!(queued(&desk), [1, 2]);
    assert!(!desk.lines[0].trust.is_working());
    assert_eq!(begin(&mut desk, 0, ms(110)), Some(2), "the one that would have waited longest");
    assert!(desk.finished(0, 2, ms(111)).is_none());
    assert!(desk.lines[0].trust.is_working());
}

#[test]
fn what_waits_at_a_device_that_is_tried_goes_elsewhere_but_for_the_canary() {
    let mut desk = desk(&[30.0, 10.0]);
    (0..100).for_each(|item| drop(desk.submit(item, 0, ms(0))));
    assert!(begin(&mut desk, 0, ms(0)).is_some());
    desk.failed(0, lost(), ms(1));
    let left = desk.lines[0].queued();
    assert!(left > 50 && left < 75, "the balancer has moved some of them: {left}");
    let (hand, ready_for) = (0, None);
    assert!(matches!(desk.ask(hand, ready_for, ms(50)), Next::Rest));
    assert!(matches!(desk.ask(hand, ready_for, ms(101)), Next::Prepare));
    assert_eq!(queued(&desk), [1, 99]);
}

/// Looks after a desk every ten milliseconds until a time.
fn look_after(desk: &mut TestDesk, now: &mut Time, until: Time) {
    while *now < until {
        *now += GLANCE;
        desk.look_after(*now);
    }
}

#[test]
fn a_late_piece_is_copied_and_its_device_is_hung_once_another_has_done_it() {
    let mut desk = desk(&[10.0, 10.0]);
    teach(&mut desk, 0, ms(2));
    teach(&mut desk, 1, ms(1));
    let mut now = ms(1_000);
    let (answer, _) = desk.submit(7, 0, now).unwrap();
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_490));
    assert_eq!(begin(&mut desk, 0, now), None, "not late yet");
    look_after(&mut desk, &mut now, ms(1_500));
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_600));
    assert!(desk.lines[1].hands == 1 && desk.lines[1].trust.is_working(), "a guess is no verdict");
    assert!(desk.finished(0, 21, now).is_none() && answer.is_given());
    assert_eq!(desk.lines[1].hands, 1);
    look_after(&mut desk, &mut now, ms(1_990));
    assert_eq!(desk.lines[1].hands, 1, "the copy took 100 ms, ten times of which are not over");
    look_after(&mut desk, &mut now, ms(2_000));
    assert!(desk.lines[1].hands == 0 && !desk.lines[1].trust.is_working());
    assert_eq!(desk.finished(1, 8, now), Some(8), "the result of a dismissed worker is dropped");
    assert_eq!((desk.lines[0].done, desk.lines[1].failed, desk.lines[0].copied), (2, 1, 1));
}

#[test]
fn a_device_that_is_slower_by_nature_has_longer_before_evidence_counts() {
    let mut desk = desk(&[10.0, 10.0]);
    teach(&mut desk, 0, ms(1));
    teach(&mut desk, 1, ms(50));
    push(&mut desk, 1, 7, 0);
    let mut now = ms(1_000);
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_500));
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    now += ms(10);
    desk.finished(0, 21, now);
    // Ten milliseconds there are half a second here, ten times of which it has.
    look_after(&mut desk, &mut now, ms(5_990));
    assert_eq!(desk.lines[1].hands, 1);
    look_after(&mut desk, &mut now, ms(6_000));
    assert_eq!(desk.lines[1].hands, 0);
}

#[test]
fn of_two_results_the_first_is_the_answer_and_the_slow_device_stays_well() {
    let mut desk = desk(&[10.0, 10.0]);
    teach(&mut desk, 0, ms(1));
    teach(&mut desk, 1, ms(1));
    let mut now = ms(1_000);
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_500));
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    look_after(&mut desk, &mut now, ms(4_000));
    assert!(desk.finished(0, 21, now).is_none());
    look_after(&mut desk, &mut now, ms(5_000));
    assert_eq!(desk.finished(1, 21, now), Some(21), "it was answered before");
    assert_eq!((desk.outstanding, desk.lines[0].done, desk.lines[1].done), (0, 2, 1));
    assert!(desk.is_idle() && desk.lines.iter().all(|it| it.hands == 1 && it.trust.is_working()));
    assert!(desk.lines.iter().all(|it| it.seat.counters.read().active == 0));
}

#[test]
fn what_waits_for_a_slow_device_goes_elsewhere() {
    let mut desk = desk(&[10.0, 10.0]);
    teach(&mut desk, 0, ms(1));
    teach(&mut desk, 1, ms(1));
    let mut now = ms(1_000);
    (0..20).for_each(|item| drop(desk.submit(item, 0, now)));
    assert_eq!(queued(&desk), [10, 10]);
    assert!(begin(&mut desk, 0, now).is_some() && begin(&mut desk, 1, now).is_some());
    now += ms(1);
    desk.finished(1, 0, now);
    look_after(&mut desk, &mut now, ms(1_510));
    assert_eq!(queued(&desk), [0, 18]);
    desk.submit(20, 0, now).unwrap();
    desk.rebalance_if_due(ms(3_000));
    assert_eq!(queued(&desk), [0, 19], "nothing new goes there");
}

#[test]
fn time_in_which_the_process_was_stopped_counts_for_no_piece() {
    let mut desk = desk_with(&[10.0, 10.0], Limits { piece: Some(ms(1_000)), ..no_limits() }, false);
    let mut now = ms(0);
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(500));
    now += Duration::from_secs(3_600);
    desk.look_after(now);
    // A piece that began after the stop gets nothing for it.
    push(&mut desk, 1, 8, 0);
    assert_eq!(begin(&mut desk, 1, now), Some(8));
    let resumed = now;
    look_after(&mut desk, &mut now, resumed + ms(480));
    assert_eq!(desk.lines[0].hands, 1);
    look_after(&mut desk, &mut now, resumed + ms(500));
    assert_eq!((desk.lines[0].hands, desk.lines[1].hands), (0, 1), "a second without the stop");
    look_after(&mut desk, &mut now, resumed + ms(1_000));
    assert_eq!(desk.lines[1].hands, 0);
}

#[test]
fn a_stop_that_a_worker_sees_first_is_no_part_of_a_pieces_time() {
    let mut desk = desk(&[10.0]);
    let mut now = ms(0);
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(50));
    now += Duration::from_secs(100);
    desk.notice_pause(now);
    desk.finished(0, 21, now);
    assert_eq!(desk.lines[0].mean.time(), Some(ms(60)));
}

#[test]
fn plain_code_is_waited_for() {
    let mut desk = desk_with(&[10.0, 10.0], no_limits(), false);
    teach(&mut desk, 0, ms(1));
    teach(&mut desk, 1, ms(1));
    let mut now = ms(0);
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, Duration::from_secs(600));
    assert_eq!(begin(&mut desk, 1, now), None);
    assert!(desk.finished(0, 21, now).is_none());
    assert_eq!((desk.outstanding, desk.lines[0].failed), (0, 0));
}

#[test]
fn a_device_without_a_witness_is_given_the_silence_limit_and_another_try() {
    let mut desk = desk(&[10.0]);
    teach(&mut desk, 0, ms(700));
    let mut now = ms(0);
    let (answer, _) = desk.submit(7, 0, now).unwrap();
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(69_990));
    assert_eq!(desk.lines[0].hands, 1, "a hundred times the longest piece");
    look_after(&mut desk, &mut now, ms(70_000));
    assert_eq!((desk.lines[0].hands, queued(&desk)), (0, vec![1]));
    let worker = desk.hire(0);
    look_after(&mut desk, &mut now, ms(70_100));
    assert!(matches!(desk.ask(worker, Some(1), now), Next::Run { item, .. } if *item == 7));
    assert!(desk.finished(worker, 21, now).is_none() && answer.is_given());
}

#[test]
fn devices_that_hang_with_the_same_piece_are_tried_one_after_another() {
    let mut desk = desk_with(&[10.0, 10.0], Limits { silence: Some(ms(5_000)), ..no_limits() }, true);
    let mut now = ms(0);
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_000));
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    look_after(&mut desk, &mut now, ms(5_990));
    assert_eq!((desk.lines[0].hands, desk.lines[1].hands), (1, 1), "the copy has been silent for less");
    look_after(&mut desk, &mut now, ms(6_000));
    assert_eq!(
        (desk.lines[0].hands, desk.lines[1].hands),
        (0, 1),
        "the first is tried again before the second"
    );
    let worker = desk.hire(0);
    look_after(&mut desk, &mut now, ms(6_110));
    assert!(matches!(desk.ask(worker, Some(1), now), Next::Run { item, .. } if *item == 7));
    now += ms(10);
    assert!(desk.finished(worker, 21, now).is_none());
    assert!(desk.lines[0].trust.is_working());
    desk.look_after(now);
    assert_eq!(desk.lines[1].hands, 0, "now there is evidence");
}

#[test]
fn one_passing_error_on_each_device_ends_well() {
    let timed_out = || Error::TimedOut {
        device: "cpu".into(),
        operation: "a test".into(),
        after: Duration::from_secs(1),
    };
    let wrong =
        || Error::BadResult { device: "cpu".into(), operation: "a test".into(), detail: String::new() };
    for devices in 1..=2 {
        for error in [lost as fn() -> Error, timed_out, wrong] {
            let mut desk = desk(&vec![10.0; devices]);
            let (answer, _) = desk.submit(7, 0, ms(0)).unwrap();
            let mut failures = 0;
            let mut now = ms(0);
            while !answer.is_given() {
                now += GLANCE;
                assert!(now < ms(1_000));
                desk.look_after(now);
                for worker in 0..devices as u64 {
                    if begin(&mut desk, worker, now).is_some() {
                        if failures < devices {
                            failures += 1;
                            desk.failed(worker, error(), now);
                        } else {
                            assert!(desk.finished(worker, 21, now).is_none());
                        }
                    }
                }
            }
            let done: u64 = desk.lines.iter().map(|line| line.done).sum();
            assert_eq!((done, failures), (1, devices));
        }
    }
}

#[test]
fn a_canary_does_not_wait_for_an_attempt_from_before_the_quarantine() {
    let seat = Arc::new(Seat::new(0, Device::cpu()));
    let mut desk = Desk::new(vec![Line::new(seat, 10.0, 2, true)], BalancerSettings::default(), no_limits());
    let workers = [desk.hire(0), desk.hire(0)];
    let answers = [0, 1].map(|item| desk.submit(item, 0, ms(0)).unwrap().0);
    for worker in workers {
        assert!(matches!(desk.ask(worker, Some(0), ms(0)), Next::Run { .. }));
    }
    desk.failed(workers[1], lost(), ms(1));
    let mut now = ms(0);
    look_after(&mut desk, &mut now, ms(110));
    assert!(matches!(desk.ask(workers[1], Some(1), now), Next::Run { item, .. } if *item == 1));
    desk.finished(workers[1], 3, now);
    // What the first worker has from before the device was opened afresh is copied to the device itself.
    look_after(&mut desk, &mut now, ms(600));
    assert!(matches!(desk.ask(workers[1], Some(1), now), Next::Run { item, .. } if *item == 0));
    desk.finished(workers[1], 0, now);
    look_after(&mut desk, &mut now, ms(610));
    assert!(answers.iter().all(|answer| answer.is_given()));
    assert!(desk.lines[0].hands == 1 && desk.lines[0].trust.is_working());
}

/// A desk over two devices with so many workers each, and no worker yet.
fn desk_of_many(workers: usize) -> TestDesk {
    let line = |index| Line::new(Arc::new(Seat::new(index, Device::cpu())), 10.0, workers, true);
    Desk::new(vec![line(0), line(1)], BalancerSettings::default(), no_limits())
}

#[test]
fn a_canary_does_not_wait_for_workers_that_make_an_old_opening_ready() {
    let mut desk = desk_of_many(3);
    let workers = [0, 0, 0].map(|line| desk.hire(line));
    (0..3).for_each(|item| push(&mut desk, 0, item, 0));
    assert!(matches!(desk.ask(workers[0], None, ms(0)), Next::Prepare));
    desk.prepared(workers[0]);
    assert!(matches!(desk.ask(workers[0], Some(0), ms(0)), Next::Run { .. }));
    assert!(matches!(desk.ask(workers[1], None, ms(0)), Next::Prepare));
    assert!(matches!(desk.ask(workers[2], None, ms(0)), Next::Prepare));
    desk.failed(workers[0], lost(), ms(1));
    assert!(matches!(desk.ask(workers[0], Some(0), ms(1)), Next::Go), "it gives back what it holds");
    push(&mut desk, 0, 7, 0);
    assert!(desk.lines[0].lacks_hands(ms(101)), "nobody else will try it");
    let fresh = desk.hire(0);
    assert!(matches!(desk.ask(fresh, None, ms(101)), Next::Prepare));
    // Those who come back late are let go, and what they say of an old opening counts for nothing.
    desk.prepared(workers[1]);
    desk.not_ready(workers[2], 0, lost(), ms(102));
    assert!(matches!(desk.ask(workers[1], Some(0), ms(102)), Next::Go));
    assert!(matches!(desk.ask(workers[2], None, ms(102)), Next::Go));
    assert_eq!((desk.lines[0].hands, desk.lines[0].preparing, desk.lines[0].trial), (1, 1, Some(fresh)));
}

#[test]
fn what_waits_for_a_device_that_gets_ready_goes_where_it_is_done_sooner() {
    let mut desk = desk_of_many(4);
    let workers = [0, 1].map(|line| desk.hire(line));
    push(&mut desk, 1, 0, 0);
    assert!(matches!(desk.ask(workers[1], Some(0), ms(0)), Next::Run { .. }));
    desk.finished(workers[1], 0, ms(100));
    push(&mut desk, 0, 7, 0);
    let mut now = ms(100);
    assert!(matches!(desk.ask(workers[0], None, now), Next::Prepare));
    look_after(&mut desk, &mut now, ms(590));
    assert_eq!(queued(&desk), [1, 0]);
    look_after(&mut desk, &mut now, ms(600));
    assert_eq!(queued(&desk), [0, 1], "another half second, against 100 ms");
    // A device that takes longer than that gets it no sooner than the first one is expected to be ready.
    (0..60).for_each(|item| push(&mut desk, 0, 10 + item, 0));
    look_after(&mut desk, &mut now, ms(1_100));
    let [left, moved] = queued(&desk)[..] else { panic!("there are two") };
    assert!((5..20).contains(&left) && moved == 61 - left, "{left} and {moved}");
    desk.rebalance_if_due(now);
    assert_eq!(queued(&desk), [left, moved], "the balancer does not take what is better off there");
    desk.prepared(workers[0]);
    assert!(!desk.lines[0].stall.unready);
}

#[test]
fn a_canary_does_not_wait_until_the_device_is_ready() {
    let mut desk = desk(&[10.0, 10.0]);
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, ms(0)), Some(7));
    desk.failed(0, lost(), ms(1));
    assert_eq!(begin(&mut desk, 1, ms(1)), Some(7));
    desk.finished(1, 0, ms(2));
    push(&mut desk, 0, 8, 0);
    let mut now = ms(110);
    assert!(matches!(desk.ask(0, None, now), Next::Prepare));
    look_after(&mut desk, &mut now, ms(620));
    assert_eq!(queued(&desk), [0, 1]);
}

#[test]
fn a_copy_does_not_wait_for_a_device_that_gets_ready() {
    let mut desk = desk(&[10.0, 10.0, 10.0]);
    (0..3).for_each(|hand| teach(&mut desk, hand, ms(1)));
    let mut now = ms(1_000);
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    // The third is busy for a while, so the copy goes to the second, which does not get ready.
    push(&mut desk, 2, 8, 0);
    assert_eq!(begin(&mut desk, 2, ms(1_400)), Some(8));
    look_after(&mut desk, &mut now, ms(1_500));
    assert_eq!(desk.lines[1].copies.len(), 1);
    assert!(matches!(desk.ask(1, None, now), Next::Prepare));
    desk.finished(2, 8, now);
    look_after(&mut desk, &mut now, ms(2_010));
    assert_eq!((desk.lines[1].copies.len(), begin(&mut desk, 2, now)), (0, Some(7)));
}

#[test]
fn what_was_moved_before_does_not_wait_for_a_long_quarantine() {
    let mut desk = desk(&[10.0, 10.0]);
    let mut now = ms(0);
    let mut strikes = 0;
    // It is well in between, so it never fails twice in a row.
    while !desk.lines[0].trust.is_away_for_long(now) {
        strikes += 1;
        now += Duration::from_secs(1 << strikes);
        desk.looked = None;
        push(&mut desk, 0, 2 * strikes, 0);
        let worker = desk.hire(0);
        desk.lines[0].most_hands = desk.lines[0].hands;
        let generation = desk.lines[0].seat.generation();
        if strikes > 1 {
            assert!(matches!(desk.ask(worker, Some(generation), now), Next::Run { .. }));
            assert!(desk.finished(worker, 0, now).is_none());
        }
        assert!(desk.lines[0].trust.is_working());
        // Two pieces, one of which the balancer has moved here from the other device.
        (0..2).for_each(|item| push(&mut desk, 1, 100 * strikes + item, 0));
        let step = crate::balancer::Move { from: 1, to: 0, pieces: 1 };
        let Ok([to, from]) = desk.lines.get_disjoint_mut([0, 1]) else { panic!("there are two") };
        from.exchange(to, &step);
        push(&mut desk, 0, 100 * strikes + 2, 1);
        assert!(matches!(desk.ask(worker, Some(generation), now), Next::Run { .. }));
        desk.failed(worker, lost(), now);
        if !desk.lines[0].trust.is_away_for_long(now) {
            assert!(desk.lines[0].queued() > 0, "a short quarantine is waited for");
        }
    }
    assert!(strikes > 2);
    assert_eq!(desk.lines[0].queued(), 0);
}

#[test]
fn a_devices_first_piece_is_not_judged_by_what_another_took() {
    let mut desk = desk_with(&[10.0, 10.0], Limits { silence: Some(ms(20_000)), ..no_limits() }, true);
    teach(&mut desk, 1, ms(1));
    let mut now = ms(1_000);
    // The device compiles the code for three seconds, say.
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_500));
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    now += ms(1);
    assert!(desk.finished(1, 21, now).is_none());
    look_after(&mut desk, &mut now, ms(4_000));
    assert_eq!(desk.finished(0, 21, now), Some(21));
    assert!(desk.lines[0].hands == 1 && desk.lines[0].trust.is_working(), "it was slow, and is well");
    (0..100).for_each(|_| desk.lines[0].mean.learn(ms(1)));

    // Its second piece is no first one.
    push(&mut desk, 0, 8, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(8));
    look_after(&mut desk, &mut now, ms(4_510));
    assert_eq!(begin(&mut desk, 1, now), Some(8));
    now += ms(1);
    assert!(desk.finished(1, 24, now).is_none());
    look_after(&mut desk, &mut now, ms(4_530));
    assert_eq!(desk.lines[0].hands, 0);

    // After it is opened afresh, the next one is: it has ten times what such pieces took before.
    look_after(&mut desk, &mut now, ms(5_000));
    let worker = desk.hire(0);
    push(&mut desk, 0, 9, 0);
    assert!(matches!(desk.ask(worker, None, now), Next::Prepare));
    desk.prepared(worker);
    assert!(matches!(desk.ask(worker, Some(1), now), Next::Run { .. }));
    look_after(&mut desk, &mut now, ms(5_510));
    assert_eq!(begin(&mut desk, 1, now), Some(9));
    now += ms(1);
    assert!(desk.finished(1, 27, now).is_none());
    look_after(&mut desk, &mut now, ms(34_980));
    assert_eq!(desk.lines[0].hands, 1);
    look_after(&mut desk, &mut now, ms(35_010));
    assert_eq!(desk.lines[0].hands, 0);
}

#[test]
fn a_device_that_hangs_with_its_first_piece_has_the_silence_limit() {
    let mut desk = desk_with(&[10.0, 10.0], Limits { silence: Some(ms(20_000)), ..no_limits() }, true);
    teach(&mut desk, 1, ms(1));
    let mut now = ms(1_000);
    let (answer, _) = desk.submit(7, 0, now).unwrap();
    let first = desk.lines.iter().position(|line| line.queued() == 1).unwrap();
    assert_eq!(first, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_500));
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    now += ms(1);
    assert!(desk.finished(1, 21, now).is_none() && answer.is_given());
    look_after(&mut desk, &mut now, ms(20_980));
    assert_eq!(desk.lines[0].hands, 1);
    look_after(&mut desk, &mut now, ms(21_010));
    assert!(desk.lines[0].hands == 0 && !desk.lines[0].trust.is_working());
}

#[test]
fn a_piece_that_fails_everywhere_is_told_all_that_happened() {
    let mut desk = desk(&[10.0, 10.0]);
    let (answer, _) = desk.submit(7, 0, ms(0)).unwrap();
    let nobody: std::sync::Weak<super::super::shared::Shared<crate::KernelTask<u32, u32>>> =
        Default::default();
    let place = Place { priority: std::cmp::Reverse(0), number: 0 };
    let handle = super::super::Handle::new(answer, place, nobody);
    let mut now = ms(0);
    let mut tries = Vec::new();
    while !handle.is_done() {
        now += ms(500);
        assert!(now < ms(10_000), "{tries:?}");
        for hand in 0..2 {
            if begin(&mut desk, hand, now).is_some() {
                tries.push(hand);
                desk.failed(hand, lost(), now);
            }
        }
    }
    assert_eq!(tries.iter().filter(|&&hand| hand == 0).count(), 4, "{tries:?}");
    assert_eq!(tries.len(), 8, "{tries:?}");
    assert!(matches!(handle.wait(), Err(QueueError::NoDeviceLeft { failures }) if failures.len() == 8));
    assert_eq!(desk.outstanding, 0);
}

#[test]
fn what_moves_between_devices_stays_in_order_and_is_counted() {
    let mut desk = desk(&[1000.0, 1.0]);
    let priorities = [0, 5, 0, 5, 1];
    for (item, priority) in priorities.into_iter().enumerate() {
        desk.submit(item as u32, priority, ms(0)).unwrap();
    }
    push(&mut desk, 1, 8, -1);
    assert_eq!(queued(&desk), [5, 1]);
    desk.rebalance_if_due(ms(1));
    assert_eq!(queued(&desk), [3, 3]);
    desk.submit(9, 9, ms(1)).unwrap();
    let counted = |desk: &TestDesk, line: usize| desk.lines[line].seat.counters.read().queued;
    assert_eq!((counted(&desk, 0), counted(&desk, 1)), (4, 3));
    let mut order = |hand: u64| {
        let mut order = Vec::new();
        while let Some(item) = begin(&mut desk, hand, ms(2)) {
            order.push(item);
            desk.finished(hand, item, ms(3));
        }
        order
    };
    assert_eq!((order(0), order(1)), (vec![9, 1, 3, 4], vec![0, 2, 8]));
    assert_eq!(desk.balanced().pieces, 2);
    assert_eq!((desk.lines[0].gave, desk.lines[1].received), (2, 2));
    assert_eq!((counted(&desk, 0), counted(&desk, 1)), (0, 0));
}

/// What a hand has been given.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Given {
    Nothing,
    Ready,
    Piece(u32),
}

/// Drives a desk as hands and a clock would, in virtual time.
struct Drive {
    desk: TestDesk,
    hands: Vec<(u64, usize, Option<u64>, Given)>,
    answers: Vec<Arc<Answer<u32>>>,
    places: Vec<Place>,
    now: Time,
}

impl Drive {
    fn hire(&mut self) {
        for line in 0..self.desk.lines.len() {
            while self.desk.lines[line].lacks_hands(self.now) {
                self.hands.push((self.desk.hire(line), line, None, Given::Nothing));
            }
        }
    }

    /// A hand does its next step, which goes well or does not.
    fn step(&mut self, index: usize, error: Option<Error>) {
        let (hand, line, generation, given) = self.hands[index];
        match (given, error) {
            (Given::Piece(item), None) => drop(self.desk.finished(hand, item, self.now)),
            (Given::Piece(_), Some(error)) => self.desk.failed(hand, error, self.now),
            (Given::Ready, None) => self.desk.prepared(hand),
            (Given::Ready, Some(error)) => {
                self.desk.not_ready(hand, generation.unwrap_or(0), error, self.now);
                self.hands[index].2 = None;
            }
            (Given::Nothing, _) => {}
        }
        self.hands[index].3 = match self.desk.ask(hand, self.hands[index].2, self.now) {
            Next::Run { item, .. } => Given::Piece(*item),
            Next::Prepare => {
                self.hands[index].2 = Some(self.desk.lines[line].seat.generation());
                Given::Ready
            }
            Next::Rest => Given::Nothing,
            Next::Go => {
                self.hands.swap_remove(index);
                return;
            }
        };
    }

    fn look_after(&mut self, passed: Duration) {
        self.now += passed;
        self.desk.look_after(self.now);
        self.desk.rebalance_if_due(self.now);
        self.hire();
        self.check();
    }

    /// What must always be so.
    fn check(&mut self) {
        let queued: usize = queued(&self.desk).iter().sum();
        assert_eq!(self.desk.outstanding, queued + self.desk.in_flight.len(), "each piece is in one place");
        for line in &self.desk.lines {
            assert_eq!(line.seat.counters.read().queued, line.queued() as u64);
            assert_eq!(line.seat.counters.read().active, line.active as u64);
            assert!(line.hands >= line.active + line.preparing && line.hands <= line.most_hands);
            assert!(!line.trust.is_retired() || line.queued() == 0);
        }
        let waiting = self.answers.iter().filter(|answer| !answer.is_given()).count();
        assert_eq!(self.desk.outstanding, waiting, "each piece has one answer");
        self.desk.settled.clear();
    }
}

fn failure(kind: u8) -> Option<Error> {
    let (device, operation) = (evener_device::DeviceId::from("cpu"), "a test".to_owned());
    match kind {
        0 => Some(lost()),
        1 => Some(Error::Task { device, operation, item: None, message: String::new() }),
        2 => Some(Error::Unsupported { device, operation, detail: String::new() }),
        3 => Some(Error::BadResult { device, operation, detail: String::new() }),
        _ => None,
    }
}

proptest::proptest! {
    #[test]
    fn whatever_happens_each_piece_is_answered_once(
        devices in 1usize..4,
        events in proptest::collection::vec((0u8..8, 0usize..8, 0u8..40, 0u64..700), 1..200),
    ) {
        let seat = |index| Arc::new(Seat::new(index, Device::cpu()));
        let lines = (0..devices).map(|index| Line::new(seat(index), 10.0 + index as f64, 2, true));
        let settings = BalancerSettings { interval: ms(100), ..BalancerSettings::default() };
        let limits = Limits { prepare: Duration::from_secs(5), ..no_limits() };
        let desk = Desk::new(lines.collect(), settings, limits);
        let (hands, answers, places) = (Vec::new(), Vec::new(), Vec::new());
        let mut drive = Drive { desk, hands, answers, places, now: ms(0) };
        for (event, which, kind, passed) in events {
            match event {
                0..3 => {
                    let item = drive.answers.len() as u32;
                    let (answer, place) = drive.desk.submit(item, i32::from(kind) % 3, drive.now).unwrap();
                    drive.answers.push(answer);
                    drive.places.push(place);
                    drive.hire();
                }
                3..6 if !drive.hands.is_empty() => drive.step(which % drive.hands.len(), failure(kind)),
                6 if kind < 5 && !drive.places.is_empty() => {
                    let place = drive.places[which % drive.places.len()];
                    drive.desk.withdraw(place);
                }
                _ => drive.look_after(ms(passed)),
            }
            drive.check();
        }
        // From here on nothing fails, and what hung before is given up on.
        drive.desk.closed = true;
        for _ in 0..3000 {
            drive.look_after(ms(200));
            for index in (0..drive.hands.len()).rev() {
                drive.step(index, None);
                drive.check();
            }
            if drive.desk.is_over() {
                break;
            }
        }
        proptest::prop_assert!(drive.desk.is_over(), "{} are left", drive.desk.outstanding);
    }
}
