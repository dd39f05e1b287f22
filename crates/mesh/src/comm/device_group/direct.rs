//! From card to card.

use std::sync::{Mutex, PoisonError};

use evener_device::{Buffer, Stream};

use super::super::{
    core::Core,
    element::Element,
    error::{CommError, Result},
    request::Request,
};
use crate::backend::nccl::{Communicator, Operands, Work};

/// What NCCL is asked for; nothing where it cannot do what is requested.
pub(super) fn work(request: Request) -> Option<Work> {
    Some(match request {
        Request::AllReduce(operation) => Work::AllReduce(operation),
        Request::Reduce(operation, root) => Work::Reduce(operation, root),
        Request::Broadcast(root) => Work::Broadcast(root),
        Request::AllGather => Work::AllGather,
        Request::ReduceScatter(operation) => Work::ReduceScatter(operation),
        Request::Gather(root) => Work::Gather(root),
        Request::Scatter(root) => Work::Scatter(root),
        Request::AllToAll => Work::AllToAll,
        Request::Send(to) => Work::Send(to),
        Request::Recv(from) => Work::Receive(from),
        Request::WeightedAllReduce(_) | Request::Barrier => return None,
    })
}

/// Does what is asked for with the communicator, which is of no use after a call that failed.
pub(super) fn call<T: Element>(
    direct: &Mutex<Communicator>,
    core: &Core,
    stream: &mut Stream,
    work: Work,
    (request, input, output): (Request, Option<&Buffer<T>>, Option<&Buffer<T>>),
) -> Result<()> {
    let mut turn = core.turn();
    turn.begin()?;
    let ends = turn.ends(request, input, output)?;
    let mut direct = direct.lock().unwrap_or_else(PoisonError::into_inner);
    let done = turn.together(&ends, |_| {
        stream.wait_timeout(core.timeout).map_err(|error| core.device_failed(error))?;
        let address = |buffer: Option<&Buffer<T>>| buffer.and_then(Buffer::cuda_address).unwrap_or(0);
        // In place, NCCL is given both on every rank.
        let input = address(if request.is_in_place() { output } else { input });
        let operands = Operands { input, output: address(output), count: ends.count, element: T::TYPE };
        direct.run(work, operands, core.timeout).map_err(|detail| {
            let (group, operation) = (core.name.to_string(), "a collective".into());
            core.fail(CommError::Library { group, library: "NCCL", operation, detail })
        })
    });
    if done.is_err() {
        direct.abort();
    }
    done
}
