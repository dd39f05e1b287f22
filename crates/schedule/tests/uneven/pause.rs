//! A process that is stopped and continued: time passes, and no device has failed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use evener_device::{Device, DeviceKind, Result};
use evener_schedule::{Chunk, Mapped, Progress, Report, Results, Settings, Task};

use crate::{
    common::{card, cores, within, without_history},
    support::{Process, alike, answer, answers, is_child, job, kernel, ms, spend_all},
};

const PAUSE: Duration = Duration::from_secs(4);
/// The name of the thread that starts the runs.
const CALLER: &str = "a run that is stopped";

/// Runs `in_child` in a child process, which is stopped for a while after it has printed that it is under way.
fn with_a_pause(name: &str, in_child: fn()) {
    if is_child() {
        return within(Duration::from_secs(25), CALLER, in_child);
    }
    let mut process = Process::start(&format!("pause::{name}"));
    process.wait_for("under way");
    process.signal("STOP");
    std::thread::sleep(PAUSE);
    process.signal("CONT");
    process.assert_ends_well_within(Duration::from_secs(20));
}

/// A progress callback that prints once that the run is under way.
fn announce() -> (impl FnMut(&Progress) + Send + 'static, Arc<AtomicBool>) {
    let told = Arc::new(AtomicBool::new(false));
    let tell = told.clone();
    let callback = move |progress: &Progress| {
        if progress.elapsed > ms(300) && !tell.swap(true, SeqCst) {
            println!("under way");
        }
    };
    (callback, told)
}

fn assert_nothing_failed(report: &Report) {
    let lost = report.devices.iter().any(|device| device.quarantines > 0);
    assert!(!lost, "nothing is wrong with any device, and yet:\n{report}");
}

/// Asserts that a run was stopped, and that this changed neither its results nor what is known of its devices.
fn assert_unharmed(mapped: &Mapped<u64>, items: &[u64], told: &AtomicBool) {
    let report = mapped.report();
    assert!(told.load(SeqCst), "it was over before it could be stopped");
    assert!(report.wall_s > PAUSE.as_secs_f64(), "it was not stopped");
    assert_eq!(mapped.results(), answers(items));
    assert_nothing_failed(report);
    for device in &report.devices {
        let most = report.wall_s - PAUSE.as_secs_f64() * 0.9;
        assert!(device.busy_s < most, "{} was busy while it was stopped:\n{report}", device.id);
    }
}

/// A run of about two seconds on devices that may hang.
#[test]
fn a_run_that_was_stopped_for_seconds_loses_nothing_and_learns_no_false_pace() {
    with_a_pause("a_run_that_was_stopped_for_seconds_loses_nothing_and_learns_no_false_pace", || {
        let pool = without_history([card("card:0"), cores("cpu", 2)]);
        let warm = alike(2_000, Duration::from_micros(50));
        job(&pool, &kernel()).map(&warm).unwrap();
        let (callback, told) = announce();
        let job = job(&pool, &kernel()).on_progress(callback);
        let items = alike(3_000, ms(2));
        assert_unharmed(&job.map(&items).unwrap(), &items, &told);
    });
}

/// A stream on one device that may hang, with limits shorter than the pause.
fn stopped_stream(settings: Settings) {
    let pool = without_history([card("card:0")]);
    let items = alike(600, ms(4));
    let job = job(&pool, &kernel()).settings(settings);
    let start = Instant::now();
    let mut results = Vec::new();
    for result in job.map_stream(items.clone()).unwrap() {
        results.push(result.unwrap());
        if results.len() == 100 {
            println!("under way");
        }
    }
    assert!(start.elapsed() > PAUSE, "it was not stopped");
    assert_eq!(results, answers(&items));
    assert_eq!(pool.statistics()[0].failed, 0);
}

#[test]
fn a_stream_that_was_stopped_for_longer_than_its_silence_limit_goes_on() {
    with_a_pause("a_stream_that_was_stopped_for_longer_than_its_silence_limit_goes_on", || {
        stopped_stream(Settings { silence: ms(1_500), silence_factor: 1.0, ..Settings::default() });
    });
}

#[test]
fn a_stream_that_was_stopped_for_longer_than_its_chunk_limit_goes_on() {
    with_a_pause("a_stream_that_was_stopped_for_longer_than_its_chunk_limit_goes_on", || {
        stopped_stream(Settings { chunk_limit: Some(ms(1_500)), ..Settings::default() });
    });
}

/// Works item by item on cores, where others can steal, and in whole chunks on a card. May take long to prepare the card,
/// in steps of a millisecond.
#[derive(Clone)]
struct Unlike {
    preparation: Duration,
    caller_works: Arc<AtomicBool>,
}

impl Task for Unlike {
    type Input = u64;
    type Output = u64;
    type State = bool;

    fn name(&self) -> &str {
        "unlike"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, device: &Device) -> Result<bool> {
        let is_core = device.describe().kind == DeviceKind::Cpu;
        if !is_core {
            if !self.preparation.is_zero() {
                println!("under way");
            }
            spend_all(&alike(self.preparation.as_millis() as usize, ms(1)));
        }
        Ok(is_core)
    }

    fn may_hang(&self, device: &Device) -> bool {
        device.describe().kind != DeviceKind::Cpu
    }

    fn is_divisible(&self, device: &Device) -> bool {
        device.describe().kind == DeviceKind::Cpu
    }

    fn run(&self, is_core: &mut bool, chunk: &Chunk<'_, u64>, results: &mut Results<'_, u64>) -> Result<()> {
        if !*is_core {
            let items = chunk.read(<[u64]>::to_vec)?;
            spend_all(&items);
            results.extend(items.iter().map(|&item| answer(item)));
            return Ok(());
        }
        if std::thread::current().name() == Some(CALLER) {
            self.caller_works.store(true, SeqCst);
        }
        chunk.read(|items| {
            while let Some(block) = chunk.claim(results, 1) {
                for &item in &items[block] {
                    spend_all(&[item]);
                    results.push(answer(item));
                }
            }
        })
    }
}

#[test]
fn a_device_whose_preparation_was_stopped_for_longer_than_its_limit_takes_part() {
    with_a_pause("a_device_whose_preparation_was_stopped_for_longer_than_its_limit_takes_part", || {
        let pool = without_history([card("card:0")]);
        let job = job(&pool, &Unlike { preparation: ms(700), caller_works: Arc::default() })
            .prepare_limit(ms(2_500));
        let items = alike(100, ms(1));
        let start = Instant::now();
        let mapped = job.map(&items).unwrap();
        assert!(start.elapsed() > PAUSE, "it was not stopped");
        assert_eq!(mapped.results(), answers(&items));
        assert_nothing_failed(mapped.report());
    });
}

#[test]
fn a_run_that_was_stopped_while_its_caller_computes_loses_nothing() {
    with_a_pause("a_run_that_was_stopped_while_its_caller_computes_loses_nothing", || {
        let pool = without_history([card("card:0"), cores("cpu", 1)]);
        // The job learns that its runs are short, so that its caller works on a lane.
        let (callback, told) = announce();
        let settings = Settings { chunk_limit: Some(ms(1_500)), ..Settings::default() };
        let task = Unlike { preparation: Duration::ZERO, caller_works: Arc::default() };
        let job = job(&pool, &task).settings(settings).on_progress(callback);
        for _ in 0..4 {
            job.map(&alike(1_500, Duration::from_micros(1))).unwrap();
        }
        task.caller_works.store(false, SeqCst);
        let items = alike(1_500, ms(2));
        let mapped = job.map(&items).unwrap();
        assert!(task.caller_works.load(SeqCst), "the caller has not worked");
        assert_unharmed(&mapped, &items, &told);
    });
}
