//! Why a piece has no result.

use evener_device::Error;

use crate::error::one_per_line;

/// Why a piece was not taken, or has no result.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue takes no more pieces.
    #[error("the queue is closed")]
    Closed,
    /// The task's own code failed on this piece. It would fail anywhere, so it was not tried again; other pieces are
    /// not touched by it.
    #[error("the task failed: {error}")]
    Task {
        /// What it said.
        error: Error,
    },
    /// Every device that could have done the piece failed.
    #[error("no device is left that could do this piece{}", one_per_line(.failures))]
    NoDeviceLeft {
        /// What happened to the piece and to the devices that it could have gone to.
        failures: Vec<Error>,
    },
    /// It was cancelled before a device began with it.
    #[error("cancelled before a device began with it")]
    Cancelled,
    /// The queue ended without an answer to this piece. Nothing is known to cause it: it is said rather than let a
    /// handle wait forever.
    #[error("the queue ended without doing this piece")]
    Abandoned,
    /// The handle was polled again after it had given its result.
    #[error("the result was taken before")]
    Taken,
}

/// Why [`Queue::try_submit`](crate::Queue::try_submit) did not take a piece. The item comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySubmitError<I> {
    /// As many pieces as the queue takes have no answer yet.
    #[error("the queue is full")]
    Full(I),
    /// The queue takes no more pieces.
    #[error("the queue is closed")]
    Closed(I),
}
