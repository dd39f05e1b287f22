mod failure;
mod stragglers;

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::{Duration, Instant},
};

use evener_device::{
    Description, Device, DeviceId, Error, Result,
    backend::{Backend, Source},
};

use super::*;
use crate::{Chunk, Closure, Results, sync::lock};

/// Runs a test, and fails it if it does not end within a minute.
fn within_a_minute(body: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let body = std::thread::spawn(move || {
        body();
        let _ = ended.send(());
    });
    if end.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("it hangs");
    }
    if let Err(panic) = body.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits until a condition holds; the test's watchdog ends a wait that never does.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The processor under another name, so that tests have any number of devices on any machine.
#[derive(Debug)]
struct Named {
    description: Description,
    under: Arc<dyn Source>,
}

impl Source for Named {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        self.under.open()
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        self.under.split(sizes)
    }
}

fn named(id: &str) -> Device {
    described(Description { id: id.into(), ..Device::cpu().describe().clone() })
}

/// The same with this many cores: a kernel task has as many workers on it.
fn cores(id: &str, count: u32) -> Device {
    let cpu = Device::cpu();
    described(Description { id: id.into(), compute_units: Some(count), ..cpu.describe().clone() })
}

fn described(description: Description) -> Device {
    let cpu = Device::cpu();
    Device::from_source(Arc::new(Named { description, under: cpu.source().clone() }))
}

type Run = dyn Fn(&DeviceId, u64) -> Result<u64> + Send + Sync;
type Prepare = dyn Fn(&DeviceId) -> Result<()> + Send + Sync;

/// A task that calls a closure with the device and the item.
#[derive(Clone)]
struct Probe {
    run: Arc<Run>,
    prepare: Arc<Prepare>,
    workers: usize,
    may_hang: bool,
    /// The number of runs of each piece.
    runs: Arc<Mutex<HashMap<u64, usize>>>,
}

impl Probe {
    fn new(run: impl Fn(&DeviceId, u64) -> Result<u64> + Send + Sync + 'static) -> Probe {
        let prepare = Arc::new(|_: &DeviceId| Ok(()));
        Probe { run: Arc::new(run), prepare, workers: 1, may_hang: false, runs: Arc::default() }
    }

    fn runs_of(&self, item: u64) -> usize {
        lock(&self.runs).get(&item).copied().unwrap_or(0)
    }
}

impl Task for Probe {
    type Input = u64;
    type Output = u64;
    type State = DeviceId;

    fn name(&self) -> &str {
        "probe"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn workers(&self, _: &Device) -> usize {
        self.workers
    }

    fn may_hang(&self, _: &Device) -> bool {
        self.may_hang
    }

    fn prepare(&self, device: &Device) -> Result<DeviceId> {
        (self.prepare)(device.id())?;
        Ok(device.id().clone())
    }

    fn run(&self, id: &mut DeviceId, chunk: &Chunk<'_, u64>, results: &mut Results<'_, u64>) -> Result<()> {
        let item = chunk.read(|items| items[0])?;
        *lock(&self.runs).entry(item).or_default() += 1;
        results.push((self.run)(id, item)?);
        Ok(())
    }

    fn check(&self, items: &[u64], results: &[u64]) -> Result<(), String> {
        let right = results[0] == 3 * items[0];
        right.then_some(()).ok_or_else(|| format!("{} is not three times {}", results[0], items[0]))
    }
}

/// Blocks threads until it is opened.
#[derive(Clone, Default)]
struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    fn open(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut open = lock(&self.0.0);
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }
}

/// A task that triples an item once the latch is open.
fn blocked_by_latch() -> (Latch, Probe) {
    let latch = Latch::default();
    let held = latch.clone();
    let task = Probe::new(move |_, item| {
        held.pass();
        Ok(3 * item)
    });
    (latch, task)
}

fn lost(device: &DeviceId) -> Error {
    Error::Lost { device: device.clone(), operation: "a test".into(), detail: "it is gone".into() }
}

/// Balancer settings without an interval.
fn without_interval() -> BalancerSettings {
    BalancerSettings { interval: Duration::from_millis(1), ..BalancerSettings::default() }
}

fn expect_all(handles: Vec<(u64, Handle<u64>)>) {
    for (item, handle) in handles {
        assert_eq!(handle.wait().unwrap_or_else(|error| panic!("{item}: {error}")), 3 * item);
    }
}

fn submit_all(queue: &Queue<Probe>, items: std::ops::Range<u64>) -> Vec<(u64, Handle<u64>)> {
    items.map(|item| (item, queue.submit(item).unwrap())).collect()
}

#[test]
fn every_piece_is_run_once_and_answered_with_its_own_result() {
    within_a_minute(|| {
        let task = Probe { workers: 2, ..Probe::new(|_, item| Ok(3 * item)) };
        let pool = Pool::new([named("a"), named("b")]).unwrap();
        let queue = pool.queue(&task).balancer(without_interval()).open().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let queue = &queue;
                scope.spawn(move || expect_all(submit_all(queue, thread * 1000..thread * 1000 + 250)));
            }
        });
        let statistics = queue.statistics();
        assert_eq!(statistics.devices.iter().map(|device| device.done).sum::<u64>(), 1000);
        assert_eq!(statistics.outstanding, 0);
        let runs = lock(&task.runs);
        assert_eq!(runs.len(), 1000);
        assert!(runs.values().all(|&runs| runs == 1));
    });
}

#[test]
fn cores_that_were_split_share_a_queue() {
    within_a_minute(|| {
        // A machine with one core has nothing to split.
        let parts = Device::cpu().split(&[1, 1]).unwrap_or_else(|_| vec![Device::cpu()]);
        let queue = Pool::new(parts).unwrap().queue(&Closure::new("triple", |n: &u64| 3 * n)).open().unwrap();
        let handles: Vec<_> = (0..100).map(|item| (item, queue.submit(item).unwrap())).collect();
        expect_all(handles);
    });
}

#[test]
fn higher_priorities_go_first_and_equals_in_order_of_arrival() {
    within_a_minute(|| {
        let (latch, order) = (Latch::default(), Arc::new(Mutex::new(Vec::new())));
        let (held, seen) = (latch.clone(), order.clone());
        let task = Probe::new(move |_, item| {
            held.pass();
            lock(&seen).push(item);
            Ok(3 * item)
        });
        let queue = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
        let first = queue.submit(0).unwrap();
        wait_until(|| queue.statistics().devices[0].active == 1);
        for (item, priority) in [(1, 0), (2, -3), (3, 7), (4, 0), (5, 7), (6, i32::MIN), (7, i32::MAX)] {
            queue.submit_with(item, priority).unwrap().detach();
        }
        latch.open();
        assert_eq!(first.wait().unwrap(), 0);
        queue.join();
        assert_eq!(*lock(&order), [0, 7, 3, 5, 1, 4, 2, 6]);
    });
}

#[test]
fn an_idle_device_takes_waiting_pieces() {
    within_a_minute(|| {
        let task = Probe::new(move |device, item| {
            std::thread::sleep(Duration::from_millis(if device.as_str() == "slow" { 300 } else { 1 }));
            Ok(3 * item)
        });
        let pool = Pool::new([named("slow"), named("fast")]).unwrap();
        let queue = pool.queue(&task).open().unwrap();
        let start = Instant::now();
        expect_all(submit_all(&queue, 0..100));
        // With a tenth of the pieces, the slow device would need three seconds.
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        (0..100).for_each(|item| assert_eq!(task.runs_of(item), 1, "piece {item}"));
        let statistics = queue.statistics();
        assert!(statistics.devices[1].done > 90, "{statistics:?}");
        assert_eq!((statistics.queued, statistics.balancer.pieces), (0, 0), "nothing had to be moved");
    });
}

#[test]
fn a_priority_counts_wherever_the_piece_is_done() {
    within_a_minute(|| {
        let (latches, order) = ([Latch::default(), Latch::default()], Arc::new(Mutex::new(Vec::new())));
        let (held, seen) = (latches.clone(), order.clone());
        let task = Probe::new(move |device, item| {
            held[usize::from(device.as_str() == "b")].pass();
            lock(&seen).push(item);
            Ok(3 * item)
        });
        let queue = Pool::new([named("a"), named("b")]).unwrap().queue(&task).open().unwrap();
        let begun = submit_all(&queue, 0..2);
        wait_until(|| queue.statistics().devices.iter().all(|device| device.active == 1));
        let low: Vec<_> = (10..20).map(|item| (item, queue.submit(item).unwrap())).collect();
        let high: Vec<_> = (20..24).map(|item| (item, queue.submit_with(item, 1).unwrap())).collect();
        // One device is busy for long: urgent pieces do not wait for it while the other runs pieces that are not.
        latches[1].open();
        wait_until(|| lock(&order).len() == 15);
        let done: Vec<u64> = lock(&order)[1..].to_vec();
        assert_eq!(done, (20..24).chain(10..20).collect::<Vec<u64>>());
        latches[0].open();
        for handles in [begun, low, high] {
            expect_all(handles);
        }
    });
}

#[test]
fn pieces_wait_for_their_home_and_the_balancer_moves_those_that_would_wait_too_long() {
    within_a_minute(|| {
        for (move_time, moves) in [(Duration::ZERO, true), (Duration::from_secs(60), false)] {
            let task = Probe::new(|_, item| {
                std::thread::sleep(Duration::from_millis(10));
                Ok(3 * item)
            });
            let pool = Pool::new([named("home"), named("other")]).unwrap();
            let queue = pool.queue(&task).balancer(without_interval()).open().unwrap();
            while queue.statistics().devices.iter().any(|device| device.done == 0) {
                expect_all(submit_all(&queue, 100..120));
            }
            let before = queue.statistics().devices[1].done;
            let submit = |item| queue.piece(item).home(&"home".into(), move_time).submit().unwrap();
            expect_all((0..40).map(|item| (item, submit(item))).collect());
            let statistics = queue.statistics();
            assert_eq!(statistics.devices[1].done > before, moves, "{statistics:?}");
            assert_eq!(statistics.balancer.pieces > 0, moves, "{statistics:?}");
            assert_eq!(statistics.devices[0].moved_out, statistics.devices[1].moved_in);
        }
    });
}

#[test]
fn pieces_are_done_in_batches_that_are_full_or_due() {
    within_a_minute(|| {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let task = Closure::of_chunks("triple", move |items: &[u64], results: &mut Results<'_, u64>| {
            // Slices of a chunk grow, so the test counts the slices.
            lock(&seen).push(items.len());
            results.extend(items.iter().map(|item| 3 * item));
            Ok(())
        });
        let pool = Pool::new([cores("a", 1)]).unwrap();
        let delay = Duration::from_millis(150);
        let queue = pool.queue(&task).batch(8, delay).open().unwrap();
        // A full batch does not wait.
        let start = Instant::now();
        let handles: Vec<_> = (0..16).map(|item| (item, queue.submit(item).unwrap())).collect();
        expect_all(handles);
        assert!(start.elapsed() < delay, "{:?}", start.elapsed());
        // A batch that is not full waits until its oldest piece is due, and no longer.
        let start = Instant::now();
        let handles: Vec<_> = (0..3).map(|item| (item, queue.submit(item).unwrap())).collect();
        expect_all(handles);
        assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
        assert!(start.elapsed() < delay * 4, "{:?}", start.elapsed());
        assert_eq!(lock(&sizes).iter().sum::<usize>(), 19);
        // The rest does not wait once the queue is closed.
        let start = Instant::now();
        let handle = queue.submit(7).unwrap();
        queue.close();
        assert_eq!(handle.wait().unwrap(), 21);
        assert!(start.elapsed() < delay, "{:?}", start.elapsed());
    });
}

/// Records the sizes of its chunks.
#[derive(Clone, Default)]
struct Counting {
    sizes: Arc<Mutex<Vec<usize>>>,
    latch: Latch,
}

impl Task for Counting {
    type Input = u64;
    type Output = u64;
    type State = ();

    fn name(&self) -> &str {
        "counting"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn workers(&self, _: &Device) -> usize {
        1
    }

    fn prepare(&self, _: &Device) -> Result<()> {
        Ok(())
    }

    fn max_items(&self, (): &()) -> u64 {
        6
    }

    fn run(&self, (): &mut (), chunk: &Chunk<'_, u64>, results: &mut Results<'_, u64>) -> Result<()> {
        self.latch.pass();
        lock(&self.sizes).push(chunk.len());
        chunk.read(|items| {
            for &item in items {
                if item == 13 {
                    return Err(crate::task::task_error(&"a".into(), "a test".into(), "unlucky".into()));
                }
                results.push(3 * item);
            }
            Ok(())
        })?
    }
}

#[test]
fn an_error_in_a_batch_is_the_answer_of_its_piece_alone() {
    within_a_minute(|| {
        let task = Counting::default();
        let queue = Pool::new([named("a")]).unwrap().queue(&task).batch(10, Duration::ZERO).open().unwrap();
        let first = queue.submit(0).unwrap();
        wait_until(|| queue.statistics().devices[0].active == 1);
        let handles: Vec<_> = (10..22).map(|item| (item, queue.submit(item).unwrap())).collect();
        task.latch.open();
        assert_eq!(first.wait().unwrap(), 0);
        for (item, handle) in handles {
            match (item, handle.wait()) {
                (13, Err(QueueError::Task { error })) => assert!(error.to_string().contains("unlucky")),
                (_, result) => assert_eq!(result.unwrap(), 3 * item),
            }
        }
        let sizes = lock(&task.sizes);
        assert_eq!(*sizes, [1, 6, 1, 1, 1, 1, 1, 1, 6], "no batch is larger than what fits");
    });
}

#[test]
fn a_full_queue_takes_a_piece_once_another_has_its_answer() {
    within_a_minute(|| {
        let (latch, task) = blocked_by_latch();
        let queue = Pool::new([named("a")]).unwrap().queue(&task).capacity(3).open().unwrap();
        let handles = submit_all(&queue, 0..3);
        assert!(matches!(queue.try_submit(9), Err(TrySubmitError::Full(9))));
        assert!(handles[2].1.cancel(), "which makes room");
        handles.into_iter().for_each(|(_, handle)| handle.detach());
        let fourth = queue.try_submit(4).unwrap();
        std::thread::scope(|scope| {
            let submit = scope.spawn(|| queue.submit(5).unwrap().wait().unwrap());
            let awaited = scope.spawn(|| {
                pollster::block_on(async { queue.piece(6).priority(1).await.unwrap().await.unwrap() })
            });
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(queue.statistics().outstanding, 3, "no more than the capacity");
            assert!(!submit.is_finished() && !awaited.is_finished());
            latch.open();
            assert_eq!((submit.join().unwrap(), awaited.join().unwrap()), (15, 18));
        });
        assert_eq!(fourth.wait().unwrap(), 12);
        queue.close();
        assert!(matches!(queue.try_submit(7), Err(TrySubmitError::Closed(7))));
        let closed = pollster::block_on(async { queue.piece(8).await.map(Handle::detach) });
        assert!(matches!(closed, Err(QueueError::Closed)));
    });
}

#[test]
fn closing_a_full_queue_wakes_threads_that_wait_to_submit() {
    within_a_minute(|| {
        let (latch, task) = blocked_by_latch();
        let queue = Pool::new([named("a")]).unwrap().queue(&task).capacity(1).open().unwrap();
        let first = queue.submit(1).unwrap();
        std::thread::scope(|scope| {
            let submit = scope.spawn(|| queue.submit(2).map(Handle::detach));
            let awaited =
                scope.spawn(|| pollster::block_on(async { queue.piece(3).await.map(Handle::detach) }));
            std::thread::sleep(Duration::from_millis(20));
            queue.close();
            assert!(matches!(submit.join().unwrap(), Err(QueueError::Closed)));
            assert!(matches!(awaited.join().unwrap(), Err(QueueError::Closed)));
        });
        latch.open();
        assert_eq!(first.wait().unwrap(), 3);
    });
}

#[test]
fn dropping_a_handle_cancels_its_piece_and_detaching_it_does_not() {
    within_a_minute(|| {
        let (latch, task) = blocked_by_latch();
        let queue = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
        let begun = queue.submit(1).unwrap();
        wait_until(|| queue.statistics().devices[0].active == 1);
        drop(queue.submit(2).unwrap());
        queue.submit(3).unwrap().detach();
        assert_eq!((queue.statistics().queued, queue.statistics().outstanding), (1, 2));
        drop(begun);
        assert_eq!(queue.statistics().outstanding, 2, "a device has begun with it");
        latch.open();
        queue.join();
        assert_eq!([1, 2, 3].map(|item| task.runs_of(item)), [1, 0, 1]);
    });
}

#[test]
fn the_pools_statistics_show_queued_pieces() {
    within_a_minute(|| {
        let latch = Latch::default();
        let held = latch.clone();
        let task = Probe::new(move |device, item| {
            held.pass();
            if item == 4 {
                Err(crate::task::task_error(device, "a test".into(), "no".into()))
            } else {
                Ok(3 * item)
            }
        });
        let pool = Pool::new([named("a")]).unwrap();
        let queue = pool.queue(&task).open().unwrap();
        let handles = submit_all(&queue, 0..5);
        wait_until(|| queue.statistics().devices[0].active == 1);
        let homed = queue.piece(9).home(&"a".into(), Duration::ZERO).submit().unwrap();
        let now = &pool.statistics()[0];
        assert_eq!((now.queued, now.active, now.done, now.failed), (1, 1, 0, 0));
        assert_eq!(queue.statistics().queued, 4);
        assert!(handles[3].1.cancel() && homed.cancel());
        assert_eq!((pool.statistics()[0].queued, queue.statistics().queued), (0, 3));
        latch.open();
        queue.join();
        let now = &pool.statistics()[0];
        assert_eq!((now.queued, now.active, now.done, now.failed), (0, 0, 3, 1));
    });
}

#[test]
fn a_piece_that_no_device_has_begun_can_be_cancelled() {
    within_a_minute(|| {
        let (latch, task) = blocked_by_latch();
        let queue = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
        let begun = queue.submit(1).unwrap();
        wait_until(|| queue.statistics().devices[0].active == 1);
        let (cancelled, dropped, kept) =
            (queue.submit(2).unwrap(), queue.submit(3).unwrap(), queue.submit(4).unwrap());
        assert!(!begun.cancel() && !cancelled.is_done());
        assert!(cancelled.cancel() && cancelled.is_done() && !cancelled.cancel());
        dropped.detach();
        let kept = kept.wait_timeout(Duration::from_millis(20)).expect_err("it is held back");
        latch.open();
        assert!(matches!(cancelled.wait(), Err(QueueError::Cancelled)));
        assert_eq!(begun.wait().unwrap(), 3);
        assert_eq!(kept.wait_timeout(Duration::from_secs(50)).expect("nothing holds it back").unwrap(), 12);
        assert_eq!([1, 2, 3, 4].map(|item| task.runs_of(item)), [1, 0, 1, 1]);
    });
}

#[test]
fn a_closed_queue_takes_nothing_and_a_joined_one_has_done_everything() {
    within_a_minute(|| {
        let task = Probe::new(|_, item| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(3 * item)
        });
        let queue = Pool::new([named("a"), named("b")]).unwrap().queue(&task).open().unwrap();
        let handles = submit_all(&queue, 0..50);
        queue.close();
        assert!(matches!(queue.submit(50), Err(QueueError::Closed)));
        queue.join();
        assert!(handles.iter().all(|(_, handle)| handle.is_done()));
        expect_all(handles);
        let idle = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
        idle.join();
    });
}

#[test]
fn a_dropped_queue_answers_every_handle_and_leaves_nothing_behind() {
    within_a_minute(|| {
        let (latch, alive) = (Latch::default(), Arc::new(()));
        let (held, kept) = (latch.clone(), alive.clone());
        let task = Probe::new(move |_, item| {
            let _kept = &kept;
            held.pass();
            Ok(3 * item)
        });
        let pool = Pool::new([named("a"), named("b")]).unwrap();
        let queue = pool.queue(&task).open().unwrap();
        drop(task);
        let handles = submit_all(&queue, 0..50);
        drop(queue);
        latch.open();
        expect_all(handles);
        wait_until(|| Arc::strong_count(&alive) == 1);
    });
}

#[test]
fn a_handle_is_a_future() {
    within_a_minute(|| {
        let (latch, task) = blocked_by_latch();
        let queue = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
        let (first, second) = (queue.submit(1).unwrap(), queue.submit(2).unwrap());
        let opener = std::thread::spawn(move || {
            // Late enough that the future is waiting, usually; its result must come in any case.
            std::thread::sleep(Duration::from_millis(50));
            latch.open();
        });
        let start = Instant::now();
        assert_eq!(pollster::block_on(async { (first.await.unwrap(), second.await.unwrap()) }), (3, 6));
        assert!(start.elapsed() >= Duration::from_millis(20), "it was held back");
        opener.join().unwrap();
        let mut done = queue.submit(3).unwrap();
        assert_eq!(pollster::block_on(&mut done).unwrap(), 9);
        assert!(matches!(pollster::block_on(done), Err(QueueError::Taken)));
    });
}

#[test]
fn an_error_of_the_task_is_its_pieces_alone_and_is_not_tried_again() {
    within_a_minute(|| {
        let task = Probe::new(|device, item| match item {
            3 => Err(crate::task::task_error(device, "a test".into(), "three is wrong".into())),
            5 => panic!("five is worse"),
            _ => Ok(3 * item),
        });
        let queue = Pool::new([named("a"), named("b")]).unwrap().queue(&task).open().unwrap();
        for (item, handle) in submit_all(&queue, 0..20) {
            match (item, handle.wait()) {
                (3, Err(QueueError::Task { error })) => assert!(error.to_string().contains("three is wrong")),
                (5, Err(QueueError::Task { error })) => assert!(error.to_string().contains("five is worse")),
                (_, result) => assert_eq!(result.unwrap(), 3 * item),
            }
            assert_eq!(task.runs_of(item), 1);
        }
        assert!(queue.statistics().devices.iter().all(|device| device.is_working));
    });
}

#[test]
fn a_full_queue_waits_for_no_batch_that_cannot_become_full() {
    within_a_minute(|| {
        let task = Closure::new("three times", |&item: &u64| 3 * item);
        let pool = Pool::new([named("a"), named("b")]).unwrap();
        let queue = pool.queue(&task).capacity(2).batch(16, Duration::from_secs(600)).open().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let queue = &queue;
                scope.spawn(move || {
                    let items = (0..50).map(|item| 50 * thread + item);
                    items.for_each(|item| queue.submit(item).unwrap().detach());
                });
            }
        });
        queue.close();
        queue.join();
    });
}

/// A result that runs a function when it is dropped.
struct CallsBack(Arc<dyn Fn() + Send + Sync>);

impl Drop for CallsBack {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn results_that_no_handle_waits_for_may_use_the_queue_when_they_are_dropped() {
    within_a_minute(|| {
        let pool = Pool::new([named("a")]).unwrap();
        let (hook, dropped) =
            (Arc::new(Mutex::new(None::<Box<dyn Fn() + Send>>)), Arc::new(AtomicUsize::new(0)));
        let (called, counted) = (hook.clone(), dropped.clone());
        let call: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            lock(&called).iter().for_each(|hook| hook());
            counted.fetch_add(1, SeqCst);
        });
        let task = Closure::new("calls back", move |_: &u64| CallsBack(call.clone()));
        let queue = Arc::new(pool.queue(&task).batch(4, Duration::from_millis(1)).open().unwrap());
        let weak = Arc::downgrade(&queue);
        *lock(&hook) = Some(Box::new(move || drop(weak.upgrade().map(|queue| queue.statistics()))));
        for item in 0..100 {
            queue.submit(item).unwrap().detach();
        }
        wait_until(|| dropped.load(SeqCst) == 100);
        lock(&hook).take();
    });
}

/// A task that panics in `max_items`.
#[derive(Clone)]
struct Unfit;

impl Task for Unfit {
    type Input = u64;
    type Output = u64;
    type State = ();

    fn name(&self) -> &str {
        "unfit"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, _: &Device) -> Result<()> {
        Ok(())
    }

    fn max_items(&self, (): &()) -> u64 {
        panic!("how should it know")
    }

    fn run(&self, (): &mut (), _: &Chunk<'_, u64>, _: &mut Results<'_, u64>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_while_a_device_is_prepared_is_the_error_of_every_handle() {
    within_a_minute(|| {
        let queue = Pool::new([named("a"), named("b")]).unwrap().queue(&Unfit).open().unwrap();
        for handle in [queue.submit(1).unwrap(), queue.submit(2).unwrap()] {
            let error = handle.wait().unwrap_err();
            assert!(matches!(&error, QueueError::NoDeviceLeft { .. }), "{error}");
            assert!(error.to_string().contains("how should it know"), "{error}");
        }
    });
}

#[test]
fn a_submission_that_is_polled_often_is_woken_once() {
    within_a_minute(|| {
        let (latch, task) = blocked_by_latch();
        let queue = Pool::new([named("a")]).unwrap().queue(&task).capacity(1).open().unwrap();
        let first = queue.submit(1).unwrap();
        let mut second = queue.piece(2).into_future();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..100 {
            assert!(second.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(queue.shared.dispatcher().capacity_waiters.len(), 1);
        latch.open();
        assert_eq!(first.wait().unwrap(), 3);
    });
}

#[test]
fn the_error_of_a_piece_has_its_number_in_the_order_of_submission() {
    let task = Closure::new("odd one out", |&item: &u32| assert_ne!(item, 105));
    let queue = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
    let handles: Vec<_> = (100..108).map(|item| queue.submit(item).unwrap()).collect();
    let errors: Vec<String> =
        handles.into_iter().filter_map(|handle| Some(handle.wait().err()?.to_string())).collect();
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert!(error.contains("running task `odd one out` on piece 5 (in the order of submission)"), "{error}");
}
