//! A stream of a card.
//!
//! Its operations are numbered from 1. How many of them have ended is learned from events that were reached,
//! from batches that were seen to have ended and from waiting, and shared through [`Progress`]: host memory
//! becomes readable by it, and what operations use is let go by it.

use std::{any::Any, ffi::c_void, ops::Range, sync::Arc, time::Duration};

use super::{
    context::ContextGuard,
    errors,
    event::{self, CudaEvent, CudaTimestamp, PooledEvent, Progress, Timing},
    graph::CudaGraph,
    keep_alive::KeepAlive,
    memory::{CudaHostMemory, CudaMemory, CudaSharedMemory, PinnedBlock},
    open::{OpenDevice, RawStream, UnfinishedWork},
    program::CudaBoundKernel,
};
use crate::{
    backend::{
        BoundKernel, Event, Graph, HostMemory, Memory, RecordedLaunch, Region, SharedMemory, StreamBackend,
        Timestamp,
    },
    error::{Error, Result},
};

/// Something that an operation under way uses.
#[derive(Debug)]
#[expect(dead_code, reason = "kept only to be dropped later")]
pub(super) enum OperationResource {
    BoundKernel(Arc<dyn BoundKernel>),
    Graph(Arc<dyn Graph>),
    Memory(Arc<dyn Memory>),
    Host(Arc<PinnedBlock>),
}

/// What a stream keeps alive.
pub(super) type StreamResources = KeepAlive<OperationResource, Arc<PooledEvent>>;

#[derive(Debug)]
pub(super) struct CudaStream {
    open: Arc<OpenDevice>,
    raw: RawStream,
    /// The number of the last operation that was queued.
    queued: u64,
    progress: Arc<Progress>,
    kept: StreamResources,
}

impl CudaStream {
    pub(super) fn new(open: &Arc<OpenDevice>) -> Result<Self> {
        let raw = open.take_stream(&open.context.enter("making a stream")?)?;
        Ok(CudaStream {
            open: open.clone(),
            raw,
            queued: 0,
            progress: Arc::default(),
            kept: StreamResources::default(),
        })
    }

    /// Closes a full batch.
    #[inline]
    fn close_full_batch(&mut self, guard: &ContextGuard<'_>) -> Result<()> {
        if self.kept.is_full() { self.close_batch(guard) } else { Ok(()) }
    }

    #[cold]
    fn close_batch(&mut self, guard: &ContextGuard<'_>) -> Result<()> {
        let end = PooledEvent::record(&self.open, guard, Timing::Off, self.raw.0)?;
        self.kept.close(self.queued, || Arc::new(end));
        self.release_finished(guard)
    }

    /// Lets go of the batches that have ended.
    fn release_finished(&mut self, guard: &ContextGuard<'_>) -> Result<()> {
        self.kept.release(self.progress.finished());
        while let Some((last, end)) = self.kept.oldest() {
            if !end.query(guard)? {
                break;
            }
            self.progress.reach(last);
            self.kept.release(last);
        }
        Ok(())
    }

    /// Whether everything queued has ended.
    fn is_empty(&self) -> Result<bool> {
        let guard = self.open.context.enter("waiting for a stream")?;
        // SAFETY: the stream is alive and of this context.
        event::ready(&guard, unsafe { (guard.driver.stream_query)(self.raw.0) })
    }

    /// Queues a copy between host memory and the card, as the next operation.
    fn transfer(
        &mut self,
        operation: &'static str,
        host: (&mut dyn HostMemory, u64),
        region: &Region,
        copy: impl FnOnce(&ContextGuard<'_>, *mut u8, u64, usize, &RawStream) -> i32,
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
            self.kept.push(OperationResource::Memory(region.memory.clone()), 0);
            self.kept.push(OperationResource::Host(pinned.clone()), pinned.class());
            Ok(())
        })?;
        self.close_full_batch(&guard)
    }
}

impl StreamBackend for CudaStream {
    fn upload(&mut self, from: &mut dyn HostMemory, range: Range<u64>, to: &Region) -> Result<()> {
        if range.end.checked_sub(range.start) != Some(to.bytes) {
            let detail = format!("bytes {range:?} of host memory into {} bytes", to.bytes);
            return Err(Error::unsupported(&self.open.context.id, "uploading", detail));
        }
        self.transfer("uploading", (from, range.start), to, |guard, host, device, bytes, stream| {
            // SAFETY: both nvrtc_paths were checked to have so many bytes; the stream is alive and of this context;
            // host memory and device memory are kept until the copy has ended, and the host memory is not
            // written meanwhile.
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
                "bytes {range:?} of shared memory of {} into {} bytes",
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
        // SAFETY: both nvrtc_paths were checked to have so many bytes; the stream is alive and of this context; host memory
        // and device memory are kept until the copy has ended, and nobody writes shared memory.
        let code = unsafe { (guard.driver.memcpy_to_device)(address, host, to.bytes as usize, self.raw.0) };
        guard.check_sized(code, to.bytes)?;
        self.queued += 1;
        self.kept.push(OperationResource::Memory(to.memory.clone()), 0);
        // Whoever shares it keeps it anyway, so it does not count as dear.
        self.kept.push(OperationResource::Host(memory.pinned.clone()), 0);
        self.close_full_batch(&guard)?;
        Ok(true)
    }

    fn download(&mut self, from: &Region, to: &mut dyn HostMemory, offset: u64) -> Result<()> {
        self.transfer("downloading", (to, offset), from, |guard, host, device, bytes, stream| {
            // SAFETY: as for an upload, and the host memory is not read meanwhile.
            unsafe { (guard.driver.memcpy_to_host)(host.cast(), device, bytes, stream.0) }
        })
    }

    fn copy(&mut self, from: &Region, to: &Region) -> Result<()> {
        let open = self.open.clone();
        let (source, target) =
            (CudaMemory::address(from, &open, "copying")?, CudaMemory::address(to, &open, "copying")?);
        if from.bytes != to.bytes {
            let detail = format!("{} bytes into {}", from.bytes, to.bytes);
            return Err(Error::unsupported(&open.context.id, "copying", detail));
        }
        if from.bytes == 0 {
            return Ok(());
        }
        let guard = open.context.enter("copying")?;
        // SAFETY: both regions were checked to have so many bytes and are kept until the copy has ended; the
        // stream is alive and of this context.
        let code =
            unsafe { (guard.driver.memcpy_on_device)(target, source, from.bytes as usize, self.raw.0) };
        guard.check_sized(code, from.bytes)?;
        self.queued += 1;
        self.kept.push(OperationResource::Memory(from.memory.clone()), 0);
        self.kept.push(OperationResource::Memory(to.memory.clone()), 0);
        self.close_full_batch(&guard)
    }

    fn zero(&mut self, region: &Region) -> Result<()> {
        let open = self.open.clone();
        let address = CudaMemory::address(region, &open, "zeroing")?;
        if region.bytes == 0 {
            return Ok(());
        }
        let guard = open.context.enter("zeroing")?;
        // SAFETY: the region was checked to have so many bytes and is kept until they are zero; the stream is
        // alive and of this context.
        let code = unsafe { (guard.driver.memset_d8)(address, 0, region.bytes as usize, self.raw.0) };
        guard.check_sized(code, region.bytes)?;
        self.queued += 1;
        self.kept.push(OperationResource::Memory(region.memory.clone()), 0);
        self.close_full_batch(&guard)
    }

    fn fill(&mut self, region: &Region, pattern: &[u8]) -> Result<bool> {
        let open = self.open.clone();
        let address = CudaMemory::address(region, &open, "filling")?;
        // What the driver repeats by itself: one, two or four bytes, where the region is aligned to as many.
        let repeats = |width: usize| {
            pattern.len().is_multiple_of(width)
                && address.is_multiple_of(width as u64)
                && pattern.chunks_exact(width).all(|part| part == &pattern[..width])
        };
        let Some(width) = [1, 2, 4].into_iter().find(|&width| repeats(width)) else { return Ok(false) };
        let guard = open.context.enter("filling")?;
        let (driver, stream, count) = (guard.driver, self.raw.0, region.bytes as usize / width);
        // SAFETY: the region was checked to have so many bytes, `count` times `width`, and is kept until they are written;
        // the stream is alive and of this context.
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
        self.kept.push(OperationResource::Memory(region.memory.clone()), 0);
        self.close_full_batch(&guard)?;
        Ok(true)
    }

    fn launch(&mut self, bound: &Arc<dyn BoundKernel>, groups: [u32; 3], params: &[u8]) -> Result<()> {
        let Some(kernel) = (&**bound as &dyn Any)
            .downcast_ref::<CudaBoundKernel>()
            .filter(|kernel| kernel.open.context.is_same_context(&self.open.context))
        else {
            return errors::wrong_device(&self.open.context.id, "launching a kernel", "kernel");
        };
        // The bound kernel's context is on the same context, and unlike the stream's can be borrowed meanwhile.
        let guard = kernel.open.context.enter("launching a kernel")?;
        kernel.launch(&guard, self.raw.0, groups, params)?;
        self.queued += 1;
        // A kernel that is launched again and again is kept once a batch.
        if !matches!(self.kept.latest(), Some(OperationResource::BoundKernel(last)) if Arc::ptr_eq(last, bound))
        {
            self.kept.push(OperationResource::BoundKernel(bound.clone()), 0);
        }
        self.close_full_batch(&guard)
    }

    fn record_graph(&mut self, launches: &[RecordedLaunch]) -> Result<Option<Arc<dyn Graph>>> {
        let graph = CudaGraph::record(&self.open, launches)?;
        Ok(graph.map(|graph| Arc::new(graph) as Arc<dyn Graph>))
    }

    fn replay(&mut self, graph: &Arc<dyn Graph>) -> Result<bool> {
        let recorded = (&**graph as &dyn Any)
            .downcast_ref::<CudaGraph>()
            .filter(|recorded| recorded.open.context.is_same_context(&self.open.context));
        let Some(recorded) = recorded else { return Ok(false) };
        let guard = recorded.open.context.enter("launching what was recorded")?;
        recorded.launch(&guard, self.raw.0)?;
        self.queued += 1;
        if !matches!(self.kept.latest(), Some(OperationResource::Graph(last)) if Arc::ptr_eq(last, graph)) {
            self.kept.push(OperationResource::Graph(graph.clone()), 0);
        }
        self.close_full_batch(&guard)?;
        Ok(true)
    }

    fn timestamp(&mut self) -> Result<Arc<dyn Timestamp>> {
        let guard = self.open.context.enter("reading the clock")?;
        let event = PooledEvent::record(&self.open, &guard, Timing::On, self.raw.0)?;
        self.queued += 1;
        Ok(Arc::new(CudaTimestamp(event)))
    }

    fn record_event(&mut self) -> Result<Arc<dyn Event>> {
        let open = self.open.clone();
        let guard = open.context.enter("marking a stream")?;
        let event = Arc::new(PooledEvent::record(&open, &guard, Timing::Off, self.raw.0)?);
        // The event tells the end of the batch so far as well as an event of its own would.
        self.kept.close(self.queued, || event.clone());
        self.release_finished(&guard)?;
        Ok(Arc::new(CudaEvent { event, progress: self.progress.clone(), operation: self.queued }))
    }

    fn wait_event(&mut self, event: &Arc<dyn Event>) -> Result<()> {
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
        // SAFETY: the stream is alive and of this context; that the event is too, the caller says.
        guard.check(unsafe { (guard.driver.stream_wait_event)(self.raw.0, event.cast(), 0) })?;
        self.queued += 1;
        Ok(true)
    }

    unsafe fn record_cuda_event(&mut self, event: *mut c_void) -> Result<bool> {
        let guard = self.open.context.enter("signalling an event")?;
        // SAFETY: as above.
        guard.check(unsafe { (guard.driver.event_record)(event.cast(), self.raw.0) })?;
        self.queued += 1;
        Ok(true)
    }

    fn flush(&mut self) -> Result<()> {
        // The driver starts what it is given, on Windows when it is asked how far it is.
        self.is_empty().map(drop)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        if !event::poll(timeout, || self.is_empty())? {
            return Err(event::timed_out(&self.open, "waiting for a stream", timeout));
        }
        self.progress.reach(self.queued);
        self.kept.clear();
        Ok(())
    }
}

impl Drop for CudaStream {
    // Never waits: what is under way goes on, and what it uses is buried until it has ended.
    fn drop(&mut self) {
        let raw = RawStream(self.raw.0);
        let kept = std::mem::take(&mut self.kept);
        let ended = self.progress.finished() >= self.queued || matches!(self.is_empty(), Ok(true));
        if ended {
            self.progress.reach(self.queued);
            self.open.return_stream(raw);
            return;
        }
        // After a loss nothing runs any more, and letting go touches nothing.
        let Ok(guard) = self.open.context.enter("closing a stream") else { return };
        match PooledEvent::record(&self.open, &guard, Timing::Off, raw.0) {
            Ok(end) => self.open.keep_unfinished(UnfinishedWork { end, _resources: kept }),
            Err(_) if self.open.context.primary.is_lost() => {}
            // Nothing will tell when its work has ended, so what that uses is never freed.
            Err(_) => std::mem::forget(kept),
        }
        // SAFETY: the stream is of this context, and nobody else has it; the driver finishes its work first.
        unsafe { (guard.driver.stream_destroy)(raw.0) };
    }
}
