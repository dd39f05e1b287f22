//! A simulated network: the other members, and the library that connects this rank with them.

use std::{
    collections::VecDeque,
    ffi::c_int,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    super::super::messenger::{ErrorCode, MessageLibrary, Request, RequestKind},
    Message, Random,
};
use crate::backend::TransportFailure;

/// Another member, as far as this rank sees it.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Its messages to this rank, by call.
    pub(super) messages: Vec<Vec<Message>>,
    /// Which call it makes, and how many messages of it are sent.
    pub(super) call: usize,
    pub(super) sent: usize,
    pub(super) in_flight: VecDeque<Message>,
    /// Messages that no receive has matched.
    pub(super) arrived: VecDeque<Message>,
    /// The parts of calls that this rank has received, in order.
    pub(super) received: Vec<(usize, usize)>,
    /// What this rank must send, and how much of it has come.
    pub(super) expected: Vec<Message>,
    pub(super) heard: usize,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Pending {
    buffer: usize,
    capacity: usize,
    kind: PendingKind,
    is_done: bool,
}

#[derive(Debug)]
pub(super) enum PendingKind {
    Send { to: usize, tag: c_int, bytes: Vec<u8>, delay: usize },
    Receive { from: Option<usize>, tag: c_int },
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) random: Random,
    pub(super) me: usize,
    pub(super) peers: Vec<Peer>,
    /// By request, which are numbered from 1.
    pub(super) pending: Vec<Option<Pending>>,
    pub(super) prepared: Vec<Prepared>,
    /// Nothing arrives for this many polls.
    pub(super) stalled: usize,
    /// The first thing that must never happen, and did.
    pub(super) wrong: Option<String>,
}

impl Network {
    fn add(&mut self, buffer: usize, capacity: usize, kind: PendingKind) -> Request {
        let range = |it: &Pending| -> Range<usize> { it.buffer..it.buffer + it.capacity };
        let added = Pending { buffer, capacity, kind, is_done: false };
        let overlaps =
            |it: &Pending| range(it).start < range(&added).end && range(&added).start < range(it).end;
        if self.pending.iter().flatten().any(overlaps) {
            self.wrong.get_or_insert("a buffer is used by two requests".into());
        }
        self.pending.push(Some(added));
        self.pending.len()
    }

    /// Makes a little random progress.
    pub(super) fn progress(&mut self) {
        // Messages to one member are sent in order.
        let mut delayed = Vec::new();
        for request in 0..self.pending.len() {
            let Some(Pending { buffer, is_done: is_done @ false, kind, .. }) = &mut self.pending[request]
            else {
                continue;
            };
            let PendingKind::Send { to, tag, bytes, delay } = kind else { continue };
            if *delay > 0 || delayed.contains(to) {
                *delay = delay.saturating_sub(1);
                delayed.push(*to);
                continue;
            }
            *is_done = true;
            // SAFETY: the buffer had so many bytes when it was sent, and is not freed.
            let now = unsafe { std::slice::from_raw_parts(*buffer as *const u8, bytes.len()) };
            if now != bytes {
                self.wrong.get_or_insert("a buffer was written before its message was sent".into());
            }
            let peer = &mut self.peers[*to];
            let expected = peer.expected.get(peer.heard);
            if expected.is_none_or(|it| (it.tag, &it.bytes) != (*tag, bytes)) {
                let part = expected.and_then(|it| it.part);
                self.wrong.get_or_insert_with(|| {
                    format!("{} bytes with tag {tag} to member {to}, which expects {part:?}", bytes.len())
                });
            }
            peer.heard += 1;
        }
        if self.stalled > 0 {
            self.stalled -= 1;
            return;
        }
        let at = self.random.below(self.peers.len());
        if at == self.me {
            return;
        }
        if self.random.one_in(3) {
            return self.deliver(at);
        }
        // A member starts the next call once it has received the messages of all others.
        let all_here =
            self.peers.iter().enumerate().all(|(it, peer)| it == self.me || peer.call >= self.peers[at].call);
        let peer = &mut self.peers[at];
        let heard_of =
            |call| peer.expected.iter().filter(|it| it.part.is_some_and(|(of, _)| of <= call)).count();
        match peer.messages.get(peer.call) {
            Some(messages) if peer.sent < messages.len() => {
                peer.in_flight.push_back(messages[peer.sent].clone());
                peer.sent += 1;
            }
            Some(_) if all_here && peer.heard >= heard_of(peer.call) => {
                (peer.call, peer.sent) = (peer.call + 1, 0)
            }
            _ => {}
        }
    }

    fn deliver(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        let Some(message) = peer.in_flight.pop_front() else { return };
        peer.arrived.push_back(message);
        self.match_arrived(at);
    }

    /// Matches messages that have arrived with receives, both in order.
    fn match_arrived(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        for pending in self.pending.iter_mut().flatten().filter(|it| !it.is_done) {
            let PendingKind::Receive { from, tag } = pending.kind else { continue };
            if from.is_some_and(|from| from != at) {
                continue;
            }
            let Some(index) = peer.arrived.iter().position(|it| it.tag == tag) else { continue };
            let Message { bytes, part, .. } = peer.arrived.remove(index).unwrap();
            if bytes.len() > pending.capacity {
                self.wrong.get_or_insert("a message does not fit".into());
                continue;
            }
            // SAFETY: the buffer has `capacity` bytes, and is not accessed until its request has ended.
            unsafe { (pending.buffer as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            pending.is_done = true;
            peer.received.extend(part);
        }
    }
}

/// A persistent request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared {
    pub(super) buffer: usize,
    pub(super) bytes: usize,
    pub(super) peer: usize,
    pub(super) tag: c_int,
    pub(super) sends: bool,
    /// The request of its message in flight.
    pub(super) active: Option<Request>,
    pub(super) is_freed: bool,
}

/// Persistent requests have numbers from this on.
const PREPARED: Request = 1 << 40;

pub(super) struct Simulated(pub(super) Arc<Mutex<Network>>);

impl Simulated {
    fn network(&self) -> MutexGuard<'_, Network> {
        // A failed assertion must not become another panic while its thread unwinds.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    fn send(&mut self, buffer: usize, bytes: usize, to: usize, tag: c_int) -> Request {
        // SAFETY: the caller of the library promises that the buffer has `bytes`.
        let sent = unsafe { std::slice::from_raw_parts(buffer as *const u8, bytes) }.to_vec();
        let delay = if self.random.one_in(8) { self.random.below(100) } else { 0 };
        self.add(buffer, bytes, PendingKind::Send { to, tag, bytes: sent, delay })
    }

    fn receive(&mut self, buffer: usize, bytes: usize, from: Option<usize>, tag: c_int) -> Request {
        let request = self.add(buffer, bytes, PendingKind::Receive { from, tag });
        (0..self.peers.len()).for_each(|at| self.match_arrived(at));
        request
    }

    fn prepare(&mut self, buffer: usize, bytes: usize, peer: usize, tag: c_int, sends: bool) -> Request {
        self.prepared.push(Prepared { buffer, bytes, peer, tag, sends, active: None, is_freed: false });
        PREPARED + self.prepared.len() - 1
    }

    /// Returns whether the message of a request has ended.
    fn test(&mut self, request: Request) -> bool {
        self.pending[request - 1].take_if(|it| it.is_done).is_some()
    }
}

impl MessageLibrary for Simulated {
    unsafe fn request(
        &self,
        kind: RequestKind,
        buffer: *mut u8,
        bytes: usize,
        peer: Option<usize>,
        tag: c_int,
    ) -> Result<Request, ErrorCode> {
        let (mut network, buffer) = (self.network(), buffer as usize);
        Ok(match (kind, peer) {
            (RequestKind::Receive, from) => network.receive(buffer, bytes, from, tag),
            (RequestKind::Send, Some(to)) => network.send(buffer, bytes, to, tag),
            (kind, Some(peer)) => {
                network.prepare(buffer, bytes, peer, tag, kind == RequestKind::PersistentSend)
            }
            (_, None) => panic!("{kind:?} without a rank"),
        })
    }
    unsafe fn start(&self, request: &mut Request) -> Result<(), ErrorCode> {
        let mut network = self.network();
        let Prepared { buffer, bytes, peer, tag, sends, active, is_freed } =
            network.prepared[*request - PREPARED];
        if active.is_some() || is_freed {
            network.wrong.get_or_insert("a request that is active or freed is started".into());
        }
        let active = match sends {
            true => network.send(buffer, bytes, peer, tag),
            false => network.receive(buffer, bytes, Some(peer), tag),
        };
        network.prepared[*request - PREPARED].active = Some(active);
        Ok(())
    }
    unsafe fn free(&self, request: Request) {
        let mut network = self.network();
        let Prepared { active, is_freed, .. } = network.prepared[request - PREPARED];
        if active.is_some() || is_freed {
            network.wrong.get_or_insert("a request that is active or freed is freed".into());
        }
        network.prepared[request - PREPARED].is_freed = true;
    }
    fn has_arrived(&self, from: usize, tag: c_int) -> Result<bool, ErrorCode> {
        let mut network = self.network();
        network.progress();
        Ok(network.peers[from].arrived.iter().any(|it| it.tag == tag))
    }
    unsafe fn test(&self, request: &mut Request) -> Result<bool, ErrorCode> {
        let mut network = self.network();
        network.progress();
        let Some(index) = request.checked_sub(PREPARED) else {
            let is_done = network.test(*request);
            if is_done {
                *request = 0;
            }
            return Ok(is_done);
        };
        // Stays the same when it has ended.
        let is_done = network.prepared[index].active.is_none_or(|active| network.test(active));
        if is_done {
            network.prepared[index].active = None;
        }
        Ok(is_done)
    }
    unsafe fn cancel(&self, request: Request) {
        let mut network = self.network();
        let index = request.checked_sub(PREPARED);
        let Some(request) = index.map_or(Some(request), |index| network.prepared[index].active) else {
            return;
        };
        if let Some(pending) = &mut network.pending[request - 1] {
            pending.is_done = true;
        }
    }
    fn failure(&self, function: &str, code: ErrorCode) -> TransportFailure {
        let (operation, detail) = (function.into(), format!("{code:?}"));
        TransportFailure::Library { library: "MPI", operation, detail }
    }
    fn finish(&mut self) {}
    fn has_ended(&self) -> bool {
        false
    }
}
