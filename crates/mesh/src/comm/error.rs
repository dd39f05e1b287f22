//! Everything that can go wrong between ranks, as values.
//!
//! A message names the group, the ranks by their numbers in the world, what was called and what to do about it.

use std::time::Duration;

use crate::topology::LayoutError;

/// The result of a collective.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// Why a collective gave no result. Except where stated otherwise the group is beyond use afterwards: every rank
/// gets an error, and [`Communicator::rebuild`](super::Communicator::rebuild) makes a new group of those that are left.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// Ranks called different collectives, or the same with different sizes, types, operations or roots.
    #[error("group `{group}`: the ranks do not agree: {detail}")]
    Mismatch {
        /// The group.
        group: String,
        /// The ranks that differ from most others.
        ranks: Vec<usize>,
        /// Who called what, for example `rank 2 called broadcast, others all_reduce`.
        detail: String,
    },
    /// Some ranks did not take part in time.
    #[error("group `{group}`: {call} gave up after {after:?}: nothing from rank {}", list(.ranks))]
    TimedOut {
        /// The group.
        group: String,
        /// What was called.
        call: String,
        /// The group's timeout.
        after: Duration,
        /// The ranks that were not heard of.
        ranks: Vec<usize>,
    },
    /// The others gave up waiting for this rank before it came.
    #[error("group `{group}`: rank {rank} came to {call} after the others had given up waiting for it")]
    TooLate {
        /// The group.
        group: String,
        /// What was called.
        call: String,
        /// This rank.
        rank: usize,
    },
    /// A rank has left: it ended, dropped its handle, or panicked.
    #[error("group `{group}`: rank {rank} {how} before {call}")]
    Left {
        /// The group.
        group: String,
        /// What was called.
        call: String,
        /// The rank that left.
        rank: usize,
        /// How it went, for example `panicked`.
        how: String,
    },
    /// A rank met an error of its own, and told the others.
    #[error("group `{group}`: {call} cannot succeed: {detail}")]
    Failed {
        /// The group.
        group: String,
        /// What was called.
        call: String,
        /// The ranks that are the reason.
        ranks: Vec<usize>,
        /// What they said.
        detail: String,
    },
    /// The group failed earlier.
    #[error(
        "group `{group}` is beyond use since an earlier failure ({why}): rebuild it with the ranks that are left"
    )]
    Poisoned {
        /// The group.
        group: String,
        /// The failure.
        why: String,
    },
    /// The mesh that the group belonged to has been reshaped, on this rank.
    #[error(
        "group `{group}` is of generation {generation} of its mesh, which has been reshaped since: ask for it again"
    )]
    Stale {
        /// The group.
        group: String,
        /// The generation it was made in.
        generation: u64,
    },
    /// The calling rank is not in the group. Nothing else is harmed.
    #[error("group `{group}` has ranks {ranks:?}: rank {rank} is not in it")]
    NotAMember {
        /// The group.
        group: String,
        /// The calling rank.
        rank: usize,
        /// The ranks that are in it.
        ranks: Vec<usize>,
    },
    /// A group cannot be made of these ranks. Nothing else is harmed.
    #[error("group `{group}` cannot be made: {detail}")]
    InvalidGroup {
        /// The group.
        group: String,
        /// What is wrong, and what would be right.
        detail: String,
    },
    /// The mesh has no such group, or cannot be arranged so. Nothing else is harmed.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// An argument of the call cannot be right. The other ranks get an error too.
    #[error("group `{group}`: {call}: {detail}")]
    InvalidArgument {
        /// The group.
        group: String,
        /// What was called.
        call: String,
        /// What is wrong, and what would be right.
        detail: String,
    },
    /// Every rank gave the weight 0, so there is no mean. Every rank gets this error, and the group stays usable.
    #[error("group `{group}`: the weights of all ranks are 0: a weighted mean needs at least one above")]
    ZeroWeights {
        /// The group.
        group: String,
    },
    /// A library or a device that was asked for is not there.
    #[error("{backend} is not available: {detail}")]
    Unavailable {
        /// What was asked for.
        backend: &'static str,
        /// What was looked for, and where.
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
        /// What it said.
        detail: String,
    },
    /// The device of this rank failed.
    #[error("group `{group}`: the device of rank {rank} failed: {error}")]
    Device {
        /// The group.
        group: String,
        /// This rank.
        rank: usize,
        /// What the device said.
        error: Box<evener_device::Error>,
    },
}

impl CommError {
    /// The ranks, by their numbers in the world, that are known to be the reason: those to leave out when the group
    /// is rebuilt. Empty where the error does not say.
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

/// Ranks as people list them: `2`, `2 and 5`, `2, 3 and 5`.
pub(crate) fn list(ranks: &[usize]) -> String {
    if ranks.is_empty() { "nobody".into() } else { join(ranks, "and") }
}

/// Numbers as people list them, with a word before the last.
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
