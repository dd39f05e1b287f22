//! Calls by NCCL, directly between cards.

use std::sync::{Mutex, PoisonError};

use evener_device::{Buffer, Stream};

use super::super::{
    buffers::BufferArgs,
    call::Blocks,
    communicator_state::CommunicatorState,
    element::Element,
    error::{CommError, Result},
};
use crate::backend::nccl::{NcclComm, Operands};

/// Runs a collective by NCCL. After a failed call the NCCL communicator is aborted.
pub(super) fn call<T: Element>(
    direct: &Mutex<NcclComm>,
    state: &CommunicatorState,
    stream: &mut Stream,
    args: BufferArgs<'_, T>,
) -> Result<Vec<usize>> {
    let mut guard = state.lock_calls();
    guard.check_usable()?;
    let checked = guard.check_buffers(&args)?;
    let BufferArgs { collective, input, output, .. } = args;
    let mut direct = direct.lock().unwrap_or_else(PoisonError::into_inner);
    let done = guard.run_agreed(&checked, |_| {
        stream.wait_timeout(state.timeout).map_err(|error| state.device_failed(error))?;
        let address = |buffer: Option<&Buffer<T>>| buffer.and_then(Buffer::cuda_address).unwrap_or(0);
        // NCCL takes both addresses of an in-place collective on every rank.
        let input = address(if collective.is_in_place() { output } else { input });
        let lengths: Vec<_> = checked.lengths.iter().map(|length| length * size_of::<T>()).collect();
        let blocks = Blocks::of(&checked.signature, &lengths, state.size());
        let operands = Operands { input, output: address(output), signature: checked.signature, blocks };
        direct.run(collective, operands, state.timeout).map_err(|detail| {
            let (group, operation) = (state.name.to_string(), "a collective".into());
            state.fail(CommError::Library { group, library: "NCCL", operation, detail })
        })
    });
    if done.is_err() {
        direct.abort();
    }
    done.map(|()| checked.counts)
}
