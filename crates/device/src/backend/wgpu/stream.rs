//! A stream: a command encoder that is filled, submitted and replaced.
//!
//! Consecutive launches share a compute pass, in which wgpu orders those that share buffers. The stream keeps the
//! resources of an operation until it is submitted; from then on wgpu keeps them until it has finished.

use std::{any::Any, ops::Range, sync::Arc, time::Duration};

use wgpu::{CommandEncoder, ComputePass, SubmissionIndex};

use super::{
    super::{
        BoundKernelBackend, Contents, Direction, EventBackend, HostMemory, Memory, Region, StreamBackend,
        TimestampBackend,
    },
    clock::PendingTimestamps,
    event::WgpuEvent,
    failure::{catch_panic, translate},
    host::{StagingBlock, WgpuHostMemory},
    memory::{WgpuMemory, padded},
    open_device::{OpenDevice, TRANSFER_BYTES, TransferError},
    program::WgpuBoundKernel,
};
use crate::error::{Error, Result};

/// Number of operations after which they are submitted, so that the device starts before the host has recorded
/// everything.
const OPERATIONS_PER_SUBMISSION: u32 = 32;

#[derive(Debug)]
pub(super) struct WgpuStream {
    open: Arc<OpenDevice>,
    /// The open compute pass. It locks the encoder, so it must end before another operation is recorded.
    pass: Option<ComputePass<'static>>,
    encoder: Option<CommandEncoder>,
    operations: u32,
    /// Whether the next event needs a submission, even without operations: the stream waited for another stream's event,
    /// or a submission unwound, and it has submitted nothing since.
    needs_submission: bool,
    last: Option<SubmissionIndex>,
    /// The number of the last submission.
    submitted: u64,
    /// The number of the last download on the transfer queue, which the next submission waits for.
    download: u64,
    pending: Option<PendingTimestamps>,
    kept_memories: Vec<Arc<dyn Memory>>,
    kept_blocks: Vec<Arc<StagingBlock>>,
    /// The last one is set in the open pass.
    kept_bounds: Vec<Arc<dyn BoundKernelBackend>>,
}

impl WgpuStream {
    pub(super) fn new(open: Arc<OpenDevice>) -> Self {
        WgpuStream {
            open,
            pass: None,
            encoder: None,
            operations: 0,
            needs_submission: false,
            last: None,
            submitted: 0,
            download: 0,
            pending: None,
            kept_memories: Vec::new(),
            kept_blocks: Vec::new(),
            kept_bounds: Vec::new(),
        }
    }

    /// Returns the encoder, for an operation other than a launch.
    fn encoder(&mut self) -> &mut CommandEncoder {
        self.pass = None;
        open_encoder(&mut self.encoder, &self.open)
    }

    /// Counts an operation, and submits when there are enough.
    fn count(&mut self) -> Result<()> {
        self.operations += 1;
        if self.operations < OPERATIONS_PER_SUBMISSION { Ok(()) } else { self.submit("running operations") }
    }

    fn submit(&mut self, operation: &str) -> Result<()> {
        let (pass, pending) = (self.pass.take(), self.pending.take());
        let mut outcome = Ok(());
        if self.encoder.is_some() || self.needs_submission {
            let encoder = self.encoder.take();
            // Submissions run the callbacks of an external device's caller. If one panics, the commands may be in flight:
            // what they use is kept until the next submission, which comes after them.
            self.needs_submission = true;
            let ((submission, number), error) = self.open.watch(|| {
                drop(pass);
                let commands = encoder.map(|mut encoder| {
                    if let Some(pending) = &pending {
                        pending.resolve(&mut encoder);
                    }
                    encoder.finish()
                });
                self.open.submit(commands, self.download)
            });
            // A refused submission is not in flight, and is not waited for.
            let mut late = None;
            if error.is_none() {
                for block in self.kept_blocks.drain(..) {
                    block.note(&submission);
                }
                self.last = Some(submission);
                self.submitted = number;
                late = self.open.watch(|| pending.into_iter().for_each(|it| it.collect(&self.open))).1;
            }
            let error = error.or(late);
            outcome = error.map_or(Ok(()), |error| Err(translate(error, &self.open.id, operation, 0)));
        }
        self.operations = 0;
        self.needs_submission = false;
        // wgpu keeps these now, and operations that reuse them are submitted later.
        self.kept_memories.clear();
        self.kept_blocks.clear();
        self.kept_bounds.clear();
        outcome.and_then(|()| self.open.check(operation))
    }

    fn copy_between(&mut self, from: (&wgpu::Buffer, u64), to: (&wgpu::Buffer, u64), bytes: u64) {
        self.encoder().copy_buffer_to_buffer(from.0, from.1, to.0, to.1, padded(bytes));
    }

    /// Checks an offset in host memory: wgpu copies whole words only.
    fn check_offset(&self, operation: &str, offset: u64) -> Result<()> {
        let alignment = wgpu::COPY_BUFFER_ALIGNMENT;
        if offset.is_multiple_of(alignment) {
            return Ok(());
        }
        let detail = format!("the offset {offset} in host memory is not a multiple of {alignment}");
        Err(Error::unsupported(&self.open.id, operation, detail))
    }
}

fn open_encoder<'a>(encoder: &'a mut Option<CommandEncoder>, open: &OpenDevice) -> &'a mut CommandEncoder {
    encoder.get_or_insert_with(|| open.device.create_command_encoder(&Default::default()))
}

impl StreamBackend for WgpuStream {
    fn upload(&mut self, from: &mut dyn HostMemory, range: Range<u64>, to: &Region) -> Result<()> {
        self.open.check("uploading")?;
        self.check_offset("uploading", range.start)?;
        let memory = WgpuMemory::of(to, &self.open)?;
        let block = WgpuHostMemory::lend(from, &self.open, Direction::Upload)?;
        let bytes = range.end.saturating_sub(range.start);
        if bytes > 0 {
            self.copy_between((&block.buffer, range.start), (memory.buffer(), to.offset), bytes);
        }
        self.kept_blocks.push(block);
        self.kept_memories.push(to.memory.clone());
        self.count()
    }

    fn download(&mut self, from: &Region, to: &mut dyn HostMemory, offset: u64) -> Result<()> {
        self.open.check("downloading")?;
        self.check_offset("downloading", offset)?;
        let memory = WgpuMemory::of(from, &self.open)?;
        let block = WgpuHostMemory::lend_for_download(to, &self.open, offset..offset + from.bytes)?;
        // The transfer queue does not preserve other bytes of the host memory, so it is used for copies to its beginning
        // only.
        let is_large = from.bytes >= TRANSFER_BYTES && offset == 0;
        if let Some(transfers) = self.open.transfers.clone().filter(|_| is_large) {
            self.submit("downloading")?;
            let after = self.submitted.max(memory.cleared);
            match transfers.download(after, (&memory.block, from.offset), &block, padded(from.bytes)) {
                Ok(number) => {
                    self.download = number;
                    return Ok(());
                }
                Err(TransferError::OutOfMemory) => {
                    tracing::warn!(
                        "{}: not enough memory for the transfer queue: this download does not overlap with kernels",
                        self.open.id
                    );
                }
                Err(why) => return Err(self.open.transfer_failed("downloading", why)),
            }
        }
        if from.bytes > 0 {
            self.copy_between((memory.buffer(), from.offset), (&block.buffer, offset), from.bytes);
            block.make_visible_to_host(self.encoder());
        }
        self.kept_blocks.push(block);
        self.kept_memories.push(from.memory.clone());
        self.submit("downloading")
    }

    fn copy(&mut self, from: &Region, to: &Region) -> Result<()> {
        self.open.check("copying")?;
        let (source, target) = (WgpuMemory::of(from, &self.open)?, WgpuMemory::of(to, &self.open)?);
        if from.bytes == 0 {
            return Ok(());
        }
        if Arc::ptr_eq(&source.block, &target.block) {
            // wgpu does not copy within one buffer.
            let between = WgpuMemory::allocate(&self.open, from.bytes, Contents::Uninit)?;
            self.copy_between((source.buffer(), from.offset), (between.buffer(), 0), from.bytes);
            self.copy_between((between.buffer(), 0), (target.buffer(), to.offset), from.bytes);
            self.kept_memories.push(Arc::new(between));
        } else {
            self.copy_between((source.buffer(), from.offset), (target.buffer(), to.offset), from.bytes);
        }
        self.kept_memories.extend([from.memory.clone(), to.memory.clone()]);
        self.count()
    }

    fn zero(&mut self, region: &Region) -> Result<()> {
        self.open.check("zeroing")?;
        let memory = WgpuMemory::of(region, &self.open)?;
        if region.bytes == 0 {
            return Ok(());
        }
        self.encoder().clear_buffer(memory.buffer(), region.offset, Some(padded(region.bytes)));
        self.kept_memories.push(region.memory.clone());
        self.count()
    }

    fn check_kernel(&self, bound: &Arc<dyn BoundKernelBackend>) -> Result<()> {
        WgpuBoundKernel::of(bound, &self.open).map(drop)
    }

    fn launch(&mut self, bound: &Arc<dyn BoundKernelBackend>, groups: [u32; 3], params: &[u8]) -> Result<()> {
        self.open.check("launching a kernel")?;
        let kernel = WgpuBoundKernel::of(bound, &self.open)?;
        for (from, to) in &kernel.copied {
            let source = WgpuMemory::of(from, &self.open)?;
            self.copy_between((source.buffer(), from.offset), (to.buffer(), 0), from.bytes);
        }
        // A kernel that is launched again is already set in the pass.
        let is_set =
            self.pass.is_some() && self.kept_bounds.last().is_some_and(|set| Arc::ptr_eq(set, bound));
        let pass = self.pass.get_or_insert_with(|| {
            let encoder = open_encoder(&mut self.encoder, &self.open);
            encoder.begin_compute_pass(&Default::default()).forget_lifetime()
        });
        if !is_set {
            pass.set_pipeline(&kernel.pipeline);
            if let Some(group) = &kernel.group {
                pass.set_bind_group(0, group, &[]);
            }
            self.kept_bounds.push(bound.clone());
        }
        if !params.is_empty() {
            set_params(pass, params);
        }
        let [x, y, z] = groups;
        pass.dispatch_workgroups(x, y, z);
        self.count()
    }

    fn timestamp(&mut self) -> Result<Arc<dyn TimestampBackend>> {
        self.open.check("reading a timestamp")?;
        if self.pending.as_ref().is_some_and(PendingTimestamps::is_full) {
            self.submit("reading a timestamp")?;
        }
        let mut pending = self.pending.take().map_or_else(|| PendingTimestamps::begin(&self.open), Ok)?;
        let open = self.open.clone();
        let timestamp = pending.write(&open, self.encoder());
        self.pending = Some(pending);
        self.count()?;
        Ok(Arc::new(timestamp))
    }

    fn record_event(&mut self) -> Result<Arc<dyn EventBackend>> {
        self.submit("recording an event")?;
        Ok(Arc::new(WgpuEvent::new(self.open.clone(), self.last.clone(), self.download)))
    }

    fn wait_event(&mut self, event: &Arc<dyn EventBackend>) -> Result<()> {
        self.open.check("waiting for another stream")?;
        let event = (&**event as &dyn Any).downcast_ref::<WgpuEvent>();
        let Some(event) = event.filter(|event| Arc::ptr_eq(&event.open, &self.open)) else {
            let detail = "the event belongs to another device";
            return Err(Error::unsupported(&self.open.id, "waiting for another stream", detail));
        };
        self.download = self.download.max(event.download);
        // Everything before an event has been submitted, and the queue runs submissions in order. Only an event that this
        // stream records next needs a submission of its own, which comes after.
        self.needs_submission = true;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.submit("flushing a stream")
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.record_event()?.wait(timeout)
    }
}

/// Sets parameters, padded to whole words.
fn set_params(pass: &mut ComputePass<'_>, params: &[u8]) {
    if params.len().is_multiple_of(4) {
        return pass.set_immediates(0, params);
    }
    let mut whole = smallvec::SmallVec::<[u8; 256]>::from_slice(params);
    whole.resize(params.len().next_multiple_of(4), 0);
    pass.set_immediates(0, &whole);
}

impl Drop for WgpuStream {
    // Queued operations still run. Their errors are dropped with the stream.
    fn drop(&mut self) {
        if self.open.failure.is_lost() {
            return;
        }
        let mut submit = || self.submit("closing a stream");
        if std::thread::panicking() {
            // A second panic, of a callback of an external device's caller, would abort the process.
            drop(catch_panic(submit));
        } else {
            drop(submit());
        }
    }
}
