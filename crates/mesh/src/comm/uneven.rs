//! Gathers and an all-to-all with blocks of different lengths (MPI's `Allgatherv`, `Gatherv` and `Alltoallv`).

use evener_device::{Buffer, Stream};

use super::{
    buffers::{BlockLengths, BufferArgs},
    call::{Call, CollectiveKind, Signature},
    collective::Collective,
    communicator::Communicator,
    device_communicator::DeviceCommunicator,
    element::{CollectiveDType, Element},
    error::Result,
    inner::{CallGuard, Inner},
    pending::PendingCollective,
};

/// Generates the methods of uneven collectives. A row has the names of the blocking and the started method, the type of
/// a buffer output, the arguments before and after the output, and the collective and the lengths that they make.
macro_rules! uneven_forms {
    ($($(#[$doc:meta])* $name:ident $start:ident $output:ty, ($($before:ident: $before_type:ty)?)
        ($($after:ident: $after_type:ty)?) $collective:expr, $lengths:expr;)*) => {
        /// The ranks first exchange the lengths of their blocks; no rank needs to know the others' lengths. The output
        /// is resized to hold the blocks in rank order. Returns the number of elements from each rank.
        impl Communicator {$(
            $(#[$doc])*
            pub fn $name<T: Element>(
                &self, input: &[T], $($before: $before_type,)? output: &mut Vec<T>, $($after: $after_type,)?
            ) -> Result<Vec<usize>> {
                self.inner().wait_for_started();
                self.inner().uneven($collective, input, $lengths, output)
            }

            #[doc = concat!("Starts [`", stringify!($name), "`](Communicator::", stringify!($name), "). The result has the input and the output.")]
            pub fn $start<T: Element>(
                &self, input: Vec<T>, $($before: $before_type,)? mut output: Vec<T>, $($after: $after_type,)?
            ) -> PendingCollective<(Vec<T>, Vec<T>, Vec<usize>)> {
                let (collective, lengths) = ($collective, $lengths.map(<[usize]>::to_vec));
                self.start_call(move |inner| {
                    let counts = inner.uneven(collective, &input, lengths.as_deref(), &mut output)?;
                    Ok((input, output, counts))
                })
            }
        )*}

        /// The ranks first exchange the lengths of their blocks. The output must hold exactly the blocks, in rank
        /// order; if it does not on one rank, all fail. Returns the number of elements from each rank.
        impl DeviceCommunicator {$(
            #[doc = concat!("As [`Communicator::", stringify!($name), "`], on device buffers. Only the root has an output, if there is one.")]
            pub fn $name<T: Element>(
                &self, stream: &mut Stream, input: &Buffer<T>, $($before: $before_type,)? output: $output,
                $($after: $after_type,)?
            ) -> Result<Vec<usize>> {
                let (collective, lengths) = ($collective, BlockLengths::uneven($lengths));
                self.call_any(stream, BufferArgs { collective, input: Some(input), output: output.into(), lengths })
            }

            #[doc = concat!("Starts [`", stringify!($name), "`](DeviceCommunicator::", stringify!($name),
                "), as [`start`](DeviceCommunicator::start) does.")]
            pub fn $start<T: Element>(
                &self, stream: &mut Stream, input: &Buffer<T>, $($before: $before_type,)? output: $output,
                $($after: $after_type,)?
            ) -> PendingCollective<Vec<usize>> {
                let (collective, lengths) = ($collective, BlockLengths::uneven($lengths));
                let args = BufferArgs { collective, input: Some(input), output: output.into(), lengths };
                self.start_any(stream, args, |counts| counts)
            }
        )*}
    };
}

uneven_forms! {
    /// Concatenates the vectors of all ranks, of any lengths, on every rank.
    ///
    /// ```
    /// use evener_mesh::comm::World;
    ///
    /// let ranks = World::local(3).into_iter().map(|world| {
    ///     std::thread::spawn(move || {
    ///         let (mine, mut all) = (vec![world.rank() as u8; world.rank()], Vec::new());
    ///         assert_eq!(world.communicator().all_gather_uneven(&mine, &mut all).unwrap(), [0, 1, 2]);
    ///         assert_eq!(all, [1, 2, 2]);
    ///     })
    /// });
    /// ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
    /// ```
    all_gather_uneven start_all_gather_uneven &Buffer<T>, () () Collective::AllGather, None;
    /// Concatenates the vectors of all ranks, of any lengths, on the root. On other ranks the output becomes empty.
    gather_uneven start_gather_uneven Option<&Buffer<T>>, () (root: usize) Collective::Gather(root), None;
    /// Sends a block to every rank: the first `lengths[0]` elements to the first rank, and so on. There is one length
    /// per rank, and `input` has their sum.
    all_to_all_uneven start_all_to_all_uneven &Buffer<T>, (lengths: &[usize]) () Collective::AllToAll, Some(lengths);
}

/// The lengths of an uneven call that all ranks know, in elements.
pub(super) struct AgreedLengths {
    pub(super) signature: Signature,
    /// What each rank sends, and for an all-to-all to each rank.
    pub(super) lengths: Vec<usize>,
    /// What this rank sends: once, or to each rank.
    pub(super) mine: Vec<usize>,
    /// What this rank receives from each rank.
    pub(super) counts: Vec<usize>,
    /// The length of this rank's output.
    pub(super) total: usize,
}

fn sum(lengths: &[usize]) -> usize {
    lengths.iter().fold(0, |sum, length| sum.saturating_add(*length))
}

impl CallGuard<'_> {
    /// Exchanges block lengths with all ranks. This rank's input has `input_len` elements.
    pub(super) fn exchange_lengths(
        &mut self,
        collective: Collective,
        element: CollectiveDType,
        input_len: usize,
        lengths: Option<&[usize]>,
    ) -> Result<AgreedLengths> {
        let (size, kind, me) = (self.inner.size(), collective.kind(), self.inner.member.unwrap_or(0));
        let mut signature = self.signature(collective, element, 0, 0)?;
        let mine = lengths.map_or(vec![input_len], <[usize]>::to_vec);
        let expected = if kind == CollectiveKind::AllToAll { size } else { 1 };
        if mine.len() != expected || sum(&mine) != input_len {
            let detail =
                format!("lengths {mine:?}: pass {expected}, which add up to the {input_len} elements");
            return Err(self.argument_error(kind, detail));
        }
        let words: Vec<u64> = mine.iter().map(|length| *length as u64).collect();
        let lengths: Vec<_> =
            self.all_gather_words(kind, &words)?.into_iter().map(|it| it as usize).collect();
        signature.count = lengths.iter().copied().max().unwrap_or(0) as u64;
        let counts: Vec<_> = lengths.chunks_exact(expected).map(|row| row[me.min(expected - 1)]).collect();
        let total = if collective.root().is_none_or(|root| root == me) { sum(&counts) } else { 0 };
        Ok(AgreedLengths { signature, lengths, mine, counts, total })
    }
}

impl Inner {
    fn uneven<T: Element>(
        &self,
        collective: Collective,
        input: &[T],
        lengths: Option<&[usize]>,
        output: &mut Vec<T>,
    ) -> Result<Vec<usize>> {
        let mut guard = self.lock_calls();
        guard.check_usable()?;
        let AgreedLengths { signature, lengths, counts, total, .. } =
            guard.exchange_lengths(collective, T::TYPE, input.len(), lengths)?;
        output.clear();
        if let Err(why) = output.try_reserve_exact(total) {
            return Err(
                guard.argument_error(collective.kind(), format!("an output of {total} elements: {why}"))
            );
        }
        output.resize(total, T::zeroed());
        let lengths: Vec<usize> = lengths.iter().map(|length| length * size_of::<T>()).collect();
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        guard.run(Call { signature, weight: 1.0, input, output, lengths: &lengths }, None)?;
        Ok(counts)
    }
}
