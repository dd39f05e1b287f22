//! The task of a run: reduces blocks of leaves to their roots or to all of their nodes.

mod block;
mod cpu;
mod gpu;

use std::{marker::PhantomData, sync::Arc};

use evener_device::{Device, DeviceId, Error, Kernel, Result};
use evener_schedule::{Chunk, Results, Task};

pub(crate) use self::block::{Block, BlockItems};
use self::{block::BlockSource, cpu::CpuWorker, gpu::DeviceWorker};
use crate::{hash::Digest, kernel, subtree::LeafFormat};

/// The kind of result that a block is reduced to.
pub(crate) trait BlockOutput: Send + Sync + 'static {
    /// The result of one block.
    type Output: Send + 'static;
    /// Whether the result is all nodes instead of the root.
    const ALL_NODES: bool;

    /// Adds the results of several blocks: their roots, or the nodes of one block after the other.
    fn push(nodes: &[Digest], height: u32, results: &mut Results<'_, Self::Output>);
    /// Adds the results of all blocks of a chunk from memory that stays valid until the worker's next chunk.
    fn lend<'s>(nodes: &'s [Digest], height: u32, results: &mut Results<'s, Self::Output>);
}

/// Reduces blocks to their roots.
pub(crate) struct BlockRoots;

impl BlockOutput for BlockRoots {
    type Output = Digest;
    const ALL_NODES: bool = false;

    fn push(nodes: &[Digest], _: u32, results: &mut Results<'_, Digest>) {
        results.extend_from_slice(nodes);
    }

    fn lend<'s>(nodes: &'s [Digest], _: u32, results: &mut Results<'s, Digest>) {
        results.lend(nodes);
    }
}

/// Reduces blocks to all of their nodes, level by level.
pub(crate) struct BlockNodes;

impl BlockOutput for BlockNodes {
    type Output = Box<[Digest]>;
    const ALL_NODES: bool = true;

    fn push(nodes: &[Digest], height: u32, results: &mut Results<'_, Box<[Digest]>>) {
        // The kernel leaves one unused digest after each block.
        results.extend(nodes.chunks(2 << height).map(|block| block[..(2 << height) - 1].into()));
    }

    fn lend<'s>(nodes: &'s [Digest], height: u32, results: &mut Results<'s, Box<[Digest]>>) {
        Self::push(nodes, height, results);
    }
}

/// Reduces blocks of one format and height.
pub(crate) struct BlockTask<O> {
    shape: Arc<BlockShape>,
    output: PhantomData<fn() -> O>,
}

/// The blocks of a task and their kernel.
#[derive(Debug)]
struct BlockShape {
    name: String,
    format: LeafFormat,
    height: u32,
    kernel: Kernel,
}

impl BlockShape {
    fn block_bytes(&self) -> usize {
        self.format.leaf_size() << self.height
    }
}

impl<O: BlockOutput> BlockTask<O> {
    #[allow(unsafe_code)]
    pub(crate) fn new(format: LeafFormat, height: u32) -> Self {
        // The scheduler keeps its measurements under this name, so it includes all that determines a block's cost.
        let what = match (format.prehashed, O::ALL_NODES) {
            (true, false) => "digests".to_owned(),
            (true, true) => "digests, whole".to_owned(),
            (false, false) => format!("leaves of {} B", format.leaf_bytes),
            (false, true) => format!("leaves of {} B, whole", format.leaf_bytes),
        };
        let name = format!("merkle {}: {} {what}", format.scheme, 1u64 << height);
        // SAFETY: only `DeviceWorker::run` launches the kernel. It launches one workgroup per block of the chunk, from block
        // 0 on, with buffers for at least that many blocks of leaves and of nodes (`DeviceWorker::take_buffers`). The
        // builder's `block_height` keeps the height within `MAX_HEIGHT`.
        let kernel = unsafe { kernel::merkle(format) };
        let shape = BlockShape { name, format, height, kernel };
        BlockTask { shape: Arc::new(shape), output: PhantomData }
    }
}

impl<O> Clone for BlockTask<O> {
    fn clone(&self) -> Self {
        BlockTask { shape: self.shape.clone(), output: PhantomData }
    }
}

/// A worker's state, kept from chunk to chunk.
pub(crate) enum BlockWorker {
    Cpu(DeviceId, CpuWorker),
    Device(Box<DeviceWorker>),
}

impl<O: BlockOutput> Task for BlockTask<O> {
    type Input = Block;
    type Output = O::Output;
    type State = BlockWorker;

    fn name(&self) -> &str {
        &self.shape.name
    }

    fn can_use(&self, device: &Device) -> bool {
        self.shape.kernel.has_body_for(device.describe().api)
    }

    fn prepare(&self, device: &Device) -> Result<BlockWorker> {
        // A processor of another machine runs the kernel's Rust body: leaves are copied to it as to a GPU.
        Ok(match device.describe().is_local_processor() {
            true => BlockWorker::Cpu(device.id().clone(), CpuWorker::default()),
            false => BlockWorker::Device(Box::new(DeviceWorker::new(device, &self.shape, O::ALL_NODES)?)),
        })
    }

    fn max_items(&self, state: &BlockWorker) -> u64 {
        match state {
            BlockWorker::Cpu(..) => u64::MAX,
            BlockWorker::Device(device) => device.max_blocks(),
        }
    }

    fn may_hang(&self, device: &Device) -> bool {
        !device.describe().is_local_processor()
    }

    fn run<'s>(
        &self,
        state: &'s mut BlockWorker,
        chunk: &Chunk<'_, Block>,
        results: &mut Results<'s, O::Output>,
    ) -> Result<()> {
        match state {
            BlockWorker::Cpu(device, worker) => worker.run::<O>(&self.shape, chunk, results, device),
            BlockWorker::Device(device) => {
                let nodes = device.run(&self.shape, O::ALL_NODES, chunk)?;
                O::lend(nodes, self.shape.height, results);
                Ok(())
            }
        }
    }
}

/// Returns the error of a failed read of leaves. It is a task error, because no other device could read them either.
fn read_error(device: &DeviceId, message: String) -> Error {
    Error::Task {
        device: device.clone(),
        operation: "reading leaves".into(),
        item: None,
        message,
        source: None,
    }
}
