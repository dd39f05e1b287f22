//! Errors of collectives.
//!
//! A message names the group, the ranks by their world ranks, the call, and what to do.

use std::time::Duration;

use crate::topology::LayoutError;

/// The result of a collective.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// Why a collective failed. Unless a variant says otherwise, the group is poisoned: every rank gets an error, and
/// [`Communicator::rebuild`](super::Communicator::rebuild) makes a new group of the remaining ranks.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// Ranks called different collectives, or the same with different sizes, types, operations or roots.
    #[error("group `{group}`: ranks called different collectives: {detail}")]
    Mismatch {
        /// The group.
        group: String,
        /// The ranks that differ from most others.
        ranks: Vec<usize>,
        /// Which rank called what, for example `rank 2 called broadcast, others all_reduce`.
        detail: String,
    },
    /// Some ranks did not join the call within the timeout.
    #[error("group `{group}`: {call} timed out after {after:?}: {} {} did not join", noun(.ranks), list(.ranks))]
    TimedOut {
        /// The group.
        group: String,
        /// The call.
        call: String,
        /// The group's timeout.
        after: Duration,
        /// The ranks that did not join.
        ranks: Vec<usize>,
    },
    /// The other ranks timed out before this rank joined the call.
    #[error("group `{group}`: rank {rank} joined {call} after the other ranks had timed out waiting for it")]
    TooLate {
        /// The group.
        group: String,
        /// The call.
        call: String,
        /// This rank.
        rank: usize,
    },
    /// A rank has left: it ended, dropped its communicator, or panicked.
    #[error("group `{group}`: rank {rank} {how} before {call}")]
    Left {
        /// The group.
        group: String,
        /// The call.
        call: String,
        /// The rank that left.
        rank: usize,
        /// How it left: `left` or `panicked`.
        how: String,
    },
    /// A rank failed and notified the others.
    #[error("group `{group}`: {call} failed: {detail}")]
    Failed {
        /// The group.
        group: String,
        /// The call.
        call: String,
        /// The ranks that caused the failure.
        ranks: Vec<usize>,
        /// The error of that rank.
        detail: String,
    },
    /// The group failed in an earlier call.
    #[error("group `{group}` failed earlier ({why}): rebuild it with the remaining ranks")]
    Poisoned {
        /// The group.
        group: String,
        /// The earlier error.
        why: String,
    },
    /// The mesh of the group has been reshaped on this rank.
    #[error(
        "group `{group}` is from generation {generation} of its mesh, which was reshaped since: connect again"
    )]
    Stale {
        /// The group.
        group: String,
        /// The mesh's generation that the group belongs to.
        generation: u64,
    },
    /// The calling rank is not in the group. The group stays usable.
    #[error("group `{group}` has ranks {ranks:?}: rank {rank} is not in it")]
    NotAMember {
        /// The group.
        group: String,
        /// The calling rank.
        rank: usize,
        /// The ranks that are in it.
        ranks: Vec<usize>,
    },
    /// The group cannot be created. Other groups stay usable.
    #[error("group `{group}` cannot be created: {detail}")]
    InvalidGroup {
        /// The group.
        group: String,
        /// What is wrong, and what would be valid.
        detail: String,
    },
    /// The mesh has no such group, or the shape does not fit. Groups stay usable.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// An argument of the call is invalid. The other ranks get an error too.
    #[error("group `{group}`: {call}: {detail}")]
    InvalidArgument {
        /// The group.
        group: String,
        /// The call.
        call: String,
        /// What is wrong, and what would be valid.
        detail: String,
    },
    /// The result of a started call was taken before, by a poll that returned it. The group stays usable.
    #[error("group `{group}`: the result of this started call was already taken")]
    ResultTaken {
        /// The group.
        group: String,
    },
    /// The weights of all ranks are 0, so there is no mean. Every rank gets this error, and the group stays usable.
    #[error("group `{group}`: the weights of all ranks are 0: a weighted mean needs at least one above 0")]
    ZeroWeights {
        /// The group.
        group: String,
    },
    /// A requested library is not available.
    #[error("{backend} is not available: {detail}")]
    Unavailable {
        /// The requested back end.
        backend: &'static str,
        /// What was tried, and why it failed.
        detail: String,
    },
    /// A library returned an error.
    #[error("group `{group}`: {library}: {operation} failed: {detail}")]
    Library {
        /// The group.
        group: String,
        /// The library.
        library: &'static str,
        /// The function that failed.
        operation: String,
        /// The library's error.
        detail: String,
    },
    /// The device of this rank failed.
    #[error("group `{group}`: the device of rank {rank} failed: {error}")]
    Device {
        /// The group.
        group: String,
        /// This rank.
        rank: usize,
        /// The device's error.
        error: Box<evener_device::Error>,
    },
}

impl CommError {
    /// The world ranks that caused the error: the ones to leave out of [`rebuild`](super::Communicator::rebuild). Empty
    /// if unknown.
    pub fn ranks(&self) -> &[usize] {
        match self {
            CommError::Mismatch { ranks, .. }
            | CommError::TimedOut { ranks, .. }
            | CommError::Failed { ranks, .. } => ranks,
            CommError::TooLate { rank, .. }
            | CommError::Left { rank, .. }
            | CommError::Device { rank, .. } => std::slice::from_ref(rank),
            _ => &[],
        }
    }
}

/// Returns the word before a [list](list()) of ranks.
pub(crate) fn noun(ranks: &[usize]) -> &'static str {
    if ranks.len() == 1 { "rank" } else { "ranks" }
}

/// Lists ranks: `2`, `2 and 5`, `2, 3 and 5`.
pub(crate) fn list(ranks: &[usize]) -> String {
    if ranks.is_empty() { "none".into() } else { join(ranks, "and") }
}

/// Lists numbers, with a word before the last.
pub(crate) fn join(numbers: &[usize], word: &str) -> String {
    match numbers {
        [] => "nothing".into(),
        [only] => only.to_string(),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(usize::to_string).collect();
            format!("{} {word} {last}", first.join(", "))
        }
    }
}
