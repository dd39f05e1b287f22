//! A process that is stopped and continued: time went by, and nothing is wrong with any device.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use evener_schedule::{Pool, Task};

use crate::{
    common::{card, cores, within},
    support::{Process, alike, answers, closure, is_child, job, kernel, ms},
};

const PAUSE: Duration = Duration::from_secs(5);

/// A run of about two seconds that is stopped in its middle, in a process of its own: this one.
fn paused_run<T: Task<Input = u64, Output = u64>>(task: T, lanes: usize) {
    within(Duration::from_secs(25), "a run that is stopped", move || {
        let pool = Pool::new([card("card:0"), cores("cpu", 2)]).unwrap();
        let warm = alike(2_000, Duration::from_micros(50));
        job(&pool, &task).map(&warm).unwrap();
        let told = Arc::new(AtomicBool::new(false));
        let tell = told.clone();
        let job = job(&pool, &task).on_progress(move |progress| {
            if progress.elapsed > ms(300) && !tell.swap(true, SeqCst) {
                println!("under way");
            }
        });
        let items = alike(1_000 * lanes, ms(2));
        let start = Instant::now();
        let mapped = job.map(&items).unwrap();
        assert!(told.load(SeqCst), "it was over before it could be stopped");
        assert!(start.elapsed() > PAUSE, "it was not stopped");
        assert_eq!(mapped.results(), answers(&items));
        let lost = |state: &str| state != "healthy";
        for device in &mapped.report().devices {
            assert!(device.quarantines == 0 && !lost(&device.state), "{}", mapped.report());
        }
    });
}

fn pause(name: &str) {
    let mut process = Process::start(name);
    process.wait_for("under way");
    process.signal("STOP");
    std::thread::sleep(PAUSE);
    process.signal("CONT");
    process.assert_ends_well_within(Duration::from_secs(20));
}

#[test]
fn a_kernel_run_that_was_stopped_for_seconds_loses_nothing() {
    if is_child() {
        return paused_run(kernel(), 3);
    }
    pause("pause::a_kernel_run_that_was_stopped_for_seconds_loses_nothing");
}

#[test]
fn a_closure_run_that_was_stopped_for_seconds_loses_nothing() {
    if is_child() {
        return paused_run(closure(), 2);
    }
    pause("pause::a_closure_run_that_was_stopped_for_seconds_loses_nothing");
}
