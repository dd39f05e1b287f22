//! One rank's connection to a group.

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
use super::host::{self, SharedMemoryMember};
use super::{
    Shared,
    buffers::PIECE_BYTES,
    call::{BARE_TAG, EXCHANGE_TAG, MessageCall, PIECE_TAG, piece},
    header::Header,
    notice::NoticeSender,
    session::{OtherCall, Session, clock},
    small::{HEADED_BYTES, MAX_MEMBERS, SMALL_BYTES, SmallAllReduce, SmallMessages},
};
use crate::{
    backend::{Endpoint, LeaveNotifier, TransportFailure},
    comm::{Call, CollectiveKind, Signature},
};

/// A group, as one of its members has it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) shared: Arc<Shared>,
    pub(super) ranks: Vec<usize>,
    pub(super) me: usize,
    /// The first tag of the group.
    pub(super) tag: c_int,
    pub(super) identity: u64,
}

/// One rank's connection to a group.
#[derive(Debug)]
pub(super) struct MpiEndpoint {
    group: Arc<Group>,
    /// No earlier group of this process had the tags: this rank accepts messages without a header.
    takes_bare: bool,
    /// The signature that a message without a header stands for.
    agreed: Option<[u64; 2]>,
    /// The messages of calls with that signature, once there was one.
    prepared: SmallMessages,
    calls: u64,
    ended: Arc<AtomicU64>,
    /// Number of sends and receives with each member.
    exchanged: HashMap<usize, u64>,
    last: Duration,
    notice_sender: Arc<NoticeSender>,
    #[cfg(target_os = "linux")]
    route: Route,
}

/// The route of a group's calls.
#[cfg(target_os = "linux")]
#[derive(Debug)]
enum Route {
    /// Chosen at the first call.
    Unknown,
    Messages,
    SharedMemory(SharedMemoryMember),
}

impl MpiEndpoint {
    pub(super) fn join(group: Group, is_new_tag: bool) -> Self {
        let (group, ended) = (Arc::new(group), Arc::new(AtomicU64::new(0)));
        let notice_sender =
            NoticeSender { group: group.clone(), ended: ended.clone(), sent: Mutex::default() };
        MpiEndpoint {
            group,
            takes_bare: is_new_tag,
            agreed: None,
            prepared: SmallMessages::default(),
            calls: 0,
            ended,
            exchanged: HashMap::new(),
            last: clock(Duration::ZERO),
            notice_sender: Arc::new(notice_sender),
            #[cfg(target_os = "linux")]
            route: Route::Unknown,
        }
    }

    /// Uses messages, without asking the other members.
    #[cfg(test)]
    #[cfg_attr(not(target_os = "linux"), allow(unused_mut))]
    pub(super) fn by_messages(mut self) -> Self {
        #[cfg(target_os = "linux")]
        {
            self.route = Route::Messages;
        }
        self
    }

    fn run_by_messages(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), TransportFailure> {
        let (signature, packed, group, number) =
            (call.signature, call.signature.pack(), &*self.group, self.calls + 1);
        let (tag, header) =
            (group.tag, Header::new((group.identity, number), self.takes_bare, (packed, call.weight)));
        let other =
            |agreed| OtherCall { tag: tag + BARE_TAG, header: Some(Header { signature: agreed, ..header }) };
        let bytes = signature.block_bytes();
        let is_small = signature.kind == CollectiveKind::AllReduce
            && (1..=SMALL_BYTES).contains(&bytes)
            && (2..=MAX_MEMBERS).contains(&group.ranks.len());
        let is_bare = self.agreed == Some(packed);
        let all_take_bare = if is_small && (is_bare || bytes <= HEADED_BYTES) {
            let other = if is_bare {
                Some(OtherCall { tag: tag + PIECE_TAG, header: None })
            } else {
                self.agreed.map(other)
            };
            let connection = group.shared.connection();
            let prepared = is_bare.then_some(&mut self.prepared);
            let small = SmallAllReduce {
                group,
                call: number,
                connection,
                signature,
                header,
                is_bare,
                other,
                timeout,
            };
            small.run(call.output, prepared, &mut self.last)?
        } else {
            let mut session = Session::new(group, number, header, timeout, Some(&mut self.last));
            session.other = self.agreed.map(other);
            MessageCall::new(&mut session, signature).run(call)?;
            session.all_take_bare
        };
        if is_small && all_take_bare && !is_bare {
            self.release_prepared();
            self.agreed = Some(packed);
        }
        Ok(())
    }

    #[cold]
    fn release_prepared(&mut self) {
        let SmallMessages { sent, received } = std::mem::take(&mut self.prepared);
        if let Some(mut connection) = self.group.shared.live_connection() {
            let all = sent.into_iter().chain(received);
            all.for_each(|message| connection.messenger.release_prepared(message));
        }
    }

    /// Chooses the route, together with the other members.
    #[cfg(target_os = "linux")]
    fn choose_route(&mut self, call: &Call<'_>, timeout: Duration) -> Result<(), TransportFailure> {
        let (number, announced) = (self.calls + 1, (call.signature.pack(), call.weight));
        let header = Header::new((self.group.identity, number), false, announced);
        let mut session = Session::new(&self.group, number, header, timeout, None);
        let member = host::connect(&mut session, &self.notice_sender)?;
        drop(session);
        self.route = member.map_or(Route::Messages, Route::SharedMemory);
        Ok(())
    }

    fn take_part(&mut self, call: &mut Call<'_>, mut timeout: Duration) -> Result<(), TransportFailure> {
        #[cfg(target_os = "linux")]
        {
            if matches!(self.route, Route::Unknown) && self.group.ranks.len() > 1 {
                let start = Instant::now();
                self.choose_route(call, timeout)?;
                timeout = timeout.saturating_sub(start.elapsed());
            }
            if let Route::SharedMemory(member) = &mut self.route {
                return member.run(&self.group.shared, call, timeout);
            }
        }
        self.run_by_messages(call, timeout)
    }
}

impl Drop for MpiEndpoint {
    fn drop(&mut self) {
        self.release_prepared();
        let Group { shared, ranks, tag, identity, .. } = &*self.group;
        if let Some(mut connection) = shared.live_connection() {
            connection.notices.forget(*identity, ranks.len() - 1);
            // Groups in shared memory do not poll MPI otherwise.
            let _ = connection.receive_notices();
        }
        // Messages that a failed group left behind are recognized by its identity.
        shared.groups.lock().unwrap_or_else(PoisonError::into_inner).tags.insert(*tag, false);
    }
}

impl Endpoint for MpiEndpoint {
    fn run(&mut self, call: &mut Call<'_>, timeout: Duration) -> Result<(), TransportFailure> {
        let done = self.take_part(call, timeout);
        self.calls += 1;
        if matches!(done, Ok(()) | Err(TransportFailure::ZeroWeights)) {
            // Only this rank reads it.
            self.ended.store(self.calls, Relaxed);
        }
        done
    }

    fn exchange(
        &mut self,
        call: &mut Call<'_>,
        peer: usize,
        timeout: Duration,
    ) -> Result<(), TransportFailure> {
        let count = self.exchanged.entry(peer).or_default();
        *count += 1;
        let sends = call.signature.kind == CollectiveKind::Send;
        let mut signature = call.signature;
        let (group, number) = (&*self.group, *count);
        let header = Header::new((group.identity, number), false, (signature.pack(), 1.0));
        // Notices have the number of a call of all members; a member that has sent one takes part in no exchange
        // either.
        let mut session = Session::new(group, number, header, timeout, None);
        session.any_notice = true;
        let tag = group.tag + EXCHANGE_TAG;
        let mut run = || {
            let message = session.start_recv(peer, tag)?;
            let total = if sends { call.input.len() } else { call.output.len() };
            let first = ..total.min(PIECE_BYTES);
            session.send(peer, tag, if sends { &call.input[first] } else { &[] })?;
            session.wait(message, peer, |_| vec![peer])?;
            let found = session.header_of(message);
            signature.kind = if sends { CollectiveKind::Receive } else { CollectiveKind::Send };
            if found.signature != signature.pack() || found.call != session.header.call {
                let mut called = vec![None; group.ranks.len()];
                called[group.me] = Some(call.signature);
                called[peer] = Signature::unpack(found.signature);
                return Err(TransportFailure::Mismatch(called));
            }
            if !sends {
                call.output[first].copy_from_slice(&session.data_of(message)[first]);
            }
            session.release(message);
            for range in (1..total.div_ceil(PIECE_BYTES)).map(|index| piece(total, PIECE_BYTES, index)) {
                if sends {
                    session.send(peer, tag, &call.input[range])?;
                } else {
                    let message = session.start_recv(peer, tag)?;
                    session.wait(message, peer, |_| vec![peer])?;
                    let len = range.len();
                    call.output[range].copy_from_slice(&session.data_of(message)[..len]);
                    session.release(message);
                }
            }
            session.finish()
        };
        run()
    }

    fn leave_notifier(&self) -> Arc<dyn LeaveNotifier> {
        self.notice_sender.clone()
    }
}
