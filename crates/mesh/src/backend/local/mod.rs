//! Ranks that are threads of one process, and meet in shared memory.
//!
//! What is small is copied to memory of the meeting's own, and every member works out its result from the copies: one
//! step. What is large is lent: every member does its share of the work directly in the others' memory, so that each
//! vector is read once and written once; two steps. `standing` has the protocol and says why lent memory is safe whatever
//! goes wrong; `attend` does the work. Nobody takes a lock, except to go to sleep after waiting for long.

mod attend;
pub(crate) mod meeting;
mod slots;
pub(crate) mod standing;
#[cfg(test)]
mod test;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use attend::{Attendance, Outcome};
use meeting::{Meeting, Stopped};
use standing::{Closed, Standings};

use super::{Endpoint, Failure, Farewell, Parting, Transport, wait};
use crate::comm::{Call, Collective, Signature};

/// A world of threads: one place each.
pub(crate) fn world(size: usize) -> Vec<Arc<dyn Transport>> {
    let world =
        Arc::new(World { size, state: Mutex::new(State { gone: vec![None; size], ..State::default() }) });
    (0..size).map(|rank| Arc::new(Place { world: world.clone(), rank }) as Arc<dyn Transport>).collect()
}

#[derive(Debug)]
struct World {
    size: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Groups that some have joined and some have not, by who they are.
    open: HashMap<Key, (Arc<Channel>, Vec<bool>)>,
    /// How often each rank has joined groups of this name and these ranks.
    joined: HashMap<(usize, String, Vec<usize>), u64>,
    /// Ranks that join no further group.
    gone: Vec<Option<Closed>>,
}

/// A group: its name, its ranks, and the how-manieth of that name and those ranks it is.
type Key = (String, Vec<usize>, u64);

/// What the members of a group share.
#[derive(Debug)]
struct Channel {
    meeting: Arc<Meeting>,
    /// Meetings of two, by sender and receiver.
    pairs: Mutex<HashMap<(usize, usize), Arc<Meeting>>>,
    /// What members that failed said, and whom they blame.
    said: Mutex<HashMap<usize, (String, Vec<usize>)>>,
}

#[derive(Debug)]
struct Place {
    world: Arc<World>,
    rank: usize,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

// Nothing under these locks is left half-done: entries are inserted and removed whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transport for Place {
    fn name(&self) -> String {
        "local".into()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.world.size
    }

    fn join(&self, name: &str, ranks: &[usize], member: usize) -> Result<Box<dyn Endpoint>, Failure> {
        let mut state = self.world.lock();
        let State { open, joined, gone } = &mut *state;
        let count = joined.entry((self.rank, name.to_owned(), ranks.to_vec())).or_default();
        *count += 1;
        let key = (name.to_owned(), ranks.to_vec(), *count);
        let (channel, here) = open.entry(key.clone()).or_insert_with(|| {
            let channel = Channel {
                meeting: Arc::new(Meeting::new(ranks.len())),
                pairs: Mutex::default(),
                said: Mutex::default(),
            };
            for (member, rank) in ranks.iter().enumerate() {
                if let Some(why) = gone[*rank] {
                    channel.meeting.close(member, why);
                }
            }
            (Arc::new(channel), vec![false; ranks.len()])
        });
        here[member] = true;
        let channel = channel.clone();
        if here.iter().zip(ranks).all(|(here, rank)| *here || gone[*rank].is_some()) {
            open.remove(&key);
        }
        Ok(Box::new(Member {
            attendance: Attendance::new(channel.meeting.clone(), member),
            pairs: HashMap::new(),
            channel,
            me: member,
        }))
    }

    fn leave(&self, panicked: bool) {
        let why = if panicked { Closed::Panicked } else { Closed::Left };
        let mut state = self.world.lock();
        let State { open, gone, .. } = &mut *state;
        gone[self.rank] = Some(why);
        open.retain(|(_, ranks, _), (channel, here)| {
            if let Some(member) = ranks.iter().position(|rank| *rank == self.rank)
                && !here[member]
            {
                channel.meeting.close(member, why);
            }
            here.iter().zip(ranks).any(|(here, rank)| !here && gone[*rank].is_none())
        });
    }
}

/// One rank's place in a group.
#[derive(Debug)]
struct Member {
    channel: Arc<Channel>,
    me: usize,
    attendance: Attendance,
    /// By sender and receiver, of which this member is one.
    pairs: HashMap<(usize, usize), Attendance>,
}

impl Member {
    fn failure(&self, outcome: Outcome) -> Failure {
        match outcome {
            Outcome::Disagree(called) => Failure::Disagree(called),
            Outcome::NoWeight => Failure::NoWeight,
            Outcome::Stopped(Stopped::TimedOut(missing)) => Failure::TimedOut(missing),
            Outcome::Stopped(Stopped::Never(member, Closed::TimedOut)) => Failure::TimedOut(vec![member]),
            Outcome::Stopped(Stopped::Never(member, why)) => {
                Failure::Parted(member, self.parting(member, why))
            }
            Outcome::Closed(Closed::TimedOut) => Failure::TooLate,
            Outcome::Closed(why) => Failure::Parted(self.me, self.parting(self.me, why)),
        }
    }

    fn parting(&self, member: usize, why: Closed) -> Parting {
        match why {
            Closed::Left => Parting::Left,
            Closed::Panicked => Parting::Panicked,
            Closed::TimedOut | Closed::Failed => {
                let said = lock(&self.channel.said).get(&member).cloned();
                let (why, blame) = said.unwrap_or_default();
                Parting::Failed { why, blame }
            }
        }
    }
}

impl Endpoint for Member {
    fn run(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), Failure> {
        self.attendance.run(call, timeout, &|| None).map_err(|outcome| self.failure(outcome))
    }

    fn exchange(&mut self, call: &mut Call<'_>, peer: usize, timeout: Duration) -> Result<(), Failure> {
        let sends = call.signature.collective == Collective::Send;
        // Of two, the sender is the first; both call the same for the comparison, and the sender is the root.
        let ends = if sends { (self.me, peer) } else { (peer, self.me) };
        let (me, other) = if sends { (0, 1) } else { (1, 0) };
        let signature = Signature { collective: Collective::Send, root: Some(0), ..call.signature };
        let mut call = Call { signature, output: &mut *call.output, ..*call };
        let channel = &self.channel;
        let pair = self.pairs.entry(ends).or_insert_with(|| {
            let mut pairs = lock(&channel.pairs);
            Attendance::new(pairs.entry(ends).or_insert_with(|| Arc::new(Meeting::new(2))).clone(), me)
        });
        let hopeless = || channel.meeting.slots.closed(peer).map(|why| (other, why));
        let in_group = |member: usize| if member == 0 { ends.0 } else { ends.1 };
        pair.run(&mut call, timeout, &hopeless).map_err(|outcome| match outcome {
            Outcome::Disagree(called) => {
                let mut all = vec![None; self.channel.meeting.slots.len()];
                for (member, mut signature) in called.into_iter().enumerate() {
                    if let Some(signature) = &mut signature {
                        signature.root = None;
                        if member == 1 {
                            signature.collective = Collective::Receive;
                        }
                    }
                    all[in_group(member)] = signature;
                }
                Failure::Disagree(all)
            }
            Outcome::Stopped(Stopped::TimedOut(missing)) => {
                Failure::TimedOut(missing.into_iter().map(in_group).collect())
            }
            Outcome::Stopped(Stopped::Never(member, why)) => {
                self.failure(Outcome::Stopped(Stopped::Never(in_group(member), why)))
            }
            other => self.failure(other),
        })
    }

    fn farewell(&self) -> Arc<dyn Farewell> {
        Arc::new(Leaving { channel: self.channel.clone(), me: self.me })
    }
}

#[derive(Debug)]
struct Leaving {
    channel: Arc<Channel>,
    me: usize,
}

impl Farewell for Leaving {
    fn say(&self, why: &Parting) {
        let why = match why {
            Parting::Left => Closed::Left,
            Parting::Panicked => Closed::Panicked,
            Parting::Failed { why, blame } => {
                // Before the slot is closed, so that whoever sees that finds it.
                lock(&self.channel.said).entry(self.me).or_insert_with(|| (why.clone(), blame.clone()));
                Closed::Failed
            }
        };
        self.channel.meeting.close(self.me, why);
    }
}
