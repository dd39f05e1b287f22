//! Checks which buffers a rank has in a collective, and their lengths.

use std::borrow::Cow;

use evener_device::Buffer;

use super::super::{
    call::Signature, collective::Collective, element::Element, error::Result, inner::CallGuard,
    uneven::AgreedLengths,
};

/// A collective with this rank's device buffers, not checked.
#[derive(Debug)]
pub(in crate::comm) struct BufferArgs<'a, T> {
    pub(in crate::comm) collective: Collective,
    pub(in crate::comm) input: Option<&'a Buffer<T>>,
    pub(in crate::comm) output: Option<&'a Buffer<T>>,
    pub(in crate::comm) lengths: BlockLengths<'a>,
}

/// The lengths of the blocks that this rank sends.
#[derive(Debug, Clone)]
pub(in crate::comm) enum BlockLengths<'a> {
    /// The same on all ranks.
    Even,
    /// Any length on each rank: this rank sends its whole input to every rank that receives it.
    WholeInput,
    /// Any length for each rank: this rank sends a block of these lengths to each.
    PerRank(Cow<'a, [usize]>),
}

impl<'a> BlockLengths<'a> {
    /// Returns uneven lengths: those for each rank, or that of the whole input.
    pub(in crate::comm) fn uneven(per_rank: Option<&'a [usize]>) -> Self {
        per_rank.map_or(BlockLengths::WholeInput, |lengths| BlockLengths::PerRank(lengths.into()))
    }

    pub(in crate::comm) fn into_owned(self) -> BlockLengths<'static> {
        match self {
            BlockLengths::Even => BlockLengths::Even,
            BlockLengths::WholeInput => BlockLengths::WholeInput,
            BlockLengths::PerRank(lengths) => BlockLengths::PerRank(lengths.into_owned().into()),
        }
    }
}

/// A collective with this rank's device buffers and the lengths of their blocks, checked.
#[derive(Debug)]
pub(in crate::comm) struct CheckedBuffers<'a, T> {
    pub(in crate::comm) collective: Collective,
    pub(in crate::comm) signature: Signature,
    pub(in crate::comm) input: Option<(&'a Buffer<T>, Vec<usize>)>,
    pub(in crate::comm) output: Option<(&'a Buffer<T>, Vec<usize>)>,
    /// If blocks are uneven, the elements of each rank, and for an all-to-all to each rank.
    pub(in crate::comm) lengths: Vec<usize>,
    /// The elements that this rank receives from each rank.
    pub(in crate::comm) counts: Vec<usize>,
    /// The maximum number of blocks in a buffer of any rank.
    pub(in crate::comm) blocks: usize,
}

impl CallGuard<'_> {
    /// Checks the buffers of a collective. Fails if a length is wrong, if a rank has a buffer that only the root may
    /// have, or if the root has none.
    pub(in crate::comm) fn check_buffers<'a, T: Element>(
        &mut self,
        args: &BufferArgs<'a, T>,
    ) -> Result<CheckedBuffers<'a, T>> {
        let BufferArgs { collective, input, output, ref lengths } = *args;
        let len = |buffer: Option<&Buffer<T>>| buffer.map_or(0, Buffer::len);
        let (size, is_root) = (self.inner.size(), collective.root() == self.inner.member);
        let agreed = match lengths {
            BlockLengths::WholeInput => self.exchange_lengths(collective, T::TYPE, len(input), None)?,
            BlockLengths::PerRank(lengths) => {
                self.exchange_lengths(collective, T::TYPE, len(input), Some(lengths))?
            }
            BlockLengths::Even => {
                let signature = self.signature(collective, T::TYPE, len(input), len(output))?;
                let (input_blocks, output_blocks) = collective.blocks(size, is_root);
                let [mine, counts] =
                    [input_blocks, output_blocks].map(|blocks| vec![signature.count as usize; blocks]);
                AgreedLengths { signature, lengths: Vec::new(), mine, counts, total: len(output) }
            }
        };
        let AgreedLengths { signature, lengths, mine, counts, total } = agreed;
        if len(output) != total {
            return Err(self.invalid_call(collective, T::TYPE, [(0, 0), (len(output), total)]));
        }
        let end = |buffer: Option<&'a Buffer<T>>, blocks| Some((buffer.filter(|it| !it.is_empty())?, blocks));
        let (mut input, mut output) = (end(input, mine), end(output, counts.clone()));
        if collective.is_in_place() {
            input = output.clone();
        }
        match collective {
            Collective::Reduce(..) if !is_root => output = None,
            Collective::Broadcast(_) if is_root => output = None,
            Collective::Broadcast(_) => input = None,
            _ => {}
        }
        let (inputs, outputs) = signature.kind.blocks(size);
        let blocks = inputs.max(outputs);
        Ok(CheckedBuffers { collective, signature, input, output, lengths, counts, blocks })
    }
}
