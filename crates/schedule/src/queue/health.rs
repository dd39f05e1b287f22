//! The health of one device of a queue: quarantine, failures and successes.

use std::time::Duration;

use evener_device::Error;

use crate::run::{LaneState, Quarantine, Time};

/// The first quarantine; each later one is twice as long.
const FIRST_QUARANTINE: Duration = Duration::from_millis(100);

/// The longest quarantine: a service that runs for months needs a repaired device back.
const MAX_QUARANTINE: Duration = Duration::from_millis(102_400);

/// After this many pieces without a failure, one earlier failure is forgotten: a device that fails now and then is
/// useful, and one that fails every other time is not.
const FORGIVEN_AFTER_PIECES: u32 = 10;

/// After this much healthy time without a failure, one earlier failure is forgotten.
const FORGIVEN_AFTER_TIME: Duration = Duration::from_secs(1);

/// After this many consecutive failures, about three seconds without a finished piece, no piece waits for the device.
const GIVEN_UP_AFTER: u32 = 6;

/// Whether a device gets work, and the failures that decide it.
#[derive(Debug, Clone)]
pub(super) struct DeviceHealth {
    pub(super) quarantine: Quarantine,
    /// Failures since the last finished piece.
    consecutive_failures: u32,
    /// Finished pieces since the last failure.
    successes: u32,
    /// The last error.
    pub(super) last_error: Option<Error>,
    /// How often it was quarantined, and how often because it had hung.
    pub(super) quarantines: u64,
    pub(super) hangs: u64,
}

impl DeviceHealth {
    pub(super) fn new() -> DeviceHealth {
        DeviceHealth {
            quarantine: Quarantine::new(),
            consecutive_failures: 0,
            successes: 0,
            last_error: None,
            quarantines: 0,
            hangs: 0,
        }
    }

    pub(super) fn is_working(&self) -> bool {
        self.quarantine.is_healthy()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.quarantine.is_retired()
    }

    /// Whether the device may be tried with a canary: one piece that shows whether it works again.
    pub(super) fn may_be_tried(&self, now: Time) -> bool {
        self.quarantine.may_be_tried(now)
    }

    /// Whether no piece waits for the device.
    pub(super) fn is_given_up(&self) -> bool {
        self.consecutive_failures >= GIVEN_UP_AFTER
    }

    /// Records a failed piece or preparation: the device goes into quarantine.
    pub(super) fn record_failure(&mut self, error: Error, now: Time) {
        let forgiven_in = if self.is_working() { FORGIVEN_AFTER_TIME } else { Duration::MAX };
        self.quarantine.record_failure(now, FIRST_QUARANTINE, MAX_QUARANTINE, forgiven_in);
        self.consecutive_failures += 1;
        self.successes = 0;
        self.quarantines += 1;
        self.hangs += u64::from(matches!(error, Error::TimedOut { .. }));
        self.last_error = Some(error);
    }

    /// Records that the device cannot run the task.
    pub(super) fn retire(&mut self, error: Error) {
        self.quarantine.state = LaneState::Retired;
        self.last_error = Some(error);
    }

    /// Records a finished piece. Returns whether it ended the quarantine.
    pub(super) fn done(&mut self, canary: bool, now: Time) -> bool {
        let is_back = canary && matches!(self.quarantine.state, LaneState::Quarantined { .. });
        if is_back {
            (self.quarantine.state, self.quarantine.well_since) = (LaneState::Healthy, now);
        }
        // A batch that began before the device failed says nothing about the device now.
        if self.is_working() {
            self.consecutive_failures = 0;
            self.successes = self.successes.wrapping_add(1);
            self.quarantine.forgive(u32::from(self.successes.is_multiple_of(FORGIVEN_AFTER_PIECES)));
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

    fn until(health: &DeviceHealth) -> Time {
        match health.quarantine.state {
            LaneState::Quarantined { until } => until,
            _ => panic!("it is not in quarantine: {health:?}"),
        }
    }

    #[test]
    fn each_quarantine_is_twice_as_long_and_failures_are_forgotten_one_by_one() {
        let mut health = DeviceHealth::new();
        for quarantine in [100, 200, 400] {
            health.record_failure(lost(), Time::ZERO);
            assert_eq!(until(&health), Time::from_millis(quarantine));
            assert!(!health.done(false, Time::ZERO), "only a canary ends the quarantine");
            assert!(health.done(true, Time::ZERO));
        }
        (0..2 * FORGIVEN_AFTER_PIECES).for_each(|_| assert!(!health.done(false, Time::ZERO)));
        health.record_failure(lost(), Time::ZERO);
        assert_eq!(until(&health), Time::from_millis(200), "two of three are forgotten");
        (0..40).for_each(|_| health.record_failure(lost(), Time::ZERO));
        assert_eq!(until(&health), FIRST_QUARANTINE * 1024);
    }

    #[test]
    fn failures_are_forgotten_in_healthy_time_and_not_in_quarantine() {
        let mut health = DeviceHealth::new();
        (0..3).for_each(|_| health.record_failure(lost(), Time::ZERO));
        assert_eq!(until(&health), Time::from_millis(400));
        assert!(health.done(true, Time::from_secs(100)), "three failures are left, however long ago");
        health.record_failure(lost(), Time::from_millis(102_500));
        assert_eq!(until(&health), Time::from_millis(102_700), "two of three are forgotten");
        health.done(true, Time::from_secs(110));
        health.record_failure(lost(), Time::from_secs(1_000_000));
        assert_eq!(until(&health), Time::from_secs(1_000_000) + FIRST_QUARANTINE);
    }

    #[test]
    fn only_consecutive_failures_give_a_device_up() {
        let mut health = DeviceHealth::new();
        for _ in 0..10 {
            health.record_failure(lost(), Time::ZERO);
            assert!(!health.is_given_up());
            health.done(true, Time::ZERO);
        }
        (0..GIVEN_UP_AFTER).for_each(|_| health.record_failure(lost(), Time::ZERO));
        assert!(health.is_given_up());
        health.retire(lost());
        health.record_failure(lost(), Time::ZERO);
        assert!(!health.done(true, Time::ZERO) && health.is_retired(), "a retired device does not come back");
    }
}
