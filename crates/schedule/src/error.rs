//! Why a run did not give its results.

use std::{fmt, ops::Range, time::Duration};

use evener_device::Error;

/// Why a run did not give its results. There is no partial result: a run gives all of them, or this.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The task's own code failed. It would fail anywhere, so it was not tried again.
    #[error("the task failed on items {}..{}: {error}", .items.start, .items.end)]
    Task {
        /// The chunk that it failed on; the error names the item where that is known.
        items: Range<u64>,
        /// What it said.
        error: Error,
    },
    /// Every device failed. What was done is lost with the run; it says how far that had come.
    #[error("no device is left to trust: {done} of {items} were done{}", one_a_line(.failures))]
    NoDeviceLeft {
        /// Which items were done.
        done: Done,
        /// How many there were.
        items: u64,
        /// What happened to the devices, in order.
        failures: Vec<Error>,
    },
    /// None of the pool's devices can do this task.
    #[error("no device of the pool can do task `{task}`: it has no code for {devices}")]
    Unable {
        /// The task.
        task: String,
        /// The pool's devices.
        devices: String,
    },
    /// It was cancelled.
    #[error("cancelled: {done} of {items} were done")]
    Cancelled {
        /// Which items were done.
        done: Done,
        /// How many there were.
        items: u64,
    },
    /// It did not end in time.
    #[error("not done after {after:?}: {done} of {items} were done")]
    DeadlinePassed {
        /// The time that it was given.
        after: Duration,
        /// Which items were done.
        done: Done,
        /// How many there were.
        items: u64,
    },
    /// What the run was to read or write does not fit the task, or each other.
    #[error("task `{task}` cannot run on these arrays: {message}")]
    Arrays {
        /// The task.
        task: String,
        /// What does not fit.
        message: String,
    },
    /// The pool has no devices.
    #[error("a pool needs at least one device")]
    NoDevices,
    /// The devices could not be found or selected.
    #[error(transparent)]
    Device(#[from] Error),
}

/// Items that were done, as ranges in order that do not touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Done(pub Vec<Range<u64>>);

impl Done {
    /// Puts accepted ranges in order and joins those that touch.
    pub(crate) fn of(mut ranges: Vec<Range<u64>>) -> Done {
        ranges.sort_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => joined.push(range),
            }
        }
        Done(joined)
    }

    /// How many items that is.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LISTED: usize = 4;
        write!(f, "{} items", self.count())?;
        for (index, range) in self.0.iter().take(LISTED).enumerate() {
            write!(f, "{}{}..{}", if index == 0 { " (" } else { ", " }, range.start, range.end)?;
        }
        match self.0.len() {
            0 => Ok(()),
            all if all > LISTED => write!(f, " and {} ranges more)", all - LISTED),
            _ => f.write_str(")"),
        }
    }
}

pub(crate) fn one_a_line(failures: &[Error]) -> String {
    failures.iter().map(|failure| format!("\n  {failure}")).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_was_done_is_told_in_ranges_that_do_not_touch() {
        let done = Done::of(vec![5..7, 0..3, 3..5, 9..10]);
        assert_eq!(done.0, [0..7, 9..10]);
        assert_eq!(done.to_string(), "8 items (0..7, 9..10)");
        assert_eq!(Done::default().to_string(), "0 items");
    }
}
