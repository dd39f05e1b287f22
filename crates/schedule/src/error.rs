//! The errors of a run.

use std::{fmt, ops::Range, time::Duration};

use evener_device::{DeviceId, Error};

use crate::report::{count_of, grouped};

/// Why a run failed. A run returns all results or an error, never some of them.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The task's own code failed. It would fail on every device, so it was not retried.
    #[error("the task failed on items {}..{}: {error}", grouped(.items.start), grouped(.items.end))]
    Task {
        /// The items of the failed chunk; the error names the item if it is known.
        items: Range<u64>,
        /// The task's error. [`Error::cause`] is the one that the task's own code returned.
        #[source]
        error: Error,
    },
    /// Every device failed. The results of the finished items are lost.
    #[error("every device failed, with {}{}", done_of(.done, *.items, *.read_so_far), one_per_line(.failures))]
    NoDeviceLeft {
        /// The finished items.
        done: DoneItems,
        /// Number of items of the run.
        items: u64,
        /// Whether the items come from a stream whose source had not ended: `items` of them were read so far.
        read_so_far: bool,
        /// The devices' errors, in order.
        failures: Vec<Error>,
    },
    /// The task has no code for any of the pool's devices.
    #[error(
        "task `{task}` has no code for the pool's devices ({devices}): add a device that it can use, or code for these"
    )]
    NoUsableDevice {
        /// The task.
        task: String,
        /// The pool's devices.
        devices: String,
    },
    /// The run was cancelled.
    #[error("cancelled with {}", done_of(.done, *.items, *.read_so_far))]
    Cancelled {
        /// The finished items.
        done: DoneItems,
        /// Number of items of the run.
        items: u64,
        /// Whether the items come from a stream whose source had not ended: `items` of them were read so far.
        read_so_far: bool,
    },
    /// The run passed its deadline.
    #[error("deadline of {after:?} passed with {}", done_of(.done, *.items, *.read_so_far))]
    DeadlinePassed {
        /// The deadline, from the beginning of the run.
        after: Duration,
        /// The finished items.
        done: DoneItems,
        /// Number of items of the run.
        items: u64,
        /// Whether the items come from a stream whose source had not ended: `items` of them were read so far.
        read_so_far: bool,
    },
    /// The run's inputs and outputs do not match the task, or each other.
    #[error("task `{task}` cannot run on these arrays: {message}")]
    ArrayMismatch {
        /// The task.
        task: String,
        /// What does not match.
        message: String,
    },
    /// The results do not fit into the host's memory.
    #[error("the results of {} do not fit into memory: {bytes_each} bytes each", count_of(*.items, "item"))]
    ResultsTooLarge {
        /// Number of items of the run.
        items: u64,
        /// The size of a result.
        bytes_each: usize,
    },
    /// Two devices of the pool are the same hardware, whole or in part.
    #[error("{first} and {second} are the same hardware: remove one of them")]
    SameHardware {
        /// One of them.
        first: DeviceId,
        /// The other.
        second: DeviceId,
    },
    /// The pool has no devices.
    #[error("the pool has no devices: it needs at least one")]
    NoDevices,
    /// The devices could not be found or selected.
    #[error(transparent)]
    Device(#[from] Error),
}

/// The finished items of a run, as ordered ranges that do not touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DoneItems(pub Vec<Range<u64>>);

impl DoneItems {
    /// Sorts accepted ranges and joins those that touch.
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

    /// Number of items.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }
}

impl fmt::Display for DoneItems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LISTED: usize = 4;
        f.write_str(&count_of(self.count(), "item"))?;
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

/// How far a run came.
fn done_of(done: &DoneItems, items: u64, read_so_far: bool) -> String {
    match read_so_far {
        true => format!("{done} done of {} read so far", grouped(items)),
        false => format!("{done} of {} done", grouped(items)),
    }
}

/// The errors, one per line, and equal ones once.
pub(crate) fn one_per_line(failures: &[Error]) -> String {
    let mut lines: Vec<(String, u32)> = Vec::new();
    for failure in failures.iter().map(Error::to_string) {
        match lines.iter_mut().find(|(line, _)| *line == failure) {
            Some((_, count)) => *count += 1,
            None => lines.push((failure, 1)),
        }
    }
    let text = |(line, count): &(String, u32)| match count {
        1 => format!("\n  {line}"),
        _ => format!("\n  {line} ({count} times)"),
    };
    lines.iter().map(text).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn finished_items_are_shown_as_ranges_that_do_not_touch() {
        let done = DoneItems::of(vec![5..7, 0..3, 3..5, 9..10]);
        assert_eq!(done.0, [0..7, 9..10]);
        assert_eq!(done.to_string(), "8 items (0..7, 9..10)");
        assert_eq!(DoneItems::default().to_string(), "0 items");
    }

    #[test]
    fn errors_say_how_far_a_run_came_and_equal_failures_are_listed_once() {
        let lost = |operation: &str| Error::Lost {
            device: DeviceId::from("x"),
            operation: operation.into(),
            detail: "gone".into(),
        };
        let failures = vec![lost("copying"), lost("waiting"), lost("copying"), lost("copying")];
        let done = DoneItems(std::iter::once(0..1).collect());
        let error = RunError::NoDeviceLeft { done: done.clone(), items: 1_000, read_so_far: false, failures };
        let expected = "every device failed, with 1 item (0..1) of 1,000 done\n  x: lost while copying: gone (3 times)\n  \
                        x: lost while waiting: gone";
        assert_eq!(error.to_string(), expected);
        let error = RunError::Cancelled { done, items: 1, read_so_far: true };
        assert_eq!(error.to_string(), "cancelled with 1 item (0..1) done of 1 read so far");
    }
}
