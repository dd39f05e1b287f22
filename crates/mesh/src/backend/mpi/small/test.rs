//! Random calls of one rank, against members that are simulated from a seed. What must never happen:
//! - a message is taken for one of another call, of another piece, or of an earlier group with the same tags,
//! - a call has a result before all parts of all members have arrived, or takes more than its own,
//! - a message is lost, or is not what the other members expect,
//! - a buffer is reused or written while MPI may access it, or is never given back,
//! - a call succeeds although a member has called something else, has left, or has died between two of its messages.

mod network;

use std::{
    collections::VecDeque,
    ffi::c_int,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use network::{Network, Peer, Simulated};

use super::{
    super::{
        Connection, MpiTransport, NOTICE_TAG, Shared, TAGS_PER_GROUP,
        buffers::{BufferCache, HEADER_BYTES},
        header::{Header, write_words},
        identity,
        messenger::Messenger,
        notice::NoticeReceiver,
        stores::StoreChoice,
    },
    BARE_TAG, MAX_MEMBERS, PIECE_TAG, SMALL_BYTES,
};
use crate::{
    backend::{Endpoint, LeaveReason, TransportFailure},
    comm::{Call, CollectiveDType, CollectiveKind, ReduceOp, Signature},
};

/// Leaves the tags of one group.
const HIGHEST_TAG: c_int = 3 * TAGS_PER_GROUP - 1;
const TAG: c_int = TAGS_PER_GROUP;
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        it ^ (it >> 31)
    }
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// What one member does instead of its part of the last call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    CallsOther(Signature),
    Leaves,
    /// The member sends only some of its messages.
    Dies,
}

/// What all members call, and what the protocol says about it.
#[derive(Debug)]
struct Script {
    seed: u64,
    identity: u64,
    members: usize,
    me: usize,
    takes_bare: Vec<bool>,
    calls: Vec<Signature>,
    fault: Option<(usize, Fault)>,
}

#[derive(Debug, Clone, PartialEq)]
struct Message {
    tag: c_int,
    bytes: Vec<u8>,
    /// The call and the piece; `None` for a message of an earlier group, and for a notice.
    part: Option<(usize, usize)>,
}

fn all_reduce(count: usize, operation: ReduceOp) -> Signature {
    let kind = CollectiveKind::AllReduce;
    let (element, operation) = (CollectiveDType::U32, Some(operation));
    Signature { kind, element, operation, root: None, count: count as u64, before: None }
}

fn barrier() -> Signature {
    Signature { kind: CollectiveKind::Barrier, operation: None, ..all_reduce(0, ReduceOp::Sum) }
}

impl Script {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let members = random.of(&[2, 2, 2, 3, 3, 4, 8, 9, 10]);
        let me = random.below(members);
        let all_take = !random.one_in(3);
        let takes_bare = (0..members).map(|_| all_take || random.one_in(2)).collect();
        let mut calls = Vec::new();
        while calls.len() < 16 {
            if random.one_in(5) {
                calls.push(barrier());
            }
            let mut count =
                random.of(&[0, 1, 63, 64, 65, 128, 250, 256, 257, 512, 513, 1000, 1023, 1024, 1025]);
            if members == 2 && random.one_in(8) {
                // Longer than an eager message.
                count = random.of(&[9000, 16_384]);
            }
            let signature = all_reduce(count, random.of(&[ReduceOp::Sum, ReduceOp::Max]));
            calls.extend(vec![signature; 1 + random.below(6)]);
        }
        let fault = random.one_in(2).then(|| {
            let member = (me + 1 + random.below(members - 1)) % members;
            // Often the signature that bare messages stand for.
            let other = [
                calls[calls.len() - 2],
                barrier(),
                all_reduce(64, ReduceOp::Sum),
                all_reduce(1024, ReduceOp::Min),
            ];
            let other = random.of(&other);
            match random.below(3) {
                0 if other != calls[calls.len() - 1] => (member, Fault::CallsOther(other)),
                1 => (member, Fault::Leaves),
                _ => (member, Fault::Dies),
            }
        });
        let identity = identity("group", &(0..members).collect::<Vec<_>>(), 1);
        Script { seed, identity, members, me, takes_bare, calls, fault }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.members).filter(move |member| *member != me)
    }

    fn is_small(&self, signature: &Signature) -> bool {
        let bytes = signature.block_bytes();
        signature.kind == CollectiveKind::AllReduce
            && bytes > 0
            && bytes <= SMALL_BYTES
            && self.members <= MAX_MEMBERS
    }

    /// Members send bare messages if all of them accept those and the last small all-reduce had the same signature.
    fn is_bare(&self, call: usize, signature: &Signature) -> bool {
        let last = self.calls[..call].iter().rfind(|it| self.is_small(it));
        self.takes_bare.iter().all(|it| *it) && last == Some(signature) && self.is_small(signature)
    }

    fn value(&self, call: usize, member: usize, index: usize) -> u32 {
        Random(self.seed ^ (call << 40 | member << 32 | index) as u64).next() as u32
    }

    fn input(&self, call: usize, member: usize, signature: &Signature) -> Vec<u8> {
        let values = (0..signature.count as usize).map(|index| self.value(call, member, index));
        values.flat_map(u32::to_le_bytes).collect()
    }

    fn result(&self, call: usize) -> Vec<u8> {
        let Signature { count, operation, .. } = self.calls[call];
        let value = |index| {
            let values = (0..self.members).map(|member| self.value(call, member, index));
            if operation == Some(ReduceOp::Max) {
                values.max().unwrap()
            } else {
                values.fold(0, u32::wrapping_add)
            }
        };
        (0..count as usize).flat_map(|index| value(index).to_le_bytes()).collect()
    }

    fn is_last(&self, call: usize) -> bool {
        call + 1 == self.calls.len()
    }

    /// Returns the messages of a member to every other in a call.
    fn messages(&self, call: usize, member: usize, messenger: &Messenger) -> Vec<Message> {
        let mut signature = self.calls[call];
        if let Some((odd, Fault::CallsOther(other))) = self.fault
            && self.is_last(call)
            && odd == member
        {
            signature = other;
        }
        let (input, is_bare) = (self.input(call, member, &signature), self.is_bare(call, &signature));
        let which = (self.identity, call as u64 + 1);
        let header = Header::new(which, self.takes_bare[member], (signature.pack(), 1.0));
        let piece = match is_bare {
            true => messenger.bare_piece_bytes(input.len()),
            // The longest eager message is 3968 bytes and a header; longer vectors go in halves, and the longest
            // ones whole.
            false if input.len() <= 3968 => 3968,
            false if input.len() > 32 << 10 => input.len(),
            false => input.len().div_ceil(2).next_multiple_of(64),
        };
        let mut pieces: Vec<&[u8]> = input.chunks(piece).collect();
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        let message = |(index, piece): (usize, &&[u8])| {
            let (mut bytes, tag) = if is_bare { (vec![], BARE_TAG) } else { (head(header), PIECE_TAG) };
            bytes.extend_from_slice(piece);
            Message { tag: TAG + tag, bytes, part: Some((call, index)) }
        };
        pieces.iter().enumerate().map(message).collect()
    }
}

fn head(header: Header) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    header.write(&mut bytes);
    bytes
}

/// Returns the state of the process, with nothing sent yet.
fn shared(script: &Script, network: &Arc<Mutex<Network>>) -> Shared {
    let mut messenger = Messenger {
        library: Box::new(Simulated(network.clone())),
        none: 0,
        rank: script.me,
        size: script.members,
        version: "simulated".into(),
        highest_tag: HIGHEST_TAG,
        eager_bytes: 4096 - 64,
        buffers: BufferCache::default(),
        stores: StoreChoice::default(),
    };
    let notices = NoticeReceiver::new(&mut messenger).unwrap();
    Shared {
        connection: Mutex::new(Connection { messenger, notices }),
        waiting_threads: AtomicUsize::new(0),
        groups: Mutex::default(),
        finalize_timeout: Duration::ZERO,
        panicked: AtomicBool::new(true),
    }
}

/// Returns a member of the script, with what an earlier group of the same tags has left behind.
fn peer(script: &Script, member: usize, messenger: &Messenger, random: &mut Random) -> Peer {
    let calls = || 0..script.calls.len();
    let mut messages: Vec<_> = calls().map(|call| script.messages(call, member, messenger)).collect();
    let last = messages.last_mut().unwrap();
    match script.fault {
        Some((odd, Fault::Dies)) if odd == member => last.truncate(random.below(last.len())),
        Some((odd, Fault::Leaves)) if odd == member => {
            let mut bytes = vec![0; 64];
            write_words([script.identity, member as u64, script.calls.len() as u64, 0, 0, 0], &mut bytes);
            *last = vec![Message { tag: NOTICE_TAG, bytes, part: None }];
        }
        _ => {}
    }
    let mut in_flight = VecDeque::new();
    if !script.takes_bare[script.me] {
        for _ in 0..random.below(4) {
            let signature = all_reduce(64, ReduceOp::Sum).pack();
            let header = Header::new((script.identity ^ 1, 1 + random.next() % 3), true, (signature, 1.0));
            let (tag, mut bytes) =
                if random.one_in(2) { (PIECE_TAG, head(header)) } else { (BARE_TAG, vec![]) };
            bytes.resize(bytes.len() + 256, 9);
            in_flight.push_back(Message { tag: TAG + tag, bytes, part: None });
        }
    }
    let expected = calls().flat_map(|call| script.messages(call, script.me, messenger)).collect();
    Peer { messages, in_flight, expected, ..Peer::default() }
}

fn run(seed: u64) {
    let script = Script::new(seed);
    let mut random = Random(!seed);
    let network = Network {
        random: Random(seed ^ 5),
        me: script.me,
        peers: vec![],
        pending: vec![],
        prepared: vec![],
        stalled: 0,
        wrong: None,
    };
    let network = Arc::new(Mutex::new(network));
    let shared = Arc::new(shared(&script, &network));
    let peers: Vec<Peer> = {
        let connection = shared.connection();
        (0..script.members).map(|member| peer(&script, member, &connection.messenger, &mut random)).collect()
    };
    network.lock().unwrap().peers = peers;
    let (rank, size, version) = (script.me, script.members, String::new());
    let transport = MpiTransport { shared: shared.clone(), rank, size, version, highest_tag: HIGHEST_TAG };
    if !script.takes_bare[script.me] {
        // Only if an earlier group had the tags.
        drop(transport.join_endpoint("earlier", &[script.me], 0).unwrap());
    }
    let ranks: Vec<_> = (0..script.members).collect();
    let mut endpoint = transport.join_endpoint("group", &ranks, script.me).unwrap().by_messages();
    for (call, signature) in script.calls.iter().enumerate() {
        // Members may be ahead by then, or late.
        for _ in 0..random.below(100) {
            network.lock().unwrap().progress();
        }
        network.lock().unwrap().stalled = if random.one_in(4) { random.below(400) } else { 0 };
        let fault = script.fault.filter(|_| script.is_last(call));
        let timeout = if matches!(fault, Some((_, Fault::Dies))) { SHORT } else { LONG };
        let mut data = aligned(&script.input(call, script.me, signature));
        let output = bytemuck::cast_slice_mut(&mut data);
        let mut arguments = Call { signature: *signature, weight: 1.0, input: &[], output, lengths: &[] };
        let done = endpoint.run(&mut arguments, timeout);
        let what = format!("seed {seed}, call {call} of {script:?}: {done:?}");
        assert_eq!(network.lock().unwrap().wrong, None, "{what}");
        match (fault, done) {
            (None, Ok(())) => {}
            (Some((odd, Fault::CallsOther(other))), Err(TransportFailure::Mismatch(called))) => {
                let called_by = |member| if member == odd { other } else { *signature };
                let expected: Vec<_> = (0..script.members).map(|member| Some(called_by(member))).collect();
                return assert_eq!(called, expected, "{what}");
            }
            (Some((odd, Fault::Leaves)), Err(TransportFailure::MemberLeft(member, LeaveReason::Left))) => {
                return assert_eq!(member, odd, "{what}");
            }
            (Some((odd, Fault::Dies)), Err(TransportFailure::TimedOut(missing))) => {
                return assert!(missing.contains(&odd), "{what}");
            }
            _ => panic!("{what}"),
        }
        assert_eq!(bytemuck::cast_slice::<u32, u8>(&data), script.result(call), "a wrong result: {what}");
        let network = network.lock().unwrap();
        for member in script.others() {
            let peer = &network.peers[member];
            let parts = peer.messages[..=call].iter().flatten().filter_map(|it| it.part);
            assert!(parts.eq(peer.received.iter().copied()), "member {member}: {:?}: {what}", peer.received);
        }
    }
    drop(endpoint);
    let (network, connection) = (network.lock().unwrap(), shared.connection());
    assert_eq!(network.wrong, None, "seed {seed}");
    assert!(network.prepared.iter().all(|it| it.is_freed), "seed {seed}: a persistent request is left");
    for member in script.others() {
        let peer = &network.peers[member];
        assert_eq!(peer.heard, peer.expected.len(), "seed {seed}: a message to {member} is lost");
        assert!(peer.arrived.iter().all(|it| it.part.is_none()), "seed {seed}: {:?}", peer.arrived);
    }
    // The receiver of notices has the only request, and the only buffer.
    assert_eq!(network.pending.iter().flatten().count(), 1, "seed {seed}");
    drop(network);
    assert_eq!(connection.messenger.buffers.in_use(), 1, "seed {seed}");
}

/// Copies bytes to memory that is aligned for the elements.
fn aligned(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it)).collect()
}

#[test]
fn random_calls_take_each_message_for_what_it_is() {
    let only = std::env::var("EVENER_SOAK_SEED").ok().and_then(|it| it.parse::<u64>().ok());
    for seed in 0..if only.is_some() { 1 } else { 300 } {
        run(only.unwrap_or(seed * 1_000_003 + 29));
    }
}
