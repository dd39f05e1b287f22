//! Host memory, as the CPU device's buffers and as its host buffers. All of it is safe Rust.

use std::{
    any::Any,
    ops::Range,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use super::super::{HostMemory, Line, Memory, Region, SharedMemory, shelf::Shelf};
use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// Aligned bytes.
#[derive(Default)]
pub(super) struct Block {
    lines: Box<[Line]>,
    /// Fresh from the system, which hands out zeros.
    clean: bool,
}

impl Block {
    /// At least this many bytes of zeros, or nothing where there is no room.
    pub(super) fn zeroed(bytes: u64) -> Option<Self> {
        let lines = usize::try_from(bytes.div_ceil(64)).ok()?;
        Some(Block { lines: bytemuck::allocation::try_zeroed_slice_box(lines).ok()?, clean: true })
    }

    /// Makes every byte zero, at no cost where none was written.
    pub(super) fn make_zero(&mut self) {
        if !self.clean {
            self.bytes_mut().fill(0);
            self.clean = true;
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.clean = false;
        bytemuck::cast_slice_mut(&mut self.lines)
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} bytes)", self.lines.len() * 64)
    }
}

/// A buffer of the CPU device. Each operation holds its lock, for reading or writing, while it runs.
#[derive(Debug)]
pub(super) struct CpuMemory {
    pub(super) block: RwLock<Block>,
    bytes: u64,
    shelf: Arc<Shelf<Block>>,
}

impl CpuMemory {
    pub(super) fn new(block: Block, bytes: u64, shelf: Arc<Shelf<Block>>) -> Self {
        CpuMemory { block: RwLock::new(block), bytes, shelf }
    }

    /// The memory behind a region, which must be a CPU device's.
    pub(super) fn of<'a>(region: &'a Region, device: &DeviceId) -> Result<&'a CpuMemory> {
        (&*region.memory as &dyn Any).downcast_ref().ok_or_else(|| {
            Error::unsupported(device, "using a buffer", "the buffer is in another device's memory")
        })
    }
}

impl Memory for CpuMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        let block = std::mem::take(self.block.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.shelf.put(block.bytes().len() as u64, block);
        drop(self.shelf.excess());
    }
}

/// A region's place in its block.
pub(super) fn range(region: &Region) -> Range<usize> {
    region.offset as usize..(region.offset + region.bytes) as usize
}

/// A block on its way through a stream: it is put back here when the copy has ended.
pub(super) type Lent = Arc<Mutex<Option<Block>>>;

/// Host memory. While a copy is under way, the stream has the block and this has none.
#[derive(Debug)]
pub(super) struct CpuHostMemory {
    device: DeviceId,
    block: Block,
    bytes: u64,
    lent: Option<Lent>,
}

impl CpuHostMemory {
    pub(super) fn new(block: Block, bytes: u64, device: DeviceId) -> Self {
        CpuHostMemory { device, block, bytes, lent: None }
    }

    /// Hands the block to a stream.
    pub(super) fn lend(memory: &mut dyn HostMemory, device: &DeviceId) -> Result<(Block, Lent)> {
        let Some(memory) = (memory as &mut dyn Any).downcast_mut::<CpuHostMemory>() else {
            let detail = "the host memory was made for another device";
            return Err(Error::unsupported(device, "copying", detail));
        };
        memory.reclaim()?;
        let lent = Lent::default();
        memory.lent = Some(lent.clone());
        Ok((std::mem::take(&mut memory.block), lent))
    }
}

impl HostMemory for CpuHostMemory {
    fn bytes(&self) -> &[u8] {
        let held = if self.lent.is_some() { 0 } else { self.bytes as usize };
        &self.block.bytes()[..held]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let held = if self.lent.is_some() { 0 } else { self.bytes as usize };
        &mut self.block.bytes_mut()[..held]
    }

    fn reclaim(&mut self) -> Result<()> {
        let Some(lent) = &self.lent else { return Ok(()) };
        let Some(block) = lent.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            let detail = "the copy has not ended";
            return Err(Error::unsupported(&self.device, "taking host memory back", detail));
        };
        self.block = block;
        self.lent = None;
        Ok(())
    }

    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        Arc::new(CpuSharedMemory { bytes: self.bytes().len(), block: self.block })
    }
}

/// Host memory that nobody writes any more.
#[derive(Debug)]
struct CpuSharedMemory {
    block: Block,
    bytes: usize,
}

impl SharedMemory for CpuSharedMemory {
    fn bytes(&self) -> &[u8] {
        &self.block.bytes()[..self.bytes]
    }
}
