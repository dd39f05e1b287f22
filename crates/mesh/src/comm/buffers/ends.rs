//! Which of a rank's buffers take part in a collective, and whether they are as long as they must be.

use evener_device::Buffer;

use super::super::{call::Signature, core::Turn, element::Element, error::Result, request::Request};

/// A rank's buffers in a collective, each with how many blocks it has.
#[derive(Debug)]
pub(in crate::comm) struct Ends<'a, T> {
    pub(in crate::comm) request: Request,
    pub(in crate::comm) signature: Signature,
    /// What this rank gives.
    pub(in crate::comm) input: Option<(&'a Buffer<T>, usize)>,
    /// Where it takes what it gets.
    pub(in crate::comm) output: Option<(&'a Buffer<T>, usize)>,
    /// Elements of a block, on every rank.
    pub(in crate::comm) count: usize,
    /// Blocks of whichever buffer of whichever rank has most.
    pub(in crate::comm) blocks: usize,
}

impl Turn<'_> {
    /// The buffers of a collective, which are one where it is in place. Fails where they are not as long as they must be,
    /// and where a rank has one that only the root has, or the root has none.
    pub(in crate::comm) fn ends<'a, T: Element>(
        &self,
        request: Request,
        input: Option<&'a Buffer<T>>,
        output: Option<&'a Buffer<T>>,
    ) -> Result<Ends<'a, T>> {
        let len = |buffer: Option<&Buffer<T>>| buffer.map_or(0, Buffer::len);
        let signature = self.signature(request, T::TYPE, len(input), len(output))?;
        let is_root = request.root() == self.core.member;
        let (gives, takes) = request.blocks(self.core.size(), is_root);
        let end =
            |buffer: Option<&'a Buffer<T>>, blocks| buffer.filter(|_| blocks > 0).map(|it| (it, blocks));
        let (mut input, mut output) = (end(input, gives), end(output, takes));
        if request.is_in_place() {
            input = output;
        }
        match request {
            Request::Reduce(..) if !is_root => output = None,
            Request::Broadcast(_) if is_root => output = None,
            Request::Broadcast(_) => input = None,
            _ => {}
        }
        let (gives, takes) = signature.collective.blocks(self.core.size());
        Ok(Ends {
            request,
            signature,
            input,
            output,
            count: signature.count as usize,
            blocks: gives.max(takes),
        })
    }
}
