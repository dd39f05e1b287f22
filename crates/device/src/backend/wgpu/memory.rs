//! Device memory.

use std::{any::Any, sync::Arc};

use wgpu::{Buffer, BufferDescriptor, BufferUsages, COPY_BUFFER_ALIGNMENT};

use super::{
    super::{Contents, Memory, Region, cpu::too_little_free, shelf::class_bytes},
    failure::{translate, watch},
    hold::Hold,
};
use crate::{
    describe::Kind,
    error::{Error, Result},
};

/// A block of device memory.
#[derive(Debug)]
pub(super) struct WgpuMemory {
    hold: Arc<Hold>,
    pub(super) buffer: Buffer,
    bytes: u64,
}

impl WgpuMemory {
    pub(super) fn allocate(hold: &Arc<Hold>, bytes: u64, contents: Contents) -> Result<Self> {
        const OPERATION: &str = "allocating a buffer";
        hold.check(OPERATION)?;
        let class = hold.class(OPERATION, bytes)?;
        let reused = hold.shelf.take(class);
        let is_reused = reused.is_some();
        let buffer = match reused {
            Some(buffer) => buffer,
            None => {
                let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
                let in_host_memory = matches!(hold.kind, Kind::Software | Kind::Integrated);
                let buffer = hold.make_buffer(OPERATION, class, usage, false, in_host_memory)?;
                hold.shelf.count(class);
                buffer
            }
        };
        // From here on, dropping it returns the block.
        let memory = WgpuMemory { hold: hold.clone(), buffer, bytes };
        // A new buffer of wgpu's is zero. A reused one is cleared ahead of everything that will be submitted.
        if is_reused && contents == Contents::Zeroed && bytes > 0 {
            hold.attempt(OPERATION, || {
                let mut encoder = hold.device.create_command_encoder(&Default::default());
                encoder.clear_buffer(&memory.buffer, 0, Some(padded(bytes)));
                hold.queue.submit([encoder.finish()]);
            })?;
        }
        Ok(memory)
    }

    /// The memory behind a region, which must be this open device's.
    pub(super) fn of<'a>(region: &'a Region, hold: &Arc<Hold>) -> Result<&'a WgpuMemory> {
        let memory = (&*region.memory as &dyn Any).downcast_ref::<WgpuMemory>();
        memory.filter(|memory| Arc::ptr_eq(&memory.hold, hold)).ok_or_else(|| {
            Error::unsupported(&hold.id, "using a buffer", "the buffer is in another device's memory")
        })
    }
}

impl Memory for WgpuMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for WgpuMemory {
    // Work that was submitted may still use the block. Whoever gets it next submits later, to the same queue.
    fn drop(&mut self) {
        self.hold.shelf.put(self.buffer.size(), self.buffer.clone());
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

    /// A new buffer from the driver. Where there is no room, what is kept for reuse is given back first.
    pub(super) fn make_buffer(
        &self,
        operation: &str,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
        in_host_memory: bool,
    ) -> Result<Buffer> {
        if in_host_memory && let Some(free) = too_little_free(bytes, || self.trim()) {
            return Err(self.no_room(operation, bytes, Some(free), "the machine's memory"));
        }
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation };
        let mut is_second_try = false;
        loop {
            let (buffer, error) = watch(|| self.device.create_buffer(&descriptor));
            match error {
                None => return self.check(operation).map(|()| buffer),
                Some(wgpu::Error::OutOfMemory { .. }) if !is_second_try => {
                    is_second_try = true;
                    self.trim();
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
