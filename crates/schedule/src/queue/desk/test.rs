use std::sync::{Arc, atomic::Ordering::Relaxed};

use evener_device::{Device, Error};

use super::*;
use crate::executor::PoolDevice;
use crate::queue::handle::Answer;

type TestDesk = Desk<u32, u32>;

fn ms(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

fn alone() -> Batch {
    Batch { pieces: 1, delay: Duration::ZERO }
}

/// Submits a piece without a home.
fn submit(desk: &mut TestDesk, item: u32, priority: i32, now: Time) -> (Arc<Answer<u32>>, Place) {
    desk.submit(item, Wishes { priority, home: None }, now).map_err(|(_, why)| why).unwrap()
}

fn no_limits() -> Limits {
    Limits { piece: None, prepare: Duration::from_secs(300), silence: None }
}

/// A desk whose devices have one worker and these scores. The worker of device n has number n.
fn desk(scores: &[f64]) -> TestDesk {
    desk_with(scores, no_limits(), true)
}

fn desk_with(scores: &[f64], limits: Limits, may_hang: bool) -> TestDesk {
    let seat = |index| Arc::new(PoolDevice::new(index, Device::cpu()));
    let line = |(index, &score): (usize, &f64)| Line::new(seat(index), score, 1, may_hang);
    let lines: Vec<_> = scores.iter().enumerate().map(line).collect();
    let mut desk = Desk::new(lines, BalancerSettings::default(), limits, alone(), 1000);
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
        Next::Run(super::Work { items, first, .. }) => Some(items[first]),
        _ => None,
    }
}

/// Whether a worker is given this piece.
fn is_piece(next: &Next<u32>, piece: u32) -> bool {
    matches!(next, Next::Run(super::Work { items, first, .. }) if items[*first] == piece)
}

fn lost() -> Error {
    Error::Lost { device: "cpu".into(), operation: "a test".into(), detail: "it is gone".into() }
}

/// Puts a piece into the queue of the device that is its home.
fn push(desk: &mut TestDesk, line: usize, item: u32, priority: i32) {
    let (promise, _) = Promise::new();
    let place = Place { priority: std::cmp::Reverse(priority), number: 1_000_000 + u64::from(item) };
    desk.outstanding += 1;
    let ticket = Ticket { place, since: Time::ZERO, promise, failures: Vec::new() };
    desk.lines[line].push(Waiting { ticket, item: Item::New(item), move_time: Duration::ZERO });
}

/// Has a device do a piece in so long.
fn teach(desk: &mut TestDesk, hand: u64, took: Duration) {
    push(desk, hand as usize, 0, 0);
    assert!(begin(desk, hand, ms(0)).is_some());
    assert!(desk.finished(hand, vec![0], took).is_none());
}

#[test]
fn the_fastest_device_is_woken_first_and_no_more_workers_than_there_are_pieces() {
    let mut desk = desk(&[30.0, 10.0]);
    submit(&mut desk, 0, 0, ms(0));
    assert_eq!(desk.to_wake(ms(0))[..], [(0, 1)], "by score, while nothing is known");
    submit(&mut desk, 1, 0, ms(0));
    assert_eq!(desk.to_wake(ms(0)).len(), 2);
    (0..2).for_each(|hand| assert!(begin(&mut desk, hand, ms(0)).is_some()));
    desk.finished(1, vec![0], ms(10));
    desk.finished(0, vec![0], ms(40));
    submit(&mut desk, 2, 0, ms(50));
    assert_eq!(desk.to_wake(ms(50))[..], [(1, 1)], "by time, once it is known");
    assert_eq!(begin(&mut desk, 1, ms(50)), Some(2));
    assert!(desk.to_wake(ms(50)).is_empty());
}

#[test]
fn a_worker_is_started_only_where_no_other_is_free() {
    let mut desk = desk_of_many(2);
    assert_eq!(desk.understaffed(ms(0)), None, "there is nothing to do");
    submit(&mut desk, 0, 0, ms(0));
    let first = desk.understaffed(ms(0)).unwrap();
    let worker = desk.hire(first);
    assert_eq!(desk.understaffed(ms(0)), None, "one piece needs one worker");
    assert!(matches!(desk.ask(worker, None, ms(0)), Next::Prepare));
    assert_eq!(desk.understaffed(ms(0)), None, "which will soon be ready");
    let mut now = ms(0);
    look_after(&mut desk, &mut now, ms(500));
    assert_eq!(desk.understaffed(now), Some(1 - first), "or not: nothing waits for that");
}

#[test]
fn a_failed_piece_goes_to_another_device_and_the_first_comes_back_after_a_canary() {
    let mut desk = desk(&[10.0, 10.0]);
    submit(&mut desk, 7, 0, ms(0));
    assert_eq!(begin(&mut desk, 0, ms(0)), Some(7));
    desk.failed(0, lost(), ms(10));
    assert_eq!((desk.shared_len(), desk.lines[0].seat.generation()), (1, 1));
    assert_eq!(begin(&mut desk, 1, ms(10)), Some(7));
    assert!(desk.finished(1, vec![7], ms(11)).is_none());

    (0..3).for_each(|item| drop(submit(&mut desk, item, 0, ms(20))));
    assert_eq!(begin(&mut desk, 0, ms(109)), None, "not before its time");
    assert_eq!(begin(&mut desk, 0, ms(110)), Some(2), "the one that would have waited longest");
    assert!(!desk.lines[0].trust.is_working());
    assert!(desk.finished(0, vec![2], ms(111)).is_none());
    assert!(desk.lines[0].trust.is_working());
    assert_eq!(begin(&mut desk, 0, ms(111)), Some(0));
}

#[test]
fn a_device_that_fails_is_no_home() {
    let mut desk = desk(&[30.0, 10.0]);
    let home = Wishes { priority: 0, home: Some((0, Duration::ZERO)) };
    (0..10).for_each(|item| drop(desk.submit(item, home, ms(0))));
    assert_eq!(begin(&mut desk, 1, ms(0)), None, "they wait for their home");
    assert_eq!(begin(&mut desk, 0, ms(0)), Some(0));
    desk.failed(0, lost(), ms(1));
    assert_eq!((queued(&desk), desk.shared_len()), (vec![0, 0], 10));
    assert_eq!(begin(&mut desk, 1, ms(1)), Some(0));
    assert!(desk.submit(10, home, ms(1)).is_ok());
    assert_eq!((queued(&desk), desk.shared_len()), (vec![0, 0], 10), "nor for what comes later");
}

#[test]
fn priorities_order_own_and_shared_pieces_together() {
    let mut desk = desk(&[10.0, 10.0]);
    let home = |priority| Wishes { priority, home: Some((0, Duration::ZERO)) };
    for (item, priority) in [(0, 1), (1, 5), (2, 3)] {
        assert!(desk.submit(item, home(priority), ms(0)).is_ok());
    }
    for (item, priority) in [(10, 4), (11, 1), (12, 6)] {
        submit(&mut desk, item, priority, ms(0));
    }
    let mut order = Vec::new();
    while let Some(item) = begin(&mut desk, 0, ms(1)) {
        order.push(item);
        desk.finished(0, vec![item], ms(1));
    }
    assert_eq!(order, [12, 1, 10, 2, 0, 11]);
}

#[test]
fn a_batch_has_the_first_pieces_and_is_taken_when_it_is_full_or_due() {
    let mut desk = desk(&[10.0]);
    desk.batch = Batch { pieces: 3, delay: ms(20) };
    let size = |next: &Next<u32>| match next {
        Next::Run(super::Work { items, .. }) => items.to_vec(),
        _ => Vec::new(),
    };
    submit(&mut desk, 0, 0, ms(0));
    assert!(matches!(desk.ask(0, Some(0), ms(1)), Next::Wait { until: Some(until) } if until == ms(20)));
    submit(&mut desk, 1, 1, ms(5));
    assert!(matches!(desk.ask(0, Some(0), ms(19)), Next::Wait { until: Some(until) } if until == ms(20)));
    assert_eq!(
        size(&desk.ask(0, Some(0), ms(20))),
        [1, 0],
        "in order, and no longer than the oldest may wait"
    );
    desk.finished(0, vec![0; 2], ms(21));
    (2..7).for_each(|item| drop(submit(&mut desk, item, i32::from(item == 6), ms(30))));
    assert_eq!(size(&desk.ask(0, Some(0), ms(30))), [6, 2, 3]);
    // A device's error makes all of them wait again, each alone.
    desk.failed(0, lost(), ms(31));
    assert_eq!(desk.outstanding, 5);
    for _ in 0..5 {
        let next = desk.ask(0, Some(1), ms(200));
        assert!(matches!(next, Next::Run(super::Work { count: 1, .. })) || desk.shared_len() == 0);
        let Next::Run(super::Work { count, .. }) = next else { break };
        desk.finished(0, vec![0; count], ms(200));
    }
    let Next::Run(super::Work { count, .. }) = desk.ask(0, Some(1), ms(220)) else {
        return assert_eq!(desk.outstanding, 0);
    };
    desk.finished(0, vec![0; count], ms(220));
    assert_eq!(desk.outstanding, 0);
}

#[test]
fn a_piece_with_a_home_is_not_left_to_a_worker_of_another_device() {
    let mut desk = desk(&[10.0, 10.0]);
    desk.batch = Batch { pieces: 3, delay: ms(20) };
    submit(&mut desk, 0, 0, ms(0));
    assert!(matches!(desk.ask(0, Some(0), ms(1)), Next::Wait { until: Some(_) }));
    desk.lines[0].timers += 1;
    assert!(desk.to_wake(ms(2)).is_empty(), "one worker waits until the batch is due, which is enough");
    let wishes = Wishes { priority: 0, home: Some((1, ms(5))) };
    let _answer = desk.submit(1, wishes, ms(3)).ok();
    assert!(desk.to_wake(ms(3)).contains(&(1, 1)));
}

#[test]
fn a_batch_that_does_not_fit_is_halved_and_its_device_stays_well() {
    let mut desk = desk(&[10.0]);
    desk.batch = Batch { pieces: 8, delay: ms(0) };
    (0..16).for_each(|item| drop(submit(&mut desk, item, 0, ms(0))));
    assert!(matches!(desk.ask(0, Some(0), ms(0)), Next::Run(super::Work { count: 8, .. })));
    let (device, operation, detail) = ("cpu".into(), "a test".into(), String::new());
    let error = Error::OutOfMemory { device, operation, requested: 1, available: None, detail };
    desk.failed(0, error, ms(1));
    assert!(desk.lines[0].trust.is_working());
    let mut sizes = Vec::new();
    while let Next::Run(super::Work { count, .. }) = desk.ask(0, Some(0), ms(1)) {
        sizes.push(count);
        assert!(desk.finished(0, vec![0; count], ms(1)).is_none());
    }
    assert_eq!(sizes, [1, 1, 1, 1, 1, 1, 1, 1, 4, 4]);
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
    let (answer, _) = submit(&mut desk, 7, 0, now);
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_490));
    assert_eq!(begin(&mut desk, 0, now), None, "not late yet");
    look_after(&mut desk, &mut now, ms(1_500));
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_600));
    assert!(desk.lines[1].hands == 1 && desk.lines[1].trust.is_working(), "a guess is no verdict");
    assert!(desk.finished(0, vec![21], now).is_none() && answer.is_given());
    assert_eq!(desk.lines[1].hands, 1);
    look_after(&mut desk, &mut now, ms(1_990));
    assert_eq!(desk.lines[1].hands, 1, "the copy took 100 ms, ten times of which are not over");
    look_after(&mut desk, &mut now, ms(2_000));
    assert!(desk.lines[1].hands == 0 && !desk.lines[1].trust.is_working());
    assert_eq!(desk.finished(1, vec![8], now), Some(vec![8]), "the result of a dismissed worker is dropped");
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
    desk.finished(0, vec![21], now);
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
    assert!(desk.finished(0, vec![21], now).is_none());
    look_after(&mut desk, &mut now, ms(5_000));
    assert_eq!(desk.finished(1, vec![21], now), Some(vec![21]), "it was answered before");
    assert_eq!((desk.outstanding, desk.lines[0].done, desk.lines[1].done), (0, 2, 1));
    assert!(desk.is_idle() && desk.lines.iter().all(|it| it.hands == 1 && it.trust.is_working()));
    assert!(desk.lines.iter().all(|it| it.seat.counters.active() == 0));
}

#[test]
fn what_waits_for_a_slow_device_goes_elsewhere() {
    let mut desk = desk(&[10.0, 10.0]);
    teach(&mut desk, 0, ms(1));
    teach(&mut desk, 1, ms(1));
    let mut now = ms(1_000);
    (0..10).for_each(|item| push(&mut desk, 0, item, 0));
    (0..10).for_each(|item| push(&mut desk, 1, 20 + item, 0));
    assert!(begin(&mut desk, 0, now).is_some() && begin(&mut desk, 1, now).is_some());
    now += ms(1);
    desk.finished(1, vec![0], now);
    look_after(&mut desk, &mut now, ms(1_510));
    assert_eq!((queued(&desk), desk.shared_len()), (vec![0, 9], 9));
    assert!(desk.submit(40, Wishes { priority: 0, home: Some((0, ms(0))) }, now).is_ok());
    desk.rebalance_if_due(ms(3_000));
    assert_eq!((queued(&desk), desk.shared_len()), (vec![0, 9], 10), "nothing new goes there");
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
    desk.finished(0, vec![21], now);
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
    assert!(desk.finished(0, vec![21], now).is_none());
    assert_eq!((desk.outstanding, desk.lines[0].failed), (0, 0));
}

#[test]
fn a_device_without_a_witness_is_given_the_silence_limit_and_another_try() {
    let mut desk = desk(&[10.0]);
    teach(&mut desk, 0, ms(700));
    let mut now = ms(0);
    let (answer, _) = submit(&mut desk, 7, 0, now);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(69_990));
    assert_eq!(desk.lines[0].hands, 1, "a hundred times the longest piece");
    look_after(&mut desk, &mut now, ms(70_000));
    assert_eq!((desk.lines[0].hands, desk.shared_len()), (0, 1));
    let worker = desk.hire(0);
    look_after(&mut desk, &mut now, ms(70_100));
    assert!(is_piece(&desk.ask(worker, Some(1), now), 7));
    assert!(desk.finished(worker, vec![21], now).is_none() && answer.is_given());
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
    assert!(is_piece(&desk.ask(worker, Some(1), now), 7));
    now += ms(10);
    assert!(desk.finished(worker, vec![21], now).is_none());
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
            let (answer, _) = submit(&mut desk, 7, 0, ms(0));
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
                            assert!(desk.finished(worker, vec![21], now).is_none());
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
    let seat = Arc::new(PoolDevice::new(0, Device::cpu()));
    let mut desk = Desk::new(
        vec![Line::new(seat, 10.0, 2, true)],
        BalancerSettings::default(),
        no_limits(),
        alone(),
        1000,
    );
    let workers = [desk.hire(0), desk.hire(0)];
    let answers = [0, 1].map(|item| submit(&mut desk, item, 0, ms(0)).0);
    for worker in workers {
        assert!(matches!(desk.ask(worker, Some(0), ms(0)), Next::Run(super::Work { .. })));
    }
    desk.failed(workers[1], lost(), ms(1));
    let mut now = ms(0);
    look_after(&mut desk, &mut now, ms(110));
    assert!(is_piece(&desk.ask(workers[1], Some(1), now), 1));
    desk.finished(workers[1], vec![3], now);
    // What the first worker has from before the device was opened afresh is copied to the device itself.
    look_after(&mut desk, &mut now, ms(600));
    assert!(is_piece(&desk.ask(workers[1], Some(1), now), 0));
    desk.finished(workers[1], vec![0], now);
    look_after(&mut desk, &mut now, ms(610));
    assert!(answers.iter().all(|answer| answer.is_given()));
    assert!(desk.lines[0].hands == 1 && desk.lines[0].trust.is_working());
}

/// A desk over two devices with so many workers each, and no worker yet.
fn desk_of_many(workers: usize) -> TestDesk {
    let line = |index| Line::new(Arc::new(PoolDevice::new(index, Device::cpu())), 10.0, workers, true);
    Desk::new(vec![line(0), line(1)], BalancerSettings::default(), no_limits(), alone(), 1000)
}

#[test]
fn a_canary_does_not_wait_for_workers_that_make_an_old_opening_ready() {
    let mut desk = desk_of_many(3);
    let workers = [0, 0, 0].map(|line| desk.hire(line));
    (0..3).for_each(|item| push(&mut desk, 0, item, 0));
    assert!(matches!(desk.ask(workers[0], None, ms(0)), Next::Prepare));
    desk.prepared(workers[0], u64::MAX);
    assert!(matches!(desk.ask(workers[0], Some(0), ms(0)), Next::Run(super::Work { .. })));
    assert!(matches!(desk.ask(workers[1], None, ms(0)), Next::Prepare));
    assert!(matches!(desk.ask(workers[2], None, ms(0)), Next::Prepare));
    desk.failed(workers[0], lost(), ms(1));
    assert!(matches!(desk.ask(workers[0], Some(0), ms(1)), Next::Exit), "it gives back what it holds");
    assert_eq!(desk.understaffed(ms(101)), Some(0), "no other worker will try it");
    let fresh = desk.hire(0);
    assert!(matches!(desk.ask(fresh, None, ms(101)), Next::Prepare));
    // Those who come back late are let go, and what they say of an old opening counts for nothing.
    desk.prepared(workers[1], u64::MAX);
    desk.not_ready(workers[2], 0, lost(), ms(102));
    assert!(matches!(desk.ask(workers[1], Some(0), ms(102)), Next::Exit));
    assert!(matches!(desk.ask(workers[2], None, ms(102)), Next::Exit));
    assert_eq!((desk.lines[0].hands, desk.lines[0].preparing, desk.lines[0].trial), (1, 1, Some(fresh)));
}

#[test]
fn nothing_waits_for_a_device_that_gets_ready() {
    let mut desk = desk(&[10.0, 10.0]);
    let mut now = ms(100);
    push(&mut desk, 0, 7, 0);
    submit(&mut desk, 8, 0, now);
    assert!(matches!(desk.ask(0, None, now), Next::Prepare));
    assert_eq!(begin(&mut desk, 1, now), Some(8));
    desk.finished(1, vec![0], ms(110));
    look_after(&mut desk, &mut now, ms(590));
    assert_eq!(
        (queued(&desk), desk.shared_len()),
        (vec![1, 0], 0),
        "a home is waited for, for half a second"
    );
    look_after(&mut desk, &mut now, ms(600));
    assert_eq!((queued(&desk), desk.shared_len()), (vec![0, 0], 1));
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    desk.prepared(0, u64::MAX);
    assert!(!desk.lines[0].stall.unready);
}

#[test]
fn a_copy_does_not_wait_for_a_device_that_gets_ready() {
    let mut desk = desk(&[10.0, 10.0, 10.0]);
    (0..3).for_each(|hand| teach(&mut desk, hand, ms(1)));
    let mut now = ms(1_000);
    push(&mut desk, 0, 7, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_500));
    assert!(matches!(desk.ask(1, None, now), Next::Prepare));
    assert_eq!(begin(&mut desk, 2, now), Some(7));
    desk.prepared(1, u64::MAX);
    assert_eq!(begin(&mut desk, 1, now), None, "one copy at a time");
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
    assert!(desk.finished(1, vec![21], now).is_none());
    look_after(&mut desk, &mut now, ms(4_000));
    assert_eq!(desk.finished(0, vec![21], now), Some(vec![21]));
    assert!(desk.lines[0].hands == 1 && desk.lines[0].trust.is_working(), "it was slow, and is well");
    (0..100).for_each(|_| desk.lines[0].mean.learn(ms(1)));

    // Its second piece is no first one.
    push(&mut desk, 0, 8, 0);
    assert_eq!(begin(&mut desk, 0, now), Some(8));
    look_after(&mut desk, &mut now, ms(4_510));
    assert_eq!(begin(&mut desk, 1, now), Some(8));
    now += ms(1);
    assert!(desk.finished(1, vec![24], now).is_none());
    look_after(&mut desk, &mut now, ms(4_530));
    assert_eq!(desk.lines[0].hands, 0);

    // After it is opened afresh, the next one is: it has ten times what such pieces took before.
    look_after(&mut desk, &mut now, ms(5_000));
    let worker = desk.hire(0);
    submit(&mut desk, 9, 0, now);
    assert!(matches!(desk.ask(worker, None, now), Next::Prepare));
    desk.prepared(worker, u64::MAX);
    assert!(matches!(desk.ask(worker, Some(1), now), Next::Run(super::Work { .. })));
    look_after(&mut desk, &mut now, ms(5_510));
    assert_eq!(begin(&mut desk, 1, now), Some(9));
    now += ms(1);
    assert!(desk.finished(1, vec![27], now).is_none());
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
    let (answer, _) = submit(&mut desk, 7, 0, now);
    assert_eq!(begin(&mut desk, 0, now), Some(7));
    look_after(&mut desk, &mut now, ms(1_500));
    assert_eq!(begin(&mut desk, 1, now), Some(7));
    now += ms(1);
    assert!(desk.finished(1, vec![21], now).is_none() && answer.is_given());
    look_after(&mut desk, &mut now, ms(20_980));
    assert_eq!(desk.lines[0].hands, 1);
    look_after(&mut desk, &mut now, ms(21_010));
    assert!(desk.lines[0].hands == 0 && !desk.lines[0].trust.is_working());
}

#[test]
fn a_piece_that_fails_everywhere_is_told_all_that_happened() {
    let mut desk = desk(&[10.0, 10.0]);
    let (answer, _) = submit(&mut desk, 7, 0, ms(0));
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
    let home = |priority, line| Wishes { priority, home: Some((line, Duration::ZERO)) };
    for (item, priority) in [0, 5, 0, 5, 1].into_iter().enumerate() {
        assert!(desk.submit(item as u32, home(priority, 0), ms(0)).is_ok());
    }
    assert!(desk.submit(8, home(-1, 1), ms(0)).is_ok());
    assert_eq!(queued(&desk), [5, 1]);
    desk.rebalance_if_due(ms(1));
    assert_eq!(queued(&desk), [3, 3]);
    assert!(desk.submit(9, home(9, 0), ms(1)).is_ok());
    let counted = |desk: &TestDesk, line: usize| desk.lines[line].seat.counters.queued.load(Relaxed);
    assert_eq!((counted(&desk, 0), counted(&desk, 1)), (4, 3));
    let mut order = |hand: u64| {
        let mut order = Vec::new();
        while let Some(item) = begin(&mut desk, hand, ms(2)) {
            order.push(item);
            desk.finished(hand, vec![item], ms(3));
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
    Batch(usize),
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
        while let Some(line) = self.desk.understaffed(self.now) {
            self.hands.push((self.desk.hire(line), line, None, Given::Nothing));
        }
    }

    /// A hand does its next step, which goes well or does not.
    fn step(&mut self, index: usize, error: Option<Error>) {
        let (hand, line, generation, given) = self.hands[index];
        match (given, error) {
            (Given::Batch(count), None) => drop(self.desk.finished(hand, vec![0; count], self.now)),
            (Given::Batch(_), Some(error)) => self.desk.failed(hand, error, self.now),
            (Given::Ready, None) => self.desk.prepared(hand, 3),
            (Given::Ready, Some(error)) => {
                self.desk.not_ready(hand, generation.unwrap_or(0), error, self.now);
                self.hands[index].2 = None;
            }
            (Given::Nothing, _) => {}
        }
        self.hands[index].3 = match self.desk.ask(hand, self.hands[index].2, self.now) {
            Next::Run(super::Work { count, .. }) => Given::Batch(count),
            Next::Prepare => {
                self.hands[index].2 = Some(self.desk.lines[line].seat.generation());
                Given::Ready
            }
            Next::Wait { .. } => Given::Nothing,
            Next::Exit => {
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
        let queued = queued(&self.desk).iter().sum::<usize>() + self.desk.shared_len();
        let in_flight: usize = self.desk.in_flight.values().map(|flight| flight.tickets.len()).sum();
        assert_eq!(self.desk.outstanding, queued + in_flight, "each piece is in one place");
        for line in &self.desk.lines {
            assert_eq!(line.seat.counters.queued.load(Relaxed), line.queued() as u64);
            assert!(line.hands >= line.active + line.preparing && line.hands <= line.max_workers);
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
        let seat = |index| Arc::new(PoolDevice::new(index, Device::cpu()));
        let lines = (0..devices).map(|index| Line::new(seat(index), 10.0 + index as f64, 2, true));
        let settings = BalancerSettings { interval: ms(100), ..BalancerSettings::default() };
        let limits = Limits { prepare: Duration::from_secs(5), ..no_limits() };
        let batch = Batch { pieces: 4, delay: ms(30) };
        let desk = Desk::new(lines.collect(), settings, limits, batch, 1000);
        let (hands, answers, places) = (Vec::new(), Vec::new(), Vec::new());
        let mut drive = Drive { desk, hands, answers, places, now: ms(0) };
        for (event, which, kind, passed) in events {
            match event {
                0..3 => {
                    let item = drive.answers.len() as u32;
                    let home = (kind % 4 == 0).then_some((which % devices, ms(passed)));
                    let wishes = Wishes { priority: i32::from(kind) % 3, home };
                    let (answer, place) = drive.desk.submit(item, wishes, drive.now).ok().unwrap();
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
