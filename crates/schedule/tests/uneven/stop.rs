//! A run past its deadline, or one that is cancelled, returns at once: at most one item later.

use std::time::{Duration, Instant};

use evener_device::Device;
use evener_schedule::{Cancel, Job, RunError, Task};

use crate::{
    common::{assert_possible, cores, done_of, wait_until_idle, within, without_history},
    support::{LIMIT, alike, alone, closure, fallible, job, kernel, ms},
};

/// When a run is to end.
const END: Duration = ms(300);
/// Maximum delay: 50 ms are documented, and the rest is for a busy machine.
const LATE: Duration = ms(100);

#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Deadline,
    Cancel,
}

/// Warms a job up with cheap items, then ends a run of many items of this cost.
fn ended<T: Task<Input = u64, Output = u64>>(how: How, devices: Vec<Device>, task: T, cost: Duration) {
    let name = format!("{how:?} of {cost:?} items for {} on {} devices", task.name(), devices.len());
    within(LIMIT, &name.clone(), move || {
        let pool = without_history(devices);
        let cancel = Cancel::new();
        let job: Job<'_, T> = match how {
            How::Deadline => job(&pool, &task).deadline(END),
            How::Cancel => job(&pool, &task).cancel(&cancel),
        };
        // So short that the calling thread runs some of them itself.
        for _ in 0..20 {
            job.map(&alike(200, Duration::ZERO)).unwrap();
        }
        let items = alike(20_000, cost);
        let start = Instant::now();
        let canceller = std::thread::spawn(move || {
            std::thread::sleep(END);
            cancel.cancel();
        });
        let error = job.map(&items).expect_err("it takes seconds");
        let took = start.elapsed();
        canceller.join().unwrap();
        let ended = match how {
            How::Deadline => matches!(error, RunError::DeadlinePassed { after, .. } if after == END),
            How::Cancel => matches!(error, RunError::Cancelled { .. }),
        };
        assert!(ended, "{name}: {error}");
        assert!(took >= END, "{name}: {took:?}");
        assert!(took <= END + LATE + cost, "{name}: {took:?}, which is {:?} late", took - END);
        assert_possible(done_of(&error).unwrap(), items.len());
        wait_until_idle(&pool);
    });
}

fn one_lane() -> Vec<Device> {
    vec![cores("cpu", 1)]
}

fn four_lanes() -> Vec<Device> {
    vec![cores("cpu/a", 2), cores("cpu/b", 2)]
}

#[test]
fn a_deadline_ends_a_closure_within_an_item() {
    let _turn = alone();
    for devices in [one_lane(), four_lanes()] {
        ended(How::Deadline, devices.clone(), closure(), ms(1));
        ended(How::Deadline, devices, closure(), ms(20));
    }
}

#[test]
fn cancelling_ends_a_closure_within_an_item() {
    let _turn = alone();
    for devices in [one_lane(), four_lanes()] {
        ended(How::Cancel, devices.clone(), closure(), ms(1));
        ended(How::Cancel, devices, closure(), ms(20));
    }
}

#[test]
fn a_deadline_and_cancelling_end_a_fallible_closure_within_an_item() {
    let _turn = alone();
    ended(How::Deadline, one_lane(), fallible(), ms(1));
    ended(How::Cancel, four_lanes(), fallible(), ms(1));
}

#[test]
fn a_deadline_and_cancelling_do_not_wait_for_a_kernel() {
    let _turn = alone();
    for how in [How::Deadline, How::Cancel] {
        for devices in [one_lane(), four_lanes()] {
            ended(how, devices, kernel(), ms(1));
        }
    }
}

#[test]
fn a_deadline_ends_cheap_items_that_become_expensive() {
    let _turn = alone();
    within(LIMIT, "cheap items, then expensive ones, and a deadline", || {
        let pool = without_history([cores("cpu", 4)]);
        let job = job(&pool, &closure()).deadline(END);
        let mut items = alike(500_000, Duration::ZERO);
        items.extend(alike(20_000, ms(1)));
        let start = Instant::now();
        let error = job.map(&items).expect_err("it takes seconds");
        let took = start.elapsed();
        assert!(matches!(error, RunError::DeadlinePassed { .. }), "{error}");
        assert!(took >= END && took <= END + LATE, "{took:?}");
    });
}
