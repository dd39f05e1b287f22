//! Errors of training.

use std::path::PathBuf;

use evener_mesh::comm::CommError;

use crate::{
    ledger::WrongShares,
    membership::NobodyLeft,
    replica::{Layout, Part, ReplicaError},
};

/// Why training could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A setting of the trainer is missing or cannot be used.
    #[error("{setting}: {detail}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// What is wrong, and what would be valid.
        detail: String,
    },
    /// A replica failed.
    #[error("worker {rank}: {error}")]
    Replica {
        /// The worker.
        rank: usize,
        /// The replica's error.
        error: ReplicaError,
    },
    /// A worker panicked.
    #[error("worker {rank} panicked: {message}")]
    Panicked {
        /// The worker.
        rank: usize,
        /// The panic's message.
        message: String,
    },
    /// The replicas of two workers differ.
    #[error("the layouts of the replicas differ: {detail}")]
    Layouts {
        /// Which ones.
        detail: String,
    },
    /// The ranks cannot take a batch within their limits.
    #[error("a batch of {batch} does not fit the {ranks} workers that are left: reduce the batch")]
    BatchTooLarge {
        /// The samples per step.
        batch: u64,
        /// The workers that are left.
        ranks: usize,
    },
    /// The ranks came to different decisions, which cannot happen as long as all run the same program.
    #[error("the workers decided differently at step {step}: do all of them run the same program?")]
    Diverged {
        /// The step.
        step: u64,
    },
    /// This worker did not answer in time, the others went on, and it could not return.
    #[error("worker {rank} did not answer in time: the others went on without it ({error})")]
    LeftBehind {
        /// The worker.
        rank: usize,
        /// The error of the exchange that it missed.
        error: CommError,
    },
    /// No worker is left.
    #[error(transparent)]
    NobodyLeft(#[from] NobodyLeft),
    /// The exchange failed, and no rank is to blame.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A checkpoint cannot be written or read.
    #[error("checkpoint {}: {detail}", path.display())]
    Checkpoint {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// Shares and samples disagree.
    #[error(transparent)]
    Shares(#[from] WrongShares),
}

/// The result of training.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// Compares a slice's length with that of a part of a layout.
pub fn check_len(layout: &Layout, part: Part, len: usize) -> Result<(), ReplicaError> {
    let expected = layout.len(part);
    if len == expected {
        return Ok(());
    }
    Err(format!("{part:?} has {expected} elements, but the slice has {len}").into())
}
