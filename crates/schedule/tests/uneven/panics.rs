//! User code that panics: the run returns nonetheless.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use evener_device::testing::{Fault, Faults, InjectedError};
use evener_schedule::{Progress, RunError, Task};
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

use crate::{
    common::{card, cores, wait_until_idle, within, without_history},
    support::{
        Checked, LIMIT, Process, alike, answer, answers, beside_others, closure, is_child, job, kernel, ms,
    },
};

/// Asserts that a call returns a value: a panic of the user's code does not pass through it.
fn returns<R>(name: &str, call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| panic!("{name}: the panic came through"))
}

fn survives_progress<T: Task<Input = u64, Output = u64>>(
    name: &'static str,
    task: T,
    panics: fn(&Progress, u64) -> bool,
) {
    within(LIMIT, name, move || {
        let pool = without_history([cores("cpu/a", 2), cores("cpu/b", 1)]);
        let mut calls = 0;
        let job = job(&pool, &task).on_progress(move |progress| {
            calls += 1;
            assert!(!panics(progress, calls), "on purpose");
        });
        let items = alike(400, ms(3));
        // Once more, after the panic. The callback runs on the thread that started the run, and its panic continues
        // there.
        for _ in 0..2 {
            match catch_unwind(AssertUnwindSafe(|| job.map(&items))) {
                Ok(mapped) => assert_eq!(mapped.unwrap().results(), answers(&items)),
                Err(panic) => assert_eq!(panic.downcast_ref(), Some(&"on purpose"), "{name}"),
            }
        }
        wait_until_idle(&pool);
        let plain = pool.job(&task);
        assert_eq!(plain.map(&items[..50]).unwrap().results(), answers(&items[..50]), "the pool still works");
    });
}

#[test]
fn a_progress_callback_that_always_panics_hangs_no_run() {
    let _turn = beside_others();
    survives_progress("a callback that panics, closure", closure(), |_, _| true);
    survives_progress("a callback that panics, kernel", kernel(), |_, _| true);
}

#[test]
fn a_progress_callback_that_panics_in_the_middle_hangs_no_run() {
    let _turn = beside_others();
    survives_progress("a callback that panics the third time", closure(), |_, calls| calls == 3);
}

#[test]
fn a_progress_callback_that_panics_at_the_end_hangs_no_run() {
    let _turn = beside_others();
    survives_progress("a callback that panics at the end", closure(), |progress, _| progress.ended);
}

/// A subscriber that panics on every event, on any thread.
struct Panicking;

static EVENTS: AtomicU64 = AtomicU64::new(0);

impl Subscriber for Panicking {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        EVENTS.fetch_add(1, SeqCst);
        panic!("on purpose");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs a task on two devices, one of which has this fault at this operation.
fn run_with<T: Task<Input = u64, Output = u64>>(
    task: &T,
    operation: u64,
    fault: Fault,
) -> Result<(), RunError> {
    let (devices, faults): (Vec<_>, Vec<_>) =
        [card("card:0"), cores("cpu", 2)].iter().map(Faults::wrap).unzip();
    let pool = without_history(devices);
    faults[0].at(operation, fault);
    let items = alike(300, ms(1));
    let job = job(&pool, task).chunk_limit(ms(400)).prepare_limit(ms(400));
    let outcome = returns("a run", || job.map(&items));
    // The hung worker goes on, so that its thread ends.
    faults[0].release();
    assert_eq!(outcome?.results(), answers(&items));
    Ok(())
}

fn queue() {
    let pool = without_history([card("card:0"), cores("cpu", 1)]);
    let Ok(queue) = returns("opening a queue", || pool.queue(&kernel()).open()) else { return };
    let items = alike(50, ms(1));
    let handles: Vec<_> = items.iter().map(|&item| returns("submitting", || queue.submit(item))).collect();
    for (handle, &item) in handles.into_iter().zip(&items) {
        if let Ok(handle) = handle
            && let Ok(result) = handle.wait()
        {
            assert_eq!(result, answer(item));
        }
    }
    queue.join();
}

/// Everything that logs, in a process whose subscriber panics: this one.
fn with_a_panicking_subscriber() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("on purpose") {
            hook(panic);
        }
    }));
    tracing::subscriber::set_global_default(Panicking).unwrap();
    for operation in [1, 4, 9, 20] {
        for fault in [
            Fault::Fail(InjectedError::Lost),
            Fault::Fail(InjectedError::OutOfMemory),
            Fault::Hang,
            Fault::Corrupt,
        ] {
            let name = format!("a panicking subscriber, {fault:?} in operation {operation}");
            within(Duration::from_secs(8), &name, move || {
                if let Err(error) = run_with(&Checked::new(), operation, fault) {
                    eprintln!("{fault:?} in operation {operation}: {error}");
                }
            });
        }
    }
    within(Duration::from_secs(8), "a panicking subscriber, a queue", queue);
    assert!(EVENTS.load(SeqCst) > 0, "nothing was told, so nothing was tried");
}

#[test]
fn a_tracing_subscriber_that_panics_hangs_no_run_and_no_queue() {
    if is_child() {
        return with_a_panicking_subscriber();
    }
    Process::start("panics::a_tracing_subscriber_that_panics_hangs_no_run_and_no_queue")
        .assert_ends_well_within(Duration::from_secs(40));
}
