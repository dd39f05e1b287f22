//! The back ends that run collectives, behind one trait.
//!
//! A [`Transport`] is one rank's connection to a world; joining a group returns an [`Endpoint`], which runs one
//! collective at a time. Arguments are checked before they come here, and [`comm`](crate::comm) turns failures into
//! errors, so that the same mistake gives the same error on every back end.
//!
//! Rules for every implementation:
//! - A call gives the right result on every member, or a failure on every member within the timeout. If members call
//!   different collectives, all get [`Failure::Mismatch`].
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

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::comm::{Call, Signature};

/// One rank's connection to a world.
pub(crate) trait Transport: Send + Sync + Debug {
    /// The name to display: `local`, `mpi (Open MPI 4.1.4)`.
    fn name(&self) -> String;
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// Joins a group without waiting for the other ranks. `member` is this rank's index in `ranks`.
    fn join(&self, name: &str, ranks: &[usize], member: usize) -> Result<Box<dyn Endpoint>, Failure>;
    /// Notifies the others that this rank joins no further group.
    fn leave(&self, panicked: bool);
}

/// One rank's connection to one group. After a failure other than [`Failure::ZeroWeights`] it is not used again.
pub(crate) trait Endpoint: Send + Debug {
    /// Runs a collective of all members.
    fn run(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), Failure>;
    /// Sends to, or receives from, another member.
    fn exchange(&mut self, call: &mut Call<'_>, peer: usize, timeout: Duration) -> Result<(), Failure>;
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
pub(crate) enum Failure {
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
