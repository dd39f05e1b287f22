//! The errors of a device.
//!
//! A message says what was asked, what was found, and what to do. The first seven variants are failures of a device or of
//! its work: by their kind a scheduler decides whether to retry, to halve the work or to quarantine the device. The
//! others are returned before a device is used.

use std::{fmt, sync::Arc, time::Duration};

use crate::{describe::DeviceId, kernel::BoxError};

/// The result of an operation on a device.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is gone, or its context is broken. Its memory can no longer be read.
    #[error("{device}: lost while {operation}: {detail}")]
    Lost {
        /// The device that was lost.
        device: DeviceId,
        /// The operation that failed.
        operation: String,
        /// The driver's message.
        detail: String,
    },
    /// There is not enough memory. A smaller request may succeed.
    #[error("{device}: out of memory while {operation}: {requested} bytes requested, {} ({detail})", available_text(.available))]
    OutOfMemory {
        /// The device without enough memory.
        device: DeviceId,
        /// The operation that failed.
        operation: String,
        /// The requested size in bytes.
        requested: u64,
        /// The bytes that were available, if known.
        available: Option<u64>,
        /// What set the limit.
        detail: String,
    },
    /// The device did not finish in time. It may still be working: its operations may or may not take effect.
    #[error("{device}: timed out after {after:?} while {operation}")]
    TimedOut {
        /// The device that did not finish.
        device: DeviceId,
        /// The operation that was waited for.
        operation: String,
        /// How long the host waited.
        after: Duration,
    },
    /// The compiler refused a kernel.
    #[error("{device}: kernel `{kernel}` does not compile ({body}):\n{log}")]
    WillNotCompile {
        /// The device it was compiled for.
        device: DeviceId,
        /// The kernel's name.
        kernel: String,
        /// The body that was compiled.
        body: String,
        /// The compiler's log, with the line.
        log: String,
    },
    /// The device computed a wrong result.
    #[error("{device}: wrong result while {operation}: {detail}")]
    BadResult {
        /// The device that computed it.
        device: DeviceId,
        /// The operation that failed.
        operation: String,
        /// What was expected and what was found.
        detail: String,
    },
    /// The user's code returned an error or panicked. Running it again would not help.
    #[error("{device}: task failed while {operation}: {message}")]
    Task {
        /// The device it ran on.
        device: DeviceId,
        /// The operation that failed.
        operation: String,
        /// The item that failed, if the task reported it.
        item: Option<u64>,
        /// The message of the user's code.
        message: String,
        /// The error that the user's code returned; `None` if it panicked.
        source: Option<SharedError>,
    },
    /// The device cannot do this, now or later.
    #[error("{device}: {operation} failed: {detail}")]
    Unsupported {
        /// The device.
        device: DeviceId,
        /// The operation that it cannot do.
        operation: String,
        /// What was needed, and what the device has.
        detail: String,
    },
    /// The run has ended, and its items are no longer available.
    #[error("the run has already ended")]
    Ended,
    /// A selection such as `cuda:3,-cpu` names no device, or cannot be parsed.
    #[error("no device for `{asked}`: {detail}\navailable devices:\n{available}")]
    Selection {
        /// The term that failed.
        asked: String,
        /// What is wrong with it.
        detail: String,
        /// The available devices, one per line.
        available: String,
    },
    /// A device cannot be split into these sizes.
    #[error("{device}: cannot be split into {sizes:?}: {detail}")]
    Split {
        /// The device that was to be split.
        device: DeviceId,
        /// The requested sizes.
        sizes: Vec<u32>,
        /// The possible sizes: the number of units, and the step.
        detail: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {detail}")]
    File {
        /// The file.
        path: String,
        /// What went wrong.
        detail: String,
        /// The error that it comes from, if there is one.
        source: Option<SharedError>,
    },
}

/// An error of other code, in an [`Error`], which can be cloned.
#[derive(Debug, Clone)]
pub struct SharedError(Arc<dyn std::error::Error + Send + Sync>);

impl SharedError {
    /// Wraps an error.
    pub fn new(error: impl Into<BoxError>) -> Self {
        SharedError(error.into().into())
    }

    /// Returns the wrapped error, for example to downcast it.
    pub fn get(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for SharedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// How a scheduler should react to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Retry with less: out of memory.
    Shrink,
    /// Do not use the device for now: lost, timed out, or wrong result.
    Quarantine,
    /// Do not retry on this device. After [`Error::Task`] every device would fail; after a compile error or
    /// [`Error::Unsupported`], another device may succeed.
    Final,
}

impl Error {
    /// How a scheduler should react to this error.
    pub fn severity(&self) -> Severity {
        match self {
            Error::OutOfMemory { .. } => Severity::Shrink,
            Error::Lost { .. } | Error::TimedOut { .. } | Error::BadResult { .. } => Severity::Quarantine,
            _ => Severity::Final,
        }
    }

    /// The device that failed, if the error is about one.
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

    /// Returns the error of other code that this error comes from, as that code returned it: the user's own for
    /// [`Error::Task`].
    ///
    /// ```
    /// use evener_device::{Device, Error, Kernel};
    ///
    /// let kernel = Kernel::new("parse").reads::<u8>().rust(|launch| {
    ///     std::str::from_utf8(launch.read(0)?)?;
    ///     Ok(())
    /// });
    /// let device = Device::cpu();
    /// let (text, mut stream) = (device.buffer_from(&[0xFFu8])?, device.stream()?);
    /// stream.launch(&device.compile(&kernel)?.bind(&[text.arg()])?, 1, &())?;
    /// let error = stream.wait().unwrap_err();
    /// assert!(error.cause().is_some_and(|cause| cause.is::<std::str::Utf8Error>()));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        match self {
            Error::Task { source, .. } | Error::File { source, .. } => source.as_ref().map(SharedError::get),
            _ => None,
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
        None => "free memory unknown".into(),
    }
}
