//! Gathers, and an all-to-all, of which every rank gives as much as it has.

use evener_device::{Buffer, Stream};

use super::{
    buffers::BufferArgs,
    call::{Call, CollectiveKind, Signature},
    collective::Collective,
    communicator::Communicator,
    device_communicator::DeviceCommunicator,
    element::{Element, ElementType},
    error::Result,
    inner::{CallGuard, Inner},
    pending::PendingCollective,
};

/// Writes the forms of uneven collectives. A row has a collective's name, called and started, the output that it takes
/// where that is a buffer, its arguments before and after the output, and the request and the lengths that they make.
macro_rules! uneven_forms {
    ($($(#[$doc:meta])* $name:ident $start:ident $output:ty, ($($before:ident: $before_type:ty)?)
        ($($after:ident: $after_type:ty)?) $collective:expr, $lengths:expr;)*) => {
        /// The ranks first tell one another how much each gives; no rank needs to know it before. The output is made as
        /// long as what comes, in the order of ranks, and the result says how many elements each rank gave.
        impl Communicator {$(
            $(#[$doc])*
            pub fn $name<T: Element>(
                &self, input: &[T], $($before: $before_type,)? output: &mut Vec<T>, $($after: $after_type,)?
            ) -> Result<Vec<usize>> {
                self.inner().wait_for_started();
                self.inner().uneven($collective, input, $lengths, output)
            }

            #[doc = concat!("Starts [`", stringify!($name), "`](Communicator::", stringify!($name), "); gives input and output back.")]
            pub fn $start<T: Element>(
                &self, input: Vec<T>, $($before: $before_type,)? mut output: Vec<T>, $($after: $after_type,)?
            ) -> PendingCollective<(Vec<T>, Vec<T>, Vec<usize>)> {
                let (collective, lengths) = ($collective, $lengths.map(<[usize]>::to_vec));
                self.start_call(move |inner| {
                    let given = inner.uneven(collective, &input, lengths.as_deref(), &mut output)?;
                    Ok((input, output, given))
                })
            }
        )*}

        /// The ranks first tell one another how much each gives, and the result says it. The output is as long as what
        /// comes, in the order of ranks; where one rank's is not, all fail.
        impl DeviceCommunicator {$(
            #[doc = concat!("As [`Communicator::", stringify!($name), "`], of buffers. A root has one that the other ranks have not.")]
            pub fn $name<T: Element>(
                &self, stream: &mut Stream, input: &Buffer<T>, $($before: $before_type,)? output: $output,
                $($after: $after_type,)?
            ) -> Result<Vec<usize>> {
                let (collective, lengths) = ($collective, Some($lengths));
                self.call_any(stream, BufferArgs { collective, input: Some(input), output: output.into(), lengths })
            }

            #[doc = concat!("Starts [`", stringify!($name), "`](DeviceCommunicator::", stringify!($name),
                "), as [`start`](DeviceCommunicator::start) does.")]
            pub fn $start<T: Element>(
                &self, stream: &mut Stream, input: &Buffer<T>, $($before: $before_type,)? output: $output,
                $($after: $after_type,)?
            ) -> PendingCollective<Vec<usize>> {
                let (collective, lengths) = ($collective, Some($lengths));
                let args = BufferArgs { collective, input: Some(input), output: output.into(), lengths };
                self.start_any(stream, args, |given| given)
            }
        )*}
    };
}

uneven_forms! {
    /// Gives everybody everybody's vector, each as long as it is.
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
    /// Gives the root everybody's vector, each as long as it is. Elsewhere the output becomes empty.
    gather_uneven start_gather_uneven Option<&Buffer<T>>, () (root: usize) Collective::Gather(root), None;
    /// Gives each rank a part of everybody's vector: the first `lengths[0]` elements to the first rank, and so on. The
    /// lengths are as many as the ranks, and the vector is as long as all of them.
    all_to_all_uneven start_all_to_all_uneven &Buffer<T>, (lengths: &[usize]) () Collective::AllToAll, Some(lengths);
}

/// What the ranks have told one another before an uneven call. Lengths are in elements.
pub(super) struct AgreedLengths {
    pub(super) signature: Signature,
    /// What each rank gives, and for an all-to-all to each rank within that.
    pub(super) lengths: Vec<usize>,
    /// What this rank gives: once, or to each rank.
    pub(super) mine: Vec<usize>,
    /// What this rank would take from each.
    pub(super) given: Vec<usize>,
    /// What it takes.
    pub(super) total: usize,
}

fn sum(lengths: &[usize]) -> usize {
    lengths.iter().fold(0, |sum, length| sum.saturating_add(*length))
}

impl CallGuard<'_> {
    /// Tells everybody the lengths of what this rank gives, which is so many elements, and hears everybody's.
    pub(super) fn exchange_lengths(
        &mut self,
        collective: Collective,
        element: ElementType,
        given: usize,
        lengths: Option<&[usize]>,
    ) -> Result<AgreedLengths> {
        let (size, kind, me) = (self.inner.size(), collective.kind(), self.inner.member.unwrap_or(0));
        let mut signature = self.signature(collective, element, 0, 0)?;
        let mine = lengths.map_or(vec![given], <[usize]>::to_vec);
        let expected = if kind == CollectiveKind::AllToAll { size } else { 1 };
        if mine.len() != expected || sum(&mine) != given {
            let detail = format!("lengths {mine:?} of {given} elements, for {size} ranks");
            return Err(self.argument_error(kind, detail));
        }
        let words: Vec<u64> = mine.iter().map(|length| *length as u64).collect();
        let lengths: Vec<_> =
            self.all_gather_words(kind, &words)?.into_iter().map(|it| it as usize).collect();
        signature.count = lengths.iter().copied().max().unwrap_or(0) as u64;
        let given: Vec<_> = lengths.chunks_exact(expected).map(|row| row[me.min(expected - 1)]).collect();
        let total = if collective.root().is_none_or(|root| root == me) { sum(&given) } else { 0 };
        Ok(AgreedLengths { signature, lengths, mine, given, total })
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
        guard.begin()?;
        let AgreedLengths { signature, lengths, given, total, .. } =
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
        Ok(given)
    }
}
