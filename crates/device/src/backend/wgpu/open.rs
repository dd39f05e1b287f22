//! Opening a device, and what an open one can be asked for.

use std::sync::Arc;

use wgpu::{Adapter, DeviceDescriptor, MemoryHints};

use super::{
    super::{
        Backend, Contents, Direction, HostMemory, Memory, MemoryUsage, Program, StreamBackend,
        block_cache::BlockCache,
    },
    clock::Clock,
    describe,
    failure::{DeviceFailure, catch_panic},
    host::{Staging, WgpuHostMemory},
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

/// The cache keeps this part of the device's memory at most.
const CACHE_DIVISOR: u64 = 4;

/// The cache keeps so many bytes at most where the device does not tell how much memory it has.
const DEFAULT_CACHE_BYTES: u64 = 1 << 30;

/// An open device.
#[derive(Debug)]
pub(super) struct WgpuBackend {
    pub(super) open: Arc<OpenDevice>,
}

impl WgpuBackend {
    /// Takes open of an adapter's device with everything that it can do and that this crate has a use for.
    pub(super) fn open_device(description: &Description, adapter: &Adapter) -> Result<Self> {
        Ok(Self::of(open_device(description, adapter)?))
    }

    /// An open device, which gives up what it keeps for reuse where another opening of the same device has no room.
    pub(super) fn of(open: OpenDevice) -> Self {
        let open = Arc::new(open);
        idle::register(&open);
        WgpuBackend { open }
    }
}

/// A open on a new or an idle device.
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

/// A open on a device that was raw with these features and limits.
pub(super) fn open_device_from(
    description: &Description,
    adapter: &Adapter,
    raw: RawDevice,
    (features, asked): (Features, wgpu::Features),
    limits: &wgpu::Limits,
) -> OpenDevice {
    let RawDevice { device, queue, failure, transfers } = raw;
    OpenDevice {
        pages: HostAllocator::new(&device),
        gate: Default::default(),
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
        staging: Staging::new(),
        modules: Default::default(),
        pipeline_key: pipeline_cache::device_key(&adapter.get_info(), asked),
        id: description.id.clone(),
    }
}

/// Asks the driver for a device.
fn request(id: &DeviceId, adapter: &Adapter, ask: wgpu::Features, limits: wgpu::Limits) -> Result<RawDevice> {
    let descriptor = DeviceDescriptor {
        required_features: ask,
        required_limits: limits,
        // Blocks are kept on the cache, so asking the driver for small pieces costs little.
        memory_hints: MemoryHints::MemoryUsage,
        ..DeviceDescriptor::default()
    };
    let _turn = instance::turn();
    let refused = |why: String| Error::lost(id, "opening it", why);
    let family = transfer::family(adapter);
    let request = || match transfer::request(adapter, family, &descriptor) {
        Some(raw) => raw,
        None => pollster::block_on(adapter.request_device(&descriptor)).map_err(|why| why.to_string()),
    };
    let (device, queue) = catch_panic(request).map_err(refused)?.map_err(refused)?;
    let transfers = family.and_then(|family| {
        TransferQueue::new(adapter, &device, Some(family))
            .inspect_err(|why| tracing::warn!("{id}: downloads do not overlap with kernels: {why}"))
            .ok()
    });

    let failure = Arc::new(DeviceFailure::default());
    let (lost, uncaught) = (failure.clone(), failure.clone());
    device.set_device_lost_callback(move |reason, message| lost.lose(&format!("{reason:?} {message}")));
    device.on_uncaptured_error(Arc::new(move |error| uncaught.take(error)));
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
        // A device of Evener's own uses raw handles of its buffers, of which it has to know that they are its own.
        if !self.open.is_external {
            return Ok(None);
        }
        Ok(Some(Arc::new(WgpuMemory::adopt(&self.open, buffer.clone())?)))
    }

    fn allocate_host(&self, bytes: u64, direction: Direction) -> Result<Box<dyn HostMemory>> {
        Ok(Box::new(WgpuHostMemory::allocate(&self.open, bytes, direction)?))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Program>> {
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
