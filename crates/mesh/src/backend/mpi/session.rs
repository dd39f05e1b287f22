//! The messages of one call: sent, received, waited for with a timeout, and abandoned if the call fails.

use std::{
    ffi::c_int,
    sync::{MutexGuard, atomic::Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{
    Connection,
    buffers::{HEADER_BYTES, MessageId, PIECE_BYTES},
    call::PIECE_TAG,
    endpoint::Group,
    header::Header,
    messenger::Messenger,
    stores::{copy_nontemporal, fence},
};
use crate::backend::{TransportFailure, wait::Backoff};

/// Polls of MPI between two reads of the clock, at which other threads may get the lock.
pub(super) const POLLS_PER_CLOCK_READ: u32 = 64;
/// Polls before the thread also yields or sleeps.
const POLLS_BEFORE_PAUSE: u32 = 1024;
/// Maximum messages in flight to each member, on average. More of them do not fit the caches.
const MAX_IN_FLIGHT: usize = 2;
/// How long to poll for notices after a long time without a call.
const CATCH_UP: Duration = Duration::from_millis(5);
/// Shorter timeouts are measured exactly, others to some hundredths of a second.
const EXACT: Duration = Duration::from_secs(1);
/// A message that was sent before its sender's notice may arrive after it, but not by much.
const GRACE: Duration = Duration::from_millis(50);

/// Messages by member; `None` for this rank.
pub(super) type Messages = SmallVec<[Option<MessageId>; 8]>;

/// Returns all other members, starting after this one, so that members do not all start with the same.
pub(super) fn others(members: usize, me: usize) -> impl Iterator<Item = usize> + Clone {
    (me + 1..members).chain(0..me)
}

/// Returns the time, coarse for long timeouts: reading the exact clock can take as long as a message.
#[inline]
pub(super) fn clock(timeout: Duration) -> Duration {
    #[cfg(target_os = "linux")]
    const COARSE: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
    #[cfg(not(target_os = "linux"))]
    const COARSE: libc::clockid_t = libc::CLOCK_MONOTONIC;
    let which = if timeout < EXACT { libc::CLOCK_MONOTONIC } else { COARSE };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live variable.
    unsafe { libc::clock_gettime(which, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A call that a member has made if it sends the other kind of first message, with a header or without.
#[derive(Debug, Clone, Copy)]
pub(super) struct OtherCall {
    pub(super) tag: c_int,
    /// What a message without a header stands for, or `None` if the message has one.
    pub(super) header: Option<Header>,
}

/// The messages of one call.
pub(super) struct Session<'a> {
    pub(super) group: &'a Group,
    connection: Option<MutexGuard<'a, Connection>>,
    /// The number of the call, or of the exchange between two members.
    call: u64,
    pub(super) header: Header,
    /// When the call started, once the clock was read.
    start: Option<Instant>,
    timeout: Duration,
    /// When the last call started by the [`clock`]; taken once this call has checked it.
    last: Option<&'a mut Duration>,
    outgoing: SmallVec<[(MessageId, usize); 8]>,
    /// Messages being received or read, and their tags.
    incoming: SmallVec<[(MessageId, c_int); 16]>,
    polls: u32,
    /// The wait since the last message ended, once that is long ago.
    wait: Option<Backoff>,
    /// Until when messages sent before a notice may still arrive.
    grace: Option<Duration>,
    /// A notice of any call fails this one: for exchanges, which have numbers of their own.
    pub(super) any_notice: bool,
    /// The last message that was created is written with non-temporal stores.
    is_nontemporal: bool,
    /// Messages have no header.
    pub(super) is_bare: bool,
    /// What to look for while waiting for first messages.
    pub(super) other: Option<OtherCall>,
    /// Messages that did not come, their senders, and the headers that came instead.
    called_otherwise: SmallVec<[(MessageId, usize, Header); 1]>,
    /// Whether all members accept messages without a header, once they have agreed.
    pub(super) all_take_bare: bool,
}

impl<'a> Session<'a> {
    #[inline(always)]
    pub(super) fn new(
        group: &'a Group,
        call: u64,
        header: Header,
        timeout: Duration,
        last: Option<&'a mut Duration>,
    ) -> Self {
        Session::with(group, call, group.shared.connection(), header, timeout, last)
    }

    #[inline(always)]
    pub(super) fn with(
        group: &'a Group,
        call: u64,
        connection: MutexGuard<'a, Connection>,
        header: Header,
        timeout: Duration,
        last: Option<&'a mut Duration>,
    ) -> Self {
        Session {
            group,
            connection: Some(connection),
            call,
            header,
            start: None,
            timeout,
            last,
            outgoing: SmallVec::new(),
            incoming: SmallVec::new(),
            polls: 0,
            wait: None,
            grace: None,
            any_notice: false,
            is_nontemporal: false,
            is_bare: false,
            other: None,
            called_otherwise: SmallVec::new(),
            all_take_bare: header.takes_bare,
        }
    }

    /// Continues with messages that were sent to members, and messages being received.
    pub(super) fn resume(&mut self, sent: impl Iterator<Item = (usize, MessageId)>, received: &[MessageId]) {
        self.outgoing.extend(sent.map(|(member, message)| (message, member)));
        // Only a message with a header is ever received again, with its tag.
        self.incoming.extend(received.iter().map(|message| (*message, self.group.tag + PIECE_TAG)));
    }

    /// Returns whether the next message of a member is certainly the next that it has sent in this group: no earlier
    /// group has left one behind, which would be received in its place. Otherwise no receive may be posted behind that
    /// of a first message, which may have to be posted again.
    #[inline(always)]
    pub(super) fn order_is_known(&self) -> bool {
        self.header.takes_bare
    }

    #[inline]
    fn connection(&mut self) -> &mut Connection {
        let shared = &self.group.shared;
        self.connection.get_or_insert_with(
            #[cold]
            || shared.connection(),
        )
    }

    #[inline]
    pub(super) fn messenger(&mut self) -> &mut Messenger {
        &mut self.connection().messenger
    }

    /// Receives notices that arrived between calls. The other members may have given up meanwhile: their earlier
    /// messages would look like success.
    #[inline(always)]
    fn check_missed_notices(&mut self) -> Result<(), TransportFailure> {
        let Some(last) = self.last.take() else { return Ok(()) };
        let now = clock(self.timeout);
        let away = now.saturating_sub(std::mem::replace(last, now));
        if away > self.timeout / 2 { self.poll_notices() } else { Ok(()) }
    }

    #[cold]
    fn poll_notices(&mut self) -> Result<(), TransportFailure> {
        // Each poll makes only a little progress.
        let start = Instant::now();
        while start.elapsed() < CATCH_UP {
            self.connection().receive_notices()?;
            if let Some(failure) = self.member_left() {
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Returns the failure if a member has left before the end of this call.
    fn member_left(&mut self) -> Option<TransportFailure> {
        let (any, identity, call) = (self.any_notice, self.group.identity, self.call);
        let notice =
            self.connection().notices.of(identity).iter().find(|notice| any || notice.call <= call)?;
        Some(TransportFailure::MemberLeft(notice.member, notice.reason.clone()))
    }

    #[inline(always)]
    pub(super) fn start_recv(&mut self, from: usize, tag: c_int) -> Result<MessageId, TransportFailure> {
        let rank = self.group.ranks[from];
        let message = self.messenger().take();
        // First, so that its buffer is given back if this fails.
        self.incoming.push((message, tag));
        self.messenger().receive(message, Some(rank), tag)?;
        Ok(message)
    }

    /// Sends a piece, once few enough messages are in flight.
    #[inline(always)]
    pub(super) fn send(&mut self, to: usize, tag: c_int, piece: &[u8]) -> Result<(), TransportFailure> {
        let message = self.create_message(piece.len())?;
        if self.is_long(piece.len()) && !self.is_nontemporal {
            let start = Instant::now();
            self.write(message, 0, piece);
            self.messenger().stores.record_plain(piece.len(), start.elapsed());
        } else {
            self.write(message, 0, piece);
        }
        self.post(message, to, tag, piece.len())
    }

    /// Returns whether a message with so much data is long: another rank's core may read it in place.
    #[inline(always)]
    fn is_long(&mut self, bytes: usize) -> bool {
        HEADER_BYTES + bytes > self.messenger().eager_bytes
    }

    /// Creates a message to send, with a header and so much data, once few enough messages are in flight. The next are
    /// [`write`](Self::write), until it has all its data, and [`post`](Self::post).
    #[inline(always)]
    pub(super) fn create_message(&mut self, bytes: usize) -> Result<MessageId, TransportFailure> {
        if self.outgoing.len() >= MAX_IN_FLIGHT * self.group.ranks.len() {
            self.wait_sent(0)?;
        }
        self.is_nontemporal = self.is_long(bytes) && self.messenger().stores.next_is_nontemporal();
        let header = self.header;
        let messenger = self.messenger();
        let message = messenger.take_to_send(HEADER_BYTES + bytes);
        header.write(messenger.outgoing(message));
        Ok(message)
    }

    /// Writes data of the message that was created last.
    #[inline(always)]
    pub(super) fn write(&mut self, message: MessageId, start: usize, data: &[u8]) {
        let is_nontemporal = self.is_nontemporal;
        let into = &mut self.messenger().outgoing(message)[HEADER_BYTES + start..][..data.len()];
        if is_nontemporal { copy_nontemporal(into, data) } else { into.copy_from_slice(data) }
    }

    #[inline(always)]
    pub(super) fn post(
        &mut self,
        message: MessageId,
        to: usize,
        tag: c_int,
        bytes: usize,
    ) -> Result<(), TransportFailure> {
        if self.is_nontemporal {
            fence();
        }
        let rank = self.group.ranks[to];
        // First, so that its buffer is given back if this fails.
        self.outgoing.push((message, to));
        self.messenger().send(message, HEADER_BYTES + bytes, rank, tag)
    }

    pub(super) fn header_of(&mut self, message: MessageId) -> Header {
        match self.called_otherwise.iter().find(|(it, ..)| *it == message) {
            Some((.., header)) => *header,
            None if self.is_bare => self.header,
            None => Header::read(self.messenger().buffer(message)),
        }
    }

    pub(super) fn data_of(&mut self, message: MessageId) -> &[u8] {
        &self.messenger().buffer(message)[HEADER_BYTES..][..PIECE_BYTES]
    }

    #[inline(always)]
    pub(super) fn release(&mut self, message: MessageId) {
        if let Some(index) = self.incoming.iter().position(|(it, _)| *it == message) {
            self.incoming.swap_remove(index);
        }
        self.messenger().give_back(message);
    }

    /// Sends every other member a piece, and starts to receive one from each.
    #[inline]
    pub(super) fn send_to_all<'b>(
        &mut self,
        tag: c_int,
        piece: impl Fn(usize) -> &'b [u8],
    ) -> Result<Messages, TransportFailure> {
        // Sends first: the other members wait for that.
        for member in others(self.group.ranks.len(), self.group.me) {
            self.send(member, tag, piece(member))?;
        }
        let messages = self.start_recv_all(tag)?;
        self.release_sent()?;
        Ok(messages)
    }

    #[inline(always)]
    pub(super) fn start_recv_all(&mut self, tag: c_int) -> Result<Messages, TransportFailure> {
        let mut messages = Messages::from_elem(None, self.group.ranks.len());
        for member in others(self.group.ranks.len(), self.group.me) {
            messages[member] = Some(self.start_recv(member, tag)?);
        }
        Ok(messages)
    }

    pub(super) fn wait_all(&mut self, messages: &Messages) -> Result<(), TransportFailure> {
        let (members, me) = (self.group.ranks.len(), self.group.me);
        for member in others(members, me) {
            let Some(message) = messages[member] else { continue };
            self.wait(message, member, |messenger| {
                let missing = |member: &usize| {
                    messages[*member].is_some_and(|it| !messenger.is_done(it).unwrap_or(false))
                };
                others(members, me).filter(missing).collect()
            })?;
        }
        Ok(())
    }

    /// Returns whether a message of this call arrives from every member before the clock has to be read.
    #[inline(always)]
    pub(super) fn poll_all(&mut self, messages: &Messages) -> Result<bool, TransportFailure> {
        let header = self.header;
        for message in messages.iter().flatten() {
            while !self.messenger().is_done(*message)? {
                self.polls += 1;
                if self.polls >= POLLS_PER_CLOCK_READ {
                    return Ok(false);
                }
            }
            if self.header_of(*message) != header {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for a message from a member. After a timeout, `missing` returns the members without a message.
    pub(super) fn wait(
        &mut self,
        message: MessageId,
        from: usize,
        missing: impl Fn(&mut Messenger) -> Vec<usize>,
    ) -> Result<(), TransportFailure> {
        loop {
            if self.is_done(message)? {
                if self.header_of(message).identity == self.header.identity {
                    return Ok(());
                }
                // The message is of a failed group, whose tag this group has since.
                let tag = self.incoming.iter().find(|(it, _)| *it == message).map_or(0, |(_, tag)| *tag);
                let rank = self.group.ranks[from];
                self.messenger().receive(message, Some(rank), tag)?;
            }
            let failure = self.pause(from)?;
            if self.polls.is_multiple_of(POLLS_PER_CLOCK_READ)
                && self.has_called_otherwise(message, from, failure.is_some())?
            {
                return Ok(());
            }
            if let Some(failure) = failure {
                return match failure {
                    TransportFailure::TimedOut(_) => {
                        let mut missing = missing(self.messenger());
                        missing.retain(|it| self.called_otherwise.iter().all(|(_, member, _)| it != member));
                        if missing.is_empty() {
                            Err(failure)
                        } else {
                            Err(TransportFailure::TimedOut(missing))
                        }
                    }
                    other => Err(other),
                };
            }
        }
    }

    /// Returns whether the other kind of first message has arrived from a member instead of `message`, and keeps its
    /// header.
    #[cold]
    fn has_called_otherwise(
        &mut self,
        message: MessageId,
        from: usize,
        at_once: bool,
    ) -> Result<bool, TransportFailure> {
        let (Some(other), rank) = (self.other, self.group.ranks[from]) else { return Ok(false) };
        if !self.messenger().has_arrived(rank, other.tag)? {
            return Ok(false);
        }
        // It may be of the member's next call, if the end of `message` is still in flight.
        if !self.grace_is_over() && !at_once {
            return Ok(false);
        }
        let header = match other.header {
            Some(header) => header,
            None => {
                let first = self.start_recv(from, other.tag)?;
                while !self.messenger().is_done(first)? {
                    if let Some(failure) = self.pause(from)? {
                        return Err(failure);
                    }
                }
                Header::read(self.messenger().buffer(first))
            }
        };
        self.called_otherwise.push((message, from, header));
        Ok(true)
    }

    #[inline]
    fn is_done(&mut self, message: MessageId) -> Result<bool, TransportFailure> {
        let done = self.messenger().is_done(message)?;
        if done {
            self.wait = None;
        }
        Ok(done)
    }

    fn wait_sent(&mut self, index: usize) -> Result<(), TransportFailure> {
        let (message, to) = self.outgoing[index];
        while !self.is_done(message)? {
            if let Some(failure) = self.pause(to)? {
                return Err(failure);
            }
        }
        self.outgoing.swap_remove(index);
        self.messenger().give_back(message);
        Ok(())
    }

    /// Releases messages that are sent, and receives missed notices.
    #[inline(always)]
    pub(super) fn release_sent(&mut self) -> Result<(), TransportFailure> {
        for index in (0..self.outgoing.len()).rev() {
            let (message, _) = self.outgoing[index];
            if self.messenger().is_done(message)? {
                self.outgoing.swap_remove(index);
                self.messenger().give_back(message);
            }
        }
        self.check_missed_notices()
    }

    /// Waits until all messages are sent: a rank that does not call MPI for long would delay the others.
    pub(super) fn finish(&mut self) -> Result<(), TransportFailure> {
        while !self.outgoing.is_empty() {
            self.wait_sent(self.outgoing.len() - 1)?;
        }
        Ok(())
    }

    /// Called between two polls for a member's message. Sometimes reads the clock and receives notices. Returns why
    /// waiting must end.
    #[inline]
    fn pause(&mut self, member: usize) -> Result<Option<TransportFailure>, TransportFailure> {
        self.polls += 1;
        if !self.polls.is_multiple_of(POLLS_PER_CLOCK_READ) {
            return Ok(None);
        }
        self.pause_longer(member)
    }

    #[cold]
    fn pause_longer(&mut self, member: usize) -> Result<Option<TransportFailure>, TransportFailure> {
        self.connection().receive_notices()?;
        let waited = self.start.get_or_insert_with(Instant::now).elapsed();
        if let Some(failure) = self.member_left() {
            // Messages sent before the notice may still arrive.
            if self.grace_is_over() {
                return Ok(Some(failure));
            }
        } else if waited >= self.timeout {
            return Ok(Some(TransportFailure::TimedOut(vec![member])));
        }
        let wait = self.wait.get_or_insert_with(Backoff::new);
        let waiting_threads = self.group.shared.waiting_threads.load(SeqCst) > 0;
        if waiting_threads || wait.sleeps() {
            // Lets other threads of this rank call MPI.
            self.connection = None;
        }
        if waiting_threads {
            thread::yield_now();
        } else if self.polls > POLLS_BEFORE_PAUSE {
            wait.pause();
        }
        Ok(None)
    }

    fn grace_is_over(&mut self) -> bool {
        let now = self.start.get_or_insert_with(Instant::now).elapsed();
        // Counted from the first call.
        let until = self.grace.get_or_insert(now + GRACE);
        now >= *until
    }
}

impl Drop for Session<'_> {
    #[inline]
    fn drop(&mut self) {
        while let Some((message, _)) = self.outgoing.pop() {
            self.messenger().abandon(message);
        }
        while let Some((message, _)) = self.incoming.pop() {
            self.messenger().abandon(message);
        }
    }
}

#[cfg(test)]
mod test {
    use std::{
        collections::{HashMap, VecDeque},
        sync::{
            Arc, Mutex,
            atomic::{AtomicBool, AtomicUsize},
        },
    };

    use super::{
        super::{
            Shared,
            buffers::BufferCache,
            messenger::{ErrorCode, MessageLibrary, Request, RequestKind},
            notice::NoticeReceiver,
            stores::StoreChoice,
        },
        *,
    };

    /// Messages that have arrived, by tag.
    struct Ready(Mutex<HashMap<c_int, VecDeque<Vec<u8>>>>);

    /// A request handle is its buffer's address plus the tag.
    impl MessageLibrary for Ready {
        unsafe fn request(
            &self,
            kind: RequestKind,
            buffer: *mut u8,
            _: usize,
            _: Option<usize>,
            tag: c_int,
        ) -> Result<Request, ErrorCode> {
            match kind {
                _ if tag == REFUSED => Err(ErrorCode(1)),
                RequestKind::Send => Ok(0),
                RequestKind::Receive => Ok(buffer as usize + tag as usize),
                _ => unreachable!("no message is prepared here"),
            }
        }
        unsafe fn start(&self, _: &mut Request) -> Result<(), ErrorCode> {
            unreachable!("no message is prepared here")
        }
        unsafe fn free(&self, _: Request) {}
        fn has_arrived(&self, _: usize, tag: c_int) -> Result<bool, ErrorCode> {
            Ok(self.0.lock().unwrap().get(&tag).is_some_and(|messages| !messages.is_empty()))
        }
        unsafe fn test(&self, request: &mut Request) -> Result<bool, ErrorCode> {
            // Messages start at multiples of 32, and tags are smaller.
            let (tag, buffer) = ((*request % 32) as c_int, (*request / 32 * 32) as *mut u8);
            let message = self.0.lock().unwrap().get_mut(&tag).and_then(VecDeque::pop_front);
            let Some(message) = message else { return Ok(false) };
            // SAFETY: `buffer` is the buffer passed to `receive`, which is longer than `message`.
            unsafe { buffer.copy_from_nonoverlapping(message.as_ptr(), message.len()) };
            *request = 0;
            Ok(true)
        }
        unsafe fn cancel(&self, _: Request) {}
        fn failure(&self, function: &str, code: ErrorCode) -> TransportFailure {
            let (operation, detail) = (function.into(), format!("{code:?}"));
            TransportFailure::Library { library: "MPI", operation, detail }
        }
        fn finish(&mut self) {}
        fn has_ended(&self) -> bool {
            false
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(9);
    /// The library refuses messages with this tag.
    const REFUSED: c_int = 13;

    /// Returns a group of rank 0 and rank 1, whose messages have arrived, as rank 0 has it.
    fn group(messages: impl IntoIterator<Item = (c_int, VecDeque<Vec<u8>>)>) -> Group {
        let mut messenger = Messenger {
            library: Box::new(Ready(Mutex::new(messages.into_iter().collect()))),
            none: 0,
            rank: 0,
            size: 2,
            version: "ready".into(),
            highest_tag: 100,
            eager_bytes: 4096,
            buffers: BufferCache::default(),
            stores: StoreChoice::default(),
        };
        let notices = NoticeReceiver::new(&mut messenger).unwrap();
        let shared = Shared {
            connection: Mutex::new(Connection { messenger, notices }),
            waiting_threads: AtomicUsize::new(0),
            groups: Mutex::default(),
            finalize_timeout: Duration::ZERO,
            panicked: AtomicBool::new(true),
        };
        Group { shared: Arc::new(shared), ranks: vec![0, 1], me: 0, tag: 9, identity: 8 }
    }

    fn header(identity: u64, call: u64, signature: [u64; 2]) -> Header {
        Header::new((identity, call), true, (signature, 1.0))
    }

    fn bytes(header: Header) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        header.write(&mut bytes);
        bytes
    }

    #[test]
    fn a_message_of_a_failed_group_is_not_taken_for_one_of_the_next() {
        let messages = [(7, 3), (7, 4), (8, 1)].map(|(identity, call)| bytes(header(identity, call, [0; 2])));
        let group = group([(9, messages.into())]);
        let mut session = Session::new(&group, 1, header(8, 1, [0; 2]), TIMEOUT, None);
        let message = session.start_recv(1, 9).unwrap();
        session.wait(message, 1, |_| vec![1]).unwrap();
        assert_eq!(session.header_of(message), header(8, 1, [0; 2]));
    }

    #[test]
    fn a_header_in_place_of_a_bare_message_tells_what_its_sender_called() {
        let group = group([(9, [bytes(header(8, 1, [5, 6]))].into())]);
        let mut session = Session::new(&group, 1, header(8, 1, [0; 2]), TIMEOUT, None);
        (session.is_bare, session.other) = (true, Some(OtherCall { tag: 9, header: None }));
        let message = session.start_recv(1, 12).unwrap();
        session.wait(message, 1, |_| vec![1]).unwrap();
        assert_eq!(session.header_of(message), header(8, 1, [5, 6]));
    }

    #[test]
    fn a_bare_message_in_place_of_a_header_stands_for_the_signature_agreed_on() {
        let group = group([(12, [vec![1; 8]].into())]);
        let mut session = Session::new(&group, 1, header(8, 1, [0; 2]), TIMEOUT, None);
        session.other = Some(OtherCall { tag: 12, header: Some(header(8, 1, [5, 6])) });
        let message = session.start_recv(1, 9).unwrap();
        session.wait(message, 1, |_| vec![1]).unwrap();
        assert_eq!(session.header_of(message), header(8, 1, [5, 6]));
    }

    #[test]
    fn a_bare_message_that_comes_as_expected_is_of_this_call() {
        // The header is of the sender's next call.
        let group = group([(12, [vec![1; 8]].into()), (9, [bytes(header(8, 2, [5, 6]))].into())]);
        let mut session = Session::new(&group, 1, header(8, 1, [3, 4]), TIMEOUT, None);
        (session.is_bare, session.other) = (true, Some(OtherCall { tag: 9, header: None }));
        let message = session.start_recv(1, 12).unwrap();
        session.wait(message, 1, |_| vec![1]).unwrap();
        assert_eq!(session.header_of(message), header(8, 1, [3, 4]));
    }

    #[test]
    fn a_message_that_the_library_refuses_keeps_no_buffer() {
        let group = group([]);
        let in_use = || group.shared.connection().messenger.buffers.in_use();
        let before = in_use();
        for bytes in [8, 100_000] {
            let mut session = Session::new(&group, 1, header(8, 1, [0; 2]), TIMEOUT, None);
            session.send(1, REFUSED, &vec![0; bytes]).unwrap_err();
            session.start_recv(1, REFUSED).unwrap_err();
            drop(session);
            assert_eq!(in_use(), before, "{bytes} bytes");
        }
    }
}
