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
        cpu::too_little_free,
        shelf::{Shelf, class_bytes, exact_bytes},
    },
    failure::translate,
    hold::{Hold, TransferError},
    host::Staged,
};
use crate::{
    describe::DeviceKind,
    error::{Error, Result},
};

/// What device memory is used for.
const BUFFER_USAGES: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// A block of device memory, which goes back to its shelf when its owner and the downloads from it have let go of it.
#[derive(Debug)]
pub(super) struct DeviceBlock {
    pub(super) buffer: Buffer,
    /// None where the buffer is the caller's.
    shelf: Option<Arc<Shelf<Buffer>>>,
    /// Whether the caller was given the buffer, and may have destroyed it.
    is_known: AtomicBool,
}

impl Drop for DeviceBlock {
    // Work that was submitted may still use the block. Whoever gets it next submits later, to the same queue.
    fn drop(&mut self) {
        let Some(shelf) = &self.shelf else { return };
        if *self.is_known.get_mut() {
            return shelf.discount(self.buffer.size());
        }
        shelf.put(self.buffer.size(), self.buffer.clone());
        drop(shelf.excess());
    }
}

/// Device memory.
#[derive(Debug)]
pub(super) struct WgpuMemory {
    hold: Arc<Hold>,
    pub(super) block: Arc<DeviceBlock>,
    bytes: u64,
    /// The number of the submission that cleared it.
    pub(super) cleared: u64,
}

impl WgpuMemory {
    pub(super) fn allocate(hold: &Arc<Hold>, bytes: u64, contents: Contents) -> Result<Self> {
        const OPERATION: &str = "allocating a buffer";
        hold.check(OPERATION)?;
        let class = hold.class(OPERATION, bytes)?;
        let (buffer, is_zero) = match hold.shelf.take(class) {
            Some((_, buffer)) => (buffer, false),
            None => {
                let in_host_memory = matches!(hold.kind, DeviceKind::Software | DeviceKind::Integrated);
                let buffer = hold.make_block(OPERATION, bytes, BUFFER_USAGES, false, in_host_memory)?;
                hold.shelf.count(buffer.size());
                // A new buffer of wgpu's own is zero.
                let is_zero = !hold.is_made_for_transfers(buffer.size());
                (buffer, is_zero)
            }
        };
        // From here on, dropping it returns the block.
        let shelf = Some(hold.shelf.clone());
        let block = Arc::new(DeviceBlock { buffer, shelf, is_known: AtomicBool::new(false) });
        let mut memory = WgpuMemory { hold: hold.clone(), block, bytes, cleared: 0 };
        // It is cleared ahead of everything that will be submitted.
        if !is_zero && contents == Contents::Zeroed && bytes > 0 {
            memory.cleared = hold.attempt(OPERATION, || {
                let mut encoder = hold.device.create_command_encoder(&Default::default());
                encoder.clear_buffer(memory.buffer(), 0, Some(padded(bytes)));
                hold.submit(Some(encoder.finish()), 0).1
            })?;
        }
        Ok(memory)
    }

    /// The caller's buffer, used in place. Where there is memory over the same buffer already, adopted or allocated, it is
    /// that memory: two of them would hide from each other that slices overlap.
    pub(super) fn adopt(hold: &Arc<Hold>, buffer: &Buffer) -> Result<Arc<dyn Memory>> {
        const OPERATION: &str = "adopting a buffer";
        hold.check(OPERATION)?;
        let mut known = hold.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |memory: &Arc<dyn Memory>| {
            let memory = (&**memory as &dyn Any).downcast_ref::<WgpuMemory>();
            memory.is_some_and(|memory| memory.buffer() == buffer)
        };
        if let Some(memory) = known.iter().filter_map(Weak::upgrade).find(is_same) {
            return Ok(memory);
        }
        let refuse = |detail: String| Err(Error::unsupported(&hold.id, OPERATION, detail));
        let (bytes, missing) = (buffer.size(), BUFFER_USAGES - buffer.usage());
        if !missing.is_empty() {
            return refuse(format!("it was made without {missing:?}"));
        }
        if bytes != padded(bytes) {
            return refuse(format!("{bytes} bytes, which must be a multiple of {COPY_BUFFER_ALIGNMENT}"));
        }
        let block = DeviceBlock { buffer: buffer.clone(), shelf: None, is_known: AtomicBool::new(true) };
        let memory: Arc<dyn Memory> =
            Arc::new(WgpuMemory { hold: hold.clone(), block: Arc::new(block), bytes, cleared: 0 });
        note(&mut known, &memory);
        Ok(memory)
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.block.buffer
    }

    /// The memory behind a region, which must be this open device's.
    pub(super) fn of<'a>(region: &'a Region, hold: &Arc<Hold>) -> Result<&'a WgpuMemory> {
        let memory = (&*region.memory as &dyn Any).downcast_ref::<WgpuMemory>();
        memory.filter(|memory| Arc::ptr_eq(&memory.hold, hold)).ok_or_else(|| {
            Error::unsupported(&hold.id, "using a buffer", "the buffer is in another device's memory")
        })
    }
}

/// wgpu's buffer of a region, where it is in one of a device of the caller's. Buffers of Evener's own devices stay here: a
/// caller who destroys one would take the memory from a copy in flight.
pub(crate) fn buffer_of(region: &Region) -> Option<Buffer> {
    let memory = (&*region.memory as &dyn Any).downcast_ref::<WgpuMemory>()?;
    if !memory.hold.is_callers {
        return None;
    }
    let mut known = memory.hold.known.lock().unwrap_or_else(PoisonError::into_inner);
    if !memory.block.is_known.swap(true, Relaxed) {
        note(&mut known, &region.memory);
    }
    Some(memory.buffer().clone())
}

/// Adds memory whose buffer the caller has, and forgets what is gone.
fn note(known: &mut Vec<Weak<dyn Memory>>, memory: &Arc<dyn Memory>) {
    // So seldom that each costs little.
    if known.len() == known.capacity() {
        known.retain(|memory| memory.strong_count() > 0);
    }
    known.push(Arc::downgrade(memory));
}

impl Memory for WgpuMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A length as wgpu wants it: a copy that ends at a buffer's end also takes the padding after it.
pub(super) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT)
}

impl Hold {
    /// The size of the block that serves a request, never more than a buffer may have.
    pub(super) fn class(&self, operation: &str, bytes: u64) -> Result<u64> {
        let limit = self.capabilities.max_buffer_bytes;
        if bytes <= limit {
            return Ok(class_bytes(bytes).min(limit));
        }
        Err(self.no_room(operation, bytes, Some(limit), "the largest single buffer here"))
    }

    /// A new block for so many bytes: of their class, or where there is no room for that, of exactly so many.
    pub(super) fn make_block(
        &self,
        operation: &str,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
        in_host_memory: bool,
    ) -> Result<Buffer> {
        self.make_fitting(operation, bytes, |size| {
            self.make_buffer(operation, size, usage, mapped_at_creation, in_host_memory)
        })
    }

    /// Staging memory for so many bytes.
    pub(super) fn make_staging(&self, operation: &str, bytes: u64, direction: Direction) -> Result<Staged> {
        let Some(pages) = &self.pages else {
            let (usage, is_mapped) = match direction {
                Direction::Upload => (BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC, true),
                Direction::Download => (BufferUsages::MAP_READ | BufferUsages::COPY_DST, false),
            };
            let buffer = self.make_block(operation, bytes, usage, is_mapped, true)?;
            return Ok(Staged { buffer, pages: None });
        };
        self.make_fitting(operation, bytes, |size| {
            if let Some(free) = too_little_free(size, || self.trim_all()) {
                return Err(self.no_room(operation, size, Some(free), "the machine's memory"));
            }
            let make = || self.attempt(operation, || pages.make(size, direction));
            let mut made = make()?;
            if let Err(TransferError::OutOfMemory) = made {
                self.trim_all();
                made = make()?;
            }
            match made {
                Ok((buffer, pages)) => Ok(Staged { buffer, pages: Some(pages) }),
                Err(TransferError::OutOfMemory) => {
                    Err(self.no_room(operation, size, None, "the driver's host memory"))
                }
                Err(TransferError::Lost(reason)) => {
                    self.failure.lose(&reason);
                    Err(Error::lost(&self.id, operation, reason))
                }
            }
        })
    }

    /// Makes something of the size of a block for so many bytes, or where there is no room for that, of exactly so many.
    fn make_fitting<T>(&self, operation: &str, bytes: u64, make: impl Fn(u64) -> Result<T>) -> Result<T> {
        let class = self.class(operation, bytes)?;
        let exact = exact_bytes(bytes).min(self.capabilities.max_buffer_bytes);
        match make(class) {
            Err(Error::OutOfMemory { .. }) if exact < class => make(exact),
            made => made,
        }
    }

    /// A new buffer from the driver. Where there is no room, what is kept for reuse is given back first.
    pub(super) fn make_buffer(
        &self,
        operation: &str,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
        in_host_memory: bool,
    ) -> Result<Buffer> {
        if in_host_memory && let Some(free) = too_little_free(bytes, || self.trim_all()) {
            return Err(self.no_room(operation, bytes, Some(free), "the machine's memory"));
        }
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation };
        if usage.contains(BufferUsages::STORAGE) && self.is_made_for_transfers(bytes) {
            let mut made = self.make_shared_buffer(operation, bytes, usage)?;
            if made.is_none() {
                self.trim_all();
                made = self.make_shared_buffer(operation, bytes, usage)?;
            }
            let full = || self.no_room(operation, bytes, None, "the device's memory");
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

    fn no_room(&self, operation: &str, requested: u64, available: Option<u64>, detail: &str) -> Error {
        Error::OutOfMemory {
            device: self.id.clone(),
            operation: operation.into(),
            requested,
            available,
            detail: detail.into(),
        }
    }
}
