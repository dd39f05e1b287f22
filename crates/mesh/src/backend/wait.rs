//! How a thread waits for what it has to look at again and again: words in shared memory, messages, cards.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

/// So many looks without a pause, which takes longer than a cache line takes to come.
const EAGER_LOOKS: u32 = 100;
/// So many looks before the clock is asked; and where there are more members than cores.
const QUICK_LOOKS: u32 = 2000;
const CROWDED_LOOKS: u32 = 100;
/// So many looks between two questions to the clock.
const LOOKS: u32 = 64;
/// Looking without giving the core away ends after this.
const SPIN: Duration = Duration::from_micros(100);
/// A thread yields its core for so long before it begins to sleep.
const YIELD: Duration = Duration::from_millis(2);
/// The longest sleep.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How long a thread that has waited so long sleeps before it looks again: a small part of that. Nothing while it is to
/// stay awake.
pub(crate) fn nap(waited: Duration) -> Option<Duration> {
    (waited > YIELD).then(|| (waited / 16).min(LONGEST_NAP))
}

/// Spins until `look` gives something: at full speed, then between pauses of the processor, then yielding the core, at once
/// where it is `crowded` (more members than cores). Between some looks `meanwhile` is told how long it has taken: it ends
/// the wait by giving something, and sleeps where [`nap`] says so.
#[inline]
pub(crate) fn spin<R>(
    crowded: bool,
    mut look: impl FnMut() -> Option<R>,
    meanwhile: impl FnMut(Duration) -> Option<R>,
) -> R {
    for index in 0..if crowded { CROWDED_LOOKS } else { QUICK_LOOKS } {
        if let Some(seen) = look() {
            return seen;
        }
        if index >= EAGER_LOOKS {
            hint::spin_loop();
        }
    }
    spin_longer(crowded, look, meanwhile)
}

#[cold]
fn spin_longer<R>(
    crowded: bool,
    mut look: impl FnMut() -> Option<R>,
    mut meanwhile: impl FnMut(Duration) -> Option<R>,
) -> R {
    let start = Instant::now();
    loop {
        for _ in 0..if crowded { 1 } else { LOOKS } {
            if let Some(seen) = look() {
                return seen;
            }
            hint::spin_loop();
        }
        let waited = start.elapsed();
        if let Some(end) = meanwhile(waited) {
            return end;
        }
        if (crowded || waited > SPIN) && waited <= YIELD {
            thread::yield_now();
        }
    }
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
