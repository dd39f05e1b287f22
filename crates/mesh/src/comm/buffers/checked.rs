//! Which of a rank's buffers take part in a collective, and whether they are as long as they must be.

use evener_device::Buffer;

use super::super::{
    call::Signature, collective::Collective, element::Element, error::Result, inner::CallGuard,
    uneven::AgreedLengths,
};

/// What a rank asks for, with its buffers.
#[derive(Debug)]
pub(in crate::comm) struct BufferArgs<'a, T> {
    pub(in crate::comm) collective: Collective,
    pub(in crate::comm) input: Option<&'a Buffer<T>>,
    pub(in crate::comm) output: Option<&'a Buffer<T>>,
    /// Where blocks are uneven, how many elements this rank gives each rank; or that it gives all the same.
    pub(in crate::comm) lengths: Option<Option<&'a [usize]>>,
}

/// A rank's buffers in a collective, each with the lengths of its blocks.
#[derive(Debug)]
pub(in crate::comm) struct CheckedBuffers<'a, T> {
    pub(in crate::comm) collective: Collective,
    pub(in crate::comm) signature: Signature,
    /// What this rank gives.
    pub(in crate::comm) input: Option<(&'a Buffer<T>, Vec<usize>)>,
    /// Where it takes what it gets.
    pub(in crate::comm) output: Option<(&'a Buffer<T>, Vec<usize>)>,
    /// Where blocks are uneven, how many elements each rank gives, and for an all-to-all to each rank within that.
    pub(in crate::comm) lengths: Vec<usize>,
    /// And how many this rank would take from each.
    pub(in crate::comm) given: Vec<usize>,
    /// Blocks of whichever buffer of whichever rank has most.
    pub(in crate::comm) blocks: usize,
}

impl CallGuard<'_> {
    /// The buffers of a collective, which are one where it is in place. Fails where they are not as long as they must be,
    /// and where a rank has one that only the root has, or the root has none.
    pub(in crate::comm) fn check_buffers<'a, T: Element>(
        &mut self,
        args: &BufferArgs<'a, T>,
    ) -> Result<CheckedBuffers<'a, T>> {
        let BufferArgs { collective, input, output, lengths } = *args;
        let len = |buffer: Option<&Buffer<T>>| buffer.map_or(0, Buffer::len);
        let (size, is_root) = (self.inner.size(), collective.root() == self.inner.member);
        let agreed = match lengths {
            Some(lengths) => self.exchange_lengths(collective, T::TYPE, len(input), lengths)?,
            None => {
                let signature = self.signature(collective, T::TYPE, len(input), len(output))?;
                let (gives, takes) = collective.blocks(size, is_root);
                let [mine, given] = [gives, takes].map(|blocks| vec![signature.count as usize; blocks]);
                AgreedLengths { signature, lengths: Vec::new(), mine, given, total: len(output) }
            }
        };
        let AgreedLengths { signature, lengths, mine, given, total } = agreed;
        if len(output) != total {
            return Err(self.invalid_call(collective, T::TYPE, [(0, 0), (len(output), total)]));
        }
        let end = |buffer: Option<&'a Buffer<T>>, blocks| Some((buffer.filter(|it| !it.is_empty())?, blocks));
        let (mut input, mut output) = (end(input, mine), end(output, given.clone()));
        if collective.is_in_place() {
            input = output.clone();
        }
        match collective {
            Collective::Reduce(..) if !is_root => output = None,
            Collective::Broadcast(_) if is_root => output = None,
            Collective::Broadcast(_) => input = None,
            _ => {}
        }
        let (gives, takes) = signature.kind.blocks(size);
        Ok(CheckedBuffers { collective, signature, input, output, lengths, given, blocks: gives.max(takes) })
    }
}
