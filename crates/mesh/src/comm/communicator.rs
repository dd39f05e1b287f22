//! A rank's place in a group, and its collectives.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, OnceLock, atomic::AtomicUsize},
    thread,
    time::Duration,
};

use super::{
    collective::Collective,
    element::Element,
    error::{CommError, Result},
    generation::Generation,
    group_spec::GroupSpec,
    inner::Inner,
    pending::CallThread,
};
use crate::backend::{Failure, LeaveReason, Transport};

/// A rank's place in a group.
///
/// Every member calls the same collectives in the same order; a call returns when all have. Roots, and the other end
/// of [`send`](Communicator::send) and [`recv`](Communicator::recv), are numbers in the group, from 0; errors speak of numbers in
/// the world. Calls of one rank on one group go one at a time, those that were [started](Communicator::start_all_reduce)
/// before first; different groups are independent of one another, also where they share ranks.
///
/// Clones are the same place. Dropping the last one tells the others that this rank takes no further part: what they call
/// then fails at once.
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
}

/// What all clones share.
struct Shared {
    inner: Arc<Inner>,
    /// Runs started calls. It has the core, and never the place, which is dropped on another thread.
    call_thread: OnceLock<Option<CallThread>>,
}

impl Communicator {
    pub(super) fn join(
        transport: &Arc<dyn Transport>,
        spec: GroupSpec,
        inherited: Duration,
    ) -> Result<Communicator> {
        let bad = |detail: String| Err(CommError::InvalidGroup { group: spec.name.clone(), detail });
        let size = transport.size();
        if spec.ranks.is_empty() {
            return bad("it has no ranks".into());
        }
        for (index, rank) in spec.ranks.iter().enumerate() {
            if *rank >= size {
                return bad(format!("there is no rank {rank}: the world has 0 to {}", size - 1));
            }
            if spec.ranks[..index].contains(rank) {
                return bad(format!("rank {rank} is named twice"));
            }
        }
        let rank = transport.rank();
        let timeout = spec.timeout.unwrap_or(inherited);
        let member = spec.ranks.iter().position(|it| *it == rank);
        let endpoint = match member {
            Some(member) => {
                let joined = transport.join(&spec.key(), &spec.ranks, member);
                Some(joined.map_err(|why| CommError::InvalidGroup {
                    group: spec.name.clone(),
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
        let inner = Arc::new(Inner {
            name: spec.name.as_str().into(),
            rank,
            member,
            timeout,
            transport: transport.clone(),
            leave_notifier: endpoint.as_ref().map(|endpoint| endpoint.leave_notifier()),
            endpoint: endpoint.map(Mutex::new),
            spec,
            failed: OnceLock::new(),
            started: AtomicUsize::new(0),
            ending: Mutex::new(()),
            ended: Condvar::new(),
        });
        inner.spec.generations.iter().for_each(|generation| generation.watch(&inner));
        // Looked at after it is watched, so that no end is missed. The others may be waiting for this rank.
        inner.leave_if_unusable();
        inner.stale().map_or(
            Ok(Communicator { shared: Arc::new(Shared { inner, call_thread: OnceLock::new() }) }),
            Err,
        )
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner().name
    }

    /// Its ranks, by their numbers in the world, in the order of their numbers in the group.
    pub fn ranks(&self) -> &[usize] {
        &self.inner().spec.ranks
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.ranks().len()
    }

    /// This rank's number in the group, where it is in it.
    pub fn rank(&self) -> Option<usize> {
        self.inner().member
    }

    /// How long a call waits for the others.
    pub fn timeout(&self) -> Duration {
        self.inner().timeout
    }

    /// What carries its collectives: `local`, or `mpi` with the library's name and version.
    pub fn backend(&self) -> String {
        self.inner().transport.name()
    }

    /// The error that put the group beyond use, where one did.
    pub fn failure(&self) -> Option<&CommError> {
        self.inner().failed.get()
    }

    /// Makes a group of some of this group's ranks, in the order given, as [`World::group`](super::World::group) does.
    /// It has this group's timeout and term.
    pub fn new_group(&self, name: impl Into<String>, ranks: impl Into<Vec<usize>>) -> Result<Communicator> {
        self.make(GroupSpec::new(name, ranks).all_generations(&self.inner().spec.generations))
    }

    /// Makes a group of some of this group's ranks, with its timeout.
    pub(crate) fn make(&self, spec: GroupSpec) -> Result<Communicator> {
        if let Some(other) = spec.ranks.iter().find(|rank| !self.ranks().contains(rank)) {
            let detail = format!("rank {other} is not in `{}`, which has {:?}", self.name(), self.ranks());
            return Err(CommError::InvalidGroup { group: spec.name, detail });
        }
        Communicator::join(&self.inner().transport, spec, self.timeout())
    }

    /// Makes the group anew without some of its ranks, with the same name, timeout and term. Every rank that is left
    /// does so, with the same ranks left out: [`CommError::ranks`] says who was the reason of a failure.
    pub fn rebuild(&self, without: &[usize]) -> Result<Communicator> {
        let left: Vec<_> = self.ranks().iter().copied().filter(|rank| !without.contains(rank)).collect();
        self.new_group(self.name(), left)
    }

    pub(crate) fn generations(&self) -> &[Generation] {
        &self.inner().spec.generations
    }

    pub(crate) fn generations_except(&self, generation: &Generation) -> Vec<Generation> {
        self.generations().iter().filter(|it| !it.is(generation)).cloned().collect()
    }

    /// The error of a rank that is not in the group.
    pub(crate) fn not_a_member(&self) -> CommError {
        self.inner().not_a_member()
    }

    /// Puts the group beyond use on every rank, with this reason: for a program that finds out by other means that it
    /// cannot go on. A call that is under way on this rank ends first, as it would have.
    pub fn poison(&self, why: &str) {
        let detail = why.to_owned();
        let group = self.name().to_owned();
        let ranks = vec![self.inner().rank];
        self.inner().fail(CommError::Failed { group, call: "the next call".into(), ranks, detail });
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.shared.inner
    }

    /// The thread that runs what is started, where the system has one to give.
    pub(super) fn call_thread(&self) -> Option<&CallThread> {
        self.shared.call_thread.get_or_init(|| CallThread::begin(self.name()).ok()).as_ref()
    }

    /// Does what is asked for: what all other collectives on host memory are short for. `input` and `output` are empty
    /// where the request has none on this rank.
    #[inline]
    pub fn call<T: Element>(&self, collective: Collective, input: &[T], output: &mut [T]) -> Result<()> {
        self.inner().wait_for_started();
        self.inner().call(collective, input, output)
    }

    /// Waits until everybody is here.
    pub fn barrier(&self) -> Result<()> {
        self.call::<u8>(Collective::Barrier, &[], &mut [])
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What was started ends first: others may be working with it.
        drop(self.call_thread.take());
        let why = if thread::panicking() { LeaveReason::Panicked } else { LeaveReason::Left };
        if let Some(leave_notifier) = &self.inner.leave_notifier {
            leave_notifier.notify(&why);
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(`{}` {:?}, rank {})", self.name(), self.ranks(), self.inner().rank)
    }
}
