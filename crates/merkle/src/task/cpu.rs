//! Reduces blocks on a CPU core.

use evener_device::{DeviceId, Error, Result};
use evener_schedule::{Chunk, Results};

use super::{Block, BlockOutput, BlockShape, read_error};
use crate::{
    hash::Digest,
    subtree::{self, Scratch, blocks_at_once},
};

/// A core's reusable memory.
#[derive(Debug, Default)]
pub(crate) struct CpuWorker {
    scratch: Scratch,
    /// Leaves read from a file.
    leaves: Vec<u8>,
    /// The nodes of one block.
    nodes: Vec<Digest>,
}

impl CpuWorker {
    pub(super) fn run<O: BlockOutput>(
        &mut self,
        shape: &BlockShape,
        chunk: &Chunk<'_, Block>,
        results: &mut Results<'_, O::Output>,
        device: &DeviceId,
    ) -> Result<()> {
        chunk.read(|blocks| {
            for piece in blocks.chunks(blocks_at_once(shape.height)) {
                // The run cannot end before this chunk returns, even if its results are no longer needed.
                if chunk.is_over() {
                    return Err(Error::Ended);
                }
                let bytes = piece.len() * shape.block_bytes();
                // The blocks of a chunk are contiguous.
                let leaves = match piece[0].slice(bytes) {
                    Some(leaves) => leaves,
                    None => {
                        self.leaves.resize(bytes, 0);
                        piece[0]
                            .copy_to(0, &mut self.leaves)
                            .map_err(|message| read_error(device, message))?;
                        &self.leaves
                    }
                };
                if O::ALL_NODES {
                    self.nodes.resize(2 << shape.height, Digest::default());
                    for block in leaves.chunks(shape.block_bytes()) {
                        let nodes = &mut self.nodes[..(2 << shape.height) - 1];
                        subtree::all_nodes(&shape.format, block, shape.height, nodes);
                        O::push(&self.nodes, shape.height, results);
                    }
                } else {
                    subtree::roots(&shape.format, leaves, shape.height, &mut self.scratch, |roots| {
                        O::push(roots, shape.height, results);
                    });
                }
            }
            Ok(())
        })?
    }
}
