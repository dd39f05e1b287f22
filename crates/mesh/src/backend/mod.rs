//! The back ends that run collectives, behind one trait.
//!
//! A [`Transport`] is one rank's connection to a world; joining a group returns an [`Endpoint`], which runs one
//! collective at a time. Arguments are checked before they come here, and [`comm`](crate::comm) turns failures into
//! errors, so that the same mistake gives the same error on every back end.
//!
//! Rules for every implementation:
//! - A call gives the right result on every member, or a failure on every member within the timeout. If members call
//!   different collectives, all get [`TransportFailure::Mismatch`].
//! - Reductions are in rank order, ((x₀ ∘ x₁) ∘ x₂) ∘ …, with the arithmetic of [`reduce`].
//! - The caller's memory is not accessed after the call has returned, even if it failed.
//! - An implementation never panics and never prints.
#![allow(unsafe_code)]

pub(crate) mod local;
#[cfg(unix)]
pub(crate) mod mpi;
#[cfg(unix)]
pub(crate) mod nccl;
pub(crate) mod reduce;
#[cfg(unix)]
mod symbols;
#[cfg_attr(not(unix), allow(dead_code))]
mod wait;

use std::{
    fmt::{self, Debug, Display, Formatter},
    sync::Arc,
    time::Duration,
};

use crate::comm::{Call, Signature, join};

/// One rank's connection to a world.
pub(crate) trait Transport: Send + Sync + Debug {
    /// The name to display: `local`, `mpi (Open MPI 4.1.4)`.
    fn name(&self) -> String;
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// Joins a group without waiting for the other ranks. `member` is this rank's index in `ranks`.
    fn join(&self, name: &str, ranks: &[usize], member: usize)
    -> Result<Box<dyn Endpoint>, TransportFailure>;
    /// Notifies the others that this rank joins no further group.
    fn leave(&self, panicked: bool);
}

/// One rank's connection to one group. After a failure other than [`TransportFailure::ZeroWeights`] it is not used again.
pub(crate) trait Endpoint: Send + Debug {
    /// Runs a collective of all members.
    fn run(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), TransportFailure>;
    /// Sends to, or receives from, another member.
    fn exchange(
        &mut self,
        call: &mut Call<'_>,
        peer: usize,
        timeout: Duration,
    ) -> Result<(), TransportFailure>;
    /// Returns what notifies the other members that this rank leaves, also while a call is in flight.
    fn leave_notifier(&self) -> Arc<dyn LeaveNotifier>;
}

/// Notifies the other members that a rank leaves.
pub(crate) trait LeaveNotifier: Send + Sync + Debug {
    /// Sends the notice. Only the first call has an effect.
    fn notify(&self, why: &LeaveReason);
}

/// Why a rank left a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    Left,
    Panicked,
    /// It failed; `blame` has the world ranks that caused it, or is empty if the rank itself did.
    Failed {
        why: String,
        blame: Vec<usize>,
    },
}

/// Why a call failed. Members are given by their group rank.
#[derive(Debug, Clone)]
pub(crate) enum TransportFailure {
    /// The members called different collectives; `None` if a member's call is unknown.
    Mismatch(Vec<Option<Signature>>),
    /// These members did not join in time.
    TimedOut(Vec<usize>),
    /// The other members timed out before this rank joined.
    TooLate,
    MemberLeft(usize, LeaveReason),
    /// All weights were 0; the endpoint stays usable.
    ZeroWeights,
    Library {
        library: &'static str,
        operation: String,
        detail: String,
    },
}

impl Display for TransportFailure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            TransportFailure::Mismatch(_) => write!(f, "the members called different collectives"),
            TransportFailure::TimedOut(members) => {
                let noun = if members.len() == 1 { "member" } else { "members" };
                write!(f, "{noun} {} of the group did not join in time", join(members, "and"))
            }
            TransportFailure::TooLate => write!(f, "the other members timed out before this rank joined"),
            TransportFailure::MemberLeft(member, LeaveReason::Left) => {
                write!(f, "member {member} of the group left")
            }
            TransportFailure::MemberLeft(member, LeaveReason::Panicked) => {
                write!(f, "member {member} of the group panicked")
            }
            TransportFailure::MemberLeft(member, LeaveReason::Failed { why, .. }) => {
                write!(f, "member {member} of the group failed: {why}")
            }
            TransportFailure::ZeroWeights => write!(f, "all weights are 0"),
            TransportFailure::Library { library, operation, detail } => {
                write!(f, "{library}: {operation}: {detail}")
            }
        }
    }
}
