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
    pub(super) fn collective(self) -> Collective {
        match self {
            Request::AllReduce(_) => Collective::AllReduce,
            Request::WeightedAllReduce(_) => Collective::WeightedAllReduce,
            Request::Reduce(..) => Collective::Reduce,
            Request::Broadcast(_) => Collective::Broadcast,
            Request::AllGather => Collective::AllGather,
            Request::ReduceScatter(_) => Collective::ReduceScatter,
            Request::Gather(_) => Collective::Gather,
            Request::Scatter(_) => Collective::Scatter,
            Request::AllToAll => Collective::AllToAll,
            Request::Barrier => Collective::Barrier,
            Request::Send(_) => Collective::Send,
            Request::Recv(_) => Collective::Receive,
        }
    }

    pub(super) fn operation(self) -> Option<Operation> {
        match self {
            Request::AllReduce(it) | Request::Reduce(it, _) | Request::ReduceScatter(it) => Some(it),
            _ => None,
        }
    }

    pub(super) fn root(self) -> Option<usize> {
        match self {
            Request::Reduce(_, root)
            | Request::Broadcast(root)
            | Request::Gather(root)
            | Request::Scatter(root) => Some(root),
            _ => None,
        }
    }

    /// The other of the two ranks that exchange.
    pub(super) fn peer(self) -> Option<usize> {
        match self {
            Request::Send(peer) | Request::Recv(peer) => Some(peer),
            _ => None,
        }
    }

    pub(super) fn weight(self) -> f64 {
        if let Request::WeightedAllReduce(weight) = self { weight } else { 1.0 }
    }

    pub(super) fn is_in_place(self) -> bool {
        matches!(
            self,
            Request::AllReduce(_)
                | Request::WeightedAllReduce(_)
                | Request::Reduce(..)
                | Request::Broadcast(_)
        )
    }

    /// How many elements of a block there are, where this rank gives and takes so many elements in a group of so many.
    pub(super) fn count(self, ranks: usize, given: usize, taken: usize) -> usize {
        match self {
            Request::Barrier => 0,
            Request::AllToAll => given / ranks,
            Request::AllGather | Request::Gather(_) | Request::Send(_) => given,
            _ => taken,
        }
    }

    /// How many blocks a rank gives and takes, in a group of so many ranks.
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
