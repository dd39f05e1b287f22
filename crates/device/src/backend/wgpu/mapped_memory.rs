//! Host memory of a Vulkan device that outlives the buffer in it.
//!
//! When a device is lost, the next poll on any thread makes wgpu destroy every buffer, even mapped ones: it frees memory
//! that another thread may be reading (`Device::maintain` in wgpu-core 30). A lock does not help, because the owner of a
//! host buffer may keep a `&[u8]` of it for any time, and the caller of an external device polls it too. The memory is
//! therefore allocated and mapped here, and wgpu destroys only the buffer's handle.

use std::{fmt, ptr::NonNull, sync::Arc};

use ash::vk;
use wgpu::{
    Buffer, BufferDescriptor, BufferUsages, Device,
    hal::{api::Vulkan, vulkan},
};

use super::{super::Direction, open_device::TransferError};

/// Allocates host memory of a Vulkan device.
pub(super) struct HostAllocator {
    /// Keeps the driver's device alive.
    device: Device,
    raw: ash::Device,
    memory_types: Vec<vk::MemoryPropertyFlags>,
}

impl HostAllocator {
    /// Returns `None` for a device of another API.
    pub(super) fn new(device: &Device) -> Option<Arc<Self>> {
        // SAFETY: the raw device is not destroyed here.
        let hal = unsafe { device.as_hal::<Vulkan>()? };
        let instance = hal.shared_instance().raw_instance();
        // SAFETY: the physical device belongs to the instance, and both live as long as the device.
        let memory = unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
        let memory_types = memory.memory_types_as_slice().iter().map(|it| it.property_flags).collect();
        Some(Arc::new(HostAllocator { device: device.clone(), raw: hal.raw_device().clone(), memory_types }))
    }

    /// Creates a buffer in host memory that is mapped and zeroed.
    pub(super) fn make(
        self: &Arc<Self>,
        bytes: u64,
        direction: Direction,
    ) -> Result<(Buffer, MappedMemory), TransferError> {
        // The same memory types as wgpu's.
        let (vulkan_usage, usage, preferred) = match direction {
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
        // SAFETY: the device is alive. The buffer is destroyed below if a later step fails, and is otherwise given to
        // wgpu, which destroys it.
        let buffer = unsafe { self.raw.create_buffer(&info, None)? };
        // SAFETY: the buffer was just created on this device.
        let needs = unsafe { self.raw.get_buffer_memory_requirements(buffer) };
        let memory = self.allocate(needs, preferred).or_else(|_| self.allocate(needs, Default::default()));
        let bound = memory.and_then(|memory| {
            // SAFETY: both belong to this device, type and size fit (`allocate`), and neither is bound yet.
            unsafe { self.raw.bind_buffer_memory(buffer, memory.memory, 0) }.map(|()| memory)
        });
        let memory = match bound {
            Ok(memory) => memory,
            Err(why) => {
                // SAFETY: the buffer was created above, and nothing uses it.
                unsafe { self.raw.destroy_buffer(buffer, None) };
                return Err(why.into());
            }
        };
        // SAFETY: the memory is mapped, has this length, and nothing else uses it yet.
        unsafe { memory.pointer.write_bytes(0, bytes as usize) };
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        // SAFETY: the buffer was just created on this device with this usage and size. Its memory is freed with the block
        // that owns both, when no copy uses it.
        let buffer = unsafe {
            self.device.create_buffer_from_hal::<Vulkan>(vulkan::Buffer::from_raw(buffer), &descriptor)
        };
        Ok((buffer, memory))
    }

    /// Allocates mapped, coherent memory of the first type that has the preferred properties.
    fn allocate(
        self: &Arc<Self>,
        needs: vk::MemoryRequirements,
        preferred: vk::MemoryPropertyFlags,
    ) -> Result<MappedMemory, vk::Result> {
        let wanted =
            vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT | preferred;
        let fits = |&index: &usize| {
            needs.memory_type_bits & 1 << index != 0 && self.memory_types[index].contains(wanted)
        };
        let found = (0..self.memory_types.len()).find(fits);
        let memory_type = found.ok_or(vk::Result::ERROR_OUT_OF_HOST_MEMORY)? as u32;
        let allocation =
            vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(memory_type);
        // SAFETY: the device is alive and has this memory type. The memory is freed below if mapping it fails, and
        // otherwise when `MappedMemory` is dropped.
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

/// Mapped host memory, valid until this is dropped.
#[derive(Debug)]
pub(super) struct MappedMemory {
    pointer: NonNull<u8>,
    memory: vk::DeviceMemory,
    source: Arc<HostAllocator>,
}

// SAFETY: it is plain memory. `StagingBlock::is_host_owned` decides whether the host or a device may access it.
unsafe impl Send for MappedMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Returns the first bytes.
    ///
    /// # Safety
    /// The memory is this long, and neither a device nor anything else writes to it while the slice is used.
    pub(super) unsafe fn slice(&self, bytes: usize) -> &[u8] {
        // SAFETY: the caller promises length and access; `HostAllocator::make` zeroed the memory.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), bytes) }
    }

    /// Returns the first bytes, to write.
    ///
    /// # Safety
    /// The memory is this long, and neither a device nor anything else reads or writes it while the slice is used.
    #[allow(clippy::mut_from_ref, reason = "the owner of the block that has this has the memory")]
    pub(super) unsafe fn slice_mut(&self, bytes: usize) -> &mut [u8] {
        // SAFETY: the caller promises length and access; `HostAllocator::make` zeroed the memory.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), bytes) }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated on this device, which `source` keeps alive. No copy uses it and no slice of it is
        // left: copies keep the block that owns this, and slices borrow from it.
        unsafe { self.source.raw.free_memory(self.memory, None) };
    }
}
