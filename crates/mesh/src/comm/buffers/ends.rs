//! Which of a rank's buffers take part in a collective, and whether they are as long as they must be.

use evener_device::Buffer;

use super::super::{
    call::Signature, core::Turn, element::Element, error::Result, request::Request, uneven::Told,
};

/// What a rank asks for, with its buffers.
#[derive(Debug)]
pub(in crate::comm) struct Asked<'a, T> {
    pub(in crate::comm) request: Request,
    pub(in crate::comm) input: Option<&'a Buffer<T>>,
    pub(in crate::comm) output: Option<&'a Buffer<T>>,
    /// Where blocks are uneven, how many elements this rank gives each rank; or that it gives all the same.
    pub(in crate::comm) lengths: Option<Option<&'a [usize]>>,
}

/// A rank's buffers in a collective, each with the lengths of its blocks.
#[derive(Debug)]
pub(in crate::comm) struct Ends<'a, T> {
    pub(in crate::comm) request: Request,
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

impl Turn<'_> {
    /// The buffers of a collective, which are one where it is in place. Fails where they are not as long as they must be,
    /// and where a rank has one that only the root has, or the root has none.
    pub(in crate::comm) fn ends<'a, T: Element>(&mut self, asked: &Asked<'a, T>) -> Result<Ends<'a, T>> {
        let Asked { request, input, output, lengths } = *asked;
        let len = |buffer: Option<&Buffer<T>>| buffer.map_or(0, Buffer::len);
        let (size, is_root) = (self.core.size(), request.root() == self.core.member);
        let told = match lengths {
            Some(lengths) => self.tell_lengths(request, T::TYPE, len(input), lengths)?,
            None => {
                let signature = self.signature(request, T::TYPE, len(input), len(output))?;
                let (gives, takes) = request.blocks(size, is_root);
                let [mine, given] = [gives, takes].map(|blocks| vec![signature.count as usize; blocks]);
                Told { signature, lengths: Vec::new(), mine, given, total: len(output) }
            }
        };
        let Told { signature, lengths, mine, given, total } = told;
        if len(output) != total {
            return Err(self.wrong(request, T::TYPE, [(0, 0), (len(output), total)]));
        }
        let end = |buffer: Option<&'a Buffer<T>>, blocks| Some((buffer.filter(|it| !it.is_empty())?, blocks));
        let (mut input, mut output) = (end(input, mine), end(output, given.clone()));
        if request.is_in_place() {
            input = output.clone();
        }
        match request {
            Request::Reduce(..) if !is_root => output = None,
            Request::Broadcast(_) if is_root => output = None,
            Request::Broadcast(_) => input = None,
            _ => {}
        }
        let (gives, takes) = signature.collective.blocks(size);
        Ok(Ends { request, signature, input, output, lengths, given, blocks: gives.max(takes) })
    }
}
