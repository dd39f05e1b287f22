//! A stream of a card.
//!
//! Its operations are numbered from 1. [`StreamProgress`] holds the number of operations that are known to have finished, learned from
//! events, from closed batches and from waits. It decides when the host may read host memory again, and when the resources of
//! operations are dropped.

use std::{any::Any, ffi::c_void, ops::Range, sync::Arc, time::Duration};

use super::{
    context::DriverGuard,
    event::{self, CudaEvent, CudaTimestamp, EventTiming, PooledEvent, StreamProgress},
    graph::CudaGraph,
    keep_alive::KeepAlive,
    memory::{CudaHostMemory, CudaMemory, CudaSharedMemory, PinnedBlock},
    open::{OpenDevice, RawStream, UnfinishedWork},
    program::CudaBoundKernel,
};
use crate::{
    backend::{
        BoundKernelBackend, EventBackend, GraphBackend, HostMemory, Memory, RecordedLaunch, Region,
        SharedMemory, StreamBackend, TimestampBackend,
    },
    error::{Error, Result},
};

/// A resource that an operation in flight uses.
#[derive(Debug)]
#[expect(dead_code, reason = "held only to be dropped later")]
pub(super) enum OperationResource {
    BoundKernel(Arc<dyn BoundKernelBackend>),
    Graph(Arc<dyn GraphBackend>),
    Memory(Arc<dyn Memory>),
    Host(Arc<PinnedBlock>),
}

/// The resources of a stream's operations in flight.
pub(super) type StreamResources = KeepAlive<OperationResource, Arc<PooledEvent>>;

#[derive(Debug)]
pub(super) struct CudaStream {
    open: Arc<OpenDevice>,
    raw: RawStream,
    /// The number of the last operation that was queued.
    queued: u64,
    progress: Arc<StreamProgress>,
    resources: StreamResources,
}

impl CudaStream {
    pub(super) fn new(open: &Arc<OpenDevice>) -> Result<Self> {
        let raw = open.take_stream(&open.context.enter("making a stream")?)?;
        Ok(CudaStream {
            open: open.clone(),
            raw,
            queued: 0,
            progress: Arc::default(),
            resources: StreamResources::default(),
        })
    }

    /// Closes the batch of resources if it is full.
    #[inline]
    fn close_full_batch(&mut self, guard: &DriverGuard<'_>) -> Result<()> {
        if self.resources.is_full() { self.close_batch(guard) } else { Ok(()) }
    }

    #[cold]
    fn close_batch(&mut self, guard: &DriverGuard<'_>) -> Result<()> {
        let end = PooledEvent::record(&self.open, guard, EventTiming::Off, self.raw.0)?;
        self.resources.close(self.queued, || Arc::new(end));
        self.release_finished(guard)
    }

    /// Drops the batches of resources whose operations have finished.
    fn release_finished(&mut self, guard: &DriverGuard<'_>) -> Result<()> {
        self.resources.release(self.progress.finished());
        while let Some((last, end)) = self.resources.oldest() {
            if !end.query(guard)? {
                break;
            }
            self.progress.reach(last);
            self.resources.release(last);
        }
        Ok(())
    }

    fn is_empty(&self) -> Result<bool> {
        let guard = self.open.context.enter("waiting for a stream")?;
        // SAFETY: the stream is alive and was created in this context.
        event::ready(&guard, unsafe { (guard.driver.stream_query)(self.raw.0) })
    }

    /// Queues a copy between host memory and the card as the next operation.
    fn transfer(
        &mut self,
        operation: &'static str,
        host: (&mut dyn HostMemory, u64),
        region: &Region,
        copy: impl FnOnce(&DriverGuard<'_>, *mut u8, u64, usize, &RawStream) -> i32,
    ) -> Result<()> {
        let (memory, offset) = host;
        let address = CudaMemory::address(region, &self.open, operation)?;
        let memory = CudaHostMemory::of(memory, &self.open, operation, (offset, region.bytes))?;
        if region.bytes == 0 {
            return Ok(());
        }
        let open = self.open.clone();
        let guard = open.context.enter(operation)?;
        memory.lend(&self.progress, self.queued + 1, |pinned| {
            let code = copy(&guard, pinned.at(offset), address, region.bytes as usize, &self.raw);
            guard.check_sized(code, region.bytes)?;
            self.queued += 1;
            self.resources.push(OperationResource::Memory(region.memory.clone()), 0);
            self.resources.push(OperationResource::Host(pinned.clone()), pinned.class());
            Ok(())
        })?;
        self.close_full_batch(&guard)
    }
}

impl StreamBackend for CudaStream {
    fn upload(&mut self, from: &mut dyn HostMemory, range: Range<u64>, to: &Region) -> Result<()> {
        if range.end.checked_sub(range.start) != Some(to.bytes) {
            let detail = format!("bytes {range:?} of host memory into a region of {} bytes", to.bytes);
            return Err(Error::unsupported(&self.open.context.id, "uploading", detail));
        }
        self.transfer("uploading", (from, range.start), to, |guard, host, device, bytes, stream| {
            // SAFETY: `transfer` checked that both sides have this many bytes; the stream is alive and was created in this
            // context; `resources` keeps both memories until the copy has finished, and `CudaHostMemory::lend` hides the
            // bytes from the host meanwhile.
            unsafe { (guard.driver.memcpy_to_device)(device, host.cast_const().cast(), bytes, stream.0) }
        })
    }

    fn upload_shared(
        &mut self,
        from: &Arc<dyn SharedMemory>,
        range: Range<u64>,
        to: &Region,
    ) -> Result<bool> {
        let Some(memory) = (&**from as &dyn Any).downcast_ref::<CudaSharedMemory>() else { return Ok(false) };
        let address = CudaMemory::address(to, &self.open, "uploading")?;
        if range.end.checked_sub(range.start) != Some(to.bytes) || range.end > memory.bytes().len() as u64 {
            let detail = format!(
                "bytes {range:?} of {} bytes of shared memory into a region of {} bytes",
                memory.bytes().len(),
                to.bytes
            );
            return Err(Error::unsupported(&self.open.context.id, "uploading", detail));
        }
        if to.bytes == 0 {
            return Ok(true);
        }
        let open = self.open.clone();
        let guard = open.context.enter("uploading")?;
        let host = memory.pinned.at(range.start).cast_const().cast();
        // SAFETY: both sides were checked to have this many bytes; the stream is alive and was created in this context;
        // `resources` keeps both memories until the copy has finished, and shared memory is never written.
        let code = unsafe { (guard.driver.memcpy_to_device)(address, host, to.bytes as usize, self.raw.0) };
        guard.check_sized(code, to.bytes)?;
        self.queued += 1;
        self.resources.push(OperationResource::Memory(to.memory.clone()), 0);
        // The caller keeps the shared memory anyway, so releasing it early would free nothing: it counts 0 bytes.
        self.resources.push(OperationResource::Host(memory.pinned.clone()), 0);
        self.close_full_batch(&guard)?;
        Ok(true)
    }

    fn download(&mut self, from: &Region, to: &mut dyn HostMemory, offset: u64) -> Result<()> {
        self.transfer("downloading", (to, offset), from, |guard, host, device, bytes, stream| {
            // SAFETY: as for `upload`.
            unsafe { (guard.driver.memcpy_to_host)(host.cast(), device, bytes, stream.0) }
        })
    }

    fn copy(&mut self, from: &Region, to: &Region) -> Result<()> {
        let open = self.open.clone();
        let (source, target) =
            (CudaMemory::address(from, &open, "copying")?, CudaMemory::address(to, &open, "copying")?);
        if from.bytes != to.bytes {
            let detail = format!("{} bytes into a region of {}", from.bytes, to.bytes);
            return Err(Error::unsupported(&open.context.id, "copying", detail));
        }
        if from.bytes == 0 {
            return Ok(());
        }
        let guard = open.context.enter("copying")?;
        // SAFETY: `CudaMemory::address` checked both regions; `resources` keeps them until the copy has finished; the stream
        // is alive and was created in this context.
        let code =
            unsafe { (guard.driver.memcpy_on_device)(target, source, from.bytes as usize, self.raw.0) };
        guard.check_sized(code, from.bytes)?;
        self.queued += 1;
        self.resources.push(OperationResource::Memory(from.memory.clone()), 0);
        self.resources.push(OperationResource::Memory(to.memory.clone()), 0);
        self.close_full_batch(&guard)
    }

    fn zero(&mut self, region: &Region) -> Result<()> {
        let open = self.open.clone();
        let address = CudaMemory::address(region, &open, "zeroing")?;
        if region.bytes == 0 {
            return Ok(());
        }
        let guard = open.context.enter("zeroing")?;
        // SAFETY: `CudaMemory::address` checked the region; `resources` keeps it until the operation has finished; the stream
        // is alive and was created in this context.
        let code = unsafe { (guard.driver.memset_d8)(address, 0, region.bytes as usize, self.raw.0) };
        guard.check_sized(code, region.bytes)?;
        self.queued += 1;
        self.resources.push(OperationResource::Memory(region.memory.clone()), 0);
        self.close_full_batch(&guard)
    }

    fn fill(&mut self, region: &Region, pattern: &[u8]) -> Result<bool> {
        let open = self.open.clone();
        let address = CudaMemory::address(region, &open, "filling")?;
        // The driver repeats patterns of one, two or four bytes, in regions that are aligned to the pattern's size.
        let repeats = |width: usize| {
            pattern.len().is_multiple_of(width)
                && address.is_multiple_of(width as u64)
                && pattern.chunks_exact(width).all(|part| part == &pattern[..width])
        };
        let Some(width) = [1, 2, 4].into_iter().find(|&width| repeats(width)) else { return Ok(false) };
        let guard = open.context.enter("filling")?;
        let (driver, stream, count) = (guard.driver, self.raw.0, region.bytes as usize / width);
        // SAFETY: `CudaMemory::address` checked the region, which has `count * width` bytes; `resources` keeps it until the
        // operation has finished; the stream is alive and was created in this context.
        let code = unsafe {
            match *pattern {
                [byte, ..] if width == 1 => (driver.memset_d8)(address, byte, count, stream),
                [a, b, ..] if width == 2 => {
                    (driver.memset_d16)(address, u16::from_ne_bytes([a, b]), count, stream)
                }
                [a, b, c, d, ..] => {
                    (driver.memset_d32)(address, u32::from_ne_bytes([a, b, c, d]), count, stream)
                }
                _ => return Ok(false),
            }
        };
        guard.check_sized(code, region.bytes)?;
        self.queued += 1;
        self.resources.push(OperationResource::Memory(region.memory.clone()), 0);
        self.close_full_batch(&guard)?;
        Ok(true)
    }

    fn check_kernel(&self, bound: &Arc<dyn BoundKernelBackend>) -> Result<()> {
        CudaBoundKernel::of(bound, &self.open).map(drop)
    }

    fn launch(&mut self, bound: &Arc<dyn BoundKernelBackend>, groups: [u32; 3], params: &[u8]) -> Result<()> {
        let kernel = CudaBoundKernel::of(bound, &self.open)?;
        // The kernel's context is the same one, and unlike the stream's it can be borrowed while `self` is changed.
        let guard = kernel.open.context.enter("launching a kernel")?;
        kernel.launch(&guard, self.raw.0, groups, params)?;
        self.queued += 1;
        // A kernel that is launched repeatedly is kept once per batch.
        if !matches!(self.resources.latest(), Some(OperationResource::BoundKernel(last)) if Arc::ptr_eq(last, bound))
        {
            self.resources.push(OperationResource::BoundKernel(bound.clone()), 0);
        }
        self.close_full_batch(&guard)
    }

    fn record_graph(&mut self, launches: &[RecordedLaunch]) -> Result<Option<Arc<dyn GraphBackend>>> {
        let graph = CudaGraph::record(&self.open, launches)?;
        Ok(graph.map(|graph| Arc::new(graph) as Arc<dyn GraphBackend>))
    }

    fn replay(&mut self, graph: &Arc<dyn GraphBackend>) -> Result<bool> {
        let recorded = (&**graph as &dyn Any)
            .downcast_ref::<CudaGraph>()
            .filter(|recorded| recorded.open.context.is_same_context(&self.open.context));
        let Some(recorded) = recorded else { return Ok(false) };
        let guard = recorded.open.context.enter("replaying a graph")?;
        recorded.launch(&guard, self.raw.0)?;
        self.queued += 1;
        if !matches!(self.resources.latest(), Some(OperationResource::Graph(last)) if Arc::ptr_eq(last, graph))
        {
            self.resources.push(OperationResource::Graph(graph.clone()), 0);
        }
        self.close_full_batch(&guard)?;
        Ok(true)
    }

    fn timestamp(&mut self) -> Result<Arc<dyn TimestampBackend>> {
        let guard = self.open.context.enter("reading the clock")?;
        let event = PooledEvent::record(&self.open, &guard, EventTiming::On, self.raw.0)?;
        self.queued += 1;
        Ok(Arc::new(CudaTimestamp(event)))
    }

    fn record_event(&mut self) -> Result<Arc<dyn EventBackend>> {
        let open = self.open.clone();
        let guard = open.context.enter("recording an event")?;
        let event = Arc::new(PooledEvent::record(&open, &guard, EventTiming::Off, self.raw.0)?);
        // This event also marks the end of the current batch, which saves one of its own.
        self.resources.close(self.queued, || event.clone());
        self.release_finished(&guard)?;
        Ok(Arc::new(CudaEvent { event, progress: self.progress.clone(), operation: self.queued }))
    }

    fn wait_event(&mut self, event: &Arc<dyn EventBackend>) -> Result<()> {
        let event = CudaEvent::of(event, &self.open)?;
        event.make_stream_wait(&self.open.context.enter("waiting for an event")?, self.raw.0)?;
        self.queued += 1;
        Ok(())
    }

    fn cuda_handle(&self) -> Option<*mut c_void> {
        Some(self.raw.0.cast())
    }

    unsafe fn wait_cuda_event(&mut self, event: *mut c_void) -> Result<bool> {
        let guard = self.open.context.enter("waiting for an event")?;
        // SAFETY: the stream is alive and was created in this context; the caller promises the same of the event.
        guard.check(unsafe { (guard.driver.stream_wait_event)(self.raw.0, event.cast(), 0) })?;
        self.queued += 1;
        Ok(true)
    }

    unsafe fn record_cuda_event(&mut self, event: *mut c_void) -> Result<bool> {
        let guard = self.open.context.enter("signalling an event")?;
        // SAFETY: as for `wait_cuda_event`.
        guard.check(unsafe { (guard.driver.event_record)(event.cast(), self.raw.0) })?;
        self.queued += 1;
        Ok(true)
    }

    fn flush(&mut self) -> Result<()> {
        // The driver starts operations by itself; on Windows, a query makes it do so.
        self.is_empty().map(drop)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        if !event::poll(timeout, || self.is_empty())? {
            return Err(event::timed_out(&self.open, "waiting for a stream", timeout));
        }
        self.progress.reach(self.queued);
        self.resources.clear();
        Ok(())
    }
}

impl Drop for CudaStream {
    // Never waits: operations in flight go on, and their resources are kept until they have finished.
    fn drop(&mut self) {
        let raw = RawStream(self.raw.0);
        let resources = std::mem::take(&mut self.resources);
        let has_finished = self.progress.finished() >= self.queued || matches!(self.is_empty(), Ok(true));
        if has_finished {
            self.progress.reach(self.queued);
            self.open.return_stream(raw);
            return;
        }
        // After a loss nothing runs, and dropping the resources calls no driver function.
        let Ok(guard) = self.open.context.enter("closing a stream") else { return };
        match PooledEvent::record(&self.open, &guard, EventTiming::Off, raw.0) {
            Ok(end) => self.open.keep_unfinished(UnfinishedWork { end, _resources: resources }),
            Err(_) if self.open.context.primary.is_lost() => {}
            // Without an event, the end of the work cannot be known: its resources are leaked.
            Err(_) => std::mem::forget(resources),
        }
        // SAFETY: the stream was created in this context, and this was its only owner; the driver finishes its work first.
        unsafe { (guard.driver.stream_destroy)(raw.0) };
    }
}
