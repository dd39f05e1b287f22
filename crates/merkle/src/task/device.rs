//! Blocks on a device that leaves are copied to.

use std::time::Instant;

use evener_device::{
    Api, Bound, Buffer, Device, Direction, Features, HostBuffer, Program, Result, SharedBuffer, StagedUpload,
    StagingBuffer, Stream, Timestamp,
};
use evener_schedule::Chunk;

use super::{Block, Place, Shape, unreadable};
use crate::{hash::Digest, kernel::Params};

/// The most bytes of leaves, or of nodes, that a chunk has: long enough to hide what a launch costs, short enough that
/// another chunk's copy hides this one's compute.
const MOST_BYTES: u64 = 32 << 20;

/// The device's clock is asked how long copies took where they are at least so long.
const TIMED_BYTES: usize = 4 << 20;

/// One hand on a device: its stream, and memory on both sides for the largest chunk so far.
pub(crate) struct OnDevice {
    device: Device,
    program: Program,
    stream: Stream,
    room: Option<Room>,
    most_blocks: u64,
    times_uploads: bool,
    times_downloads: bool,
}

struct Room {
    blocks: usize,
    input: Buffer<u32>,
    output: Buffer<u32>,
    bound: Bound,
    down: HostBuffer<Digest>,
    /// Nothing until leaves come that the device cannot copy from where they are.
    up: Option<StagingBuffer<u8>>,
}

impl OnDevice {
    pub(super) fn new(device: &Device, shape: &Shape, whole: bool) -> Result<OnDevice> {
        let has = device.capabilities()?;
        let most = has.max_binding_bytes.min(has.max_buffer_bytes).min(MOST_BYTES);
        let block = shape.block_bytes().max(nodes_of_block(shape.height, whole) * size_of::<Digest>());
        // Room is made in powers of two.
        let most_blocks = (most / block as u64).min(u64::from(has.max_groups[0])).max(1);
        Ok(OnDevice {
            program: device.compile(&shape.kernel)?,
            stream: device.stream()?,
            device: device.clone(),
            room: None,
            most_blocks: 1 << most_blocks.ilog2(),
            times_uploads: has.features.contains(Features::TIMESTAMPS),
            // Elsewhere the reading behind a download waits in the device's one queue for the other chunk's kernel, and
            // the chunk with it: the device would idle between kernels.
            times_downloads: device.describe().api == Api::Cuda,
        })
    }

    pub(super) fn most_blocks(&self) -> u64 {
        self.most_blocks
    }

    /// Memory for so many blocks: what there is, or more.
    fn room(&mut self, blocks: usize, shape: &Shape, whole: bool) -> Result<Room> {
        if let Some(room) = self.room.take().filter(|room| room.blocks >= blocks) {
            return Ok(room);
        }
        let blocks = blocks.next_power_of_two();
        let nodes = blocks * nodes_of_block(shape.height, whole);
        let input = self.device.buffer_any(blocks * shape.block_bytes() / size_of::<u32>())?;
        let output = self.device.buffer_any(nodes * size_of::<Digest>() / size_of::<u32>())?;
        let bound = self.program.bind(&[Buffer::arg(&input), Buffer::arg(&output)])?;
        let down = self.device.host_buffer(nodes, Direction::Download)?;
        Ok(Room { blocks, input, output, bound, down, up: None })
    }

    fn timestamp(&mut self, is_timed: bool) -> Result<Option<Timestamp>> {
        is_timed.then(|| self.stream.timestamp()).transpose()
    }

    /// Copies a chunk's leaves through staging memory. The time until the first piece is written is told to the chunk; the
    /// timestamp is of the moment after that.
    fn upload_staged(
        &mut self,
        up: StagingBuffer<u8>,
        bytes: usize,
        to: &Buffer<u8>,
        chunk: &Chunk<'_, Block>,
    ) -> Result<(StagedUpload<u8>, Option<Timestamp>)> {
        let (before, mut begin) = (Instant::now(), None);
        let (device, timed) = (self.device.id(), self.times_uploads && bytes >= TIMED_BYTES);
        let upload = self.stream.upload_staged(up, bytes, to, |stream, part, memory| {
            // The leaves are lent for the moment of a piece, and never while a device is waited for.
            let copied = chunk.read(|blocks| blocks[0].copy_to(part.start, memory))?;
            copied.map_err(|message| unreadable(device, message))?;
            if part.start == 0 {
                chunk.spent_copying(Direction::Upload, before.elapsed());
                begin = timed.then(|| stream.timestamp()).transpose()?;
            }
            Ok(())
        })?;
        Ok((upload, begin))
    }

    /// Reduces a chunk's blocks: one copy there, one launch, one copy back.
    pub(super) fn run(&mut self, shape: &Shape, whole: bool, chunk: &Chunk<'_, Block>) -> Result<&[Digest]> {
        let blocks = chunk.len();
        let bytes = blocks * shape.block_bytes();
        let nodes = blocks * nodes_of_block(shape.height, whole);
        let mut room = self.room(blocks, shape, whole)?;
        let input = room.input.cast::<u8>()?.slice(..bytes)?;
        let timed_up = self.times_uploads && bytes >= TIMED_BYTES;
        let timed_down = self.times_downloads && nodes * size_of::<Digest>() >= TIMED_BYTES;

        let shared = chunk.read(|blocks| shared_part(&blocks[0], bytes))?;
        let (going_up, begin) = match shared {
            Some((shared, at)) => {
                let begin = self.timestamp(timed_up)?;
                self.stream.upload_shared(&shared, at..at + bytes, &input)?;
                (None, begin)
            }
            None => {
                let up = match room.up.take() {
                    Some(up) => up,
                    None => self.device.staging_buffer(room.blocks * shape.block_bytes())?,
                };
                let (upload, begin) = self.upload_staged(up, bytes, &input, chunk)?;
                (Some(upload), begin)
            }
        };
        let uploaded = self.timestamp(timed_up)?;
        let params = Params::new(shape.height, shape.format.hashed, whole);
        self.stream.launch(&room.bound, blocks as u32, &params)?;
        let computed = self.timestamp(timed_down)?;
        let output = room.output.cast::<Digest>()?.slice(..nodes)?;
        let coming_down = self.stream.download_host(&output, room.down)?;
        let end = self.timestamp(timed_down)?;
        room.down = coming_down.wait()?;
        if let Some(up) = going_up {
            room.up = Some(up.wait()?);
        }
        if end.is_some() {
            // The last reading comes after the download, which is all that has been waited for.
            self.stream.wait()?;
        }
        for (direction, begin, end) in
            [(Direction::Upload, begin, uploaded), (Direction::Download, computed, end)]
        {
            // The results are there: a reading that is not costs the report a figure, never the run a device.
            if let (Some(begin), Some(end)) = (begin, end)
                && let Ok(time) = end.since(&begin)
            {
                chunk.spent_copying(direction, time);
            }
        }
        Ok(&self.room.insert(room).down.as_slice()[..nodes])
    }
}

/// Where the chunk is in memory that a device may copy from as it is.
fn shared_part(block: &Block, bytes: usize) -> Option<(SharedBuffer<u8>, usize)> {
    match &block.place {
        Place::Shared(shared) if block.in_memory(bytes).is_some() => {
            Some((shared.clone(), block.at as usize))
        }
        _ => None,
    }
}

/// How many digests the kernel writes for a block.
fn nodes_of_block(height: u32, whole: bool) -> usize {
    if whole { 2 << height } else { 1 }
}
