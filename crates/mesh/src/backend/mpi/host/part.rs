//! One rank's part of one collective, on pages that all members have.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    super::session::others,
    meeting::{Meeting, Patience},
};
use crate::{
    backend::{
        Failure,
        local::standing::Standings,
        reduce::{self, Vectors},
    },
    comm::{Blocks, Call, Collective, Signature},
};

/// Where all others' vectors together are no longer than this, everybody reduces them all: one meeting and not two.
const WHOLE_BYTES: usize = 8 << 10;

/// Parts of this size and above are given past the caches, in which they would not stay.
const FAR_BYTES: usize = 32 << 20;
/// So much of a result is given past the caches at once, while it is still in the nearest.
const NEAR_BYTES: usize = 16 << 10;

/// One rank's part of one collective.
pub(super) struct Part<'a> {
    meeting: &'a mut Meeting,
    patience: Patience<'a>,
    signature: Signature,
    weight: f64,
    weights: SmallVec<[f64; 8]>,
    /// All were heard to call the same.
    open: bool,
    /// What is given would not stay in a cache anyway.
    far: bool,
}

/// The range of one piece of so many bytes; empty past the end.
fn piece(total: usize, bytes: usize, index: usize) -> Range<usize> {
    (index * bytes).min(total)..((index + 1) * bytes).min(total)
}

impl<'a> Part<'a> {
    pub(super) fn new(meeting: &'a mut Meeting, patience: Patience<'a>, call: &Call<'_>) -> Self {
        let (signature, weight) = (call.signature, call.weight);
        let far = signature.part_bytes() >= FAR_BYTES;
        Part { meeting, patience, signature, weight, weights: SmallVec::new(), open: false, far }
    }

    pub(super) fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failure> {
        let (members, me) = (self.meeting.seats.len(), self.meeting.me);
        let places = Blocks::of(&call.signature, call.lengths, members);
        let Call { signature, input, ref mut output, .. } = *call;
        let part = signature.part_bytes();
        let is_root = |member: usize| signature.root.is_none_or(|root| root as usize == member);
        match signature.collective {
            Collective::Barrier => self.meet(),
            Collective::AllReduce | Collective::WeightedAllReduce | Collective::Reduce => {
                if part * (members - 1) <= WHOLE_BYTES {
                    self.reduce_whole(output, is_root(me))
                } else {
                    self.reduce_slices(output, is_root(me))
                }
            }
            Collective::ReduceScatter => self.reduce_blocks(input, output),
            Collective::Broadcast if is_root(me) => self.share(output, None, &mut [], |_| 0..0),
            collective => {
                output[places.takes(me, me)].copy_from_slice(&input[places.gives(me, me)]);
                let (to, from) = (|it| places.gives(me, it), |it| places.takes(me, it));
                match collective {
                    Collective::Scatter | Collective::AllToAll => self.share(input, Some(&to), output, from),
                    // A root gathers from the others alone.
                    Collective::Gather if is_root(me) => self.share(&[], None, output, from),
                    _ => self.share(input, None, output, from),
                }
            }
        }
    }

    /// What a member can give each other member at once, where it gives each something else: whole cache lines.
    fn share_bytes(&self) -> usize {
        self.meeting.seats.data / self.meeting.seats.len() / 64 * 64
    }

    /// Meets the others. At the first meeting all say what they call, and hear it.
    #[inline]
    fn meet(&mut self) -> Result<(), Failure> {
        if self.open {
            return self.meeting.meet(&mut self.patience);
        }
        self.open = true;
        let [what, count] = self.signature.pack();
        self.meeting.meet_and_say([what, count, self.weight.to_bits()], &mut self.patience)?;
        // All are there, and all see the same: whatever is decided from here on, all decide.
        let mut agreed = true;
        for member in 0..self.meeting.seats.len() {
            let [other, other_count, weight] = self.meeting.seats.said(member, self.meeting.step);
            agreed &= [other, other_count] == [what, count];
            self.weights.push(f64::from_bits(weight));
        }
        if !agreed {
            let said = |member| {
                let [what, count, _] = self.meeting.seats.said(member, self.meeting.step);
                Signature::unpack([what, count])
            };
            return Err(Failure::Disagree((0..self.meeting.seats.len()).map(said).collect()));
        }
        if self.signature.collective == Collective::WeightedAllReduce
            && self.weights.iter().all(|weight| *weight == 0.0)
        {
            return Err(Failure::NoWeight);
        }
        Ok(())
    }

    /// Gives all the same, or each its own block where there is a place `to` find it, piece by piece, and takes from each
    /// what it gave to this one. Whoever gives, gives as much as a part.
    fn share(
        &mut self,
        given: &[u8],
        to: Option<&dyn Fn(usize) -> Range<usize>>,
        taken: &mut [u8],
        from: impl Fn(usize) -> Range<usize>,
    ) -> Result<(), Failure> {
        let (members, me, part) = (self.meeting.seats.len(), self.meeting.me, self.signature.part_bytes());
        let (bytes, at) = match to {
            Some(_) => (self.share_bytes(), me * self.share_bytes()),
            None => (self.meeting.seats.data, 0),
        };
        for index in 0..part.div_ceil(bytes).max(1) {
            match to {
                Some(to) => self.give_each(given, to, index),
                None => self.meeting.give(0, &given[piece(given.len(), bytes, index)], self.far),
            }
            self.meet()?;
            for member in others(members, me) {
                let into = &mut taken[from(member)];
                let range = piece(into.len(), bytes, index);
                into[range.clone()].copy_from_slice(self.meeting.given(member, at, range.len()));
            }
        }
        Ok(())
    }

    /// Writes a piece of everybody's slice but this member's own; nothing where nothing is given.
    fn give_each(&mut self, given: &[u8], slice: impl Fn(usize) -> Range<usize>, index: usize) {
        if given.is_empty() {
            return;
        }
        let (members, me) = (self.meeting.seats.len(), self.meeting.me);
        let bytes = self.share_bytes();
        for member in others(members, me) {
            let slice = &given[slice(member)];
            self.meeting.give(member * bytes, &slice[piece(slice.len(), bytes, index)], self.far);
        }
    }

    /// Reduces everybody's whole vector, where this member takes the result.
    fn reduce_whole(&mut self, data: &mut [u8], takes: bool) -> Result<(), Failure> {
        self.meeting.give(0, data, false);
        self.meet()?;
        if takes {
            let data_pointer = data.as_mut_ptr();
            self.reduce(0, data_pointer.cast_const(), &[data_pointer], data.len());
        }
        Ok(())
    }

    /// Everybody reduces its slice of the vector, piece by piece, and gives each piece that is done to those who take it.
    fn reduce_slices(&mut self, data: &mut [u8], takes: bool) -> Result<(), Failure> {
        let (members, me, total) = (self.meeting.seats.len(), self.meeting.me, data.len());
        // Slices are whole elements, and begin at cache lines where the vector does.
        let each = total.div_ceil(members).next_multiple_of(64);
        let slice = |member: usize| (member * each).min(total)..((member + 1) * each).min(total);
        let (bytes, results) = (self.share_bytes(), self.meeting.seats.data);
        let rounds = each.div_ceil(bytes);
        // A meeting is for the pieces to reduce and for the results of those before.
        for index in 0..=rounds {
            if index < rounds {
                self.give_each(data, slice, index);
            }
            self.meet()?;
            if index > 0 && takes {
                for member in others(members, me) {
                    let into = &mut data[slice(member)];
                    let range = piece(into.len(), bytes, index - 1);
                    into[range.clone()].copy_from_slice(self.meeting.given(member, results, range.len()));
                }
            }
            if index < rounds {
                let mine = &mut data[slice(me)];
                let range = piece(mine.len(), bytes, index);
                self.reduce_piece(&mut mine[range], me * bytes, takes);
            }
        }
        Ok(())
    }

    /// Reduces a piece of this member's slice, and gives the result; it also takes it, or leaves the piece as it is.
    fn reduce_piece(&mut self, mine: &mut [u8], at: usize, takes: bool) {
        let results = self.meeting.seats.data;
        if self.far && takes {
            for (index, mine) in mine.chunks_mut(NEAR_BYTES).enumerate() {
                let (offset, own) = (index * NEAR_BYTES, mine.as_mut_ptr());
                self.reduce(at + offset, own.cast_const(), &[own], mine.len());
                self.meeting.give(results + offset, mine, true);
            }
            return;
        }
        let (own, len) = (mine.as_mut_ptr(), mine.len());
        let result = self.meeting.room(results, len).as_mut_ptr();
        let outputs = if takes { &[result, own][..] } else { &[result] };
        self.reduce(at, own.cast_const(), outputs, len);
    }

    /// Everybody reduces its block of what all give.
    fn reduce_blocks(&mut self, given: &[u8], result: &mut [u8]) -> Result<(), Failure> {
        let (me, part) = (self.meeting.me, self.signature.part_bytes());
        let block = |member: usize| member * part..(member + 1) * part;
        let bytes = self.share_bytes();
        for index in 0..part.div_ceil(bytes).max(1) {
            self.give_each(given, block, index);
            self.meet()?;
            let range = piece(part, bytes, index);
            let own = given[block(me)][range.clone()].as_ptr();
            let result = &mut result[range];
            self.reduce(me * bytes, own, &[result.as_mut_ptr()], result.len());
        }
        Ok(())
    }

    /// Reduces what the others gave at a place of their pages, and this member's own, in the order of ranks.
    fn reduce(&self, at: usize, own: *const u8, outputs: &[*mut u8], bytes: usize) {
        if bytes == 0 {
            return;
        }
        let me = self.meeting.me;
        let inputs: SmallVec<[*const u8; 8]> = (0..self.meeting.seats.len())
            .map(|member| if member == me { own } else { self.meeting.given(member, at, bytes).as_ptr() })
            .collect();
        let vectors = Vectors { inputs: &inputs, outputs };
        let range = 0..bytes / self.signature.element.bytes();
        // SAFETY: everything is of so many bytes: the others', which begins at a cache line and is left alone until this
        // member arrives at the next meeting; this member's own, aligned as the caller's elements are; and the outputs,
        // each of which is this member's own input, or the caller's, or on this member's page for the next meeting.
        unsafe { reduce::called(&self.signature, &self.weights, vectors, range) };
    }
}
