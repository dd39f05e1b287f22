//! How far a run has come.

mod bar;

use std::time::Duration;

use evener_device::DeviceId;

pub(crate) use self::bar::Bar;
use crate::run::Time;

/// How far a run has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Items that are done.
    pub done: u64,
    /// How many there are.
    pub items: u64,
    /// Time since the run began.
    pub elapsed: Duration,
    /// Items a second, over the whole run so far.
    pub items_per_second: f64,
    /// How much longer it takes if it goes on like this; nothing while nothing is done.
    pub remaining: Option<Duration>,
    /// What part of the done items each device did.
    pub shares: Vec<(DeviceId, f64)>,
    /// What the run has been waiting for, where nothing has come for ten seconds: plain code that takes long.
    pub waiting_for: Option<String>,
    /// Whether the run has ended: this is the last that is told of it.
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

/// So often it is told how far a run has come.
const EVERY: Duration = Duration::from_millis(100);

/// Somebody who wants to know.
pub(crate) struct Reporter<'a> {
    tell: &'a mut (dyn FnMut(&Progress) + 'a),
    next: Time,
    max_done: u64,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(tell: &'a mut (dyn FnMut(&Progress) + 'a)) -> Self {
        Reporter { tell, next: EVERY, max_done: 0 }
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// Whether anything was told.
    pub(crate) fn has_told(&self) -> bool {
        self.next > EVERY
    }

    pub(crate) fn report(&mut self, progress: &Progress, now: Time) {
        // What was begun may be given back, and done by another device.
        self.max_done = self.max_done.max(progress.done);
        (self.tell)(&Progress { done: self.max_done, ..progress.clone() });
        self.next = now + EVERY;
    }
}
