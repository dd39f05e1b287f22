//! Communicators: what a rank calls collectives on.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, OnceLock, atomic::AtomicUsize},
    thread,
    time::Duration,
};

use super::{
    call_lock::CallLock,
    collective::Collective,
    element::Element,
    error::{CommError, Result},
    generation::Generation,
    group_spec::GroupSpec,
    inner::Inner,
    pending::CallThread,
};
use crate::backend::{LeaveReason, Transport};

/// One rank's communicator of a group of ranks. It has the collectives.
///
/// Every member calls the same collectives in the same order; a call returns when all members have joined it. Roots and
/// peers are group ranks, from 0; errors name world ranks. Calls of one rank on one communicator run one at a time,
/// after the calls that it [started](Communicator::start_all_reduce) earlier. Different groups are independent, even if
/// they share ranks.
///
/// Clones share one endpoint. Dropping the last clone notifies the other members that this rank has left: their calls
/// then fail at once.
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
}

/// The state that all clones share.
struct Shared {
    inner: Arc<Inner>,
    /// Runs started calls. Its calls hold `Inner` and never `Shared`, whose drop ends it.
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
                    detail: why.to_string(),
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
            endpoint: endpoint.map(CallLock::new),
            spec,
            failed: OnceLock::new(),
            started: AtomicUsize::new(0),
            ending: Mutex::new(()),
            ended: Condvar::new(),
        });
        inner.spec.generations.iter().for_each(|generation| generation.watch(&inner));
        // Checked after registering, so that no end of a generation is missed: other ranks may already wait for this
        // one.
        inner.leave_if_unusable();
        inner.stale().map_or(
            Ok(Communicator { shared: Arc::new(Shared { inner, call_thread: OnceLock::new() }) }),
            Err,
        )
    }

    /// Returns the group's name.
    pub fn name(&self) -> &str {
        &self.inner().name
    }

    /// Returns the members' world ranks, in the order of their group ranks.
    pub fn ranks(&self) -> &[usize] {
        &self.inner().spec.ranks
    }

    /// Returns the number of members.
    pub fn size(&self) -> usize {
        self.ranks().len()
    }

    /// Returns this rank's group rank, or `None` if it is not a member.
    pub fn rank(&self) -> Option<usize> {
        self.inner().member
    }

    /// Returns how long a call waits for the other ranks.
    pub fn timeout(&self) -> Duration {
        self.inner().timeout
    }

    /// Returns the back end: `local`, or `mpi` with the library's name and version.
    pub fn backend(&self) -> String {
        self.inner().transport.name()
    }

    /// Returns the error that poisoned the group, if any.
    pub fn failure(&self) -> Option<&CommError> {
        self.inner().failed.get()
    }

    /// Creates a group of some of this group's ranks, in the given order, as
    /// [`World::new_group`](super::World::new_group) does. It inherits this group's timeout and generations.
    pub fn new_group(&self, name: impl Into<String>, ranks: impl Into<Vec<usize>>) -> Result<Communicator> {
        self.make(GroupSpec::new(name, ranks).all_generations(&self.inner().spec.generations))
    }

    /// Creates a group of some of this group's ranks, with this group's timeout.
    pub(crate) fn make(&self, spec: GroupSpec) -> Result<Communicator> {
        if let Some(other) = spec.ranks.iter().find(|rank| !self.ranks().contains(rank)) {
            let detail = format!("rank {other} is not in `{}`, which has {:?}", self.name(), self.ranks());
            return Err(CommError::InvalidGroup { group: spec.name, detail });
        }
        Communicator::join(&self.inner().transport, spec, self.timeout())
    }

    /// Creates the group again without some of its ranks, with the same name, timeout and generations. Every remaining
    /// rank calls this with the same ranks left out: [`CommError::ranks`] has the ranks that caused a failure.
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

    pub(crate) fn not_a_member(&self) -> CommError {
        self.inner().not_a_member()
    }

    /// Poisons the group on every rank, for example because the program cannot continue. A call in flight on this rank
    /// ends first, with its own result.
    pub fn poison(&self, why: &str) {
        let detail = why.to_owned();
        let group = self.name().to_owned();
        let ranks = vec![self.inner().rank];
        self.inner().fail(CommError::Failed { group, call: "the next call".into(), ranks, detail });
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.shared.inner
    }

    pub(super) fn call_thread(&self) -> Option<&CallThread> {
        self.shared.call_thread.get_or_init(|| CallThread::begin(self.name()).ok()).as_ref()
    }

    /// Runs a collective on host memory; the methods named after collectives are short for it. `input` and `output` are
    /// empty if the collective has none on this rank.
    #[inline]
    pub fn call<T: Element>(&self, collective: Collective, input: &[T], output: &mut [T]) -> Result<()> {
        self.inner().wait_for_started();
        self.inner().call(collective, input, output)
    }

    /// Waits until all members have called this.
    pub fn barrier(&self) -> Result<()> {
        self.call::<u8>(Collective::Barrier, &[], &mut [])
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let why = if thread::panicking() { LeaveReason::Panicked } else { LeaveReason::Left };
        let leave = NotifyOnDrop { inner: self.inner.clone(), why };
        // Started calls end first: other ranks may depend on them.
        if let Some(call_thread) = self.call_thread.take().flatten() {
            call_thread.end_with(Box::new(move || drop(leave)));
        }
    }
}

/// Notifies the other ranks that this rank leaves when it is dropped, also by a panic.
struct NotifyOnDrop {
    inner: Arc<Inner>,
    why: LeaveReason,
}

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        if let Some(leave_notifier) = &self.inner.leave_notifier {
            leave_notifier.notify(&self.why);
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(`{}` {:?}, rank {})", self.name(), self.ranks(), self.inner().rank)
    }
}
