//! Blocks on one of the processor's cores.

use evener_device::{DeviceId, Error, Result};
use evener_schedule::{Chunk, Results};

use super::{Block, Outcome, Shape, unreadable};
use crate::{
    hash::Digest,
    subtree::{self, Scratch, blocks_at_once},
};

/// What a core keeps from chunk to chunk.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    scratch: Scratch,
    /// Leaves that were read from a file.
    read: Vec<u8>,
    /// Nodes of a block.
    nodes: Vec<Digest>,
}

impl Cores {
    pub(super) fn run<O: Outcome>(
        &mut self,
        shape: &Shape,
        chunk: &Chunk<'_, Block>,
        results: &mut Results<'_, O::Output>,
        device: &DeviceId,
    ) -> Result<()> {
        chunk.read(|blocks| {
            for piece in blocks.chunks(blocks_at_once(shape.height)) {
                // The run waits for this, even where nobody needs it any more.
                if chunk.is_over() {
                    return Err(Error::Ended);
                }
                let bytes = piece.len() * shape.block_bytes();
                // The blocks of a chunk follow each other.
                let leaves = match piece[0].in_memory(bytes) {
                    Some(leaves) => leaves,
                    None => {
                        self.read.resize(bytes, 0);
                        piece[0].copy_to(0, &mut self.read).map_err(|message| unreadable(device, message))?;
                        &self.read
                    }
                };
                if O::WHOLE {
                    self.nodes.resize(2 << shape.height, Digest::default());
                    for block in leaves.chunks(shape.block_bytes()) {
                        let nodes = &mut self.nodes[..(2 << shape.height) - 1];
                        subtree::whole(&shape.format, block, shape.height, nodes);
                        O::give(&self.nodes, shape.height, results);
                    }
                } else {
                    subtree::roots(&shape.format, leaves, shape.height, &mut self.scratch, |roots| {
                        O::give(roots, shape.height, results);
                    });
                }
            }
            Ok(())
        })?
    }
}
