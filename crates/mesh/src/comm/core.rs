//! What a rank and its group's thread share: checking a call, running it, and what its failure means.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicUsize, Ordering::SeqCst, fence},
    },
    time::Duration,
};

use super::{
    call::{Call, Collective, Signature},
    describe::{self, Scene},
    element::{Element, ElementType},
    error::{CommError, Result},
    members::Members,
    request::Request,
    term::Term,
};
use crate::backend::{Endpoint, Failure, Farewell, Parting, Transport};

/// What the rank and its thread share.
pub(super) struct Core {
    pub(super) name: Arc<str>,
    pub(super) members: Members,
    /// The rank's number in the world, and in the group where it is in it.
    pub(super) rank: usize,
    pub(super) member: Option<usize>,
    pub(super) timeout: Duration,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) endpoint: Option<Mutex<Box<dyn Endpoint>>>,
    pub(super) farewell: Option<Arc<dyn Farewell>>,
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

impl Core {
    /// Waits until what was started has ended.
    #[inline]
    pub(super) fn settle(&self) {
        if self.started.load(SeqCst) > 0 {
            self.settle_started();
        }
    }

    #[cold]
    fn settle_started(&self) {
        let mut ending = lock(&self.ending);
        while self.started.load(SeqCst) > 0 {
            ending = self.ended.wait(ending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts a started call until what this gives is dropped.
    pub(super) fn begin_one(self: &Arc<Self>) -> Started {
        self.started.fetch_add(1, SeqCst);
        Started(self.clone())
    }

    /// Does what is asked for, without waiting for what was started.
    #[inline]
    pub(super) fn call<T: Element>(&self, request: Request, input: &[T], output: &mut [T]) -> Result<()> {
        let mut turn = self.turn();
        turn.begin()?;
        turn.call(request, input, output)
    }

    pub(super) fn size(&self) -> usize {
        self.members.ranks.len()
    }

    /// This rank's turn, which is to [`begin`](Turn::begin).
    #[inline]
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn { core: self, endpoint: self.endpoint.as_ref().map(lock) }
    }

    /// Whether the group has not failed, and is of a term that has not ended.
    #[inline]
    fn is_usable(&self) -> bool {
        self.failed.get().is_none() && !self.members.terms.iter().any(Term::has_ended)
    }

    #[cold]
    fn unusable(&self) -> CommError {
        match (self.stale(), self.failed.get()) {
            (Some(stale), _) => stale,
            (None, Some(why)) if self.endpoint.is_some() => {
                CommError::Poisoned { group: self.name.to_string(), why: why.to_string() }
            }
            _ => self.stranger(),
        }
    }

    /// The error of a rank that is not in the group.
    pub(super) fn stranger(&self) -> CommError {
        let (rank, ranks) = (self.rank, self.members.ranks.clone());
        CommError::NotAMember { group: self.name.to_string(), rank, ranks }
    }

    /// The error of a group whose term has ended.
    pub(super) fn stale(&self) -> Option<CommError> {
        let term = self.members.terms.iter().find(|term| term.has_ended())?;
        Some(CommError::Stale { group: self.name.to_string(), generation: term.generation() })
    }

    /// Tells the others that this rank takes no further part, where the group has failed or its term has ended. While a
    /// call of this rank is under way the thread that runs it does so once the call has ended: the others may count on
    /// this rank in that call, which succeeds for all or fails for all.
    pub(super) fn part(&self) {
        fence(SeqCst);
        match self.endpoint.as_ref().map(Mutex::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => {}
            _ if self.is_usable() => {}
            _ => self.tell(),
        }
    }

    #[cold]
    fn tell(&self) {
        if let (Some(why), Some(farewell)) =
            (self.failed.get().cloned().or_else(|| self.stale()), &self.farewell)
        {
            farewell.say(&Parting::Failed { why: why.to_string(), blame: why.ranks().to_vec() });
        }
    }

    /// What a failure of the back end means. The others are told when the turn ends.
    #[cold]
    pub(super) fn failed(&self, failure: Failure, signature: &Signature) -> CommError {
        // A rank parted because the mesh was reshaped, of which this rank knows as well.
        if let (Failure::Parted(..), Some(stale)) = (&failure, self.stale()) {
            return stale;
        }
        let scene = Scene {
            group: &self.name,
            ranks: &self.members.ranks,
            rank: self.rank,
            call: signature,
            timeout: self.timeout,
        };
        let error = describe::error(failure, scene);
        if !matches!(error, CommError::NoWeight { .. }) {
            self.failed.get_or_init(|| error.clone());
        }
        error
    }

    /// Puts the group beyond use, and tells the others once no call of this rank is under way.
    pub(super) fn fail(&self, error: CommError) -> CommError {
        self.failed.get_or_init(|| error.clone());
        self.part();
        error
    }
}

/// A started call that has not ended.
pub(super) struct Started(pub(super) Arc<Core>);

impl Drop for Started {
    fn drop(&mut self) {
        let _ending = lock(&self.0.ending);
        self.0.started.fetch_sub(1, SeqCst);
        self.0.ended.notify_all();
    }
}

/// A rank's turn in its group: one call, or several that belong together. No other thread of the rank comes between, and
/// what the others are to be told of a failure they are told when it ends.
pub(super) struct Turn<'a> {
    pub(super) core: &'a Core,
    /// There until the turn ends.
    endpoint: Option<MutexGuard<'a, Box<dyn Endpoint>>>,
}

impl Turn<'_> {
    /// Fails where the group cannot be used by this rank any more.
    #[inline]
    pub(super) fn begin(&self) -> Result<()> {
        // Under the lock: a term that ends, or a group that fails, from now on leaves it to this turn to tell the others.
        if self.endpoint.is_some() && self.core.is_usable() { Ok(()) } else { Err(self.core.unusable()) }
    }

    /// Checks a request's vectors, of which this rank gives and takes so many elements: what the ranks must agree on.
    #[inline(always)]
    pub(super) fn signature(
        &self,
        request: Request,
        element: ElementType,
        given: usize,
        taken: usize,
    ) -> Result<Signature> {
        let (size, (collective, operation, root)) = (self.core.size(), request.parts());
        let count = request.count(size, given, taken);
        let is_root = root.is_some() && root == self.core.member;
        let (gives, takes) = request.blocks(size, is_root);
        let (weight, peer) = (request.weight(), request.peer());
        let is_right = root.is_none_or(|root| root < size)
            && peer.is_none_or(|peer| peer < size && Some(peer) != self.core.member)
            && (weight.is_finite() && weight >= 0.0)
            && (collective != Collective::WeightedAllReduce || element.is_float())
            && (given, taken) == (gives * count, takes * count);
        if !is_right {
            return Err(self.wrong(request, element, [(given, gives * count), (taken, takes * count)]));
        }
        let root = root.map(|root| root as u32);
        Ok(Signature { collective, element, operation, root, count: count as u64, before: None })
    }

    /// What is wrong with a request: its input and its output have so many elements, and need so many.
    #[cold]
    pub(super) fn wrong(
        &self,
        request: Request,
        element: ElementType,
        ends: [(usize, usize); 2],
    ) -> CommError {
        let (size, (collective, _, root)) = (self.core.size(), request.parts());
        let is_root = root == self.core.member;
        let end = |what: &str, (found, wanted): (usize, usize)| match root {
            _ if found == wanted => None,
            Some(root) if wanted == 0 && !is_root && !request.is_in_place() => {
                Some(format!("an {what} of {found} elements, which only the root {root} has"))
            }
            Some(_) if found == 0 && is_root => {
                Some(format!("no {what} at the root, where {wanted} elements are needed"))
            }
            _ => Some(format!("{what} of {found} elements, where {wanted} are needed in a group of {size}")),
        };
        let weight = request.weight();
        let detail = match (root, request.peer()) {
            (Some(root), _) if root >= size => {
                Some(format!("root {root} of a group of {size}: roots are numbers in the group, from 0"))
            }
            (_, Some(peer)) if peer >= size || Some(peer) == self.core.member => {
                Some(format!("with {peer}: another rank of the group has a number under {size}"))
            }
            _ if !(weight.is_finite() && weight >= 0.0) => {
                Some(format!("a weight of {weight}: a weight is 0 or above, and finite"))
            }
            _ if collective == Collective::WeightedAllReduce && !element.is_float() => {
                Some(format!("of {element}: only floating-point numbers have a weighted mean"))
            }
            _ => end("input", ends[0]).or_else(|| end("output", ends[1])),
        };
        self.refuse(collective, detail.unwrap_or_default())
    }

    /// Does what is asked for.
    #[inline]
    pub(super) fn call<T: Element>(&mut self, request: Request, input: &[T], output: &mut [T]) -> Result<()> {
        let signature = self.signature(request, T::TYPE, input.len(), output.len())?;
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        self.run(Call { signature, weight: request.weight(), input, output, lengths: &[] }, request.peer())
    }

    #[inline]
    pub(super) fn run(&mut self, mut call: Call<'_>, peer: Option<usize>) -> Result<()> {
        let core = self.core;
        let Some(endpoint) = &mut self.endpoint else { return Err(core.stranger()) };
        let done = match peer {
            Some(peer) => endpoint.exchange(&mut call, peer, core.timeout),
            None => endpoint.run(&mut call, core.timeout),
        };
        done.map_err(|failure| core.failed(failure, &call.signature))
    }

    /// Tells everybody some words that it needs to know before a collective, and hears everybody's.
    pub(super) fn tell(&mut self, before: Collective, mine: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0u64; mine.len() * self.core.size()];
        let signature = self.signature(Request::AllGather, ElementType::U64, mine.len(), all.len())?;
        let signature = Signature { before: Some(before), ..signature };
        let (input, output) = (bytemuck::cast_slice(mine), bytemuck::cast_slice_mut(&mut all));
        self.run(Call { signature, weight: 1.0, input, output, lengths: &[] }, None)?;
        Ok(all)
    }

    /// An error of this rank's own making.
    #[cold]
    pub(super) fn refuse(&self, collective: Collective, detail: String) -> CommError {
        let group = self.core.name.to_string();
        let error = CommError::Argument { group, call: collective.to_string(), detail };
        self.core.failed.get_or_init(|| error.clone());
        error
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.endpoint.take());
        // Pairs with the one in `part`: either the other thread finds the endpoint unlocked, or this one sees why it came.
        fence(SeqCst);
        if !self.core.is_usable() {
            self.core.tell();
        }
    }
}
