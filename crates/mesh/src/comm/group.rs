//! A rank's place in a group, and its collectives.

use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use super::{
    call::{Call, Collective, Signature},
    describe::{self, Scene},
    element::{Element, ElementType, FloatElement},
    error::{CommError, Result},
    members::Members,
    operation::Operation,
    pending::Worker,
};
use crate::backend::{Endpoint, Failure, Farewell, Parting, Transport};

/// A rank's place in a group.
///
/// Every member calls the same collectives in the same order; a call returns when all have. Roots, and the other end
/// of [`send`](Group::send) and [`recv`](Group::recv), are numbers in the group, from 0; errors speak of numbers in
/// the world. Calls of one rank on one group go one at a time, those that were [started](Group::start_all_reduce)
/// before first; different groups are independent of one another, also where they share ranks.
///
/// Dropping it tells the others that this rank takes no further part: what they call then fails at once.
pub struct Group {
    pub(super) core: Arc<Core>,
    pub(super) worker: OnceLock<Option<Worker>>,
}

/// What the rank and its thread share.
pub(super) struct Core {
    pub(super) name: Arc<str>,
    members: Members,
    /// The rank's number in the world, and in the group where it is in it.
    rank: usize,
    member: Option<usize>,
    timeout: Duration,
    transport: Arc<dyn Transport>,
    endpoint: Option<Mutex<Box<dyn Endpoint>>>,
    farewell: Option<Arc<dyn Farewell>>,
    failed: OnceLock<CommError>,
    /// How many started calls have not ended.
    started: AtomicUsize,
    ending: Mutex<()>,
    ended: Condvar,
}

// What is behind these locks is never left half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    pub(super) fn join(transport: &Arc<dyn Transport>, members: Members, inherited: Duration) -> Result<Group> {
        let bad = |detail: String| Err(CommError::BadGroup { group: members.name.clone(), detail });
        let size = transport.size();
        if members.ranks.is_empty() {
            return bad("it has no ranks".into());
        }
        for (index, rank) in members.ranks.iter().enumerate() {
            if *rank >= size {
                return bad(format!("there is no rank {rank}: the world has 0 to {}", size - 1));
            }
            if members.ranks[..index].contains(rank) {
                return bad(format!("rank {rank} is named twice"));
            }
        }
        let rank = transport.rank();
        let timeout = members.timeout.unwrap_or(inherited);
        let member = members.ranks.iter().position(|it| *it == rank);
        let endpoint = match member {
            Some(member) => {
                let joined = transport.join(&members.name, &members.ranks, member);
                Some(joined.map_err(|why| CommError::BadGroup {
                    group: members.name.clone(),
                    detail: match why {
                        Failure::Library { library, operation, detail } => format!("{library}: {operation}: {detail}"),
                        other => format!("{other:?}"),
                    },
                })?)
            }
            None => None,
        };
        Ok(Group {
            core: Arc::new(Core {
                name: members.name.as_str().into(),
                rank,
                member,
                timeout,
                transport: transport.clone(),
                farewell: endpoint.as_ref().map(|endpoint| endpoint.farewell()),
                endpoint: endpoint.map(Mutex::new),
                members,
                failed: OnceLock::new(),
                started: AtomicUsize::new(0),
                ending: Mutex::new(()),
                ended: Condvar::new(),
            }),
            worker: OnceLock::new(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Its ranks, by their numbers in the world, in the order of their numbers in the group.
    pub fn ranks(&self) -> &[usize] {
        &self.core.members.ranks
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.ranks().len()
    }

    /// This rank's number in the group, where it is in it.
    pub fn rank(&self) -> Option<usize> {
        self.core.member
    }

    /// How long a call waits for the others.
    pub fn timeout(&self) -> Duration {
        self.core.timeout
    }

    /// What carries its collectives: `local`, or `mpi` with the library's name and version.
    pub fn backend(&self) -> String {
        self.core.transport.name()
    }

    /// The error that put the group beyond use, where one did.
    pub fn failure(&self) -> Option<&CommError> {
        self.core.failed.get()
    }

    /// Makes a group of some of this group's ranks, in the order given, as [`Comm::group`](super::Comm::group) does.
    /// It has this group's timeout and term.
    pub fn derive(&self, name: impl Into<String>, ranks: impl Into<Vec<usize>>) -> Result<Group> {
        let members = Members::new(name, ranks).timeout(self.timeout()).term(&self.core.members.term);
        if let Some(other) = members.ranks.iter().find(|rank| !self.ranks().contains(rank)) {
            let detail = format!("rank {other} is not in `{}`, which has {:?}", self.name(), self.ranks());
            return Err(CommError::BadGroup { group: members.name, detail });
        }
        Group::join(&self.core.transport, members, self.timeout())
    }

    /// Makes the group anew without some of its ranks, with the same name, timeout and term. Every rank that is left
    /// does so, with the same ranks left out: [`CommError::ranks`] says who was the reason of a failure.
    pub fn rebuild(&self, without: &[usize]) -> Result<Group> {
        let left: Vec<_> = self.ranks().iter().copied().filter(|rank| !without.contains(rank)).collect();
        self.derive(self.name(), left)
    }

    /// Puts the group beyond use on every rank, with this reason: for whoever finds out by other means that it cannot
    /// go on.
    pub fn poison(&self, why: &str) {
        let detail = why.to_owned();
        let group = self.name().to_owned();
        let ranks = vec![self.core.rank];
        self.core.fail(CommError::Failed { group, call: "the next call".into(), ranks, detail });
    }

    /// Reduces everybody's vector to one, which everybody gets in its place.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], operation: Operation) -> Result<()> {
        self.core.settle();
        self.core.all_reduce(data, operation)
    }

    /// Replaces everybody's vector by Σ wᵢ·xᵢ / Σ wᵢ. What a rank of weight 0 has is not looked at, so it may be
    /// anything. f16 and bf16 are reduced in f32, f32 and f64 in f64. Where all weights are 0 every rank gets
    /// [`CommError::NoWeight`] and its vector back unchanged; a weight below 0, infinite or NaN is an error.
    pub fn weighted_all_reduce<T: FloatElement>(&self, data: &mut [T], weight: f64) -> Result<()> {
        self.core.settle();
        self.core.weighted_all_reduce(data, weight)
    }

    /// Reduces everybody's vector to one, which the root gets in its place. The others' vectors stay as they are.
    pub fn reduce<T: Element>(&self, data: &mut [T], operation: Operation, root: usize) -> Result<()> {
        self.core.settle();
        self.core.reduce(data, operation, root)
    }

    /// Gives everybody the root's vector.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.core.settle();
        self.core.broadcast(data, root)
    }

    /// Gives everybody everybody's vector, one after another in the order of ranks. `output` is as long as all of them.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.core.settle();
        self.core.all_gather(input, output)
    }

    /// Reduces everybody's vector to one, and gives each rank its part of it, in the order of ranks. `input` is as long
    /// as all parts.
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], operation: Operation) -> Result<()> {
        self.core.settle();
        self.core.reduce_scatter(input, output, operation)
    }

    /// Gives the root everybody's vector, one after another in the order of ranks. `output` is as long as all of them
    /// at the root, and empty elsewhere.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.core.settle();
        self.core.gather(input, output, root)
    }

    /// Gives each rank its part of the root's vector, in the order of ranks. `input` is as long as all parts at the
    /// root, and empty elsewhere.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.core.settle();
        self.core.scatter(input, output, root)
    }

    /// Gives each rank a part of everybody's vector: part `j` of rank `i`'s input becomes part `i` of rank `j`'s output.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.core.settle();
        self.core.all_to_all(input, output)
    }

    /// Sends a vector to another rank of the group, and returns when that has received it.
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<()> {
        self.core.settle();
        self.core.send(data, to)
    }

    /// Receives a vector that another rank of the group sends, which must be of this type and length.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<()> {
        self.core.settle();
        self.core.recv(data, from)
    }

    /// Waits until everybody is here.
    pub fn barrier(&self) -> Result<()> {
        self.core.settle();
        self.core.barrier()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What was started ends first: others may be working with it.
        drop(self.worker.take());
        let why = if thread::panicking() { Parting::Panicked } else { Parting::Left };
        if let Some(farewell) = &self.core.farewell {
            farewell.say(&why);
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(`{}` {:?}, rank {})", self.name(), self.ranks(), self.core.rank)
    }
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
        let signature = Signature {
            operation: Some(operation),
            ..plain(Collective::AllReduce, T::TYPE, data.len())
        };
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
        let signature = Signature {
            operation: Some(operation),
            ..plain(Collective::Reduce, T::TYPE, data.len())
        };
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
        let call = Call { signature, weight, input, output };
        let done = endpoint.run(call, self.timeout);
        drop(endpoint);
        done.map_err(|failure| self.failed(failure, &signature))
    }

    fn exchange(&self, signature: Signature, peer: usize, input: &[u8], output: &mut [u8]) -> Result<()> {
        let mut endpoint = self.endpoint()?;
        if peer >= self.size() || Some(peer) == self.member {
            drop(endpoint);
            let detail = format!("with {peer}: another rank of the group has a number under {}", self.size());
            return Err(self.refuse(&signature, detail));
        }
        let done = endpoint.exchange(Call { signature, weight: 1.0, input, output }, peer, self.timeout);
        drop(endpoint);
        done.map_err(|failure| self.failed(failure, &signature))
    }

    /// The endpoint, where the group can still be used by this rank.
    fn endpoint(&self) -> Result<MutexGuard<'_, Box<dyn Endpoint>>> {
        if self.members.term.has_ended() {
            let generation = self.members.term.generation();
            return Err(CommError::Stale { group: self.name.to_string(), generation });
        }
        let Some(endpoint) = &self.endpoint else {
            let (rank, ranks) = (self.rank, self.members.ranks.clone());
            return Err(CommError::NotAMember { group: self.name.to_string(), rank, ranks });
        };
        let endpoint = lock(endpoint);
        match self.failed.get() {
            None => Ok(endpoint),
            Some(why) => Err(CommError::Poisoned { group: self.name.to_string(), why: why.to_string() }),
        }
    }

    fn rooted(&self, mut signature: Signature, root: usize) -> Result<Signature> {
        signature.root = u32::try_from(root).ok();
        if root < self.size() {
            return Ok(signature);
        }
        let detail = format!("root {root} of a group of {}: roots are numbers in the group, from 0", self.size());
        Err(self.refuse(&signature, detail))
    }

    fn check(&self, what: &str, found: usize, wanted: usize, signature: &Signature) -> Result<()> {
        if found == wanted {
            return Ok(());
        }
        let detail = format!("{what} of {found} elements, where {wanted} are needed in a group of {}", self.size());
        Err(self.refuse(signature, detail))
    }

    /// An error of this rank's own making, of which the others are told.
    #[cold]
    fn refuse(&self, signature: &Signature, detail: String) -> CommError {
        if let Err(unusable) = self.endpoint() {
            return unusable;
        }
        let error =
            CommError::Argument { group: self.name.to_string(), call: signature.collective.to_string(), detail };
        self.fail(error)
    }

    /// What a failure of the back end means, of which the others are told.
    #[cold]
    fn failed(&self, failure: Failure, signature: &Signature) -> CommError {
        let scene = Scene {
            group: &self.name,
            ranks: &self.members.ranks,
            rank: self.rank,
            call: signature,
            timeout: self.timeout,
        };
        let error = describe::error(failure, scene);
        if matches!(error, CommError::NoWeight { .. }) {
            return error;
        }
        self.fail(error)
    }

    /// Puts the group beyond use.
    pub(super) fn fail(&self, error: CommError) -> CommError {
        let first = self.failed.get_or_init(|| error.clone());
        if let Some(farewell) = &self.farewell {
            farewell.say(&Parting::Failed { why: first.to_string(), blame: first.ranks().to_vec() });
        }
        error
    }
}

/// What most collectives say.
fn plain(collective: Collective, element: ElementType, count: usize) -> Signature {
    Signature { collective, element, operation: None, root: None, count: count as u64 }
}
