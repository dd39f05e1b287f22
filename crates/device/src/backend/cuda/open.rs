//! An open card or partition: its memory, its streams and its compiled kernels.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cudarc::driver::sys::{CUstream, CUstream_flags};

use super::{
    card::Card,
    context::{DeviceContext, DriverGuard},
    event::{self, EventPool, PooledEvent},
    memory::{CudaHostMemory, CudaMemory, DeviceBlock, HostBlock},
    partition::GreenContext,
    program::{self, Modules},
    stream::{CudaStream, StreamResources},
};
use crate::{
    backend::{
        Address, Backend, Contents, Direction, HostMemory, Memory, MemoryUsage, ProgramBackend, Region,
        StreamBackend, block_cache::BlockCache, cpu::pinned_cap,
    },
    describe::Capabilities,
    error::{Error, Result},
    kernel::Kernel,
};

/// How long zeroing a new buffer may take: a card that does not respond must not hang the host.
const ZEROING_TIMEOUT: Duration = Duration::from_secs(60);

/// How long closing a device waits for work in flight.
const CLOSING_TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum number of idle streams that are kept for reuse.
const MAX_IDLE_STREAMS: usize = 8;

/// The cache of device memory keeps at most the card's memory divided by this.
const CACHE_DIVISOR: u64 = 4;

/// An open card or partition: the state that its streams, buffers and kernels share.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) context: DeviceContext,
    pub(super) card: Arc<Card>,
    pub(super) device_cache: BlockCache<DeviceBlock>,
    pub(super) host_cache: BlockCache<HostBlock>,
    pub(super) events: EventPool,
    pub(super) modules: Modules,
    idle: Mutex<Vec<RawStream>>,
    /// Work of dropped streams.
    unfinished: Mutex<Vec<UnfinishedWork>>,
    /// The multiprocessors that its streams run on, for a partition. Destroyed after the streams.
    green: Option<Arc<GreenContext>>,
}

/// The driver's handle of a stream.
#[derive(Debug)]
pub(super) struct RawStream(pub(super) CUstream);

// SAFETY: the driver allows a stream in any thread to which the stream's context is current.
unsafe impl Send for RawStream {}
// SAFETY: as for `Send`; the driver locks streams itself.
unsafe impl Sync for RawStream {}

/// Work in flight of a stream that was dropped, with the resources that the work uses.
#[derive(Debug)]
pub(super) struct UnfinishedWork {
    pub(super) end: PooledEvent,
    pub(super) _resources: StreamResources,
}

impl OpenDevice {
    pub(super) fn take_stream(&self, guard: &DriverGuard<'_>) -> Result<RawStream> {
        if let Some(stream) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(stream);
        }
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = std::ptr::null_mut();
        match &self.green {
            Some(green) => green.stream(guard, flags, &mut raw)?,
            // SAFETY: the guard's context is current; the pointer is to a live pointer.
            None => guard.check(unsafe { (guard.driver.stream_create)(&mut raw, flags) })?,
        }
        Ok(RawStream(raw))
    }

    /// Keeps a stream without work in flight for reuse, or destroys it.
    pub(super) fn return_stream(&self, stream: RawStream) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_STREAMS {
            return idle.push(stream);
        }
        drop(idle);
        if let Ok(guard) = self.context.enter("closing a stream") {
            // SAFETY: `take_stream` created the stream in this context, and this was its only owner.
            unsafe { (guard.driver.stream_destroy)(stream.0) };
        }
    }

    /// Keeps the resources that a dropped stream's work still uses.
    pub(super) fn keep_unfinished(&self, work: UnfinishedWork) {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner).push(work);
    }

    /// Drops the resources of finished work. Returns whether no work is left.
    pub(super) fn release_finished(&self) -> bool {
        let finished: Vec<UnfinishedWork>;
        let left;
        {
            let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
            if unfinished.is_empty() {
                return true;
            }
            // After a loss nothing runs, and dropping the resources calls no driver function.
            let guard = self.context.enter("closing a stream").ok();
            let has_finished = |work: &mut UnfinishedWork| match &guard {
                Some(guard) => work.end.query(guard).unwrap_or(self.context.primary.is_lost()),
                None => true,
            };
            finished = unfinished.extract_if(.., has_finished).collect();
            left = unfinished.len();
        }
        // Outside the lock: these may be the last references to other objects of this device.
        drop(finished);
        left == 0
    }

    /// Frees the blocks above the caps of the caches. Freeing waits for work in flight, which dropping a buffer must not
    /// do, so this is done when a new block is allocated.
    pub(super) fn free_excess(&self, guard: &DriverGuard<'_>) {
        if self.context.primary.has_unfinished_work() {
            return;
        }
        self.device_cache.take_excess().into_iter().for_each(|block| block.free(guard));
        self.host_cache.take_excess().into_iter().for_each(|block| block.free(guard));
    }

    /// Frees the cached memory of every device that is open on this card: they share its memory.
    pub(super) fn clear_all_caches(&self, guard: &DriverGuard<'_>) {
        self.clear_caches(guard);
        for open in self.context.primary.open_devices().iter().filter(|open| !std::ptr::eq(&***open, self)) {
            open.clear_caches(guard);
        }
    }

    pub(super) fn clear_caches(&self, guard: &DriverGuard<'_>) {
        self.release_finished();
        if self.context.primary.has_unfinished_work() {
            return;
        }
        self.device_cache.clear().into_iter().for_each(|block| block.free(guard));
        self.host_cache.clear().into_iter().for_each(|block| block.free(guard));
    }
}

impl Drop for OpenDevice {
    // Every stream, buffer and kernel holds this, so none is left. After a loss the driver has freed everything itself.
    fn drop(&mut self) {
        if self.context.primary.has_unfinished_work() {
            return;
        }
        let Ok(guard) = self.context.enter("closing it") else { return };
        for stream in std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            // SAFETY: `take_stream` created the stream in this context, and this was its only owner.
            unsafe { (guard.driver.stream_destroy)(stream.0) };
        }
        self.clear_caches(&guard);
        self.events.clear(&guard);
        self.modules.clear(&guard);
    }
}

#[derive(Debug)]
pub(super) struct CudaBackend {
    open: Arc<OpenDevice>,
}

impl CudaBackend {
    /// Opens a card, or the partition `green` of it. Fails with `Lost` if the card does not work.
    pub(super) fn open(
        context: DeviceContext,
        card: Arc<Card>,
        green: Option<Arc<GreenContext>>,
    ) -> Result<Self> {
        let open = Arc::new(OpenDevice {
            context,
            device_cache: BlockCache::new(card.capabilities.max_buffer_bytes / CACHE_DIVISOR),
            card,
            host_cache: BlockCache::new(pinned_cap()),
            events: EventPool::default(),
            modules: Modules::default(),
            idle: Mutex::default(),
            unfinished: Mutex::default(),
            green,
        });
        open.context.primary.register(&open);
        // A context that was recreated after a loss fails here if it is still broken. The stream is used later.
        let guard = open.context.enter("opening the device")?;
        let stream = open.take_stream(&guard)?;
        // SAFETY: the stream is alive and was created in this context.
        event::ready(&guard, unsafe { (guard.driver.stream_query)(stream.0) })?;
        drop(guard);
        open.return_stream(stream);
        Ok(CudaBackend { open })
    }

    fn zero(&self, memory: Arc<dyn Memory>) -> Result<Arc<dyn Memory>> {
        let bytes = memory.bytes();
        if bytes == 0 {
            return Ok(memory);
        }
        let mut stream = CudaStream::new(&self.open)?;
        // If the wait fails, the stream keeps the memory until the operation has finished.
        stream.zero(&Region { memory: memory.clone(), offset: 0, bytes })?;
        stream.wait(Some(ZEROING_TIMEOUT))?;
        Ok(memory)
    }
}

impl Backend for CudaBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.open.card.capabilities
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>> {
        self.open.release_finished();
        let memory: Arc<dyn Memory> = Arc::new(CudaMemory::allocate(&self.open, bytes)?);
        match contents {
            Contents::Zeroed => self.zero(memory),
            Contents::Uninit => Ok(memory),
        }
    }

    unsafe fn adopt(
        &self,
        address: Address,
        bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Option<Arc<dyn Memory>>> {
        let Address::Cuda { ordinal, address } = address else { return Ok(None) };
        let mine = self.open.card.ordinal;
        if let Some(other) = ordinal.filter(|&ordinal| ordinal != mine) {
            let detail = format!("the memory is on CUDA device {other}, and this is CUDA device {mine}");
            return Err(Error::unsupported(&self.open.context.id, "adopting memory", detail));
        }
        // No driver call is made, but nothing may be adopted once the device is lost.
        drop(self.open.context.enter("adopting memory")?);
        Ok(Some(Arc::new(CudaMemory::adopt(&self.open, address, bytes, owner))))
    }

    fn allocate_host(&self, bytes: u64, _: Direction) -> Result<Box<dyn HostMemory>> {
        self.open.release_finished();
        Ok(Box::new(CudaHostMemory::allocate(&self.open, bytes)?))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn ProgramBackend>> {
        program::compile(&self.open, kernel)
    }

    fn stream(&self) -> Result<Box<dyn StreamBackend>> {
        self.open.release_finished();
        Ok(Box::new(CudaStream::new(&self.open)?))
    }

    fn memory(&self) -> MemoryUsage {
        self.open.device_cache.usage().with_pinned(self.open.host_cache.usage())
    }

    fn trim(&self) {
        if let Ok(guard) = self.open.context.enter("giving memory back") {
            self.open.clear_caches(&guard);
        }
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // Work that is still running after the timeout keeps the device, if need be until the process ends: nothing is
        // freed that a running kernel may use.
        if !matches!(event::poll(Some(CLOSING_TIMEOUT), || Ok(self.open.release_finished())), Ok(true)) {
            self.open.context.primary.keep_closed(self.open.clone());
        }
    }
}
