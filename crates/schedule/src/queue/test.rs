mod failure;
mod late;

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
use crate::{Chunk, Closure, Results, pool::lock};

/// Runs a test, and fails it where it does not end: a queue that hangs is the worst that can happen.
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

/// Waits until something is so, which the watchdog of the test ends where it never is.
fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
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

/// The same, which says that it has so many cores: a kernel task has as many workers on it.
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

/// A task of a closure that is told which device it is on.
#[derive(Clone)]
struct Probe {
    run: Arc<Run>,
    prepare: Arc<Prepare>,
    hands: usize,
    may_hang: bool,
    /// How often each piece was run.
    runs: Arc<Mutex<HashMap<u64, usize>>>,
}

impl Probe {
    fn new(run: impl Fn(&DeviceId, u64) -> Result<u64> + Send + Sync + 'static) -> Probe {
        let prepare = Arc::new(|_: &DeviceId| Ok(()));
        Probe { run: Arc::new(run), prepare, hands: 1, may_hang: false, runs: Arc::default() }
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

    fn hands(&self, _: &Device) -> usize {
        self.hands
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

/// Holds back whoever comes until it is opened.
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

fn lost(device: &DeviceId) -> Error {
    Error::Lost { device: device.clone(), operation: "a test".into(), detail: "it is gone".into() }
}

/// The settings of a balancer that need not be waited for.
fn at_once() -> BalancerSettings {
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
        let task = Probe { hands: 2, ..Probe::new(|_, item| Ok(3 * item)) };
        let pool = Pool::new([named("a"), named("b")]).unwrap();
        let queue = pool.queue(&task).balancer(at_once()).open().unwrap();
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
            drop(queue.submit_with(item, priority).unwrap());
        }
        latch.open();
        assert_eq!(first.wait().unwrap(), 0);
        queue.join();
        assert_eq!(*lock(&order), [0, 7, 3, 5, 1, 4, 2, 6]);
    });
}

#[test]
fn pieces_move_from_a_slow_device_and_run_exactly_once() {
    within_a_minute(|| {
        let latch = Latch::default();
        let held = latch.clone();
        let task = Probe::new(move |device, item| {
            held.pass();
            std::thread::sleep(Duration::from_millis(if device.as_str() == "slow" { 30 } else { 1 }));
            Ok(3 * item)
        });
        let pool = Pool::new([named("slow"), named("fast")]).unwrap();
        let queue = pool.queue(&task).balancer(at_once()).open().unwrap();
        // Nothing is known of the devices until all is submitted, so each has half of it.
        let handles = submit_all(&queue, 0..60);
        assert_eq!(queue.statistics().devices[0].queued + queue.statistics().devices[0].active, 30);
        latch.open();
        expect_all(handles);
        (0..60).for_each(|item| assert_eq!(task.runs_of(item), 1, "piece {item}"));
        let statistics = queue.statistics();
        let [slow, fast] = &statistics.devices[..] else { panic!("{statistics:?}") };
        assert!(slow.gave > 0 && fast.done > 30, "{statistics:?}");
        assert_eq!(slow.done + fast.done, 60);
        assert_eq!(slow.gave + fast.gave, statistics.balancer.pieces);
        assert_eq!(slow.received + fast.received, statistics.balancer.pieces);
        assert!(statistics.balancer.rebalances > 0);
    });
}

#[test]
fn the_balancers_refusals_are_counted_although_nobody_submits_or_finishes() {
    within_a_minute(|| {
        let latch = Latch::default();
        let held = latch.clone();
        let task = Probe::new(move |_, item| {
            held.pass();
            Ok(3 * item)
        });
        let queue = Pool::new([named("a")]).unwrap().queue(&task).balancer(at_once()).open().unwrap();
        let handles = submit_all(&queue, 0..3);
        let before = queue.statistics().balancer.no_target;
        wait_until(|| queue.statistics().balancer.no_target > before + 2);
        latch.open();
        expect_all(handles);
        assert_eq!(queue.statistics().balancer.rebalances, 0);
    });
}

#[test]
fn the_pools_statistics_show_what_is_queued() {
    within_a_minute(|| {
        let latch = Latch::default();
        let held = latch.clone();
        let task = Probe::new(move |device, item| {
            held.pass();
            if item == 4 {
                Err(crate::executor::task_error(device, "a test".into(), "no".into()))
            } else {
                Ok(3 * item)
            }
        });
        let pool = Pool::new([named("a")]).unwrap();
        let queue = pool.queue(&task).open().unwrap();
        let handles = submit_all(&queue, 0..5);
        wait_until(|| queue.statistics().devices[0].active == 1);
        let now = &pool.statistics()[0];
        assert_eq!((now.queued, now.active, now.done, now.failed), (4, 1, 0, 0));
        assert!(handles[3].1.cancel());
        assert_eq!(pool.statistics()[0].queued, 3);
        latch.open();
        queue.join();
        let now = &pool.statistics()[0];
        assert_eq!((now.queued, now.active, now.done, now.failed), (0, 0, 3, 1));
    });
}

#[test]
fn what_nobody_has_begun_can_be_cancelled() {
    within_a_minute(|| {
        let latch = Latch::default();
        let held = latch.clone();
        let task = Probe::new(move |_, item| {
            held.pass();
            Ok(3 * item)
        });
        let queue = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
        let begun = queue.submit(1).unwrap();
        wait_until(|| queue.statistics().devices[0].active == 1);
        let (cancelled, dropped, kept) =
            (queue.submit(2).unwrap(), queue.submit(3).unwrap(), queue.submit(4).unwrap());
        assert!(!begun.cancel() && !cancelled.is_done());
        assert!(cancelled.cancel() && cancelled.is_done() && !cancelled.cancel());
        drop(dropped);
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
        let latch = Latch::default();
        let held = latch.clone();
        let task = Probe::new(move |_, item| {
            held.pass();
            Ok(3 * item)
        });
        let queue = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
        let (first, second) = (queue.submit(1).unwrap(), queue.submit(2).unwrap());
        let opener = std::thread::spawn(move || {
            // Late enough that the future is waiting; if it is not, it still must be answered.
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
            3 => Err(crate::executor::task_error(device, "a test".into(), "three is wrong".into())),
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
        assert!(queue.statistics().devices.iter().all(|device| device.working));
    });
}
