//! Memory on the card, and pinned host memory for copies.
//!
//! Host memory is allocated by this crate and registered with the driver, not allocated by the driver: when a lost context is
//! destroyed the driver frees its own memory, and a host buffer that the program still reads would be gone. The memory is not
//! write-combined: that would hardly speed up copies to the card, and reads through `as_slice` would be slow.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    any::Any,
    ptr::NonNull,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use cudarc::driver::sys::CUdeviceptr;

use super::{
    context::{DeviceContext, DriverGuard},
    driver::SUCCESS,
    errors::{self, ErrorClass},
    event::StreamProgress,
    open::OpenDevice,
};
use crate::{
    backend::{
        Address, HostMemory, Memory, Region, SharedMemory,
        block_cache::{class_bytes, exact_bytes},
    },
    error::{Error, Result},
};

/// The largest page size of any system that has CUDA. Memory is pinned in whole pages.
const PAGE: u64 = 64 << 10;

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context, not only for the current one.
const PORTABLE: u32 = 1;

/// A block of the card's memory. Dropping it does not free it: its owner calls `free` or caches it.
#[derive(Debug)]
pub(super) struct DeviceBlock(CUdeviceptr);

impl DeviceBlock {
    fn allocate(open: &OpenDevice, guard: &DriverGuard<'_>, size: u64) -> Result<(u64, Self)> {
        let mut pointer = 0;
        // SAFETY: the guard's context is current; the pointer is to a live integer; a block's size is never 0.
        let code = unsafe { (guard.driver.mem_alloc)(&mut pointer, size as usize) };
        guard.check_sized(code, size)?;
        open.device_cache.add_in_use(size);
        Ok((size, DeviceBlock(pointer)))
    }

    /// Frees the block. The driver may wait for work in the context first.
    pub(super) fn free(self, guard: &DriverGuard<'_>) {
        // SAFETY: the block was allocated in this context, and no operation uses it: it came from the cache.
        unsafe { (guard.driver.mem_free)(self.0) };
    }
}

pub(super) struct CudaMemory {
    block: DeviceBlock,
    /// The block's size.
    size: u64,
    bytes: u64,
    open: Arc<OpenDevice>,
    /// Keeps the memory of another library alive; `None` for a block of the cache.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("CudaMemory");
        f.field("block", &self.block).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl CudaMemory {
    /// Wraps another library's memory, which stays valid until `owner` is dropped.
    pub(super) fn adopt(
        open: &Arc<OpenDevice>,
        address: CUdeviceptr,
        bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        CudaMemory { block: DeviceBlock(address), size: 0, bytes, open: open.clone(), owner: Some(owner) }
    }

    /// Takes a block from the cache, or else from the driver. If the driver is out of memory, frees the cached memory of
    /// every device that is open on the card and tries once more, with the exact size.
    pub(super) fn allocate(open: &Arc<OpenDevice>, bytes: u64) -> Result<Self> {
        let class = class_bytes(bytes);
        let (size, block) = match open.device_cache.take(class) {
            Some(found) => found,
            None => {
                let guard = open.context.enter("allocating a buffer")?;
                open.free_excess(&guard);
                match DeviceBlock::allocate(open, &guard, class) {
                    Err(Error::OutOfMemory { .. }) => {
                        open.clear_all_caches(&guard);
                        DeviceBlock::allocate(open, &guard, exact_bytes(bytes))
                            .map_err(|why| with_free(&guard, why))?
                    }
                    taken => taken?,
                }
            }
        };
        Ok(CudaMemory { block, size, bytes, open: open.clone(), owner: None })
    }

    /// Returns the address of a region, which must be in the same context as `open` and within its buffer.
    pub(super) fn address(region: &Region, open: &OpenDevice, operation: &str) -> Result<CUdeviceptr> {
        let memory = (&*region.memory as &dyn Any).downcast_ref::<CudaMemory>();
        let Some(memory) = memory.filter(|memory| memory.open.context.is_same_context(&open.context)) else {
            return errors::wrong_device(&open.context.id, operation, "buffer");
        };
        if region.offset.checked_add(region.bytes).is_none_or(|end| end > memory.bytes) {
            let Region { offset, bytes, .. } = region;
            let detail = format!(
                "bytes {offset}..{} of a buffer of {} bytes",
                offset.saturating_add(*bytes),
                memory.bytes
            );
            return Err(Error::unsupported(&open.context.id, operation, detail));
        }
        Ok(memory.block.0 + region.offset)
    }
}

impl CudaMemory {
    pub(super) fn context(&self) -> &DeviceContext {
        &self.open.context
    }
}

impl Memory for CudaMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn address(&self) -> Option<Address> {
        Some(Address::Cuda { ordinal: Some(self.open.card.ordinal), address: self.block.0 })
    }
}

impl Drop for CudaMemory {
    // Streams keep the memory of their operations, so no operation uses it any more.
    fn drop(&mut self) {
        if self.owner.is_some() {
            // Dropping the owner returns the memory to the other library.
        } else if self.open.context.primary.is_lost() {
            self.open.device_cache.remove_in_use(self.size);
        } else {
            self.open.device_cache.put(self.size, DeviceBlock(self.block.0));
        }
    }
}

fn with_free(guard: &DriverGuard<'_>, mut error: Error) -> Error {
    if let Error::OutOfMemory { available, .. } = &mut error {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the guard's context is current; both pointers are to live integers.
        if unsafe { (guard.driver.mem_get_info)(&mut free, &mut total) } == SUCCESS {
            *available = Some(free as u64);
        }
    }
    error
}

/// A block of host memory. Dropping it does not free it: its owner calls `free` or caches it.
#[derive(Debug)]
pub(super) struct HostBlock {
    pointer: NonNull<u8>,
    class: u64,
    is_pinned: bool,
}

// SAFETY: it is plain memory that only its owner accesses.
unsafe impl Send for HostBlock {}
// SAFETY: as for `Send`; a shared reference gives no access to the bytes.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    fn layout(class: u64) -> Option<Layout> {
        Layout::from_size_align(usize::try_from(class).ok()?, PAGE as usize).ok()
    }

    fn allocate(open: &OpenDevice, guard: &DriverGuard<'_>, class: u64) -> Result<Self> {
        let out_of_memory = || Error::OutOfMemory {
            device: open.context.id.clone(),
            operation: "allocating host memory".into(),
            requested: class,
            available: None,
            detail: "limited by the machine's memory".into(),
        };
        let layout = Self::layout(class).ok_or_else(out_of_memory)?;
        // SAFETY: a size class is never 0.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        // SAFETY: the guard's context is current; the memory was just allocated with this size, and is registered once.
        let code =
            unsafe { (guard.driver.mem_host_register)(pointer.as_ptr().cast(), class as usize, PORTABLE) };
        let is_pinned = code == SUCCESS;
        if !is_pinned {
            let error = guard.check_sized(code, class);
            if errors::meaning(code) != ErrorClass::Refused {
                // SAFETY: it was allocated above with this layout, and the driver did not register it.
                unsafe { dealloc(pointer.as_ptr(), layout) };
                error?;
            }
            // Copies from and to memory that is not pinned are correct too: the driver stages them itself while the caller
            // waits.
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                let why = guard.driver.text(code);
                tracing::warn!(
                    "{}: host memory cannot be pinned, so copies are slower: {why}",
                    open.context.id
                );
            });
        }
        open.host_cache.add_in_use(class);
        Ok(HostBlock { pointer, class, is_pinned })
    }

    pub(super) fn free(self, guard: &DriverGuard<'_>) {
        if self.is_pinned {
            // SAFETY: the block was registered in this context, and no copy uses it: it came from the cache.
            let code = unsafe { (guard.driver.mem_host_unregister)(self.pointer.as_ptr().cast()) };
            if code != SUCCESS {
                // The driver may still use the memory, so it is leaked.
                return;
            }
        }
        if let Some(layout) = Self::layout(self.class) {
            // SAFETY: `allocate` allocated it with this layout, and `self` was its only owner.
            unsafe { dealloc(self.pointer.as_ptr(), layout) };
        }
    }
}

/// Pinned host memory that a host buffer or copies in flight use. Returns to the cache when neither does.
#[derive(Debug)]
pub(super) struct PinnedBlock {
    block: HostBlock,
    /// Whether it is zeroed before it returns to the cache.
    is_secret: AtomicBool,
    open: Arc<OpenDevice>,
}

impl PinnedBlock {
    pub(super) fn class(&self) -> u64 {
        self.block.class
    }

    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.block.pointer.as_ptr().wrapping_add(offset as usize)
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let HostBlock { pointer, class, is_pinned } = self.block;
        if self.open.context.primary.is_lost() {
            // A copy may have been in flight when the device was lost, so the memory is leaked.
            self.open.host_cache.remove_in_use(class);
        } else {
            if *self.is_secret.get_mut() {
                // SAFETY: the block has this many bytes, and neither a host buffer nor a copy uses it any more: they own this.
                unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), class as usize) }.fill(0);
            }
            self.open.host_cache.put(class, HostBlock { pointer, class, is_pinned });
        }
    }
}

/// A copy in flight: the operation of this number in a stream.
#[derive(Debug)]
struct PendingCopy {
    progress: Arc<StreamProgress>,
    operation: u64,
}

/// Host memory for copies. It exposes no bytes while a copy is in flight.
#[derive(Debug)]
pub(super) struct CudaHostMemory {
    pinned: Arc<PinnedBlock>,
    bytes: u64,
    pending: Option<PendingCopy>,
}

impl CudaHostMemory {
    pub(super) fn allocate(open: &Arc<OpenDevice>, bytes: u64) -> Result<Self> {
        let class = class_bytes(bytes.max(PAGE));
        let block = match open.host_cache.take(class) {
            Some((_, block)) => block,
            None => {
                let guard = open.context.enter("allocating host memory")?;
                open.free_excess(&guard);
                match HostBlock::allocate(open, &guard, class) {
                    Err(Error::OutOfMemory { .. }) => {
                        open.clear_all_caches(&guard);
                        HostBlock::allocate(open, &guard, exact_bytes(bytes.max(PAGE)))?
                    }
                    taken => taken?,
                }
            }
        };
        let pinned = Arc::new(PinnedBlock { block, is_secret: AtomicBool::new(false), open: open.clone() });
        Ok(CudaHostMemory { pinned, bytes, pending: None })
    }

    /// Downcasts host memory that is in the same context as `open`, has the bytes from `start` on, and has no copy in
    /// flight.
    pub(super) fn of<'a>(
        memory: &'a mut dyn HostMemory,
        open: &OpenDevice,
        operation: &str,
        (start, bytes): (u64, u64),
    ) -> Result<&'a mut CudaHostMemory> {
        let Some(memory) = (memory as &mut dyn Any)
            .downcast_mut::<CudaHostMemory>()
            .filter(|memory| memory.pinned.open.context.is_same_context(&open.context))
        else {
            return errors::wrong_device(&open.context.id, operation, "host memory");
        };
        memory.reclaim()?;
        if start.checked_add(bytes).is_none_or(|end| end > memory.bytes) {
            let detail = format!(
                "bytes {start}..{} of {} bytes of host memory",
                start.saturating_add(bytes),
                memory.bytes
            );
            return Err(Error::unsupported(&open.context.id, operation, detail));
        }
        Ok(memory)
    }

    /// Runs `copy`, which queues the given operation of a stream on this memory, and hides the bytes until that operation has
    /// finished.
    pub(super) fn lend(
        &mut self,
        progress: &Arc<StreamProgress>,
        operation: u64,
        copy: impl FnOnce(&Arc<PinnedBlock>) -> Result<()>,
    ) -> Result<()> {
        self.pending = Some(PendingCopy { progress: progress.clone(), operation });
        let copied = copy(&self.pinned);
        // A refused copy was not queued. After a loss it may have been, so the bytes stay hidden.
        if copied.is_err() && !self.pinned.open.context.primary.is_lost() {
            self.pending = None;
        }
        copied
    }

    fn visible_bytes(&self) -> usize {
        if self.pending.is_some() { 0 } else { self.bytes as usize }
    }
}

impl HostMemory for CudaHostMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the block has at least this many bytes, zeroed by `HostBlock::allocate`. `visible_bytes` is 0 while a copy
        // may be in flight, and a stream that still keeps the block after its copy does not access it.
        unsafe { std::slice::from_raw_parts(self.pinned.at(0), self.visible_bytes()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and `self` is borrowed mutably for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.pinned.at(0), self.visible_bytes()) }
    }

    fn reclaim(&mut self) -> Result<()> {
        let Some(pending) = &self.pending else { return Ok(()) };
        if pending.progress.finished() >= pending.operation {
            self.pending = None;
            return Ok(());
        }
        let context = &self.pinned.open.context;
        // Returns `Lost` after a loss.
        drop(context.enter("reclaiming host memory")?);
        let detail = "the copy may still be in flight: wait for its event first";
        Err(Error::unsupported(&context.id, "reclaiming host memory", detail))
    }

    fn zero_on_release(&mut self) {
        self.pinned.is_secret.store(true, Relaxed);
    }

    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        Arc::new(CudaSharedMemory { bytes: self.visible_bytes(), pinned: self.pinned })
    }
}

/// Read-only host memory, pinned for every card.
#[derive(Debug)]
pub(super) struct CudaSharedMemory {
    pub(super) pinned: Arc<PinnedBlock>,
    bytes: usize,
}

impl SharedMemory for CudaSharedMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the block has at least this many bytes, zeroed by `HostBlock::allocate`. Nothing writes them: `share`
        // consumed the host memory that could, while no copy was in flight, and copies of shared memory only read.
        unsafe { std::slice::from_raw_parts(self.pinned.at(0), self.bytes) }
    }
}
