//! Pieces that take long, with real threads.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
};

use super::*;

/// A piece that takes three seconds on every device.
const LONG: u64 = 1_000;

fn with_a_long_piece() -> Probe {
    let task = Probe::new(|_, item| {
        if item == LONG {
            std::thread::sleep(Duration::from_secs(3));
        }
        Ok(3 * item)
    });
    Probe { may_hang: true, ..task }
}

fn a_long_piece_is_done_on(devices: &'static [&'static str]) {
    within_a_minute(move || {
        let task = with_a_long_piece();
        let pool = Pool::new(devices.iter().map(|id| named(id))).unwrap();
        let queue = pool.queue(&task).open().unwrap();
        for item in 0..200 {
            assert_eq!(queue.submit(item).unwrap().wait().unwrap(), 3 * item);
        }
        assert_eq!(queue.submit(LONG).unwrap().wait().unwrap(), 3 * LONG);
        let statistics = queue.statistics();
        assert!(
            statistics.devices.iter().all(|device| device.failed == 0 && device.is_working),
            "{statistics:?}"
        );
        assert_eq!(statistics.devices.iter().map(|device| device.done).sum::<u64>(), 201);
        expect_all(submit_all(&queue, 0..50));
    });
}

#[test]
fn a_piece_of_three_seconds_after_quick_ones_is_done_by_a_single_device() {
    a_long_piece_is_done_on(&["a"]);
}

#[test]
fn a_piece_of_three_seconds_after_quick_ones_is_done_by_one_of_two_devices() {
    a_long_piece_is_done_on(&["a", "b"]);
}

#[test]
fn a_piece_that_hangs_on_one_device_is_done_by_the_other_and_the_first_comes_back() {
    within_a_minute(|| {
        let (latch, held) = (Latch::default(), Arc::new(AtomicUsize::new(0)));
        let (closed, first) = (latch.clone(), held.clone());
        let task = Probe::new(move |device, item| {
            if device.as_str() == "a" && item == LONG && first.fetch_add(1, SeqCst) == 0 {
                closed.pass();
            }
            Ok(3 * item)
        });
        let task = Probe { may_hang: true, ..task };
        let queue = Pool::new([named("a"), named("b")]).unwrap().queue(&task).open().unwrap();
        // A device's first piece may take long, so the one that hangs must not be it.
        while queue.statistics().devices[0].done == 0 {
            expect_all(submit_all(&queue, 0..50));
        }
        while held.load(SeqCst) == 0 {
            assert_eq!(queue.submit(LONG).unwrap().wait().unwrap(), 3 * LONG);
        }
        wait_until(|| queue.statistics().devices[0].failed == 1);
        assert_eq!(queue.statistics().devices[1].copied, 1);
        while !queue.statistics().devices[0].is_working {
            expect_all(submit_all(&queue, 0..20));
            std::thread::sleep(Duration::from_millis(5));
        }
        latch.open();
        expect_all(submit_all(&queue, 0..50));
    });
}

#[test]
fn a_single_device_that_hangs_once_is_opened_again_after_the_silence_limit() {
    within_a_minute(|| {
        let latch = Latch::default();
        let (closed, hangs) = (latch.clone(), Arc::new(AtomicUsize::new(0)));
        let task = Probe::new(move |_, item| {
            if item == 7 && hangs.fetch_add(1, SeqCst) == 0 {
                closed.pass();
            }
            Ok(3 * item)
        });
        let task = Probe { may_hang: true, ..task };
        let pool = Pool::new([named("a")]).unwrap();
        let queue = pool.queue(&task).silence_limit(Duration::from_millis(300)).open().unwrap();
        expect_all(submit_all(&queue, 0..20));
        assert_eq!(queue.statistics().devices[0].failed, 1);
        latch.open();
    });
}

/// A result that panics when it is dropped, on request.
struct PanicsOnDrop(Arc<AtomicUsize>);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if self.0.load(SeqCst) > 0 {
            self.0.fetch_sub(1, SeqCst);
            panic!("a result was dropped");
        }
    }
}

#[test]
fn a_late_result_that_panics_when_it_is_dropped_costs_no_piece() {
    within_a_minute(|| {
        let (panics, latch) = (Arc::new(AtomicUsize::new(0)), Latch::default());
        let (panicking, closed) = (panics.clone(), latch.clone());
        // Returns results that panic when dropped. The first piece waits for the latch on device `a`, and takes a second
        // on the other: long enough that `a` is not soon declared hung.
        let task = TestTask::new(
            "first piece hangs",
            |device| Ok(device.id().clone()),
            move |device, chunk: &Chunk<'_, u64>, results| {
                match (chunk.read(|items| items[0])?, device.as_str()) {
                    (0, "a") => closed.pass(),
                    (0, _) => std::thread::sleep(Duration::from_secs(1)),
                    _ => {}
                }
                results.push(PanicsOnDrop(panicking.clone()));
                Ok(())
            },
        );
        let task = TestTask { workers: Some(1), ..task };
        let queue = Pool::new([named("a"), named("b")]).unwrap().queue(&task).open().unwrap();
        let answer = queue.submit(0).unwrap().wait().unwrap();
        assert_eq!(queue.statistics().devices[1].copied, 1, "{:?}", queue.statistics());
        std::mem::forget(answer);
        panics.store(1, SeqCst);
        latch.open();
        wait_until(|| panics.load(SeqCst) == 0);
        for item in 1..50 {
            std::mem::forget(queue.submit(item).unwrap().wait().unwrap());
        }
        wait_until(|| queue.statistics().devices.iter().all(|device| device.active == 0));
        assert!(queue.statistics().devices.iter().all(|device| device.failed == 0 && device.is_working));
    });
}

/// Panics at every event that names a certain device.
struct PanicsAtEvents;

struct FindsDevice(bool);

impl tracing::field::Visit for FindsDevice {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.0 |= format!("{value:?}").contains("unlogged");
    }
}

impl<S: tracing::Subscriber> Layer<S> for PanicsAtEvents {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut finds = FindsDevice(false);
        event.record(&mut finds);
        if finds.0 {
            PANICS.fetch_add(1, SeqCst);
            panic!("the log cannot stand this");
        }
    }
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_log_that_panics_at_every_message_costs_no_piece() {
    within_a_minute(|| {
        // For all threads, because the messages come from the queue's own. Other tests are not affected.
        let subscriber = tracing_subscriber::registry().with(PanicsAtEvents);
        tracing::subscriber::set_global_default(subscriber).expect("no other test has a subscriber");
        let count = AtomicUsize::new(0);
        let task = Probe::new(move |device, item| match count.fetch_add(1, SeqCst) % 30 {
            3 => Err(lost(device)),
            7 => Ok(0),
            11 => panic!("the task cannot stand this"),
            _ => Ok(3 * item),
        });
        let task = Probe { workers: 2, ..task };
        let pool = Pool::new([named("unlogged"), named("unlogged too")]).unwrap();
        let queue = pool.queue(&task).balancer(without_interval()).open().unwrap();
        for (item, handle) in submit_all(&queue, 1..301) {
            match handle.wait() {
                Ok(result) => assert_eq!(result, 3 * item),
                Err(QueueError::Task { error }) => {
                    assert!(error.to_string().contains("cannot stand"), "{error}")
                }
                Err(QueueError::NoDeviceLeft { failures }) => assert!(!failures.is_empty()),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(PANICS.load(SeqCst) > 50, "{PANICS:?}");
        assert_eq!(queue.statistics().outstanding, 0);
    });
}

/// Set in the process that is stopped.
const IS_STOPPED: &str = "EVENER_TEST_IS_STOPPED";

/// Printed by the process once its piece runs.
const BEGUN: &str = "the piece has begun";

/// Runs a piece of 0.8 seconds with a limit of 2 seconds, while another process stops this one for 3 seconds.
fn do_a_piece_while_stopped() {
    let task = Probe::new(|_, item| {
        writeln!(std::io::stdout(), "{BEGUN}").unwrap();
        // In short steps, so that a stop makes it longer by about the stop.
        (0..80).for_each(|_| std::thread::sleep(Duration::from_millis(10)));
        Ok(3 * item)
    });
    let pool = Pool::new([named("a")]).unwrap();
    let queue = pool.queue(&task).piece_limit(Duration::from_secs(2)).open().unwrap();
    let start = Instant::now();
    assert_eq!(queue.submit(1).unwrap().wait().unwrap(), 3);
    assert!(start.elapsed() > Duration::from_secs(3), "it was not stopped: {:?}", start.elapsed());
    assert_eq!((task.runs_of(1), queue.statistics().devices[0].failed), (1, 0));
}

#[cfg(unix)]
#[test]
fn a_process_that_is_stopped_for_longer_than_the_limit_loses_no_device() {
    if std::env::var_os(IS_STOPPED).is_some() {
        return do_a_piece_while_stopped();
    }
    within_a_minute(|| {
        let name =
            "queue::test::stragglers::a_process_that_is_stopped_for_longer_than_the_limit_loses_no_device";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(IS_STOPPED, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(std::result::Result::unwrap);
        assert!(said.any(|line| line.contains(BEGUN)), "its piece never began");
        let signal = |signal: &str| {
            let pid = child.id().to_string();
            assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        };
        std::thread::sleep(Duration::from_millis(100));
        signal("-STOP");
        std::thread::sleep(Duration::from_secs(3));
        signal("-CONT");
        let said: Vec<String> = said.collect();
        assert!(child.wait().unwrap().success(), "{said:?}");
    });
}
