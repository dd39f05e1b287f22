//! What a rank can ask of a group.

use super::{call::Collective, operation::Operation};

/// A collective with everything that it needs beside the vectors. Each method of [`Group`](super::Group) that is named
/// after one is short for [`Group::call`](super::Group::call) with one of these, and each method of
/// [`DeviceGroup`](super::DeviceGroup) for [`DeviceGroup::call`](super::DeviceGroup::call).
///
/// Roots and peers are numbers in the group. All-reduce, reduce and broadcast are *in place*: they have an output and no
/// input.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Request {
    /// [`Group::all_reduce`](super::Group::all_reduce), in place.
    AllReduce(Operation),
    /// [`Group::weighted_all_reduce`](super::Group::weighted_all_reduce) with this rank's weight, in place.
    WeightedAllReduce(f64),
    /// [`Group::reduce`](super::Group::reduce) to a root, in place.
    Reduce(Operation, usize),
    /// [`Group::broadcast`](super::Group::broadcast) from a root, in place.
    Broadcast(usize),
    /// [`Group::all_gather`](super::Group::all_gather).
    AllGather,
    /// [`Group::reduce_scatter`](super::Group::reduce_scatter).
    ReduceScatter(Operation),
    /// [`Group::gather`](super::Group::gather) to a root, which alone has an output.
    Gather(usize),
    /// [`Group::scatter`](super::Group::scatter) from a root, which alone has an input.
    Scatter(usize),
    /// [`Group::all_to_all`](super::Group::all_to_all).
    AllToAll,
    /// [`Group::barrier`](super::Group::barrier), without vectors.
    Barrier,
    /// [`Group::send`](super::Group::send) to a rank; there is no output.
    Send(usize),
    /// [`Group::recv`](super::Group::recv) from a rank; there is no input.
    Recv(usize),
}

impl Request {
    /// Which collective, by which operation, at which root.
    #[inline]
    pub(super) fn parts(self) -> (Collective, Option<Operation>, Option<usize>) {
        match self {
            Request::AllReduce(operation) => (Collective::AllReduce, Some(operation), None),
            Request::WeightedAllReduce(_) => (Collective::WeightedAllReduce, None, None),
            Request::Reduce(operation, root) => (Collective::Reduce, Some(operation), Some(root)),
            Request::Broadcast(root) => (Collective::Broadcast, None, Some(root)),
            Request::AllGather => (Collective::AllGather, None, None),
            Request::ReduceScatter(operation) => (Collective::ReduceScatter, Some(operation), None),
            Request::Gather(root) => (Collective::Gather, None, Some(root)),
            Request::Scatter(root) => (Collective::Scatter, None, Some(root)),
            Request::AllToAll => (Collective::AllToAll, None, None),
            Request::Barrier => (Collective::Barrier, None, None),
            Request::Send(_) => (Collective::Send, None, None),
            Request::Recv(_) => (Collective::Receive, None, None),
        }
    }

    pub(super) fn collective(self) -> Collective {
        self.parts().0
    }

    #[inline]
    pub(super) fn root(self) -> Option<usize> {
        self.parts().2
    }

    /// The other of the two ranks that exchange.
    #[inline]
    pub(super) fn peer(self) -> Option<usize> {
        if let Request::Send(peer) | Request::Recv(peer) = self { Some(peer) } else { None }
    }

    #[inline]
    pub(super) fn weight(self) -> f64 {
        if let Request::WeightedAllReduce(weight) = self { weight } else { 1.0 }
    }

    pub(super) fn is_in_place(self) -> bool {
        self.peer().is_none() && self.blocks(1, true) == (0, 1)
    }

    /// How many elements of a block there are, where this rank gives and takes so many elements in a group of so many.
    #[inline]
    pub(super) fn count(self, ranks: usize, given: usize, taken: usize) -> usize {
        match self {
            Request::Barrier => 0,
            Request::AllToAll => given / ranks,
            Request::AllGather | Request::Gather(_) | Request::Send(_) => given,
            _ => taken,
        }
    }

    /// How many blocks a rank gives and takes, in a group of so many ranks.
    #[inline]
    pub(super) fn blocks(self, ranks: usize, is_root: bool) -> (usize, usize) {
        let at_root = if is_root { ranks } else { 0 };
        match self {
            Request::Barrier => (0, 0),
            Request::AllGather => (1, ranks),
            Request::Gather(_) => (1, at_root),
            Request::ReduceScatter(_) => (ranks, 1),
            Request::Scatter(_) => (at_root, 1),
            Request::AllToAll => (ranks, ranks),
            Request::Send(_) => (1, 0),
            _ => (0, 1),
        }
    }
}
