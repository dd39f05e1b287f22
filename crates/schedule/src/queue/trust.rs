//! Whether a device of a queue is given work.

use std::time::Duration;

use evener_device::Error;

use crate::run::Time;

/// The first quarantine; each later one is twice as long.
const COOLDOWN: Duration = Duration::from_millis(100);

/// The quarantine grows no longer than `COOLDOWN` times two to this, some 100 seconds: a service that runs for months
/// wants a repaired device back.
const MOST_DOUBLINGS: u32 = 10;

/// So many pieces done well, one after another, and one earlier failure is forgotten: a device that fails now and then is
/// of use, and one that fails every other time is not.
const FORGIVEN_AFTER: u32 = 10;

/// After so much time in which the device was given work and did not fail, one earlier failure is forgotten.
const FORGIVEN_IN: Duration = Duration::from_secs(1);

/// After so many failures in a row, some three seconds without a piece done between them, no piece waits for the device
/// any more.
const HOPELESS_AFTER: u32 = 6;

/// How a device stands.
#[derive(Debug, Clone)]
pub(super) enum Standing {
    /// It is given work.
    Working,
    /// It failed, and is left alone until then; then it gets one piece, the canary, that shows whether it is well.
    SetAside { until: Time },
    /// It cannot do the task at all.
    Retired,
}

/// Whether a device is given work, and what it has done to lose it.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    pub(super) standing: Standing,
    /// Failures that are not forgotten: each makes the next quarantine longer.
    strikes: u32,
    /// Failures since a piece was last done well.
    in_a_row: u32,
    /// Pieces done well since the last failure.
    well: u32,
    /// Since when the device has been well, less the time for which failures were forgotten.
    well_since: Time,
    /// What it failed with last.
    pub(super) last: Option<Error>,
}

impl Trust {
    pub(super) fn new() -> Trust {
        Trust {
            standing: Standing::Working,
            strikes: 0,
            in_a_row: 0,
            well: 0,
            well_since: Time::ZERO,
            last: None,
        }
    }

    pub(super) fn is_working(&self) -> bool {
        matches!(self.standing, Standing::Working)
    }

    pub(super) fn is_retired(&self) -> bool {
        matches!(self.standing, Standing::Retired)
    }

    /// Whether it is time for a canary.
    pub(super) fn may_be_tried(&self, now: Time) -> bool {
        matches!(self.standing, Standing::SetAside { until } if until <= now)
    }

    /// Whether no piece waits for it any more.
    pub(super) fn is_hopeless(&self) -> bool {
        self.in_a_row >= HOPELESS_AFTER
    }

    /// Forgets failures for the time in which the device was well.
    fn forgive(&mut self, now: Time) {
        if !self.is_working() {
            return;
        }
        let well_for = now.saturating_sub(self.well_since);
        let forgiven = u32::try_from(well_for.as_millis() / FORGIVEN_IN.as_millis()).unwrap_or(u32::MAX);
        self.strikes = self.strikes.saturating_sub(forgiven);
        self.well_since = self.well_since.saturating_add(FORGIVEN_IN.saturating_mul(forgiven));
    }

    /// It has lost a piece or could not be made ready: it is left alone for a while.
    pub(super) fn strike(&mut self, error: Error, now: Time) {
        self.forgive(now);
        let cooldown = COOLDOWN * (1 << self.strikes.min(MOST_DOUBLINGS));
        self.strikes += 1;
        self.in_a_row += 1;
        self.well = 0;
        self.last = Some(error);
        if !self.is_retired() {
            self.standing = Standing::SetAside { until: now.saturating_add(cooldown) };
        }
    }

    /// It cannot do the task.
    pub(super) fn retire(&mut self, error: Error) {
        self.standing = Standing::Retired;
        self.last = Some(error);
    }

    /// It has done a piece well. Says whether that brought it back.
    pub(super) fn done(&mut self, canary: bool, now: Time) -> bool {
        let is_back = canary && matches!(self.standing, Standing::SetAside { .. });
        if is_back {
            self.standing = Standing::Working;
            self.well_since = now;
        }
        // What somebody had begun before the device failed says nothing about it now.
        if is_back || self.is_working() {
            self.in_a_row = 0;
            self.well = self.well.wrapping_add(1);
            if self.well.is_multiple_of(FORGIVEN_AFTER) {
                self.strikes = self.strikes.saturating_sub(1);
            }
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
        match trust.standing {
            Standing::SetAside { until } => until,
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
