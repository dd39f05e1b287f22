//! Which of a rank's buffers take part in a collective, and whether they are as long as they must be.

use evener_device::Buffer;

use super::super::{
    call::Collective,
    core::{Core, plain},
    element::Element,
    error::Result,
};

/// A rank's buffers in a collective, each with how many blocks it has.
#[derive(Debug)]
pub(in crate::comm) struct Ends<'a, T> {
    /// What this rank gives.
    pub(in crate::comm) input: Option<(&'a Buffer<T>, usize)>,
    /// Where it takes what it gets.
    pub(in crate::comm) output: Option<(&'a Buffer<T>, usize)>,
    /// Elements of a block, on every rank.
    pub(in crate::comm) count: usize,
    /// Blocks of whichever buffer of whichever rank has most.
    pub(in crate::comm) blocks: usize,
}

/// Every one first waits for what was started.
impl Core {
    /// In place, on every rank.
    pub(in crate::comm) fn whole<'a, T: Element>(&self, buffer: &'a Buffer<T>) -> Ends<'a, T> {
        self.settle();
        Ends { input: Some((buffer, 1)), output: Some((buffer, 1)), count: buffer.len(), blocks: 1 }
    }

    pub(in crate::comm) fn reduced<'a, T: Element>(
        &self,
        buffer: &'a Buffer<T>,
        root: usize,
    ) -> Result<Ends<'a, T>> {
        let mut ends = self.whole(buffer);
        self.rooted(plain(Collective::Reduce, T::TYPE, buffer.len()), root)?;
        if self.member != Some(root) {
            ends.output = None;
        }
        Ok(ends)
    }

    pub(in crate::comm) fn broadcast_to<'a, T: Element>(
        &self,
        buffer: &'a Buffer<T>,
        root: usize,
    ) -> Result<Ends<'a, T>> {
        let mut ends = self.whole(buffer);
        self.rooted(plain(Collective::Broadcast, T::TYPE, buffer.len()), root)?;
        if self.member == Some(root) {
            ends.output = None;
        } else {
            ends.input = None;
        }
        Ok(ends)
    }

    pub(in crate::comm) fn all_gathered<'a, T: Element>(
        &self,
        input: &'a Buffer<T>,
        output: &'a Buffer<T>,
    ) -> Result<Ends<'a, T>> {
        self.settle();
        let (count, blocks) = (input.len(), self.size());
        self.check("output", output.len(), count * blocks, &plain(Collective::AllGather, T::TYPE, count))?;
        Ok(Ends { input: Some((input, 1)), output: Some((output, blocks)), count, blocks })
    }

    pub(in crate::comm) fn reduce_scattered<'a, T: Element>(
        &self,
        input: &'a Buffer<T>,
        output: &'a Buffer<T>,
    ) -> Result<Ends<'a, T>> {
        self.settle();
        let (count, blocks) = (output.len(), self.size());
        self.check("input", input.len(), count * blocks, &plain(Collective::ReduceScatter, T::TYPE, count))?;
        Ok(Ends { input: Some((input, blocks)), output: Some((output, 1)), count, blocks })
    }

    pub(in crate::comm) fn gathered<'a, T: Element>(
        &self,
        input: &'a Buffer<T>,
        output: Option<&'a Buffer<T>>,
        root: usize,
    ) -> Result<Ends<'a, T>> {
        self.settle();
        let (count, blocks) = (input.len(), self.size());
        let output = self.at_root("output", output, Collective::Gather, count, root)?;
        Ok(Ends { input: Some((input, 1)), output: output.map(|it| (it, blocks)), count, blocks })
    }

    pub(in crate::comm) fn scattered<'a, T: Element>(
        &self,
        input: Option<&'a Buffer<T>>,
        output: &'a Buffer<T>,
        root: usize,
    ) -> Result<Ends<'a, T>> {
        self.settle();
        let (count, blocks) = (output.len(), self.size());
        let input = self.at_root("input", input, Collective::Scatter, count, root)?;
        Ok(Ends { input: input.map(|it| (it, blocks)), output: Some((output, 1)), count, blocks })
    }

    pub(in crate::comm) fn exchanged<'a, T: Element>(
        &self,
        input: &'a Buffer<T>,
        output: &'a Buffer<T>,
    ) -> Result<Ends<'a, T>> {
        self.settle();
        let (count, blocks) = (input.len() / self.size(), self.size());
        let signature = plain(Collective::AllToAll, T::TYPE, count);
        self.check("input", input.len(), count * blocks, &signature)?;
        self.check("output", output.len(), input.len(), &signature)?;
        Ok(Ends { input: Some((input, blocks)), output: Some((output, blocks)), count, blocks })
    }

    /// A buffer that the root has, as long as everybody's blocks, and nobody else.
    fn at_root<'a, T: Element>(
        &self,
        what: &str,
        buffer: Option<&'a Buffer<T>>,
        collective: Collective,
        count: usize,
        root: usize,
    ) -> Result<Option<&'a Buffer<T>>> {
        let signature = self.rooted(plain(collective, T::TYPE, count), root)?;
        match (self.member == Some(root), buffer) {
            (true, Some(buffer)) => {
                self.check(what, buffer.len(), count * self.size(), &signature)?;
                Ok(Some(buffer))
            }
            (false, None) => Ok(None),
            (true, None) => Err(self.refuse(&signature, format!("no {what} at the root, which needs one"))),
            (false, Some(_)) => {
                Err(self.refuse(&signature, format!("an {what}, which only the root {root} has")))
            }
        }
    }
}
