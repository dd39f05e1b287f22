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
    header::Header,
    part::{EXCHANGES, Part, pieces},
    session::Session,
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
    call: u64,
    ended: Arc<AtomicU64>,
    /// How often it has exchanged with each member.
    exchanged: HashMap<usize, u64>,
    /// When the last call began.
    last: Instant,
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
            call: 0,
            ended,
            exchanged: HashMap::new(),
            last: Instant::now(),
            speaker: Arc::new(speaker),
            #[cfg(target_os = "linux")]
            way: Way::Unknown,
        }
    }

    /// Takes part in a call by messages.
    fn run_by_messages(&mut self, call: Call<'_>, start: Instant, timeout: Duration) -> Result<(), Failure> {
        let pause = start - std::mem::replace(&mut self.last, start);
        let mut session = self.session(&call, start, timeout);
        // The others may have given up meanwhile. Then what they sent before is here, and would look like success.
        if pause > timeout / 2 {
            session.listen()?;
            if let Some(failure) = session.parted() {
                return Err(failure);
            }
        }
        Part::new(&mut session, call.signature, self.me, self.tag).run(call)
    }

    fn session(&self, call: &Call<'_>, start: Instant, timeout: Duration) -> Session<'_> {
        let header = Header {
            identity: self.identity,
            call: self.call,
            signature: call.signature.pack(),
            weight: call.weight,
        };
        Session::new(&self.shared, &self.ranks, header, start, timeout)
    }

    /// Finds out how the group's calls go, together with the other members.
    #[cfg(target_os = "linux")]
    fn find_way(&mut self, call: &Call<'_>, start: Instant, timeout: Duration) -> Result<(), Failure> {
        let mut session = self.session(call, start, timeout);
        let attendance = host::connect(&mut session, self.me, self.tag, &self.speaker)?;
        drop(session);
        self.way = attendance.map_or(Way::Messages, Way::Memory);
        Ok(())
    }

    /// Takes part in a call.
    fn take_part(&mut self, call: Call<'_>, timeout: Duration) -> Result<(), Failure> {
        #[cfg(target_os = "linux")]
        if let Way::Memory(attendance) = &mut self.way {
            return attendance.run(&self.shared, call, timeout);
        }
        let start = Instant::now();
        #[cfg(target_os = "linux")]
        if matches!(self.way, Way::Unknown) && self.ranks.len() > 1 {
            self.find_way(&call, start, timeout)?;
            if let Way::Memory(attendance) = &mut self.way {
                return attendance.run(&self.shared, call, timeout.saturating_sub(start.elapsed()));
            }
        }
        self.run_by_messages(call, start, timeout)
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
    fn run(&mut self, call: Call<'_>, timeout: Duration) -> Result<(), Failure> {
        self.call += 1;
        let done = self.take_part(call, timeout);
        if done.is_ok() || matches!(done, Err(Failure::NoWeight)) {
            // Read by this rank alone.
            self.ended.store(self.call, Relaxed);
        }
        done
    }

    fn exchange(&mut self, call: Call<'_>, peer: usize, timeout: Duration) -> Result<(), Failure> {
        let count = self.exchanged.entry(peer).or_default();
        *count += 1;
        let start = Instant::now();
        let sends = call.signature.collective == Collective::Send;
        let mut signature = call.signature;
        let header =
            Header { identity: self.identity, call: *count, signature: signature.pack(), weight: 1.0 };
        // Words are numbered by calls of all; whoever has said one takes no part in exchanges either.
        let mut session = Session::new(&self.shared, &self.ranks, header, start, timeout);
        session.any_word_counts();
        let tag = self.tag + EXCHANGES;
        let mut run = || {
            let opening = session.expect(peer, tag)?;
            let total = if sends { call.input.len() } else { call.output.len() };
            let first = ..total.min(PIECE_BYTES);
            session.send(peer, tag, if sends { &call.input[first] } else { &[] })?;
            session.wait(opening, peer, |_| vec![peer])?;
            let found = session.header_of(opening);
            signature.collective = if sends { Collective::Receive } else { Collective::Send };
            if found.signature != signature.pack() || found.call != header.call {
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
