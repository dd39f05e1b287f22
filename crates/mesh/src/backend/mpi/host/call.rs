//! How each collective runs in shared memory.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    super::{call::piece, session::others},
    barrier::{CallDeadline, HostBarrier},
};
use crate::{
    backend::{
        TransportFailure,
        local::arrival::Arrivals,
        reduce::{self, Vectors},
    },
    comm::{Blocks, Call, CollectiveKind, Signature},
};

/// If all other members' vectors together are at most this long, every member reduces them all: one step instead of
/// two.
const WHOLE_BYTES: usize = 8 << 10;

/// Blocks of at least this size are written with non-temporal stores, because they do not fit a cache.
const NONTEMPORAL_BYTES: usize = 32 << 20;
/// Bytes of a result that are written past the caches at once, while they are in the first-level cache.
const CACHED_BYTES: usize = 16 << 10;

/// One rank's call of one collective, in shared memory.
pub(super) struct SharedMemoryCall<'a> {
    barrier: &'a mut HostBarrier,
    deadline: CallDeadline<'a>,
    signature: Signature,
    weight: f64,
    weights: SmallVec<[f64; 8]>,
    /// All members have announced the same call.
    agreed_to_call: bool,
    nontemporal: bool,
}

impl<'a> SharedMemoryCall<'a> {
    pub(super) fn new(barrier: &'a mut HostBarrier, deadline: CallDeadline<'a>, call: &Call<'_>) -> Self {
        let (signature, weight) = (call.signature, call.weight);
        let nontemporal = signature.block_bytes() >= NONTEMPORAL_BYTES;
        SharedMemoryCall {
            barrier,
            deadline,
            signature,
            weight,
            weights: SmallVec::new(),
            agreed_to_call: false,
            nontemporal,
        }
    }

    pub(super) fn run(&mut self, call: &mut Call<'_>) -> Result<(), TransportFailure> {
        let (members, me) = (self.barrier.slots.len(), self.barrier.me);
        let blocks = Blocks::of(&call.signature, call.lengths, members);
        let Call { signature, input, ref mut output, .. } = *call;
        let block_len = signature.block_bytes();
        let is_root = |member: usize| signature.root.is_none_or(|root| root as usize == member);
        match signature.kind {
            CollectiveKind::Barrier => self.arrive_and_wait(),
            CollectiveKind::AllReduce | CollectiveKind::WeightedAllReduce | CollectiveKind::Reduce => {
                if block_len * (members - 1) <= WHOLE_BYTES {
                    self.reduce_whole(output, is_root(me))
                } else {
                    self.reduce_slices(output, is_root(me))
                }
            }
            CollectiveKind::ReduceScatter => self.reduce_blocks(input, output),
            CollectiveKind::Broadcast if is_root(me) => self.share(output, None, &mut [], |_| 0..0),
            kind => {
                output[blocks.recv_range(me, me)].copy_from_slice(&input[blocks.send_range(me, me)]);
                let (to, from) = (|it| blocks.send_range(me, it), |it| blocks.recv_range(me, it));
                match kind {
                    CollectiveKind::Scatter | CollectiveKind::AllToAll => {
                        self.share(input, Some(&to), output, from)
                    }
                    // The root has no block to send.
                    CollectiveKind::Gather if is_root(me) => self.share(&[], None, output, from),
                    _ => self.share(input, None, output, from),
                }
            }
        }
    }

    /// Bytes of a page for each other member if each gets other data: whole cache lines.
    fn share_bytes(&self) -> usize {
        self.barrier.slots.data / self.barrier.slots.len() / 64 * 64
    }

    /// Waits for all members at the next step. At the first step all announce their calls and compare them.
    #[inline]
    fn arrive_and_wait(&mut self) -> Result<(), TransportFailure> {
        if self.agreed_to_call {
            return self.barrier.arrive_and_wait(&mut self.deadline);
        }
        self.agreed_to_call = true;
        let [what, count] = self.signature.pack();
        self.barrier.announce_and_wait([what, count, self.weight.to_bits()], &mut self.deadline)?;
        // All members have arrived and see the same signatures, so all take the same decision.
        let mut agreed = true;
        for member in 0..self.barrier.slots.len() {
            let [other, other_count, weight] = self.barrier.slots.announced(member, self.barrier.step);
            agreed &= [other, other_count] == [what, count];
            self.weights.push(f64::from_bits(weight));
        }
        if !agreed {
            let signature_of = |member| {
                let [what, count, _] = self.barrier.slots.announced(member, self.barrier.step);
                Signature::unpack([what, count])
            };
            return Err(TransportFailure::Mismatch(
                (0..self.barrier.slots.len()).map(signature_of).collect(),
            ));
        }
        if self.signature.kind == CollectiveKind::WeightedAllReduce
            && self.weights.iter().all(|weight| *weight == 0.0)
        {
            return Err(TransportFailure::ZeroWeights);
        }
        Ok(())
    }

    /// Writes the same data for all members, or a block for each if `to` is set, piece by piece, and copies each
    /// member's data for this one. All members that write have blocks of the same length.
    fn share(
        &mut self,
        sent: &[u8],
        to: Option<&dyn Fn(usize) -> Range<usize>>,
        received: &mut [u8],
        from: impl Fn(usize) -> Range<usize>,
    ) -> Result<(), TransportFailure> {
        let (members, me, block_len) =
            (self.barrier.slots.len(), self.barrier.me, self.signature.block_bytes());
        let (bytes, at) = match to {
            Some(_) => (self.share_bytes(), me * self.share_bytes()),
            None => (self.barrier.slots.data, 0),
        };
        for index in 0..block_len.div_ceil(bytes).max(1) {
            match to {
                Some(to) => self.write_each(sent, to, index),
                None => self.barrier.write(0, &sent[piece(sent.len(), bytes, index)], self.nontemporal),
            }
            self.arrive_and_wait()?;
            for member in others(members, me) {
                let into = &mut received[from(member)];
                let range = piece(into.len(), bytes, index);
                into[range.clone()].copy_from_slice(self.barrier.read_area(member, at, range.len()));
            }
        }
        Ok(())
    }

    /// Writes a piece of every other member's slice; nothing if `sent` is empty.
    fn write_each(&mut self, sent: &[u8], slice: impl Fn(usize) -> Range<usize>, index: usize) {
        if sent.is_empty() {
            return;
        }
        let (members, me) = (self.barrier.slots.len(), self.barrier.me);
        let bytes = self.share_bytes();
        for member in others(members, me) {
            let slice = &sent[slice(member)];
            self.barrier.write(member * bytes, &slice[piece(slice.len(), bytes, index)], self.nontemporal);
        }
    }

    /// Reduces the whole vectors of all members, if this member takes the result.
    fn reduce_whole(&mut self, data: &mut [u8], takes: bool) -> Result<(), TransportFailure> {
        self.barrier.write(0, data, false);
        self.arrive_and_wait()?;
        if takes {
            let data_pointer = data.as_mut_ptr();
            self.reduce(0, data_pointer.cast_const(), &[data_pointer], data.len());
        }
        Ok(())
    }

    /// Every member reduces its slice of the vector, piece by piece, and publishes each reduced piece.
    fn reduce_slices(&mut self, data: &mut [u8], takes: bool) -> Result<(), TransportFailure> {
        let (members, me, total) = (self.barrier.slots.len(), self.barrier.me, data.len());
        // Slices are whole elements, and start at cache lines if the vector does.
        let each = total.div_ceil(members).next_multiple_of(64);
        let slice = |member: usize| (member * each).min(total)..((member + 1) * each).min(total);
        let (bytes, results) = (self.share_bytes(), self.barrier.slots.data);
        let rounds = each.div_ceil(bytes);
        // Each step publishes the pieces to reduce, and the results of the step before.
        for index in 0..=rounds {
            if index < rounds {
                self.write_each(data, slice, index);
            }
            self.arrive_and_wait()?;
            if index > 0 && takes {
                for member in others(members, me) {
                    let into = &mut data[slice(member)];
                    let range = piece(into.len(), bytes, index - 1);
                    into[range.clone()].copy_from_slice(self.barrier.read_area(member, results, range.len()));
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

    /// Reduces a piece of this member's slice, and publishes the result; the piece itself is replaced only if `takes`.
    fn reduce_piece(&mut self, mine: &mut [u8], at: usize, takes: bool) {
        let results = self.barrier.slots.data;
        if self.nontemporal && takes {
            for (index, mine) in mine.chunks_mut(CACHED_BYTES).enumerate() {
                let (offset, own) = (index * CACHED_BYTES, mine.as_mut_ptr());
                self.reduce(at + offset, own.cast_const(), &[own], mine.len());
                self.barrier.write(results + offset, mine, true);
            }
            return;
        }
        let (own, len) = (mine.as_mut_ptr(), mine.len());
        let result = self.barrier.write_area(results, len).as_mut_ptr();
        let outputs = if takes { &[result, own][..] } else { &[result] };
        self.reduce(at, own.cast_const(), outputs, len);
    }

    fn reduce_blocks(&mut self, sent: &[u8], result: &mut [u8]) -> Result<(), TransportFailure> {
        let (me, block_len) = (self.barrier.me, self.signature.block_bytes());
        let block = |member: usize| member * block_len..(member + 1) * block_len;
        let bytes = self.share_bytes();
        for index in 0..block_len.div_ceil(bytes).max(1) {
            self.write_each(sent, block, index);
            self.arrive_and_wait()?;
            let range = piece(block_len, bytes, index);
            let own = sent[block(me)][range.clone()].as_ptr();
            let result = &mut result[range];
            self.reduce(me * bytes, own, &[result.as_mut_ptr()], result.len());
        }
        Ok(())
    }

    /// Reduces the data at an offset of the other members' pages, and this member's own, in rank order.
    fn reduce(&self, at: usize, own: *const u8, outputs: &[*mut u8], bytes: usize) {
        if bytes == 0 {
            return;
        }
        let me = self.barrier.me;
        let inputs: SmallVec<[*const u8; 8]> = (0..self.barrier.slots.len())
            .map(|member| if member == me { own } else { self.barrier.read_area(member, at, bytes).as_ptr() })
            .collect();
        let vectors = Vectors { inputs: &inputs, outputs };
        let range = 0..bytes / self.signature.element.bytes();
        // SAFETY: all pointers are valid for `bytes`: the other members' pages, which start at a cache line and are not
        // written until this member arrives at the next step; this member's input, aligned as the caller's elements
        // are; and the outputs, each of which is that input, the caller's, or on this member's page for the next step.
        unsafe { reduce::called(&self.signature, &self.weights, vectors, range) };
    }
}

#[cfg(test)]
mod test {
    use std::{sync::Arc, thread, time::Duration};

    use super::{super::slots::SharedSlots, *};
    use crate::{
        backend::LeaveReason,
        comm::{CollectiveDType, ReduceOp},
    };

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Two members of one process: the memory is the same.
    fn two_members() -> (Arc<SharedSlots>, [HostBarrier; 2]) {
        let slots = Arc::new(super::super::make(2, 77).unwrap().0);
        let barriers = [0, 1].map(|me| HostBarrier::new(slots.clone(), me, true));
        (slots, barriers)
    }

    /// Adds the vectors of all members.
    fn all_reduce(barrier: &mut HostBarrier, vector: &mut [f32]) -> Result<(), TransportFailure> {
        let signature = Signature {
            kind: CollectiveKind::AllReduce,
            element: CollectiveDType::F32,
            operation: Some(ReduceOp::Sum),
            root: None,
            count: vector.len() as u64,
            before: None,
        };
        let output = bytemuck::cast_slice_mut(vector);
        let mut call = Call { signature, weight: 1.0, input: &[], output, lengths: &[] };
        SharedMemoryCall::new(barrier, CallDeadline::new(TIMEOUT, &|| {}), &call).run(&mut call)
    }

    #[test]
    fn a_member_closed_after_it_has_arrived_fails_the_next_step_and_leaves_its_page() {
        let (slots, [mut one, mut other]) = two_members();
        one.write(0, &[1; 8], false);
        other.write(0, &[2; 8], false);
        slots.arrive(1, 1).unwrap();
        slots.close_own(1, &LeaveReason::Left, &[]);
        // It had arrived, so its page counts.
        one.arrive_and_wait(&mut CallDeadline::new(TIMEOUT, &|| {})).unwrap();
        assert_eq!(one.read_area(1, 0, 8), [2; 8]);
        // The member itself does not get past the step, and so never writes to this page again.
        other.step = 1;
        let closed = other.arrive_and_wait(&mut CallDeadline::new(TIMEOUT, &|| {})).unwrap_err();
        assert!(matches!(closed, TransportFailure::MemberLeft(1, LeaveReason::Left)), "{closed}");
        assert_eq!(one.read_area(1, 0, 8), [2; 8]);
        let error = one.arrive_and_wait(&mut CallDeadline::new(TIMEOUT, &|| {})).unwrap_err();
        assert!(matches!(error, TransportFailure::MemberLeft(1, LeaveReason::Left)), "{error}");
    }

    /// Another thread closes a member's slot at any point of a call of many steps. The call gives the right result on
    /// both members, or an error on both.
    #[test]
    fn a_member_closed_during_a_call_gives_no_wrong_result() {
        // A call of one step, and calls of several.
        for (len, rounds) in [(100, 200), (1_000_000, 60)] {
            let (mut succeeded, mut failed) = (0, 0);
            for round in 0..rounds {
                let (slots, [mut one, mut other]) = two_members();
                let run = |barrier: &mut HostBarrier, number: f32| {
                    let mut vector = vec![number; len];
                    // Not the first call: pages are used again.
                    all_reduce(barrier, &mut vector.clone())?;
                    all_reduce(barrier, &mut vector)?;
                    Ok(vector.iter().filter(|it| **it != 3.0).count())
                };
                let close = || slots.close_own(1, &LeaveReason::Left, &[]);
                // Certainly before the call, however slowly threads start.
                let is_closed_first = round == 0;
                if is_closed_first {
                    close();
                }
                let results: [Result<usize, TransportFailure>; 2] = thread::scope(|scope| {
                    let threads = [scope.spawn(|| run(&mut one, 1.0)), scope.spawn(|| run(&mut other, 2.0))];
                    // From before the call to after it.
                    thread::sleep(Duration::from_micros(round * if len > 1000 { 200 } else { 2 }));
                    if !is_closed_first {
                        close();
                    }
                    threads.map(|thread| thread.join().unwrap())
                });
                match &results {
                    [Ok(0), Ok(0)] => succeeded += 1,
                    [Err(_), Err(_)] => failed += 1,
                    _ => panic!("{len} elements, round {round}: wrong elements are {results:?}"),
                }
            }
            assert!(failed > 0, "{len} elements: closed too late, {succeeded} times");
        }
    }
}
