//! Everything that can go wrong on a device, as values.
//!
//! A message says what was asked, what was found, and what to do about it. The first seven variants
//! are failures of a device or of the work it was given: a scheduler decides by their kind whether to
//! retry, to halve the work or to leave the device alone. The rest are answers to a question that had
//! no good answer, before any device was touched.

use std::time::Duration;

use crate::describe::DeviceId;

/// The result of an operation on a device.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not give a result.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is gone, or its context is beyond use. Nothing on it can be read any more.
    #[error("{device}: lost while {operation}: {detail}")]
    Lost {
        /// The device that was lost.
        device: DeviceId,
        /// What was being done.
        operation: String,
        /// What the driver said.
        detail: String,
    },
    /// There was no room. Asking for less may succeed.
    #[error("{device}: out of memory while {operation}: {requested} bytes asked for, {} ({detail})", available_text(.available))]
    OutOfMemory {
        /// The device that had no room.
        device: DeviceId,
        /// What was being done.
        operation: String,
        /// How many bytes were asked for.
        requested: u64,
        /// How many bytes were to be had at that moment, where that is known.
        available: Option<u64>,
        /// What set the limit.
        detail: String,
    },
    /// The device did not answer in time. It may still be working: nothing that it was given can be
    /// assumed to be done or undone.
    #[error("{device}: no answer after {after:?} while {operation}")]
    TimedOut {
        /// The device that did not answer.
        device: DeviceId,
        /// What was being waited for.
        operation: String,
        /// How long was waited.
        after: Duration,
    },
    /// The compiler refused a kernel.
    #[error("{device}: kernel `{kernel}` will not compile ({body}):\n{log}")]
    WillNotCompile {
        /// The device it was compiled for.
        device: DeviceId,
        /// The kernel's name.
        kernel: String,
        /// Which of its bodies.
        body: String,
        /// What the compiler said, with the line.
        log: String,
    },
    /// The device gave an answer that cannot be right.
    #[error("{device}: bad result while {operation}: {detail}")]
    BadResult {
        /// The device that gave the answer.
        device: DeviceId,
        /// What was being done.
        operation: String,
        /// What was expected and what was found.
        detail: String,
    },
    /// The user's own code returned an error or panicked. Running it again would not help.
    #[error("{device}: task failed while {operation}: {message}")]
    Task {
        /// The device it ran on.
        device: DeviceId,
        /// What was being done.
        operation: String,
        /// The item that failed, where the task said which.
        item: Option<u64>,
        /// What the user's code said.
        message: String,
    },
    /// The device cannot do this, now or later.
    #[error("{device}: cannot do {operation}: {detail}")]
    Unsupported {
        /// The device that was asked.
        device: DeviceId,
        /// What it was asked to do.
        operation: String,
        /// What was needed and what the device has.
        detail: String,
    },
    /// The run that this was part of has ended, and its items are no longer to be had.
    #[error("the run has ended meanwhile")]
    Ended,
    /// A selection such as `cuda:3,-cpu` names no device, or cannot be read.
    #[error("no device for `{asked}`: {detail}\ndevices here:\n{available}")]
    Selection {
        /// The part of the selection that failed.
        asked: String,
        /// What is wrong with it.
        detail: String,
        /// The devices there are, a line each.
        available: String,
    },
    /// A device cannot be split this way.
    #[error("{device}: cannot be split into {sizes:?}: {detail}")]
    Split {
        /// The device that was to be split.
        device: DeviceId,
        /// The sizes asked for.
        sizes: Vec<u32>,
        /// What would be possible: how many units there are, and in what steps.
        detail: String,
    },
    /// A file of Evener's own could not be read or written.
    #[error("{path}: {detail}")]
    File {
        /// The file.
        path: String,
        /// What went wrong.
        detail: String,
    },
}

/// What a failure means for whoever handed out the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Asking for less may succeed: out of memory.
    Shrink,
    /// The device is not to be trusted for now: lost, timed out, wrong.
    Quarantine,
    /// It would fail the same way again, here or anywhere: the user's code, a kernel that will not
    /// compile, something unsupported.
    Final,
}

impl Error {
    /// What this failure means for whoever handed out the work.
    pub fn severity(&self) -> Severity {
        match self {
            Error::OutOfMemory { .. } => Severity::Shrink,
            Error::Lost { .. } | Error::TimedOut { .. } | Error::BadResult { .. } => Severity::Quarantine,
            _ => Severity::Final,
        }
    }

    /// The device that failed, where one did.
    pub fn device(&self) -> Option<&DeviceId> {
        match self {
            Error::Lost { device, .. }
            | Error::OutOfMemory { device, .. }
            | Error::TimedOut { device, .. }
            | Error::WillNotCompile { device, .. }
            | Error::BadResult { device, .. }
            | Error::Task { device, .. }
            | Error::Unsupported { device, .. }
            | Error::Split { device, .. } => Some(device),
            Error::Ended | Error::Selection { .. } | Error::File { .. } => None,
        }
    }

    pub(crate) fn unsupported(
        device: &DeviceId,
        operation: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Error::Unsupported { device: device.clone(), operation: operation.into(), detail: detail.into() }
    }

    pub(crate) fn lost(device: &DeviceId, operation: impl Into<String>, detail: impl Into<String>) -> Self {
        Error::Lost { device: device.clone(), operation: operation.into(), detail: detail.into() }
    }
}

fn available_text(available: &Option<u64>) -> String {
    match available {
        Some(bytes) => format!("{bytes} available"),
        None => "availability unknown".into(),
    }
}
