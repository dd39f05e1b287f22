//! What a rank asks of a group: which collective, of what, with which buffers.

use std::{fmt, ops::Range};

use super::{element::ElementType, operation::Operation};

/// Which collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Collective {
    AllReduce = 1,
    WeightedAllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    Barrier,
    Send,
    Receive,
}

impl Collective {
    const ALL: [Collective; 12] = [
        Collective::AllReduce,
        Collective::WeightedAllReduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Barrier,
        Collective::Send,
        Collective::Receive,
    ];

    /// How many blocks a rank gives and takes at most, in a group of so many ranks.
    pub(crate) fn blocks(self, ranks: usize) -> (usize, usize) {
        match self {
            Collective::AllGather | Collective::Gather => (1, ranks),
            Collective::ReduceScatter | Collective::Scatter => (ranks, 1),
            Collective::AllToAll => (ranks, ranks),
            _ => (1, 1),
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Collective::AllReduce => "all_reduce",
            Collective::WeightedAllReduce => "weighted_all_reduce",
            Collective::Reduce => "reduce",
            Collective::Broadcast => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Barrier => "barrier",
            Collective::Send => "send",
            Collective::Receive => "recv",
        })
    }
}

/// What ranks must agree on. Two ranks call the same if and only if their signatures are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) collective: Collective,
    pub(crate) element: ElementType,
    /// Where the collective reduces.
    pub(crate) operation: Option<Operation>,
    /// The root's number in the group, where the collective has one.
    pub(crate) root: Option<u32>,
    /// Elements of one rank's part: of the whole vector for reductions and broadcasts, of one block otherwise, of the
    /// longest where blocks are uneven.
    pub(crate) count: u64,
    /// The collective that an all-gather comes before, in which ranks tell one another what it needs to know.
    pub(crate) before: Option<Collective>,
}

impl Signature {
    /// As two words, for ranks to compare.
    pub(crate) fn pack(&self) -> [u64; 2] {
        let operation = self.operation.map_or(0, |it| it as u8);
        let root = self.root.map_or(0, |it| u64::from(it) + 1);
        let before = self.before.map_or(0, |it| it as u8);
        let what = [self.collective as u8, self.element as u8, operation, before];
        [u64::from(u32::from_le_bytes(what)) | root << 32, self.count]
    }

    /// From two words; nothing where they are none that [`pack`](Self::pack) gives.
    pub(crate) fn unpack([what, count]: [u64; 2]) -> Option<Self> {
        let [collective, element, operation, before] = (what as u32).to_le_bytes();
        let find = |number: u8| Collective::ALL.into_iter().find(|it| *it as u8 == number);
        Some(Signature {
            before: find(before),
            collective: find(collective)?,
            element: ElementType::from_number(element)?,
            operation: Operation::from_number(operation),
            root: (what >> 32).checked_sub(1).map(|root| root as u32),
            count,
        })
    }

    /// How many bytes one part is.
    pub(crate) fn part_bytes(&self) -> usize {
        self.count as usize * self.element.bytes()
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(collective) = self.before {
            return write!(f, "{collective} of buffers or of uneven lengths");
        }
        write!(f, "{}", self.collective)?;
        if self.collective == Collective::Barrier {
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

/// A rank's own view of one collective: what is called, and the bytes that it gives and takes. Lengths were checked
/// against the signature, and both slices are aligned for the element type.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) signature: Signature,
    /// This rank's weight, where the collective is weighted; otherwise 1.
    pub(crate) weight: f64,
    /// What this rank gives; empty where it gives what is in `output`, or nothing.
    pub(crate) input: &'a [u8],
    /// What this rank takes, and for reductions and broadcasts also what it gives; empty where it takes nothing.
    pub(crate) output: &'a mut [u8],
    /// How many bytes blocks have where they are uneven: by the rank that gives, and for an all-to-all by the rank that
    /// takes within that. All ranks have agreed on them.
    pub(crate) lengths: &'a [usize],
}

/// Where the blocks of a call lie in the ranks' inputs and outputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks<'a> {
    part: usize,
    ranks: usize,
    lengths: &'a [usize],
}

impl<'a> Blocks<'a> {
    pub(crate) fn of(call: &Call<'a>, ranks: usize) -> Self {
        Blocks { part: call.signature.part_bytes(), ranks, lengths: call.lengths }
    }

    /// How many bytes one rank gives another.
    #[inline]
    fn bytes(&self, from: usize, to: usize) -> usize {
        match self.lengths {
            [] => self.part,
            lengths if lengths.len() == self.ranks => lengths[from],
            lengths => lengths[from * self.ranks + to],
        }
    }

    /// Where in its input a rank has its block for another, where it has one for each.
    #[inline]
    pub(crate) fn given(&self, from: usize, to: usize) -> Range<usize> {
        let start = match self.lengths {
            [] => to * self.part,
            _ => (0..to).map(|before| self.bytes(from, before)).sum(),
        };
        start..start + self.bytes(from, to)
    }

    /// Where in its output a rank takes the block of another, where it takes one of each.
    #[inline]
    pub(crate) fn taken(&self, to: usize, from: usize) -> Range<usize> {
        let start = match self.lengths {
            [] => from * self.part,
            _ => (0..from).map(|before| self.bytes(before, to)).sum(),
        };
        start..start + self.bytes(from, to)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn signatures_survive_packing_and_say_what_they_are() {
        for collective in Collective::ALL {
            for element in ElementType::ALL {
                for operation in [None, Some(Operation::Sum), Some(Operation::Average)] {
                    for root in [None, Some(0), Some(7)] {
                        let before = root.map(|_| Collective::Gather);
                        let signature =
                            Signature { collective, element, operation, root, count: 1 << 40, before };
                        assert_eq!(Signature::unpack(signature.pack()), Some(signature));
                    }
                }
            }
        }
        assert_eq!(Signature::unpack([0, 5]), None);
        let signature = Signature {
            collective: Collective::Reduce,
            element: ElementType::Bf16,
            operation: Some(Operation::Max),
            root: Some(3),
            count: 12,
            before: None,
        };
        assert_eq!(signature.to_string(), "reduce of 12 bf16 by max at root 3");
    }
}
