//! A rank's place in a group, and its collectives.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, OnceLock, atomic::AtomicUsize},
    thread,
    time::Duration,
};

use super::{
    core::Core,
    element::{Element, FloatElement},
    error::{CommError, Result},
    members::Members,
    operation::Operation,
    pending::Worker,
    request::Request,
    term::Term,
};
use crate::backend::{Failure, Parting, Transport};

/// A rank's place in a group.
///
/// Every member calls the same collectives in the same order; a call returns when all have. Roots, and the other end
/// of [`send`](Group::send) and [`recv`](Group::recv), are numbers in the group, from 0; errors speak of numbers in
/// the world. Calls of one rank on one group go one at a time, those that were [started](Group::start_all_reduce)
/// before first; different groups are independent of one another, also where they share ranks.
///
/// Clones are the same place. Dropping the last one tells the others that this rank takes no further part: what they call
/// then fails at once.
#[derive(Clone)]
pub struct Group {
    place: Arc<Place>,
}

/// What all clones share.
struct Place {
    core: Arc<Core>,
    /// Runs started calls. It has the core, and never the place, which is dropped on another thread.
    worker: OnceLock<Option<Worker>>,
}

impl Group {
    pub(super) fn join(
        transport: &Arc<dyn Transport>,
        members: Members,
        inherited: Duration,
    ) -> Result<Group> {
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
                let joined = transport.join(&members.key(), &members.ranks, member);
                Some(joined.map_err(|why| CommError::BadGroup {
                    group: members.name.clone(),
                    detail: match why {
                        Failure::Library { library, operation, detail } => {
                            format!("{library}: {operation}: {detail}")
                        }
                        other => format!("{other:?}"),
                    },
                })?)
            }
            None => None,
        };
        let core = Arc::new(Core {
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
        });
        core.members.terms.iter().for_each(|term| term.watch(&core));
        // Looked at after it is watched, so that no end is missed. The others may be waiting for this rank.
        core.part();
        core.stale().map_or(Ok(Group { place: Arc::new(Place { core, worker: OnceLock::new() }) }), Err)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.core().name
    }

    /// Its ranks, by their numbers in the world, in the order of their numbers in the group.
    pub fn ranks(&self) -> &[usize] {
        &self.core().members.ranks
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.ranks().len()
    }

    /// This rank's number in the group, where it is in it.
    pub fn rank(&self) -> Option<usize> {
        self.core().member
    }

    /// How long a call waits for the others.
    pub fn timeout(&self) -> Duration {
        self.core().timeout
    }

    /// What carries its collectives: `local`, or `mpi` with the library's name and version.
    pub fn backend(&self) -> String {
        self.core().transport.name()
    }

    /// The error that put the group beyond use, where one did.
    pub fn failure(&self) -> Option<&CommError> {
        self.core().failed.get()
    }

    /// Makes a group of some of this group's ranks, in the order given, as [`Comm::group`](super::Comm::group) does.
    /// It has this group's timeout and term.
    pub fn derive(&self, name: impl Into<String>, ranks: impl Into<Vec<usize>>) -> Result<Group> {
        self.make(Members::new(name, ranks).all_terms(&self.core().members.terms))
    }

    /// Makes a group of some of this group's ranks, with its timeout.
    pub(crate) fn make(&self, members: Members) -> Result<Group> {
        if let Some(other) = members.ranks.iter().find(|rank| !self.ranks().contains(rank)) {
            let detail = format!("rank {other} is not in `{}`, which has {:?}", self.name(), self.ranks());
            return Err(CommError::BadGroup { group: members.name, detail });
        }
        Group::join(&self.core().transport, members, self.timeout())
    }

    /// Makes the group anew without some of its ranks, with the same name, timeout and term. Every rank that is left
    /// does so, with the same ranks left out: [`CommError::ranks`] says who was the reason of a failure.
    pub fn rebuild(&self, without: &[usize]) -> Result<Group> {
        let left: Vec<_> = self.ranks().iter().copied().filter(|rank| !without.contains(rank)).collect();
        self.derive(self.name(), left)
    }

    pub(crate) fn terms(&self) -> &[Term] {
        &self.core().members.terms
    }

    pub(crate) fn terms_but(&self, term: &Term) -> Vec<Term> {
        self.terms().iter().filter(|it| !it.is(term)).cloned().collect()
    }

    /// The error of a rank that is not in the group.
    pub(crate) fn stranger(&self) -> CommError {
        self.core().stranger()
    }

    /// Puts the group beyond use on every rank, with this reason: for a program that finds out by other means that it
    /// cannot go on. A call that is under way on this rank ends first, as it would have.
    pub fn poison(&self, why: &str) {
        let detail = why.to_owned();
        let group = self.name().to_owned();
        let ranks = vec![self.core().rank];
        self.core().fail(CommError::Failed { group, call: "the next call".into(), ranks, detail });
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.place.core
    }

    /// The thread that runs what is started, where the system has one to give.
    pub(super) fn worker(&self) -> Option<&Worker> {
        self.place.worker.get_or_init(|| Worker::begin(self.name()).ok()).as_ref()
    }

    /// Does what is asked for: what all other collectives on host memory are short for. `input` and `output` are empty
    /// where the request has none on this rank.
    ///
    /// ```
    /// use evener_mesh::comm::{Comm, Operation, Request};
    ///
    /// let comm = Comm::local(1).remove(0);
    /// let mut data = [1.0f32, 2.0];
    /// comm.world().call(Request::AllReduce(Operation::Sum), &[], &mut data)?;
    /// # Ok::<(), evener_mesh::comm::CommError>(())
    /// ```
    #[inline]
    pub fn call<T: Element>(&self, request: Request, input: &[T], output: &mut [T]) -> Result<()> {
        self.core().settle();
        self.core().call(request, input, output)
    }

    /// Reduces everybody's vector to one, which everybody gets in its place.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], operation: Operation) -> Result<()> {
        self.call(Request::AllReduce(operation), &[], data)
    }

    /// Replaces everybody's vector by Σ wᵢ·xᵢ / Σ wᵢ. What a rank of weight 0 has is not looked at, so it may be
    /// anything. f16 and bf16 are reduced in f32, f32 and f64 in f64. Where all weights are 0 every rank gets
    /// [`CommError::NoWeight`] and its vector back unchanged; a weight below 0, infinite or NaN is an error.
    pub fn weighted_all_reduce<T: FloatElement>(&self, data: &mut [T], weight: f64) -> Result<()> {
        self.call(Request::WeightedAllReduce(weight), &[], data)
    }

    /// Reduces everybody's vector to one, which the root gets in its place. The others' vectors stay as they are.
    pub fn reduce<T: Element>(&self, data: &mut [T], operation: Operation, root: usize) -> Result<()> {
        self.call(Request::Reduce(operation, root), &[], data)
    }

    /// Gives everybody the root's vector.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.call(Request::Broadcast(root), &[], data)
    }

    /// Gives everybody everybody's vector, one after another in the order of ranks. `output` is as long as all of them.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.call(Request::AllGather, input, output)
    }

    /// Reduces everybody's vector to one, and gives each rank its part of it, in the order of ranks. `input` is as long
    /// as all parts.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        operation: Operation,
    ) -> Result<()> {
        self.call(Request::ReduceScatter(operation), input, output)
    }

    /// Gives the root everybody's vector, one after another in the order of ranks. `output` is as long as all of them
    /// at the root, and empty elsewhere.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.call(Request::Gather(root), input, output)
    }

    /// Gives each rank its part of the root's vector, in the order of ranks. `input` is as long as all parts at the
    /// root, and empty elsewhere.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.call(Request::Scatter(root), input, output)
    }

    /// Gives each rank a part of everybody's vector: part `j` of rank `i`'s input becomes part `i` of rank `j`'s output.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.call(Request::AllToAll, input, output)
    }

    /// Sends a vector to another rank of the group, and returns once that has called [`recv`](Group::recv) for as many
    /// of the same type and the vector can be changed. Between threads the other has it by then. Between processes the
    /// last of it may still be on its way: that the other dies just then is found out by the next call only.
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<()> {
        self.call(Request::Send(to), data, &mut [])
    }

    /// Receives a vector that another rank of the group sends, which must be of this type and length.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<()> {
        self.call(Request::Recv(from), &[], data)
    }

    /// Waits until everybody is here.
    pub fn barrier(&self) -> Result<()> {
        self.call::<u8>(Request::Barrier, &[], &mut [])
    }
}

impl Drop for Place {
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
        write!(f, "Group(`{}` {:?}, rank {})", self.name(), self.ranks(), self.core().rank)
    }
}
