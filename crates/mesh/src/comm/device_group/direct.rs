//! From card to card.

use std::sync::{MutexGuard, PoisonError};

use evener_device::{Buffer, Stream};

use super::{
    super::{
        buffers::Ends,
        element::Element,
        error::{CommError, Result},
    },
    DeviceGroup,
};
use crate::backend::nccl::{Communicator, Operands, Work};

impl DeviceGroup<'_> {
    /// Whether buffers go from card to card.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Does what all members do together.
    pub(super) fn together<T: Element>(
        &self,
        stream: &mut Stream,
        ends: &Ends<'_, T>,
        work: Work,
    ) -> Result<()> {
        let core = &self.group.core;
        let says = match work {
            Work::AllReduce(operation) => [1, operation as u64, 0],
            Work::Reduce(operation, root) => [2, operation as u64, root as u64],
            Work::Broadcast(root) => [3, 0, root as u64],
            Work::AllGather => [4, 0, 0],
            Work::ReduceScatter(operation) => [5, operation as u64, 0],
            Work::Gather(root) => [6, 0, root as u64],
            Work::Scatter(root) => [7, 0, root as u64],
            Work::AllToAll => [8, 0, 0],
            // Only two take part in these.
            Work::Send(_) | Work::Receive(_) => [9, 0, 0],
        };
        self.between(|direct| {
            core.agree(&[says[0], says[1], says[2], T::TYPE as u64, ends.count as u64])?;
            self.run(direct, stream, ends, work)?;
            // It ended well everywhere, or somebody says that it did not.
            core.barrier()
        })
    }

    pub(super) fn send_direct<T: Element>(
        &self,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        to: usize,
    ) -> Result<()> {
        let core = &self.group.core;
        core.settle();
        let ends = Ends { input: Some((buffer, 1)), output: None, count: buffer.len(), blocks: 1 };
        self.between(|direct| {
            core.offer::<T>(buffer.len(), to)?;
            self.run(direct, stream, &ends, Work::Send(to))?;
            core.hear_of_arrival(to)
        })
    }

    pub(super) fn recv_direct<T: Element>(
        &self,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        from: usize,
    ) -> Result<()> {
        let core = &self.group.core;
        core.settle();
        let ends = Ends { input: None, output: Some((buffer, 1)), count: buffer.len(), blocks: 1 };
        self.between(|direct| {
            core.accept::<T>(buffer.len(), from)?;
            self.run(direct, stream, &ends, Work::Receive(from))?;
            core.tell_of_arrival(from)
        })
    }

    /// A call with the communicator, which is of no use after one that failed.
    fn between(&self, call: impl FnOnce(&mut Communicator) -> Result<()>) -> Result<()> {
        let Some(direct) = &self.direct else { return Ok(()) };
        let mut direct: MutexGuard<'_, Communicator> = direct.lock().unwrap_or_else(PoisonError::into_inner);
        let done = call(&mut direct);
        if done.is_err() {
            direct.abort();
        }
        done
    }

    fn run<T: Element>(
        &self,
        direct: &mut Communicator,
        stream: &mut Stream,
        ends: &Ends<'_, T>,
        work: Work,
    ) -> Result<()> {
        let (core, timeout) = (&self.group.core, self.group.timeout());
        stream.wait_timeout(timeout).map_err(|error| core.device_failed(error))?;
        let address =
            |end: Option<(&Buffer<T>, usize)>| end.and_then(|(it, _)| it.cuda_address()).unwrap_or(0);
        let operands = Operands {
            input: address(ends.input),
            output: address(ends.output),
            count: ends.count,
            element: T::TYPE,
        };
        direct.run(work, operands, timeout).map_err(|detail| {
            let (group, operation) = (self.group.name().to_owned(), "a collective".into());
            core.fail(CommError::Library { group, library: "NCCL", operation, detail })
        })
    }
}
