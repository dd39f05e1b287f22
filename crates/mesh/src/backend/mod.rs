//! What carries collectives from rank to rank, behind one trait.
//!
//! A [`Transport`] is one rank's place in a world; joining a group gives an [`Endpoint`], which runs one collective at
//! a time. Arguments were checked before they come here, and failures become the errors that users see in
//! [`comm`](crate::comm), so that the same mistake gives the same error everywhere.
//!
//! Rules for every implementation:
//! - A call gives the right answer on every member, or a failure on every member within the timeout. GroupSpec that
//!   disagree about the call are all told so.
//! - Reductions go by rank, ((x₀ ∘ x₁) ∘ x₂) ∘ …, in the arithmetic of [`reduce`].
//! - No memory of the caller is touched after the call has returned, whatever happened.
//! - It never panics and never prints.
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

/// One rank's place in a world.
pub(crate) trait Transport: Send + Sync + Debug {
    /// For people: `local`, `mpi (Open MPI 4.1.4)`.
    fn name(&self) -> String;
    /// This rank's number in the world.
    fn rank(&self) -> usize;
    /// How many ranks the world has.
    fn size(&self) -> usize;
    /// Takes this rank's place in a group, without waiting for the others. `member` is its place among `ranks`.
    fn join(&self, name: &str, ranks: &[usize], member: usize) -> Result<Box<dyn Endpoint>, Failure>;
    /// Says that this rank joins no further group.
    fn leave(&self, panicked: bool);
}

/// One rank's place in one group. After a failure other than [`Failure::ZeroWeights`] it is not used again.
pub(crate) trait Endpoint: Send + Debug {
    /// Takes part in a collective of all members.
    fn run(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), Failure>;
    /// Sends to, or receives from, another member; both are in the group, and differ.
    fn exchange(&mut self, call: &mut Call<'_>, peer: usize, timeout: Duration) -> Result<(), Failure>;
    /// What tells the others that this rank takes no further part, also while a call is under way.
    fn leave_notifier(&self) -> Arc<dyn LeaveNotifier>;
}

/// Tells the others that a rank takes no further part.
pub(crate) trait LeaveNotifier: Send + Sync + Debug {
    /// Says so, once; what comes later changes nothing.
    fn notify(&self, why: &LeaveReason);
}

/// Why a rank takes no further part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    /// It dropped its handle.
    Left,
    /// It panicked.
    Panicked,
    /// It met an error, for which it blames these ranks of the world; itself where there are none.
    Failed { why: String, blame: Vec<usize> },
}

/// Why a call failed. GroupSpec are places in the group.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// What each member called, where it was heard.
    Mismatch(Vec<Option<Signature>>),
    /// These were not heard of in time.
    TimedOut(Vec<usize>),
    /// The others gave up on this rank before it came.
    TooLate,
    /// A member left or failed.
    MemberLeft(usize, LeaveReason),
    /// All weights were 0; the endpoint stays usable.
    ZeroWeights,
    /// A library said no.
    Library { library: &'static str, operation: String, detail: String },
}
