//! Spinning for a moment before a thread parks: waking a parked thread takes longer than many waits.

use std::{
    hint,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// Whether there is a second core, to do what this thread waits for.
static HAS_OTHER_CORES: LazyLock<bool> =
    LazyLock::new(|| thread::available_parallelism().is_ok_and(|cores| cores.get() > 1));

/// Spins until the condition holds, for at most this long.
pub(crate) fn spin_until(limit: Duration, condition: impl Fn() -> bool) {
    if !*HAS_OTHER_CORES {
        return;
    }
    let start = Instant::now();
    while !condition() && start.elapsed() < limit {
        hint::spin_loop();
    }
}
