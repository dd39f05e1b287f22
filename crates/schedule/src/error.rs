//! The errors of a run.

use std::{fmt, ops::Range, time::Duration};

use evener_device::Error;

use crate::report::grouped;

/// The error of a run. There are no partial results: a run returns all of them, or this.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The task's own code failed. It would fail on any device, so it was not tried again.
    #[error("the task failed on items {}..{}: {error}", grouped(.items.start), grouped(.items.end))]
    Task {
        /// The chunk that it failed on. The error names the item if it is known.
        items: Range<u64>,
        /// The task's error.
        error: Error,
    },
    /// Every device failed. The results so far are lost.
    #[error("every device failed when {done} of {} were done{}", grouped(*.items), one_per_line(.failures))]
    NoDeviceLeft {
        /// The items that were done.
        done: DoneItems,
        /// The number of items.
        items: u64,
        /// The devices' errors, in order.
        failures: Vec<Error>,
    },
    /// No device of the pool can run this task.
    #[error("task `{task}` has no code for any device of the pool ({devices})")]
    Unable {
        /// The task's name.
        task: String,
        /// The pool's devices.
        devices: String,
    },
    /// The caller cancelled the run.
    #[error("cancelled when {done} of {} were done", grouped(*.items))]
    Cancelled {
        /// The items that were done.
        done: DoneItems,
        /// The number of items.
        items: u64,
    },
    /// The deadline passed.
    #[error("the deadline of {after:?} passed when {done} of {} were done", grouped(*.items))]
    DeadlinePassed {
        /// The time that the run was given.
        after: Duration,
        /// The items that were done.
        done: DoneItems,
        /// The number of items.
        items: u64,
    },
    /// The arrays of the run do not fit the task, or each other.
    #[error("task `{task}` cannot run on these arrays: {message}")]
    Arrays {
        /// The task's name.
        task: String,
        /// Which array does not fit, and why.
        message: String,
    },
    /// The pool has no devices.
    #[error("a pool needs at least one device")]
    NoDevices,
    /// The devices could not be found or selected.
    #[error(transparent)]
    Device(#[from] Error),
}

/// The items that were done, as ranges in order that are not adjacent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DoneItems(pub Vec<Range<u64>>);

impl DoneItems {
    /// Sorts accepted ranges and joins adjacent ones.
    pub(crate) fn of(mut ranges: Vec<Range<u64>>) -> DoneItems {
        ranges.sort_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => joined.push(range),
            }
        }
        DoneItems(joined)
    }

    /// The number of items.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }
}

impl fmt::Display for DoneItems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LISTED: usize = 4;
        write!(f, "{} items", grouped(self.count()))?;
        for (index, range) in self.0.iter().take(LISTED).enumerate() {
            let before = if index == 0 { " (" } else { ", " };
            write!(f, "{before}{}..{}", grouped(range.start), grouped(range.end))?;
        }
        match self.0.len() {
            0 => Ok(()),
            all if all > LISTED => write!(f, " and {} more ranges)", all - LISTED),
            _ => f.write_str(")"),
        }
    }
}

pub(crate) fn one_per_line(failures: &[Error]) -> String {
    failures.iter().map(|failure| format!("\n  {failure}")).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn adjacent_ranges_are_joined() {
        let done = DoneItems::of(vec![5..7, 0..3, 3..5, 9..10]);
        assert_eq!(done.0, [0..7, 9..10]);
        assert_eq!(done.to_string(), "8 items (0..7, 9..10)");
        assert_eq!(DoneItems::default().to_string(), "0 items");
    }
}
