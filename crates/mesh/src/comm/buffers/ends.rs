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

/// Both first wait for what was started.
impl Core {
    /// In place, on every rank.
    pub(in crate::comm) fn whole<'a, T: Element>(&self, buffer: &'a Buffer<T>) -> Ends<'a, T> {
        self.settle();
        Ends { input: Some((buffer, 1)), output: Some((buffer, 1)), count: buffer.len(), blocks: 1 }
    }

    /// The buffers of a collective, which are one where it is in place. Fails where they are not as long as they must be,
    /// and where a rank has one that only the root has, or the root has none.
    pub(in crate::comm) fn ends<'a, T: Element>(
        &self,
        collective: Collective,
        input: Option<&'a Buffer<T>>,
        output: Option<&'a Buffer<T>>,
        root: Option<usize>,
    ) -> Result<Ends<'a, T>> {
        self.settle();
        let (gives, takes) = collective.blocks(self.size());
        // A buffer that every rank has says how long a block is.
        let (every, blocks) = match collective {
            Collective::Scatter | Collective::ReduceScatter => (output, takes),
            _ => (input, gives),
        };
        let count = every.map_or(0, Buffer::len) / blocks;
        let signature = plain(collective, T::TYPE, count);
        let signature = root.map_or(Ok(signature), |root| self.rooted(signature, root))?;
        let (is_root, root) = (root.is_some() && self.member == root, root.unwrap_or(0));
        let end = |what: &str, buffer: Option<&'a Buffer<T>>, blocks| {
            let only_the_root =
                matches!((collective, what), (Collective::Gather, "output") | (Collective::Scatter, "input"));
            match buffer {
                Some(_) if only_the_root && !is_root => {
                    Err(self.refuse(&signature, format!("an {what}, which only the root {root} has")))
                }
                None if is_root => {
                    Err(self.refuse(&signature, format!("no {what} at the root, which needs one")))
                }
                Some(buffer) => self
                    .check(what, buffer.len(), count * blocks, &signature)
                    .map(|()| Some((buffer, blocks))),
                None => Ok(None),
            }
        };
        let (mut input, mut output) = (end("input", input, gives)?, end("output", output, takes)?);
        match collective {
            Collective::Reduce if !is_root => output = None,
            Collective::Broadcast if is_root => output = None,
            Collective::Broadcast => input = None,
            _ => {}
        }
        Ok(Ends { input, output, count, blocks: gives.max(takes) })
    }
}
