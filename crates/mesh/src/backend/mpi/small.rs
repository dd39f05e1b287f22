//! All-reduces of vectors that fit one eager message each, without a [`Session`] unless a member is late: its
//! bookkeeping takes as long as such a message.
//!
//! MPI libraries send the smallest messages by a shorter way, and a header makes messages longer. So once all members
//! have completed a small all-reduce, they leave the header out of further ones with the same signature. Such a bare
//! message has a tag of its own, which stands for the signature that was agreed on last; every other call starts with
//! a header, under another tag. A rank that waits for one of them also looks for the other: if that arrives instead,
//! the sender has called something else.
//!
//! A bare message needs no number of the call. A rank sends one first message to each member in a call, and starts the
//! next call only after it received that of each member; so the next first message of a member is of this call. It
//! needs no identity of the group either, if no earlier group of the receiving process had the same tags and could have
//! left a message behind. Headers tell whether that is so, and all members must say it before any sends a bare message.

use std::{sync::MutexGuard, time::Duration};

use smallvec::SmallVec;

use super::{
    Connection,
    call::{BARE_TAG, MessageCall, PIECE_TAG},
    endpoint::GroupInfo,
    header::Header,
    messenger::{HEADER_BYTES, MessageId},
    session::{Messages, OtherCall, POLLS_PER_CLOCK_READ, Session, clock, others},
};
use crate::{
    backend::{
        TransportFailure,
        reduce::{self, Vectors},
    },
    comm::Signature,
};

/// Maximum bytes of a vector: all libraries send these eagerly.
pub(super) const SMALL_BYTES: usize = 2 << 10;
/// Maximum members of a group.
pub(super) const MAX_MEMBERS: usize = 8;
/// Maximum bytes of a message without a header. Open MPI sends those up to 256 bytes by a shorter way; longer ones save
/// the copy of the header.
pub(super) const BARE_BYTES: usize = SMALL_BYTES;

/// Messages in the order of [`others`].
type InFlight = SmallVec<[MessageId; MAX_MEMBERS]>;

/// One rank's call of a small all-reduce.
pub(super) struct SmallAllReduce<'a> {
    pub(super) group: GroupInfo<'a>,
    pub(super) connection: MutexGuard<'a, Connection>,
    pub(super) signature: Signature,
    pub(super) header: Header,
    /// The members have agreed on this signature: messages have no header.
    pub(super) is_bare: bool,
    /// What a member has called that sends the other kind of message.
    pub(super) other: Option<OtherCall>,
    pub(super) timeout: Duration,
}

impl<'a> SmallAllReduce<'a> {
    /// Reduces the members' vectors. Returns whether all members accept bare messages.
    // Not inlined: as part of a larger function it would save and restore more registers.
    #[inline(never)]
    pub(super) fn run(mut self, data: &mut [u8], last: &'a mut Duration) -> Result<bool, TransportFailure> {
        let (mut sent, mut received) = (InFlight::new(), InFlight::new());
        match self.exchange(data, &mut sent, &mut received, last) {
            Ok(true) => {
                self.reduce(&received, data);
                let messenger = &mut self.connection.messenger;
                sent.iter().chain(&received).for_each(|message| messenger.give_back(*message));
                Ok(self.header.takes_bare)
            }
            Ok(false) => self.complete(data, &sent, &received, last),
            Err(failure) => {
                drop(self.into_session(&sent, &received, last));
                Err(failure)
            }
        }
    }

    /// Sends the vector to all members and receives theirs. Returns whether all of that ended before the clock had to
    /// be read, and the messages are of this call.
    #[inline(always)]
    fn exchange(
        &mut self,
        data: &[u8],
        sent: &mut InFlight,
        received: &mut InFlight,
        last: &mut Duration,
    ) -> Result<bool, TransportFailure> {
        let GroupInfo { ranks, me, tag, .. } = self.group;
        let messenger = &mut self.connection.messenger;
        // Sends first: the other members wait for that.
        for member in others(ranks.len(), me) {
            let message = messenger.take();
            sent.push(message);
            let buffer = messenger.buffer(message);
            buffer[HEADER_BYTES..][..data.len()].copy_from_slice(data);
            if self.is_bare {
                messenger.send_bare(message, data.len(), ranks[member], tag + BARE_TAG)?;
            } else {
                self.header.write(buffer);
                messenger.send(message, HEADER_BYTES + data.len(), ranks[member], tag + PIECE_TAG)?;
            }
        }
        for member in others(ranks.len(), me) {
            let message = messenger.take();
            received.push(message);
            if self.is_bare {
                messenger.receive_bare(message, ranks[member], tag + BARE_TAG)?;
            } else {
                messenger.receive(message, Some(ranks[member]), tag + PIECE_TAG)?;
            }
        }
        let now = clock(self.timeout);
        if now.saturating_sub(*last) > self.timeout / 2 {
            // Notices may have been missed.
            return Ok(false);
        }
        *last = now;
        for message in sent {
            if !messenger.is_done(*message)? {
                return Ok(false);
            }
        }
        let mut polls = 0;
        for message in received {
            while !messenger.is_done(*message)? {
                polls += 1;
                if polls >= POLLS_PER_CLOCK_READ {
                    return Ok(false);
                }
            }
            if !self.is_bare && Header::read(messenger.buffer(*message)) != self.header {
                return Ok(false);
            }
        }
        Ok(true)
    }

    #[inline(always)]
    fn reduce(&mut self, received: &InFlight, data: &mut [u8]) {
        let GroupInfo { ranks, me, .. } = self.group;
        let own = data.as_mut_ptr();
        let mut inputs = [own.cast_const(); MAX_MEMBERS];
        for (member, message) in others(ranks.len(), me).zip(received) {
            inputs[member] = self.connection.messenger.buffer(*message)[HEADER_BYTES..].as_ptr();
        }
        let vectors = Vectors { inputs: &inputs[..ranks.len()], outputs: &[own] };
        let range = 0..data.len() / self.signature.element.bytes();
        // SAFETY: each message holds as many bytes as `data` at a cache line: equal signatures have equal lengths. It is
        // not written until it is given back. The rank's own vector is aligned as the caller's elements are.
        unsafe { reduce::called(&self.signature, &[], vectors, range) };
    }

    /// Waits for members that are late, or fails as the members do not agree.
    #[cold]
    fn complete(
        self,
        data: &mut [u8],
        sent: &InFlight,
        received: &InFlight,
        last: &'a mut Duration,
    ) -> Result<bool, TransportFailure> {
        let (signature, GroupInfo { ranks, me, tag, .. }) = (self.signature, self.group);
        let mut messages = Messages::from_elem(None, ranks.len());
        others(ranks.len(), me).zip(received).for_each(|(member, message)| messages[member] = Some(*message));
        let mut session = self.into_session(sent, received, last);
        session.release_sent()?;
        MessageCall::new(&mut session, signature, me, tag).complete_small(&messages, data)?;
        Ok(session.all_take_bare)
    }

    /// Returns a session with the messages in flight.
    #[cold]
    fn into_session(self, sent: &InFlight, received: &InFlight, last: &'a mut Duration) -> Session<'a> {
        let SmallAllReduce { group, connection, header, is_bare, other, timeout, .. } = self;
        let mut session = Session::with(group, connection, header, timeout, Some(last));
        (session.is_bare, session.other) = (is_bare, other);
        session.resume(others(group.ranks.len(), group.me).zip(sent.iter().copied()), received);
        session
    }
}
