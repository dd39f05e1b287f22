//! All-reduces of vectors that fit one eager message each, without a [`Session`] unless a member is late: its
//! bookkeeping takes as long as such a message.
//!
//! MPI libraries send the smallest messages by a shorter way, and a header makes messages longer. So once all members
//! have completed a small all-reduce, they leave the header out of further ones with the same signature. Such a bare
//! message has a tag of its own, which stands for the signature that was agreed on last; every other call starts with
//! a header, under another tag. A rank that waits for one of them also looks for the other: if that arrives instead,
//! the sender has called something else.
//!
//! A vector that does not fit one eager message goes in several bare messages, one after another
//! ([`Messenger::bare_piece_bytes`](super::messenger::Messenger::bare_piece_bytes)). All members know how many: the
//! signature tells. Bare messages are prepared, and started in every call with the signature: that takes less time than
//! new ones.
//!
//! A bare message needs no number of the call or of the piece. A rank sends each member all pieces of its vector, in
//! order, and starts the next call only after it received all pieces of each member; MPI keeps the order of messages
//! with equal tags between two ranks. So the next bare messages of a member are of this call. They need no identity of
//! the group either, if no earlier group of the receiving process had the same tags and could have left a message
//! behind. Headers tell whether that is so, and all members must say it before any sends a bare message.

#[cfg(test)]
mod test;

use std::{sync::MutexGuard, time::Duration};

use smallvec::SmallVec;

use super::{
    Connection,
    buffers::{HEADER_BYTES, MessageId},
    call::{BARE_TAG, MessageCall, PIECE_TAG},
    endpoint::Group,
    header::Header,
    session::{Messages, OtherCall, POLLS_PER_CLOCK_READ, Session, clock, others},
};
use crate::{
    backend::{
        TransportFailure,
        reduce::{self, Vectors},
    },
    comm::Signature,
};

/// Maximum bytes of a vector.
pub(super) const SMALL_BYTES: usize = 4 << 10;
/// Maximum bytes of a vector that is sent with a header: all libraries send these eagerly.
pub(super) const HEADED_BYTES: usize = 2 << 10;
/// Maximum members of a group.
pub(super) const MAX_MEMBERS: usize = 8;

/// Messages by piece, and of each piece in the order of [`others`].
type InFlight = SmallVec<[MessageId; 2 * MAX_MEMBERS]>;

/// One rank's call of a small all-reduce.
pub(super) struct SmallAllReduce<'a> {
    pub(super) group: &'a Group,
    /// The number of the call.
    pub(super) call: u64,
    pub(super) connection: MutexGuard<'a, Connection>,
    pub(super) signature: Signature,
    pub(super) header: Header,
    /// The members have agreed on this signature: messages have no header. Otherwise the vector is one message.
    pub(super) is_bare: bool,
    /// What a member has called that sends the other kind of message.
    pub(super) other: Option<OtherCall>,
    pub(super) timeout: Duration,
}

/// The messages of a call: one to and from each member for each piece.
#[derive(Debug, Default)]
pub(super) struct SmallMessages {
    pub(super) sent: InFlight,
    pub(super) received: InFlight,
}

impl<'a> SmallAllReduce<'a> {
    /// Reduces the members' vectors. Returns whether all members accept bare messages.
    // Not inlined: as part of a larger function it would save and restore more registers.
    #[inline(never)]
    pub(super) fn run(
        mut self,
        data: &mut [u8],
        prepared: Option<&mut SmallMessages>,
        last: &'a mut Duration,
    ) -> Result<bool, TransportFailure> {
        let piece_bytes = match self.is_bare {
            true => self.connection.messenger.bare_piece_bytes(data.len()),
            false => data.len(),
        };
        let (mut new, mut reduced) = (SmallMessages::default(), 0);
        let messages = prepared.unwrap_or(&mut new);
        let started = match self.is_bare {
            true => self.start(data, piece_bytes, messages),
            false => self.send(data, messages),
        };
        let done = match started {
            Ok(()) => self.finish(data, piece_bytes, messages, &mut reduced, last),
            Err(failure) => Err(failure),
        };
        match done {
            Ok(true) => {
                if !self.is_bare {
                    let messenger = &mut self.connection.messenger;
                    let all = messages.sent.iter().chain(&messages.received);
                    all.for_each(|message| messenger.give_back(*message));
                }
                Ok(self.header.takes_bare)
            }
            Ok(false) => self.complete(data, piece_bytes, messages, reduced, last),
            Err(failure) => {
                drop(self.into_session(messages, reduced, last));
                Err(failure)
            }
        }
    }

    /// Sends the pieces of the vector to all members without a header, and starts to receive theirs.
    #[inline(always)]
    fn start(
        &mut self,
        data: &[u8],
        piece_bytes: usize,
        messages: &mut SmallMessages,
    ) -> Result<(), TransportFailure> {
        if messages.sent.is_empty() {
            self.prepare(data, piece_bytes, messages)?;
        }
        let Group { ref ranks, me, tag, .. } = *self.group;
        let messenger = &mut self.connection.messenger;
        // Sends first: the other members wait for that.
        for (piece, to_all) in data.chunks(piece_bytes).zip(messages.sent.chunks_exact(ranks.len() - 1)) {
            for (member, message) in others(ranks.len(), me).zip(to_all) {
                messenger.buffer(*message)[HEADER_BYTES..][..piece.len()].copy_from_slice(piece);
                messenger.start_send(*message, piece.len(), ranks[member], tag + BARE_TAG)?;
            }
        }
        messages.received.iter().try_for_each(|message| messenger.start(*message))
    }

    #[cold]
    fn prepare(
        &mut self,
        data: &[u8],
        piece_bytes: usize,
        SmallMessages { sent, received }: &mut SmallMessages,
    ) -> Result<(), TransportFailure> {
        let Group { ref ranks, me, tag, .. } = *self.group;
        let messenger = &mut self.connection.messenger;
        for piece in data.chunks(piece_bytes) {
            for member in others(ranks.len(), me) {
                sent.push(messenger.prepare_send(piece.len(), ranks[member], tag + BARE_TAG)?);
                received.push(messenger.prepare_receive(ranks[member], tag + BARE_TAG)?);
            }
        }
        Ok(())
    }

    /// Sends the vector to all members with a header, and starts to receive theirs.
    #[inline(always)]
    fn send(
        &mut self,
        data: &[u8],
        SmallMessages { sent, received }: &mut SmallMessages,
    ) -> Result<(), TransportFailure> {
        let Group { ref ranks, me, tag, .. } = *self.group;
        let messenger = &mut self.connection.messenger;
        for member in others(ranks.len(), me) {
            let message = messenger.take();
            sent.push(message);
            let buffer = messenger.buffer(message);
            self.header.write(buffer);
            buffer[HEADER_BYTES..][..data.len()].copy_from_slice(data);
            messenger.send(message, HEADER_BYTES + data.len(), ranks[member], tag + PIECE_TAG)?;
        }
        for member in others(ranks.len(), me) {
            let message = messenger.take();
            received.push(message);
            messenger.receive(message, Some(ranks[member]), tag + PIECE_TAG)?;
        }
        Ok(())
    }

    /// Waits for the members' pieces, and reduces them. Returns whether all of that ended before the clock had to be
    /// read, and the messages are of this call. Counts the pieces that are reduced.
    #[inline(always)]
    fn finish(
        &mut self,
        data: &mut [u8],
        piece_bytes: usize,
        SmallMessages { sent, received }: &SmallMessages,
        reduced: &mut usize,
        last: &mut Duration,
    ) -> Result<bool, TransportFailure> {
        let now = clock(self.timeout);
        if now.saturating_sub(*last) > self.timeout / 2 {
            // Notices may have been missed.
            return Ok(false);
        }
        *last = now;
        for message in sent {
            if !self.connection.messenger.is_done(*message)? {
                return Ok(false);
            }
        }
        let (mut polls, others) = (0, self.group.ranks.len() - 1);
        for (piece, messages) in data.chunks_mut(piece_bytes).zip(received.chunks_exact(others)) {
            for message in messages {
                let messenger = &mut self.connection.messenger;
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
            // Meanwhile the next piece arrives.
            self.reduce(messages, piece);
            *reduced += 1;
        }
        Ok(true)
    }

    /// Reduces a piece of all members.
    #[inline(always)]
    fn reduce(&mut self, received: &[MessageId], piece: &mut [u8]) {
        let Group { ref ranks, me, .. } = *self.group;
        let own = piece.as_mut_ptr();
        let mut inputs = [own.cast_const(); MAX_MEMBERS];
        for (member, message) in others(ranks.len(), me).zip(received) {
            inputs[member] = self.connection.messenger.buffer(*message)[HEADER_BYTES..].as_ptr();
        }
        let vectors = Vectors { inputs: &inputs[..ranks.len()], outputs: &[own] };
        let range = 0..piece.len() / self.signature.element.bytes();
        // SAFETY: each message holds as many bytes as `piece` at a cache line: equal signatures have equal lengths, and
        // pieces of equal bytes, which are whole elements. It is not written until it is given back. The rank's own
        // vector is aligned as the caller's elements are.
        unsafe { reduce::called(&self.signature, &[], vectors, range) };
    }

    /// Waits for members that are late, or fails as the members do not agree.
    #[cold]
    fn complete(
        self,
        data: &mut [u8],
        piece_bytes: usize,
        messages: &SmallMessages,
        reduced: usize,
        last: &'a mut Duration,
    ) -> Result<bool, TransportFailure> {
        let (signature, group) = (self.signature, self.group);
        let Group { ref ranks, me, .. } = *group;
        let mut session = self.into_session(messages, reduced, last);
        session.release_sent()?;
        let mut call = MessageCall::new(&mut session, signature);
        let pieces = data.chunks_mut(piece_bytes).zip(messages.received.chunks_exact(ranks.len() - 1));
        for (index, (piece, received)) in pieces.enumerate().skip(reduced) {
            let mut messages = Messages::from_elem(None, ranks.len());
            others(ranks.len(), me)
                .zip(received)
                .for_each(|(member, message)| messages[member] = Some(*message));
            call.complete_small(&messages, piece, index == 0)?;
        }
        session.finish()?;
        Ok(session.all_take_bare)
    }

    /// Returns a session with the messages in flight, without those that are reduced.
    #[cold]
    fn into_session(self, messages: &SmallMessages, reduced: usize, last: &'a mut Duration) -> Session<'a> {
        let SmallAllReduce { group, call, connection, header, is_bare, other, timeout, .. } = self;
        let Group { ref ranks, me, .. } = *group;
        let mut session = Session::with(group, call, connection, header, timeout, Some(last));
        // Once a piece of all members is reduced, all have made this call.
        (session.is_bare, session.other) = (is_bare, other.filter(|_| reduced == 0));
        // Fewer if one could not be sent.
        let count = (reduced * (ranks.len() - 1)).min(messages.received.len());
        let (done, received) = messages.received.split_at(count);
        done.iter().for_each(|message| session.messenger().give_back(*message));
        session.resume(others(ranks.len(), me).cycle().zip(messages.sent.iter().copied()), received);
        session
    }
}
