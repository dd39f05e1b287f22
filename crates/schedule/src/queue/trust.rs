//! Whether a device of a queue is given work.

use std::time::Duration;

use evener_device::Error;

use crate::run::{LaneState, Quarantine, Time};

/// The first quarantine; each later one is twice as long.
const COOLDOWN: Duration = Duration::from_millis(100);

/// No quarantine is longer than this: a service that runs for months wants a repaired device back.
const LONGEST_COOLDOWN: Duration = Duration::from_millis(102_400);

/// So many pieces done well, one after another, and one earlier failure is forgotten: a device that fails now and then is
/// of use, and one that fails every other time is not.
const FORGIVEN_AFTER: u32 = 10;

/// After so much time in which the device was given work and did not fail, one earlier failure is forgotten.
const FORGIVEN_IN: Duration = Duration::from_secs(1);

/// After so many failures in a row, some three seconds without a piece done between them, no piece waits for the device
/// any more.
const HOPELESS_AFTER: u32 = 6;

/// Whether a device is given work, and what it has done to lose it.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    pub(super) quarantine: Quarantine,
    /// Failures since a piece was last done well.
    in_a_row: u32,
    /// Pieces done well since the last failure.
    well: u32,
    /// What it failed with last.
    pub(super) last: Option<Error>,
}

impl Trust {
    pub(super) fn new() -> Trust {
        Trust { quarantine: Quarantine::new(), in_a_row: 0, well: 0, last: None }
    }

    pub(super) fn is_working(&self) -> bool {
        self.quarantine.is_healthy()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.quarantine.is_retired()
    }

    /// Whether it is time for a canary: one piece that shows whether it is well.
    pub(super) fn may_be_tried(&self, now: Time) -> bool {
        self.quarantine.may_be_tried(now)
    }

    /// Whether no piece waits for it any more.
    pub(super) fn is_hopeless(&self) -> bool {
        self.in_a_row >= HOPELESS_AFTER
    }

    /// It has lost a piece or could not be made ready: it is left alone for a while.
    pub(super) fn strike(&mut self, error: Error, now: Time) {
        let forgiven_in = if self.is_working() { FORGIVEN_IN } else { Duration::MAX };
        self.quarantine.record_failure(now, COOLDOWN, LONGEST_COOLDOWN, forgiven_in);
        self.in_a_row += 1;
        self.well = 0;
        self.last = Some(error);
    }

    /// It cannot do the task.
    pub(super) fn retire(&mut self, error: Error) {
        self.quarantine.state = LaneState::Retired;
        self.last = Some(error);
    }

    /// It has done a piece well. Says whether that brought it back.
    pub(super) fn done(&mut self, canary: bool, now: Time) -> bool {
        let is_back = canary && matches!(self.quarantine.state, LaneState::Quarantined { .. });
        if is_back {
            (self.quarantine.state, self.quarantine.well_since) = (LaneState::Healthy, now);
        }
        // What somebody had begun before the device failed says nothing about it now.
        if self.is_working() {
            self.in_a_row = 0;
            self.well = self.well.wrapping_add(1);
            self.quarantine.forgive(u32::from(self.well.is_multiple_of(FORGIVEN_AFTER)));
        }
        is_back
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn lost() -> Error {
        Error::Lost { device: "a".into(), operation: "a test".into(), detail: String::new() }
    }

    fn until(trust: &Trust) -> Time {
        match trust.quarantine.state {
            LaneState::Quarantined { until } => until,
            _ => panic!("it is not set aside: {trust:?}"),
        }
    }

    #[test]
    fn each_quarantine_is_twice_as_long_and_failures_are_forgotten_one_by_one() {
        let mut trust = Trust::new();
        for cooldown in [100, 200, 400] {
            trust.strike(lost(), Time::ZERO);
            assert_eq!(until(&trust), Time::from_millis(cooldown));
            assert!(!trust.done(false, Time::ZERO), "only a canary brings it back");
            assert!(trust.done(true, Time::ZERO));
        }
        (0..2 * FORGIVEN_AFTER).for_each(|_| assert!(!trust.done(false, Time::ZERO)));
        trust.strike(lost(), Time::ZERO);
        assert_eq!(until(&trust), Time::from_millis(200), "two of three are forgotten");
        (0..40).for_each(|_| trust.strike(lost(), Time::ZERO));
        assert_eq!(until(&trust), COOLDOWN * 1024);
    }

    #[test]
    fn failures_are_forgotten_in_time_that_was_well_and_not_in_quarantine() {
        let mut trust = Trust::new();
        (0..3).for_each(|_| trust.strike(lost(), Time::ZERO));
        assert_eq!(until(&trust), Time::from_millis(400));
        assert!(trust.done(true, Time::from_secs(100)), "three failures are left, however long ago");
        trust.strike(lost(), Time::from_millis(102_500));
        assert_eq!(until(&trust), Time::from_millis(102_700), "two of three are forgotten");
        trust.done(true, Time::from_secs(110));
        trust.strike(lost(), Time::from_secs(1_000_000));
        assert_eq!(until(&trust), Time::from_secs(1_000_000) + COOLDOWN);
    }

    #[test]
    fn only_failures_in_a_row_make_it_hopeless() {
        let mut trust = Trust::new();
        for _ in 0..10 {
            trust.strike(lost(), Time::ZERO);
            assert!(!trust.is_hopeless());
            trust.done(true, Time::ZERO);
        }
        (0..HOPELESS_AFTER).for_each(|_| trust.strike(lost(), Time::ZERO));
        assert!(trust.is_hopeless());
        trust.retire(lost());
        trust.strike(lost(), Time::ZERO);
        assert!(!trust.done(true, Time::ZERO) && trust.is_retired(), "a retired device does not come back");
    }
}
