use std::sync::{Arc, atomic::Ordering::Relaxed};

use evener_device::{Device, Error};

use super::*;
use crate::executor::PoolDevice;
use crate::queue::handle::PendingResult;

type TestDispatcher = Dispatcher<u32, u32>;

fn ms(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

fn alone() -> BatchLimits {
    BatchLimits { pieces: 1, delay: Duration::ZERO }
}

/// Submits a piece without a home.
fn submit(
    dispatcher: &mut TestDispatcher,
    item: u32,
    priority: i32,
    now: Time,
) -> (Arc<PendingResult<u32>>, PieceKey) {
    dispatcher.submit(item, SubmitOptions { priority, home: None }, now).map_err(|(_, why)| why).unwrap()
}

fn no_limits() -> Limits {
    Limits { piece: None, prepare: Duration::from_secs(300), silence: None }
}

/// A dispatcher whose devices have one worker and these scores. The worker of device n has number n.
fn dispatcher(scores: &[f64]) -> TestDispatcher {
    dispatcher_with(scores, no_limits(), true)
}

fn dispatcher_with(scores: &[f64], limits: Limits, may_hang: bool) -> TestDispatcher {
    let device = |index| Arc::new(PoolDevice::new(index, Device::cpu()));
    let device = |(index, &score): (usize, &f64)| DeviceQueue::new(device(index), score, 1, may_hang);
    let devices: Vec<_> = scores.iter().enumerate().map(device).collect();
    let mut dispatcher = Dispatcher::new(devices, BalancerSettings::default(), limits, alone(), 1000);
    (0..scores.len()).for_each(|device| assert_eq!(dispatcher.add_worker(device), device as u64));
    dispatcher
}

fn queued(dispatcher: &TestDispatcher) -> Vec<usize> {
    dispatcher.devices.iter().map(DeviceQueue::queued).collect()
}

/// Makes a worker begin a piece, and returns the piece.
fn begin(dispatcher: &mut TestDispatcher, worker: u64, now: Time) -> Option<u32> {
    let generation = dispatcher.devices[worker as usize].device.generation();
    match dispatcher.next_work(worker, Some(generation), now) {
        Next::Run(super::BatchItems { items, first, .. }) => Some(items[first]),
        _ => None,
    }
}

/// Whether a worker gets this piece.
fn is_piece(next: &Next<u32>, piece: u32) -> bool {
    matches!(next, Next::Run(super::BatchItems { items, first, .. }) if items[*first] == piece)
}

fn lost() -> Error {
    Error::Lost { device: "cpu".into(), operation: "a test".into(), detail: "it is gone".into() }
}

/// Enqueues a piece at its home.
fn push(dispatcher: &mut TestDispatcher, device: usize, item: u32, priority: i32) {
    let (promise, _) = Promise::new();
    let key = PieceKey { priority: std::cmp::Reverse(priority), number: 1_000_000 + u64::from(item) };
    dispatcher.outstanding += 1;
    let ticket = Ticket { key, since: Time::ZERO, promise, failures: Vec::new() };
    dispatcher.devices[device].push(WaitingPiece {
        ticket,
        item: PieceItem::New(item),
        move_time: Duration::ZERO,
    });
}

/// Makes a device run a piece that takes this long.
fn teach(dispatcher: &mut TestDispatcher, worker: u64, took: Duration) {
    push(dispatcher, worker as usize, 0, 0);
    assert!(begin(dispatcher, worker, ms(0)).is_some());
    assert!(dispatcher.finished(worker, vec![0], took).is_none());
}

#[test]
fn the_fastest_device_is_woken_first_and_no_more_workers_than_there_are_pieces() {
    let mut dispatcher = dispatcher(&[30.0, 10.0]);
    submit(&mut dispatcher, 0, 0, ms(0));
    assert_eq!(dispatcher.to_wake(ms(0))[..], [(0, 1)], "by score, while nothing is known");
    submit(&mut dispatcher, 1, 0, ms(0));
    assert_eq!(dispatcher.to_wake(ms(0)).len(), 2);
    (0..2).for_each(|worker| assert!(begin(&mut dispatcher, worker, ms(0)).is_some()));
    dispatcher.finished(1, vec![0], ms(10));
    dispatcher.finished(0, vec![0], ms(40));
    submit(&mut dispatcher, 2, 0, ms(50));
    assert_eq!(dispatcher.to_wake(ms(50))[..], [(1, 1)], "by time, once it is known");
    assert_eq!(begin(&mut dispatcher, 1, ms(50)), Some(2));
    assert!(dispatcher.to_wake(ms(50)).is_empty());
}

#[test]
fn a_worker_is_started_only_where_no_other_is_free() {
    let mut dispatcher = dispatcher_of_many(2);
    assert_eq!(dispatcher.device_needing_worker(ms(0)), None, "there is nothing to do");
    submit(&mut dispatcher, 0, 0, ms(0));
    let first = dispatcher.device_needing_worker(ms(0)).unwrap();
    let worker = dispatcher.add_worker(first);
    assert_eq!(dispatcher.device_needing_worker(ms(0)), None, "one piece needs one worker");
    assert!(matches!(dispatcher.next_work(worker, None, ms(0)), Next::Prepare));
    assert_eq!(dispatcher.device_needing_worker(ms(0)), None, "which will soon be ready");
    let mut now = ms(0);
    watch(&mut dispatcher, &mut now, ms(500));
    assert_eq!(dispatcher.device_needing_worker(now), Some(1 - first), "or not: nothing waits for that");
}

#[test]
fn a_failed_piece_goes_to_another_device_and_the_first_comes_back_after_a_canary() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    submit(&mut dispatcher, 7, 0, ms(0));
    assert_eq!(begin(&mut dispatcher, 0, ms(0)), Some(7));
    dispatcher.failed(0, lost(), ms(10));
    assert_eq!((dispatcher.shared_len(), dispatcher.devices[0].device.generation()), (1, 1));
    assert_eq!(begin(&mut dispatcher, 1, ms(10)), Some(7));
    assert!(dispatcher.finished(1, vec![7], ms(11)).is_none());

    (0..3).for_each(|item| drop(submit(&mut dispatcher, item, 0, ms(20))));
    assert_eq!(begin(&mut dispatcher, 0, ms(109)), None, "not before its time");
    assert_eq!(begin(&mut dispatcher, 0, ms(110)), Some(2), "the one that would have waited longest");
    assert!(!dispatcher.devices[0].health.is_working());
    assert!(dispatcher.finished(0, vec![2], ms(111)).is_none());
    assert!(dispatcher.devices[0].health.is_working());
    assert_eq!(begin(&mut dispatcher, 0, ms(111)), Some(0));
}

#[test]
fn a_device_that_fails_is_no_home() {
    let mut dispatcher = dispatcher(&[30.0, 10.0]);
    let home = SubmitOptions { priority: 0, home: Some((0, Duration::ZERO)) };
    (0..10).for_each(|item| drop(dispatcher.submit(item, home, ms(0))));
    assert_eq!(begin(&mut dispatcher, 1, ms(0)), None, "they wait for their home");
    assert_eq!(begin(&mut dispatcher, 0, ms(0)), Some(0));
    dispatcher.failed(0, lost(), ms(1));
    assert_eq!((queued(&dispatcher), dispatcher.shared_len()), (vec![0, 0], 10));
    assert_eq!(begin(&mut dispatcher, 1, ms(1)), Some(0));
    assert!(dispatcher.submit(10, home, ms(1)).is_ok());
    assert_eq!((queued(&dispatcher), dispatcher.shared_len()), (vec![0, 0], 10), "nor for what comes later");
}

#[test]
fn priorities_order_own_and_shared_pieces_together() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    let home = |priority| SubmitOptions { priority, home: Some((0, Duration::ZERO)) };
    for (item, priority) in [(0, 1), (1, 5), (2, 3)] {
        assert!(dispatcher.submit(item, home(priority), ms(0)).is_ok());
    }
    for (item, priority) in [(10, 4), (11, 1), (12, 6)] {
        submit(&mut dispatcher, item, priority, ms(0));
    }
    let mut order = Vec::new();
    while let Some(item) = begin(&mut dispatcher, 0, ms(1)) {
        order.push(item);
        dispatcher.finished(0, vec![item], ms(1));
    }
    assert_eq!(order, [12, 1, 10, 2, 0, 11]);
}

#[test]
fn a_batch_has_the_first_pieces_and_is_taken_when_it_is_full_or_due() {
    let mut dispatcher = dispatcher(&[10.0]);
    dispatcher.batch = BatchLimits { pieces: 3, delay: ms(20) };
    let size = |next: &Next<u32>| match next {
        Next::Run(super::BatchItems { items, .. }) => items.to_vec(),
        _ => Vec::new(),
    };
    submit(&mut dispatcher, 0, 0, ms(0));
    assert!(
        matches!(dispatcher.next_work(0, Some(0), ms(1)), Next::Wait { until: Some(until) } if until == ms(20))
    );
    submit(&mut dispatcher, 1, 1, ms(5));
    assert!(
        matches!(dispatcher.next_work(0, Some(0), ms(19)), Next::Wait { until: Some(until) } if until == ms(20))
    );
    assert_eq!(
        size(&dispatcher.next_work(0, Some(0), ms(20))),
        [1, 0],
        "in order, and no longer than the oldest may wait"
    );
    dispatcher.finished(0, vec![0; 2], ms(21));
    (2..7).for_each(|item| drop(submit(&mut dispatcher, item, i32::from(item == 6), ms(30))));
    assert_eq!(size(&dispatcher.next_work(0, Some(0), ms(30))), [6, 2, 3]);
    // After a device's error all of them wait again, each alone.
    dispatcher.failed(0, lost(), ms(31));
    assert_eq!(dispatcher.outstanding, 5);
    for _ in 0..5 {
        let next = dispatcher.next_work(0, Some(1), ms(200));
        assert!(
            matches!(next, Next::Run(super::BatchItems { count: 1, .. })) || dispatcher.shared_len() == 0
        );
        let Next::Run(super::BatchItems { count, .. }) = next else { break };
        dispatcher.finished(0, vec![0; count], ms(200));
    }
    let Next::Run(super::BatchItems { count, .. }) = dispatcher.next_work(0, Some(1), ms(220)) else {
        return assert_eq!(dispatcher.outstanding, 0);
    };
    dispatcher.finished(0, vec![0; count], ms(220));
    assert_eq!(dispatcher.outstanding, 0);
}

#[test]
fn a_piece_with_a_home_is_not_left_to_a_worker_of_another_device() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    dispatcher.batch = BatchLimits { pieces: 3, delay: ms(20) };
    submit(&mut dispatcher, 0, 0, ms(0));
    assert!(matches!(dispatcher.next_work(0, Some(0), ms(1)), Next::Wait { until: Some(_) }));
    dispatcher.devices[0].timers += 1;
    assert!(dispatcher.to_wake(ms(2)).is_empty(), "one worker waits until the batch is due, which is enough");
    let options = SubmitOptions { priority: 0, home: Some((1, ms(5))) };
    let _answer = dispatcher.submit(1, options, ms(3)).ok();
    assert!(dispatcher.to_wake(ms(3)).contains(&(1, 1)));
}

#[test]
fn a_batch_that_does_not_fit_is_halved_and_its_device_stays_well() {
    let mut dispatcher = dispatcher(&[10.0]);
    dispatcher.batch = BatchLimits { pieces: 8, delay: ms(0) };
    (0..16).for_each(|item| drop(submit(&mut dispatcher, item, 0, ms(0))));
    assert!(matches!(dispatcher.next_work(0, Some(0), ms(0)), Next::Run(super::BatchItems { count: 8, .. })));
    let (device, operation, detail) = ("cpu".into(), "a test".into(), String::new());
    let error = Error::OutOfMemory { device, operation, requested: 1, available: None, detail };
    dispatcher.failed(0, error, ms(1));
    assert!(dispatcher.devices[0].health.is_working());
    let mut sizes = Vec::new();
    while let Next::Run(super::BatchItems { count, .. }) = dispatcher.next_work(0, Some(0), ms(1)) {
        sizes.push(count);
        assert!(dispatcher.finished(0, vec![0; count], ms(1)).is_none());
    }
    assert_eq!(sizes, [1, 1, 1, 1, 1, 1, 1, 1, 4, 4]);
}

/// Runs the watcher every ten milliseconds until a time.
fn watch(dispatcher: &mut TestDispatcher, now: &mut Time, until: Time) {
    while *now < until {
        *now += WATCH_INTERVAL;
        dispatcher.watch(*now);
    }
}

#[test]
fn a_straggler_is_copied_and_its_worker_is_hung_once_the_copy_is_done() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    teach(&mut dispatcher, 0, ms(2));
    teach(&mut dispatcher, 1, ms(1));
    let mut now = ms(1_000);
    let (answer, _) = submit(&mut dispatcher, 7, 0, now);
    assert_eq!(begin(&mut dispatcher, 1, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(1_490));
    assert_eq!(begin(&mut dispatcher, 0, now), None, "not late yet");
    watch(&mut dispatcher, &mut now, ms(1_500));
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(1_600));
    assert!(
        dispatcher.devices[1].workers == 1 && dispatcher.devices[1].health.is_working(),
        "a guess is no verdict"
    );
    assert!(dispatcher.finished(0, vec![21], now).is_none() && answer.is_ready());
    assert_eq!(dispatcher.devices[1].workers, 1);
    watch(&mut dispatcher, &mut now, ms(1_990));
    assert_eq!(dispatcher.devices[1].workers, 1, "the copy took 100 ms, ten times of which are not over");
    watch(&mut dispatcher, &mut now, ms(2_000));
    assert!(dispatcher.devices[1].workers == 0 && !dispatcher.devices[1].health.is_working());
    assert_eq!(
        dispatcher.finished(1, vec![8], now),
        Some(vec![8]),
        "the result of a dismissed worker is dropped"
    );
    assert_eq!(
        (dispatcher.devices[0].done, dispatcher.devices[1].failed, dispatcher.devices[0].copied),
        (2, 1, 1)
    );
}

#[test]
fn a_device_that_is_slower_by_nature_has_longer_before_evidence_counts() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    teach(&mut dispatcher, 0, ms(1));
    teach(&mut dispatcher, 1, ms(50));
    push(&mut dispatcher, 1, 7, 0);
    let mut now = ms(1_000);
    assert_eq!(begin(&mut dispatcher, 1, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(1_500));
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    now += ms(10);
    dispatcher.finished(0, vec![21], now);
    // Ten milliseconds there are half a second here, and the limit is ten times that.
    watch(&mut dispatcher, &mut now, ms(5_990));
    assert_eq!(dispatcher.devices[1].workers, 1);
    watch(&mut dispatcher, &mut now, ms(6_000));
    assert_eq!(dispatcher.devices[1].workers, 0);
}

#[test]
fn of_two_results_the_first_is_the_answer_and_the_slow_device_stays_well() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    teach(&mut dispatcher, 0, ms(1));
    teach(&mut dispatcher, 1, ms(1));
    let mut now = ms(1_000);
    push(&mut dispatcher, 0, 7, 0);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(1_500));
    assert_eq!(begin(&mut dispatcher, 1, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(4_000));
    assert!(dispatcher.finished(0, vec![21], now).is_none());
    watch(&mut dispatcher, &mut now, ms(5_000));
    assert_eq!(dispatcher.finished(1, vec![21], now), Some(vec![21]), "it was answered before");
    assert_eq!((dispatcher.outstanding, dispatcher.devices[0].done, dispatcher.devices[1].done), (0, 2, 1));
    assert!(
        dispatcher.is_idle() && dispatcher.devices.iter().all(|it| it.workers == 1 && it.health.is_working())
    );
    assert!(dispatcher.devices.iter().all(|it| it.device.counters.active() == 0));
}

#[test]
fn pieces_of_a_slow_device_go_to_the_shared_queue() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    teach(&mut dispatcher, 0, ms(1));
    teach(&mut dispatcher, 1, ms(1));
    let mut now = ms(1_000);
    (0..10).for_each(|item| push(&mut dispatcher, 0, item, 0));
    (0..10).for_each(|item| push(&mut dispatcher, 1, 20 + item, 0));
    assert!(begin(&mut dispatcher, 0, now).is_some() && begin(&mut dispatcher, 1, now).is_some());
    now += ms(1);
    dispatcher.finished(1, vec![0], now);
    watch(&mut dispatcher, &mut now, ms(1_510));
    assert_eq!((queued(&dispatcher), dispatcher.shared_len()), (vec![0, 9], 9));
    assert!(dispatcher.submit(40, SubmitOptions { priority: 0, home: Some((0, ms(0))) }, now).is_ok());
    dispatcher.rebalance_if_due(ms(3_000));
    assert_eq!((queued(&dispatcher), dispatcher.shared_len()), (vec![0, 9], 10), "nothing new goes there");
}

#[test]
fn time_in_which_the_process_was_stopped_counts_for_no_piece() {
    let mut dispatcher =
        dispatcher_with(&[10.0, 10.0], Limits { piece: Some(ms(1_000)), ..no_limits() }, false);
    let mut now = ms(0);
    push(&mut dispatcher, 0, 7, 0);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(500));
    now += Duration::from_secs(3_600);
    dispatcher.watch(now);
    // A piece that began after the stop gets no extra time.
    push(&mut dispatcher, 1, 8, 0);
    assert_eq!(begin(&mut dispatcher, 1, now), Some(8));
    let resumed = now;
    watch(&mut dispatcher, &mut now, resumed + ms(480));
    assert_eq!(dispatcher.devices[0].workers, 1);
    watch(&mut dispatcher, &mut now, resumed + ms(500));
    assert_eq!(
        (dispatcher.devices[0].workers, dispatcher.devices[1].workers),
        (0, 1),
        "a second without the stop"
    );
    watch(&mut dispatcher, &mut now, resumed + ms(1_000));
    assert_eq!(dispatcher.devices[1].workers, 0);
}

#[test]
fn a_stop_that_a_worker_sees_first_is_no_part_of_a_pieces_time() {
    let mut dispatcher = dispatcher(&[10.0]);
    let mut now = ms(0);
    push(&mut dispatcher, 0, 7, 0);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(50));
    now += Duration::from_secs(100);
    dispatcher.detect_pause(now);
    dispatcher.finished(0, vec![21], now);
    assert_eq!(dispatcher.devices[0].mean.time(), Some(ms(60)));
}

#[test]
fn plain_code_is_waited_for() {
    let mut dispatcher = dispatcher_with(&[10.0, 10.0], no_limits(), false);
    teach(&mut dispatcher, 0, ms(1));
    teach(&mut dispatcher, 1, ms(1));
    let mut now = ms(0);
    push(&mut dispatcher, 0, 7, 0);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, Duration::from_secs(600));
    assert_eq!(begin(&mut dispatcher, 1, now), None);
    assert!(dispatcher.finished(0, vec![21], now).is_none());
    assert_eq!((dispatcher.outstanding, dispatcher.devices[0].failed), (0, 0));
}

#[test]
fn a_device_without_evidence_gets_the_silence_limit_and_another_try() {
    let mut dispatcher = dispatcher(&[10.0]);
    teach(&mut dispatcher, 0, ms(700));
    let mut now = ms(0);
    let (answer, _) = submit(&mut dispatcher, 7, 0, now);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(69_990));
    assert_eq!(dispatcher.devices[0].workers, 1, "a hundred times the longest piece");
    watch(&mut dispatcher, &mut now, ms(70_000));
    assert_eq!((dispatcher.devices[0].workers, dispatcher.shared_len()), (0, 1));
    let worker = dispatcher.add_worker(0);
    watch(&mut dispatcher, &mut now, ms(70_100));
    assert!(is_piece(&dispatcher.next_work(worker, Some(1), now), 7));
    assert!(dispatcher.finished(worker, vec![21], now).is_none() && answer.is_ready());
}

#[test]
fn devices_that_hang_with_the_same_piece_are_tried_one_after_another() {
    let mut dispatcher =
        dispatcher_with(&[10.0, 10.0], Limits { silence: Some(ms(5_000)), ..no_limits() }, true);
    let mut now = ms(0);
    push(&mut dispatcher, 0, 7, 0);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(1_000));
    assert_eq!(begin(&mut dispatcher, 1, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(5_990));
    assert_eq!(
        (dispatcher.devices[0].workers, dispatcher.devices[1].workers),
        (1, 1),
        "the copy has been silent for less"
    );
    watch(&mut dispatcher, &mut now, ms(6_000));
    assert_eq!(
        (dispatcher.devices[0].workers, dispatcher.devices[1].workers),
        (0, 1),
        "the first is tried again before the second"
    );
    let worker = dispatcher.add_worker(0);
    watch(&mut dispatcher, &mut now, ms(6_110));
    assert!(is_piece(&dispatcher.next_work(worker, Some(1), now), 7));
    now += ms(10);
    assert!(dispatcher.finished(worker, vec![21], now).is_none());
    assert!(dispatcher.devices[0].health.is_working());
    dispatcher.watch(now);
    assert_eq!(dispatcher.devices[1].workers, 0, "now there is evidence");
}

#[test]
fn one_transient_error_on_each_device_fails_no_piece() {
    let timed_out = || Error::TimedOut {
        device: "cpu".into(),
        operation: "a test".into(),
        after: Duration::from_secs(1),
    };
    let wrong =
        || Error::BadResult { device: "cpu".into(), operation: "a test".into(), detail: String::new() };
    for devices in 1..=2 {
        for error in [lost as fn() -> Error, timed_out, wrong] {
            let mut dispatcher = dispatcher(&vec![10.0; devices]);
            let (answer, _) = submit(&mut dispatcher, 7, 0, ms(0));
            let mut failures = 0;
            let mut now = ms(0);
            while !answer.is_ready() {
                now += WATCH_INTERVAL;
                assert!(now < ms(1_000));
                dispatcher.watch(now);
                for worker in 0..devices as u64 {
                    if begin(&mut dispatcher, worker, now).is_some() {
                        if failures < devices {
                            failures += 1;
                            dispatcher.failed(worker, error(), now);
                        } else {
                            assert!(dispatcher.finished(worker, vec![21], now).is_none());
                        }
                    }
                }
            }
            let done: u64 = dispatcher.devices.iter().map(|device| device.done).sum();
            assert_eq!((done, failures), (1, devices));
        }
    }
}

#[test]
fn a_canary_does_not_wait_for_an_attempt_from_before_the_quarantine() {
    let device = Arc::new(PoolDevice::new(0, Device::cpu()));
    let mut dispatcher = Dispatcher::new(
        vec![DeviceQueue::new(device, 10.0, 2, true)],
        BalancerSettings::default(),
        no_limits(),
        alone(),
        1000,
    );
    let workers = [dispatcher.add_worker(0), dispatcher.add_worker(0)];
    let answers = [0, 1].map(|item| submit(&mut dispatcher, item, 0, ms(0)).0);
    for worker in workers {
        assert!(matches!(dispatcher.next_work(worker, Some(0), ms(0)), Next::Run(super::BatchItems { .. })));
    }
    dispatcher.failed(workers[1], lost(), ms(1));
    let mut now = ms(0);
    watch(&mut dispatcher, &mut now, ms(110));
    assert!(is_piece(&dispatcher.next_work(workers[1], Some(1), now), 1));
    dispatcher.finished(workers[1], vec![3], now);
    // The first worker's batch, from before the device was opened again, is copied to the device itself.
    watch(&mut dispatcher, &mut now, ms(600));
    assert!(is_piece(&dispatcher.next_work(workers[1], Some(1), now), 0));
    dispatcher.finished(workers[1], vec![0], now);
    watch(&mut dispatcher, &mut now, ms(610));
    assert!(answers.iter().all(|answer| answer.is_ready()));
    assert!(dispatcher.devices[0].workers == 1 && dispatcher.devices[0].health.is_working());
}

/// A dispatcher of two devices with this maximum of workers, and no worker yet.
fn dispatcher_of_many(workers: usize) -> TestDispatcher {
    let device =
        |index| DeviceQueue::new(Arc::new(PoolDevice::new(index, Device::cpu())), 10.0, workers, true);
    Dispatcher::new(vec![device(0), device(1)], BalancerSettings::default(), no_limits(), alone(), 1000)
}

#[test]
fn a_canary_does_not_wait_for_workers_that_prepare_an_old_generation() {
    let mut dispatcher = dispatcher_of_many(3);
    let workers = [0, 0, 0].map(|device| dispatcher.add_worker(device));
    (0..3).for_each(|item| push(&mut dispatcher, 0, item, 0));
    assert!(matches!(dispatcher.next_work(workers[0], None, ms(0)), Next::Prepare));
    dispatcher.prepared(workers[0], u64::MAX);
    assert!(matches!(dispatcher.next_work(workers[0], Some(0), ms(0)), Next::Run(super::BatchItems { .. })));
    assert!(matches!(dispatcher.next_work(workers[1], None, ms(0)), Next::Prepare));
    assert!(matches!(dispatcher.next_work(workers[2], None, ms(0)), Next::Prepare));
    dispatcher.failed(workers[0], lost(), ms(1));
    assert!(
        matches!(dispatcher.next_work(workers[0], Some(0), ms(1)), Next::Exit),
        "it gives back what it holds"
    );
    assert_eq!(dispatcher.device_needing_worker(ms(101)), Some(0), "no other worker will try it");
    let fresh = dispatcher.add_worker(0);
    assert!(matches!(dispatcher.next_work(fresh, None, ms(101)), Next::Prepare));
    // Workers of an old generation are removed when they come back, and their errors are ignored.
    dispatcher.prepared(workers[1], u64::MAX);
    dispatcher.prepare_failed(workers[2], 0, lost(), ms(102));
    assert!(matches!(dispatcher.next_work(workers[1], Some(0), ms(102)), Next::Exit));
    assert!(matches!(dispatcher.next_work(workers[2], None, ms(102)), Next::Exit));
    assert_eq!(
        (dispatcher.devices[0].workers, dispatcher.devices[0].preparing, dispatcher.devices[0].canary_worker),
        (1, 1, Some(fresh))
    );
}

#[test]
fn no_piece_waits_for_a_device_that_is_being_prepared() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    let mut now = ms(100);
    push(&mut dispatcher, 0, 7, 0);
    submit(&mut dispatcher, 8, 0, now);
    assert!(matches!(dispatcher.next_work(0, None, now), Next::Prepare));
    assert_eq!(begin(&mut dispatcher, 1, now), Some(8));
    dispatcher.finished(1, vec![0], ms(110));
    watch(&mut dispatcher, &mut now, ms(590));
    assert_eq!(
        (queued(&dispatcher), dispatcher.shared_len()),
        (vec![1, 0], 0),
        "a home is waited for, for half a second"
    );
    watch(&mut dispatcher, &mut now, ms(600));
    assert_eq!((queued(&dispatcher), dispatcher.shared_len()), (vec![0, 0], 1));
    assert_eq!(begin(&mut dispatcher, 1, now), Some(7));
    dispatcher.prepared(0, u64::MAX);
    assert!(!dispatcher.devices[0].stall.unready);
}

#[test]
fn a_copy_does_not_wait_for_a_device_that_is_being_prepared() {
    let mut dispatcher = dispatcher(&[10.0, 10.0, 10.0]);
    (0..3).for_each(|worker| teach(&mut dispatcher, worker, ms(1)));
    let mut now = ms(1_000);
    push(&mut dispatcher, 0, 7, 0);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(1_500));
    assert!(matches!(dispatcher.next_work(1, None, now), Next::Prepare));
    assert_eq!(begin(&mut dispatcher, 2, now), Some(7));
    dispatcher.prepared(1, u64::MAX);
    assert_eq!(begin(&mut dispatcher, 1, now), None, "one copy at a time");
}

#[test]
fn a_workers_first_piece_is_not_judged_by_another_devices_time() {
    let mut dispatcher =
        dispatcher_with(&[10.0, 10.0], Limits { silence: Some(ms(20_000)), ..no_limits() }, true);
    teach(&mut dispatcher, 1, ms(1));
    let mut now = ms(1_000);
    // The device takes three seconds to compile the code.
    push(&mut dispatcher, 0, 7, 0);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(1_500));
    assert_eq!(begin(&mut dispatcher, 1, now), Some(7));
    now += ms(1);
    assert!(dispatcher.finished(1, vec![21], now).is_none());
    watch(&mut dispatcher, &mut now, ms(4_000));
    assert_eq!(dispatcher.finished(0, vec![21], now), Some(vec![21]));
    assert!(
        dispatcher.devices[0].workers == 1 && dispatcher.devices[0].health.is_working(),
        "it was slow, and is well"
    );
    (0..100).for_each(|_| dispatcher.devices[0].mean.learn(ms(1)));

    // The worker's second piece is not a first one.
    push(&mut dispatcher, 0, 8, 0);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(8));
    watch(&mut dispatcher, &mut now, ms(4_510));
    assert_eq!(begin(&mut dispatcher, 1, now), Some(8));
    now += ms(1);
    assert!(dispatcher.finished(1, vec![24], now).is_none());
    watch(&mut dispatcher, &mut now, ms(4_530));
    assert_eq!(dispatcher.devices[0].workers, 0);

    // After the device is opened again, its next piece is a first one: the limit is ten times the longest first piece.
    watch(&mut dispatcher, &mut now, ms(5_000));
    let worker = dispatcher.add_worker(0);
    submit(&mut dispatcher, 9, 0, now);
    assert!(matches!(dispatcher.next_work(worker, None, now), Next::Prepare));
    dispatcher.prepared(worker, u64::MAX);
    assert!(matches!(dispatcher.next_work(worker, Some(1), now), Next::Run(super::BatchItems { .. })));
    watch(&mut dispatcher, &mut now, ms(5_510));
    assert_eq!(begin(&mut dispatcher, 1, now), Some(9));
    now += ms(1);
    assert!(dispatcher.finished(1, vec![27], now).is_none());
    watch(&mut dispatcher, &mut now, ms(34_980));
    assert_eq!(dispatcher.devices[0].workers, 1);
    watch(&mut dispatcher, &mut now, ms(35_010));
    assert_eq!(dispatcher.devices[0].workers, 0);
}

#[test]
fn a_device_that_hangs_with_its_first_piece_has_the_silence_limit() {
    let mut dispatcher =
        dispatcher_with(&[10.0, 10.0], Limits { silence: Some(ms(20_000)), ..no_limits() }, true);
    teach(&mut dispatcher, 1, ms(1));
    let mut now = ms(1_000);
    let (answer, _) = submit(&mut dispatcher, 7, 0, now);
    assert_eq!(begin(&mut dispatcher, 0, now), Some(7));
    watch(&mut dispatcher, &mut now, ms(1_500));
    assert_eq!(begin(&mut dispatcher, 1, now), Some(7));
    now += ms(1);
    assert!(dispatcher.finished(1, vec![21], now).is_none() && answer.is_ready());
    watch(&mut dispatcher, &mut now, ms(20_980));
    assert_eq!(dispatcher.devices[0].workers, 1);
    watch(&mut dispatcher, &mut now, ms(21_010));
    assert!(dispatcher.devices[0].workers == 0 && !dispatcher.devices[0].health.is_working());
}

#[test]
fn a_piece_that_fails_on_every_device_gets_all_errors() {
    let mut dispatcher = dispatcher(&[10.0, 10.0]);
    let (answer, _) = submit(&mut dispatcher, 7, 0, ms(0));
    let no_queue: std::sync::Weak<super::super::shared::Shared<crate::KernelTask<u32, u32>>> =
        Default::default();
    let key = PieceKey { priority: std::cmp::Reverse(0), number: 0 };
    let handle = super::super::Handle::new(answer, key, no_queue);
    let mut now = ms(0);
    let mut tries = Vec::new();
    while !handle.is_done() {
        now += ms(500);
        assert!(now < ms(10_000), "{tries:?}");
        for worker in 0..2 {
            if begin(&mut dispatcher, worker, now).is_some() {
                tries.push(worker);
                dispatcher.failed(worker, lost(), now);
            }
        }
    }
    assert_eq!(tries.iter().filter(|&&worker| worker == 0).count(), 4, "{tries:?}");
    assert_eq!(tries.len(), 8, "{tries:?}");
    assert!(matches!(handle.wait(), Err(QueueError::NoDeviceLeft { failures }) if failures.len() == 8));
    assert_eq!(dispatcher.outstanding, 0);
}

#[test]
fn pieces_that_move_between_devices_stay_in_order_and_are_counted() {
    let mut dispatcher = dispatcher(&[1000.0, 1.0]);
    let home = |priority, device| SubmitOptions { priority, home: Some((device, Duration::ZERO)) };
    for (item, priority) in [0, 5, 0, 5, 1].into_iter().enumerate() {
        assert!(dispatcher.submit(item as u32, home(priority, 0), ms(0)).is_ok());
    }
    assert!(dispatcher.submit(8, home(-1, 1), ms(0)).is_ok());
    assert_eq!(queued(&dispatcher), [5, 1]);
    dispatcher.rebalance_if_due(ms(1));
    assert_eq!(queued(&dispatcher), [3, 3]);
    assert!(dispatcher.submit(9, home(9, 0), ms(1)).is_ok());
    let counted = |dispatcher: &TestDispatcher, device: usize| {
        dispatcher.devices[device].device.counters.queued.load(Relaxed)
    };
    assert_eq!((counted(&dispatcher, 0), counted(&dispatcher, 1)), (4, 3));
    let mut order = |worker: u64| {
        let mut order = Vec::new();
        while let Some(item) = begin(&mut dispatcher, worker, ms(2)) {
            order.push(item);
            dispatcher.finished(worker, vec![item], ms(3));
        }
        order
    };
    assert_eq!((order(0), order(1)), (vec![9, 1, 3, 4], vec![0, 2, 8]));
    assert_eq!(dispatcher.balanced().pieces, 2);
    assert_eq!((dispatcher.devices[0].moved_out, dispatcher.devices[1].moved_in), (2, 2));
    assert_eq!((counted(&dispatcher, 0), counted(&dispatcher, 1)), (0, 0));
}

/// What a worker was checked to do.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Assignment {
    Idle,
    Ready,
    Batch(usize),
}

/// Drives a dispatcher as workers and a clock would, in virtual time.
struct Drive {
    dispatcher: TestDispatcher,
    workers: Vec<(u64, usize, Option<u64>, Assignment)>,
    answers: Vec<Arc<PendingResult<u32>>>,
    keys: Vec<PieceKey>,
    now: Time,
}

impl Drive {
    fn add_worker(&mut self) {
        while let Some(device) = self.dispatcher.device_needing_worker(self.now) {
            self.workers.push((self.dispatcher.add_worker(device), device, None, Assignment::Idle));
        }
    }

    /// A worker's next step, which succeeds or fails.
    fn step(&mut self, index: usize, error: Option<Error>) {
        let (worker, device, generation, given) = self.workers[index];
        match (given, error) {
            (Assignment::Batch(count), None) => {
                drop(self.dispatcher.finished(worker, vec![0; count], self.now))
            }
            (Assignment::Batch(_), Some(error)) => self.dispatcher.failed(worker, error, self.now),
            (Assignment::Ready, None) => self.dispatcher.prepared(worker, 3),
            (Assignment::Ready, Some(error)) => {
                self.dispatcher.prepare_failed(worker, generation.unwrap_or(0), error, self.now);
                self.workers[index].2 = None;
            }
            (Assignment::Idle, _) => {}
        }
        self.workers[index].3 = match self.dispatcher.next_work(worker, self.workers[index].2, self.now) {
            Next::Run(super::BatchItems { count, .. }) => Assignment::Batch(count),
            Next::Prepare => {
                self.workers[index].2 = Some(self.dispatcher.devices[device].device.generation());
                Assignment::Ready
            }
            Next::Wait { .. } => Assignment::Idle,
            Next::Exit => {
                self.workers.swap_remove(index);
                return;
            }
        };
    }

    fn watch(&mut self, passed: Duration) {
        self.now += passed;
        self.dispatcher.watch(self.now);
        self.dispatcher.rebalance_if_due(self.now);
        self.add_worker();
        self.check();
    }

    /// Checks the invariants.
    fn check(&mut self) {
        let queued = queued(&self.dispatcher).iter().sum::<usize>() + self.dispatcher.shared_len();
        let in_flight: usize = self.dispatcher.in_flight.values().map(|flight| flight.tickets.len()).sum();
        assert_eq!(self.dispatcher.outstanding, queued + in_flight, "each piece is in one queue");
        for device in &self.dispatcher.devices {
            assert_eq!(device.device.counters.queued.load(Relaxed), device.queued() as u64);
            assert!(
                device.workers >= device.active + device.preparing && device.workers <= device.max_workers
            );
            assert!(!device.health.is_retired() || device.queued() == 0);
        }
        let waiting = self.answers.iter().filter(|answer| !answer.is_ready()).count();
        assert_eq!(self.dispatcher.outstanding, waiting, "each piece has one answer");
        self.dispatcher.settled.clear();
    }
}

fn failure(kind: u8) -> Option<Error> {
    let (device, operation) = (evener_device::DeviceId::from("cpu"), "a test".to_owned());
    match kind {
        0 => Some(lost()),
        1 => Some(Error::Task { device, operation, item: None, message: String::new(), source: None }),
        2 => Some(Error::Unsupported { device, operation, detail: String::new() }),
        3 => Some(Error::BadResult { device, operation, detail: String::new() }),
        _ => None,
    }
}

proptest::proptest! {
    #[test]
    fn whatever_happens_each_piece_is_answered_once(
        count in 1usize..4,
        events in proptest::collection::vec((0u8..8, 0usize..8, 0u8..40, 0u64..700), 1..200),
    ) {
        let device = |index| Arc::new(PoolDevice::new(index, Device::cpu()));
        let devices = (0..count).map(|index| DeviceQueue::new(device(index), 10.0 + index as f64, 2, true));
        let settings = BalancerSettings { interval: ms(100), ..BalancerSettings::default() };
        let limits = Limits { prepare: Duration::from_secs(5), ..no_limits() };
        let batch = BatchLimits { pieces: 4, delay: ms(30) };
        let dispatcher = Dispatcher::new(devices.collect(), settings, limits, batch, 1000);
        let (workers, answers, keys) = (Vec::new(), Vec::new(), Vec::new());
        let mut drive = Drive { dispatcher, workers, answers, keys, now: ms(0) };
        for (event, which, kind, passed) in events {
            match event {
                0..3 => {
                    let item = drive.answers.len() as u32;
                    let home = (kind % 4 == 0).then_some((which % count, ms(passed)));
                    let options = SubmitOptions { priority: i32::from(kind) % 3, home };
                    let (answer, key) = drive.dispatcher.submit(item, options, drive.now).ok().unwrap();
                    drive.answers.push(answer);
                    drive.keys.push(key);
                    drive.add_worker();
                }
                3..6 if !drive.workers.is_empty() => drive.step(which % drive.workers.len(), failure(kind)),
                6 if kind < 5 && !drive.keys.is_empty() => {
                    let key = drive.keys[which % drive.keys.len()];
                    drive.dispatcher.withdraw(key);
                }
                _ => drive.watch(ms(passed)),
            }
            drive.check();
        }
        // From here on nothing fails, and hung workers are removed.
        drive.dispatcher.closed = true;
        for _ in 0..3000 {
            drive.watch(ms(200));
            for index in (0..drive.workers.len()).rev() {
                drive.step(index, None);
                drive.check();
            }
            if drive.dispatcher.is_over() {
                break;
            }
        }
        proptest::prop_assert!(drive.dispatcher.is_over(), "{} are left", drive.dispatcher.outstanding);
    }
}
