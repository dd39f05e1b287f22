//! Opening a device, and what an open one can be asked for.

use std::sync::Arc;

use wgpu::{Adapter, DeviceDescriptor, MemoryHints};

use super::{
    super::{
        Backend, Contents, Direction, HostMemory, Memory, MemoryUsage, Program, StreamBackend, shelf::Shelf,
    },
    clock::Clock,
    describe,
    failure::{Failure, catch},
    hold::Hold,
    host::{Staging, WgpuHostMemory},
    idle::{self, Opened},
    instance,
    memory::WgpuMemory,
    pages::PageSource,
    pipelines,
    program::WgpuProgram,
    stream::WgpuStream,
    transfer::{self, TransferQueue},
};
use crate::{
    describe::{Capabilities, Description, DeviceId, Features},
    error::{Error, Result},
    kernel::Kernel,
};

/// The shelf keeps this part of the device's memory at most.
const SHELVED_PART: u64 = 4;

/// The shelf keeps so many bytes at most where the device does not tell how much memory it has.
const SHELVED_BYTES: u64 = 1 << 30;

/// An open device.
#[derive(Debug)]
pub(super) struct WgpuBackend {
    pub(super) hold: Arc<Hold>,
}

impl WgpuBackend {
    /// Takes hold of an adapter's device with everything that it can do and that this crate has a use for.
    pub(super) fn open(description: &Description, adapter: &Adapter) -> Result<Self> {
        Ok(Self::of(hold(description, adapter)?))
    }

    /// An open device, which gives up what it keeps for reuse where another opening of the same device has no room.
    pub(super) fn of(hold: Hold) -> Self {
        let hold = Arc::new(hold);
        idle::note(&hold);
        WgpuBackend { hold }
    }
}

/// A hold on a new or an idle device.
pub(super) fn hold(description: &Description, adapter: &Adapter) -> Result<Hold> {
    let id = description.id.clone();
    let (features, ask) = describe::features(adapter.features());
    let limits = adapter.limits();
    let opened = match idle::take(&id) {
        Some(opened) => opened,
        None => request(&id, adapter, ask, limits.clone())?,
    };
    Ok(hold_of(description, adapter, opened, (features, ask), &limits))
}

/// A hold on a device that was opened with these features and limits.
pub(super) fn hold_of(
    description: &Description,
    adapter: &Adapter,
    opened: Opened,
    (features, asked): (Features, wgpu::Features),
    limits: &wgpu::Limits,
) -> Hold {
    let Opened { device, queue, failure, transfers } = opened;
    Hold {
        pages: PageSource::new(&device),
        gate: Default::default(),
        clock: Clock::new(&queue),
        kind: description.kind,
        capabilities: describe::capabilities(features, asked, limits, &adapter.get_info()),
        device,
        is_callers: false,
        queue,
        failure,
        shelf: Arc::new(Shelf::new(
            description.memory_bytes.map_or(SHELVED_BYTES, |bytes| bytes / SHELVED_PART),
        )),
        transfers,
        staging: Staging::new(),
        modules: Default::default(),
        known: Default::default(),
        pipelines: pipelines::device_key(&adapter.get_info(), asked),
        id: description.id.clone(),
    }
}

/// Asks the driver for a device.
fn request(id: &DeviceId, adapter: &Adapter, ask: wgpu::Features, limits: wgpu::Limits) -> Result<Opened> {
    let descriptor = DeviceDescriptor {
        required_features: ask,
        required_limits: limits,
        // Blocks are kept on the shelf, so asking the driver for small pieces costs little.
        memory_hints: MemoryHints::MemoryUsage,
        ..DeviceDescriptor::default()
    };
    let _turn = instance::turn();
    let refused = |why: String| Error::lost(id, "opening it", why);
    let family = transfer::family(adapter);
    let request = || match transfer::request(adapter, family, &descriptor) {
        Some(opened) => opened,
        None => pollster::block_on(adapter.request_device(&descriptor)).map_err(|why| why.to_string()),
    };
    let (device, queue) = catch(request).map_err(refused)?.map_err(refused)?;
    let transfers = family.and_then(|family| {
        TransferQueue::new(adapter, &device, Some(family))
            .inspect_err(|why| tracing::warn!("{id}: downloads do not overlap with kernels: {why}"))
            .ok()
    });

    let failure = Arc::new(Failure::default());
    let (lost, uncaught) = (failure.clone(), failure.clone());
    device.set_device_lost_callback(move |reason, message| lost.lose(&format!("{reason:?} {message}")));
    device.on_uncaptured_error(Arc::new(move |error| uncaught.take(error)));
    Ok(Opened { device, queue, failure, transfers: transfers.map(Arc::new) })
}

impl Backend for WgpuBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.hold.capabilities
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(WgpuMemory::allocate(&self.hold, bytes, contents)?))
    }

    fn adopt_wgpu(&self, buffer: &wgpu::Buffer) -> Result<Option<Arc<dyn Memory>>> {
        // A device of Evener's own uses raw handles of its buffers, of which it has to know that they are its own.
        if !self.hold.is_callers {
            return Ok(None);
        }
        Ok(Some(WgpuMemory::adopt(&self.hold, buffer)?))
    }

    fn allocate_host(&self, bytes: u64, direction: Direction) -> Result<Box<dyn HostMemory>> {
        Ok(Box::new(WgpuHostMemory::allocate(&self.hold, bytes, direction)?))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(WgpuProgram::compile(&self.hold, kernel)?))
    }

    fn stream(&self) -> Result<Box<dyn StreamBackend>> {
        self.hold.check("making a stream")?;
        Ok(Box::new(WgpuStream::new(self.hold.clone())))
    }

    fn memory(&self) -> MemoryUsage {
        [Direction::Upload, Direction::Download]
            .into_iter()
            .map(|direction| self.hold.staging.memory_use(direction))
            .fold(self.hold.shelf.memory_use(), MemoryUsage::with_pinned)
    }

    fn trim(&self) {
        self.hold.trim();
    }
}
