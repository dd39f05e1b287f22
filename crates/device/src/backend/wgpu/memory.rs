//! Device memory.

use std::{
    any::Any,
    sync::{
        Arc, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use wgpu::{Buffer, BufferDescriptor, BufferUsages, COPY_BUFFER_ALIGNMENT};

use super::{
    super::{
        Contents, Direction, Memory, Region,
        block_cache::{BlockCache, class_bytes, exact_bytes},
        cpu::too_little_free,
    },
    failure::translate,
    host::StagingMemory,
    open_device::{OpenDevice, TransferError},
};
use crate::{
    describe::DeviceKind,
    error::{Error, Result},
};

const BUFFER_USAGES: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// A block of device memory, which returns to its cache when its owner and the downloads from it have dropped it.
#[derive(Debug)]
pub(super) struct DeviceBlock {
    pub(super) buffer: Buffer,
    /// `None` if the buffer is the caller's.
    cache: Option<Arc<BlockCache<Buffer>>>,
    /// Whether the caller has a handle of the buffer too, and may have destroyed it.
    is_shared_with_caller: AtomicBool,
}

impl Drop for DeviceBlock {
    // Submitted work may still use the block. Its next user submits later, to the same queue.
    fn drop(&mut self) {
        let Some(cache) = &self.cache else { return };
        if *self.is_shared_with_caller.get_mut() {
            return cache.remove_in_use(self.buffer.size());
        }
        cache.put(self.buffer.size(), self.buffer.clone());
        drop(cache.take_excess());
    }
}

#[derive(Debug)]
pub(super) struct WgpuMemory {
    open: Arc<OpenDevice>,
    pub(super) block: Arc<DeviceBlock>,
    bytes: u64,
    /// The number of the submission that zeroed it.
    pub(super) cleared: u64,
}

impl WgpuMemory {
    pub(super) fn allocate(open: &Arc<OpenDevice>, bytes: u64, contents: Contents) -> Result<Self> {
        const OPERATION: &str = "allocating a buffer";
        open.check(OPERATION)?;
        let class = open.class(OPERATION, bytes)?;
        let (buffer, is_zero) = match open.cache.take(class) {
            Some((_, buffer)) => (buffer, false),
            None => {
                let in_host_memory = matches!(open.kind, DeviceKind::Software | DeviceKind::Integrated);
                let buffer = open.make_fitting(OPERATION, bytes, |size| {
                    open.make_buffer(OPERATION, size, BUFFER_USAGES, false, in_host_memory)
                })?;
                open.cache.add_in_use(buffer.size());
                // wgpu zeroes the buffers that it creates itself.
                let is_zero = !open.is_made_for_transfers(buffer.size());
                (buffer, is_zero)
            }
        };
        // From here on, a drop returns the block to the cache.
        let cache = Some(open.cache.clone());
        let block = Arc::new(DeviceBlock { buffer, cache, is_shared_with_caller: AtomicBool::new(false) });
        let mut memory = WgpuMemory { open: open.clone(), block, bytes, cleared: 0 };
        // Cleared now, before any later submission.
        if !is_zero && contents == Contents::Zeroed && bytes > 0 {
            memory.cleared = open.attempt(OPERATION, || {
                let mut encoder = open.device.create_command_encoder(&Default::default());
                encoder.clear_buffer(memory.buffer(), 0, Some(padded(bytes)));
                open.submit(Some(encoder.finish()), 0).1
            })?;
        }
        Ok(memory)
    }

    /// Wraps the caller's buffer, to be used in place. Returns the existing memory if the caller shares the buffer with
    /// Evener already: the checks for overlap compare memories. Memory that was handed out has its own length for as long
    /// as it exists; a buffer that is adopted after that has wgpu's size, which is the memory's whole size class.
    pub(super) fn adopt(open: &Arc<OpenDevice>, buffer: &Buffer) -> Result<Arc<dyn Memory>> {
        const OPERATION: &str = "adopting a buffer";
        open.check(OPERATION)?;
        let mut shared = open.shared_with_caller.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |memory: &Arc<dyn Memory>| {
            let memory = (&**memory as &dyn Any).downcast_ref::<WgpuMemory>();
            memory.is_some_and(|memory| memory.buffer() == buffer)
        };
        if let Some(memory) = shared.iter().filter_map(Weak::upgrade).find(is_same) {
            return Ok(memory);
        }
        let refuse = |detail: String| Err(Error::unsupported(&open.id, OPERATION, detail));
        let (bytes, missing) = (buffer.size(), BUFFER_USAGES - buffer.usage());
        if !missing.is_empty() {
            return refuse(format!("the buffer lacks the usages {missing:?}"));
        }
        if bytes != padded(bytes) {
            return refuse(format!(
                "the buffer has {bytes} bytes, which is not a multiple of {COPY_BUFFER_ALIGNMENT}"
            ));
        }
        let block =
            DeviceBlock { buffer: buffer.clone(), cache: None, is_shared_with_caller: AtomicBool::new(true) };
        let memory: Arc<dyn Memory> =
            Arc::new(WgpuMemory { open: open.clone(), block: Arc::new(block), bytes, cleared: 0 });
        add_shared(&mut shared, &memory);
        Ok(memory)
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.block.buffer
    }

    /// Returns the memory of a region, which must belong to this open device.
    pub(super) fn of<'a>(region: &'a Region, open: &Arc<OpenDevice>) -> Result<&'a WgpuMemory> {
        let memory = (&*region.memory as &dyn Any).downcast_ref::<WgpuMemory>();
        memory.filter(|memory| Arc::ptr_eq(&memory.open, open)).ok_or_else(|| {
            Error::unsupported(&open.id, "using a buffer", "the buffer belongs to another device")
        })
    }
}

/// Returns wgpu's buffer of a region, if it belongs to an external device. Buffers of Evener's own devices are not handed
/// out: a caller who destroys one would free the memory of a copy in flight.
pub(crate) fn buffer_of(region: &Region) -> Option<Buffer> {
    let memory = (&*region.memory as &dyn Any).downcast_ref::<WgpuMemory>()?;
    if !memory.open.is_external {
        return None;
    }
    let mut shared = memory.open.shared_with_caller.lock().unwrap_or_else(PoisonError::into_inner);
    if !memory.block.is_shared_with_caller.swap(true, Relaxed) {
        add_shared(&mut shared, &region.memory);
    }
    Some(memory.buffer().clone())
}

/// Adds memory whose buffer the caller has, and removes entries of freed memory.
fn add_shared(shared: &mut Vec<Weak<dyn Memory>>, memory: &Arc<dyn Memory>) {
    // Only when the vector is full, so that the cost per entry stays small.
    if shared.len() == shared.capacity() {
        shared.retain(|memory| memory.strong_count() > 0);
    }
    shared.push(Arc::downgrade(memory));
}

impl Memory for WgpuMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Rounds a length up to whole words: a copy that ends at a buffer's end includes the padding after it.
pub(super) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT)
}

impl OpenDevice {
    /// Returns the size class for a request, limited to the largest possible buffer.
    pub(super) fn class(&self, operation: &str, bytes: u64) -> Result<u64> {
        let limit = self.capabilities.max_buffer_bytes;
        if bytes <= limit {
            return Ok(class_bytes(bytes).min(limit));
        }
        Err(self.out_of_memory(operation, bytes, Some(limit), "limited by the device's largest buffer"))
    }

    pub(super) fn make_staging(
        &self,
        operation: &str,
        bytes: u64,
        direction: Direction,
    ) -> Result<StagingMemory> {
        let Some(allocator) = &self.host_allocator else {
            let (usage, is_mapped) = match direction {
                Direction::Upload => (BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC, true),
                Direction::Download => (BufferUsages::MAP_READ | BufferUsages::COPY_DST, false),
            };
            let make = |size| self.make_buffer(operation, size, usage, is_mapped, true);
            return Ok(StagingMemory { buffer: self.make_fitting(operation, bytes, make)?, mapped: None });
        };
        self.make_fitting(operation, bytes, |size| {
            if let Some(free) = too_little_free(size, || self.trim_all()) {
                return Err(self.out_of_memory(
                    operation,
                    size,
                    Some(free),
                    "limited by the machine's memory",
                ));
            }
            let make = || self.attempt(operation, || allocator.make(size, direction));
            let mut made = make()?;
            if let Err(TransferError::OutOfMemory) = made {
                self.trim_all();
                made = make()?;
            }
            match made {
                Ok((buffer, mapped)) => Ok(StagingMemory { buffer, mapped: Some(mapped) }),
                Err(TransferError::OutOfMemory) => {
                    Err(self.out_of_memory(operation, size, None, "limited by the driver's host memory"))
                }
                Err(TransferError::Lost(reason)) => {
                    self.failure.lose(&reason);
                    Err(Error::lost(&self.id, operation, reason))
                }
            }
        })
    }

    /// Calls `make` with the request's size class, and if there is not enough memory, with the exact size.
    fn make_fitting<T>(&self, operation: &str, bytes: u64, make: impl Fn(u64) -> Result<T>) -> Result<T> {
        let class = self.class(operation, bytes)?;
        let exact = exact_bytes(bytes).min(self.capabilities.max_buffer_bytes);
        match make(class) {
            Err(Error::OutOfMemory { .. }) if exact < class => make(exact),
            made => made,
        }
    }

    /// Creates a buffer. If there is not enough memory, frees cached memory and tries once more.
    pub(super) fn make_buffer(
        &self,
        operation: &str,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
        in_host_memory: bool,
    ) -> Result<Buffer> {
        if in_host_memory && let Some(free) = too_little_free(bytes, || self.trim_all()) {
            return Err(self.out_of_memory(operation, bytes, Some(free), "limited by the machine's memory"));
        }
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation };
        if usage.contains(BufferUsages::STORAGE) && self.is_made_for_transfers(bytes) {
            let mut made = self.make_shared_buffer(operation, bytes, usage)?;
            if made.is_none() {
                self.trim_all();
                made = self.make_shared_buffer(operation, bytes, usage)?;
            }
            let full = || self.out_of_memory(operation, bytes, None, "limited by the device's memory");
            return made.ok_or_else(full).and_then(|buffer| self.check(operation).map(|()| buffer));
        }
        let mut is_second_try = false;
        loop {
            let (buffer, error) = self.watch(|| self.device.create_buffer(&descriptor));
            match error {
                None => return self.check(operation).map(|()| buffer),
                Some(wgpu::Error::OutOfMemory { .. }) if !is_second_try => {
                    is_second_try = true;
                    self.trim_all();
                }
                Some(error) => return Err(translate(error, &self.id, operation, bytes)),
            }
        }
    }

    fn out_of_memory(&self, operation: &str, requested: u64, available: Option<u64>, detail: &str) -> Error {
        Error::OutOfMemory {
            device: self.id.clone(),
            operation: operation.into(),
            requested,
            available,
            detail: detail.into(),
        }
    }
}
