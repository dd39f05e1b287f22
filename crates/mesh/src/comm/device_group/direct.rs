//! From card to card.

use std::sync::{Mutex, PoisonError};

use evener_device::{Buffer, Stream};

use super::super::{
    buffers::Asked,
    call::Blocks,
    core::Core,
    element::Element,
    error::{CommError, Result},
};
use crate::backend::nccl::{Communicator, Operands};

/// Does what is asked for with the communicator, which is of no use after a call that failed.
pub(super) fn call<T: Element>(
    direct: &Mutex<Communicator>,
    core: &Core,
    stream: &mut Stream,
    asked: Asked<'_, T>,
) -> Result<Vec<usize>> {
    let mut turn = core.turn();
    turn.begin()?;
    let ends = turn.ends(&asked)?;
    let Asked { request, input, output, .. } = asked;
    let mut direct = direct.lock().unwrap_or_else(PoisonError::into_inner);
    let done = turn.together(&ends, |_| {
        stream.wait_timeout(core.timeout).map_err(|error| core.device_failed(error))?;
        let address = |buffer: Option<&Buffer<T>>| buffer.and_then(Buffer::cuda_address).unwrap_or(0);
        // In place, NCCL is given both on every rank.
        let input = address(if request.is_in_place() { output } else { input });
        let lengths: Vec<_> = ends.lengths.iter().map(|length| length * size_of::<T>()).collect();
        let places = Blocks::of(&ends.signature, &lengths, core.size());
        let operands = Operands { input, output: address(output), signature: ends.signature, places };
        direct.run(request, operands, core.timeout).map_err(|detail| {
            let (group, operation) = (core.name.to_string(), "a collective".into());
            core.fail(CommError::Library { group, library: "NCCL", operation, detail })
        })
    });
    if done.is_err() {
        direct.abort();
    }
    done.map(|()| ends.given)
}
