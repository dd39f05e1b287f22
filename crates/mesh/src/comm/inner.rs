//! What a rank and its group's thread share: checking a call, running it, and what its failure means.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicUsize, Ordering::SeqCst, fence},
    },
    time::Duration,
};

use super::{
    call::{Call, CollectiveKind, Signature},
    collective::Collective,
    describe::{self, FailureContext},
    element::{Element, ElementType},
    error::{CommError, Result},
    generation::Generation,
    group_spec::GroupSpec,
};
use crate::backend::{Endpoint, Failure, LeaveNotifier, LeaveReason, Transport};

/// What the rank and its thread share.
pub(super) struct Inner {
    pub(super) name: Arc<str>,
    pub(super) spec: GroupSpec,
    /// The rank's number in the world, and in the group where it is in it.
    pub(super) rank: usize,
    pub(super) member: Option<usize>,
    pub(super) timeout: Duration,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) endpoint: Option<Mutex<Box<dyn Endpoint>>>,
    pub(super) leave_notifier: Option<Arc<dyn LeaveNotifier>>,
    pub(super) failed: OnceLock<CommError>,
    /// How many started calls have not ended.
    pub(super) started: AtomicUsize,
    pub(super) ending: Mutex<()>,
    pub(super) ended: Condvar,
}

/// What is behind these locks is never left half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Waits until what was started has ended.
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

    /// Counts a started call until what this gives is dropped.
    pub(super) fn count_started_call(self: &Arc<Self>) -> StartedCall {
        self.started.fetch_add(1, SeqCst);
        StartedCall(self.clone())
    }

    /// Does what is asked for, without waiting for what was started.
    #[inline]
    pub(super) fn call<T: Element>(
        &self,
        collective: Collective,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let mut guard = self.lock_calls();
        guard.begin()?;
        guard.call(collective, input, output)
    }

    pub(super) fn size(&self) -> usize {
        self.spec.ranks.len()
    }

    /// This rank's turn, which is to [`begin`](CallGuard::begin).
    #[inline]
    pub(super) fn lock_calls(&self) -> CallGuard<'_> {
        CallGuard { inner: self, endpoint: self.endpoint.as_ref().map(lock) }
    }

    /// Whether the group has not failed, and is of a term that has not ended.
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

    /// The error of a rank that is not in the group.
    pub(super) fn not_a_member(&self) -> CommError {
        let (rank, ranks) = (self.rank, self.spec.ranks.clone());
        CommError::NotAMember { group: self.name.to_string(), rank, ranks }
    }

    /// The error of a group whose term has ended.
    pub(super) fn stale(&self) -> Option<CommError> {
        let generation = self.spec.generations.iter().find(|generation| generation.has_ended())?;
        Some(CommError::Stale { group: self.name.to_string(), generation: generation.number() })
    }

    /// Tells the others that this rank takes no further part, where the group has failed or its term has ended. While a
    /// call of this rank is under way the thread that runs it does so once the call has ended: the others may count on
    /// this rank in that call, which succeeds for all or fails for all.
    pub(super) fn leave_if_unusable(&self) {
        fence(SeqCst);
        match self.endpoint.as_ref().map(Mutex::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => {}
            _ if self.is_usable() => {}
            _ => self.notify_leaving(),
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

    /// What a failure of the back end means. The others are told when the turn ends.
    #[cold]
    pub(super) fn failed(&self, failure: Failure, signature: &Signature) -> CommError {
        // A rank parted because the mesh was reshaped, of which this rank knows as well.
        if let (Failure::MemberLeft(..), Some(stale)) = (&failure, self.stale()) {
            return stale;
        }
        let context = FailureContext {
            group: &self.name,
            ranks: &self.spec.ranks,
            rank: self.rank,
            call: signature,
            timeout: self.timeout,
        };
        let error = describe::error(failure, context);
        if !matches!(error, CommError::ZeroWeights { .. }) {
            self.failed.get_or_init(|| error.clone());
        }
        error
    }

    /// Puts the group beyond use, and tells the others once no call of this rank is under way.
    pub(super) fn fail(&self, error: CommError) -> CommError {
        self.failed.get_or_init(|| error.clone());
        self.leave_if_unusable();
        error
    }
}

/// A started call that has not ended.
pub(super) struct StartedCall(pub(super) Arc<Inner>);

impl Drop for StartedCall {
    fn drop(&mut self) {
        let _ending = lock(&self.0.ending);
        self.0.started.fetch_sub(1, SeqCst);
        self.0.ended.notify_all();
    }
}

/// A rank's turn in its group: one call, or several that belong together. No other thread of the rank comes between, and
/// what the others are to be told of a failure they are told when it ends.
pub(super) struct CallGuard<'a> {
    pub(super) inner: &'a Inner,
    /// There until the turn ends.
    endpoint: Option<MutexGuard<'a, Box<dyn Endpoint>>>,
}

impl CallGuard<'_> {
    /// Fails where the group cannot be used by this rank any more.
    #[inline]
    pub(super) fn begin(&self) -> Result<()> {
        // Under the lock: a term that ends, or a group that fails, from now on leaves it to this turn to tell the others.
        if self.endpoint.is_some() && self.inner.is_usable() { Ok(()) } else { Err(self.inner.unusable()) }
    }

    /// Checks a request's vectors, of which this rank gives and takes so many elements: what the ranks must agree on.
    #[inline(always)]
    pub(super) fn signature(
        &self,
        collective: Collective,
        element: ElementType,
        given: usize,
        taken: usize,
    ) -> Result<Signature> {
        let (size, (kind, operation, root)) = (self.inner.size(), collective.parts());
        let count = collective.count(size, given, taken);
        let is_root = root.is_some() && root == self.inner.member;
        let (gives, takes) = collective.blocks(size, is_root);
        let (weight, peer) = (collective.weight(), collective.peer());
        let is_right = root.is_none_or(|root| root < size)
            && peer.is_none_or(|peer| peer < size && Some(peer) != self.inner.member)
            && (weight.is_finite() && weight >= 0.0)
            && (kind != CollectiveKind::WeightedAllReduce || element.is_float())
            && (given, taken) == (gives * count, takes * count);
        if !is_right {
            return Err(self.invalid_call(
                collective,
                element,
                [(given, gives * count), (taken, takes * count)],
            ));
        }
        let root = root.map(|root| root as u32);
        Ok(Signature { kind, element, operation, root, count: count as u64, before: None })
    }

    /// What is wrong with a request: its input and its output have so many elements, and need so many.
    #[cold]
    pub(super) fn invalid_call(
        &self,
        collective: Collective,
        element: ElementType,
        checked: [(usize, usize); 2],
    ) -> CommError {
        let (size, (kind, _, root)) = (self.inner.size(), collective.parts());
        let is_root = root == self.inner.member;
        let end = |what: &str, (found, wanted): (usize, usize)| match root {
            _ if found == wanted => None,
            Some(root) if wanted == 0 && !is_root && !collective.is_in_place() => {
                Some(format!("an {what} of {found} elements, which only the root {root} has"))
            }
            Some(_) if found == 0 && is_root => {
                Some(format!("no {what} at the root, where {wanted} elements are needed"))
            }
            _ => Some(format!("{what} of {found} elements, where {wanted} are needed in a group of {size}")),
        };
        let weight = collective.weight();
        let detail = match (root, collective.peer()) {
            (Some(root), _) if root >= size => {
                Some(format!("root {root} of a group of {size}: roots are numbers in the group, from 0"))
            }
            (_, Some(peer)) if peer >= size || Some(peer) == self.inner.member => {
                Some(format!("with {peer}: another rank of the group has a number under {size}"))
            }
            _ if !(weight.is_finite() && weight >= 0.0) => {
                Some(format!("a weight of {weight}: a weight is 0 or above, and finite"))
            }
            _ if kind == CollectiveKind::WeightedAllReduce && !element.is_float() => {
                Some(format!("of {element}: only floating-point numbers have a weighted mean"))
            }
            _ => end("input", checked[0]).or_else(|| end("output", checked[1])),
        };
        self.argument_error(kind, detail.unwrap_or_default())
    }

    /// Does what is asked for.
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
        let inner = self.inner;
        let Some(endpoint) = &mut self.endpoint else { return Err(inner.not_a_member()) };
        let done = match peer {
            Some(peer) => endpoint.exchange(&mut call, peer, inner.timeout),
            None => endpoint.run(&mut call, inner.timeout),
        };
        done.map_err(|failure| inner.failed(failure, &call.signature))
    }

    /// Tells everybody some words that it needs to know before a collective, and hears everybody's.
    pub(super) fn all_gather_words(&mut self, before: CollectiveKind, mine: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0u64; mine.len() * self.inner.size()];
        let signature = self.signature(Collective::AllGather, ElementType::U64, mine.len(), all.len())?;
        let signature = Signature { before: Some(before), ..signature };
        let (input, output) = (bytemuck::cast_slice(mine), bytemuck::cast_slice_mut(&mut all));
        self.run(Call { signature, weight: 1.0, input, output, lengths: &[] }, None)?;
        Ok(all)
    }

    /// An error of this rank's own making.
    #[cold]
    pub(super) fn argument_error(&self, kind: CollectiveKind, detail: String) -> CommError {
        let group = self.inner.name.to_string();
        let error = CommError::InvalidArgument { group, call: kind.to_string(), detail };
        self.inner.failed.get_or_init(|| error.clone());
        error
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        drop(self.endpoint.take());
        // Pairs with the one in `part`: either the other thread finds the endpoint unlocked, or this one sees why it came.
        fence(SeqCst);
        if !self.inner.is_usable() {
            self.inner.notify_leaving();
        }
    }
}
