//! As many items as lanes: each lane does one, and all at the same time.

use std::time::{Duration, Instant};

use evener_device::Device;
use evener_schedule::Task;

use crate::{
    common::{cores, within, without_history},
    support::{LIMIT, alike, alone, answers, assert_takes_at_most, closure, job, kernel, ms},
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
