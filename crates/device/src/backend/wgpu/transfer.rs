//! A second queue, for copies from the device to the host.
//!
//! wgpu has one queue a device, on which copies and kernels take turns. Most GPUs have engines that copy while kernels
//! run, and Vulkan shows them as a family of queues for transfers alone. Where there is one, large downloads go there,
//! recorded and submitted past wgpu.
//!
//! Two timeline semaphores keep the order. Each submission to wgpu's queue signals its number to `submitted`, and a
//! download waits for the number of the submission that it follows. Each download signals its number to `copied`, and
//! the next submission of its stream waits for that, since it may overwrite what is copied.
//!
//! Two rules make this sound without a transfer of ownership between the families of queues: device memory that is
//! copied here is made for both families ([`TransferQueue::make_buffer`]), and of the host memory that is written here
//! nothing has to be preserved.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::*},
    },
    time::Duration,
};

use ash::vk;
use wgpu::{
    Adapter, Buffer, BufferDescriptor, BufferUsages, CommandBuffer, Device, DeviceDescriptor, Queue,
    SubmissionIndex,
    hal::{api::Vulkan, vulkan},
};

use super::{host::Block, memory::DeviceBlock};

/// The family that wgpu's queue is of.
const MAIN_FAMILY: u32 = 0;

/// A queue for downloads of an open device. Nothing of it is ever destroyed, as its device never is.
pub(super) struct TransferQueue {
    device: ash::Device,
    queue: vk::Queue,
    families: [u32; 2],
    memory_types: Vec<vk::MemoryPropertyFlags>,
    submitted: vk::Semaphore,
    copied: vk::Semaphore,
    /// The number of the last submission to wgpu's queue. Who submits holds it.
    turn: Mutex<u64>,
    /// The last download that is known to have ended.
    known: AtomicU64,
    downloads: Mutex<Downloads>,
    /// It is wgpu's queue itself: for tests, where a driver has no other.
    is_main: bool,
}

struct Downloads {
    last: u64,
    pool: vk::CommandPool,
    idle: Vec<vk::CommandBuffer>,
    /// The oldest first, with what it uses.
    in_flight: VecDeque<(u64, vk::CommandBuffer, Used)>,
}

/// What a download uses, kept until it has ended.
pub(super) struct Used {
    pub(super) from: Arc<DeviceBlock>,
    pub(super) to: Arc<Block>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half-done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The family of queues that copy beside the others, where the adapter has one and everything else that this needs.
pub(super) fn family(adapter: &Adapter) -> Option<u32> {
    // SAFETY: the adapter is only asked for properties, and nothing of it is kept or destroyed.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let (instance, physical) = (hal.shared_instance().raw_instance(), hal.raw_physical_device());
    // SAFETY: the physical device belongs to the instance, and both live as long as the adapter.
    let (version, families) = unsafe {
        (
            instance.get_physical_device_properties(physical).api_version,
            instance.get_physical_device_queue_family_properties(physical),
        )
    };
    // Timeline semaphores are part of version 1.2, and wgpu switches them on where they are.
    if version.min(hal.shared_instance().instance_api_version()) < vk::API_VERSION_1_2 {
        return None;
    }
    let others = vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE;
    let video = vk::QueueFlags::VIDEO_DECODE_KHR | vk::QueueFlags::VIDEO_ENCODE_KHR;
    let is_for_copies = |family: &vk::QueueFamilyProperties| {
        family.queue_count > 0
            && family.queue_flags.contains(vk::QueueFlags::TRANSFER)
            && !family.queue_flags.intersects(others | video)
    };
    Some(families.iter().position(is_for_copies)? as u32)
}

/// Opens a device that has a queue of this family beside wgpu's. Nothing where the adapter is another API's.
pub(super) fn request(
    adapter: &Adapter,
    family: Option<u32>,
    descriptor: &DeviceDescriptor<'_>,
) -> Option<Result<(Device, Queue), String>> {
    // SAFETY: the adapter is not destroyed meanwhile.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let add = move |arguments: vulkan::CreateDeviceCallbackArgs<'_, '_, '_>| {
        arguments.queue_create_infos.extend(family.map(|family| {
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])
        }));
    };
    let DeviceDescriptor { required_features, required_limits, memory_hints, .. } = descriptor;
    // SAFETY: features and limits are the adapter's own, and the callback adds a queue of a family that it has and that
    // is not wgpu's.
    let opened = unsafe {
        hal.open_with_callback(*required_features, required_limits, memory_hints, Some(Box::new(add)))
    };
    Some(opened.map_err(|why| why.to_string()).and_then(|opened| {
        // SAFETY: the device was just made from this adapter, with these features and limits.
        unsafe { adapter.create_device_from_hal::<Vulkan>(opened, descriptor) }.map_err(|why| why.to_string())
    }))
}

impl TransferQueue {
    /// The first queue of a family that the device was opened with; wgpu's own where there is none.
    pub(super) fn new(adapter: &Adapter, device: &Device, family: Option<u32>) -> Result<Self, vk::Result> {
        let lost = vk::Result::ERROR_INITIALIZATION_FAILED;
        // SAFETY: nothing of either is destroyed here.
        let (adapter, hal) = unsafe { (adapter.as_hal::<Vulkan>(), device.as_hal::<Vulkan>()) };
        let (adapter, hal) = (adapter.ok_or(lost)?, hal.ok_or(lost)?);
        let raw = hal.raw_device().clone();
        let (instance, physical) = (adapter.shared_instance().raw_instance(), adapter.raw_physical_device());
        let families = [MAIN_FAMILY, family.unwrap_or(MAIN_FAMILY)];
        let mut timeline = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let semaphore = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
        let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER | vk::CommandPoolCreateFlags::TRANSIENT;
        let pool = vk::CommandPoolCreateInfo::default().flags(flags).queue_family_index(families[1]);
        // SAFETY: the physical device belongs to the instance; the device is alive, of version 1.2 with timeline
        // semaphores, and was opened with a queue of each family.
        unsafe {
            let memory = instance.get_physical_device_memory_properties(physical);
            Ok(TransferQueue {
                queue: raw.get_device_queue(families[1], 0),
                families,
                memory_types: memory.memory_types_as_slice().iter().map(|it| it.property_flags).collect(),
                submitted: raw.create_semaphore(&semaphore, None)?,
                copied: raw.create_semaphore(&semaphore, None)?,
                turn: Mutex::new(0),
                known: AtomicU64::new(0),
                downloads: Mutex::new(Downloads {
                    last: 0,
                    pool: raw.create_command_pool(&pool, None)?,
                    idle: Vec::new(),
                    in_flight: VecDeque::new(),
                }),
                is_main: family.is_none(),
                device: raw,
            })
        }
    }

    /// Submits to wgpu's queue, behind a download where one is named, and gives the submission its number.
    pub(super) fn submit(
        &self,
        queue: &Queue,
        commands: Option<CommandBuffer>,
        after: u64,
    ) -> (SubmissionIndex, u64) {
        let mut turn = lock(&self.turn);
        // SAFETY: the queue is not destroyed here.
        let Some(hal) = (unsafe { queue.as_hal::<Vulkan>() }) else { return (queue.submit(commands), *turn) };
        hal.add_signal_semaphore(self.submitted, Some(*turn + 1));
        if after > self.known.load(Acquire) {
            hal.add_wait_semaphore(self.copied, Some(after), vk::PipelineStageFlags::ALL_COMMANDS);
        }
        drop(hal);
        let submission = queue.submit(commands);
        // What wgpu refuses is not submitted, and must not be left for the next submission.
        // SAFETY: as above.
        let refused = unsafe { queue.as_hal::<Vulkan>() }.is_some_and(|hal| {
            hal.remove_wait_semaphore(self.copied);
            hal.remove_signal_semaphore(self.submitted)
        });
        if !refused {
            *turn += 1;
        }
        (submission, *turn)
    }

    /// Copies from device memory, which must be made for this queue, to host memory, once the given submission has
    /// ended. Gives the download its number.
    pub(super) fn download(
        &self,
        after: u64,
        used: Used,
        (from, to): (u64, u64),
        bytes: u64,
    ) -> Result<u64, vk::Result> {
        let lost = vk::Result::ERROR_DEVICE_LOST;
        // SAFETY: neither buffer is destroyed here, and both are kept until the copy has ended.
        let (source, target) = unsafe {
            let source = used.from.buffer.as_hal::<Vulkan>().ok_or(lost)?.raw_handle();
            (source, used.to.buffer.as_hal::<Vulkan>().ok_or(lost)?.raw_handle())
        };
        let mut downloads = lock(&self.downloads);
        self.release(&mut downloads)?;
        let commands = match downloads.idle.pop() {
            Some(commands) => commands,
            None => {
                let one = vk::CommandBufferAllocateInfo::default()
                    .command_pool(downloads.pool)
                    .command_buffer_count(1);
                // SAFETY: the pool is this device's, and used under its lock only.
                let made = unsafe { self.device.allocate_command_buffers(&one)? };
                made.into_iter().next().ok_or(lost)?
            }
        };
        let number = downloads.last + 1;
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let part = [vk::BufferCopy { src_offset: from, dst_offset: to, size: bytes }];
        let to_host = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        let (waits, signals, buffers) = ([self.submitted], [self.copied], [commands]);
        let (wait_values, signal_values) = ([after], [number]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&wait_values)
            .signal_semaphore_values(&signal_values);
        let submit = vk::SubmitInfo::default()
            .wait_semaphores(&waits)
            .wait_dst_stage_mask(&[vk::PipelineStageFlags::TRANSFER])
            .command_buffers(&buffers)
            .signal_semaphores(&signals)
            .push_next(&mut timeline);
        // SAFETY: the command buffer is not in flight; both parts are within their buffers (the caller checked); the
        // queue is used under this lock, or where it is wgpu's under the lock that every submission there takes; the
        // submission that is waited for was made before; numbers only grow.
        let queued = unsafe {
            let device = &self.device;
            device
                .begin_command_buffer(commands, &begin)
                .map(|()| {
                    device.cmd_copy_buffer(commands, source, target, &part);
                    let (copy, host) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::HOST);
                    device.cmd_pipeline_barrier(commands, copy, host, Default::default(), &to_host, &[], &[]);
                })
                .and_then(|()| device.end_command_buffer(commands))
                .and_then(|()| {
                    let _turn = self.is_main.then(|| lock(&self.turn));
                    device.queue_submit(self.queue, &[submit], vk::Fence::null())
                })
        };
        if let Err(why) = queued {
            downloads.idle.push(commands);
            return Err(why);
        }
        downloads.last = number;
        downloads.in_flight.push_back((number, commands, used));
        Ok(number)
    }

    /// Waits for a download, and lets go of what it used. False when it had not ended in time.
    pub(super) fn wait(&self, number: u64, timeout: Duration) -> Result<bool, vk::Result> {
        if self.known.load(Acquire) < number {
            let (semaphores, values) = ([self.copied], [number]);
            let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
            let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            // SAFETY: the semaphore is this device's and is never destroyed.
            match unsafe { self.device.wait_semaphores(&wait, timeout) } {
                Err(vk::Result::TIMEOUT) => return Ok(false),
                ended => ended?,
            }
        }
        // The lock makes sure that another thread which lets go of the same is done with it.
        self.release(&mut lock(&self.downloads))?;
        Ok(true)
    }

    /// Waits for all downloads.
    pub(super) fn wait_for_all(&self, timeout: Duration) -> Result<bool, vk::Result> {
        let last = lock(&self.downloads).last;
        self.wait(last, timeout)
    }

    /// Lets go of what ended downloads used.
    fn release(&self, downloads: &mut Downloads) -> Result<(), vk::Result> {
        if downloads.in_flight.is_empty() {
            return Ok(());
        }
        // SAFETY: the semaphore is this device's and is never destroyed.
        let ended = unsafe { self.device.get_semaphore_counter_value(self.copied)? };
        self.known.fetch_max(ended, AcqRel);
        while let Some((_, commands, used)) =
            downloads.in_flight.pop_front_if(|(number, ..)| *number <= ended)
        {
            downloads.idle.push(commands);
            drop(used);
        }
        Ok(())
    }

    /// Makes a buffer in device memory that both queues may use. Nothing where there is no room.
    pub(super) fn make_buffer(
        &self,
        device: &Device,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<Option<Buffer>, vk::Result> {
        use vk::Result as Code;
        match self.try_make_buffer(device, bytes, usage) {
            Err(
                Code::ERROR_OUT_OF_DEVICE_MEMORY
                | Code::ERROR_OUT_OF_HOST_MEMORY
                | Code::ERROR_TOO_MANY_OBJECTS,
            ) => Ok(None),
            made => made.map(Some),
        }
    }

    fn try_make_buffer(
        &self,
        device: &Device,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<Buffer, vk::Result> {
        let info = vk::BufferCreateInfo::default().size(bytes).usage(
            vk::BufferUsageFlags::STORAGE_BUFFER
                | vk::BufferUsageFlags::TRANSFER_SRC
                | vk::BufferUsageFlags::TRANSFER_DST,
        );
        let info = match self.is_main {
            true => info.sharing_mode(vk::SharingMode::EXCLUSIVE),
            false => info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&self.families),
        };
        // SAFETY: the device is alive. What is made is destroyed where the next step fails, and else given to wgpu, which
        // destroys it when nothing uses it any more.
        let buffer = unsafe {
            let buffer = self.device.create_buffer(&info, None)?;
            let needs = self.device.get_buffer_memory_requirements(buffer);
            let fits = |&index: &usize| {
                let local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
                needs.memory_type_bits & 1 << index != 0 && self.memory_types[index].contains(local)
            };
            // Every buffer can be in the device's memory; where a driver disagrees, its first choice.
            let memory_type = (0..self.memory_types.len()).find(fits).map(|index| index as u32);
            let memory_type = memory_type.unwrap_or(needs.memory_type_bits.trailing_zeros());
            let allocation =
                vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(memory_type);
            let memory = match self.device.allocate_memory(&allocation, None) {
                Ok(memory) => memory,
                Err(why) => {
                    self.device.destroy_buffer(buffer, None);
                    return Err(why);
                }
            };
            if let Err(why) = self.device.bind_buffer_memory(buffer, memory, 0) {
                self.device.destroy_buffer(buffer, None);
                self.device.free_memory(memory, None);
                return Err(why);
            }
            vulkan::Buffer::from_raw_managed(buffer, memory, 0, needs.size)
        };
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        // SAFETY: the buffer was just made on this device, with at least this usage and size.
        Ok(unsafe { device.create_buffer_from_hal::<Vulkan>(buffer, &descriptor) })
    }
}

impl fmt::Debug for TransferQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransferQueue({:?})", self.families)
    }
}
