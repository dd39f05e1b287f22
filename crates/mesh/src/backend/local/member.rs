//! How a member takes part in the collectives of a group of threads.

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

/// Members reduce ranges that start at multiples of this many elements, so that no two write to the same cache line.
const GRAIN: usize = 128;

/// One member of a shared barrier, and the step that it has reached.
#[derive(Debug)]
pub(super) struct LocalMember {
    pub(super) barrier: Arc<SharedBarrier>,
    me: usize,
    step: u64,
    call: u64,
}

/// Why a member's call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The members called different collectives: each member's signature.
    Mismatch(Vec<Option<Signature>>),
    /// All weights were 0. The group stays usable.
    ZeroWeights,
    Wait(WaitError),
    Closed(Closed),
}

type Pointers<P> = SmallVec<[P; 8]>;

impl LocalMember {
    pub(super) fn new(barrier: Arc<SharedBarrier>, me: usize) -> Self {
        LocalMember { barrier, me, step: 0, call: 0 }
    }

    pub(super) fn run(
        &mut self,
        call: &mut Call<'_>,
        timeout: Duration,
        left_member: &dyn Fn() -> Option<(usize, Closed)>,
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
        // An in-place collective reads its output.
        if small {
            let data: &[u8] = if input.is_empty() { output } else { input };
            // SAFETY: all members have arrived at the previous call: a member whose call failed makes no other.
            unsafe { barrier.copy_in(self.me, self.call, &data[..data.len().min(SMALL_BYTES)]) };
        }
        // From here on the caller's memory is accessed only through these pointers, also by this member.
        let output_pointer = output.as_mut_ptr();
        let input_pointer = if input.is_empty() { output_pointer } else { input.as_ptr().cast_mut() };
        if !small {
            barrier.lend(self.me, self.call, input_pointer, output_pointer);
        }
        // Last, because the other members poll this cache line.
        barrier.slots.announce(self.me, self.call, words);
        barrier.slots.arrive(self.me, self.step).map_err(CallError::Closed)?;
        barrier.wake(self.me);
        // If this fails, no member ever sees all members at this step, so no member accesses the memory that this one
        // lent.
        barrier.wait(self.me, self.step, timeout, left_member).map_err(CallError::Wait)?;

        // All members have arrived and see the same signatures, so all take the same decision.
        if (0..members).any(|member| barrier.slots.announced(member, self.call) != words) {
            let signature_of = |member| Signature::unpack(barrier.slots.announced(member, self.call));
            return Err(CallError::Mismatch((0..members).map(signature_of).collect()));
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
            // SAFETY: the copies are not written until this member arrives at the next call; the output is this
            // member's own, of the length that the signature says.
            unsafe { agreed.compute_own(&inputs, output_pointer) };
            return Ok(());
        }
        let lent = |member| barrier.lent(member, self.call);
        let inputs: Pointers<_> = (0..members).map(|member| lent(member).0.cast_const()).collect();
        let outputs: Pointers<_> = (0..members).map(|member| lent(member).1).collect();
        // The other members wait for this one without a timeout: it must reach `finish` below.
        let abort_on_unwind = AbortOnDrop;
        // SAFETY: all members lend memory of the lengths that their equal signatures say, and keep it until all have
        // finished; the members' shares do not overlap.
        unsafe { agreed.compute_share(&inputs, &outputs) };
        self.step += 1;
        barrier.slots.of(self.me).finish();
        barrier.wake(self.me);
        // Every member's share is bounded work that cannot fail, so this ends. Only then may lent memory be used again.
        barrier.wait_until_finished(self.me, self.step);
        std::mem::forget(abort_on_unwind);
        Ok(())
    }
}

/// Aborts the process when dropped: unwinding would free memory that other members still access.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// One member's view of a call whose signatures are equal.
struct AgreedCall<'a> {
    signature: Signature,
    me: usize,
    members: usize,
    weights: &'a [f64],
    blocks: Blocks<'a>,
}

impl AgreedCall<'_> {
    /// Computes this member's result from the inputs of all members.
    ///
    /// # Safety
    /// Every input has the length that the signature says for its member, and is not written; the output has the length
    /// of this member's output, and overlaps no input.
    unsafe fn compute_own(&self, inputs: &[*const u8], output: *mut u8) {
        let AgreedCall { signature, me, .. } = *self;
        let is_root = signature.root == Some(me as u32);
        let count = signature.count as usize;
        // SAFETY: the caller promises the lengths and that nothing overlaps, for each access below.
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

    /// Does this member's share of the work, on the memory that all members lend.
    ///
    /// # Safety
    /// Every input and output has the length that the signature says for its member. Only members in this same call
    /// access them.
    unsafe fn compute_share(&self, inputs: &[*const u8], outputs: &[*mut u8]) {
        let AgreedCall { signature, me, blocks, .. } = *self;
        let root = signature.root.unwrap_or(0) as usize;
        // SAFETY: the caller promises the lengths. Members reduce ranges that do not overlap, into all outputs; or
        // write to their own output; or each writes its own block of the root's output.
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

    /// Copies this member's blocks from the inputs of all members.
    ///
    /// # Safety
    /// As for [`compute_own`](Self::compute_own), but the output may be this member's own input if nothing is copied.
    unsafe fn fetch(&self, inputs: &[*const u8], output: *mut u8) {
        let AgreedCall { signature, me, blocks, .. } = *self;
        if signature.kind == CollectiveKind::ReduceScatter {
            // SAFETY: the caller promises that each input has a block for this member.
            unsafe {
                let block = |input: &*const u8| input.add(me * signature.block_bytes());
                let inputs: Pointers<_> = inputs.iter().map(block).collect();
                self.reduce(Vectors { inputs: &inputs, outputs: &[output] }, 0..signature.count as usize);
            }
            return;
        }
        for (member, input) in inputs.iter().enumerate() {
            let (from, to) = (blocks.send_range(member, me), blocks.recv_range(me, member));
            // SAFETY: `send_range` and `recv_range` are within the lengths that the caller promises, and input and output
            // do not overlap.
            unsafe { copy(input.add(from.start), output.add(to.start), to.len()) };
        }
    }

    /// # Safety
    /// As for [`reduce::called`].
    unsafe fn reduce(&self, vectors: Vectors<'_>, range: Range<usize>) {
        // SAFETY: the caller promises what `reduce::called` requires.
        unsafe { reduce::called(&self.signature, self.weights, vectors, range) };
    }

    /// Returns the elements that this member reduces for all members.
    fn element_share(&self) -> Range<usize> {
        let count = self.signature.count as usize;
        let each = count.div_ceil(self.members).next_multiple_of(GRAIN);
        (self.me * each).min(count)..((self.me + 1) * each).min(count)
    }
}

/// # Safety
/// Both are valid for `bytes`, and do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller promises that both are valid for `bytes` and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}
