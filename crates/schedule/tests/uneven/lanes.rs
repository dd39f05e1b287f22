//! As many items as lanes: each lane does one, and all at the same time.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::{Duration, Instant},
};

use evener_device::Device;
use evener_schedule::Task;

use crate::{
    common::{cores, within, without_history},
    support::{LIMIT, alike, alone, answers, assert_takes_at_most, beside_others, closure, job, kernel, ms},
};

const ITEM: Duration = ms(300);

/// Asserts that one item per lane takes at most a twentieth longer than one item.
fn one_each<T: Task<Input = u64, Output = u64>>(devices: Vec<Device>, task: T, lanes: usize) {
    within(LIMIT, "one item a lane", move || {
        let pool = without_history(devices);
        let items = alike(lanes, ITEM);
        let name = format!("{lanes} items on {lanes} lanes for {}", task.name());
        // A new job each time, which does not know how long the items take.
        assert_takes_at_most(ITEM.mul_f64(1.05), &name, || {
            let job = job(&pool, &task);
            let start = Instant::now();
            let mapped = job.map(&items).unwrap();
            let took = start.elapsed();
            assert_eq!(mapped.results(), answers(&items));
            took
        });
    });
}

#[test]
fn two_items_on_two_devices_of_one_core_take_as_long_as_one() {
    let _turn = alone();
    one_each(vec![cores("cpu/a", 1), cores("cpu/b", 1)], closure(), 2);
    one_each(vec![cores("cpu/a", 1), cores("cpu/b", 1)], kernel(), 2);
}

#[test]
fn sixteen_items_on_sixteen_lanes_take_as_long_as_one() {
    let _turn = alone();
    one_each(vec![cores("cpu", 16)], closure(), 16);
}

#[test]
fn sixteen_items_on_lanes_of_unlike_devices_take_as_long_as_one() {
    let _turn = alone();
    one_each(vec![cores("cpu/a", 3), cores("cpu/b", 12), cores("cpu/c", 1)], closure(), 16);
}

/// The cores that this thread may run on.
#[cfg(target_os = "linux")]
fn allowed_cores() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned()
}

/// Runs one item per core on a partition, all at the same time. Returns whether they were at the same time, and the cores
/// that they ran on.
#[cfg(target_os = "linux")]
fn one_on_each(partition: &evener_schedule::Pool, cores: usize) -> (bool, BTreeSet<String>) {
    let here = AtomicUsize::new(0);
    let item = |_| {
        here.fetch_add(1, SeqCst);
        let start = Instant::now();
        while here.load(SeqCst) < cores && start.elapsed() < ms(100) {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(ms(1));
        (here.load(SeqCst) == cores && start.elapsed() < ms(100), allowed_cores())
    };
    let seen = partition.map_range(0..cores, item).unwrap().into_results();
    (seen.iter().all(|(together, _)| *together), seen.into_iter().map(|(_, core)| core).collect())
}

/// Other runs use the same threads, and end at any time.
#[cfg(target_os = "linux")]
#[test]
fn the_lanes_of_a_partition_are_on_different_cores_in_every_run() {
    let _turn = beside_others();
    within(LIMIT, "runs on a partition", || {
        let cores = std::thread::available_parallelism().unwrap().get().min(4);
        let partition = Device::cpu().split(&[cores as u32]).unwrap();
        let pool = without_history(partition);
        let runs = || {
            (0..60)
                .filter(|_| {
                    let (together, places) = one_on_each(&pool, cores);
                    assert!(!together || places.len() == cores, "{cores} lanes on {places:?}");
                    together
                })
                .count()
        };
        let together: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(runs)).collect();
            // A lane may run another pool's or its own pool's runs.
            let nested = scope.spawn(|| pool.map_range(0..1, |_| runs()).unwrap().into_results()[0]);
            threads.into_iter().chain([nested]).map(|thread| thread.join().unwrap()).sum()
        });
        assert!(together > 100, "of 240 runs, {together} had all items at the same time");
    });
}
