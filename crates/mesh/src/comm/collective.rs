//! The collectives, with their arguments.

use super::{call::CollectiveKind, reduce_op::ReduceOp};

/// A collective with its arguments except the buffers. Each method of [`Communicator`](super::Communicator) that is
/// named after one is short for [`Communicator::call`](super::Communicator::call), and each method of
/// [`DeviceCommunicator`](super::DeviceCommunicator) for [`DeviceCommunicator::call`](super::DeviceCommunicator::call).
///
/// Roots and peers are group ranks. All-reduce, reduce and broadcast are *in place*: they have an output and no input.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Collective {
    /// [`Communicator::all_reduce`](super::Communicator::all_reduce), in place.
    AllReduce(ReduceOp),
    /// [`Communicator::weighted_all_reduce`](super::Communicator::weighted_all_reduce) with this rank's weight, in place.
    WeightedAllReduce(f64),
    /// [`Communicator::reduce`](super::Communicator::reduce) to a root, in place.
    Reduce(ReduceOp, usize),
    /// [`Communicator::broadcast`](super::Communicator::broadcast) from a root, in place.
    Broadcast(usize),
    /// [`Communicator::all_gather`](super::Communicator::all_gather).
    AllGather,
    /// [`Communicator::reduce_scatter`](super::Communicator::reduce_scatter).
    ReduceScatter(ReduceOp),
    /// [`Communicator::gather`](super::Communicator::gather) to a root, which alone has an output.
    Gather(usize),
    /// [`Communicator::scatter`](super::Communicator::scatter) from a root, which alone has an input.
    Scatter(usize),
    /// [`Communicator::all_to_all`](super::Communicator::all_to_all).
    AllToAll,
    /// [`Communicator::barrier`](super::Communicator::barrier), without vectors.
    Barrier,
    /// [`Communicator::send`](super::Communicator::send) to a rank; there is no output.
    Send(usize),
    /// [`Communicator::recv`](super::Communicator::recv) from a rank; there is no input.
    Recv(usize),
}

impl Collective {
    #[inline]
    pub(super) fn parts(self) -> (CollectiveKind, Option<ReduceOp>, Option<usize>) {
        match self {
            Collective::AllReduce(operation) => (CollectiveKind::AllReduce, Some(operation), None),
            Collective::WeightedAllReduce(_) => (CollectiveKind::WeightedAllReduce, None, None),
            Collective::Reduce(operation, root) => (CollectiveKind::Reduce, Some(operation), Some(root)),
            Collective::Broadcast(root) => (CollectiveKind::Broadcast, None, Some(root)),
            Collective::AllGather => (CollectiveKind::AllGather, None, None),
            Collective::ReduceScatter(operation) => (CollectiveKind::ReduceScatter, Some(operation), None),
            Collective::Gather(root) => (CollectiveKind::Gather, None, Some(root)),
            Collective::Scatter(root) => (CollectiveKind::Scatter, None, Some(root)),
            Collective::AllToAll => (CollectiveKind::AllToAll, None, None),
            Collective::Barrier => (CollectiveKind::Barrier, None, None),
            Collective::Send(_) => (CollectiveKind::Send, None, None),
            Collective::Recv(_) => (CollectiveKind::Receive, None, None),
        }
    }

    pub(super) fn kind(self) -> CollectiveKind {
        self.parts().0
    }

    #[inline]
    pub(super) fn root(self) -> Option<usize> {
        self.parts().2
    }

    #[inline]
    pub(super) fn peer(self) -> Option<usize> {
        if let Collective::Send(peer) | Collective::Recv(peer) = self { Some(peer) } else { None }
    }

    #[inline]
    pub(super) fn weight(self) -> f64 {
        if let Collective::WeightedAllReduce(weight) = self { weight } else { 1.0 }
    }

    pub(super) fn is_in_place(self) -> bool {
        self.peer().is_none() && self.blocks(1, true) == (0, 1)
    }

    /// Returns the elements of a block, given the lengths of this rank's input and output.
    #[inline]
    pub(super) fn count(self, ranks: usize, input_len: usize, output_len: usize) -> usize {
        match self {
            Collective::Barrier => 0,
            Collective::AllToAll => input_len / ranks,
            Collective::AllGather | Collective::Gather(_) | Collective::Send(_) => input_len,
            _ => output_len,
        }
    }

    /// Returns the number of this rank's input and output blocks.
    #[inline]
    pub(super) fn blocks(self, ranks: usize, is_root: bool) -> (usize, usize) {
        let at_root = if is_root { ranks } else { 0 };
        match self {
            Collective::Barrier => (0, 0),
            Collective::AllGather => (1, ranks),
            Collective::Gather(_) => (1, at_root),
            Collective::ReduceScatter(_) => (ranks, 1),
            Collective::Scatter(_) => (at_root, 1),
            Collective::AllToAll => (ranks, ranks),
            Collective::Send(_) => (1, 0),
            _ => (0, 1),
        }
    }
}
