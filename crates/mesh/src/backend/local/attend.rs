//! One member's part in a meeting, call after call.

use std::{ops::Range, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    meeting::{Meeting, SMALL_BYTES, Stopped},
    standing::{Closed, Standings},
};
use crate::{
    backend::reduce::{self, Vectors},
    comm::{Blocks, Call, Collective, Signature},
};

/// Ranges that members work on begin at multiples of this many elements, so that no two write to the same cache line
/// of vectors that begin at one.
const GRAIN: usize = 128;

/// A member's place in a meeting, and how far it has come.
#[derive(Debug)]
pub(super) struct Attendance {
    pub(super) meeting: Arc<Meeting>,
    me: usize,
    step: u64,
    call: u64,
}

/// Why a member's part ended without a result.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Members called different things, by member.
    Disagree(Vec<Option<Signature>>),
    /// All weights were 0. The meeting goes on.
    NoWeight,
    /// Somebody did not come.
    Stopped(Stopped),
    /// This member's own slot was closed.
    Closed(Closed),
}

/// Pointers, one a member.
type Pointers<P> = SmallVec<[P; 8]>;

impl Attendance {
    pub(super) fn new(meeting: Arc<Meeting>, me: usize) -> Self {
        Attendance { meeting, me, step: 0, call: 0 }
    }

    /// Takes part in a call.
    pub(super) fn run(
        &mut self,
        call: &mut Call<'_>,
        timeout: Duration,
        hopeless: &dyn Fn() -> Option<(usize, Closed)>,
    ) -> Result<(), Outcome> {
        let members = self.meeting.slots.len();
        let places = Blocks::of(&call.signature, call.lengths, members);
        let Call { signature, weight, input, ref mut output, .. } = *call;
        self.call += 1;
        self.step += 1;
        let (blocks, _) = signature.collective.blocks(members);
        let small = signature.part_bytes().saturating_mul(blocks) <= SMALL_BYTES;
        let meeting = &*self.meeting;
        let words = signature.pack();
        if signature.collective == Collective::WeightedAllReduce {
            meeting.set_weight(self.me, self.call, weight);
        }
        // In place, what is taken is what is given.
        if small {
            let given: &[u8] = if input.is_empty() { output } else { input };
            // SAFETY: all have arrived at the call before, or this would not be reached: a failed member runs no more.
            unsafe { meeting.copy_in(self.me, self.call, &given[..given.len().min(SMALL_BYTES)]) };
        }
        // From here on the caller's memory is touched through these pointers alone, also by this member.
        let output_pointer = output.as_mut_ptr();
        let input_pointer = if input.is_empty() { output_pointer } else { input.as_ptr().cast_mut() };
        if !small {
            meeting.lend(self.me, self.call, input_pointer, output_pointer);
        }
        // Last: the others keep looking at this line, and take it away again and again.
        meeting.slots.say(self.me, self.call, words);
        meeting.slots.arrive(self.me, self.step).map_err(Outcome::Closed)?;
        meeting.wake(self.me);
        // An error from here means that no member ever sees all of them at this step, so nobody touches what this one
        // has lent.
        meeting.wait(self.me, self.step, timeout, hopeless).map_err(Outcome::Stopped)?;

        // All are there, and all see the same: whatever is decided from here on, all decide.
        if (0..members).any(|member| meeting.slots.said(member, self.call) != words) {
            let said = |member| Signature::unpack(meeting.slots.said(member, self.call));
            return Err(Outcome::Disagree((0..members).map(said).collect()));
        }
        let mut weights = SmallVec::<[f64; 8]>::new();
        if signature.collective == Collective::WeightedAllReduce {
            weights.extend((0..members).map(|member| meeting.weight(member, self.call)));
            if weights.iter().all(|weight| *weight == 0.0) {
                return Err(Outcome::NoWeight);
            }
        }
        let part = Part { signature, me: self.me, members, weights: &weights, places };
        if small {
            let inputs: Pointers<_> = (0..members).map(|member| meeting.copied(member, self.call)).collect();
            // SAFETY: the copies are left alone until this member arrives at the next call; the output is this member's
            // own, of the length that the signature says.
            unsafe { part.alone(&inputs, output_pointer) };
            return Ok(());
        }
        let lent = |member| meeting.lent(member, self.call);
        let inputs: Pointers<_> = (0..members).map(|member| lent(member).0.cast_const()).collect();
        let outputs: Pointers<_> = (0..members).map(|member| lent(member).1).collect();
        // The others wait for this member below without a timeout: it must not leave by another way.
        let no_way_out = NoWayOut;
        // SAFETY: all members lend memory of the lengths that their equal signatures say, and keep it until all have
        // finished; each part touches what no other does.
        unsafe { part.together(&inputs, &outputs) };
        self.step += 1;
        meeting.slots.finish(self.me);
        meeting.wake(self.me);
        // Every member's part is bounded work that cannot fail, so this ends. Only then may what was lent be taken back.
        meeting.wait_until_finished(self.me, self.step);
        std::mem::forget(no_way_out);
        Ok(())
    }
}

/// Ends the process when dropped: unwinding from here would free memory that others still use.
struct NoWayOut;

impl Drop for NoWayOut {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// One member's part of a call that all agree on.
struct Part<'a> {
    signature: Signature,
    me: usize,
    members: usize,
    weights: &'a [f64],
    places: Blocks<'a>,
}

impl Part<'_> {
    /// Works out this member's own result from what all have given.
    ///
    /// # Safety
    /// Every input holds what the signature says that its member gives, and is left alone; so does the output, which
    /// has room for what this member takes and overlaps no input.
    unsafe fn alone(&self, inputs: &[*const u8], output: *mut u8) {
        let Part { signature, me, .. } = *self;
        let is_root = signature.root == Some(me as u32);
        let count = signature.count as usize;
        // SAFETY: the caller promises it, for each of the accesses below.
        unsafe {
            match signature.collective {
                Collective::AllReduce | Collective::WeightedAllReduce => {
                    self.reduce(Vectors { inputs, outputs: &[output] }, 0..count);
                }
                Collective::Reduce if is_root => {
                    self.reduce(Vectors { inputs, outputs: &[output] }, 0..count)
                }
                Collective::Reduce => {}
                _ => self.pull(inputs, output),
            }
        }
    }

    /// Does this member's share of the work for all, on the memory that all lend.
    ///
    /// # Safety
    /// Every input and output is as long as the signature says for its member. Nobody touches them but members in
    /// this same call.
    unsafe fn together(&self, inputs: &[*const u8], outputs: &[*mut u8]) {
        let Part { signature, me, places, .. } = *self;
        let root = signature.root.unwrap_or(0) as usize;
        // SAFETY: the caller promises it. Members reduce ranges that do not overlap, into all outputs; or they write to
        // their own output alone; or each writes its own block of the root's.
        unsafe {
            match signature.collective {
                Collective::AllReduce | Collective::WeightedAllReduce => {
                    self.reduce(Vectors { inputs, outputs }, self.share());
                }
                Collective::Reduce => {
                    self.reduce(Vectors { inputs, outputs: &outputs[root..=root] }, self.share());
                }
                Collective::Gather => {
                    let place = places.taken(root, me);
                    copy(inputs[me], outputs[root].add(place.start), place.len());
                }
                _ => self.pull(inputs, outputs[me]),
            }
        }
    }

    /// Fetches what this member takes from where it was given.
    ///
    /// # Safety
    /// As for [`alone`](Self::alone), but the output may be this member's own input where nothing is fetched.
    unsafe fn pull(&self, inputs: &[*const u8], output: *mut u8) {
        let Part { signature, me, places, .. } = *self;
        if signature.collective == Collective::ReduceScatter {
            // SAFETY: the caller promises it, of each member's block for this one.
            unsafe {
                let block = |input: &*const u8| input.add(me * signature.part_bytes());
                let inputs: Pointers<_> = inputs.iter().map(block).collect();
                self.reduce(Vectors { inputs: &inputs, outputs: &[output] }, 0..signature.count as usize);
            }
            return;
        }
        for (member, input) in inputs.iter().enumerate() {
            let (from, to) = (places.gives(member, me), places.takes(me, member));
            // SAFETY: the caller promises it.
            unsafe { copy(input.add(from.start), output.add(to.start), to.len()) };
        }
    }

    /// # Safety
    /// As for [`reduce::called`].
    unsafe fn reduce(&self, vectors: Vectors<'_>, range: Range<usize>) {
        // SAFETY: the caller promises it.
        unsafe { reduce::called(&self.signature, self.weights, vectors, range) };
    }

    /// The elements that this member reduces for all.
    fn share(&self) -> Range<usize> {
        let count = self.signature.count as usize;
        let each = count.div_ceil(self.members).next_multiple_of(GRAIN);
        (self.me * each).min(count)..((self.me + 1) * each).min(count)
    }
}

/// # Safety
/// Both are of this length, and do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller promises it.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}
