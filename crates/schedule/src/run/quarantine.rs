//! How a lane of a run, or a device of a queue, stands: it is given work, left alone for a while, or given nothing more.

use std::time::Duration;

use super::Time;

/// How a lane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is given work.
    Healthy,
    /// It failed and is left alone until then; what it gets first is a small chunk that shows whether it is well.
    Quarantined {
        /// When it is tried again.
        until: Time,
    },
    /// It failed in a way that would repeat itself: it gets nothing more in this run.
    Retired,
}

/// How a lane stands, and what it has done to be left alone for longer the next time.
#[derive(Debug, Clone)]
pub(crate) struct Quarantine {
    pub(crate) state: State,
    /// Failures that are not forgiven yet: each makes the next quarantine longer.
    strikes: u32,
    /// The last quarantine, and since when it has been well after it: the end of the quarantine, unless said otherwise.
    pub(crate) last: Duration,
    pub(crate) well_since: Time,
}

impl Quarantine {
    pub(crate) fn new() -> Self {
        let (last, well_since) = (Duration::ZERO, Time::ZERO);
        Quarantine { state: State::Healthy, strikes: 0, last, well_since }
    }

    /// It failed, and is left alone: for the first time, and twice as long for each failure that is not forgiven. One is
    /// forgiven for each so much time that it was well since the last quarantine.
    pub(crate) fn strike(&mut self, now: Time, first: Duration, longest: Duration, forgiven_in: Duration) {
        let well = now.saturating_sub(self.well_since).as_secs_f64();
        self.forgive((well / forgiven_in.as_secs_f64().max(1e-9) + 1e-9).min(1e6) as u32);
        self.last = first.saturating_mul(1 << self.strikes.min(20)).min(longest.max(first));
        self.strikes += 1;
        self.well_since = now.saturating_add(self.last);
        if !self.is_retired() {
            self.state = State::Quarantined { until: self.well_since };
        }
    }

    /// So many failures are forgiven.
    pub(crate) fn forgive(&mut self, failures: u32) {
        self.strikes = self.strikes.saturating_sub(failures);
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.state == State::Healthy
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.state == State::Retired
    }

    /// Whether it is time to see if it is well again.
    pub(crate) fn may_be_tried(&self, now: Time) -> bool {
        matches!(self.state, State::Quarantined { until } if until <= now)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// It fails at this time. Gives for how long it is left alone, in milliseconds.
    fn strike(it: &mut Quarantine, now: u32) -> u128 {
        it.strike(now * MS, 100 * MS, 3_200 * MS, it.last * 4);
        assert!(!it.may_be_tried(now * MS) && it.may_be_tried(now * MS + it.last));
        it.last.as_millis()
    }

    #[test]
    fn failures_are_forgiven_one_by_one_by_time_that_was_well() {
        let mut it = Quarantine::new();
        assert_eq!([0, 100, 300].map(|now| strike(&mut it, now)), [100, 200, 400]);
        assert_eq!(strike(&mut it, 700 + 1_600 - 1), 800, "not well for long enough");
        assert_eq!(strike(&mut it, 2_299 + 800 + 3 * 3_200), 200, "three of four are forgiven");
        let longest = (0..40).map(|_| strike(&mut it, 12_699)).max();
        assert_eq!(longest, Some(3_200), "it grows no longer");
    }

    #[test]
    fn what_is_retired_does_not_come_back() {
        let mut it = Quarantine { state: State::Retired, ..Quarantine::new() };
        it.strike(Time::ZERO, MS, MS, MS);
        assert!(it.is_retired());
    }
}
