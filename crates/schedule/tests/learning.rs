//! What a pool learns from runs, and what it saves.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{card, cores, without_history};
use evener_device::{Device, Result};
use evener_schedule::{Chunk, Closure, Pool, Report, Results, RunError, Task};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A pool with its own file of learned times.
fn pool(devices: &[Device], history: &Path) -> Pool {
    Pool::builder().devices(devices).keep_history_at(Some(history.into())).build().unwrap()
}

fn history() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.json");
    (folder, path)
}

/// The tasks in a file of learned times.
fn tasks(history: &Path) -> Vec<String> {
    let text = std::fs::read(history).unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    json["tasks"].as_object().map(|tasks| tasks.keys().cloned().collect()).unwrap_or_default()
}

/// Devices slow each other down: two together take four times as long as one alone.
#[derive(Clone, Default)]
struct Contended {
    active: Arc<AtomicUsize>,
    prepared: Arc<AtomicUsize>,
}

impl Task for Contended {
    type Input = u32;
    type Output = u32;
    type State = ();

    fn name(&self) -> &str {
        "contended"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, _: &Device) -> Result<()> {
        self.prepared.fetch_add(1, SeqCst);
        Ok(())
    }

    fn workers(&self, _: &Device) -> usize {
        1
    }

    fn run(&self, _: &mut (), chunk: &Chunk<'_, u32>, results: &mut Results<'_, u32>) -> Result<()> {
        let others = self.active.fetch_add(1, SeqCst);
        for _ in 0..1 + 7 * others {
            std::thread::sleep(Duration::from_micros(20 * chunk.len() as u64));
        }
        self.active.fetch_sub(1, SeqCst);
        chunk.read(|items| results.extend(items.iter().copied()))
    }
}

fn devices_used(report: &Report) -> usize {
    report.devices.iter().filter(|device| device.items > 0).count()
}

/// Number of runs that used one device alone, among the last half.
fn alone(runs: usize, mut run: impl FnMut(usize) -> Report) -> usize {
    let used: Vec<usize> = (0..runs).map(|number| devices_used(&run(number))).collect();
    used[runs / 2..].iter().filter(|&&count| count == 1).count()
}

#[test]
fn map_learns_that_devices_slow_each_other_down() {
    let (_folder, path) = history();
    let (pool, task) = (pool(&[card("a"), card("b")], &path), Contended::default());
    let items: Vec<u32> = (0..100).collect();
    let alone = alone(120, |_| pool.map(&task, &items).unwrap().report().clone());
    assert!(alone >= 48, "{alone} of 60 runs used one device");
}

#[test]
fn runs_of_other_item_counts_use_what_was_learned() {
    let (_folder, path) = history();
    let (pool, task) = (pool(&[card("a"), card("b")], &path), Contended::default());
    let items: Vec<u32> = (0..200).collect();
    let job = pool.job(&task);
    // All of them have different numbers of items.
    let alone =
        alone(60, |number| job.map(&items[..110 + number / 4 * 5 % 7 + number]).unwrap().report().clone());
    // Each size class tries both devices together a few times; a run that knew nothing from others would use both.
    assert!(alone > 10, "{alone} of 30 runs used one device");
}

#[test]
fn cancelled_and_failed_runs_teach_nothing_and_leave_no_history() {
    let (_folder, path) = history();
    let pool = pool(&[cores("a", 1), cores("b", 1)], &path);
    let slow = Closure::fallible("slow", |&item: &u32| {
        std::thread::sleep(ms(u64::from(item)));
        if item == 2 { Err("two".into()) } else { Ok(item) }
    });
    let job = pool.job(&slow).deadline(ms(3));
    // The runs that prepare the devices have few items: no run of about 64 succeeds.
    job.map(&[0; 3]).unwrap();
    for _ in 0..24 {
        assert!(matches!(job.map(&[1; 64]), Err(RunError::DeadlinePassed { .. })));
    }
    let mut items = [0; 64];
    items[63] = 2;
    for _ in 0..24 {
        assert!(job.map(&items).is_err());
        job.map(&[0; 3]).unwrap();
    }
    drop((job, pool));
    let text = std::fs::read_to_string(&path).unwrap();
    // Size classes are four times the logarithm.
    assert!(text.contains("\"6\":") && !text.contains("\"24\":"), "{text}");
}

#[test]
fn learned_times_are_saved_when_a_run_ends_and_not_only_when_the_pool_does() {
    let (_folder, path) = history();
    let pool: &'static Pool = Box::leak(Box::new(pool(&[cores("a", 1)], &path)));
    pool.map(&Closure::new("kept", |&item: &u32| item), &[1, 2, 3]).unwrap();
    assert_eq!(tasks(&path).len(), 1);
}

#[test]
fn tasks_of_one_name_over_different_items_are_learned_separately() {
    let (_folder, path) = history();
    let pool = pool(&[cores("a", 1)], &path);
    pool.map(&Closure::new("same", |&item: &u8| item), &[1, 2, 3]).unwrap();
    pool.map(&Closure::new("same", |item: &[u64; 64]| item[0]), &[[1; 64]; 3]).unwrap();
    drop(pool);
    assert_eq!(tasks(&path).len(), 2, "{:?}", tasks(&path));
}

/// Its state is a copy of its table.
#[derive(Clone)]
struct Table(Arc<[u32]>, Arc<AtomicUsize>);

impl Task for Table {
    type Input = u8;
    type Output = u32;
    type State = Vec<u32>;

    fn name(&self) -> &str {
        "table"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, _: &Device) -> Result<Vec<u32>> {
        self.1.fetch_add(1, SeqCst);
        Ok(self.0.to_vec())
    }

    fn run(&self, table: &mut Vec<u32>, chunk: &Chunk<'_, u8>, results: &mut Results<'_, u32>) -> Result<()> {
        chunk.read(|items| results.extend(items.iter().map(|&item| table[usize::from(item)])))
    }
}

#[test]
fn calls_with_different_tasks_of_one_name_do_not_share_states() {
    let pool = without_history([cores("a", 1)]);
    let prepared = Arc::default();
    let (squares, cubes) =
        (Table([0, 1, 4, 9].into(), Arc::clone(&prepared)), Table([0, 1, 8, 27].into(), prepared));
    for _ in 0..4 {
        assert_eq!(pool.map(&squares, &[2, 3]).unwrap().results(), [4, 9]);
        assert_eq!(pool.map(&cubes, &[2, 3]).unwrap().results(), [8, 27]);
    }
}

#[test]
fn calls_with_one_task_make_its_states_once_and_release_drops_them() {
    let (_folder, path) = history();
    let (pool, task) = (pool(&[cores("a", 1)], &path), Contended::default());
    for _ in 0..4 {
        pool.map(&task, &[1, 2]).unwrap();
    }
    assert_eq!(task.prepared.load(SeqCst), 1);
    pool.release();
    pool.map(&task, &[1, 2]).unwrap();
    assert_eq!(task.prepared.load(SeqCst), 2);
}

#[test]
fn a_task_is_dropped_when_the_call_ends() {
    let pool = without_history([cores("a", 1)]);
    let held = Arc::new(());
    let inside = held.clone();
    let task = Closure::new("holds", move |&item: &u32| item + u32::from(Arc::strong_count(&inside) == 0));
    pool.map(&task, &[1, 2]).unwrap();
    drop(task);
    let start = std::time::Instant::now();
    // The worker may need a moment longer than the caller.
    while Arc::strong_count(&held) > 1 {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::yield_now();
    }
}

/// Its preparation and each of its first calls take as long as thousands of items.
#[derive(Clone, Default)]
struct SlowAtFirst {
    prepared: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    items: Arc<AtomicUsize>,
}

impl SlowAtFirst {
    const EACH: Duration = Duration::from_micros(50);
    const LONG: Duration = Duration::from_millis(150);
    const SLOW_CALLS: usize = 3;
}

impl Task for SlowAtFirst {
    type Input = u32;
    type Output = u32;
    type State = ();

    fn name(&self) -> &str {
        "slow at first"
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn prepare(&self, _: &Device) -> Result<()> {
        self.prepared.fetch_add(1, SeqCst);
        std::thread::sleep(Self::LONG);
        Ok(())
    }

    fn run(&self, (): &mut (), chunk: &Chunk<'_, u32>, results: &mut Results<'_, u32>) -> Result<()> {
        let items = chunk.read(<[u32]>::to_vec)?;
        self.items.fetch_add(items.len(), SeqCst);
        let is_slow = self.calls.fetch_add(1, SeqCst) < Self::SLOW_CALLS;
        let takes = Self::EACH * items.len() as u32 + if is_slow { Self::LONG } else { Duration::ZERO };
        std::thread::sleep(takes);
        results.extend(items);
        Ok(())
    }
}

#[test]
fn a_slow_preparation_and_slow_first_chunks_do_not_count_in_the_rate_of_a_calibrated_device() {
    let task = SlowAtFirst::default();
    let job = without_history([cores("a", 1)]).job(&task);
    let rate = job.calibrate(&vec![1; 20_000]).unwrap()[0].1.unwrap();
    let ideal = SlowAtFirst::EACH.as_secs_f64().recip();
    assert!((ideal / 10.0..ideal * 1.01).contains(&rate), "{rate} items/s instead of {ideal}");
    assert_eq!(task.prepared.load(SeqCst), 1);
    assert!(task.items.load(SeqCst) > 1_000, "a sample of less than 50 ms");
    assert_eq!(job.calibrate(&[]).unwrap()[0].1, None, "no items, no rate");
}
