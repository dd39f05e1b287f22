//! Waiting by polling (shared memory, messages, CUDA streams): spin, then yield, then sleep.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

/// Polls without a pause, longer than a cache line takes to arrive.
const BUSY_POLLS: u32 = 100;
/// Polls before the clock is read.
const SPIN_POLLS: u32 = 2000;
/// Polls before the clock is read, if there are more members than cores.
const OVERSUBSCRIBED_POLLS: u32 = 100;
const POLLS_PER_CLOCK_READ: u32 = 64;
/// A thread spins without yielding for this long.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// A thread yields for this long before it sleeps.
const YIELD_TIME: Duration = Duration::from_millis(2);
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Returns how long a thread that has waited for `waited` sleeps between two polls, or `None` if it does not sleep yet.
pub(crate) fn sleep_time(waited: Duration) -> Option<Duration> {
    (waited > YIELD_TIME).then(|| (waited / 16).min(MAX_SLEEP))
}

/// Polls until `poll` returns a result: without pauses, then with pauses of the processor, then yielding the core, at
/// once if `oversubscribed` (more members than cores). Between some polls `on_wait` gets the time waited: it can end
/// the wait with a result, and sleeps as [`sleep_time`] says.
#[inline]
pub(crate) fn spin<R>(
    oversubscribed: bool,
    mut poll: impl FnMut() -> Option<R>,
    on_wait: impl FnMut(Duration) -> Option<R>,
) -> R {
    for index in 0..if oversubscribed { OVERSUBSCRIBED_POLLS } else { SPIN_POLLS } {
        if let Some(result) = poll() {
            return result;
        }
        if index >= BUSY_POLLS {
            hint::spin_loop();
        }
    }
    spin_and_yield(oversubscribed, poll, on_wait)
}

#[cold]
fn spin_and_yield<R>(
    oversubscribed: bool,
    mut poll: impl FnMut() -> Option<R>,
    mut on_wait: impl FnMut(Duration) -> Option<R>,
) -> R {
    let start = Instant::now();
    loop {
        for _ in 0..if oversubscribed { 1 } else { POLLS_PER_CLOCK_READ } {
            if let Some(result) = poll() {
                return result;
            }
            hint::spin_loop();
        }
        let waited = start.elapsed();
        if let Some(end) = on_wait(waited) {
            return end;
        }
        if (oversubscribed || waited > SPIN_TIME) && waited <= YIELD_TIME {
            thread::yield_now();
        }
    }
}

/// A wait that polls less often the longer it takes.
#[derive(Debug)]
pub(crate) struct Backoff(Instant);

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff(Instant::now())
    }

    pub(crate) fn has_exceeded(&self, timeout: Duration) -> bool {
        self.0.elapsed() >= timeout
    }

    /// Returns whether [`pause`](Self::pause) sleeps by now.
    pub(crate) fn sleeps(&self) -> bool {
        self.0.elapsed() > YIELD_TIME
    }

    /// Yields the core between two polls, and later sleeps.
    pub(crate) fn pause(&self) {
        sleep_time(self.0.elapsed()).map_or_else(thread::yield_now, thread::sleep);
    }
}
