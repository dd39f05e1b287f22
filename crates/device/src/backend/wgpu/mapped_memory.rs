//! Host memory of a Vulkan device that outlives the buffer over it.
//!
//! When a device is lost, wgpu destroys every buffer in the next poll of any thread, the buffers that are mapped included:
//! it frees memory that another thread may be reading (`Device::maintain` in wgpu-core 30). No lock of ours helps, because
//! a `&[u8]` of a host buffer lives as long as its owner likes, and a device that the caller has made is polled by the
//! caller too. So the memory is allocated and mapped here: what wgpu destroys is the handle of the buffer.

use std::{fmt, ptr::NonNull, sync::Arc};

use ash::vk;
use wgpu::{
    Buffer, BufferDescriptor, BufferUsages, Device,
    hal::{api::Vulkan, vulkan},
};

use super::{super::Direction, open_device::TransferError};

/// A Vulkan device as the source of host memory.
pub(super) struct HostAllocator {
    /// Keeps the driver's device.
    device: Device,
    raw: ash::Device,
    memory_types: Vec<vk::MemoryPropertyFlags>,
}

impl HostAllocator {
    /// Nothing where the device is another API's.
    pub(super) fn new(device: &Device) -> Option<Arc<Self>> {
        // SAFETY: nothing of it is destroyed here.
        let hal = unsafe { device.as_hal::<Vulkan>()? };
        let instance = hal.shared_instance().raw_instance();
        // SAFETY: the physical device belongs to the instance, and both live as long as the device.
        let memory = unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
        let memory_types = memory.memory_types_as_slice().iter().map(|it| it.property_flags).collect();
        Some(Arc::new(HostAllocator { device: device.clone(), raw: hal.raw_device().clone(), memory_types }))
    }

    /// Makes a buffer in host memory, mapped and all zeros.
    pub(super) fn make(
        self: &Arc<Self>,
        bytes: u64,
        direction: Direction,
    ) -> Result<(Buffer, MappedMemory), TransferError> {
        // The kinds of memory that wgpu would take.
        let (vulkan_usage, usage, wish) = match direction {
            Direction::Upload => (
                vk::BufferUsageFlags::TRANSFER_SRC,
                BufferUsages::COPY_SRC,
                vk::MemoryPropertyFlags::DEVICE_LOCAL,
            ),
            Direction::Download => (
                vk::BufferUsageFlags::TRANSFER_DST,
                BufferUsages::COPY_DST,
                vk::MemoryPropertyFlags::HOST_CACHED,
            ),
        };
        let info = vk::BufferCreateInfo::default().size(bytes).usage(vulkan_usage);
        // SAFETY: the device is alive. The buffer is destroyed where a later step fails, and else given to wgpu, which
        // destroys it when nothing uses it any more.
        let buffer = unsafe { self.raw.create_buffer(&info, None)? };
        // SAFETY: the buffer was just made.
        let needs = unsafe { self.raw.get_buffer_memory_requirements(buffer) };
        let pages = self.allocate(needs, wish).or_else(|_| self.allocate(needs, Default::default()));
        let bound = pages.and_then(|pages| {
            // SAFETY: both are this device's, of a fitting type and size, and neither is bound yet.
            unsafe { self.raw.bind_buffer_memory(buffer, pages.memory, 0) }.map(|()| pages)
        });
        let pages = match bound {
            Ok(pages) => pages,
            Err(why) => {
                // SAFETY: made above, and nothing uses it.
                unsafe { self.raw.destroy_buffer(buffer, None) };
                return Err(why.into());
            }
        };
        // SAFETY: the memory is mapped, this long, and nobody else has it.
        unsafe { pages.pointer.write_bytes(0, bytes as usize) };
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        // SAFETY: the buffer was just made on this device with this usage and size. Its memory is freed when the block that
        // has both is dropped, which is when no copy uses it.
        let buffer = unsafe {
            self.device.create_buffer_from_hal::<Vulkan>(vulkan::Buffer::from_raw(buffer), &descriptor)
        };
        Ok((buffer, pages))
    }

    /// Memory that the host sees without flushing, of the first type with what is wished.
    fn allocate(
        self: &Arc<Self>,
        needs: vk::MemoryRequirements,
        wish: vk::MemoryPropertyFlags,
    ) -> Result<MappedMemory, vk::Result> {
        let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT | wish;
        let fits = |&index: &usize| {
            needs.memory_type_bits & 1 << index != 0 && self.memory_types[index].contains(wanted)
        };
        let found = (0..self.memory_types.len()).find(fits);
        let memory_type = found.ok_or(vk::Result::ERROR_OUT_OF_HOST_MEMORY)? as u32;
        let allocation =
            vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(memory_type);
        // SAFETY: the device is alive and has the type of memory. What is allocated is freed where mapping it fails, and
        // else when `MappedMemory` is dropped.
        unsafe {
            let memory = self.raw.allocate_memory(&allocation, None)?;
            let mapped = self.raw.map_memory(memory, 0, vk::WHOLE_SIZE, Default::default());
            match mapped.map(|pointer| NonNull::new(pointer.cast())) {
                Ok(Some(pointer)) => Ok(MappedMemory { pointer, memory, source: self.clone() }),
                failed => {
                    self.raw.free_memory(memory, None);
                    Err(failed.err().unwrap_or(vk::Result::ERROR_MEMORY_MAP_FAILED))
                }
            }
        }
    }
}

impl fmt::Debug for HostAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostAllocator")
    }
}

/// Mapped host memory, which stays where it is until this is dropped.
#[derive(Debug)]
pub(super) struct MappedMemory {
    pointer: NonNull<u8>,
    memory: vk::DeviceMemory,
    source: Arc<HostAllocator>,
}

// SAFETY: it is plain memory; those who read and write it take turns by the state of its block.
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// The first so many bytes.
    ///
    /// # Safety
    /// The memory is this long, and neither a device nor anything else writes to it while the slice is used.
    pub(super) unsafe fn slice(&self, bytes: usize) -> &[u8] {
        // SAFETY: the caller promises the rest; it was zeroed when it was made.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), bytes) }
    }

    /// The first so many bytes, to write.
    ///
    /// # Safety
    /// The memory is this long, and neither a device nor anything else reads or writes it while the slice is used.
    #[allow(clippy::mut_from_ref, reason = "the owner of the block that has this has the memory")]
    pub(super) unsafe fn slice_mut(&self, bytes: usize) -> &mut [u8] {
        // SAFETY: the caller promises the rest; it was zeroed when it was made.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), bytes) }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated on this device, which is kept alive; no copy uses it, and no slice of it is left: both borrow
        // from or keep the block that has this.
        unsafe { self.source.raw.free_memory(self.memory, None) };
    }
}
