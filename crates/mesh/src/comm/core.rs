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
    element::{Element, ElementType, FloatElement},
    error::{CommError, Result},
    members::Members,
    operation::Operation,
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

/// An endpoint in use.
type Locked<'a> = MutexGuard<'a, Box<dyn Endpoint>>;

// What is behind these locks is never left half-done.
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

    pub(super) fn begin_one(&self) {
        self.started.fetch_add(1, SeqCst);
    }

    pub(super) fn end_one(&self) {
        let _ending = lock(&self.ending);
        self.started.fetch_sub(1, SeqCst);
        self.ended.notify_all();
    }

    pub(super) fn all_reduce<T: Element>(&self, data: &mut [T], operation: Operation) -> Result<()> {
        let signature =
            Signature { operation: Some(operation), ..plain(Collective::AllReduce, T::TYPE, data.len()) };
        self.run(signature, 1.0, &[], bytemuck::cast_slice_mut(data))
    }

    pub(super) fn weighted_all_reduce<T: FloatElement>(&self, data: &mut [T], weight: f64) -> Result<()> {
        let signature = plain(Collective::WeightedAllReduce, T::TYPE, data.len());
        if !(weight.is_finite() && weight >= 0.0) {
            let detail = format!("a weight of {weight}: a weight is 0 or above, and finite");
            return Err(self.refuse(&signature, detail));
        }
        self.run(signature, weight, &[], bytemuck::cast_slice_mut(data))
    }

    pub(super) fn reduce<T: Element>(&self, data: &mut [T], operation: Operation, root: usize) -> Result<()> {
        let signature =
            Signature { operation: Some(operation), ..plain(Collective::Reduce, T::TYPE, data.len()) };
        self.run(self.rooted(signature, root)?, 1.0, &[], bytemuck::cast_slice_mut(data))
    }

    pub(super) fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<()> {
        let signature = plain(Collective::Broadcast, T::TYPE, data.len());
        self.run(self.rooted(signature, root)?, 1.0, &[], bytemuck::cast_slice_mut(data))
    }

    pub(super) fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let signature = plain(Collective::AllGather, T::TYPE, input.len());
        self.check("output", output.len(), input.len() * self.size(), &signature)?;
        self.run(signature, 1.0, bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output))
    }

    pub(super) fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        operation: Operation,
    ) -> Result<()> {
        let signature = Signature {
            operation: Some(operation),
            ..plain(Collective::ReduceScatter, T::TYPE, output.len())
        };
        self.check("input", input.len(), output.len() * self.size(), &signature)?;
        self.run(signature, 1.0, bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output))
    }

    pub(super) fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        let signature = self.rooted(plain(Collective::Gather, T::TYPE, input.len()), root)?;
        let wanted = if self.member == Some(root) { input.len() * self.size() } else { 0 };
        self.check("output", output.len(), wanted, &signature)?;
        self.run(signature, 1.0, bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output))
    }

    pub(super) fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        let signature = self.rooted(plain(Collective::Scatter, T::TYPE, output.len()), root)?;
        let wanted = if self.member == Some(root) { output.len() * self.size() } else { 0 };
        self.check("input", input.len(), wanted, &signature)?;
        self.run(signature, 1.0, bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output))
    }

    pub(super) fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let signature = plain(Collective::AllToAll, T::TYPE, input.len() / self.size());
        self.check("input", input.len(), signature.count as usize * self.size(), &signature)?;
        self.check("output", output.len(), input.len(), &signature)?;
        self.run(signature, 1.0, bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output))
    }

    pub(super) fn send<T: Element>(&self, data: &[T], to: usize) -> Result<()> {
        let signature = plain(Collective::Send, T::TYPE, data.len());
        self.exchange(signature, to, bytemuck::cast_slice(data), &mut [])
    }

    pub(super) fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<()> {
        let signature = plain(Collective::Receive, T::TYPE, data.len());
        self.exchange(signature, from, &[], bytemuck::cast_slice_mut(data))
    }

    pub(super) fn barrier(&self) -> Result<()> {
        self.run(plain(Collective::Barrier, ElementType::U8, 0), 1.0, &[], &mut [])
    }

    pub(super) fn world_rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.members.ranks.len()
    }

    fn run(&self, signature: Signature, weight: f64, input: &[u8], output: &mut [u8]) -> Result<()> {
        let mut endpoint = self.endpoint()?;
        let done = endpoint.run(Call { signature, weight, input, output }, self.timeout);
        self.end(endpoint, done, &signature)
    }

    fn exchange(&self, signature: Signature, peer: usize, input: &[u8], output: &mut [u8]) -> Result<()> {
        if peer >= self.size() || Some(peer) == self.member {
            let detail = format!("with {peer}: another rank of the group has a number under {}", self.size());
            return Err(self.refuse(&signature, detail));
        }
        let mut endpoint = self.endpoint()?;
        let done = endpoint.exchange(Call { signature, weight: 1.0, input, output }, peer, self.timeout);
        self.end(endpoint, done, &signature)
    }

    /// The endpoint, where the group can still be used by this rank.
    fn endpoint(&self) -> Result<Locked<'_>> {
        let Some(endpoint) = &self.endpoint else {
            return Err(self.stale().unwrap_or_else(|| self.stranger()));
        };
        let endpoint = lock(endpoint);
        // Under the lock: a term that ends, or a group that fails, from now on leaves it to the call to tell the others.
        let unusable = self.stale().or_else(|| {
            let why = self.failed.get()?.to_string();
            Some(CommError::Poisoned { group: self.name.to_string(), why })
        });
        match unusable {
            None => Ok(endpoint),
            Some(unusable) => {
                self.release(endpoint);
                Err(unusable)
            }
        }
    }

    /// Ends a call. A failure puts the group beyond use before another thread can have the endpoint.
    fn end(
        &self,
        endpoint: Locked<'_>,
        done: std::result::Result<(), Failure>,
        call: &Signature,
    ) -> Result<()> {
        let done = done.map_err(|failure| self.failed(failure, call));
        self.release(endpoint);
        done
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

    /// Unlocks the endpoint, and tells the others what was left to this thread to tell.
    fn release(&self, endpoint: Locked<'_>) {
        drop(endpoint);
        // Pairs with the one in `part`: either the other thread finds the endpoint unlocked, or this one sees why it came.
        fence(SeqCst);
        self.tell();
    }

    /// Tells the others that this rank takes no further part, where the group has failed or its term has ended. While a
    /// call of this rank is under way the thread that runs it does so once the call has ended: the others may count on
    /// this rank in that call, which succeeds for all or fails for all.
    pub(super) fn part(&self) {
        fence(SeqCst);
        match self.endpoint.as_ref().map(Mutex::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => {}
            _ => self.tell(),
        }
    }

    fn tell(&self) {
        if let (Some(why), Some(farewell)) =
            (self.failed.get().cloned().or_else(|| self.stale()), &self.farewell)
        {
            farewell.say(&Parting::Failed { why: why.to_string(), blame: why.ranks().to_vec() });
        }
    }

    pub(super) fn rooted(&self, mut signature: Signature, root: usize) -> Result<Signature> {
        signature.root = u32::try_from(root).ok();
        if root < self.size() {
            return Ok(signature);
        }
        let detail =
            format!("root {root} of a group of {}: roots are numbers in the group, from 0", self.size());
        Err(self.refuse(&signature, detail))
    }

    pub(super) fn check(&self, what: &str, found: usize, wanted: usize, signature: &Signature) -> Result<()> {
        if found == wanted {
            return Ok(());
        }
        let detail =
            format!("{what} of {found} elements, where {wanted} are needed in a group of {}", self.size());
        Err(self.refuse(signature, detail))
    }

    /// An error of this rank's own making, of which the others are told.
    #[cold]
    pub(super) fn refuse(&self, signature: &Signature, detail: String) -> CommError {
        let endpoint = match self.endpoint() {
            Ok(endpoint) => endpoint,
            Err(unusable) => return unusable,
        };
        let group = self.name.to_string();
        let error = CommError::Argument { group, call: signature.collective.to_string(), detail };
        self.failed.get_or_init(|| error.clone());
        self.release(endpoint);
        error
    }

    /// What a failure of the back end means. The others are told when the endpoint is released.
    #[cold]
    fn failed(&self, failure: Failure, signature: &Signature) -> CommError {
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

/// What most collectives say.
pub(super) fn plain(collective: Collective, element: ElementType, count: usize) -> Signature {
    Signature { collective, element, operation: None, root: None, count: count as u64 }
}
