//! A transfer queue: a second queue, for copies from the device to the host.
//!
//! wgpu has one queue per device, on which copies and kernels take turns. Most GPUs have copy engines that work while
//! kernels run, and Vulkan exposes them as a queue family for transfers only. If there is one, large downloads are
//! recorded and submitted to a queue of that family directly, not through wgpu.
//!
//! Two timeline semaphores keep the order. Each submission to wgpu's queue signals its number to `submitted`, and a
//! download waits for the number of the submission that it follows. Each download signals its number to `copied`, and the
//! next submission of its stream waits for that number, since it may overwrite the memory that is being copied.
//!
//! Every submission to either queue holds one lock, that of [`QueueState`]. Vulkan requires that only if both are the
//! same queue. NVIDIA's driver needs it always: concurrent submissions to two queues of one device break its internal
//! synchronization (ggml-org/llama.cpp#28830, HansKristian-Work/vkd3d-proton#1484).
//!
//! No transfer of ownership between the queue families is needed, for two reasons: device memory that is copied here is
//! created for both families ([`TransferQueue::make_buffer`]), and no earlier contents of the host memory must be
//! preserved, because a download begins at its first byte.
//!
//! Vulkan leaves this synchronization to the caller: the command pool and its buffers are used under the lock of
//! [`Downloads`], and the queues under that of [`QueueState`]. Buffers and memory are behind the `Arc`s of
//! [`DownloadResources`], which a download keeps until its semaphore is signalled. Semaphores, pool and device are never
//! destroyed.

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

use super::{host::StagingBlock, memory::DeviceBlock, open_device::TransferError};

/// The queue family of wgpu's queue.
const MAIN_FAMILY: u32 = 0;

/// A queue for the downloads of an open device. None of its handles is ever destroyed, because its device never is.
pub(super) struct TransferQueue {
    device: ash::Device,
    families: [u32; 2],
    memory_types: Vec<vk::MemoryPropertyFlags>,
    submitted: vk::Semaphore,
    copied: vk::Semaphore,
    queue_state: Mutex<QueueState>,
    /// The number of the last download that is known to have finished.
    last_finished: AtomicU64,
    /// Locked before `queue_state`, where both are locked.
    downloads: Mutex<Downloads>,
    /// Whether it is wgpu's queue itself: for tests on drivers that have no other queue.
    is_main: bool,
    /// The error of the next download.
    #[cfg(test)]
    pub(super) fault: Mutex<Option<vk::Result>>,
}

/// The state of both queues. A submission to either one holds its lock until the driver has accepted the submission.
struct QueueState {
    /// The number of the last submission to wgpu's queue.
    number: u64,
    /// The transfer queue, accessible only under this lock.
    queue: vk::Queue,
}

struct Downloads {
    last: u64,
    pool: vk::CommandPool,
    idle: Vec<vk::CommandBuffer>,
    /// Downloads with their numbers and resources, oldest first.
    in_flight: VecDeque<(u64, vk::CommandBuffer, DownloadResources)>,
}

/// The memory of a download, kept until the download has finished.
struct DownloadResources {
    _from: Arc<DeviceBlock>,
    _to: Arc<StagingBlock>,
}

impl From<vk::Result> for TransferError {
    fn from(code: vk::Result) -> Self {
        match code {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
            | vk::Result::ERROR_OUT_OF_HOST_MEMORY
            | vk::Result::ERROR_MEMORY_MAP_FAILED
            | vk::Result::ERROR_TOO_MANY_OBJECTS => TransferError::OutOfMemory,
            code => TransferError::Lost(code.to_string()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can panic between two changes that belong together.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the queue family for transfers only, if the adapter has one and supports timeline semaphores.
pub(super) fn family(adapter: &Adapter) -> Option<u32> {
    // SAFETY: the adapter is only queried; no handle of it is kept or destroyed.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let (instance, physical) = (hal.shared_instance().raw_instance(), hal.raw_physical_device());
    // SAFETY: the physical device belongs to the instance, and both live as long as the adapter.
    let (version, families) = unsafe {
        (
            instance.get_physical_device_properties(physical).api_version,
            instance.get_physical_device_queue_family_properties(physical),
        )
    };
    // Version 1.2 includes timeline semaphores, and wgpu enables them if the device has them.
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
    let family = families.iter().position(is_for_copies)? as u32;
    (family != MAIN_FAMILY).then_some(family)
}

/// Opens a device with a queue of this family beside wgpu's. Returns `None` if the adapter is not a Vulkan adapter.
pub(super) fn request(
    adapter: &Adapter,
    family: Option<u32>,
    descriptor: &DeviceDescriptor<'_>,
) -> Option<Result<(Device, Queue), String>> {
    // SAFETY: the adapter is not destroyed while `hal` is used.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let add = move |arguments: vulkan::CreateDeviceCallbackArgs<'_, '_, '_>| {
        arguments.queue_create_infos.extend(family.map(|family| {
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])
        }));
    };
    let DeviceDescriptor { required_features, required_limits, memory_hints, .. } = descriptor;
    // SAFETY: features and limits are the adapter's own, and the callback adds a queue of a family that the adapter has
    // and that is not wgpu's.
    let raw = unsafe {
        hal.open_with_callback(*required_features, required_limits, memory_hints, Some(Box::new(add)))
    };
    Some(raw.map_err(|why| why.to_string()).and_then(|raw| {
        // SAFETY: the device was just created from this adapter, with these features and limits.
        unsafe { adapter.create_device_from_hal::<Vulkan>(raw, descriptor) }.map_err(|why| why.to_string())
    }))
}

impl TransferQueue {
    /// Uses the first queue of a family that the device was opened with, or wgpu's own queue for `None`.
    pub(super) fn new(adapter: &Adapter, device: &Device, family: Option<u32>) -> Result<Self, vk::Result> {
        let lost = vk::Result::ERROR_INITIALIZATION_FAILED;
        // SAFETY: neither adapter nor device is destroyed here.
        let (adapter, hal) = unsafe { (adapter.as_hal::<Vulkan>(), device.as_hal::<Vulkan>()) };
        let (adapter, hal) = (adapter.ok_or(lost)?, hal.ok_or(lost)?);
        if hal.queue_family_index() != MAIN_FAMILY {
            return Err(lost);
        }
        let raw = hal.raw_device().clone();
        let (instance, physical) = (adapter.shared_instance().raw_instance(), adapter.raw_physical_device());
        let families = [MAIN_FAMILY, family.unwrap_or(MAIN_FAMILY)];
        let mut timeline = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let semaphore = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
        let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER | vk::CommandPoolCreateFlags::TRANSIENT;
        let pool = vk::CommandPoolCreateInfo::default().flags(flags).queue_family_index(families[1]);
        // SAFETY: the physical device belongs to the instance; the device is alive, of version 1.2 with timeline
        // semaphores (`family` checked), and was opened with a queue of each family.
        unsafe {
            let memory = instance.get_physical_device_memory_properties(physical);
            Ok(TransferQueue {
                families,
                memory_types: memory.memory_types_as_slice().iter().map(|it| it.property_flags).collect(),
                submitted: raw.create_semaphore(&semaphore, None)?,
                copied: raw.create_semaphore(&semaphore, None)?,
                queue_state: Mutex::new(QueueState {
                    number: 0,
                    queue: raw.get_device_queue(families[1], 0),
                }),
                last_finished: AtomicU64::new(0),
                downloads: Mutex::new(Downloads {
                    last: 0,
                    pool: raw.create_command_pool(&pool, None)?,
                    idle: Vec::new(),
                    in_flight: VecDeque::new(),
                }),
                is_main: family.is_none(),
                #[cfg(test)]
                fault: Mutex::default(),
                device: raw,
            })
        }
    }

    /// Submits to wgpu's queue, after the download of the number `after` (0 for none). Returns the submission and its
    /// number.
    pub(super) fn submit(
        &self,
        queue: &Queue,
        commands: Option<CommandBuffer>,
        after: u64,
    ) -> (SubmissionIndex, u64) {
        let mut pending = PendingSubmission::new(self, queue, after);
        let submission = queue.submit(commands);
        (submission, pending.finish())
    }

    /// Copies device memory, which [`make_buffer`](TransferQueue::make_buffer) created, to the beginning of host memory
    /// once the submission of the number `after` has finished. Returns the number of the download. If it fails, nothing
    /// was started.
    pub(super) fn download(
        &self,
        after: u64,
        (from, offset): (&Arc<DeviceBlock>, u64),
        to: &Arc<StagingBlock>,
        bytes: u64,
    ) -> Result<u64, TransferError> {
        let lost = vk::Result::ERROR_DEVICE_LOST;
        // SAFETY: neither buffer is destroyed here, and `DownloadResources` keeps both until the copy has finished.
        let (source, target) = unsafe {
            let source = from.buffer.as_hal::<Vulkan>().ok_or(lost)?.raw_handle();
            (source, to.buffer.as_hal::<Vulkan>().ok_or(lost)?.raw_handle())
        };
        let mut downloads = lock(&self.downloads);
        self.release(&mut downloads)?;
        // The host orders this download after other streams' work, if at all. Only a semaphore wait makes the results of
        // that work visible to this queue, so the download also waits for all submissions that have finished, which takes
        // no time.
        // SAFETY: the semaphore belongs to this device and is never destroyed.
        let ended = unsafe { self.device.get_semaphore_counter_value(self.submitted)? };
        let commands = self.take_commands(&mut downloads)?;
        let number = downloads.last + 1;
        let part = vk::BufferCopy { src_offset: offset, dst_offset: 0, size: bytes };
        // SAFETY: `take_commands` returned a command buffer that is not in flight, and its pool is locked; both regions
        // are within their buffers (the caller checked); submission `after` was made before; numbers only grow.
        let queued = unsafe {
            self.record(commands, source, target, part)
                .and_then(|()| self.submit_download(commands, after.max(ended), number))
        };
        if let Err(why) = queued {
            downloads.idle.push(commands);
            return Err(why.into());
        }
        downloads.last = number;
        let used = DownloadResources { _from: from.clone(), _to: to.clone() };
        downloads.in_flight.push_back((number, commands, used));
        Ok(number)
    }

    fn take_commands(&self, downloads: &mut Downloads) -> Result<vk::CommandBuffer, vk::Result> {
        if let Some(commands) = downloads.idle.pop() {
            return Ok(commands);
        }
        let one =
            vk::CommandBufferAllocateInfo::default().command_pool(downloads.pool).command_buffer_count(1);
        // SAFETY: the pool belongs to this device, and the caller holds its lock.
        let made = unsafe { self.device.allocate_command_buffers(&one)? };
        made.into_iter().next().ok_or(vk::Result::ERROR_OUT_OF_HOST_MEMORY)
    }

    /// Records a copy, with a barrier that makes it visible to the host.
    ///
    /// # Safety
    /// The command buffer is not in flight, its pool is locked, and the copied range is within both buffers.
    unsafe fn record(
        &self,
        commands: vk::CommandBuffer,
        source: vk::Buffer,
        target: vk::Buffer,
        part: vk::BufferCopy,
    ) -> Result<(), vk::Result> {
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let to_host = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        let (copy, host) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::HOST);
        // SAFETY: the caller promises what these calls need.
        unsafe {
            self.device.begin_command_buffer(commands, &begin)?;
            self.device.cmd_copy_buffer(commands, source, target, &[part]);
            self.device.cmd_pipeline_barrier(commands, copy, host, Default::default(), &to_host, &[], &[]);
            self.device.end_command_buffer(commands)
        }
    }

    /// Submits a recorded download, after the submission of the number `after`.
    ///
    /// # Safety
    /// That submission was made before, and `number` is above that of every earlier download.
    unsafe fn submit_download(
        &self,
        commands: vk::CommandBuffer,
        after: u64,
        number: u64,
    ) -> Result<(), vk::Result> {
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
        let state = lock(&self.queue_state);
        #[cfg(test)]
        if let Some(fault) = lock(&self.fault).take() {
            return Err(fault);
        }
        // SAFETY: the lock of `QueueState` is held, and the caller promises the rest.
        unsafe { self.device.queue_submit(state.queue, &[submit], vk::Fence::null()) }
    }

    /// Waits for a download, and drops its resources. Returns false on timeout.
    pub(super) fn wait(&self, number: u64, timeout: Duration) -> Result<bool, TransferError> {
        if self.last_finished.load(Acquire) < number {
            let (semaphores, values) = ([self.copied], [number]);
            let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
            let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            // SAFETY: the semaphore belongs to this device and is never destroyed.
            match unsafe { self.device.wait_semaphores(&wait, timeout) } {
                Err(vk::Result::TIMEOUT) => return Ok(false),
                ended => ended?,
            }
        }
        // The lock also waits for another thread that is dropping the same resources.
        self.release(&mut lock(&self.downloads))?;
        Ok(true)
    }

    pub(super) fn wait_for_all(&self, timeout: Duration) -> Result<bool, TransferError> {
        let last = lock(&self.downloads).last;
        self.wait(last, timeout)
    }

    /// Drops the resources of finished downloads.
    fn release(&self, downloads: &mut Downloads) -> Result<(), vk::Result> {
        if downloads.in_flight.is_empty() {
            return Ok(());
        }
        // SAFETY: the semaphore belongs to this device and is never destroyed.
        let ended = unsafe { self.device.get_semaphore_counter_value(self.copied)? };
        self.last_finished.fetch_max(ended, AcqRel);
        while let Some((_, commands, used)) =
            downloads.in_flight.pop_front_if(|(number, ..)| *number <= ended)
        {
            downloads.idle.push(commands);
            drop(used);
        }
        Ok(())
    }

    /// Creates a buffer in device memory that both queues may use.
    pub(super) fn make_buffer(
        &self,
        device: &Device,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<Buffer, TransferError> {
        let info = vk::BufferCreateInfo::default().size(bytes).usage(
            vk::BufferUsageFlags::STORAGE_BUFFER
                | vk::BufferUsageFlags::TRANSFER_SRC
                | vk::BufferUsageFlags::TRANSFER_DST,
        );
        let info = match self.is_main {
            true => info.sharing_mode(vk::SharingMode::EXCLUSIVE),
            false => info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&self.families),
        };
        // SAFETY: the device is alive. Buffer and memory are destroyed below if a later step fails, and are otherwise
        // given to wgpu, which destroys them when they are no longer used.
        let buffer = unsafe {
            let buffer = self.device.create_buffer(&info, None)?;
            let needs = self.device.get_buffer_memory_requirements(buffer);
            let fits = |&index: &usize| {
                let local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
                needs.memory_type_bits & 1 << index != 0 && self.memory_types[index].contains(local)
            };
            // Every buffer can be in device memory; if a driver says otherwise, its first memory type is used.
            let memory_type = (0..self.memory_types.len()).find(fits).map(|index| index as u32);
            let memory_type = memory_type.unwrap_or(needs.memory_type_bits.trailing_zeros());
            let allocation =
                vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(memory_type);
            let memory = match self.device.allocate_memory(&allocation, None) {
                Ok(memory) => memory,
                Err(why) => {
                    self.device.destroy_buffer(buffer, None);
                    return Err(why.into());
                }
            };
            if let Err(why) = self.device.bind_buffer_memory(buffer, memory, 0) {
                self.device.destroy_buffer(buffer, None);
                self.device.free_memory(memory, None);
                return Err(why.into());
            }
            vulkan::Buffer::from_raw_managed(buffer, memory, 0, needs.size)
        };
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        // SAFETY: the buffer was just created on this device, with at least this usage and size.
        Ok(unsafe { device.create_buffer_from_hal::<Vulkan>(buffer, &descriptor) })
    }
}

/// A submission to wgpu's queue in progress, with the semaphores that it waits for and signals. wgpu takes them with the
/// submission. If it refuses the submission or unwinds, the remaining ones must be removed before the next.
struct PendingSubmission<'a> {
    transfers: &'a TransferQueue,
    queue: &'a Queue,
    state: MutexGuard<'a, QueueState>,
    is_finished: bool,
}

impl<'a> PendingSubmission<'a> {
    fn new(transfers: &'a TransferQueue, queue: &'a Queue, after: u64) -> Self {
        let state = lock(&transfers.queue_state);
        // SAFETY: the queue is not destroyed here.
        let hal = unsafe { queue.as_hal::<Vulkan>() };
        if let Some(hal) = &hal {
            hal.add_signal_semaphore(transfers.submitted, Some(state.number + 1));
            if after > transfers.last_finished.load(Acquire) {
                let all = vk::PipelineStageFlags::ALL_COMMANDS;
                hal.add_wait_semaphore(transfers.copied, Some(after), all);
            }
        }
        PendingSubmission { transfers, queue, state, is_finished: hal.is_none() }
    }

    /// Removes the semaphores that were not used, and counts the submission if it was made. Returns the number of the
    /// last one.
    fn finish(&mut self) -> u64 {
        if !std::mem::replace(&mut self.is_finished, true)
            // SAFETY: the queue is not destroyed here.
            && let Some(hal) = unsafe { self.queue.as_hal::<Vulkan>() }
        {
            hal.remove_wait_semaphore(self.transfers.copied);
            let was_refused = hal.remove_signal_semaphore(self.transfers.submitted);
            self.state.number += u64::from(!was_refused);
        }
        self.state.number
    }
}

impl Drop for PendingSubmission<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for TransferQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransferQueue({:?})", self.families)
    }
}
