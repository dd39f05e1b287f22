//! The errors of a queue.

use evener_device::Error;

use crate::error::one_per_line;

/// Why a queue did not accept a piece, or a piece has no result.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue was closed before the piece was submitted.
    #[error("the queue is closed and accepts no more pieces")]
    Closed,
    /// The task's own code failed on this piece. It would fail on every device, so it was not retried. Other pieces are
    /// not affected.
    #[error("the task failed on this piece: {error}")]
    Task {
        /// The task's error. [`Error::cause`] is the one that the task's own code returned.
        #[source]
        error: Error,
    },
    /// Every device that can run the piece failed.
    #[error("every device that can run this piece failed{}", one_per_line(.failures))]
    NoDeviceLeft {
        /// The errors of the piece, and of the devices that were not tried with it.
        failures: Vec<Error>,
    },
    /// The piece was cancelled before a device began it.
    #[error("cancelled before a device began the piece")]
    Cancelled,
    /// The queue ended without a result for this piece. No cause is known; without this error a handle would wait forever.
    #[error("the queue ended without running this piece: please report this as a bug")]
    Abandoned,
    /// The handle was polled again after it had returned its result.
    #[error("the result was already taken: do not poll a handle after it is ready")]
    Taken,
}

/// Why [`Queue::try_submit`](crate::Queue::try_submit) did not accept a piece, with its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySubmitError<I> {
    /// The queue has as many unfinished pieces as its capacity.
    #[error("the queue is full: wait for a piece, or open the queue with a larger capacity")]
    Full(I),
    /// The queue was closed.
    #[error("the queue is closed and accepts no more pieces")]
    Closed(I),
}
