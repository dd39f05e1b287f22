//! One rank's call of a collective: its signature, its buffers and the layout of their blocks.

use std::{fmt, ops::Range};

use super::{element::CollectiveDType, named::named, reduce_op::ReduceOp};

named! {
    /// The kind of a collective, without its arguments.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub(crate) enum CollectiveKind {
        AllReduce = "all_reduce",
        WeightedAllReduce = "weighted_all_reduce",
        Reduce = "reduce",
        Broadcast = "broadcast",
        AllGather = "all_gather",
        ReduceScatter = "reduce_scatter",
        Gather = "gather",
        Scatter = "scatter",
        AllToAll = "all_to_all",
        Barrier = "barrier",
        Send = "send",
        Receive = "recv",
    }
}

impl CollectiveKind {
    /// Returns the maximum number of input and output blocks of a rank in a group of `ranks`.
    pub(crate) fn blocks(self, ranks: usize) -> (usize, usize) {
        match self {
            CollectiveKind::AllGather | CollectiveKind::Gather => (1, ranks),
            CollectiveKind::ReduceScatter | CollectiveKind::Scatter => (ranks, 1),
            CollectiveKind::AllToAll => (ranks, ranks),
            _ => (1, 1),
        }
    }
}

/// What all ranks of a call must agree on: a call runs only if the signatures of all ranks are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) kind: CollectiveKind,
    pub(crate) element: CollectiveDType,
    pub(crate) operation: Option<ReduceOp>,
    pub(crate) root: Option<u32>,
    /// Elements of the vector for reductions and broadcasts, of one block otherwise; of the longest block if blocks are
    /// uneven.
    pub(crate) count: u64,
    /// Set for an internal all-gather that prepares this collective, for example one of block lengths.
    pub(crate) before: Option<CollectiveKind>,
}

impl Signature {
    /// Encodes the signature in two words, which ranks compare.
    #[inline]
    pub(crate) fn pack(&self) -> [u64; 2] {
        let operation = self.operation.map_or(0, |it| it as u8);
        let root = self.root.map_or(0, |it| u64::from(it) + 1);
        let before = self.before.map_or(0, |it| it as u8);
        let what = [self.kind as u8, self.element as u8, operation, before];
        [u64::from(u32::from_le_bytes(what)) | root << 32, self.count]
    }

    /// Decodes the result of [`pack`](Self::pack), or returns `None` if the words are not a signature.
    pub(crate) fn unpack([what, count]: [u64; 2]) -> Option<Self> {
        let [kind, element, operation, before] = (what as u32).to_le_bytes();
        Some(Signature {
            before: CollectiveKind::from_number(before),
            kind: CollectiveKind::from_number(kind)?,
            element: CollectiveDType::from_number(element)?,
            operation: ReduceOp::from_number(operation),
            root: (what >> 32).checked_sub(1).map(|root| root as u32),
            count,
        })
    }

    /// Bytes of one block (see [`count`](Self::count)).
    #[inline]
    pub(crate) fn block_bytes(&self) -> usize {
        self.count as usize * self.element.bytes()
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kind) = self.before {
            return write!(f, "exchange of block lengths or buffer sizes before {kind}");
        }
        write!(f, "{}", self.kind)?;
        if self.kind == CollectiveKind::Barrier {
            return Ok(());
        }
        write!(f, " of {} {}", self.count, self.element)?;
        if let Some(operation) = self.operation {
            write!(f, " by {operation}")?;
        }
        if let Some(root) = self.root {
            write!(f, " at root {root}")?;
        }
        Ok(())
    }
}

/// One rank's arguments of one collective. The lengths were checked against the signature, and both slices are aligned
/// for the element type.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) signature: Signature,
    /// This rank's weight in a weighted collective; otherwise 1.
    pub(crate) weight: f64,
    /// This rank's input; empty if the collective is in place or this rank has no input.
    pub(crate) input: &'a [u8],
    /// This rank's output, which in-place collectives also read; empty if this rank has no output.
    pub(crate) output: &'a mut [u8],
    /// Block lengths in bytes if blocks are uneven: by sending rank, and for an all-to-all by sending and receiving
    /// rank. All ranks agreed on them.
    pub(crate) lengths: &'a [usize],
}

/// The layout of a call's blocks in the inputs and outputs of all ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks<'a> {
    kind: CollectiveKind,
    root: Option<usize>,
    block_bytes: usize,
    ranks: usize,
    lengths: &'a [usize],
}

impl<'a> Blocks<'a> {
    /// Returns the layout for a group of `ranks`; `lengths` is empty, or has the bytes of uneven blocks.
    pub(crate) fn of(signature: &Signature, lengths: &'a [usize], ranks: usize) -> Self {
        let (root, block_bytes) = (signature.root.map(|root| root as usize), signature.block_bytes());
        Blocks { kind: signature.kind, root, block_bytes, ranks, lengths }
    }

    /// Returns the range of rank `from`'s input that rank `to` receives, if nothing is reduced.
    pub(crate) fn send_range(&self, from: usize, to: usize) -> Range<usize> {
        let at_root = |rank| self.root == Some(rank);
        match self.kind {
            CollectiveKind::Broadcast | CollectiveKind::Send if at_root(from) && from != to => {
                0..self.block_bytes
            }
            CollectiveKind::AllGather => 0..self.bytes(from, to),
            CollectiveKind::Gather if at_root(to) => 0..self.bytes(from, to),
            CollectiveKind::Scatter if at_root(from) => self.input_block(from, to),
            CollectiveKind::AllToAll => self.input_block(from, to),
            _ => 0..0,
        }
    }

    /// Returns the range of rank `to`'s output that receives rank `from`'s [`send_range`](Self::send_range).
    pub(crate) fn recv_range(&self, to: usize, from: usize) -> Range<usize> {
        match self.kind {
            CollectiveKind::AllGather | CollectiveKind::AllToAll => self.output_block(to, from),
            CollectiveKind::Gather if self.root == Some(to) => self.output_block(to, from),
            _ => 0..self.send_range(from, to).len(),
        }
    }

    pub(crate) fn are_even(&self) -> bool {
        self.lengths.is_empty()
    }

    #[inline]
    fn bytes(&self, from: usize, to: usize) -> usize {
        match self.lengths {
            [] => self.block_bytes,
            lengths if lengths.len() == self.ranks => lengths[from],
            lengths => lengths[from * self.ranks + to],
        }
    }

    /// Returns the range of rank `from`'s input block for rank `to`, if it has one block per rank.
    #[inline]
    pub(crate) fn input_block(&self, from: usize, to: usize) -> Range<usize> {
        self.block_at(to, self.bytes(from, to), |before| self.bytes(from, before))
    }

    /// Returns the range of rank `to`'s output block from rank `from`, if it has one block per rank.
    #[inline]
    pub(crate) fn output_block(&self, to: usize, from: usize) -> Range<usize> {
        self.block_at(from, self.bytes(from, to), |before| self.bytes(before, to))
    }

    /// Returns the range of a block after `count` other blocks.
    #[inline]
    fn block_at(&self, count: usize, bytes: usize, before: impl Fn(usize) -> usize) -> Range<usize> {
        let start =
            if self.lengths.is_empty() { count * self.block_bytes } else { (0..count).map(before).sum() };
        start..start + bytes
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn signatures_survive_packing_and_say_what_they_are() {
        for kind in CollectiveKind::ALL {
            for element in CollectiveDType::ALL {
                for operation in [None, Some(ReduceOp::Sum), Some(ReduceOp::Average)] {
                    for root in [None, Some(0), Some(7)] {
                        let before = root.map(|_| CollectiveKind::Gather);
                        let signature = Signature { kind, element, operation, root, count: 1 << 40, before };
                        assert_eq!(Signature::unpack(signature.pack()), Some(signature));
                    }
                }
            }
        }
        assert_eq!(Signature::unpack([0, 5]), None);
        let signature = Signature {
            kind: CollectiveKind::Reduce,
            element: CollectiveDType::Bf16,
            operation: Some(ReduceOp::Max),
            root: Some(3),
            count: 12,
            before: None,
        };
        assert_eq!(signature.to_string(), "reduce of 12 bf16 by max at root 3");
    }
}
