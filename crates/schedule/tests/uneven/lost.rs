//! No run fails while a device works: slow is not hung, and failed chunks are retried.

use std::{panic::resume_unwind, time::Duration};

use evener_device::{
    Device, Kernel,
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{KernelParams, KernelTask, Report, Task};

use crate::{
    common::{card, cores, wait_until_idle, within, without_history},
    support::{
        Checked, LIMIT, alike, answer, answers, beside_others, closure, cost, item, job, kernel, ms, total,
    },
};

/// The processor as two devices of one core each, as `cpu[1,1]` selects them.
fn halves() -> Vec<Device> {
    Device::cpu().split(&[1, 1]).expect("the processor has two cores")
}

/// Asserts that no device failed or was in quarantine.
fn assert_trusted(report: &Report) {
    let trusted = report.devices.iter().all(|device| (device.quarantines, device.retries) == (0, 0));
    assert!(trusted, "every device is well, and yet:\n{report}");
}

#[test]
fn kernel_items_that_become_a_thousand_times_more_expensive_fail_no_run() {
    let _turn = beside_others();
    within(LIMIT * 2, "cheap kernel items, then expensive ones", || {
        let pool = without_history(halves());
        let mut items = alike(100_000, Duration::from_micros(5));
        items.extend(alike(800, ms(5)));
        let job = job(&pool, &kernel());
        for run in 0..2 {
            let mapped = job.map(&items).unwrap_or_else(|error| panic!("run {run}: {error}"));
            assert_eq!(mapped.results(), answers(&items));
        }
    });
}

/// Two million items that take almost no time, and one among them that takes a second.
fn needle(place: usize) -> Vec<u64> {
    let mut items = alike(2_000_000, Duration::ZERO);
    items[place] = item(Duration::from_secs(1), place);
    items
}

fn finds_the_needle<T: Task<Input = u64, Output = u64>>(devices: &[Device], task: &T, places: &[usize]) {
    for &place in places {
        let (pool, task) = (without_history(devices), task.clone());
        within(LIMIT, &format!("item {place} is expensive for {}", task.name()), move || {
            let items = needle(place);
            let mapped =
                job(&pool, &task).map(&items).unwrap_or_else(|error| panic!("item {place}: {error}"));
            assert!(mapped.results() == answers(&items), "wrong results");
        });
    }
}

#[test]
fn one_expensive_kernel_item_among_two_million_cheap_ones_fails_no_run() {
    let _turn = beside_others();
    finds_the_needle(&halves(), &kernel(), &[5_000, 777_777, 1_999_999]);
}

#[test]
fn one_expensive_kernel_item_of_the_only_device_fails_no_run() {
    let _turn = beside_others();
    finds_the_needle(&[cores("cpu", 1)], &kernel(), &[1_999_999]);
}

#[test]
fn one_expensive_item_of_a_closure_among_two_million_cheap_ones_fails_no_run() {
    let _turn = beside_others();
    finds_the_needle(&[cores("cpu/a", 1), cores("cpu/b", 1)], &closure(), &[777_777, 1_999_999]);
}

/// Number of iterations until a pixel of the picture escapes: one or two around the set, and the maximum inside it.
fn mandelbrot(pixel: u32, width: u32, height: u32) -> u32 {
    const STEPS: u32 = 4_000;
    let (column, row) = (f64::from(pixel % width), f64::from(pixel / width));
    let (re, im) = (-4.5 + 8.1 * column / f64::from(width), -2.7 + 5.4 * row / f64::from(height));
    let (mut x, mut y) = (0.0, 0.0);
    for step in 0..STEPS {
        let (xx, yy) = (x * x, y * y);
        if xx + yy > 4.0 {
            return step;
        }
        (x, y) = (xx - yy + re, 2.0 * x * y + im);
    }
    STEPS
}

#[test]
fn a_plain_mandelbrot_picture_comes_out_whole() {
    const SIZE: (u32, u32) = (3840, 2560);
    let _turn = beside_others();
    within(LIMIT * 3, "Mandelbrot", || {
        let kernel = Kernel::new("mandelbrot").reads::<u32>().writes::<u32>().params::<KernelParams>().rust(
            |launch| {
                let count = launch.params::<KernelParams>()?.count as usize;
                let (pixels, steps) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
                for (steps, &pixel) in steps[..count].iter_mut().zip(pixels) {
                    *steps = mandelbrot(pixel, SIZE.0, SIZE.1);
                }
                Ok(())
            },
        );
        let pool = without_history(halves());
        let pixels: Vec<u32> = (0..SIZE.0 * SIZE.1).collect();
        let mapped = job(&pool, &KernelTask::<u32, u32>::new(&kernel)).map(&pixels).unwrap();
        assert_eq!(mapped.results().len(), pixels.len());
        // Checking all of them with a plain loop would take as long again.
        for (&pixel, &steps) in pixels.iter().zip(mapped.results()).step_by(97) {
            assert_eq!(steps, mandelbrot(pixel, SIZE.0, SIZE.1), "pixel {pixel}");
        }
    });
}

/// The device, the time and the fault.
type PlannedFault = (usize, When, Fault);

/// Runs with faults, several at once: their items sleep.
fn all_run(cases: Vec<(Vec<Device>, Vec<PlannedFault>)>) {
    for batch in cases.chunks(6) {
        std::thread::scope(|scope| {
            let running: Vec<_> =
                batch.iter().map(|(devices, plan)| scope.spawn(|| run_with(devices, plan))).collect();
            for case in running {
                case.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
    }
}

/// A run of 200 items of a millisecond, with faults that are planned by operation or that come after a while.
fn run_with(devices: &[Device], plan: &[PlannedFault]) {
    let ids: Vec<_> = devices.iter().map(|device| device.id().as_str()).collect();
    let name = format!("on {}: {plan:?}", ids.join(", "));
    let (devices, plan) = (devices.to_vec(), plan.to_vec());
    within(LIMIT, &name.clone(), move || {
        let (devices, faults): (Vec<_>, Vec<_>) = devices.iter().map(Faults::wrap).unzip();
        let pool = without_history(devices);
        let items = alike(200, ms(1));
        let mut timers = Vec::new();
        for (device, when, fault) in plan {
            let faults = faults[device].clone();
            match when {
                When::Operation(operation) => faults.at(operation, fault),
                When::After(time) => timers.push(std::thread::spawn(move || {
                    std::thread::sleep(time);
                    faults.at_next(fault);
                })),
            }
        }
        let mapped = job(&pool, &Checked::new()).map(&items).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(mapped.results(), answers(&items));
        timers.into_iter().for_each(|timer| timer.join().unwrap());
        wait_until_idle(&pool);
    });
}

#[derive(Debug, Clone, Copy)]
enum When {
    Operation(u64),
    After(Duration),
}

/// Transient errors: the device works afterwards.
const PASSING: [Fault; 4] = [
    Fault::Fail(InjectedError::Lost),
    Fault::Fail(InjectedError::TimedOut),
    Fault::Fail(InjectedError::BadResult),
    Fault::Corrupt,
];

#[test]
fn one_transient_error_of_the_only_device_while_it_works_fails_no_run() {
    let _turn = beside_others();
    let mut cases = Vec::new();
    for device in [cores("cpu", 1), cores("cpu", 4), card("card:0")] {
        for fault in PASSING {
            cases.push((vec![device.clone()], vec![(0, When::After(ms(40)), fault)]));
        }
    }
    all_run(cases);
}

#[test]
fn one_transient_error_of_the_only_device_at_its_beginning_fails_no_run() {
    let _turn = beside_others();
    let mut cases = Vec::new();
    for device in [cores("cpu", 1), card("card:0")] {
        for fault in PASSING {
            for operation in [1, 2, 3, 5, 8, 13] {
                cases.push((vec![device.clone()], vec![(0, When::Operation(operation), fault)]));
            }
        }
    }
    all_run(cases);
}

#[test]
fn two_devices_with_a_transient_error_each_fail_no_run() {
    let _turn = beside_others();
    let mut cases = Vec::new();
    for devices in [[cores("cpu/a", 1), cores("cpu/b", 1)], [card("card:0"), cores("cpu", 1)]] {
        for (first, second) in [(0, 1), (0, 2), (1, 0), (2, 1), (0, 0), (3, 0)] {
            let plan =
                vec![(0, When::After(ms(20)), PASSING[first]), (1, When::After(ms(50)), PASSING[second])];
            cases.push((devices.to_vec(), plan));
        }
    }
    all_run(cases);
}

#[test]
fn a_chunk_limit_of_ten_minutes_is_never_reached_by_slow_items() {
    let _turn = beside_others();
    for devices in [vec![card("card:0"), cores("cpu", 1)], vec![card("card:0")]] {
        within(LIMIT, "a limit of ten minutes", move || {
            let pool = without_history(devices);
            let job = job(&pool, &kernel()).chunk_limit(Duration::from_secs(600));
            let mut items = alike(500, Duration::from_micros(100));
            assert_eq!(job.map(&items).unwrap().results(), answers(&items));
            items.extend(alike(2, ms(1_200)));
            let mapped = job.map(&items).unwrap();
            assert_eq!(mapped.results(), answers(&items));
            assert_trusted(mapped.report());
        });
    }
}

fn slow_piece_after_quick_ones<T: Task<Input = u64, Output = u64>>(devices: Vec<Device>, task: T) {
    within(LIMIT, "a slow piece in a queue", move || {
        let pool = without_history(devices);
        let queue = pool.queue(&task).open().unwrap();
        let quick = alike(200, Duration::from_micros(200));
        let handles: Vec<_> = quick.iter().map(|&item| queue.submit(item).unwrap()).collect();
        for (handle, &item) in handles.into_iter().zip(&quick) {
            assert_eq!(handle.wait().unwrap(), answer(item));
        }
        let slow = item(Duration::from_secs(3), 7);
        assert_eq!(queue.submit(slow).unwrap().wait().unwrap(), answer(slow));
        queue.join();
    });
}

#[test]
fn a_slow_piece_after_quick_ones_is_done_by_a_queue_of_two_devices() {
    let _turn = beside_others();
    slow_piece_after_quick_ones(vec![card("card:0"), cores("cpu", 1)], kernel());
}

#[test]
fn a_slow_piece_after_quick_ones_is_done_by_a_queue_of_one_device() {
    let _turn = beside_others();
    slow_piece_after_quick_ones(vec![cores("cpu", 1)], kernel());
}

#[test]
fn items_know_what_they_cost() {
    assert_eq!(cost(item(ms(20), 3)), ms(20));
    assert_eq!(total(&alike(3, ms(5))), ms(15));
    assert_ne!(answer(item(ms(1), 1)), answer(item(ms(1), 2)));
}
