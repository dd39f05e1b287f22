//! A cluster of expensive items among many cheap ones: the other lanes help the one that gets them.

use std::time::{Duration, Instant};

use evener_device::Device;
use evener_schedule::{Pool, Task};

use crate::{
    common::{assert_counted_once, cores, within, without_history},
    support::{
        LIMIT, Plain, alone, answers, assert_takes_at_most, closure, fallible, item, job, kernel, ms, total,
    },
};

const LANES: u32 = 8;
const ITEMS: usize = 100_000;
/// A thousandth of the items, and as many for each lane.
const EXPENSIVE: usize = 104;
const DEAR_COST: Duration = ms(20);
/// Two thousand times less.
const CHEAP_COST: Duration = Duration::from_micros(10);

/// Cheap items with all expensive ones side by side: at the beginning (0), in the middle (0.5) or at the end (1).
fn clustered(place: f64, cheap: Duration) -> Vec<u64> {
    let first = (place * (ITEMS - EXPENSIVE) as f64) as usize;
    let expensive = first..first + EXPENSIVE;
    (0..ITEMS).map(|it| item(if expensive.contains(&it) { DEAR_COST } else { cheap }, it)).collect()
}

/// Asserts that eight lanes take at most `times` times as long as if each had an eighth of the work.
fn shared<T: Task<Input = u64, Output = u64>>(task: T, place: f64, cheap: Duration, times: f64) {
    shared_by(vec![cores("cpu", LANES)], task, place, cheap, times);
}

fn shared_by<T: Task<Input = u64, Output = u64>>(
    devices: Vec<Device>,
    task: T,
    place: f64,
    cheap: Duration,
    times: f64,
) {
    within(LIMIT, "expensive items side by side", move || {
        let pool = without_history(devices);
        let items = clustered(place, cheap);
        let expected = answers(&items);
        let ideal = total(&items) / LANES + free(&task, &pool, cheap);
        let name = format!("{} with expensive items at {place}, ideally {ideal:?}", task.name());
        assert_takes_at_most(ideal.mul_f64(times), &name, || {
            let job = job(&pool, &task);
            let start = Instant::now();
            let mapped = job.map(&items).unwrap_or_else(|error| panic!("{name}: {error}"));
            let took = start.elapsed();
            assert!(mapped.results() == expected, "{name}: wrong results");
            assert_counted_once(mapped.report(), ITEMS);
            let quarantines: u64 = mapped.report().devices.iter().map(|device| device.quarantines).sum();
            assert_eq!(quarantines, 0, "{name}:\n{}", mapped.report());
            took
        });
    });
}

/// The time of a run of free items only, which take some time nonetheless.
fn free<T: Task<Input = u64, Output = u64>>(task: &T, pool: &Pool, cheap: Duration) -> Duration {
    if !cheap.is_zero() {
        return Duration::ZERO;
    }
    let items: Vec<u64> = (0..ITEMS).map(|it| item(Duration::ZERO, it)).collect();
    let job = job(pool, task);
    let times = (0..5).map(|_| {
        let start = Instant::now();
        job.map(&items).unwrap();
        start.elapsed()
    });
    times.min().unwrap_or_default().min(ms(5))
}

#[test]
fn expensive_closure_items_at_the_beginning_are_shared() {
    let _turn = alone();
    shared(closure(), 0.0, Duration::ZERO, 1.15);
}

#[test]
fn expensive_closure_items_in_the_middle_are_shared() {
    let _turn = alone();
    shared(closure(), 0.5, Duration::ZERO, 1.15);
    shared(closure(), 0.31, Duration::ZERO, 1.15);
    shared(fallible(), 0.5, Duration::ZERO, 1.15);
}

#[test]
fn expensive_closure_items_at_the_end_are_shared() {
    let _turn = alone();
    shared(closure(), 1.0, Duration::ZERO, 1.15);
}

#[test]
fn expensive_items_of_a_task_that_reads_in_place_are_shared() {
    let _turn = alone();
    for place in [0.0, 0.5, 1.0] {
        // The run waits for a lane that still reads its items, so the time depends on the number of expensive ones in
        // one chunk.
        shared(Plain { copies: false }, place, CHEAP_COST, 2.0);
    }
}

#[test]
fn expensive_items_of_a_task_that_copies_are_shared() {
    let _turn = alone();
    for place in [0.0, 0.5, 1.0] {
        shared(Plain { copies: true }, place, CHEAP_COST, 2.0);
    }
}

#[test]
fn expensive_items_of_a_kernel_are_shared() {
    let _turn = alone();
    for place in [0.0, 0.5, 1.0] {
        // A device runs as many kernels at once as the machine has cores, whatever it reports.
        let devices = (0..LANES).map(|number| cores(&format!("cpu/{number}"), 1)).collect();
        shared_by(devices, kernel(), place, CHEAP_COST, 2.0);
    }
}
