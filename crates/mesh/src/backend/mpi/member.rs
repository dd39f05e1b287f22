//! One rank's place in a group.

use std::{
    collections::HashMap,
    ffi::c_int,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

#[cfg(target_os = "linux")]
use super::host::{self, Attendance};
use super::{
    Shared,
    part::{EXCHANGES, Part, pieces},
    session::{Session, clock},
    wire::PIECE_BYTES,
    word::Speaker,
};
use crate::{
    backend::{Endpoint, Failure, Farewell},
    comm::{Call, Collective, Signature},
};

/// One rank's place in a group.
#[derive(Debug)]
pub(super) struct Member {
    shared: Arc<Shared>,
    ranks: Vec<usize>,
    me: usize,
    tag: c_int,
    identity: u64,
    /// How many calls there were.
    calls: u64,
    ended: Arc<AtomicU64>,
    /// How often it has exchanged with each member.
    exchanged: HashMap<usize, u64>,
    /// When the last call began.
    last: Duration,
    speaker: Arc<Speaker>,
    #[cfg(target_os = "linux")]
    way: Way,
}

/// How a group's calls go.
#[cfg(target_os = "linux")]
#[derive(Debug)]
enum Way {
    /// That is found out at the first.
    Unknown,
    Messages,
    Memory(Attendance),
}

impl Member {
    pub(super) fn join(shared: Arc<Shared>, ranks: Vec<usize>, me: usize, tag: c_int, identity: u64) -> Self {
        let ended = Arc::new(AtomicU64::new(0));
        let speaker = Speaker {
            shared: shared.clone(),
            ranks: ranks.clone(),
            me,
            identity,
            ended: ended.clone(),
            spoken: Mutex::default(),
        };
        Member {
            shared,
            ranks,
            me,
            tag,
            identity,
            calls: 0,
            ended,
            exchanged: HashMap::new(),
            last: clock(Duration::ZERO),
            speaker: Arc::new(speaker),
            #[cfg(target_os = "linux")]
            way: Way::Unknown,
        }
    }

    /// Takes part in a call by messages.
    fn run_by_messages(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), Failure> {
        let (which, says) = ((self.identity, self.calls + 1), (call.signature.pack(), call.weight));
        let last = Some(&mut self.last);
        let mut session = Session::new(&self.shared, &self.ranks, which, says, timeout, last);
        Part::new(&mut session, call.signature, self.me, self.tag).run(call)
    }

    /// Finds out how the group's calls go, together with the other members.
    #[cfg(target_os = "linux")]
    fn find_way(&mut self, call: &Call<'_>, timeout: Duration) -> Result<(), Failure> {
        let (which, says) = ((self.identity, self.calls + 1), (call.signature.pack(), call.weight));
        let mut session = Session::new(&self.shared, &self.ranks, which, says, timeout, None);
        let attendance = host::connect(&mut session, self.me, self.tag, &self.speaker)?;
        drop(session);
        self.way = attendance.map_or(Way::Messages, Way::Memory);
        Ok(())
    }

    /// Takes part in a call.
    fn take_part(&mut self, call: &mut Call<'_>, mut timeout: Duration) -> Result<(), Failure> {
        #[cfg(target_os = "linux")]
        {
            if matches!(self.way, Way::Unknown) && self.ranks.len() > 1 {
                let start = Instant::now();
                self.find_way(call, timeout)?;
                timeout = timeout.saturating_sub(start.elapsed());
            }
            if let Way::Memory(attendance) = &mut self.way {
                return attendance.run(&self.shared, call, timeout);
            }
        }
        self.run_by_messages(call, timeout)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut line = self.shared.line();
        line.ear.forget(self.identity, self.ranks.len() - 1);
        // Groups that meet in memory do not ask MPI for what has come.
        let _ = line.listen();
        drop(line);
        // What is left of a failed group's messages is told from another group's by its identity.
        self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner).tags.remove(&self.tag);
    }
}

impl Endpoint for Member {
    fn run(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), Failure> {
        let done = self.take_part(call, timeout);
        self.calls += 1;
        // Read by this rank alone.
        let end = || self.ended.store(self.calls, Relaxed);
        match done {
            Ok(()) => {
                end();
                Ok(())
            }
            Err(failure) => {
                matches!(failure, Failure::NoWeight).then(end);
                Err(failure)
            }
        }
    }

    fn exchange(&mut self, call: &mut Call<'_>, peer: usize, timeout: Duration) -> Result<(), Failure> {
        let count = self.exchanged.entry(peer).or_default();
        *count += 1;
        let sends = call.signature.collective == Collective::Send;
        let mut signature = call.signature;
        let (which, says) = ((self.identity, *count), (signature.pack(), 1.0));
        // Words are numbered by calls of all; whoever has said one takes no part in exchanges either.
        let mut session = Session::new(&self.shared, &self.ranks, which, says, timeout, None);
        session.any_word = true;
        let tag = self.tag + EXCHANGES;
        let mut run = || {
            let opening = session.expect(peer, tag)?;
            let total = if sends { call.input.len() } else { call.output.len() };
            let first = ..total.min(PIECE_BYTES);
            session.send(peer, tag, if sends { &call.input[first] } else { &[] })?;
            session.wait(opening, peer, |_| vec![peer])?;
            let found = session.header_of(opening);
            signature.collective = if sends { Collective::Receive } else { Collective::Send };
            if found.signature != signature.pack() || found.call != session.header.call {
                let mut called = vec![None; self.ranks.len()];
                called[self.me] = Some(call.signature);
                called[peer] = Signature::unpack(found.signature);
                return Err(Failure::Disagree(called));
            }
            if !sends {
                call.output[first].copy_from_slice(&session.data_of(opening)[first]);
            }
            session.release(opening);
            for range in pieces(total).skip(1) {
                if sends {
                    session.send(peer, tag, &call.input[range])?;
                } else {
                    let ticket = session.expect(peer, tag)?;
                    session.wait(ticket, peer, |_| vec![peer])?;
                    let len = range.len();
                    call.output[range].copy_from_slice(&session.data_of(ticket)[..len]);
                    session.release(ticket);
                }
            }
            session.finish()
        };
        run()
    }

    fn farewell(&self) -> Arc<dyn Farewell> {
        self.speaker.clone()
    }
}
