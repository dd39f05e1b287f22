//! Running a task's code: what runs and queues have in common.

use std::panic::{AssertUnwindSafe, catch_unwind};

use evener_device::{DeviceId, Error, Result};

use super::{Chunk, Copies, Results, Task};
use crate::contain::panic_message;

/// Has a task turn a chunk into results on a device, and checks that they are complete and right. Says how long copies
/// took.
pub(crate) fn perform<'s, T: Task>(
    task: &T,
    device: &DeviceId,
    state: &'s mut T::State,
    work: &Chunk<'_, T::Input>,
    results: &mut Results<'s, T::Output>,
) -> Result<Copies> {
    guarded(device.clone(), "running a chunk", || {
        match task.run(state, work, results) {
            Err(Error::Ended) if !work.is_over() => {
                let message = "it said that the run has ended, which it has not".to_owned();
                return Err(task_error(device, format!("task `{}`", task.name()), message));
            }
            outcome => outcome?,
        }
        if work.is_over() {
            return Err(Error::Ended);
        }
        let count = work.own_len();
        if !results.is_complete(count) {
            let more = if results.len() == count { "more than " } else { "" };
            let message = format!("it gave {more}{} results for {count} items", results.len());
            return Err(task_error(device, format!("task `{}`", task.name()), message));
        }
        if count == 0 {
            // Another lane wanted the items before the first was begun.
            return Ok(work.copies());
        }
        let checked = work.read(|items| task.check(&items[..count], results.as_slice()))?;
        checked.map_err(|detail| Error::BadResult {
            device: device.clone(),
            operation: format!("checking items {:?}", work.range()),
            detail,
        })?;
        Ok(work.copies())
    })
}

/// Runs the user's code. A panic becomes an error of the task.
pub(crate) fn guarded<R>(device: DeviceId, operation: &str, work: impl FnOnce() -> Result<R>) -> Result<R> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(task_error(&device, operation.to_owned(), panic_message(&*panic))),
    }
}

/// The system gave no thread for a device's work.
pub(crate) fn no_thread(device: &DeviceId, why: &std::io::Error) -> Error {
    let (device, detail) = (device.clone(), why.to_string());
    Error::Lost { device, operation: "starting a thread".into(), detail }
}

pub(crate) fn task_error(device: &DeviceId, operation: String, message: String) -> Error {
    Error::Task { device: device.clone(), operation, item: None, message }
}
