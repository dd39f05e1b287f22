//! Host memory, as the CPU device's buffers and as its host buffers.

use std::{
    any::Any,
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed},
    },
};

use super::super::{Address, CacheLine, HostMemory, Memory, Region, SharedMemory, block_cache::BlockCache};
use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// Bytes: aligned ones of our own, or another library's.
///
/// A pointer and no `Box`, because others may have the address too: the owner of the block makes a slice of it for as long
/// as it reads or writes, and others use the address while no operation does ([`super::super::dlpack`]).
pub(super) struct Block {
    pointer: NonNull<u8>,
    bytes: usize,
    /// Fresh from the system, which hands out zeros.
    clean: bool,
    /// What keeps the memory, where it is another library's.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: it is plain memory, and its owner may be sent and shared.
unsafe impl Send for Block {}
// SAFETY: as above; writing takes a `&mut`.
unsafe impl Sync for Block {}

impl Block {
    /// At least this many bytes of zeros, or nothing where there is no room.
    pub(super) fn zeroed(bytes: u64) -> Option<Self> {
        let lines = usize::try_from(bytes.div_ceil(size_of::<CacheLine>() as u64)).ok()?;
        let lines: Box<[CacheLine]> = bytemuck::allocation::try_zeroed_slice_box(lines).ok()?;
        let bytes = size_of_val::<[CacheLine]>(&lines);
        Some(Block { pointer: NonNull::from(Box::leak(lines)).cast(), bytes, clean: true, owner: None })
    }

    /// Memory that another library has, until `owner` is dropped.
    ///
    /// # Safety
    /// As for [`Backend::adopt`](super::super::Backend::adopt).
    pub(super) unsafe fn adopt(
        pointer: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Block { pointer, bytes, clean: false, owner: Some(owner) }
    }

    /// Makes every byte zero, at no cost where none was written.
    pub(super) fn make_zero(&mut self) {
        if !self.clean {
            self.bytes_mut().fill(0);
            self.clean = true;
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is this long, initialised, and ours or lent to us; nobody writes it while this is borrowed.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.clean = false;
        // SAFETY: as above, and nobody reads it while this is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Default for Block {
    fn default() -> Self {
        Block { pointer: NonNull::<CacheLine>::dangling().cast(), bytes: 0, clean: true, owner: None }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.owner.is_none() && self.bytes > 0 {
            let lines = self.bytes / size_of::<CacheLine>();
            let lines = std::ptr::slice_from_raw_parts_mut(self.pointer.as_ptr().cast::<CacheLine>(), lines);
            // SAFETY: it was leaked from a box of so many lines in `zeroed`, and nobody else has it.
            drop(unsafe { Box::from_raw(lines) });
        }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} bytes)", self.bytes)
    }
}

/// A buffer of the CPU device. Each operation holds its lock, for reading or writing, while it runs.
#[derive(Debug)]
pub(super) struct CpuMemory {
    pub(super) block: RwLock<Block>,
    bytes: u64,
    cache: Arc<BlockCache<Block>>,
    /// Where the block is. It stays there, so that asking needs no lock.
    start: AtomicPtr<u8>,
    /// Whether another library was told where it is, and may have written there.
    is_known: AtomicBool,
}

impl CpuMemory {
    pub(super) fn new(block: Block, bytes: u64, cache: Arc<BlockCache<Block>>) -> Self {
        let start = AtomicPtr::new(block.pointer.as_ptr());
        CpuMemory { block: RwLock::new(block), bytes, cache, start, is_known: AtomicBool::new(false) }
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

    fn address(&self) -> Option<Address> {
        self.is_known.store(true, Relaxed);
        NonNull::new(self.start.load(Relaxed)).map(Address::Host)
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        let mut block = std::mem::take(self.block.get_mut().unwrap_or_else(PoisonError::into_inner));
        block.clean &= !*self.is_known.get_mut();
        if block.owner.is_some() {
            return;
        }
        self.cache.put(block.bytes().len() as u64, block);
        drop(self.cache.take_excess());
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
