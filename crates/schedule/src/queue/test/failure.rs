use std::sync::atomic::AtomicBool;

use evener_device::{
    Kernel,
    testing::{Fault, Faults},
};

use super::*;
use crate::{KernelParams, KernelTask};

fn triple() -> KernelTask<u64, u64> {
    let kernel =
        Kernel::new("triple").reads::<u64>().writes::<u64>().params::<KernelParams>().rust(|launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (input, output) = (launch.read::<u64>(0)?, launch.write::<u64>(1)?);
            output[..count].iter_mut().zip(input).for_each(|(out, value)| *out = 3 * value);
            Ok(())
        });
    KernelTask::new(&kernel)
}

/// A queue of a device that can be made to fail and one that cannot, each with this many workers. Both have finished
/// some pieces.
fn faulty_queue(workers: u32) -> (Queue<KernelTask<u64, u64>>, Faults) {
    let (faulty, faults) = Faults::wrap(&cores("faulty", workers));
    let pool = Pool::new([faulty, cores("sound", workers)]).unwrap();
    let queue = pool.queue(&triple()).balancer(without_interval()).open().unwrap();
    while queue.statistics().devices.iter().any(|device| device.done < 3) {
        let handles: Vec<_> = (0..20).map(|item| (item, queue.submit(item).unwrap())).collect();
        expect_all(handles);
    }
    (queue, faults)
}

/// Submits pieces until the first device gets work again.
fn wait_until_well(queue: &Queue<KernelTask<u64, u64>>) {
    while !queue.statistics().devices[0].is_working {
        expect_all((0..20).map(|item| (item, queue.submit(item).unwrap())).collect());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes the first device fail, and submits pieces until it is opened again for that: a piece or a preparation has
/// failed there.
fn run_into(queue: &Queue<KernelTask<u64, u64>>, fault: impl FnOnce()) {
    let generation = || queue.shared.devices[0].generation();
    let before = generation();
    fault();
    let mut item = 0;
    while generation() == before {
        let handles = (item..item + 50).map(|item| (item, queue.submit(item).unwrap())).collect();
        item += 50;
        expect_all(handles);
    }
}

#[test]
fn a_device_that_is_killed_loses_no_piece_and_comes_back() {
    for workers in [1, 2, 16] {
        within_a_minute(move || {
            let (queue, faults) = faulty_queue(workers);
            // While pieces are queued and in flight.
            let early: Vec<_> = (0..200).map(|item| (item, queue.submit(item).unwrap())).collect();
            run_into(&queue, || faults.kill());
            expect_all(early);
            wait_until_well(&queue);
        });
    }
}

#[test]
fn a_device_that_hangs_loses_no_piece_and_comes_back() {
    // With many workers, some still prepare the device when it hangs.
    for workers in [1, 2, 16] {
        within_a_minute(move || {
            let (queue, faults) = faulty_queue(workers);
            run_into(&queue, || faults.at_next(Fault::Hang));
            assert!(!queue.statistics().devices[0].is_working);
            // The canary hangs too, and no piece waits for it.
            std::thread::sleep(Duration::from_millis(200));
            expect_all((0..100).map(|item| (item, queue.submit(item).unwrap())).collect());
            faults.release();
            wait_until_well(&queue);
        });
    }
}

#[test]
fn a_piece_that_passes_the_users_limit_is_retried() {
    within_a_minute(|| {
        let (latch, hung) = (Latch::default(), Arc::new(AtomicUsize::new(0)));
        let (held, count) = (latch.clone(), hung.clone());
        let task = Probe::new(move |device, item| {
            if device.as_str() == "a" {
                count.fetch_add(1, SeqCst);
                held.pass();
            }
            Ok(3 * item)
        });
        let pool = Pool::new([named("a"), named("b")]).unwrap();
        let queue = pool.queue(&task).piece_limit(Duration::from_millis(300)).open().unwrap();
        // The other device may take all of them before this one has begun.
        while hung.load(SeqCst) == 0 {
            expect_all(submit_all(&queue, 0..40));
        }
        wait_until(|| queue.statistics().devices[0].failed > 0);
        // Removed workers come back, and their results are dropped.
        latch.open();
        expect_all(submit_all(&queue, 40..80));
    });
}

#[test]
fn a_device_that_never_gets_ready_loses_no_piece() {
    // After the limit, and long before it.
    for limit in [Duration::from_millis(100), Duration::from_secs(300)] {
        within_a_minute(move || {
            let latch = Latch::default();
            let held = latch.clone();
            let mut task = Probe { workers: 3, ..Probe::new(|_, item| Ok(3 * item)) };
            task.prepare = Arc::new(move |device| {
                if device.as_str() == "a" {
                    held.pass();
                }
                Ok(())
            });
            let pool = Pool::new([named("a"), named("b")]).unwrap();
            let queue = pool.queue(&task).prepare_limit(limit).open().unwrap();
            // Two are too few to be moved for the sake of balance.
            expect_all(submit_all(&queue, 0..2));
            expect_all(submit_all(&queue, 2..50));
            latch.open();
        });
    }
}

#[test]
fn bad_results_are_never_returned() {
    within_a_minute(|| {
        let bad = Arc::new(AtomicUsize::new(0));
        let count = bad.clone();
        let task = Probe::new(move |device, item| {
            let is_bad = device.as_str() == "a" && count.fetch_add(1, SeqCst) < 3;
            Ok(if is_bad { 0 } else { 3 * item })
        });
        let pool = Pool::new([named("a"), named("b")]).unwrap();
        let queue = pool.queue(&task).balancer(without_interval()).open().unwrap();
        let mut item = 1;
        while bad.load(SeqCst) < 4 || !queue.statistics().devices[0].is_working {
            expect_all(submit_all(&queue, item..item + 20));
            item += 20;
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(queue.statistics().devices[0].failed, 3);
    });
}

#[test]
fn when_no_device_is_left_every_handle_gets_the_errors() {
    within_a_minute(|| {
        let pool = Pool::new([named("a"), named("b")]).unwrap();
        let told = |handle: Handle<u64>, text: &str| {
            let error = handle.wait().unwrap_err();
            assert!(
                matches!(&error, QueueError::NoDeviceLeft { failures } if failures.len() >= 2),
                "{error}"
            );
            assert!(error.to_string().contains(text), "{error}");
        };
        let mut unable = Probe::new(|_, item| Ok(3 * item));
        unable.prepare = Arc::new(|device| {
            let (operation, detail) = ("this".to_owned(), "it has no teeth".to_owned());
            Err(Error::Unsupported { device: device.clone(), operation, detail })
        });
        let queue = pool.queue(&unable).open().unwrap();
        submit_all(&queue, 0..10).into_iter().for_each(|(_, handle)| told(handle, "no teeth"));
        told(queue.submit(1).unwrap(), "no teeth");

        // Lost when it is prepared, and lost when it runs: each time it is retried, but not forever.
        let mut unready = Probe::new(|_, item| Ok(3 * item));
        unready.prepare = Arc::new(|device| Err(lost(device)));
        std::thread::scope(|scope| {
            for task in [unready, Probe::new(|device, _| Err(lost(device)))] {
                scope.spawn(move || {
                    let pool = Pool::new([named("a"), named("b")]).unwrap();
                    let queue = pool.queue(&task).open().unwrap();
                    submit_all(&queue, 0..10).into_iter().for_each(|(_, handle)| told(handle, "it is gone"));
                });
            }
        });
    });
}

#[test]
fn a_piece_without_memory_is_done_elsewhere() {
    within_a_minute(|| {
        let task = Probe::new(|device, item| match device.as_str() {
            "small" => Err(Error::OutOfMemory {
                device: device.clone(),
                operation: "a test".into(),
                requested: 1,
                available: Some(0),
                detail: String::new(),
            }),
            _ => Ok(3 * item),
        });
        let queue = Pool::new([named("small"), named("large")]).unwrap().queue(&task).open().unwrap();
        let mut item = 0;
        // The other device may take all of them before this one has begun.
        while queue.statistics().devices[0].failed == 0 {
            expect_all(submit_all(&queue, item..item + 20));
            item += 20;
        }
        let statistics = queue.statistics();
        assert!(!statistics.devices[0].is_working);
        assert_eq!(statistics.devices[1].done, item);
    });
}

/// A state that panics when it is dropped.
struct PanicsOnDropOnce(Arc<AtomicBool>);

impl Drop for PanicsOnDropOnce {
    fn drop(&mut self) {
        if self.0.swap(false, SeqCst) {
            panic!("do not drop me");
        }
    }
}

#[test]
fn a_worker_that_panics_is_replaced() {
    within_a_minute(|| {
        let [fails, panics] = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
        let (failing, panicking) = (fails.clone(), panics.clone());
        // Fails once, so that its state is dropped.
        let task = TestTask::new(
            "fails once",
            move |_| Ok(PanicsOnDropOnce(panicking.clone())),
            move |_, chunk, results| {
                if failing.swap(false, SeqCst) {
                    return Err(lost(&"a".into()));
                }
                chunk.read(|items| results.extend(items.iter().map(|item: &u64| 3 * item)))
            },
        );
        let task = TestTask { workers: Some(1), ..task };
        let queue = Pool::new([named("a")]).unwrap().queue(&task).open().unwrap();
        expect_all((0..20).map(|item| (item, queue.submit(item).unwrap())).collect());
        assert!(!fails.load(SeqCst), "it failed");
        // The test does not wait for the thread that panicked.
        wait_until(|| !panics.load(SeqCst));
        expect_all((0..20).map(|item| (item, queue.submit(item).unwrap())).collect());
    });
}

/// A state whose drop blocks until a latch is opened, as on a device that has hung.
struct BlocksOnDrop(Option<Latch>);

impl Drop for BlocksOnDrop {
    fn drop(&mut self) {
        if let Some(latch) = &self.0 {
            latch.pass();
        }
    }
}

#[test]
fn no_piece_waits_for_a_worker_whose_state_cannot_be_dropped() {
    within_a_minute(|| {
        let (latch, fails) = (Latch::default(), Arc::new(AtomicUsize::new(3)));
        let (closed, left) = (latch.clone(), fails.clone());
        // Fails on device "a", where the drop of its state then blocks.
        let task = TestTask::new(
            "fails on a",
            move |device| Ok(BlocksOnDrop((device.id().as_str() == "a").then(|| closed.clone()))),
            move |state, chunk, results| {
                let fails = || left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
                if state.0.is_some() && fails() {
                    return Err(lost(&"a".into()));
                }
                chunk.read(|items| results.extend(items.iter().map(|item: &u64| 3 * item)))
            },
        );
        let task = TestTask { workers: Some(2), ..task };
        let pool = Pool::new([named("a"), named("b")]).unwrap();
        let queue = pool.queue(&task).balancer(without_interval()).open().unwrap();
        while fails.load(SeqCst) > 0 || !queue.statistics().devices[0].is_working {
            expect_all((0..20).map(|item| (item, queue.submit(item).unwrap())).collect());
            std::thread::sleep(Duration::from_millis(5));
        }
        latch.open();
    });
}

/// A pseudo-random number, the same for the same pair.
fn pseudo_random(item: u64, round: u64) -> u64 {
    let mut mixed = (item << 32 ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
}

#[test]
fn whatever_fails_every_handle_is_answered_and_no_answer_is_wrong() {
    within_a_minute(|| {
        let throws = Arc::new(AtomicUsize::new(0));
        let task = Probe::new(move |device, item| {
            match pseudo_random(item, throws.fetch_add(1, SeqCst) as u64) % 40 {
                0 => Err(lost(device)),
                1 => Ok(0),
                2 => panic!("an unlucky round"),
                3 => {
                    std::thread::sleep(Duration::from_millis(2));
                    Ok(3 * item)
                }
                _ => Ok(3 * item),
            }
        });
        let task = Probe { workers: 2, ..task };
        let pool = Pool::new(["a", "b", "c"].map(named)).unwrap();
        let queue = pool.queue(&task).balancer(without_interval()).open().unwrap();
        let well = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (queue, well) = (&queue, &well);
                scope.spawn(move || {
                    for (item, handle) in submit_all(queue, thread * 1000 + 1..thread * 1000 + 201) {
                        let cancelled = item % 7 == 0 && handle.cancel();
                        match handle.wait() {
                            Ok(result) => assert_eq!((result, cancelled), (3 * item, false)),
                            Err(QueueError::Cancelled) => assert!(cancelled),
                            Err(QueueError::Task { error }) => {
                                assert!(error.to_string().contains("unlucky"), "{error}");
                            }
                            Err(QueueError::NoDeviceLeft { failures }) => assert!(!failures.is_empty()),
                            Err(error) => panic!("{error}"),
                        }
                        well.fetch_add(usize::from(!cancelled), SeqCst);
                    }
                });
            }
        });
        assert!(well.load(SeqCst) > 300, "{well:?}");
        let statistics = queue.statistics();
        assert_eq!(statistics.outstanding, 0, "{statistics:?}");
        assert!(pool.statistics().iter().all(|device| (device.queued, device.active) == (0, 0)));
    });
}
