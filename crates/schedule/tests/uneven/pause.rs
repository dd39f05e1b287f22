//! A process that is stopped and continued: time passes, and no device has failed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::{
    common::{card, cores, within, without_history},
    support::{Process, alike, answers, is_child, job, kernel, ms},
};

const PAUSE: Duration = Duration::from_secs(5);

/// A run of about two seconds on devices that may hang, in a child process that is stopped in the middle.
fn paused_run() {
    within(Duration::from_secs(25), "a run that is stopped", move || {
        let pool = without_history([card("card:0"), cores("cpu", 2)]);
        let warm = alike(2_000, Duration::from_micros(50));
        job(&pool, &kernel()).map(&warm).unwrap();
        let told = Arc::new(AtomicBool::new(false));
        let tell = told.clone();
        let job = job(&pool, &kernel()).on_progress(move |progress| {
            if progress.elapsed > ms(300) && !tell.swap(true, SeqCst) {
                println!("under way");
            }
        });
        let items = alike(3_000, ms(2));
        let start = Instant::now();
        let mapped = job.map(&items).unwrap();
        assert!(told.load(SeqCst), "it was over before it could be stopped");
        assert!(start.elapsed() > PAUSE, "it was not stopped");
        assert_eq!(mapped.results(), answers(&items));
        let lost = mapped.report().devices.iter().any(|device| device.quarantines > 0);
        assert!(!lost, "nothing is wrong with any device, and yet:\n{}", mapped.report());
    });
}

#[test]
fn a_run_that_was_stopped_for_seconds_loses_nothing() {
    if is_child() {
        return paused_run();
    }
    let mut process = Process::start("pause::a_run_that_was_stopped_for_seconds_loses_nothing");
    process.wait_for("under way");
    process.signal("STOP");
    std::thread::sleep(PAUSE);
    process.signal("CONT");
    process.assert_ends_well_within(Duration::from_secs(20));
}
