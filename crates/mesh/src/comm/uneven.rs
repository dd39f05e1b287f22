//! Gathers, and an all-to-all, of which every rank gives as much as it has.

use evener_device::{Buffer, Stream};

use super::{
    buffers::Asked,
    call::{Call, Collective, Signature},
    core::{Core, Turn},
    device_group::DeviceGroup,
    element::{Element, ElementType},
    error::Result,
    group::Group,
    pending::Pending,
    request::Request,
};

/// Writes the forms of uneven collectives. A row has a collective's name, called and started, the output that it takes
/// where that is a buffer, its arguments before and after the output, and the request and the lengths that they make.
macro_rules! uneven_forms {
    ($($(#[$doc:meta])* $name:ident $start:ident $output:ty, ($($before:ident: $before_type:ty)?)
        ($($after:ident: $after_type:ty)?) $request:expr, $lengths:expr;)*) => {
        /// The ranks first tell one another how much each gives; no rank needs to know it before. The output is made as
        /// long as what comes, in the order of ranks, and the result says how many elements each rank gave.
        impl Group {$(
            $(#[$doc])*
            pub fn $name<T: Element>(
                &self, input: &[T], $($before: $before_type,)? output: &mut Vec<T>, $($after: $after_type,)?
            ) -> Result<Vec<usize>> {
                self.core().settle();
                self.core().uneven($request, input, $lengths, output)
            }

            #[doc = concat!("Starts [`", stringify!($name), "`](Group::", stringify!($name), "); gives input and output back.")]
            pub fn $start<T: Element>(
                &self, input: Vec<T>, $($before: $before_type,)? mut output: Vec<T>, $($after: $after_type,)?
            ) -> Pending<(Vec<T>, Vec<T>, Vec<usize>)> {
                let (request, lengths) = ($request, $lengths.map(<[usize]>::to_vec));
                self.later(move |core| {
                    let given = core.uneven(request, &input, lengths.as_deref(), &mut output)?;
                    Ok((input, output, given))
                })
            }
        )*}

        /// The ranks first tell one another how much each gives, and the result says it. The output is as long as what
        /// comes, in the order of ranks; where one rank's is not, all fail.
        impl DeviceGroup {$(
            #[doc = concat!("As [`Group::", stringify!($name), "`], of buffers. A root has one that the other ranks have not.")]
            pub fn $name<T: Element>(
                &self, stream: &mut Stream, input: &Buffer<T>, $($before: $before_type,)? output: $output,
                $($after: $after_type,)?
            ) -> Result<Vec<usize>> {
                let (request, lengths) = ($request, Some($lengths));
                self.call_any(stream, Asked { request, input: Some(input), output: output.into(), lengths })
            }

            #[doc = concat!("Starts [`", stringify!($name), "`](DeviceGroup::", stringify!($name),
                "), as [`start`](DeviceGroup::start) does.")]
            pub fn $start<T: Element>(
                &self, stream: &mut Stream, input: &Buffer<T>, $($before: $before_type,)? output: $output,
                $($after: $after_type,)?
            ) -> Pending<Vec<usize>> {
                let (request, lengths) = ($request, Some($lengths));
                let asked = Asked { request, input: Some(input), output: output.into(), lengths };
                self.start_any(stream, asked, |given| given)
            }
        )*}
    };
}

uneven_forms! {
    /// Gives everybody everybody's vector, each as long as it is.
    ///
    /// ```
    /// use evener_mesh::comm::Comm;
    ///
    /// let ranks = Comm::local(3).into_iter().map(|comm| {
    ///     std::thread::spawn(move || {
    ///         let (mine, mut all) = (vec![comm.rank() as u8; comm.rank()], Vec::new());
    ///         assert_eq!(comm.world().all_gather_uneven(&mine, &mut all).unwrap(), [0, 1, 2]);
    ///         assert_eq!(all, [1, 2, 2]);
    ///     })
    /// });
    /// ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
    /// ```
    all_gather_uneven start_all_gather_uneven &Buffer<T>, () () Request::AllGather, None;
    /// Gives the root everybody's vector, each as long as it is. Elsewhere the output becomes empty.
    gather_uneven start_gather_uneven Option<&Buffer<T>>, () (root: usize) Request::Gather(root), None;
    /// Gives each rank a part of everybody's vector: the first `lengths[0]` elements to the first rank, and so on. The
    /// lengths are as many as the ranks, and the vector is as long as all of them.
    all_to_all_uneven start_all_to_all_uneven &Buffer<T>, (lengths: &[usize]) () Request::AllToAll, Some(lengths);
}

/// What the ranks have told one another before an uneven call. Lengths are in elements.
pub(super) struct Told {
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

impl Turn<'_> {
    /// Tells everybody the lengths of what this rank gives, which is so many elements, and hears everybody's.
    pub(super) fn tell_lengths(
        &mut self,
        request: Request,
        element: ElementType,
        given: usize,
        lengths: Option<&[usize]>,
    ) -> Result<Told> {
        let (size, collective, me) = (self.core.size(), request.collective(), self.core.member.unwrap_or(0));
        let mut signature = self.signature(request, element, 0, 0)?;
        let mine = lengths.map_or(vec![given], <[usize]>::to_vec);
        let expected = if collective == Collective::AllToAll { size } else { 1 };
        if mine.len() != expected || sum(&mine) != given {
            let detail = format!("lengths {mine:?} of {given} elements, for {size} ranks");
            return Err(self.refuse(collective, detail));
        }
        let words: Vec<u64> = mine.iter().map(|length| *length as u64).collect();
        let lengths: Vec<_> = self.tell(collective, &words)?.into_iter().map(|it| it as usize).collect();
        signature.count = lengths.iter().copied().max().unwrap_or(0) as u64;
        let given: Vec<_> = lengths.chunks_exact(expected).map(|row| row[me.min(expected - 1)]).collect();
        let total = if request.root().is_none_or(|root| root == me) { sum(&given) } else { 0 };
        Ok(Told { signature, lengths, mine, given, total })
    }
}

impl Core {
    fn uneven<T: Element>(
        &self,
        request: Request,
        input: &[T],
        lengths: Option<&[usize]>,
        output: &mut Vec<T>,
    ) -> Result<Vec<usize>> {
        let mut turn = self.turn();
        turn.begin()?;
        let Told { signature, lengths, given, total, .. } =
            turn.tell_lengths(request, T::TYPE, input.len(), lengths)?;
        output.clear();
        if let Err(why) = output.try_reserve_exact(total) {
            return Err(turn.refuse(request.collective(), format!("an output of {total} elements: {why}")));
        }
        output.resize(total, T::zeroed());
        let lengths: Vec<usize> = lengths.iter().map(|length| length * size_of::<T>()).collect();
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        turn.run(Call { signature, weight: 1.0, input, output, lengths: &lengths }, None)?;
        Ok(given)
    }
}
