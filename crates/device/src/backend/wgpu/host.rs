//! Host memory that a device copies from or to: staging buffers, mapped while the host has them.
//!
//! A block is in one of three places. The host has it: it is mapped, and the host reads and writes it. A
//! stream has it: it is unmapped, and the stream keeps a reference until it has submitted the copy. Nobody
//! has it: it is being mapped again, and goes back to the shelf when the copy has ended and that is done.

use std::{
    any::Any,
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering::*},
    },
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use wgpu::{Buffer, BufferUsages, BufferViewMut, MapMode};

use super::{
    super::{Copied, Direction, HostMemory, Line, SharedMemory, cpu::pinned_cap, shelf::Shelf},
    hold::Hold,
};
use crate::{
    describe::Api,
    error::{Error, Result},
};

/// So long mapping a block may take whose copy has ended.
const MAPPING: Duration = Duration::from_secs(1);

/// Mapped blocks that wait to be used again, for each direction.
#[derive(Debug)]
pub(super) struct Staging {
    upload: Arc<Shelf<Buffer>>,
    download: Arc<Shelf<Buffer>>,
}

impl Staging {
    pub(super) fn new() -> Self {
        let shelf = || Arc::new(Shelf::new(pinned_cap() / 2));
        Staging { upload: shelf(), download: shelf() }
    }

    fn shelf(&self, direction: Direction) -> &Arc<Shelf<Buffer>> {
        match direction {
            Direction::Upload => &self.upload,
            Direction::Download => &self.download,
        }
    }

    pub(super) fn memory_use(&self, direction: Direction) -> super::super::MemoryUse {
        self.shelf(direction).memory_use()
    }

    /// Gives up every block on the shelves.
    pub(super) fn clear(&self) {
        drop((self.upload.clear(), self.download.clear()));
    }
}

/// A staging buffer, which goes back to its shelf when the host and the streams have let go of it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) buffer: Buffer,
    direction: Direction,
    is_mapped: AtomicBool,
    shelf: Arc<Shelf<Buffer>>,
}

impl Block {
    fn mode(&self) -> MapMode {
        match self.direction {
            Direction::Upload => MapMode::Write,
            Direction::Download => MapMode::Read,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let (shelf, buffer) = (self.shelf.clone(), self.buffer.clone());
        if *self.is_mapped.get_mut() {
            shelf.put(buffer.size(), buffer);
            return drop(shelf.excess());
        }
        // The copy was submitted and may be under way: wgpu maps the buffer when it has ended. What the
        // callback keeps alive is the shelf alone, never the device.
        let class = buffer.size();
        self.buffer.map_async(self.mode(), .., move |outcome| match outcome {
            Ok(()) => shelf.put(class, buffer),
            Err(_) => shelf.discount(class),
        });
    }
}

/// A mapped buffer's bytes. The view keeps them mapped; the pointer is its own.
#[derive(Debug)]
struct Mapping {
    _view: BufferViewMut,
    pointer: NonNull<u8>,
}

// SAFETY: the pointer is to memory that the view owns access to, and the view may be sent.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(hold: &Hold, buffer: &Buffer) -> Result<Self> {
        let mut view = buffer
            .get_mapped_range_mut(..)
            .map_err(|why| Error::lost(&hold.id, "reaching host memory", why.to_string()))?;
        let pointer = view.slice(..).as_raw_element_ptr();
        Ok(Mapping { _view: view, pointer })
    }
}

/// Host memory. While a copy is under way it is not mapped and has no bytes.
#[derive(Debug)]
pub(super) struct WgpuHostMemory {
    hold: Arc<Hold>,
    /// Before the block, which cannot be unmapped while there is a view of it.
    mapping: Option<Mapping>,
    block: Arc<Block>,
    /// Where a mapping can only be read or only be written: what the host works on instead.
    shadow: Option<Vec<Line>>,
    bytes: usize,
    /// What a copy under way overwrites behind its last byte, because wgpu copies whole words.
    spared: Option<Spared>,
    /// Bytes that downloads under way write.
    coming: SmallVec<[Range<usize>; 1]>,
}

/// The bytes between a download's end and the end of its last word, to be put back when it has ended.
#[derive(Debug, Clone, Copy)]
struct Spared {
    start: usize,
    bytes: [u8; 4],
    len: usize,
}

impl WgpuHostMemory {
    pub(super) fn allocate(hold: &Arc<Hold>, bytes: u64, direction: Direction) -> Result<Self> {
        const OPERATION: &str = "allocating host memory";
        hold.check(OPERATION)?;
        let class = hold.class(OPERATION, bytes)?;
        let shelf = hold.staging.shelf(direction).clone();
        let (buffer, is_mapped) = match shelf.take(class) {
            Some((_, buffer)) => (buffer, true),
            None => {
                drop(shelf.excess());
                let buffer = match direction {
                    Direction::Upload => {
                        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
                        hold.make_block(OPERATION, bytes, usage, true, true)?
                    }
                    Direction::Download => {
                        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                        hold.make_block(OPERATION, bytes, usage, false, true)?
                    }
                };
                shelf.count(buffer.size());
                (buffer, direction == Direction::Upload)
            }
        };
        let block = Block { buffer, direction, is_mapped: AtomicBool::new(is_mapped), shelf };
        let mut memory = WgpuHostMemory {
            hold: hold.clone(),
            mapping: None,
            block: Arc::new(block),
            // OpenGL maps a buffer for what it was made for and nothing else.
            shadow: (hold.api == Api::Gl).then(|| Line::zeroed(bytes as usize)),
            bytes: bytes as usize,
            spared: None,
            coming: SmallVec::new(),
        };
        if is_mapped {
            memory.mapping = Some(Mapping::new(hold, &memory.block.buffer)?);
        } else {
            memory.reclaim()?;
        }
        Ok(memory)
    }

    /// Hands the block to a stream, which must keep it until the copy is submitted.
    pub(super) fn lend(
        memory: &mut dyn HostMemory,
        hold: &Arc<Hold>,
        direction: Direction,
    ) -> Result<Arc<Block>> {
        let refuse = |detail: &str| Err(Error::unsupported(&hold.id, "copying", detail));
        let Some(memory) = (memory as &mut dyn Any).downcast_mut::<WgpuHostMemory>() else {
            return refuse("the host memory was made for another device");
        };
        if !Arc::ptr_eq(&memory.hold, hold) {
            return refuse("the host memory was made for another device");
        }
        if memory.block.direction != direction {
            return refuse("the host memory was made for the other direction");
        }
        if let Some(mapping) = memory.mapping.take() {
            if let (Some(shadow), Direction::Upload) = (&memory.shadow, direction) {
                let from: &[u8] = bytemuck::cast_slice(shadow);
                // SAFETY: the mapping is at least as long as the memory asked for, and may be written.
                unsafe { mapping.pointer.copy_from_nonoverlapping(NonNull::from(from).cast(), memory.bytes) };
            }
            drop(mapping);
            hold.attempt("copying", || memory.block.buffer.unmap())?;
            memory.block.is_mapped.store(false, Release);
        }
        Ok(memory.block.clone())
    }

    /// Hands the block to a stream for a download to these bytes of it.
    pub(super) fn lend_for_download(
        memory: &mut dyn HostMemory,
        hold: &Arc<Hold>,
        to: Range<u64>,
    ) -> Result<Arc<Block>> {
        if let Some(memory) = (memory as &mut dyn Any).downcast_mut::<WgpuHostMemory>() {
            memory.spare(hold, to.start as usize..to.end as usize)?;
        }
        Self::lend(memory, hold, Direction::Download)
    }

    /// Notes which bytes a download is to write, and keeps those that it overwrites beside them.
    fn spare(&mut self, hold: &Hold, to: Range<usize>) -> Result<()> {
        let word = wgpu::COPY_BUFFER_ALIGNMENT as usize;
        if to.end > self.bytes {
            let detail = format!("bytes {to:?} of host memory of {}", self.bytes);
            return Err(Error::unsupported(&hold.id, "downloading", detail));
        }
        if self.mapping.is_some() {
            // No copy is under way; one that was refused may have left these.
            self.spared = None;
            self.coming.clear();
        }
        let beside = to.end..to.end.next_multiple_of(word).min(self.bytes);
        if !beside.is_empty() {
            let Some(bytes) = self.bytes().get(beside.clone()) else {
                let detail =
                    format!("bytes {to:?} of host memory that another copy uses: not a multiple of {word}");
                return Err(Error::unsupported(&hold.id, "downloading", detail));
            };
            let mut spared = Spared { start: beside.start, bytes: [0; 4], len: bytes.len() };
            spared.bytes[..bytes.len()].copy_from_slice(bytes);
            self.spared = Some(spared);
        } else if self.spared.is_some_and(|spared| to.contains(&spared.start)) {
            // A later download writes them.
            self.spared = None;
        }
        self.coming.push(to);
        Ok(())
    }

    /// Maps the block again. Fails when the copy has not ended.
    fn map(&self) -> Result<Mapping> {
        const OPERATION: &str = "taking host memory back";
        let state = Arc::new(AtomicU8::new(0));
        let told = state.clone();
        self.hold.attempt(OPERATION, || {
            self.block.buffer.map_async(self.block.mode(), .., move |outcome| {
                told.store(if outcome.is_ok() { 1 } else { 2 }, Release);
            });
        })?;
        // Another thread's poll may have taken the mapping in hand and not be done with it.
        let began = Instant::now();
        while state.load(Acquire) == 0 && began.elapsed() < MAPPING {
            self.hold.poll(OPERATION)?;
            std::thread::yield_now();
        }
        match state.load(Acquire) {
            1 => Mapping::new(&self.hold, &self.block.buffer),
            0 => {
                self.hold.attempt(OPERATION, || self.block.buffer.unmap())?;
                Err(Error::unsupported(&self.hold.id, OPERATION, "the copy has not ended"))
            }
            _ => Err(Error::lost(&self.hold.id, OPERATION, "the driver did not map it")),
        }
    }
}

impl HostMemory for WgpuHostMemory {
    fn bytes(&self) -> &[u8] {
        match (&self.mapping, &self.shadow) {
            (None, _) => &[],
            (Some(_), Some(shadow)) => &bytemuck::cast_slice(shadow)[..self.bytes],
            // SAFETY: the block is at least this long, mapped as long as the view is there, initialised (wgpu
            // zeroes what it maps for the first time), and shared with nobody while this is borrowed.
            (Some(mapping), None) => unsafe {
                std::slice::from_raw_parts(mapping.pointer.as_ptr(), self.bytes)
            },
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match (&self.mapping, &mut self.shadow) {
            (None, _) => &mut [],
            (Some(_), Some(shadow)) => &mut bytemuck::cast_slice_mut(shadow)[..self.bytes],
            // SAFETY: as above, and this is borrowed exclusively. Every API but OpenGL maps memory for both
            // reading and writing, whatever it is for.
            (Some(mapping), None) => unsafe {
                std::slice::from_raw_parts_mut(mapping.pointer.as_ptr(), self.bytes)
            },
        }
    }

    fn reclaim(&mut self) -> Result<()> {
        if self.mapping.is_some() {
            return Ok(());
        }
        if Arc::strong_count(&self.block) > 1 {
            let detail = "the copy has not been started";
            return Err(Error::unsupported(&self.hold.id, "taking host memory back", detail));
        }
        let mapping = self.map()?;
        self.block.is_mapped.store(true, Release);
        let coming = std::mem::take(&mut self.coming);
        if let (Some(shadow), Direction::Download) = (&mut self.shadow, self.block.direction) {
            for range in coming {
                let to: &mut [u8] = &mut bytemuck::cast_slice_mut(shadow)[range.clone()];
                // SAFETY: the mapping is at least as long as the memory asked for, in which the range lies, and may
                // be read.
                unsafe {
                    let from = mapping.pointer.add(range.start);
                    from.copy_to_nonoverlapping(NonNull::from(to).cast(), range.len());
                }
            }
        }
        self.mapping = Some(mapping);
        if let Some(Spared { start, bytes, len }) = self.spared.take() {
            self.bytes_mut()[start..start + len].copy_from_slice(&bytes[..len]);
        }
        Ok(())
    }

    // A copy from a mapped buffer needs it unmapped, and then the host cannot read it.
    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        Copied::of(self.bytes())
    }
}
