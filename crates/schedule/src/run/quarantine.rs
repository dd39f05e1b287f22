//! Whether a lane of a run, or a device of a queue, gets work: it is healthy, quarantined, or retired.

use std::time::Duration;

use super::Time;

/// Whether a lane gets work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneState {
    /// It gets work.
    Healthy,
    /// It failed and gets no work until then. Its first chunk after that is a canary: a small chunk that shows whether it
    /// works again.
    Quarantined {
        /// When it gets a canary.
        until: Time,
    },
    /// It failed in a way that would repeat itself, and gets no more work in this run.
    Retired,
}

/// A lane's state, and its failures so far, which make its next quarantine longer.
#[derive(Debug, Clone)]
pub(crate) struct Quarantine {
    pub(crate) state: LaneState,
    /// Failures that are not forgiven yet: each doubles the next quarantine.
    unforgiven: u32,
    /// The time of the last quarantine, and since when the lane has been healthy after it: its end by default.
    pub(crate) last: Duration,
    pub(crate) well_since: Time,
}

impl Quarantine {
    pub(crate) fn new() -> Self {
        let (last, well_since) = (Duration::ZERO, Time::ZERO);
        Quarantine { state: LaneState::Healthy, unforgiven: 0, last, well_since }
    }

    /// Begins a quarantine: of the first length, doubled for each failure that is not forgiven. One failure is forgiven for
    /// each `forgiven_in` that the lane was healthy since the last quarantine.
    pub(crate) fn record_failure(
        &mut self,
        now: Time,
        first: Duration,
        longest: Duration,
        forgiven_in: Duration,
    ) {
        let well = now.saturating_sub(self.well_since).as_secs_f64();
        self.forgive((well / forgiven_in.as_secs_f64().max(1e-9) + 1e-9).min(1e6) as u32);
        self.last = first.saturating_mul(1 << self.unforgiven.min(20)).min(longest.max(first));
        self.unforgiven += 1;
        self.well_since = now.saturating_add(self.last);
        if !self.is_retired() {
            self.state = LaneState::Quarantined { until: self.well_since };
        }
    }

    /// Forgives some failures.
    pub(crate) fn forgive(&mut self, failures: u32) {
        self.unforgiven = self.unforgiven.saturating_sub(failures);
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.state == LaneState::Healthy
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.state == LaneState::Retired
    }

    /// Whether it is time for a canary.
    pub(crate) fn may_be_tried(&self, now: Time) -> bool {
        matches!(self.state, LaneState::Quarantined { until } if until <= now)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Fails at this time. Returns the quarantine in milliseconds.
    fn record_failure(it: &mut Quarantine, now: u32) -> u128 {
        it.record_failure(now * MS, 100 * MS, 3_200 * MS, it.last * 4);
        assert!(!it.may_be_tried(now * MS) && it.may_be_tried(now * MS + it.last));
        it.last.as_millis()
    }

    #[test]
    fn failures_are_forgiven_one_by_one_with_healthy_time() {
        let mut it = Quarantine::new();
        assert_eq!([0, 100, 300].map(|now| record_failure(&mut it, now)), [100, 200, 400]);
        assert_eq!(record_failure(&mut it, 700 + 1_600 - 1), 800, "not healthy for long enough");
        assert_eq!(record_failure(&mut it, 2_299 + 800 + 3 * 3_200), 200, "three of four are forgiven");
        let longest = (0..40).map(|_| record_failure(&mut it, 12_699)).max();
        assert_eq!(longest, Some(3_200), "it grows no longer");
    }

    #[test]
    fn a_retired_lane_does_not_come_back() {
        let mut it = Quarantine { state: LaneState::Retired, ..Quarantine::new() };
        it.record_failure(Time::ZERO, MS, MS, MS);
        assert!(it.is_retired());
    }
}
