//! The collectives: from card to card where that can be, otherwise through the host.

use evener_device::{Buffer, Stream};

#[cfg(unix)]
use super::super::call::Collective;
use super::{
    super::{
        element::{Element, FloatElement},
        error::Result,
        operation::Operation,
    },
    DeviceGroup,
};
#[cfg(unix)]
use crate::backend::nccl::Work;

/// Input and output do not overlap. Through NCCL, reductions go in an order of its own.
impl DeviceGroup<'_> {
    /// As [`Group::all_reduce_buffer`](super::Group::all_reduce_buffer).
    pub fn all_reduce<T: Element>(
        &self,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        operation: Operation,
    ) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            let ends = self.group.core.whole(buffer);
            return self.together(stream, &ends, Work::AllReduce(operation));
        }
        self.group.all_reduce_buffer(&self.device, stream, buffer, operation)
    }

    /// As [`Group::weighted_all_reduce_buffer`](super::Group::weighted_all_reduce_buffer), always through the host:
    /// what a rank of weight 0 has is not to be looked at.
    pub fn weighted_all_reduce<T: FloatElement>(
        &self,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        weight: f64,
    ) -> Result<()> {
        self.group.weighted_all_reduce_buffer(&self.device, stream, buffer, weight)
    }

    /// As [`Group::reduce_buffer`](super::Group::reduce_buffer).
    pub fn reduce<T: Element>(
        &self,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        operation: Operation,
        root: usize,
    ) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            // For the check of the root; NCCL is given both.
            self.group.core.ends(Collective::Reduce, Some(buffer), Some(buffer), Some(root))?;
            let ends = self.group.core.whole(buffer);
            return self.together(stream, &ends, Work::Reduce(operation, root));
        }
        self.group.reduce_buffer(&self.device, stream, buffer, operation, root)
    }

    /// As [`Group::broadcast_buffer`](super::Group::broadcast_buffer).
    pub fn broadcast<T: Element>(&self, stream: &mut Stream, buffer: &Buffer<T>, root: usize) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            self.group.core.ends(Collective::Broadcast, Some(buffer), Some(buffer), Some(root))?;
            let ends = self.group.core.whole(buffer);
            return self.together(stream, &ends, Work::Broadcast(root));
        }
        self.group.broadcast_buffer(&self.device, stream, buffer, root)
    }

    /// As [`Group::all_gather_buffer`](super::Group::all_gather_buffer).
    pub fn all_gather<T: Element>(
        &self,
        stream: &mut Stream,
        input: &Buffer<T>,
        output: &Buffer<T>,
    ) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            let ends = self.group.core.ends(Collective::AllGather, Some(input), Some(output), None)?;
            return self.together(stream, &ends, Work::AllGather);
        }
        self.group.all_gather_buffer(&self.device, stream, input, output)
    }

    /// As [`Group::reduce_scatter_buffer`](super::Group::reduce_scatter_buffer).
    pub fn reduce_scatter<T: Element>(
        &self,
        stream: &mut Stream,
        input: &Buffer<T>,
        output: &Buffer<T>,
        operation: Operation,
    ) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            let ends = self.group.core.ends(Collective::ReduceScatter, Some(input), Some(output), None)?;
            return self.together(stream, &ends, Work::ReduceScatter(operation));
        }
        self.group.reduce_scatter_buffer(&self.device, stream, input, output, operation)
    }

    /// As [`Group::gather_buffer`](super::Group::gather_buffer).
    pub fn gather<T: Element>(
        &self,
        stream: &mut Stream,
        input: &Buffer<T>,
        output: Option<&Buffer<T>>,
        root: usize,
    ) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            let ends = self.group.core.ends(Collective::Gather, Some(input), output, Some(root))?;
            return self.together(stream, &ends, Work::Gather(root));
        }
        self.group.gather_buffer(&self.device, stream, input, output, root)
    }

    /// As [`Group::scatter_buffer`](super::Group::scatter_buffer).
    pub fn scatter<T: Element>(
        &self,
        stream: &mut Stream,
        input: Option<&Buffer<T>>,
        output: &Buffer<T>,
        root: usize,
    ) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            let ends = self.group.core.ends(Collective::Scatter, input, Some(output), Some(root))?;
            return self.together(stream, &ends, Work::Scatter(root));
        }
        self.group.scatter_buffer(&self.device, stream, input, output, root)
    }

    /// As [`Group::all_to_all_buffer`](super::Group::all_to_all_buffer).
    pub fn all_to_all<T: Element>(
        &self,
        stream: &mut Stream,
        input: &Buffer<T>,
        output: &Buffer<T>,
    ) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            let ends = self.group.core.ends(Collective::AllToAll, Some(input), Some(output), None)?;
            return self.together(stream, &ends, Work::AllToAll);
        }
        self.group.all_to_all_buffer(&self.device, stream, input, output)
    }

    /// As [`Group::send_buffer`](super::Group::send_buffer), for [`recv`](DeviceGroup::recv).
    pub fn send<T: Element>(&self, stream: &mut Stream, buffer: &Buffer<T>, to: usize) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            return self.send_direct(stream, buffer, to);
        }
        self.group.send_buffer(&self.device, stream, buffer, to)
    }

    /// As [`Group::recv_buffer`](super::Group::recv_buffer), of what [`send`](DeviceGroup::send) sends.
    pub fn recv<T: Element>(&self, stream: &mut Stream, buffer: &Buffer<T>, from: usize) -> Result<()> {
        #[cfg(unix)]
        if self.is_direct() {
            return self.recv_direct(stream, buffer, from);
        }
        self.group.recv_buffer(&self.device, stream, buffer, from)
    }
}
