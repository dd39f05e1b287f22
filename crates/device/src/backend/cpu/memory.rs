//! Host memory, for buffers and host buffers of the CPU device.

use std::{
    any::Any,
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed},
    },
};

use zeroize::Zeroize;

use super::super::{Address, CacheLine, HostMemory, Memory, Region, SharedMemory, block_cache::BlockCache};
use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// A block of bytes: this crate's own, or another library's.
///
/// It has a pointer instead of a `Box`, because other libraries may have the address too: the block's owner makes a slice
/// of it only while an operation reads or writes, and other libraries use the address between operations
/// ([`super::super::dlpack`]).
pub(super) struct CpuBlock {
    pointer: NonNull<u8>,
    bytes: usize,
    /// Whether every byte is still zero, as it came from the system.
    clean: bool,
    /// Whether it is zeroed before it is freed.
    is_secret: bool,
    /// Keeps another library's memory alive; `None` for a block of this crate.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: it is plain memory, and its owner is `Send` and `Sync`.
unsafe impl Send for CpuBlock {}
// SAFETY: as for `Send`; writing needs a `&mut`.
unsafe impl Sync for CpuBlock {}

impl CpuBlock {
    /// Allocates at least this many zeroed bytes. Returns `None` if there is not enough memory.
    pub(super) fn zeroed(bytes: u64) -> Option<Self> {
        let lines = usize::try_from(bytes.div_ceil(size_of::<CacheLine>() as u64)).ok()?;
        let lines: Box<[CacheLine]> = bytemuck::allocation::try_zeroed_slice_box(lines).ok()?;
        let bytes = size_of_val::<[CacheLine]>(&lines);
        let pointer = NonNull::from(Box::leak(lines)).cast();
        Some(CpuBlock { pointer, bytes, clean: true, is_secret: false, owner: None })
    }

    /// Wraps another library's memory, which stays valid until `owner` is dropped.
    ///
    /// # Safety
    /// As for [`Backend::adopt`](super::super::Backend::adopt).
    pub(super) unsafe fn adopt(
        pointer: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        CpuBlock { pointer, bytes, clean: false, is_secret: false, owner: Some(owner) }
    }

    /// Zeroes the block, unless it is known to be zero.
    pub(super) fn make_zero(&mut self) {
        if !self.clean {
            self.bytes_mut().fill(0);
            self.clean = true;
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has this length and is initialised; it is owned, or adopted on the caller's promise that
        // nothing writes it while Evener's operations use it.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.clean = false;
        // SAFETY: as for `bytes`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Default for CpuBlock {
    fn default() -> Self {
        let pointer = NonNull::<CacheLine>::dangling().cast();
        CpuBlock { pointer, bytes: 0, clean: true, is_secret: false, owner: None }
    }
}

impl Drop for CpuBlock {
    fn drop(&mut self) {
        if self.is_secret {
            self.bytes_mut().zeroize();
        }
        if self.owner.is_none() && self.bytes > 0 {
            let lines = self.bytes / size_of::<CacheLine>();
            let lines = std::ptr::slice_from_raw_parts_mut(self.pointer.as_ptr().cast::<CacheLine>(), lines);
            // SAFETY: `zeroed` leaked a box of this many lines, and `self` is its only owner.
            drop(unsafe { Box::from_raw(lines) });
        }
    }
}

impl std::fmt::Debug for CpuBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuBlock({} bytes)", self.bytes)
    }
}

/// A buffer of the CPU device. An operation holds its lock, for reading or writing, while it runs.
#[derive(Debug)]
pub(super) struct CpuMemory {
    pub(super) block: RwLock<CpuBlock>,
    bytes: u64,
    cache: Arc<BlockCache<CpuBlock>>,
    /// The block's address, which never changes: reading it needs no lock.
    start: AtomicPtr<u8>,
    /// Whether another library was given the address, and may have written there.
    is_exported: AtomicBool,
}

impl CpuMemory {
    pub(super) fn new(block: CpuBlock, bytes: u64, cache: Arc<BlockCache<CpuBlock>>) -> Self {
        let start = AtomicPtr::new(block.pointer.as_ptr());
        CpuMemory { block: RwLock::new(block), bytes, cache, start, is_exported: AtomicBool::new(false) }
    }

    /// Returns the memory of a region, which must belong to a CPU device.
    pub(super) fn of<'a>(region: &'a Region, device: &DeviceId) -> Result<&'a CpuMemory> {
        (&*region.memory as &dyn Any).downcast_ref().ok_or_else(|| {
            Error::unsupported(device, "using a buffer", "the buffer belongs to another device")
        })
    }
}

impl Memory for CpuMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn address(&self) -> Option<Address> {
        self.is_exported.store(true, Relaxed);
        NonNull::new(self.start.load(Relaxed)).map(Address::Host)
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        let mut block = std::mem::take(self.block.get_mut().unwrap_or_else(PoisonError::into_inner));
        block.clean &= !*self.is_exported.get_mut();
        if block.owner.is_some() {
            return;
        }
        self.cache.put(block.bytes().len() as u64, block);
        drop(self.cache.take_excess());
    }
}

pub(super) fn range(region: &Region) -> Range<usize> {
    region.offset as usize..(region.offset + region.bytes) as usize
}

/// Where a stream puts a lent block back when the copy has finished.
pub(super) type LentBlock = Arc<Mutex<Option<CpuBlock>>>;

/// Host memory. While a copy is in flight the stream has the block.
#[derive(Debug)]
pub(super) struct CpuHostMemory {
    device: DeviceId,
    block: CpuBlock,
    bytes: u64,
    lent: Option<LentBlock>,
}

impl CpuHostMemory {
    pub(super) fn new(block: CpuBlock, bytes: u64, device: DeviceId) -> Self {
        CpuHostMemory { device, block, bytes, lent: None }
    }

    pub(super) fn lend(memory: &mut dyn HostMemory, device: &DeviceId) -> Result<(CpuBlock, LentBlock)> {
        let Some(memory) = (memory as &mut dyn Any).downcast_mut::<CpuHostMemory>() else {
            let detail = "the host memory belongs to another device";
            return Err(Error::unsupported(device, "copying", detail));
        };
        memory.reclaim()?;
        let lent = LentBlock::default();
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
            let detail = "the copy is still in flight: wait for it first";
            return Err(Error::unsupported(&self.device, "reclaiming host memory", detail));
        };
        self.block = block;
        self.lent = None;
        Ok(())
    }

    fn zero_on_release(&mut self) {
        self.block.is_secret = true;
    }

    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        Arc::new(CpuSharedMemory { bytes: self.bytes().len(), block: self.block })
    }
}

/// Read-only host memory.
#[derive(Debug)]
struct CpuSharedMemory {
    block: CpuBlock,
    bytes: usize,
}

impl SharedMemory for CpuSharedMemory {
    fn bytes(&self) -> &[u8] {
        &self.block.bytes()[..self.bytes]
    }
}
