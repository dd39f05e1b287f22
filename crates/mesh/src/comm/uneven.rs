//! Gathers, and an all-to-all, of which every rank gives as much as it has.

use super::{
    call::{Call, Collective},
    element::Element,
    error::Result,
    group::Group,
    request::Request,
};

/// The ranks first tell one another how much each gives; no rank needs to know it before. The output is made as long as
/// what comes, in the order of ranks, and the result says how many elements each rank gave.
impl Group {
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
    pub fn all_gather_uneven<T: Element>(&self, input: &[T], output: &mut Vec<T>) -> Result<Vec<usize>> {
        self.uneven(Request::AllGather, input, &[input.len()], output)
    }

    /// Gives the root everybody's vector, each as long as it is. Elsewhere the output becomes empty.
    pub fn gather_uneven<T: Element>(
        &self,
        input: &[T],
        output: &mut Vec<T>,
        root: usize,
    ) -> Result<Vec<usize>> {
        self.uneven(Request::Gather(root), input, &[input.len()], output)
    }

    /// Gives each rank a part of everybody's vector: the first `lengths[0]` elements to the first rank, and so on. The
    /// lengths are as many as the ranks, and the vector is as long as all of them.
    pub fn all_to_all_uneven<T: Element>(
        &self,
        input: &[T],
        lengths: &[usize],
        output: &mut Vec<T>,
    ) -> Result<Vec<usize>> {
        self.uneven(Request::AllToAll, input, lengths, output)
    }

    fn uneven<T: Element>(
        &self,
        request: Request,
        input: &[T],
        mine: &[usize],
        output: &mut Vec<T>,
    ) -> Result<Vec<usize>> {
        self.core().settle();
        let mut turn = self.core().turn();
        turn.begin()?;
        let (size, collective) = (self.size(), request.collective());
        let mut signature = turn.signature(request, T::TYPE, 0, 0)?;
        let sum = |lengths: &[usize]| lengths.iter().fold(0usize, |sum, it| sum.saturating_add(*it));
        let expected = if collective == Collective::AllToAll { size } else { 1 };
        if mine.len() != expected || sum(mine) != input.len() {
            let detail = format!("lengths {mine:?} of {} elements, for {size} ranks", input.len());
            return Err(turn.refuse(collective, detail));
        }
        let mine: Vec<u64> = mine.iter().map(|length| *length as u64).collect();
        let lengths: Vec<_> = turn.tell(collective, &mine)?.into_iter().map(|it| it as usize).collect();
        // By giver, and for an all-to-all by taker within that.
        let me = self.rank().unwrap_or(0);
        let given: Vec<_> = lengths.chunks_exact(expected).map(|row| row[me.min(expected - 1)]).collect();
        let total = if request.root().is_none_or(|root| root == me) { sum(&given) } else { 0 };
        output.clear();
        if let Err(why) = output.try_reserve_exact(total) {
            return Err(turn.refuse(collective, format!("an output of {total} elements: {why}")));
        }
        output.resize(total, T::zeroed());
        signature.count = lengths.iter().copied().max().unwrap_or(0) as u64;
        let lengths: Vec<usize> = lengths.iter().map(|length| length * size_of::<T>()).collect();
        let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        turn.run(Call { signature, weight: 1.0, input, output, lengths: &lengths }, None)?;
        Ok(given)
    }
}
