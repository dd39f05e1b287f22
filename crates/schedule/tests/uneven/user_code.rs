//! The user's code at awkward moments: it panics or blocks where a run asks about a device, drops results, or waits.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use evener_device::{Device, DeviceKind, Error, Result};
use evener_schedule::{Chunk, Results, RunError, Settings, Task};

use crate::{
    common::{assert_counted_once, card, cores, wait_until_idle, within, without_history},
    support::{LIMIT, alike, alone, answer, beside_others, ms},
};

/// Plain code that others can steal from, whose `max_items` may panic. It has a new state for each call of `Pool::map`.
#[derive(Clone)]
struct PanickingLimit {
    panics: Arc<AtomicBool>,
}

impl Task for PanickingLimit {
    type Input = u64;
    type Output = u64;
    type State = u64;

    fn name(&self) -> &str {
        "panicking limit"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, _: &Device) -> Result<u64> {
        Ok(7)
    }

    fn max_items(&self, _: &u64) -> u64 {
        assert!(!self.panics.load(SeqCst), "on purpose");
        7
    }

    fn may_hang(&self, _: &Device) -> bool {
        false
    }

    fn is_divisible(&self, _: &Device) -> bool {
        true
    }

    fn run(&self, most: &mut u64, chunk: &Chunk<'_, u64>, results: &mut Results<'_, u64>) -> Result<()> {
        assert!(chunk.len() as u64 <= *most, "{} items at once", chunk.len());
        chunk.read(|items| {
            while let Some(block) = chunk.claim(results, 1) {
                results.extend(items[block].iter().map(|&item| answer(item)));
            }
        })
    }
}

#[test]
fn a_limit_of_items_that_panics_fails_the_lane_also_on_the_calling_thread() {
    let _turn = beside_others();
    within(LIMIT, "a limit that panics", || {
        let pool = without_history([cores("cpu", 1)]);
        let task = PanickingLimit { panics: Arc::default() };
        let items = alike(100, Duration::ZERO);
        // Once its runs are known to be short, the calling thread works on a lane itself.
        (0..5).for_each(|_| drop(pool.map(&task, &items).unwrap()));
        task.panics.store(true, SeqCst);
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.map(&task, &items)));
        let outcome = outcome.unwrap_or_else(|_| panic!("the panic came through"));
        assert!(matches!(outcome, Err(RunError::NoDeviceLeft { .. })), "{outcome:?}");
        task.panics.store(false, SeqCst);
        pool.map(&task, &items).unwrap();
    });
}

/// Fast on the card and slow on the cores. If `blocks` is set, the card does not respond, and neither does a question about
/// the cores.
#[derive(Clone)]
struct Blocking {
    blocks: Arc<AtomicBool>,
}

impl Blocking {
    const LONG: Duration = Duration::from_secs(8);
}

impl Task for Blocking {
    type Input = u64;
    type Output = u64;
    type State = bool;

    fn name(&self) -> &str {
        "blocking"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<bool> {
        Ok(device.describe().kind == DeviceKind::Cpu)
    }

    fn workers(&self, device: &Device) -> usize {
        if self.blocks.load(SeqCst) && device.describe().kind == DeviceKind::Cpu {
            std::thread::sleep(Blocking::LONG);
        }
        1
    }

    fn run(&self, is_core: &mut bool, chunk: &Chunk<'_, u64>, results: &mut Results<'_, u64>) -> Result<()> {
        let items = chunk.read(<[u64]>::to_vec)?;
        if *is_core {
            std::thread::sleep(ms(2) * items.len() as u32);
        } else if self.blocks.load(SeqCst) {
            std::thread::sleep(Blocking::LONG);
        }
        results.extend(items.iter().map(|&item| answer(item)));
        Ok(())
    }
}

#[test]
fn a_question_about_a_device_in_reserve_that_blocks_does_not_block_the_deadline() {
    let _turn = beside_others();
    within(LIMIT, "a reserve that blocks", || {
        let pool = without_history([card("card:0"), cores("cpu", 1)]);
        let task = Blocking { blocks: Arc::default() };
        let job = pool.job(&task).deadline(Duration::from_secs(3));
        let items = alike(50, Duration::ZERO);
        let uses_the_card_alone = |_| {
            let mapped = job.map(&items).unwrap();
            let devices = &mapped.report().devices;
            devices.len() == 1 && devices[0].id == "card:0"
        };
        let alone = (0..100).map(uses_the_card_alone).skip_while(|alone| !alone).take(3);
        assert!(alone.last().is_some_and(|alone| alone), "the card was never used alone");
        task.blocks.store(true, SeqCst);
        let start = Instant::now();
        let error = job.map(&items).unwrap_err();
        let took = start.elapsed();
        assert!(matches!(error, RunError::DeadlinePassed { .. }), "{error}");
        assert!(took < Duration::from_secs(6), "{took:?}");
        task.blocks.store(false, SeqCst);
    });
}

/// A result that panics when it is dropped, if it is armed.
struct Loud {
    armed: Option<Arc<AtomicBool>>,
}

impl Drop for Loud {
    fn drop(&mut self) {
        if let Some(dropped) = self.armed.take() {
            dropped.store(true, SeqCst);
            panic!("on purpose");
        }
    }
}

/// Takes a millisecond per chunk. The tenth chunk on the card takes far longer, and its results are armed.
#[derive(Clone)]
struct LateOnce {
    chunks: Arc<AtomicU64>,
    has_dropped: Arc<AtomicBool>,
}

impl Task for LateOnce {
    type Input = u64;
    type Output = Loud;
    type State = bool;

    fn name(&self) -> &str {
        "late once"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<bool> {
        Ok(device.describe().kind == DeviceKind::Cpu)
    }

    /// One chunk at a time on each lane, so that a late chunk is not behind another.
    fn workers(&self, _: &Device) -> usize {
        1
    }

    fn run(&self, is_core: &mut bool, chunk: &Chunk<'_, u64>, results: &mut Results<'_, Loud>) -> Result<()> {
        let is_late = !*is_core && self.chunks.fetch_add(1, SeqCst) == 10;
        std::thread::sleep(if is_late { ms(800) } else { ms(1) });
        let armed = is_late.then(|| self.has_dropped.clone());
        results.extend((0..chunk.len()).map(|_| Loud { armed: armed.clone() }));
        Ok(())
    }
}

#[test]
fn superseded_results_that_panic_when_they_are_dropped_do_not_retire_their_lane() {
    let _turn = alone();
    within(LIMIT, "superseded results that panic", || {
        let pool = without_history([card("card:0"), cores("cpu", 1)]);
        let task = LateOnce { chunks: Arc::default(), has_dropped: Arc::default() };
        // The late chunk is copied after half a second, and would count as hung after another.
        let settings = Settings { hung_after: ms(500), max_items: Some(1), ..Settings::default() };
        let job = pool.job(&task).all_devices().settings(settings);
        let (results, report) = {
            let mapped = job.map(&alike(2_000, Duration::ZERO)).unwrap();
            let report = mapped.report().clone();
            (mapped.into_results(), report)
        };
        let armed = results.iter().filter(|result| result.armed.is_some()).count();
        std::mem::forget(results);
        assert_eq!(armed, 0, "the late results were accepted:\n{report}");
        assert!(task.has_dropped.load(SeqCst), "its results were not superseded:\n{report}");
        assert_counted_once(&report, 2_000);
        for device in &report.devices {
            assert_eq!((device.state.as_str(), device.quarantines), ("healthy", 0), "{report}");
        }
        wait_until_idle(&pool);
        assert_eq!(pool.statistics().iter().map(|device| device.failed).sum::<u64>(), 0);
    });
}

/// Plain code that others can steal from, on one device only: the other cannot be prepared.
#[derive(Clone)]
struct OneWorks;

impl Task for OneWorks {
    type Input = u64;
    type Output = u64;
    type State = ();

    fn name(&self) -> &str {
        "one works"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<()> {
        if device.id().as_str() == "cpu/broken" {
            let (operation, detail) = ("a test".to_owned(), String::new());
            return Err(Error::Lost { device: device.id().clone(), operation, detail });
        }
        Ok(())
    }

    fn may_hang(&self, _: &Device) -> bool {
        false
    }

    fn is_divisible(&self, _: &Device) -> bool {
        true
    }

    fn run(&self, (): &mut (), chunk: &Chunk<'_, u64>, results: &mut Results<'_, u64>) -> Result<()> {
        chunk.read(|items| {
            while let Some(block) = chunk.claim(results, 1) {
                results.extend(items[block].iter().map(|&item| answer(item)));
            }
        })
    }
}

#[test]
fn a_device_in_quarantine_takes_no_wake_up_of_an_idle_worker() {
    let _turn = alone();
    within(LIMIT, "a stream beside a quarantine", || {
        let pool = without_history([cores("cpu/a", 1), cores("cpu/broken", 2)]);
        let long = Duration::from_secs(60);
        let settings = Settings { first_quarantine: long, max_quarantine: long, ..Settings::default() };
        let (sender, source) = std::sync::mpsc::channel();
        let source = Mutex::new(source);
        let items = std::iter::from_fn(move || source.lock().unwrap().recv().ok());
        let job = pool.job(&OneWorks).all_devices().settings(settings);
        let mut stream = job.map_stream(items).unwrap();
        // A worker that is not woken finds the item after 50 ms.
        let mut late = Vec::new();
        for item in 0..60 {
            // The worker parks meanwhile.
            std::thread::sleep(ms(3));
            let start = Instant::now();
            sender.send(item).unwrap();
            assert_eq!(stream.next().unwrap().unwrap(), answer(item));
            late.extend(Some(start.elapsed()).filter(|took| *took > ms(25)));
        }
        assert!(late.len() < 5, "late: {late:?}");
        drop(sender);
        assert!(stream.next().is_none());
    });
}
