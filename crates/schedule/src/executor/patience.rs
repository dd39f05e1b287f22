//! How long a thread looks for what it waits for before it sleeps.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use evener_device::affinity::unbound;

/// How long a thread looks for what it waits for before it sleeps. Falling asleep and being woken takes some tens of
/// microseconds, as long as a short run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience(Duration);

impl Patience {
    /// For threads that may be as many as there are cores: whoever has work needs them.
    pub(crate) const SHORT: Patience = Patience(Duration::from_micros(20));
    /// For a thread that feeds a device, of which there are few.
    pub(crate) const LONG: Patience = Patience(Duration::from_micros(200));
    /// For the one that waits for a run: most short runs are over by then.
    const LONGEST: Patience = Patience(Duration::from_micros(500));

    /// That of a thread which waits for so many others.
    pub(crate) fn for_others(count: usize) -> Self {
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = *CORES.get_or_init(|| unbound(std::thread::available_parallelism).map_or(1, usize::from));
        if count < cores { Patience::LONGEST } else { Patience::SHORT }
    }

    /// Looks again and again, and lets others go first. Nothing where it did not come in time.
    pub(crate) fn wait<R>(self, look: impl Fn() -> Option<R>) -> Option<R> {
        /// Looking at the clock takes longer than looking for what is waited for.
        const LOOKS: u32 = 8;
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if let found @ Some(_) = look() {
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
    fn what_comes_is_found_and_what_does_not_is_not_waited_for() {
        let looks = Cell::new(0);
        let third = || {
            looks.set(looks.get() + 1);
            (looks.get() == 3).then_some("here")
        };
        assert_eq!(Patience::SHORT.wait(third), Some("here"));
        assert_eq!(looks.get(), 3);
        let start = Instant::now();
        assert_eq!(Patience::LONG.wait(|| None::<()>), None);
        assert!(start.elapsed() >= Patience::LONG.0);
    }

    #[test]
    fn whoever_would_take_a_core_from_the_others_is_not_patient() {
        assert_eq!(Patience::for_others(usize::MAX), Patience::SHORT);
        assert_eq!(Patience::for_others(0), Patience::LONGEST);
    }
}
