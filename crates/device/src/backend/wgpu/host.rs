//! Host memory for copies: staging buffers.
//!
//! A block has one of three states. Owned by the host, which reads and writes it; lent to a stream until the stream has
//! submitted the copy; or dropped, in which case it returns to the cache when the copy has finished.
//!
//! On a Vulkan device the host accesses the staging buffer directly: its memory belongs to this crate
//! ([`super::mapped_memory`]). Staging buffers of other APIs are wgpu's, mapped while the host owns them, and a lost
//! device may free their memory. There the host works on a shadow copy, and the mapping is accessed only to copy from or
//! to it while no poll is running.

use std::{
    any::Any,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering::*},
    },
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use wgpu::{Buffer, BufferTransition, BufferUses, CommandEncoder, MapMode, Queue, SubmissionIndex};
use zeroize::Zeroize;

use super::{
    super::{
        CacheLine, CopiedMemory, Direction, HostMemory, SharedMemory, block_cache::BlockCache,
        cpu::pinned_cap,
    },
    mapped_memory::MappedMemory,
    open_device::OpenDevice,
};
use crate::error::{Error, Result};

/// How long mapping a block may take after its copy has finished.
const MAPPING_TIMEOUT: Duration = Duration::from_secs(1);

const RECLAIMING: &str = "reclaiming host memory";

/// Cached staging blocks, by direction.
#[derive(Debug)]
pub(super) struct StagingCaches {
    upload: Arc<BlockCache<StagingMemory>>,
    download: Arc<BlockCache<StagingMemory>>,
}

impl StagingCaches {
    pub(super) fn new() -> Self {
        Self::with_caps(pinned_cap() / 2)
    }

    /// Creates caches that keep this many bytes each.
    pub(super) fn with_caps(bytes: u64) -> Self {
        let cache = || Arc::new(BlockCache::new(bytes));
        StagingCaches { upload: cache(), download: cache() }
    }

    fn cache(&self, direction: Direction) -> &Arc<BlockCache<StagingMemory>> {
        match direction {
            Direction::Upload => &self.upload,
            Direction::Download => &self.download,
        }
    }

    pub(super) fn usage(&self, direction: Direction) -> super::super::MemoryUsage {
        self.cache(direction).usage()
    }

    /// Frees the blocks above the caps.
    pub(super) fn free_excess(&self) {
        drop((self.upload.take_excess(), self.download.take_excess()));
    }

    pub(super) fn clear(&self) {
        drop((self.upload.clear(), self.download.clear()));
    }
}

/// A staging buffer and its memory.
#[derive(Debug)]
pub(super) struct StagingMemory {
    pub(super) buffer: Buffer,
    /// The memory, if this crate allocated it. Otherwise the host maps the buffer.
    pub(super) mapped: Option<MappedMemory>,
}

impl StagingMemory {
    /// Calls `then` when all submissions so far have finished: with the buffer, which the host owns again, or with `None`
    /// if the device is lost. The callback must not keep the device alive.
    pub(super) fn when_idle(
        self,
        queue: &Queue,
        direction: Direction,
        then: impl FnOnce(Option<StagingMemory>) + Send + 'static,
    ) {
        match self.mapped {
            Some(_) => queue.on_submitted_work_done(move || then(Some(self))),
            None => self
                .buffer
                .clone()
                .map_async(mode(direction), .., move |outcome| then(outcome.ok().map(|()| self))),
        }
    }

    /// Records a barrier that makes the copies to a download buffer visible to the host. Does nothing for wgpu's own
    /// memory, which wgpu maps.
    ///
    /// wgpu does not know that the host reads this crate's memory, and the end of a submission alone makes its writes
    /// available to the device only. The transition is a barrier from the copies to reads of the host.
    pub(super) fn make_visible_to_host(
        buffer: &Buffer,
        mapped: Option<&MappedMemory>,
        encoder: &mut CommandEncoder,
    ) {
        if mapped.is_some() {
            let transition = BufferTransition { buffer, state: BufferUses::MAP_READ };
            encoder.transition_resources(std::iter::once(transition), std::iter::empty());
        }
    }

    /// Zeroes the memory, which neither the host nor a copy uses. Returns whether it may be reused: wgpu's own memory is
    /// freed instead.
    fn zero(&mut self) -> bool {
        let Some(mapped) = &self.mapped else { return false };
        // SAFETY: the memory is at least as long as the buffer, `HostAllocator::make` zeroed it, and the caller promises that
        // it is not in use.
        unsafe { mapped.slice_mut(self.buffer.size() as usize) }.fill(0);
        true
    }

    /// Returns the first bytes of a download buffer, for the callback of [`when_idle`](Self::when_idle). Unmaps buffers
    /// of APIs other than Vulkan. Returns `None` if the device is lost.
    pub(super) fn read(&self, bytes: usize) -> Option<Vec<u8>> {
        if let Some(mapped) = &self.mapped {
            // SAFETY: the memory is at least as long as the buffer, `HostAllocator::make` zeroed it, and no copy is in
            // flight.
            let all = unsafe { mapped.slice(self.buffer.size() as usize) };
            return all.get(..bytes).map(<[u8]>::to_vec);
        }
        let read = self.buffer.get_mapped_range(..bytes as u64).ok()?.to_vec();
        self.buffer.unmap();
        Some(read)
    }
}

fn mode(direction: Direction) -> MapMode {
    match direction {
        Direction::Upload => MapMode::Write,
        Direction::Download => MapMode::Read,
    }
}

/// A staging buffer, which returns to its cache when neither the host nor a stream uses it.
#[derive(Debug)]
pub(super) struct StagingBlock {
    pub(super) buffer: Buffer,
    /// As in [`StagingMemory`].
    mapped: Option<MappedMemory>,
    direction: Direction,
    /// Whether the host owns it.
    is_host_owned: AtomicBool,
    /// Whether it is zeroed before it returns to its cache.
    is_secret: AtomicBool,
    /// Submissions that copy from or to it, since the host owned it last.
    submissions: Mutex<SmallVec<[SubmissionIndex; 1]>>,
    cache: Arc<BlockCache<StagingMemory>>,
    queue: Queue,
}

impl StagingBlock {
    /// Records, after a download, what makes it visible to the host.
    pub(super) fn make_visible_to_host(&self, encoder: &mut CommandEncoder) {
        StagingMemory::make_visible_to_host(&self.buffer, self.mapped.as_ref(), encoder);
    }

    /// Notes a submission that copies from or to it.
    pub(super) fn note(&self, submission: &SubmissionIndex) {
        if self.mapped.is_some() {
            self.submissions.lock().unwrap_or_else(PoisonError::into_inner).push(submission.clone());
        }
    }
}

impl Drop for StagingBlock {
    fn drop(&mut self) {
        let (cache, class) = (self.cache.clone(), self.buffer.size());
        let staging = StagingMemory { buffer: self.buffer.clone(), mapped: self.mapped.take() };
        let is_secret = *self.is_secret.get_mut();
        let release = move |mut staging: StagingMemory| match !is_secret || staging.zero() {
            true => cache.put(class, staging),
            false => cache.remove_in_use(class),
        };
        if *self.is_host_owned.get_mut() {
            release(staging);
            return drop(self.cache.take_excess());
        }
        // The copy was submitted and may be in flight.
        let cache = self.cache.clone();
        staging.when_idle(&self.queue, self.direction, move |staging| match staging {
            Some(staging) => release(staging),
            None => cache.remove_in_use(class),
        });
    }
}

/// Host memory for copies. It exposes no bytes while a copy is in flight.
#[derive(Debug)]
pub(super) struct WgpuHostMemory {
    open: Arc<OpenDevice>,
    block: Arc<StagingBlock>,
    /// The host's copy of the bytes, where the staging buffer's memory is wgpu's.
    shadow: Option<Vec<CacheLine>>,
    bytes: usize,
    /// Bytes behind a download's end that it overwrites, because wgpu copies whole words.
    saved: Option<SavedBytes>,
    /// The byte ranges that downloads in flight write.
    pending_ranges: SmallVec<[Range<usize>; 1]>,
}

/// The bytes between a download's end and the end of its last word, which are restored when it has finished.
#[derive(Debug, Clone, Copy)]
struct SavedBytes {
    start: usize,
    bytes: [u8; 4],
    len: usize,
}

impl WgpuHostMemory {
    pub(super) fn allocate(open: &Arc<OpenDevice>, bytes: u64, direction: Direction) -> Result<Self> {
        const OPERATION: &str = "allocating host memory";
        open.check(OPERATION)?;
        let class = open.class(OPERATION, bytes)?;
        let cache = open.staging.cache(direction).clone();
        let (StagingMemory { buffer, mapped }, is_host_owned) = match cache.take(class) {
            Some((_, staging)) => (staging, true),
            None => {
                drop(cache.take_excess());
                let staging = open.make_staging(OPERATION, bytes, direction)?;
                cache.add_in_use(staging.buffer.size());
                let is_host_owned = staging.mapped.is_some() || direction == Direction::Upload;
                (staging, is_host_owned)
            }
        };
        let shadow = mapped.is_none().then(|| CacheLine::zeroed(bytes as usize));
        let block = StagingBlock {
            buffer,
            mapped,
            direction,
            is_host_owned: AtomicBool::new(is_host_owned),
            is_secret: AtomicBool::new(false),
            submissions: Mutex::default(),
            cache,
            queue: open.queue.clone(),
        };
        let mut memory = WgpuHostMemory {
            open: open.clone(),
            block: Arc::new(block),
            shadow,
            bytes: bytes as usize,
            saved: None,
            pending_ranges: SmallVec::new(),
        };
        memory.reclaim()?;
        Ok(memory)
    }

    fn is_host_owned(&self) -> bool {
        self.block.is_host_owned.load(Acquire)
    }

    /// Lends the block to a stream, which keeps it until the copy is submitted.
    pub(super) fn lend(
        memory: &mut dyn HostMemory,
        open: &Arc<OpenDevice>,
        direction: Direction,
    ) -> Result<Arc<StagingBlock>> {
        let refuse = |detail: &str| Err(Error::unsupported(&open.id, "copying", detail));
        let Some(memory) = (memory as &mut dyn Any).downcast_mut::<WgpuHostMemory>() else {
            return refuse("the host memory belongs to another device");
        };
        if !Arc::ptr_eq(&memory.open, open) {
            return refuse("the host memory belongs to another device");
        }
        if memory.block.direction != direction {
            return refuse("the host memory was allocated for the other direction");
        }
        if memory.is_host_owned() {
            if let (Some(shadow), Direction::Upload) = (&memory.shadow, direction) {
                let from: &[u8] = &bytemuck::cast_slice(shadow)[..memory.bytes];
                let _lock = open.lock_mappings();
                let mut to =
                    memory.block.buffer.get_mapped_range_mut(..).map_err(|why| mapping_error(open, &why))?;
                to.slice(..from.len()).copy_from_slice(from);
            }
            if memory.shadow.is_some() {
                open.attempt("copying", || memory.block.buffer.unmap())?;
            }
            memory.block.is_host_owned.store(false, Release);
        }
        Ok(memory.block.clone())
    }

    /// Lends the block to a stream for a download into these bytes.
    pub(super) fn lend_for_download(
        memory: &mut dyn HostMemory,
        open: &Arc<OpenDevice>,
        to: Range<u64>,
    ) -> Result<Arc<StagingBlock>> {
        if let Some(memory) = (memory as &mut dyn Any).downcast_mut::<WgpuHostMemory>() {
            memory.save_overwritten(open, to.start as usize..to.end as usize)?;
        }
        Self::lend(memory, open, Direction::Download)
    }

    /// Notes the bytes that a download will write, and saves those behind them that it will overwrite.
    fn save_overwritten(&mut self, open: &OpenDevice, to: Range<usize>) -> Result<()> {
        let word = wgpu::COPY_BUFFER_ALIGNMENT as usize;
        if to.end > self.bytes {
            let detail = format!("bytes {to:?} of {} bytes of host memory", self.bytes);
            return Err(Error::unsupported(&open.id, "downloading", detail));
        }
        if self.is_host_owned() {
            // No copy is in flight; a refused one may have left these entries.
            self.saved = None;
            self.pending_ranges.clear();
        }
        let beside = to.end..to.end.next_multiple_of(word).min(self.bytes);
        if !beside.is_empty() {
            let Some(bytes) = self.bytes().get(beside.clone()) else {
                let detail = format!(
                    "bytes {to:?} of host memory with another copy in flight do not end at a multiple of {word}"
                );
                return Err(Error::unsupported(&open.id, "downloading", detail));
            };
            let mut saved = SavedBytes { start: beside.start, bytes: [0; 4], len: bytes.len() };
            saved.bytes[..bytes.len()].copy_from_slice(bytes);
            self.saved = Some(saved);
        } else if self.saved.is_some_and(|saved| to.contains(&saved.start)) {
            // A later download writes them.
            self.saved = None;
        }
        self.pending_ranges.push(to);
        Ok(())
    }

    /// Fails if a copy from or to this crate's memory is still in flight.
    fn check_ended(&self) -> Result<()> {
        self.open.check(RECLAIMING)?;
        let mut submissions = self.block.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(last) = submissions.last() {
            if !self.open.wait_submission(RECLAIMING, last, Some(Duration::ZERO))? {
                return Err(Error::unsupported(
                    &self.open.id,
                    RECLAIMING,
                    "the copy is still in flight: wait for it first",
                ));
            }
            submissions.pop();
        }
        Ok(())
    }

    /// Maps wgpu's buffer again. Fails if the copy is still in flight.
    fn map(&self) -> Result<()> {
        let state = Arc::new(AtomicU8::new(0));
        let result = state.clone();
        self.open.attempt(RECLAIMING, || {
            self.block.buffer.map_async(mode(self.block.direction), .., move |outcome| {
                result.store(if outcome.is_ok() { 1 } else { 2 }, Release);
            });
        })?;
        // A poll of another thread may be processing this mapping.
        let began = Instant::now();
        while state.load(Acquire) == 0 && began.elapsed() < MAPPING_TIMEOUT {
            self.open.poll(RECLAIMING)?;
            std::thread::yield_now();
        }
        match state.load(Acquire) {
            1 => Ok(()),
            0 => {
                self.open.attempt(RECLAIMING, || self.block.buffer.unmap())?;
                Err(Error::unsupported(
                    &self.open.id,
                    RECLAIMING,
                    "the copy is still in flight: wait for it first",
                ))
            }
            _ => Err(Error::lost(&self.open.id, RECLAIMING, "the driver did not map the memory")),
        }
    }
}

fn mapping_error(open: &OpenDevice, why: &wgpu::MapRangeError) -> Error {
    Error::lost(&open.id, "accessing host memory", why.to_string())
}

impl Drop for WgpuHostMemory {
    fn drop(&mut self) {
        if let Some(shadow) = &mut self.shadow
            && self.block.is_secret.load(Relaxed)
        {
            bytemuck::cast_slice_mut::<CacheLine, u8>(shadow).zeroize();
        }
    }
}

impl HostMemory for WgpuHostMemory {
    fn bytes(&self) -> &[u8] {
        match (&self.block.mapped, &self.shadow) {
            _ if !self.is_host_owned() => &[],
            (_, Some(shadow)) => &bytemuck::cast_slice(shadow)[..self.bytes],
            // SAFETY: the block is at least this long, and `HostAllocator::make` zeroed it. While the host owns it
            // (checked above) no stream has it and no copy is in flight, and `self` is borrowed for as long as the slice
            // lives.
            (Some(mapped), None) => unsafe { mapped.slice(self.bytes) },
            (None, None) => &[],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match (&self.block.mapped, &mut self.shadow) {
            _ if !self.block.is_host_owned.load(Acquire) => &mut [],
            (_, Some(shadow)) => &mut bytemuck::cast_slice_mut(shadow)[..self.bytes],
            // SAFETY: as for `bytes`, and `self` is borrowed mutably.
            (Some(mapped), None) => unsafe { mapped.slice_mut(self.bytes) },
            (None, None) => &mut [],
        }
    }

    fn reclaim(&mut self) -> Result<()> {
        if self.is_host_owned() {
            return Ok(());
        }
        if Arc::strong_count(&self.block) > 1 {
            let detail = "the copy is not submitted yet: flush the stream and wait first";
            return Err(Error::unsupported(&self.open.id, RECLAIMING, detail));
        }
        if self.block.mapped.is_some() {
            self.check_ended()?;
        } else {
            self.map()?;
        }
        // From here on, dropping the block returns it to its cache at once.
        self.block.is_host_owned.store(true, Release);
        let pending_ranges = std::mem::take(&mut self.pending_ranges);
        if let (Some(shadow), Direction::Download, false) =
            (&mut self.shadow, self.block.direction, pending_ranges.is_empty())
        {
            let _lock = self.open.lock_mappings();
            let from =
                self.block.buffer.get_mapped_range(..).map_err(|why| mapping_error(&self.open, &why))?;
            let to: &mut [u8] = bytemuck::cast_slice_mut(shadow);
            for range in pending_ranges {
                to[range.clone()].copy_from_slice(&from[range]);
            }
        }
        if let Some(SavedBytes { start, bytes, len }) = self.saved.take() {
            self.bytes_mut()[start..start + len].copy_from_slice(&bytes[..len]);
        }
        Ok(())
    }

    fn zero_on_release(&mut self) {
        self.block.is_secret.store(true, Relaxed);
    }

    // A copy, because a stream that copies from a block has to own it, and the host could not read it meanwhile.
    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        CopiedMemory::of(self.bytes())
    }
}
