//! One rank's place in a group.

use std::{
    collections::HashMap,
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use super::{
    Shared,
    header::Header,
    part::{EXCHANGES, Part, first, first_mut, pieces},
    session::Session,
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
            said: AtomicBool::new(false),
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
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.line().ear.forget(self.identity);
    }
}

impl Endpoint for Member {
    fn run(&mut self, call: Call<'_>, timeout: Duration) -> Result<(), Failure> {
        self.call += 1;
        let start = Instant::now();
        let pause = start - std::mem::replace(&mut self.last, start);
        let header = Header {
            identity: self.identity,
            call: self.call,
            signature: call.signature.pack(),
            weight: call.weight,
        };
        let mut session = Session::new(&self.shared, &self.ranks, header, start, timeout);
        // The others may have given up meanwhile. Then what they sent before is here, and would look like success.
        if pause > timeout / 2 {
            session.listen()?;
            if let Some(failure) = session.parted() {
                return Err(failure);
            }
        }
        let mut part = Part::new(session, call.signature, self.me, self.tag);
        let done = part.run(call);
        if done.is_ok() || matches!(done, Err(Failure::NoWeight)) {
            drop(part);
            self.ended.store(self.call, SeqCst);
        } else {
            self.shared.failed.store(true, SeqCst);
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
        let done = (|| {
            let opening = session.expect(peer, tag)?;
            session.send(peer, tag, if sends { first(call.input) } else { &[] })?;
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
                let into = first_mut(call.output);
                let len = into.len();
                into.copy_from_slice(&session.data_of(opening)[..len]);
            }
            session.release(opening);
            let total = if sends { call.input.len() } else { call.output.len() };
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
        })();
        if done.is_err() {
            self.shared.failed.store(true, SeqCst);
        }
        done
    }

    fn farewell(&self) -> Arc<dyn Farewell> {
        self.speaker.clone()
    }
}
