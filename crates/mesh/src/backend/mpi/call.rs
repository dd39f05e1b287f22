//! How each collective runs by messages.

use std::{ffi::c_int, ops::Range};

use smallvec::SmallVec;

use super::{
    buffers::{HEADER_BYTES, PIECE_BYTES},
    endpoint::Group,
    session::{Messages, Session, others},
};
use crate::{
    backend::{
        TransportFailure,
        reduce::{self, Vectors},
    },
    comm::{Blocks, Call, CollectiveKind, Signature},
};

/// If all other members' vectors together are at most this long, every member receives them whole and reduces them all.
const WHOLE_BYTES: usize = 64 << 10;
/// Bytes that are reduced and then copied to a message.
const BLOCK_BYTES: usize = 4 << 10;
/// Blocks up to this size go in pieces that the library sends eagerly, without a rendezvous.
const SHORT_BYTES: usize = 32 << 10;
/// Longer blocks go in shorter pieces: several are in flight, and should fit the second-level cache.
const MEDIUM_BYTES: usize = 2 << 20;

// Offsets of a group's tags.
pub(super) const PIECE_TAG: c_int = 0;
const RESULT_TAG: c_int = 1;
pub(super) const EXCHANGE_TAG: c_int = 2;
pub(super) const BARE_TAG: c_int = 3;

/// Returns the range of one piece of `bytes`; empty past the end.
pub(super) fn piece(total: usize, bytes: usize, index: usize) -> Range<usize> {
    (index * bytes).min(total)..((index + 1) * bytes).min(total)
}

/// One rank's call of one collective, by messages.
pub(super) struct MessageCall<'a, 'b> {
    session: &'b mut Session<'a>,
    signature: Signature,
    me: usize,
    tag: c_int,
    piece_bytes: usize,
    weights: SmallVec<[f64; 8]>,
}

impl<'a, 'b> MessageCall<'a, 'b> {
    pub(super) fn new(session: &'b mut Session<'a>, signature: Signature) -> Self {
        let (block_len, eager) =
            (signature.block_bytes(), (session.messenger().eager_bytes - HEADER_BYTES) / 64 * 64);
        let piece_bytes = match block_len {
            block_len if block_len <= eager => eager,
            block_len if block_len <= SHORT_BYTES => {
                block_len.div_ceil(block_len.div_ceil(eager)).next_multiple_of(64)
            }
            block_len if block_len <= MEDIUM_BYTES => PIECE_BYTES,
            _ => PIECE_BYTES / 2,
        };
        let Group { me, tag, .. } = *session.group;
        MessageCall { session, signature, me, tag, piece_bytes, weights: SmallVec::new() }
    }

    /// Returns the number of pieces of a vector.
    #[inline]
    fn rounds(&self, bytes: usize) -> usize {
        // The common case, without a division.
        if bytes <= self.piece_bytes { 1 } else { bytes.div_ceil(self.piece_bytes) }
    }

    fn piece(&self, bytes: usize, index: usize) -> Range<usize> {
        piece(bytes, self.piece_bytes, index)
    }

    #[inline]
    pub(super) fn run(&mut self, call: &mut Call<'_>) -> Result<(), TransportFailure> {
        let (block_len, others) = (call.signature.block_bytes(), self.session.group.ranks.len() - 1);
        let is_short = block_len <= 2 * self.piece_bytes && block_len * others <= WHOLE_BYTES;
        match call.signature.kind {
            CollectiveKind::AllReduce if is_short => self.all_reduce_short(call.output),
            _ => self.run_any(call),
        }
    }

    fn run_any(&mut self, call: &mut Call<'_>) -> Result<(), TransportFailure> {
        let (members, me) = (self.session.group.ranks.len(), self.me);
        let blocks = Blocks::of(&call.signature, call.lengths, members);
        let Call { signature, weight, input, ref mut output, .. } = *call;
        let block_len = signature.block_bytes();
        let root = signature.root.map(|root| root as usize);
        if signature.kind == CollectiveKind::WeightedAllReduce {
            self.weights.resize(members, weight);
        }
        match signature.kind {
            CollectiveKind::AllReduce | CollectiveKind::WeightedAllReduce => {
                if block_len * (members - 1) <= WHOLE_BYTES {
                    self.reduce_slices(None, output, |_| 0..block_len, 0)?;
                } else {
                    self.all_reduce(output)?;
                }
            }
            CollectiveKind::Reduce => {
                let slice = |member| if Some(member) == root { 0..block_len } else { 0..0 };
                self.reduce_slices(None, output, slice, 0)?;
            }
            CollectiveKind::ReduceScatter => {
                self.reduce_slices(Some(input), output, |it| blocks.input_block(me, it), me * block_len)?;
            }
            CollectiveKind::Broadcast if Some(me) == root => {
                self.exchange(output, |member| blocks.send_range(me, member), &mut [], |_| 0..0)?;
            }
            _ => {
                output[blocks.recv_range(me, me)].copy_from_slice(&input[blocks.send_range(me, me)]);
                let (to, from) = (|it| blocks.send_range(me, it), |it| blocks.recv_range(me, it));
                self.exchange(input, to, output, from)?;
            }
        }
        self.session.finish()
    }

    /// Sends all members the header, with the first piece of the data for each.
    fn send_first(
        &mut self,
        to: impl Fn(usize) -> Range<usize>,
        from: &[u8],
    ) -> Result<Messages, TransportFailure> {
        let (piece, tag) = (self.piece_bytes, self.tag + PIECE_TAG);
        self.session.send_to_all(tag, |member| {
            let sent = &from[to(member)];
            &sent[..sent.len().min(piece)]
        })
    }

    /// As `send_first`, but also sends the second piece before waiting for any member, and starts to receive the
    /// second.
    #[inline]
    fn send_first_two(
        &mut self,
        slice: impl Fn(usize) -> Range<usize> + Copy,
        from: &[u8],
        rounds: usize,
        second: &mut Option<Messages>,
    ) -> Result<Messages, TransportFailure> {
        let (messages, me) = (self.send_first(slice, from)?, self.me);
        // If all weights are 0 the group stays usable, so no message may be left in flight.
        let may_be_last = self.signature.kind == CollectiveKind::WeightedAllReduce;
        if rounds > 1 && !may_be_last && self.session.order_is_known() {
            *second = Some(self.exchange_piece(from, slice, |_| slice(me).len(), 1)?);
        }
        self.agree(&messages)?;
        Ok(messages)
    }

    /// Waits for the first message of all members, and checks that the signatures are equal.
    fn agree(&mut self, messages: &Messages) -> Result<(), TransportFailure> {
        let (members, me) = (self.session.group.ranks.len(), self.me);
        self.session.wait_all(messages)?;
        let mine = self.signature.pack();
        let (mut agreed, mut late) = (true, false);
        for member in others(members, me) {
            let Some(message) = messages[member] else { continue };
            let header = self.session.header_of(message);
            agreed &= header.signature == mine;
            self.session.all_take_bare &= header.takes_bare;
            late |= header.call != self.session.header.call;
            if let Some(weight) = self.weights.get_mut(member) {
                *weight = header.weight;
            }
        }
        if !agreed || late {
            let called = (0..members).map(|member| match messages[member] {
                Some(message) => Signature::unpack(self.session.header_of(message).signature),
                None => Some(self.signature),
            });
            return Err(TransportFailure::Mismatch(called.collect()));
        }
        // From now on, another kind of first message is of a member's next call.
        self.session.other = None;
        if !self.weights.is_empty() && self.weights.iter().all(|it| *it == 0.0) {
            self.release_all(messages);
            self.session.finish()?;
            return Err(TransportFailure::ZeroWeights);
        }
        Ok(())
    }

    #[inline(always)]
    fn release_all(&mut self, messages: &Messages) {
        messages.iter().flatten().for_each(|message| self.session.release(*message));
    }

    /// Sends each member a range of `sent`, and receives a range of `received` from each.
    fn exchange(
        &mut self,
        sent: &[u8],
        to: impl Fn(usize) -> Range<usize>,
        received: &mut [u8],
        from: impl Fn(usize) -> Range<usize>,
    ) -> Result<(), TransportFailure> {
        let messages = self.send_first(&to, sent)?;
        self.agree(&messages)?;
        self.receive_piece(&messages, received, &from, 0)?;
        let longest =
            others(self.session.group.ranks.len(), self.me).map(|it| to(it).len().max(from(it).len()));
        for index in 1..self.rounds(longest.max().unwrap_or(0)) {
            let expected = self.exchange_piece(sent, &to, |member| from(member).len(), index)?;
            self.receive_piece(&expected, received, &from, index)?;
        }
        Ok(())
    }

    /// Waits for a piece from each member, and copies it to the output.
    fn receive_piece(
        &mut self,
        pieces: &Messages,
        received: &mut [u8],
        from: impl Fn(usize) -> Range<usize>,
        index: usize,
    ) -> Result<(), TransportFailure> {
        self.session.wait_all(pieces)?;
        for (member, message) in pieces.iter().enumerate() {
            let Some(message) = *message else { continue };
            let into = &mut received[from(member)];
            let range = self.piece(into.len(), index);
            let len = range.len();
            into[range].copy_from_slice(&self.session.data_of(message)[..len]);
        }
        self.release_all(pieces);
        Ok(())
    }

    /// Every member sends all members its vector of one or two pieces, and reduces them all.
    // Not inlined: as part of a larger function it would save and restore more registers.
    #[inline(never)]
    fn all_reduce_short(&mut self, data: &mut [u8]) -> Result<(), TransportFailure> {
        let (members, me, tag, len) =
            (self.session.group.ranks.len(), self.me, self.tag + PIECE_TAG, data.len());
        let (first, second) = (self.piece(len, 0), self.piece(len, 1));
        // Sends first: the other members wait for that.
        for member in others(members, me) {
            self.session.send(member, tag, &data[first.clone()])?;
            if !second.is_empty() {
                self.session.send(member, tag, &data[second.clone()])?;
            }
        }
        let pieces = self.session.start_recv_all(tag)?;
        let mut next = None;
        if !second.is_empty() && self.session.order_is_known() {
            next = Some(self.session.start_recv_all(tag)?);
        }
        self.session.release_sent()?;
        // Usually all messages arrive soon, and are of this call.
        if !self.session.poll_all(&pieces)? {
            self.agree(&pieces)?;
        }
        self.reduce_in_place(&pieces, &mut data[first]);
        if !second.is_empty() {
            let pieces = match next {
                Some(next) => next,
                None => self.session.start_recv_all(tag)?,
            };
            self.session.wait_all(&pieces)?;
            self.reduce_in_place(&pieces, &mut data[second]);
        }
        self.session.finish()
    }

    /// Waits for a piece of the members' vectors of a small all-reduce, and reduces it.
    pub(super) fn complete_small(
        &mut self,
        messages: &Messages,
        piece: &mut [u8],
        is_first: bool,
    ) -> Result<(), TransportFailure> {
        if is_first {
            self.agree(messages)?;
        } else {
            self.session.wait_all(messages)?;
        }
        self.reduce_in_place(messages, piece);
        Ok(())
    }

    /// Reduces a piece of all members into this rank's own, and releases the messages.
    #[inline]
    fn reduce_in_place(&mut self, pieces: &Messages, here: &mut [u8]) {
        let own = here.as_mut_ptr();
        self.reduce(pieces, 0, own, own, here.len());
        self.release_all(pieces);
    }

    /// Every member reduces its slice of the vector piece by piece, and sends each reduced piece to the others.
    fn all_reduce(&mut self, data: &mut [u8]) -> Result<(), TransportFailure> {
        let (members, me) = (self.session.group.ranks.len(), self.me);
        let element = self.signature.element.bytes();
        // Slices are whole elements, and start at cache lines.
        let each = data.len().div_ceil(members).next_multiple_of(element.max(64));
        let total = data.len();
        let slice = |member: usize| (member * each).min(total)..((member + 1) * each).min(total);
        let rounds = self.rounds(slice(0).len());
        let (results, mine) = (self.tag + RESULT_TAG, slice(me));
        let mut second = None;
        let mut pieces = Some(self.send_first_two(slice, data, rounds, &mut second)?);
        let mut reduced: Messages = Messages::from_elem(None, members);
        for index in 0..=rounds {
            let (mut next_pieces, mut next_reduced) = (None, Messages::from_elem(None, members));
            if !self.session.order_is_known() {
                self.receive_piece(&reduced, data, slice, index.saturating_sub(1))?;
                reduced = Messages::from_elem(None, members);
            }
            if index < rounds {
                for member in others(members, me) {
                    if !self.piece(slice(member).len(), index).is_empty() {
                        next_reduced[member] = Some(self.session.start_recv(member, results)?);
                    }
                }
                if index + 1 < rounds {
                    next_pieces = Some(match second.take() {
                        Some(second) => second,
                        None => self.exchange_piece(data, slice, |_| mine.len(), index + 1)?,
                    });
                }
                let here = &mut data[mine.clone()][self.piece(mine.len(), index)];
                if let Some(pieces) = pieces.take() {
                    self.session.wait_all(&pieces)?;
                    self.reduce_and_send(&pieces, here, results)?;
                    self.release_all(&pieces);
                }
            }
            self.receive_piece(&reduced, data, slice, index.saturating_sub(1))?;
            (pieces, reduced) = (next_pieces, next_reduced);
        }
        Ok(())
    }

    fn reduce_and_send(
        &mut self,
        pieces: &Messages,
        here: &mut [u8],
        tag: c_int,
    ) -> Result<(), TransportFailure> {
        if here.is_empty() {
            return Ok(());
        }
        let mut members = others(self.session.group.ranks.len(), self.me);
        if let Some(member) = members.next() {
            let message = self.session.create_message(here.len())?;
            // Copies each block to the first message while it is in the first-level cache.
            for (index, block) in here.chunks_mut(BLOCK_BYTES).enumerate() {
                let (own, start) = (block.as_mut_ptr(), index * BLOCK_BYTES);
                self.reduce(pieces, start, own, own, block.len());
                self.session.write(message, start, block);
            }
            self.session.post(message, member, tag, here.len())?;
        }
        members.try_for_each(|member| self.session.send(member, tag, here))
    }

    /// Every member reduces its slice of all inputs into `result`. `sent` is `None` if `result` is also the input.
    fn reduce_slices(
        &mut self,
        sent: Option<&[u8]>,
        result: &mut [u8],
        slice: impl Fn(usize) -> Range<usize> + Copy,
        my_offset: usize,
    ) -> Result<(), TransportFailure> {
        let members = self.session.group.ranks.len();
        let mine = slice(self.me);
        let longest = (0..members).map(|member| slice(member).len()).max().unwrap_or(0);
        let rounds = self.rounds(longest);
        let mut next = None;
        let mut pieces = self.send_first_two(slice, sent.unwrap_or(result), rounds, &mut next)?;
        for index in 0.. {
            if index + 1 < rounds && next.is_none() {
                next = Some(self.exchange_piece(sent.unwrap_or(result), slice, |_| mine.len(), index + 1)?);
            }
            let range = self.piece(mine.len(), index);
            let output = result[range.clone()].as_mut_ptr();
            let own = match sent {
                Some(sent) => sent[my_offset..][range.clone()].as_ptr(),
                None => output.cast_const(),
            };
            self.reduce(&pieces, 0, own, output, range.len());
            self.release_all(&pieces);
            let Some(more) = next.take() else { break };
            pieces = more;
            self.session.wait_all(&pieces)?;
        }
        Ok(())
    }

    /// Sends each member its piece, and starts to receive the same piece from each member that sends one.
    fn exchange_piece(
        &mut self,
        sent: &[u8],
        to: impl Fn(usize) -> Range<usize>,
        gives: impl Fn(usize) -> usize,
        index: usize,
    ) -> Result<Messages, TransportFailure> {
        let (members, me, tag) = (self.session.group.ranks.len(), self.me, self.tag + PIECE_TAG);
        let mut expected = Messages::from_elem(None, members);
        for member in others(members, me) {
            if !self.piece(gives(member), index).is_empty() {
                expected[member] = Some(self.session.start_recv(member, tag)?);
            }
        }
        for member in others(members, me) {
            let range = self.piece(to(member).len(), index);
            if !range.is_empty() {
                self.session.send(member, tag, &sent[to(member)][range])?;
            }
        }
        Ok(expected)
    }

    /// Reduces a part of a piece of all members in rank order, including this rank's own part.
    fn reduce(&mut self, pieces: &Messages, start: usize, own: *const u8, output: *mut u8, bytes: usize) {
        if bytes == 0 {
            return;
        }
        // Not collected: that would copy the array.
        let mut inputs = SmallVec::<[*const u8; 8]>::new();
        for message in pieces {
            inputs.push(message.map_or(own, |message| self.session.data_of(message)[start..].as_ptr()));
        }
        let vectors = Vectors { inputs: &inputs, outputs: &[output] };
        let range = 0..bytes / self.signature.element.bytes();
        // SAFETY: each message holds `start + bytes` at a cache line, `start` is whole elements, and the message is not
        // written until it is released; this rank's own part is as long, and is the output or does not overlap it. Both
        // are aligned as the caller's elements are.
        unsafe { reduce::called(&self.signature, &self.weights, vectors, range) };
    }
}
