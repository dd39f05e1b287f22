//! Runs a task's code, for runs and queues.

use std::panic::{AssertUnwindSafe, catch_unwind};

use evener_device::{DeviceId, Error, Result};

use super::{Chunk, CopyTimes, Results, Task};
use crate::{
    contain::panic_message,
    report::{count_of, grouped},
};

/// Runs a task on a chunk, and checks that its results are complete and right. Returns how long copies took.
pub(crate) fn run_chunk<'s, T: Task>(
    task: &T,
    device: &DeviceId,
    state: &'s mut T::State,
    work: &Chunk<'_, T::Input>,
    results: &mut Results<'s, T::Output>,
) -> Result<CopyTimes> {
    catch_panic(device.clone(), "running a chunk", || {
        match task.run(state, work, results) {
            Err(Error::Ended) if !work.is_over() => {
                let message = "the task returned Error::Ended although the run has not ended".to_owned();
                return Err(task_error(device, format!("running task `{}`", task.name()), message));
            }
            outcome => outcome?,
        }
        if work.is_over() {
            return Err(Error::Ended);
        }
        let count = work.own_len();
        if !results.is_complete(count) {
            let more = if results.len() == count { "more than " } else { "" };
            let results = count_of(results.len() as u64, "result");
            let message = format!("the task returned {more}{results} for {}", count_of(count as u64, "item"));
            return Err(task_error(device, format!("running task `{}`", task.name()), message));
        }
        if count == 0 {
            // Another lane has stolen all items before the first was begun.
            return Ok(work.copy_times());
        }
        let checked = work.read(|items| task.check(&items[..count], results.as_slice()))?;
        checked.map_err(|detail| Error::BadResult {
            device: device.clone(),
            operation: format!(
                "checking items {}..{}",
                grouped(work.range().start),
                grouped(work.range().end)
            ),
            detail,
        })?;
        Ok(work.copy_times())
    })
}

/// Runs the user's code, and turns a panic into an error of the task.
pub(crate) fn catch_panic<R>(
    device: DeviceId,
    operation: &str,
    work: impl FnOnce() -> Result<R>,
) -> Result<R> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(task_error(&device, operation.to_owned(), panic_message(&*panic))),
    }
}

/// The error of a device for which the system starts no thread.
pub(crate) fn thread_error(device: &DeviceId, why: &std::io::Error) -> Error {
    let (device, detail) = (device.clone(), why.to_string());
    Error::Lost { device, operation: "starting a thread".into(), detail }
}

pub(crate) fn task_error(device: &DeviceId, operation: String, message: String) -> Error {
    Error::Task { device: device.clone(), operation, item: None, message, source: None }
}
