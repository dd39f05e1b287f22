//! The progress of a run.

mod bar;

use std::time::Duration;

use evener_device::DeviceId;

pub(crate) use self::bar::Bar;
use crate::run::Time;

/// The progress of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Items that are done.
    pub done: u64,
    /// The number of items.
    pub items: u64,
    /// Time since the run began.
    pub elapsed: Duration,
    /// Items per second over the whole run so far.
    pub items_per_second: f64,
    /// Estimated remaining time, or `None` while no item is done.
    pub remaining: Option<Duration>,
    /// Each device's share of the items that are done.
    pub shares: Vec<(DeviceId, f64)>,
    /// The chunk that the run waits for, if no results came for ten seconds.
    pub waiting_for: Option<String>,
    /// Whether the run has ended: this is the last report of it.
    pub ended: bool,
}

impl Progress {
    pub(crate) fn new(items_of: Vec<(DeviceId, u64)>, items: u64, elapsed: Duration) -> Progress {
        let done: u64 = items_of.iter().map(|device| device.1).sum();
        let seconds = elapsed.as_secs_f64();
        let items_per_second = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
        let left = items.saturating_sub(done) as f64 / items_per_second;
        let share = |count: u64| if done > 0 { count as f64 / done as f64 } else { 0.0 };
        Progress {
            done,
            items,
            elapsed,
            items_per_second,
            remaining: Duration::try_from_secs_f64(left).ok(),
            shares: items_of.into_iter().map(|(device, count)| (device, share(count))).collect(),
            waiting_for: None,
            ended: false,
        }
    }
}

/// The time between two reports.
const INTERVAL: Duration = Duration::from_millis(100);

/// Calls the user's function with the progress of a run.
pub(crate) struct Reporter<'a> {
    callback: &'a mut (dyn FnMut(&Progress) + 'a),
    next: Time,
    max_done: u64,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(callback: &'a mut (dyn FnMut(&Progress) + 'a)) -> Self {
        Reporter { callback, next: INTERVAL, max_done: 0 }
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// Whether there was a report.
    pub(crate) fn has_reported(&self) -> bool {
        self.next > INTERVAL
    }

    pub(crate) fn report(&mut self, progress: &Progress, now: Time) {
        // Items that a worker has begun may be given back, so the count could fall.
        self.max_done = self.max_done.max(progress.done);
        (self.callback)(&Progress { done: self.max_done, ..progress.clone() });
        self.next = now + INTERVAL;
    }
}
