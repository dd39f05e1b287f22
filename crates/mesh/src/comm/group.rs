//! A rank's place in a group, and its collectives.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, OnceLock, atomic::AtomicUsize},
    thread,
    time::Duration,
};

use super::{
    core::Core,
    element::Element,
    error::{CommError, Result},
    members::Members,
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
    #[inline]
    pub fn call<T: Element>(&self, request: Request, input: &[T], output: &mut [T]) -> Result<()> {
        self.core().settle();
        self.core().call(request, input, output)
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
