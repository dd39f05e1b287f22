//! The back end for ranks that are threads of one process.
//!
//! Small inputs are copied to the barrier's memory, and every member computes its result from the copies: one step.
//! Large inputs are lent: every member does its share of the work directly in the others' memory, so that each vector
//! is read once and written once: two steps. `arrival` has the protocol and explains why lent memory is safe; `member`
//! does the work. No lock is taken, except to park after a long wait.

pub(crate) mod arrival;
pub(crate) mod barrier;
mod member;
mod slots;
#[cfg(test)]
mod test;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use arrival::{Arrivals, Closed};
use barrier::{SharedBarrier, WaitError};
use evener_device::affinity::unbound;
use member::{CallError, LocalMember};

use super::{Endpoint, LeaveNotifier, LeaveReason, Transport, TransportFailure, wait};
use crate::comm::{Call, CollectiveKind, Signature};

/// Creates a world of threads: one transport per rank.
pub(crate) fn world(size: usize) -> Vec<Arc<dyn Transport>> {
    let world = Arc::new(LocalWorld {
        size,
        groups: Mutex::new(WorldGroups { gone: vec![None; size], ..WorldGroups::default() }),
    });
    (0..size)
        .map(|rank| Arc::new(LocalTransport { world: world.clone(), rank }) as Arc<dyn Transport>)
        .collect()
}

#[derive(Debug)]
struct LocalWorld {
    size: usize,
    groups: Mutex<WorldGroups>,
}

/// The groups of a world.
#[derive(Debug, Default)]
struct WorldGroups {
    /// Groups that some members have joined and some have not.
    open: HashMap<GroupKey, (Arc<Channel>, Vec<bool>)>,
    /// How often each rank has joined groups of this name and these ranks.
    joined: HashMap<(usize, String, Vec<usize>), u64>,
    /// Why a rank joins no further group, if so.
    gone: Vec<Option<Closed>>,
}

/// A group's name, its ranks, and how many groups of that name and those ranks came before, plus one.
type GroupKey = (String, Vec<usize>, u64);

#[derive(Debug)]
struct Channel {
    barrier: Arc<SharedBarrier>,
    pairs: Mutex<HashMap<(usize, usize), Arc<SharedBarrier>>>,
    /// The errors of members that failed, and the ranks that they blame.
    failures: Mutex<HashMap<usize, (String, Vec<usize>)>>,
}

#[derive(Debug)]
struct LocalTransport {
    world: Arc<LocalWorld>,
    rank: usize,
}

impl LocalWorld {
    fn lock(&self) -> MutexGuard<'_, WorldGroups> {
        lock(&self.groups)
    }
}

/// Creates a barrier. The thread that joins first may be bound to one core by Evener, and the other members are not.
fn new_barrier(members: usize) -> Arc<SharedBarrier> {
    let cores = unbound(thread::available_parallelism).map_or(1, usize::from);
    Arc::new(SharedBarrier::new(members, cores))
}

// Ignores poisoning: entries are inserted and removed whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transport for LocalTransport {
    fn name(&self) -> String {
        "local".into()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.world.size
    }

    fn join(
        &self,
        name: &str,
        ranks: &[usize],
        member: usize,
    ) -> Result<Box<dyn Endpoint>, TransportFailure> {
        let mut groups = self.world.lock();
        let WorldGroups { open, joined, gone } = &mut *groups;
        let count = joined.entry((self.rank, name.to_owned(), ranks.to_vec())).or_default();
        *count += 1;
        let key = (name.to_owned(), ranks.to_vec(), *count);
        let (channel, here) = open.entry(key.clone()).or_insert_with(|| {
            let channel = Channel {
                barrier: new_barrier(ranks.len()),
                pairs: Mutex::default(),
                failures: Mutex::default(),
            };
            for (member, rank) in ranks.iter().enumerate() {
                if let Some(why) = gone[*rank] {
                    channel.barrier.close(member, why);
                }
            }
            (Arc::new(channel), vec![false; ranks.len()])
        });
        here[member] = true;
        let channel = channel.clone();
        if here.iter().zip(ranks).all(|(here, rank)| *here || gone[*rank].is_some()) {
            open.remove(&key);
        }
        Ok(Box::new(LocalEndpoint {
            group: LocalMember::new(channel.barrier.clone(), member),
            pairs: HashMap::new(),
            channel,
            me: member,
        }))
    }

    fn leave(&self, panicked: bool) {
        let why = if panicked { Closed::Panicked } else { Closed::Left };
        let mut groups = self.world.lock();
        let WorldGroups { open, gone, .. } = &mut *groups;
        gone[self.rank] = Some(why);
        open.retain(|(_, ranks, _), (channel, here)| {
            if let Some(member) = ranks.iter().position(|rank| *rank == self.rank)
                && !here[member]
            {
                channel.barrier.close(member, why);
            }
            here.iter().zip(ranks).any(|(here, rank)| !here && gone[*rank].is_none())
        });
    }
}

/// One rank's connection to a group.
#[derive(Debug)]
struct LocalEndpoint {
    channel: Arc<Channel>,
    me: usize,
    group: LocalMember,
    /// Barriers of two, by sender and receiver, of which this member is one.
    pairs: HashMap<(usize, usize), LocalMember>,
}

impl LocalEndpoint {
    fn failure(&self, error: CallError) -> TransportFailure {
        match error {
            CallError::Mismatch(called) => TransportFailure::Mismatch(called),
            CallError::ZeroWeights => TransportFailure::ZeroWeights,
            CallError::Wait(WaitError::TimedOut(missing)) => TransportFailure::TimedOut(missing),
            CallError::Wait(WaitError::NeverArrives(member, Closed::TimedOut)) => {
                TransportFailure::TimedOut(vec![member])
            }
            CallError::Wait(WaitError::NeverArrives(member, why)) => {
                TransportFailure::MemberLeft(member, self.reason(member, why))
            }
            CallError::Closed(Closed::TimedOut) => TransportFailure::TooLate,
            CallError::Closed(why) => TransportFailure::MemberLeft(self.me, self.reason(self.me, why)),
        }
    }

    fn reason(&self, member: usize, why: Closed) -> LeaveReason {
        match why {
            Closed::Left => LeaveReason::Left,
            Closed::Panicked => LeaveReason::Panicked,
            Closed::TimedOut | Closed::Failed => {
                let failures = lock(&self.channel.failures).get(&member).cloned();
                let (why, blame) = failures.unwrap_or_default();
                LeaveReason::Failed { why, blame }
            }
        }
    }
}

impl Endpoint for LocalEndpoint {
    fn run(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), TransportFailure> {
        self.group.run(call, timeout, &|| None).map_err(|error| self.failure(error))
    }

    fn exchange(
        &mut self,
        call: &mut Call<'_>,
        peer: usize,
        timeout: Duration,
    ) -> Result<(), TransportFailure> {
        let sends = call.signature.kind == CollectiveKind::Send;
        // The sender is the first of the two and the root; both announce a send, for the comparison.
        let ends = if sends { (self.me, peer) } else { (peer, self.me) };
        let (me, other) = if sends { (0, 1) } else { (1, 0) };
        let signature = Signature { kind: CollectiveKind::Send, root: Some(0), ..call.signature };
        let mut call = Call { signature, output: &mut *call.output, ..*call };
        let channel = &self.channel;
        let pair = self.pairs.entry(ends).or_insert_with(|| {
            let mut pairs = lock(&channel.pairs);
            LocalMember::new(pairs.entry(ends).or_insert_with(|| new_barrier(2)).clone(), me)
        });
        let left_member = || channel.barrier.slots.of(peer).closed().map(|why| (other, why));
        let in_group = |member: usize| if member == 0 { ends.0 } else { ends.1 };
        pair.run(&mut call, timeout, &left_member).map_err(|error| match error {
            CallError::Mismatch(called) => {
                let mut all = vec![None; self.channel.barrier.slots.len()];
                for (member, mut signature) in called.into_iter().enumerate() {
                    if let Some(signature) = &mut signature {
                        signature.root = None;
                        if member == 1 {
                            signature.kind = CollectiveKind::Receive;
                        }
                    }
                    all[in_group(member)] = signature;
                }
                TransportFailure::Mismatch(all)
            }
            CallError::Wait(WaitError::TimedOut(missing)) => {
                TransportFailure::TimedOut(missing.into_iter().map(in_group).collect())
            }
            CallError::Wait(WaitError::NeverArrives(member, why)) => {
                self.failure(CallError::Wait(WaitError::NeverArrives(in_group(member), why)))
            }
            other => self.failure(other),
        })
    }

    fn leave_notifier(&self) -> Arc<dyn LeaveNotifier> {
        Arc::new(LocalLeaveNotifier { channel: self.channel.clone(), me: self.me })
    }
}

#[derive(Debug)]
struct LocalLeaveNotifier {
    channel: Arc<Channel>,
    me: usize,
}

impl LeaveNotifier for LocalLeaveNotifier {
    fn notify(&self, why: &LeaveReason) {
        let why = match why {
            LeaveReason::Left => Closed::Left,
            LeaveReason::Panicked => Closed::Panicked,
            LeaveReason::Failed { why, blame } => {
                // Before the slot is closed, so that members that see it closed find the error.
                lock(&self.channel.failures).entry(self.me).or_insert_with(|| (why.clone(), blame.clone()));
                Closed::Failed
            }
        };
        self.channel.barrier.close(self.me, why);
    }
}
