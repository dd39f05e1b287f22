//! Reduces blocks on a device to which the leaves are copied.

use std::time::Instant;

use evener_device::{
    Api, BoundKernel, Buffer, Device, Direction, Features, HostBuffer, Program, Result, SharedBuffer,
    StagedUpload, StagingBuffer, Stream, Timestamp,
};
use evener_schedule::Chunk;

use super::{Block, BlockShape, BlockSource, read_error};
use crate::{hash::Digest, kernel::TreeParams};

/// The maximum size of a chunk's leaves or nodes: large enough to hide the launch overhead, small enough that another
/// chunk's copy hides this chunk's compute.
const MAX_CHUNK_BYTES: u64 = 32 << 20;

/// The minimum size of a copy that is timed with device timestamps.
const MIN_TIMED_BYTES: usize = 4 << 20;

/// A worker's stream on a device and its buffers, which fit the largest chunk so far.
pub(crate) struct DeviceWorker {
    device: Device,
    program: Program,
    stream: Stream,
    buffers: Option<BlockBuffers>,
    max_blocks: u64,
    times_uploads: bool,
    times_downloads: bool,
}

/// Device and host buffers for a number of blocks.
struct BlockBuffers {
    blocks: usize,
    input: Buffer<u32>,
    output: Buffer<u32>,
    bound: BoundKernel,
    down: HostBuffer<Digest>,
    /// Created when the first leaves arrive that are not in memory from which the device can copy directly.
    up: Option<StagingBuffer<u8>>,
}

impl DeviceWorker {
    pub(super) fn new(device: &Device, shape: &BlockShape, all_nodes: bool) -> Result<DeviceWorker> {
        let has = device.capabilities()?;
        let max_bytes = has.max_binding_bytes.min(has.max_buffer_bytes).min(MAX_CHUNK_BYTES);
        let block = shape.block_bytes().max(nodes_of_block(shape.height, all_nodes) * size_of::<Digest>());
        // Buffers are sized in powers of two.
        let max_blocks = (max_bytes / block as u64).min(u64::from(has.max_groups[0])).max(1);
        Ok(DeviceWorker {
            program: device.compile(&shape.kernel)?,
            stream: device.stream()?,
            device: device.clone(),
            buffers: None,
            max_blocks: 1 << max_blocks.ilog2(),
            times_uploads: has.features.contains(Features::TIMESTAMPS),
            // Other APIs have one queue per device: a timestamp after a download would wait there for the other chunk's
            // kernel, and the device would be idle between kernels.
            times_downloads: device.describe().api == Api::Cuda,
        })
    }

    pub(super) fn max_blocks(&self) -> u64 {
        self.max_blocks
    }

    /// Takes the kept buffers, or allocates larger ones if they are too small.
    fn take_buffers(&mut self, blocks: usize, shape: &BlockShape, all_nodes: bool) -> Result<BlockBuffers> {
        if let Some(buffers) = self.buffers.take().filter(|buffers| buffers.blocks >= blocks) {
            return Ok(buffers);
        }
        let blocks = blocks.next_power_of_two();
        let nodes = blocks * nodes_of_block(shape.height, all_nodes);
        let input = self.device.buffer_uninit(blocks * shape.block_bytes() / size_of::<u32>())?;
        let output = self.device.buffer_uninit(nodes * size_of::<Digest>() / size_of::<u32>())?;
        let bound = self.program.bind(&[Buffer::arg(&input), Buffer::arg(&output)])?;
        let down = self.device.host_buffer(nodes, Direction::Download)?;
        Ok(BlockBuffers { blocks, input, output, bound, down, up: None })
    }

    fn timestamp(&mut self, is_timed: bool) -> Result<Option<Timestamp>> {
        is_timed.then(|| self.stream.timestamp()).transpose()
    }

    /// Copies a chunk's leaves through a staging buffer. Reports the host time until the first piece is staged to the
    /// chunk; the returned timestamp is taken right after that.
    fn upload_staged(
        &mut self,
        up: StagingBuffer<u8>,
        bytes: usize,
        to: &Buffer<u8>,
        chunk: &Chunk<'_, Block>,
    ) -> Result<(StagedUpload<u8>, Option<Timestamp>)> {
        let (before, mut begin) = (Instant::now(), None);
        let (device, timed) = (self.device.id(), self.times_uploads && bytes >= MIN_TIMED_BYTES);
        let upload = self.stream.upload_staged(up, bytes, to, |stream, part, memory| {
            // The leaves are borrowed for one piece at a time, and never while waiting for the device.
            let copied = chunk.read(|blocks| blocks[0].copy_to(part.start, memory))?;
            copied.map_err(|message| read_error(device, message))?;
            if part.start == 0 {
                chunk.add_copy_time(Direction::Upload, before.elapsed());
                begin = timed.then(|| stream.timestamp()).transpose()?;
            }
            Ok(())
        })?;
        Ok((upload, begin))
    }

    /// Reduces a chunk's blocks with one upload, one launch and one download.
    pub(super) fn run(
        &mut self,
        shape: &BlockShape,
        all_nodes: bool,
        chunk: &Chunk<'_, Block>,
    ) -> Result<&[Digest]> {
        let blocks = chunk.len();
        let bytes = blocks * shape.block_bytes();
        let nodes = blocks * nodes_of_block(shape.height, all_nodes);
        let mut buffers = self.take_buffers(blocks, shape, all_nodes)?;
        let input = buffers.input.cast::<u8>()?.slice(..bytes)?;
        let timed_up = self.times_uploads && bytes >= MIN_TIMED_BYTES;
        let timed_down = self.times_downloads && nodes * size_of::<Digest>() >= MIN_TIMED_BYTES;

        let shared = chunk.read(|blocks| shared_part(&blocks[0], bytes))?;
        let (going_up, begin) = match shared {
            Some((shared, at)) => {
                let begin = self.timestamp(timed_up)?;
                self.stream.upload_shared(&shared, at..at + bytes, &input)?;
                (None, begin)
            }
            None => {
                let up = match buffers.up.take() {
                    Some(up) => up,
                    None => self.device.staging_buffer(buffers.blocks * shape.block_bytes())?,
                };
                let (upload, begin) = self.upload_staged(up, bytes, &input, chunk)?;
                (Some(upload), begin)
            }
        };
        let uploaded = self.timestamp(timed_up)?;
        let params = TreeParams::new(shape.height, shape.format.prehashed, all_nodes);
        self.stream.launch(&buffers.bound, blocks as u32, &params)?;
        let computed = self.timestamp(timed_down)?;
        let output = buffers.output.cast::<Digest>()?.slice(..nodes)?;
        let coming_down = self.stream.download_host(&output, buffers.down)?;
        let end = self.timestamp(timed_down)?;
        buffers.down = coming_down.wait()?;
        if let Some(up) = going_up {
            buffers.up = Some(up.wait()?);
        }
        if end.is_some() {
            // The last timestamp follows the download, which is the last operation waited for so far.
            self.stream.wait()?;
        }
        for (direction, begin, end) in
            [(Direction::Upload, begin, uploaded), (Direction::Download, computed, end)]
        {
            // A missing timestamp only leaves a figure out of the report: the results are valid.
            if let (Some(begin), Some(end)) = (begin, end)
                && let Ok(time) = end.since(&begin)
            {
                chunk.add_copy_time(direction, time);
            }
        }
        Ok(&self.buffers.insert(buffers).down.as_slice()[..nodes])
    }
}

/// Returns the shared buffer of a chunk and its offset, if the device can copy from it directly.
fn shared_part(block: &Block, bytes: usize) -> Option<(SharedBuffer<u8>, usize)> {
    match &block.source {
        BlockSource::Shared(shared) if block.slice(bytes).is_some() => {
            Some((shared.clone(), block.offset as usize))
        }
        _ => None,
    }
}

/// Returns the number of digests that the kernel writes per block.
fn nodes_of_block(height: u32, all_nodes: bool) -> usize {
    if all_nodes { 2 << height } else { 1 }
}
