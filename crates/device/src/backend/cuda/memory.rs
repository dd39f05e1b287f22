//! Memory on the card, and host memory that the card copies from and to.
//!
//! Host memory is our own, pinned with the driver, and not the driver's: when a lost context is destroyed the
//! driver takes its memory away, and whoever still reads a host buffer then would read nothing. Ours stays.
//! It is not write-combined: that would speed copies to the card by little and slow reading by much, and
//! `as_slice` may read it.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    any::Any,
    ptr::NonNull,
    sync::{Arc, Once},
};

use cudarc::driver::sys::CUdeviceptr;

use super::{
    context::{ContextGuard, DeviceContext},
    driver::SUCCESS,
    errors::{self, Meaning},
    event::Progress,
    open::OpenDevice,
};
use crate::{
    backend::{
        Address, HostMemory, Memory, Region, SharedMemory,
        block_cache::{class_bytes, exact_bytes},
    },
    error::{Error, Result},
};

/// Pages of any system that has CUDA are this large or smaller, and pages are what is pinned.
const PAGE: u64 = 64 << 10;

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context, not only for the current one.
const PORTABLE: u32 = 1;

/// A block of the card's memory. Whoever has it frees it or keeps it; dropping it does nothing.
#[derive(Debug)]
pub(super) struct DeviceBlock(CUdeviceptr);

impl DeviceBlock {
    fn take(open: &OpenDevice, guard: &ContextGuard<'_>, size: u64) -> Result<(u64, Self)> {
        let mut pointer = 0;
        // SAFETY: the context is current; the pointer is to a live integer; a block's size is never 0.
        let code = unsafe { (guard.driver.mem_alloc)(&mut pointer, size as usize) };
        guard.check_sized(code, size)?;
        open.device_cache.add_in_use(size);
        Ok((size, DeviceBlock(pointer)))
    }

    /// Gives the block back to the driver, which may wait for work in the context first.
    pub(super) fn free(self, guard: &ContextGuard<'_>) {
        // SAFETY: allocated in this context, and no operation uses it: it came off the shelf.
        unsafe { (guard.driver.mem_free)(self.0) };
    }
}

/// A buffer on the card.
pub(super) struct CudaMemory {
    block: DeviceBlock,
    /// The block's size.
    size: u64,
    bytes: u64,
    open: Arc<OpenDevice>,
    /// What keeps the memory, where it is another library's.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("CudaMemory");
        f.field("block", &self.block).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl CudaMemory {
    /// Memory that another library has, until `owner` is dropped.
    pub(super) fn adopt(
        open: &Arc<OpenDevice>,
        address: CUdeviceptr,
        bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        CudaMemory { block: DeviceBlock(address), size: 0, bytes, open: open.clone(), owner: Some(owner) }
    }

    /// From the shelf, or else from the driver; where that has no room, once more and not a byte too many, with the
    /// shelves cleared of everything that has the card open, its partitions too.
    pub(super) fn allocate(open: &Arc<OpenDevice>, bytes: u64) -> Result<Self> {
        let class = class_bytes(bytes);
        let (size, block) = match open.device_cache.take(class) {
            Some(found) => found,
            None => {
                let guard = open.context.enter("allocating a buffer")?;
                open.free_excess(&guard);
                match DeviceBlock::take(open, &guard, class) {
                    Err(Error::OutOfMemory { .. }) => {
                        open.clear_all_caches(&guard);
                        DeviceBlock::take(open, &guard, exact_bytes(bytes))
                            .map_err(|why| with_free(&guard, why))?
                    }
                    taken => taken?,
                }
            }
        };
        Ok(CudaMemory { block, size, bytes, open: open.clone(), owner: None })
    }

    /// The address of a region, which must be of memory in the same context as `open`.
    pub(super) fn address(region: &Region, open: &OpenDevice, operation: &str) -> Result<CUdeviceptr> {
        let memory = (&*region.memory as &dyn Any).downcast_ref::<CudaMemory>();
        let Some(memory) = memory.filter(|memory| memory.open.context.is_same_context(&open.context)) else {
            return errors::wrong_device(&open.context.id, operation, "buffer");
        };
        if region.offset.checked_add(region.bytes).is_none_or(|end| end > memory.bytes) {
            let Region { offset, bytes, .. } = region;
            let detail = format!("{bytes} bytes at {offset} of a buffer of {}", memory.bytes);
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
    // The streams keep what their operations use, so no operation uses this any more.
    fn drop(&mut self) {
        if self.owner.is_some() {
            // It goes back to its owner, who is dropped with this.
        } else if self.open.context.primary.is_lost() {
            self.open.device_cache.remove_in_use(self.size);
        } else {
            self.open.device_cache.put(self.size, DeviceBlock(self.block.0));
        }
    }
}

/// The same error, with the free memory of this moment in it.
fn with_free(guard: &ContextGuard<'_>, mut error: Error) -> Error {
    if let Error::OutOfMemory { available, .. } = &mut error {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; both pointers are to live integers.
        if unsafe { (guard.driver.mem_get_info)(&mut free, &mut total) } == SUCCESS {
            *available = Some(free as u64);
        }
    }
    error
}

/// A block of host memory. Whoever has it frees it or keeps it; dropping it does nothing.
#[derive(Debug)]
pub(super) struct HostBlock {
    pointer: NonNull<u8>,
    class: u64,
    pinned: bool,
}

// SAFETY: it is plain memory, reached only through its one owner.
unsafe impl Send for HostBlock {}
// SAFETY: as above.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    fn layout(class: u64) -> Option<Layout> {
        Layout::from_size_align(usize::try_from(class).ok()?, PAGE as usize).ok()
    }

    fn take(open: &OpenDevice, guard: &ContextGuard<'_>, class: u64) -> Result<Self> {
        let out_of_memory = || Error::OutOfMemory {
            device: open.context.id.clone(),
            operation: "allocating host memory".into(),
            requested: class,
            available: None,
            detail: "the machine's memory".into(),
        };
        let layout = Self::layout(class).ok_or_else(out_of_memory)?;
        // SAFETY: a class is never 0.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        // SAFETY: the context is current; the memory is ours, of this size, and pinned nowhere else.
        let code =
            unsafe { (guard.driver.mem_host_register)(pointer.as_ptr().cast(), class as usize, PORTABLE) };
        let pinned = code == SUCCESS;
        if !pinned {
            let error = guard.check_sized(code, class);
            if errors::meaning(code) != Meaning::Refused {
                // SAFETY: allocated above with this layout, and pinning it failed.
                unsafe { dealloc(pointer.as_ptr(), layout) };
                error?;
            }
            // Copies from and to memory that is not pinned are right too: the driver passes them through
            // memory of its own, while the caller waits.
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                let why = guard.driver.text(code);
                tracing::warn!("{}: host memory cannot be pinned, copies are slower: {why}", open.context.id);
            });
        }
        open.host_cache.add_in_use(class);
        Ok(HostBlock { pointer, class, pinned })
    }

    /// Gives the block back to the driver and the system.
    pub(super) fn free(self, guard: &ContextGuard<'_>) {
        if self.pinned {
            // SAFETY: pinned in this context, and no copy uses it: it came off the shelf.
            let code = unsafe { (guard.driver.mem_host_unregister)(self.pointer.as_ptr().cast()) };
            if code != SUCCESS {
                // The driver still has it; then so must we.
                return;
            }
        }
        if let Some(layout) = Self::layout(self.class) {
            // SAFETY: allocated with this layout; nobody else has it.
            unsafe { dealloc(self.pointer.as_ptr(), layout) };
        }
    }
}

/// Host memory in use: by its owner, by copies under way, or by both. Returns to the shelf when neither has it.
#[derive(Debug)]
pub(super) struct PinnedBlock {
    block: HostBlock,
    open: Arc<OpenDevice>,
}

impl PinnedBlock {
    pub(super) fn class(&self) -> u64 {
        self.block.class
    }

    /// Where byte `offset` is.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.block.pointer.as_ptr().wrapping_add(offset as usize)
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let HostBlock { pointer, class, pinned } = self.block;
        if self.open.context.primary.is_lost() {
            // Nothing tells whether a copy was under way when the device was lost: the memory is left alone.
            self.open.host_cache.remove_in_use(class);
        } else {
            self.open.host_cache.put(class, HostBlock { pointer, class, pinned });
        }
    }
}

/// A copy of a stream: the n-th of its operations.
#[derive(Debug)]
struct PendingCopy {
    progress: Arc<Progress>,
    operation: u64,
}

/// Host memory for copies. While a copy is under way it shows no bytes.
#[derive(Debug)]
pub(super) struct CudaHostMemory {
    pinned: Arc<PinnedBlock>,
    bytes: u64,
    copying: Option<PendingCopy>,
}

impl CudaHostMemory {
    pub(super) fn allocate(open: &Arc<OpenDevice>, bytes: u64) -> Result<Self> {
        let class = class_bytes(bytes.max(PAGE));
        let block = match open.host_cache.take(class) {
            Some((_, block)) => block,
            None => {
                let guard = open.context.enter("allocating host memory")?;
                open.free_excess(&guard);
                match HostBlock::take(open, &guard, class) {
                    Err(Error::OutOfMemory { .. }) => {
                        open.clear_all_caches(&guard);
                        HostBlock::take(open, &guard, exact_bytes(bytes.max(PAGE)))?
                    }
                    taken => taken?,
                }
            }
        };
        let pinned = Arc::new(PinnedBlock { block, open: open.clone() });
        Ok(CudaHostMemory { pinned, bytes, copying: None })
    }

    /// This memory behind the trait, if it is of the same context as `open`, holds bytes `start..end`, and no
    /// copy of it is under way.
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
            let detail = format!("{bytes} bytes at {start} of host memory of {}", memory.bytes);
            return Err(Error::unsupported(&open.context.id, operation, detail));
        }
        Ok(memory)
    }

    /// Runs `copy`, which queues the given operation of a stream on this memory, and hides the bytes until that
    /// operation has ended.
    pub(super) fn lend(
        &mut self,
        progress: &Arc<Progress>,
        operation: u64,
        copy: impl FnOnce(&Arc<PinnedBlock>) -> Result<()>,
    ) -> Result<()> {
        self.copying = Some(PendingCopy { progress: progress.clone(), operation });
        let copied = copy(&self.pinned);
        // One that was refused was not queued. After a loss nothing is sure, and the bytes stay hidden.
        if copied.is_err() && !self.pinned.open.context.primary.is_lost() {
            self.copying = None;
        }
        copied
    }

    fn shown(&self) -> usize {
        if self.copying.is_some() { 0 } else { self.bytes as usize }
    }
}

impl HostMemory for CudaHostMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the block has at least so many bytes, all initialised when it was made; no copy is under way
        // (or none is shown), and a stream that still holds the block after a copy does not touch it.
        unsafe { std::slice::from_raw_parts(self.pinned.at(0), self.shown()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.pinned.at(0), self.shown()) }
    }

    fn reclaim(&mut self) -> Result<()> {
        let Some(copying) = &self.copying else { return Ok(()) };
        if copying.progress.finished() >= copying.operation {
            self.copying = None;
            return Ok(());
        }
        let context = &self.pinned.open.context;
        // After a loss this says so.
        drop(context.enter("taking host memory back")?);
        let detail = "the copy is not known to have ended: wait for its event first";
        Err(Error::unsupported(&context.id, "taking host memory back", detail))
    }

    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        Arc::new(CudaSharedMemory { bytes: self.shown(), pinned: self.pinned })
    }
}

/// Host memory that nobody writes any more. It is pinned for every card.
#[derive(Debug)]
pub(super) struct CudaSharedMemory {
    pub(super) pinned: Arc<PinnedBlock>,
    bytes: usize,
}

impl SharedMemory for CudaSharedMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the block has at least so many bytes, all initialised when it was made, and nobody writes them: what
        // could have was consumed, with no copy under way, and copies of shared memory only read.
        unsafe { std::slice::from_raw_parts(self.pinned.at(0), self.bytes) }
    }
}
