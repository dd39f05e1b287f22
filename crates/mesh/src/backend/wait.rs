//! How a thread waits for what it has to look at again and again: words in shared memory, messages, cards.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

/// So many looks without a pause, which takes longer than a cache line takes to come.
const BUSY_POLLS: u32 = 100;
/// So many looks before the clock is asked; and where there are more members than cores.
const SPIN_POLLS: u32 = 2000;
const OVERSUBSCRIBED_POLLS: u32 = 100;
/// So many looks between two questions to the clock.
const POLLS_PER_CLOCK_READ: u32 = 64;
/// Looking without giving the core away ends after this.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// A thread yields its core for so long before it begins to sleep.
const YIELD_TIME: Duration = Duration::from_millis(2);
/// The longest sleep.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// How long a thread that has waited so long sleeps before it looks again: a small part of that. Nothing while it is to
/// stay awake.
pub(crate) fn sleep_time(waited: Duration) -> Option<Duration> {
    (waited > YIELD_TIME).then(|| (waited / 16).min(MAX_SLEEP))
}

/// Spins until `look` gives something: at full speed, then between pauses of the processor, then yielding the core, at once
/// where it is `crowded` (more members than cores). Between some looks `meanwhile` is told how long it has taken: it ends
/// the wait by giving something, and sleeps where [`nap`] says so.
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

/// One wait, which looks less often the longer it takes.
#[derive(Debug)]
pub(crate) struct Backoff(Instant);

impl Backoff {
    /// Begins to wait.
    pub(crate) fn new() -> Self {
        Backoff(Instant::now())
    }

    /// Whether it has taken so long.
    pub(crate) fn has_exceeded(&self, timeout: Duration) -> bool {
        self.0.elapsed() >= timeout
    }

    /// Whether [`pause`](Self::pause) sleeps by now.
    pub(crate) fn sleeps(&self) -> bool {
        self.0.elapsed() > YIELD_TIME
    }

    /// Between two looks: yields the core, and later sleeps.
    pub(crate) fn pause(&self) {
        sleep_time(self.0.elapsed()).map_or_else(thread::yield_now, thread::sleep);
    }
}
