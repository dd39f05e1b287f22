//! How long a waiting thread spins before it parks.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use evener_device::affinity::unbound;

/// How long a waiting thread spins before it parks. Parking and waking up takes tens of microseconds, as long as a short
/// run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpinBudget(Duration);

impl SpinBudget {
    /// For threads that may be as many as there are cores: threads with work need the cores.
    pub(crate) const SHORT: SpinBudget = SpinBudget(Duration::from_micros(20));
    /// For a thread that feeds a device, of which there are few.
    pub(crate) const LONG: SpinBudget = SpinBudget(Duration::from_micros(200));
    /// For the thread that waits for a run: most short runs are over by then.
    const LONGEST: SpinBudget = SpinBudget(Duration::from_micros(500));

    /// The budget of a thread that waits for this many workers: short if they need all cores.
    pub(crate) fn for_waiting_on(workers: usize) -> Self {
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = *CORES.get_or_init(|| unbound(std::thread::available_parallelism).map_or(1, usize::from));
        if workers < cores { SpinBudget::LONGEST } else { SpinBudget::SHORT }
    }

    /// Calls `poll` until it returns a value or the budget is spent, and yields the core between calls.
    pub(crate) fn spin_until<R>(self, poll: impl Fn() -> Option<R>) -> Option<R> {
        /// Reading the clock takes longer than polling.
        const POLLS_PER_CLOCK_READ: u32 = 8;
        let start = Instant::now();
        loop {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if let found @ Some(_) = poll() {
                    return found;
                }
                std::thread::yield_now();
            }
            if start.elapsed() >= self.0 {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod test {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn spinning_ends_with_the_value_or_the_budget() {
        let polls = Cell::new(0);
        let third = || {
            polls.set(polls.get() + 1);
            (polls.get() == 3).then_some("here")
        };
        assert_eq!(SpinBudget::SHORT.spin_until(third), Some("here"));
        assert_eq!(polls.get(), 3);
        let start = Instant::now();
        assert_eq!(SpinBudget::LONG.spin_until(|| None::<()>), None);
        assert!(start.elapsed() >= SpinBudget::LONG.0);
    }

    #[test]
    fn a_thread_that_waits_for_as_many_workers_as_cores_spins_briefly() {
        assert_eq!(SpinBudget::for_waiting_on(usize::MAX), SpinBudget::SHORT);
        assert_eq!(SpinBudget::for_waiting_on(0), SpinBudget::LONGEST);
    }
}
