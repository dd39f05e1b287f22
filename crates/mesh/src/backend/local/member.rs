//! One member's part in a meeting, call after call.

use std::{ops::Range, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    arrival::{Arrivals, Closed},
    barrier::{SMALL_BYTES, SharedBarrier, WaitError},
};
use crate::{
    backend::reduce::{self, Vectors},
    comm::{Blocks, Call, CollectiveKind, Signature},
};

/// Ranges that members work on begin at multiples of this many elements, so that no two write to the same cache line
/// of vectors that begin at one.
const GRAIN: usize = 128;

/// A member's place in a meeting, and how far it has come.
#[derive(Debug)]
pub(super) struct LocalMember {
    pub(super) barrier: Arc<SharedBarrier>,
    me: usize,
    step: u64,
    call: u64,
}

/// Why a member's part ended without a result.
#[derive(Debug)]
pub(super) enum CallError {
    /// GroupSpec called different things, by member.
    Mismatch(Vec<Option<Signature>>),
    /// All weights were 0. The meeting goes on.
    ZeroWeights,
    /// Somebody did not come.
    Wait(WaitError),
    /// This member's own slot was closed.
    Closed(Closed),
}

/// Pointers, one a member.
type Pointers<P> = SmallVec<[P; 8]>;

impl LocalMember {
    pub(super) fn new(barrier: Arc<SharedBarrier>, me: usize) -> Self {
        LocalMember { barrier, me, step: 0, call: 0 }
    }

    /// Takes part in a call.
    pub(super) fn run(
        &mut self,
        call: &mut Call<'_>,
        timeout: Duration,
        known_gone: &dyn Fn() -> Option<(usize, Closed)>,
    ) -> Result<(), CallError> {
        let members = self.barrier.slots.len();
        let blocks = Blocks::of(&call.signature, call.lengths, members);
        let Call { signature, weight, input, ref mut output, .. } = *call;
        self.call += 1;
        self.step += 1;
        let (input_blocks, _) = signature.kind.blocks(members);
        let small = signature.block_bytes().saturating_mul(input_blocks) <= SMALL_BYTES;
        let barrier = &*self.barrier;
        let words = signature.pack();
        if signature.kind == CollectiveKind::WeightedAllReduce {
            barrier.set_weight(self.me, self.call, weight);
        }
        // In place, what is taken is what is given.
        if small {
            let given: &[u8] = if input.is_empty() { output } else { input };
            // SAFETY: all have arrived at the call before, or this would not be reached: a failed member runs no more.
            unsafe { barrier.copy_in(self.me, self.call, &given[..given.len().min(SMALL_BYTES)]) };
        }
        // From here on the caller's memory is touched through these pointers alone, also by this member.
        let output_pointer = output.as_mut_ptr();
        let input_pointer = if input.is_empty() { output_pointer } else { input.as_ptr().cast_mut() };
        if !small {
            barrier.lend(self.me, self.call, input_pointer, output_pointer);
        }
        // Last: the others keep looking at this line, and take it away again and again.
        barrier.slots.announce(self.me, self.call, words);
        barrier.slots.arrive(self.me, self.step).map_err(CallError::Closed)?;
        barrier.wake(self.me);
        // An error from here means that no member ever sees all of them at this step, so nobody touches what this one
        // has lent.
        barrier.wait(self.me, self.step, timeout, known_gone).map_err(CallError::Wait)?;

        // All are there, and all see the same: whatever is decided from here on, all decide.
        if (0..members).any(|member| barrier.slots.announced(member, self.call) != words) {
            let said = |member| Signature::unpack(barrier.slots.announced(member, self.call));
            return Err(CallError::Mismatch((0..members).map(said).collect()));
        }
        let mut weights = SmallVec::<[f64; 8]>::new();
        if signature.kind == CollectiveKind::WeightedAllReduce {
            weights.extend((0..members).map(|member| barrier.weight(member, self.call)));
            if weights.iter().all(|weight| *weight == 0.0) {
                return Err(CallError::ZeroWeights);
            }
        }
        let agreed = AgreedCall { signature, me: self.me, members, weights: &weights, blocks };
        if small {
            let inputs: Pointers<_> = (0..members).map(|member| barrier.copied(member, self.call)).collect();
            // SAFETY: the copies are left alone until this member arrives at the next call; the output is this member's
            // own, of the length that the signature says.
            unsafe { agreed.compute_own(&inputs, output_pointer) };
            return Ok(());
        }
        let lent = |member| barrier.lent(member, self.call);
        let inputs: Pointers<_> = (0..members).map(|member| lent(member).0.cast_const()).collect();
        let outputs: Pointers<_> = (0..members).map(|member| lent(member).1).collect();
        // The others wait for this member below without a timeout: it must not leave by another way.
        let abort_on_unwind = AbortOnDrop;
        // SAFETY: all members lend memory of the lengths that their equal signatures say, and keep it until all have
        // finished; each part touches what no other does.
        unsafe { agreed.compute_share(&inputs, &outputs) };
        self.step += 1;
        barrier.slots.finish(self.me);
        barrier.wake(self.me);
        // Every member's part is bounded work that cannot fail, so this ends. Only then may what was lent be taken back.
        barrier.wait_until_finished(self.me, self.step);
        std::mem::forget(abort_on_unwind);
        Ok(())
    }
}

/// Ends the process when dropped: unwinding from here would free memory that others still use.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// One member's part of a call that all agree on.
struct AgreedCall<'a> {
    signature: Signature,
    me: usize,
    members: usize,
    weights: &'a [f64],
    blocks: Blocks<'a>,
}

impl AgreedCall<'_> {
    /// Works out this member's own result from what all have given.
    ///
    /// # Safety
    /// Every input holds what the signature says that its member gives, and is left alone; so does the output, which
    /// has room for what this member takes and overlaps no input.
    unsafe fn compute_own(&self, inputs: &[*const u8], output: *mut u8) {
        let AgreedCall { signature, me, .. } = *self;
        let is_root = signature.root == Some(me as u32);
        let count = signature.count as usize;
        // SAFETY: the caller promises it, for each of the accesses below.
        unsafe {
            match signature.kind {
                CollectiveKind::AllReduce | CollectiveKind::WeightedAllReduce => {
                    self.reduce(Vectors { inputs, outputs: &[output] }, 0..count);
                }
                CollectiveKind::Reduce if is_root => {
                    self.reduce(Vectors { inputs, outputs: &[output] }, 0..count)
                }
                CollectiveKind::Reduce => {}
                _ => self.fetch(inputs, output),
            }
        }
    }

    /// Does this member's share of the work for all, on the memory that all lend.
    ///
    /// # Safety
    /// Every input and output is as long as the signature says for its member. Nobody touches them but members in
    /// this same call.
    unsafe fn compute_share(&self, inputs: &[*const u8], outputs: &[*mut u8]) {
        let AgreedCall { signature, me, blocks, .. } = *self;
        let root = signature.root.unwrap_or(0) as usize;
        // SAFETY: the caller promises it. GroupSpec reduce ranges that do not overlap, into all outputs; or they write to
        // their own output alone; or each writes its own block of the root's.
        unsafe {
            match signature.kind {
                CollectiveKind::AllReduce | CollectiveKind::WeightedAllReduce => {
                    self.reduce(Vectors { inputs, outputs }, self.element_share());
                }
                CollectiveKind::Reduce => {
                    self.reduce(Vectors { inputs, outputs: &outputs[root..=root] }, self.element_share());
                }
                CollectiveKind::Gather => {
                    let block = blocks.output_block(root, me);
                    copy(inputs[me], outputs[root].add(block.start), block.len());
                }
                _ => self.fetch(inputs, outputs[me]),
            }
        }
    }

    /// Fetches what this member takes from where it was given.
    ///
    /// # Safety
    /// As for [`alone`](Self::alone), but the output may be this member's own input where nothing is fetched.
    unsafe fn fetch(&self, inputs: &[*const u8], output: *mut u8) {
        let AgreedCall { signature, me, blocks, .. } = *self;
        if signature.kind == CollectiveKind::ReduceScatter {
            // SAFETY: the caller promises it, of each member's block for this one.
            unsafe {
                let block = |input: &*const u8| input.add(me * signature.block_bytes());
                let inputs: Pointers<_> = inputs.iter().map(block).collect();
                self.reduce(Vectors { inputs: &inputs, outputs: &[output] }, 0..signature.count as usize);
            }
            return;
        }
        for (member, input) in inputs.iter().enumerate() {
            let (from, to) = (blocks.send_range(member, me), blocks.recv_range(me, member));
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
    fn element_share(&self) -> Range<usize> {
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
