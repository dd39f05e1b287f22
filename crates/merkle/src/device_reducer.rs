//! Reduces leaves that are already on a device.

use evener_device::{Buffer, Device, Program, Result, Stream};

use crate::{
    hash::Digest,
    kernel::{self, LOG_THREADS, TreeParams},
    subtree::LeafFormat,
};

/// The minimum number of block roots for a second pass on the device: fewer are reduced faster on the CPU.
const MIN_SECOND_PASS_ROOTS: usize = 1 << 9;
/// The number of blocks to aim for, as a power of two: enough to keep the largest devices busy, with a short tail.
const LOG_TARGET_BLOCKS: u32 = 10;
/// The maximum block height: in higher blocks, the phase in which few threads are busy is already negligible.
const MAX_BLOCK_HEIGHT: u32 = 14;

/// Returns the block height for a number of leaves. Higher blocks leave fewer threads idle, as long as there are enough
/// blocks for all multiprocessors.
pub(crate) fn block_height(leaves: u64) -> u32 {
    leaves.max(1).ilog2().saturating_sub(LOG_TARGET_BLOCKS).clamp(LOG_THREADS, MAX_BLOCK_HEIGHT)
}

/// Reduces leaves of one format on one device.
pub(crate) struct DeviceReducer {
    format: LeafFormat,
    device: Device,
    program: Program,
    stream: Stream,
    max_bytes: u64,
    max_groups: u64,
    /// Buffers for the block roots and for the results of the second pass. They are kept, because allocating them takes as
    /// long as reducing a small tree.
    roots: DigestBuffer,
    reduced: DigestBuffer,
}

/// A reusable device buffer of digests.
#[derive(Default)]
struct DigestBuffer(Option<Buffer<Digest>>);

impl DigestBuffer {
    /// Returns a buffer of `count` digests, allocated anew only if the kept one is too small.
    fn get(&mut self, device: &Device, count: usize) -> Result<Buffer<Digest>> {
        let kept = self.0.take().filter(|buffer| buffer.len() >= count);
        let buffer = self.0.insert(match kept {
            Some(buffer) => buffer,
            None => device.buffer_uninit(count)?,
        });
        buffer.slice(..count)
    }
}

/// Consecutive nodes of one level.
pub(crate) struct LevelNodes {
    pub(crate) level: u32,
    pub(crate) nodes: Vec<Digest>,
}

impl DeviceReducer {
    #[allow(unsafe_code)]
    pub(crate) fn new(device: &Device, format: LeafFormat) -> Result<DeviceReducer> {
        let has = device.capabilities()?;
        // SAFETY: only `launch` and `roots` launch the kernel. Both bind slices that hold one block of leaves or digests and
        // the output of one block per workgroup (slicing checks the bounds), and their heights are at most `MAX_HEIGHT`.
        let kernel = unsafe { kernel::merkle(format) };
        Ok(DeviceReducer {
            format,
            program: device.compile(&kernel)?,
            stream: device.stream()?,
            device: device.clone(),
            max_bytes: has.max_binding_bytes.min(has.max_buffer_bytes),
            max_groups: u64::from(has.max_groups[0]),
            roots: DigestBuffer::default(),
            reduced: DigestBuffer::default(),
        })
    }

    /// Returns the maximum number of blocks per launch for a number of output digests per block. It is a multiple of eight,
    /// so that every slice of a buffer is aligned.
    fn max_blocks_per_launch(&self, height: u32, nodes: usize) -> usize {
        let block = (self.format.leaf_size() << height).max(nodes * size_of::<Digest>()) as u64;
        (((self.max_bytes / block).min(self.max_groups) as usize) & !7).max(8)
    }

    /// Reduces leaves to few nodes, the highest level first. Returns them and the leaves after the last whole block.
    pub(crate) fn reduce(&mut self, leaves: &Buffer<u8>) -> Result<(Vec<LevelNodes>, Vec<u8>)> {
        let mut levels = Vec::new();
        let mut left = leaves.slice(..)?;
        // High blocks first, then the smallest ones.
        let count = leaves.len() / self.format.leaf_size();
        for height in [block_height(count as u64), LOG_THREADS] {
            let blocks = (left.len() / self.format.leaf_size()) >> height;
            if blocks > 0 {
                levels.extend(self.roots(&left, height, blocks)?);
                left = left.slice((self.format.leaf_size() << height) * blocks..)?;
            }
        }
        let rest = self.rest(&left, 0, 0)?;
        Ok((levels, rest))
    }

    /// Reduces the first `blocks` blocks to few nodes, the highest level first.
    fn roots(&mut self, leaves: &Buffer<u8>, height: u32, blocks: usize) -> Result<Vec<LevelNodes>> {
        let roots = self.roots.get(&self.device, blocks)?;
        let at_once = self.max_blocks_per_launch(height, 1);
        for first in (0..blocks).step_by(at_once) {
            let count = at_once.min(blocks - first);
            let out = roots.slice(first..first + count)?;
            self.launch(
                leaves,
                height,
                first..first + count,
                &out,
                TreeParams::new(height, self.format.prehashed, false),
            )?;
        }
        let mut levels = Vec::new();
        let mut left = 0;
        let second = blocks >> LOG_THREADS;
        if blocks >= MIN_SECOND_PASS_ROOTS {
            let out = self.reduced.get(&self.device, second)?;
            let bound = self.program.bind(&[roots.cast::<u32>()?.arg(), out.cast::<u32>()?.arg()])?;
            self.stream.launch(&bound, second as u32, &TreeParams::new(LOG_THREADS, true, false))?;
            let nodes = self.stream.download(&out)?.wait()?;
            levels.push(LevelNodes { level: height + LOG_THREADS, nodes });
            left = second << LOG_THREADS;
        }
        if left < blocks {
            let nodes = self.stream.download(&roots.slice(left..)?)?.wait()?;
            levels.push(LevelNodes { level: height, nodes });
        }
        Ok(levels)
    }

    /// Computes all nodes of the first `blocks` blocks.
    pub(crate) fn nodes(
        &mut self,
        leaves: &Buffer<u8>,
        height: u32,
        blocks: usize,
    ) -> Result<Vec<Box<[Digest]>>> {
        /// The maximum size of the nodes of one launch.
        const MAX_NODE_BYTES: usize = 64 << 20;
        let nodes = 2usize << height;
        let at_once = self
            .max_blocks_per_launch(height, nodes)
            .min((MAX_NODE_BYTES / (nodes * size_of::<Digest>())).max(8));
        let mut all = Vec::with_capacity(blocks);
        for first in (0..blocks).step_by(at_once) {
            let count = at_once.min(blocks - first);
            let out: Buffer<Digest> = self.device.buffer_uninit(count * nodes)?;
            self.launch(
                leaves,
                height,
                first..first + count,
                &out,
                TreeParams::new(height, self.format.prehashed, true),
            )?;
            let found = self.stream.download(&out)?.wait()?;
            all.extend(found.chunks(nodes).map(|block| Box::from(&block[..nodes - 1])));
        }
        Ok(all)
    }

    /// Downloads the leaves after the first `blocks` blocks.
    pub(crate) fn rest(&mut self, leaves: &Buffer<u8>, height: u32, blocks: usize) -> Result<Vec<u8>> {
        let rest = leaves.slice((self.format.leaf_size() << height) * blocks..)?;
        if rest.is_empty() { Ok(Vec::new()) } else { self.stream.download(&rest)?.wait() }
    }

    fn launch(
        &mut self,
        leaves: &Buffer<u8>,
        height: u32,
        blocks: std::ops::Range<usize>,
        out: &Buffer<Digest>,
        params: TreeParams,
    ) -> Result<()> {
        let block = self.format.leaf_size() << height;
        let input = leaves.slice(blocks.start * block..blocks.end * block)?.cast::<u32>()?;
        let bound = self.program.bind(&[input.arg(), out.cast::<u32>()?.arg()])?;
        self.stream.launch(&bound, blocks.len() as u32, &params)
    }
}
