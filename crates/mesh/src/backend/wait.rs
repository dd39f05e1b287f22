//! How a thread waits for what no other thread can wake it for: messages, cards, words in shared memory.

use std::{
    thread,
    time::{Duration, Instant},
};

/// A thread yields its core for so long before it begins to sleep.
const YIELD: Duration = Duration::from_millis(2);
/// The longest sleep.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How long a thread that has waited so long sleeps before it looks again: a small part of that. Nothing while it is to
/// stay awake.
pub(crate) fn nap(waited: Duration) -> Option<Duration> {
    (waited > YIELD).then(|| (waited / 16).min(LONGEST_NAP))
}

/// One wait, which looks less often the longer it takes.
#[derive(Debug)]
pub(crate) struct Wait(Instant);

impl Wait {
    /// Begins to wait.
    pub(crate) fn begin() -> Self {
        Wait(Instant::now())
    }

    /// Whether it has taken so long.
    pub(crate) fn has_taken(&self, timeout: Duration) -> bool {
        self.0.elapsed() >= timeout
    }

    /// Whether [`pause`](Self::pause) sleeps by now.
    pub(crate) fn sleeps(&self) -> bool {
        self.0.elapsed() > YIELD
    }

    /// Between two looks: yields the core, and later sleeps.
    pub(crate) fn pause(&self) {
        nap(self.0.elapsed()).map_or_else(thread::yield_now, thread::sleep);
    }
}
