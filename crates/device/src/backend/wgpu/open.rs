//! Opening a device, and the `Backend` of an open one.

use std::sync::Arc;

use wgpu::{Adapter, DeviceDescriptor, MemoryHints};

use super::{
    super::{
        Backend, Contents, Direction, HostMemory, Memory, MemoryUsage, ProgramBackend, StreamBackend,
        block_cache::BlockCache,
    },
    clock::Clock,
    describe,
    failure::{DeviceFailure, catch_panic},
    host::{StagingCaches, WgpuHostMemory},
    idle::{self, RawDevice},
    instance,
    mapped_memory::HostAllocator,
    memory::WgpuMemory,
    open_device::OpenDevice,
    pipeline_cache,
    program::WgpuProgram,
    stream::WgpuStream,
    transfer::{self, TransferQueue},
};
use crate::{
    describe::{Capabilities, Description, DeviceId, Features},
    error::{Error, Result},
    kernel::Kernel,
};

/// The cache of device memory keeps at most the device's memory divided by this.
const CACHE_DIVISOR: u64 = 4;

/// Maximum bytes in the cache of a device that does not report the size of its memory.
const DEFAULT_CACHE_BYTES: u64 = 1 << 30;

#[derive(Debug)]
pub(super) struct WgpuBackend {
    pub(super) open: Arc<OpenDevice>,
}

impl WgpuBackend {
    /// Opens an adapter's device with all features that the adapter has and this crate uses.
    pub(super) fn open(description: &Description, adapter: &Adapter) -> Result<Self> {
        Ok(Self::of(open_device(description, adapter)?))
    }

    /// Wraps an open device, and lists it so that it frees its cached memory when another opening of the device has none
    /// left.
    pub(super) fn of(open: OpenDevice) -> Self {
        let open = Arc::new(open);
        idle::register(&open);
        WgpuBackend { open }
    }
}

/// Opens a new device, or takes an idle one.
pub(super) fn open_device(description: &Description, adapter: &Adapter) -> Result<OpenDevice> {
    let id = description.id.clone();
    let (features, ask) = describe::features(adapter.features());
    let limits = adapter.limits();
    let raw = match idle::take(&id) {
        Some(raw) => raw,
        None => request(&id, adapter, ask, limits.clone())?,
    };
    Ok(open_device_from(description, adapter, raw, (features, ask), &limits))
}

/// Builds an open device from a `wgpu::Device` that was requested with these features and limits.
pub(super) fn open_device_from(
    description: &Description,
    adapter: &Adapter,
    raw: RawDevice,
    (features, asked): (Features, wgpu::Features),
    limits: &wgpu::Limits,
) -> OpenDevice {
    let RawDevice { device, queue, failure, transfers } = raw;
    OpenDevice {
        host_allocator: HostAllocator::new(&device),
        mapping_lock: Default::default(),
        clock: Clock::new(&queue),
        kind: description.kind,
        capabilities: describe::capabilities(features, asked, limits, &adapter.get_info()),
        device,
        is_external: false,
        queue,
        failure,
        cache: Arc::new(BlockCache::new(
            description.memory_bytes.map_or(DEFAULT_CACHE_BYTES, |bytes| bytes / CACHE_DIVISOR),
        )),
        transfers,
        staging: StagingCaches::new(),
        modules: Default::default(),
        shared_with_caller: Default::default(),
        pipeline_key: pipeline_cache::device_key(&adapter.get_info(), asked),
        id: description.id.clone(),
    }
}

fn request(id: &DeviceId, adapter: &Adapter, ask: wgpu::Features, limits: wgpu::Limits) -> Result<RawDevice> {
    let descriptor = DeviceDescriptor {
        required_features: ask,
        required_limits: limits,
        // Blocks are cached, so allocating small ones from the driver is rare.
        memory_hints: MemoryHints::MemoryUsage,
        ..DeviceDescriptor::default()
    };
    let _lock = instance::driver_lock();
    let refused = |why: String| Error::lost(id, "opening the device", why);
    let family = transfer::family(adapter);
    let request = || match transfer::request(adapter, family, &descriptor) {
        Some(raw) => raw,
        None => pollster::block_on(adapter.request_device(&descriptor)).map_err(|why| why.to_string()),
    };
    let (device, queue) = catch_panic(request).map_err(refused)?.map_err(refused)?;
    let transfers = family.and_then(|family| {
        TransferQueue::new(adapter, &device, Some(family))
            .inspect_err(|why| {
                tracing::warn!("{id}: no transfer queue, so downloads do not overlap with kernels: {why}")
            })
            .ok()
    });

    let failure = Arc::new(DeviceFailure::default());
    let (lost, uncaught) = (failure.clone(), failure.clone());
    device.set_device_lost_callback(move |reason, message| lost.lose(&format!("{reason:?} {message}")));
    device.on_uncaptured_error(Arc::new(move |error| uncaught.store(error)));
    Ok(RawDevice { device, queue, failure, transfers: transfers.map(Arc::new) })
}

impl Backend for WgpuBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.open.capabilities
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(WgpuMemory::allocate(&self.open, bytes, contents)?))
    }

    fn adopt_wgpu(&self, buffer: &wgpu::Buffer) -> Result<Option<Arc<dyn Memory>>> {
        // Evener's own devices pass raw handles of their buffers to Vulkan, so every buffer of theirs must be Evener's
        // too.
        if !self.open.is_external {
            return Ok(None);
        }
        Ok(Some(WgpuMemory::adopt(&self.open, buffer)?))
    }

    fn allocate_host(&self, bytes: u64, direction: Direction) -> Result<Box<dyn HostMemory>> {
        Ok(Box::new(WgpuHostMemory::allocate(&self.open, bytes, direction)?))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn ProgramBackend>> {
        Ok(Arc::new(WgpuProgram::compile(&self.open, kernel)?))
    }

    fn stream(&self) -> Result<Box<dyn StreamBackend>> {
        self.open.check("making a stream")?;
        Ok(Box::new(WgpuStream::new(self.open.clone())))
    }

    fn memory(&self) -> MemoryUsage {
        [Direction::Upload, Direction::Download]
            .into_iter()
            .map(|direction| self.open.staging.usage(direction))
            .fold(self.open.cache.usage(), MemoryUsage::with_pinned)
    }

    fn trim(&self) {
        self.open.trim();
    }
}
