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

use common::{TestTask, card, cores, without_history};
use evener_device::Device;
use evener_schedule::{Chunk, Closure, Pool, Report, RunError};

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

/// A task whose devices slow each other down: two together take four times as long as one alone. With the number of its
/// preparations.
fn contended() -> (TestTask<u32, u32, ()>, Arc<AtomicUsize>) {
    let (active, prepared) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let preparations = prepared.clone();
    let task = TestTask::new(
        "contended",
        move |_| {
            preparations.fetch_add(1, SeqCst);
            Ok(())
        },
        move |(), chunk: &Chunk<'_, u32>, results| {
            let others = active.fetch_add(1, SeqCst);
            for _ in 0..1 + 7 * others {
                std::thread::sleep(Duration::from_micros(20 * chunk.len() as u64));
            }
            active.fetch_sub(1, SeqCst);
            chunk.read(|items| results.extend(items.iter().copied()))
        },
    );
    (TestTask { workers: Some(1), ..task }, prepared)
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
    let (pool, (task, _)) = (pool(&[card("a"), card("b")], &path), contended());
    let items: Vec<u32> = (0..100).collect();
    let alone = alone(120, |_| pool.map(&task, &items).unwrap().report().clone());
    assert!(alone >= 48, "{alone} of 60 runs used one device");
}

#[test]
fn runs_of_other_item_counts_use_what_was_learned() {
    let (_folder, path) = history();
    let (pool, (task, _)) = (pool(&[card("a"), card("b")], &path), contended());
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

/// A task whose state is a copy of its table.
fn table<const N: usize>(table: [u32; N]) -> TestTask<u8, u32, Vec<u32>> {
    TestTask::new(
        "table",
        move |_| Ok(table.to_vec()),
        |table, chunk, results| {
            chunk.read(|items| results.extend(items.iter().map(|&item: &u8| table[usize::from(item)])))
        },
    )
}

#[test]
fn calls_with_different_tasks_of_one_name_do_not_share_states() {
    let pool = without_history([cores("a", 1)]);
    let (squares, cubes) = (table([0, 1, 4, 9]), table([0, 1, 8, 27]));
    for _ in 0..4 {
        assert_eq!(pool.map(&squares, &[2, 3]).unwrap().results(), [4, 9]);
        assert_eq!(pool.map(&cubes, &[2, 3]).unwrap().results(), [8, 27]);
    }
}

#[test]
fn calls_with_one_task_make_its_states_once_and_release_drops_them() {
    let (_folder, path) = history();
    let (pool, (task, prepared)) = (pool(&[cores("a", 1)], &path), contended());
    for _ in 0..4 {
        pool.map(&task, &[1, 2]).unwrap();
    }
    assert_eq!(prepared.load(SeqCst), 1);
    pool.release();
    pool.map(&task, &[1, 2]).unwrap();
    assert_eq!(prepared.load(SeqCst), 2);
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

#[test]
fn a_slow_preparation_and_slow_first_chunks_do_not_count_in_the_rate_of_a_calibrated_device() {
    // The preparation and each of the first calls take as long as thousands of items.
    const EACH: Duration = Duration::from_micros(50);
    const LONG: Duration = Duration::from_millis(150);
    const SLOW_CALLS: usize = 3;
    let [prepared, calls, counted] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    let (preparations, sampled) = (prepared.clone(), counted.clone());
    let task = TestTask::new(
        "slow at first",
        move |_| {
            preparations.fetch_add(1, SeqCst);
            std::thread::sleep(LONG);
            Ok(())
        },
        move |(), chunk: &Chunk<'_, u32>, results| {
            let items = chunk.read(<[u32]>::to_vec)?;
            sampled.fetch_add(items.len(), SeqCst);
            let is_slow = calls.fetch_add(1, SeqCst) < SLOW_CALLS;
            std::thread::sleep(EACH * items.len() as u32 + if is_slow { LONG } else { Duration::ZERO });
            results.extend(items);
            Ok(())
        },
    );
    let job = without_history([cores("a", 1)]).job(&task);
    let rate = job.calibrate(&vec![1; 20_000]).unwrap()[0].1.unwrap();
    let ideal = EACH.as_secs_f64().recip();
    assert!((ideal / 10.0..ideal * 1.01).contains(&rate), "{rate} items/s instead of {ideal}");
    assert_eq!(prepared.load(SeqCst), 1);
    assert!(counted.load(SeqCst) > 1_000, "a sample of less than 50 ms");
    assert_eq!(job.calibrate(&[]).unwrap()[0].1, None, "no items, no rate");
}
