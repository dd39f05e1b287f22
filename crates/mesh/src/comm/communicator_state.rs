//! The state of a communicator, which checks calls, runs them, and turns failures into errors.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use super::{
    call::{Call, CollectiveKind, Signature},
    call_lock::CallLock,
    collective::Collective,
    describe,
    element::{CollectiveDType, Element},
    error::{CommError, Result},
    generation::Generation,
    group_spec::GroupSpec,
};
use crate::backend::{Endpoint, LeaveNotifier, LeaveReason, Transport, TransportFailure};

/// The state that a communicator shares with the thread that runs its started calls.
pub(super) struct CommunicatorState {
    pub(super) name: Arc<str>,
    pub(super) spec: GroupSpec,
    /// This rank's number in the world, and its group rank if it is a member.
    pub(super) rank: usize,
    pub(super) member: Option<usize>,
    pub(super) timeout: Duration,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) endpoint: Option<CallLock<Box<dyn Endpoint>>>,
    pub(super) leave_notifier: Option<Arc<dyn LeaveNotifier>>,
    /// The error that poisoned the group.
    pub(super) failed: OnceLock<CommError>,
    /// Number of started calls that have not ended.
    pub(super) started: AtomicUsize,
    /// Locked while a started call is counted as ended, so that no thread misses the notification.
    pub(super) ending: Mutex<()>,
    /// Notified when a started call has ended.
    pub(super) ended: Condvar,
}

/// Ignores poisoning: no panic leaves the data behind these locks inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommunicatorState {
    /// Waits until all started calls have ended.
    #[inline]
    pub(super) fn wait_for_started(&self) {
        if self.started.load(SeqCst) > 0 {
            self.wait_until_none_started();
        }
    }

    #[cold]
    fn wait_until_none_started(&self) {
        let mut ending = lock(&self.ending);
        while self.started.load(SeqCst) > 0 {
            ending = self.ended.wait(ending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts a started call until the returned guard is dropped.
    pub(super) fn count_started_call(self: &Arc<Self>) -> StartedCall {
        self.started.fetch_add(1, SeqCst);
        StartedCall(self.clone())
    }

    /// Runs a collective without waiting for started calls.
    #[inline]
    pub(super) fn call<T: Element>(
        &self,
        collective: Collective,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let mut guard = self.lock_calls();
        guard.check_usable()?;
        guard.call(collective, input, output)
    }

    pub(super) fn size(&self) -> usize {
        self.spec.ranks.len()
    }

    /// Locks the endpoint. The caller must then call [`check_usable`](CallGuard::check_usable).
    #[inline]
    pub(super) fn lock_calls(&self) -> CallGuard<'_> {
        CallGuard { state: self, endpoint: self.endpoint.as_ref().map(CallLock::lock) }
    }

    /// Returns whether the group has not failed and none of its generations has ended.
    #[inline]
    fn is_usable(&self) -> bool {
        self.failed.get().is_none() && !self.spec.generations.iter().any(Generation::has_ended)
    }

    #[cold]
    fn unusable(&self) -> CommError {
        match (self.stale(), self.failed.get()) {
            (Some(stale), _) => stale,
            (None, Some(why)) if self.endpoint.is_some() => {
                CommError::Poisoned { group: self.name.to_string(), why: why.to_string() }
            }
            _ => self.not_a_member(),
        }
    }

    pub(super) fn not_a_member(&self) -> CommError {
        let (rank, ranks) = (self.rank, self.spec.ranks.clone());
        CommError::NotAMember { group: self.name.to_string(), rank, ranks }
    }

    pub(super) fn stale(&self) -> Option<CommError> {
        let generation = self.spec.generations.iter().find(|generation| generation.has_ended())?;
        Some(CommError::Stale { group: self.name.to_string(), generation: generation.number() })
    }

    /// Sends the other ranks a leave notice if the group has failed or its generation has ended. If a call of this rank
    /// is in flight, the thread that runs it sends the notice afterwards: that call must succeed on all ranks or fail
    /// on all.
    pub(super) fn leave_if_unusable(&self) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.notify_if_unusable(|| self.is_usable(), || self.notify_leaving());
        }
    }

    #[cold]
    fn notify_leaving(&self) {
        if let (Some(why), Some(leave_notifier)) =
            (self.failed.get().cloned().or_else(|| self.stale()), &self.leave_notifier)
        {
            leave_notifier.notify(&LeaveReason::Failed { why: why.to_string(), blame: why.ranks().to_vec() });
        }
    }

    /// Turns a back end's failure into an error. The other ranks are notified when the call guard is dropped.
    #[cold]
    pub(super) fn failed(&self, failure: TransportFailure, signature: &Signature) -> CommError {
        // The other rank left because the mesh was reshaped, and so it was on this rank.
        if let (TransportFailure::MemberLeft(..), Some(stale)) = (&failure, self.stale()) {
            return stale;
        }
        let error = describe::error(failure, self, signature.kind);
        if !matches!(error, CommError::ZeroWeights { .. }) {
            self.failed.get_or_init(|| error.clone());
        }
        error
    }

    /// Poisons the group, and notifies the other ranks once no call of this rank is in flight.
    pub(super) fn fail(&self, error: CommError) -> CommError {
        self.failed.get_or_init(|| error.clone());
        self.leave_if_unusable();
        error
    }
}

/// Counts as a started call until it is dropped.
pub(super) struct StartedCall(pub(super) Arc<CommunicatorState>);

impl Drop for StartedCall {
    fn drop(&mut self) {
        let _ending = lock(&self.0.ending);
        self.0.started.fetch_sub(1, SeqCst);
        self.0.ended.notify_all();
    }
}

/// Exclusive use of a rank's endpoint, for one call or several that belong together. Dropping the guard notifies the
/// other ranks if the group has failed meanwhile.
pub(super) struct CallGuard<'a> {
    pub(super) state: &'a CommunicatorState,
    /// `Some` until the guard is dropped, if this rank is a member.
    endpoint: Option<MutexGuard<'a, Box<dyn Endpoint>>>,
}

impl CallGuard<'_> {
    #[inline]
    pub(super) fn check_usable(&self) -> Result<()> {
        // Checked under the lock: if the generation ends or the group fails later, this guard notifies the other ranks.
        if self.endpoint.is_some() && self.state.is_usable() { Ok(()) } else { Err(self.state.unusable()) }
    }

    /// Checks the lengths of a collective's input and output, and returns the signature that all ranks must have.
    #[inline(always)]
    pub(super) fn signature(
        &self,
        collective: Collective,
        element: CollectiveDType,
        input_len: usize,
        output_len: usize,
    ) -> Result<Signature> {
        let (size, (kind, operation, root)) = (self.state.size(), collective.parts());
        let count = collective.count(size, input_len, output_len);
        let is_root = root.is_some() && root == self.state.member;
        let (input_blocks, output_blocks) = collective.blocks(size, is_root);
        let (weight, peer) = (collective.weight(), collective.peer());
        let is_right = root.is_none_or(|root| root < size)
            && peer.is_none_or(|peer| peer < size && Some(peer) != self.state.member)
            && (weight.is_finite() && weight >= 0.0)
            && (kind != CollectiveKind::WeightedAllReduce || element.is_float())
            && (input_len, output_len) == (input_blocks * count, output_blocks * count);
        if !is_right {
            return Err(self.invalid_call(
                collective,
                element,
                [(input_len, input_blocks * count), (output_len, output_blocks * count)],
            ));
        }
        let root = root.map(|root| root as u32);
        Ok(Signature { kind, element, operation, root, count: count as u64, before: None })
    }

    /// Returns the error of an invalid call. `lengths` has the actual and the required length of the input and of the
    /// output.
    #[cold]
    pub(super) fn invalid_call(
        &self,
        collective: Collective,
        element: CollectiveDType,
        lengths: [(usize, usize); 2],
    ) -> CommError {
        let (size, (kind, _, root)) = (self.state.size(), collective.parts());
        let is_root = root == self.state.member;
        let describe = |what: &str, (found, wanted): (usize, usize)| match root {
            _ if found == wanted => None,
            Some(root) if wanted == 0 && !is_root && !collective.is_in_place() => {
                Some(format!("an {what} of {found} elements, but only the root {root} has one"))
            }
            Some(_) if found == 0 && is_root => {
                Some(format!("no {what} at the root, which needs {wanted} elements"))
            }
            _ => Some(format!("{what} of {found} elements, but a group of {size} needs {wanted}")),
        };
        let weight = collective.weight();
        let detail = match (root, collective.peer()) {
            (Some(root), _) if root >= size => {
                Some(format!("root {root} in a group of {size}: a root is a group rank, from 0"))
            }
            (_, Some(peer)) if peer >= size || Some(peer) == self.state.member => {
                Some(format!("peer {peer}: a peer is another group rank, below {size}"))
            }
            _ if !(weight.is_finite() && weight >= 0.0) => {
                Some(format!("weight {weight}: a weight must be finite and at least 0"))
            }
            _ if kind == CollectiveKind::WeightedAllReduce && !element.is_float() => {
                Some(format!("elements of {element}: a weighted mean needs floating-point numbers"))
            }
            _ => describe("input", lengths[0]).or_else(|| describe("output", lengths[1])),
        };
        self.argument_error(kind, detail.unwrap_or_default())
    }

    #[inline]
    pub(super) fn call<T: Element>(
        &mut self,
        collective: Collective,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let signature = self.signature(collective, T::TYPE, input.len(), output.len())?;
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        self.run(
            Call { signature, weight: collective.weight(), input, output, lengths: &[] },
            collective.peer(),
        )
    }

    #[inline]
    pub(super) fn run(&mut self, mut call: Call<'_>, peer: Option<usize>) -> Result<()> {
        let state = self.state;
        let Some(endpoint) = &mut self.endpoint else { return Err(state.not_a_member()) };
        let done = match peer {
            Some(peer) => endpoint.exchange(&mut call, peer, state.timeout),
            None => endpoint.run(&mut call, state.timeout),
        };
        done.map_err(|failure| state.failed(failure, &call.signature))
    }

    /// Gathers words from all ranks before a collective of this kind.
    pub(super) fn all_gather_words(&mut self, before: CollectiveKind, mine: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0u64; mine.len() * self.state.size()];
        let signature = self.signature(Collective::AllGather, CollectiveDType::U64, mine.len(), all.len())?;
        let signature = Signature { before: Some(before), ..signature };
        let (input, output) = (bytemuck::cast_slice(mine), bytemuck::cast_slice_mut(&mut all));
        self.run(Call { signature, weight: 1.0, input, output, lengths: &[] }, None)?;
        Ok(all)
    }

    #[cold]
    pub(super) fn argument_error(&self, kind: CollectiveKind, detail: String) -> CommError {
        let group = self.state.name.to_string();
        let error = CommError::InvalidArgument { group, call: kind.to_string(), detail };
        self.state.failed.get_or_init(|| error.clone());
        error
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let state = self.state;
        if let (Some(endpoint), Some(guard)) = (&state.endpoint, self.endpoint.take()) {
            endpoint.release(guard, || state.is_usable(), || state.notify_leaving());
        }
    }
}
