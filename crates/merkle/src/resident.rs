//! Leaves that are on a device already.

use evener_device::{Buffer, Device, Program, Result, Stream};

use crate::{
    hash::Digest,
    kernel::{self, LOG_THREADS, Params},
    subtree::Format,
};

/// So many roots are reduced on the device before they are copied: fewer take longer there than here.
const MANY_ROOTS: usize = 1 << 9;
/// About so many blocks keep the largest devices busy without a long end in which few of them are.
const LOG_BLOCKS: u32 = 10;
/// A block of a higher one has next to no part in which few threads are busy.
const ENOUGH_HEIGHT: u32 = 14;

/// How high blocks of so many leaves are: the higher, the fewer threads wait for others, as long as all of a device's
/// multiprocessors have some.
pub(crate) fn block_height(leaves: u64) -> u32 {
    leaves.max(1).ilog2().saturating_sub(LOG_BLOCKS).clamp(LOG_THREADS, ENOUGH_HEIGHT)
}

/// What works on leaves of one format on one device.
pub(crate) struct Resident {
    format: Format,
    device: Device,
    program: Program,
    stream: Stream,
    most_bytes: u64,
    most_groups: u64,
    /// The blocks' roots, and what they are reduced to: kept, since taking memory takes as long as many a tree.
    roots: Room,
    reduced: Room,
}

/// Memory for digests on a device.
#[derive(Default)]
struct Room(Option<Buffer<Digest>>);

impl Room {
    /// For so many of them, as many as there were at most so far.
    fn of(&mut self, device: &Device, count: usize) -> Result<Buffer<Digest>> {
        let there = self.0.take().filter(|buffer| buffer.len() >= count);
        let buffer = self.0.insert(match there {
            Some(buffer) => buffer,
            None => device.buffer_any(count)?,
        });
        buffer.slice(..count)
    }
}

/// Nodes of one level, which begin where the ones of the level above end.
pub(crate) struct Run {
    pub(crate) level: u32,
    pub(crate) nodes: Vec<Digest>,
}

impl Resident {
    #[allow(unsafe_code)]
    pub(crate) fn new(device: &Device, format: Format) -> Result<Resident> {
        let has = device.capabilities()?;
        // SAFETY: `launch` and `roots`, which alone launch it, give it a block of leaves or digests and room for its nodes
        // for each workgroup.
        let kernel = unsafe { kernel::merkle(format) };
        Ok(Resident {
            format,
            program: device.compile(&kernel)?,
            stream: device.stream()?,
            device: device.clone(),
            most_bytes: has.max_binding_bytes.min(has.max_buffer_bytes),
            most_groups: u64::from(has.max_groups[0]),
            roots: Room::default(),
            reduced: Room::default(),
        })
    }

    /// How many blocks a launch can have, with so many digests of output each. A multiple of eight, so that every part
    /// of a buffer begins where it may.
    fn blocks_at_once(&self, height: u32, nodes: usize) -> usize {
        let block = (self.format.bytes() << height).max(nodes * size_of::<Digest>()) as u64;
        (((self.most_bytes / block).min(self.most_groups) as usize) & !7).max(8)
    }

    /// Reduces leaves to few nodes, of the highest level first, and fewer leaves than the smallest block has.
    pub(crate) fn reduce(&mut self, leaves: &Buffer<u8>) -> Result<(Vec<Run>, Vec<u8>)> {
        let mut runs = Vec::new();
        let mut left = leaves.slice(..)?;
        // In high blocks as far as they go, then in the smallest.
        let count = leaves.len() / self.format.bytes();
        for height in [block_height(count as u64), LOG_THREADS] {
            let blocks = (left.len() / self.format.bytes()) >> height;
            if blocks > 0 {
                runs.extend(self.roots(&left, height, blocks)?);
                left = left.slice((self.format.bytes() << height) * blocks..)?;
            }
        }
        let rest = self.rest(&left, 0, 0)?;
        Ok((runs, rest))
    }

    /// Reduces the first so many blocks to few nodes: of the highest level first.
    fn roots(&mut self, leaves: &Buffer<u8>, height: u32, blocks: usize) -> Result<Vec<Run>> {
        let roots = self.roots.of(&self.device, blocks)?;
        let at_once = self.blocks_at_once(height, 1);
        for first in (0..blocks).step_by(at_once) {
            let count = at_once.min(blocks - first);
            let out = roots.slice(first..first + count)?;
            self.launch(
                leaves,
                height,
                first..first + count,
                &out,
                Params::new(height, self.format.hashed, false),
            )?;
        }
        let mut runs = Vec::new();
        let mut left = 0;
        let second = blocks >> LOG_THREADS;
        if blocks >= MANY_ROOTS {
            let out = self.reduced.of(&self.device, second)?;
            let bound = self.program.bind(&[roots.cast::<u32>()?.arg(), out.cast::<u32>()?.arg()])?;
            self.stream.launch(&bound, second as u32, &Params::new(LOG_THREADS, true, false))?;
            let nodes = self.stream.download(&out)?.wait()?;
            runs.push(Run { level: height + LOG_THREADS, nodes });
            left = second << LOG_THREADS;
        }
        if left < blocks {
            let nodes = self.stream.download(&roots.slice(left..)?)?.wait()?;
            runs.push(Run { level: height, nodes });
        }
        Ok(runs)
    }

    /// All nodes of the first so many blocks.
    pub(crate) fn nodes(
        &mut self,
        leaves: &Buffer<u8>,
        height: u32,
        blocks: usize,
    ) -> Result<Vec<Box<[Digest]>>> {
        /// More than this is not on the device and on its way at once.
        const MOST_BYTES: usize = 64 << 20;
        let nodes = 2usize << height;
        let at_once =
            self.blocks_at_once(height, nodes).min((MOST_BYTES / (nodes * size_of::<Digest>())).max(8));
        let mut all = Vec::with_capacity(blocks);
        for first in (0..blocks).step_by(at_once) {
            let count = at_once.min(blocks - first);
            let out: Buffer<Digest> = self.device.buffer_any(count * nodes)?;
            self.launch(
                leaves,
                height,
                first..first + count,
                &out,
                Params::new(height, self.format.hashed, true),
            )?;
            let found = self.stream.download(&out)?.wait()?;
            all.extend(found.chunks(nodes).map(|block| Box::from(&block[..nodes - 1])));
        }
        Ok(all)
    }

    /// The leaves after the first so many blocks.
    pub(crate) fn rest(&mut self, leaves: &Buffer<u8>, height: u32, blocks: usize) -> Result<Vec<u8>> {
        let rest = leaves.slice((self.format.bytes() << height) * blocks..)?;
        if rest.is_empty() { Ok(Vec::new()) } else { self.stream.download(&rest)?.wait() }
    }

    fn launch(
        &mut self,
        leaves: &Buffer<u8>,
        height: u32,
        blocks: std::ops::Range<usize>,
        out: &Buffer<Digest>,
        params: Params,
    ) -> Result<()> {
        let block = self.format.bytes() << height;
        let input = leaves.slice(blocks.start * block..blocks.end * block)?.cast::<u32>()?;
        let bound = self.program.bind(&[input.arg(), out.cast::<u32>()?.arg()])?;
        self.stream.launch(&bound, blocks.len() as u32, &params)
    }
}
