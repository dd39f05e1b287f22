//! Host memory that a device copies from or to: staging buffers.
//!
//! A block is in one of three places. The host has it, and reads and writes it. A stream has it, until it has submitted
//! the copy. Nobody has it: it goes back to the cache when the copy has ended.
//!
//! On a Vulkan device the host works on the staging buffer itself, which is in memory of ours ([`super::mapped_memory`]). The other
//! APIs' staging buffers are wgpu's, mapped while the host has them, and their memory may go with a lost device: the host
//! works on memory of its own, and the mapping is touched only to copy from there or to there, while no poll is under way.

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
use wgpu::{Buffer, MapMode, Queue, SubmissionIndex};

use super::{
    super::{
        CacheLine, CopiedMemory, Direction, HostMemory, SharedMemory, block_cache::BlockCache,
        cpu::pinned_cap,
    },
    mapped_memory::MappedMemory,
    open_device::OpenDevice,
};
use crate::error::{Error, Result};

/// So long mapping a block may take whose copy has ended.
const MAPPING_TIMEOUT: Duration = Duration::from_secs(1);

const RECLAIMING: &str = "taking host memory back";

/// Blocks that wait to be used again, for each direction.
#[derive(Debug)]
pub(super) struct Staging {
    upload: Arc<BlockCache<Staged>>,
    download: Arc<BlockCache<Staged>>,
}

impl Staging {
    pub(super) fn new() -> Self {
        let cache = || Arc::new(BlockCache::new(pinned_cap() / 2));
        Staging { upload: cache(), download: cache() }
    }

    fn cache(&self, direction: Direction) -> &Arc<BlockCache<Staged>> {
        match direction {
            Direction::Upload => &self.upload,
            Direction::Download => &self.download,
        }
    }

    pub(super) fn usage(&self, direction: Direction) -> super::super::MemoryUsage {
        self.cache(direction).usage()
    }

    /// Gives up every block on the shelves.
    pub(super) fn clear(&self) {
        drop((self.upload.clear(), self.download.clear()));
    }
}

/// A staging buffer.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) buffer: Buffer,
    /// The memory that it is in, where that is ours. Else the host reaches the buffer by mapping it.
    pub(super) pages: Option<MappedMemory>,
}

impl Staged {
    /// Calls back when everything has ended that was submitted so far, with the buffer in the host's hands, or with nothing
    /// where the device is lost. What the callback keeps alive must not include the device.
    pub(super) fn when_idle(
        self,
        queue: &Queue,
        direction: Direction,
        then: impl FnOnce(Option<Staged>) + Send + 'static,
    ) {
        match self.pages {
            Some(_) => queue.on_submitted_work_done(move || then(Some(self))),
            None => self
                .buffer
                .clone()
                .map_async(mode(direction), .., move |outcome| then(outcome.ok().map(|()| self))),
        }
    }

    /// The first so many bytes of a buffer for downloads, for a callback that was just given it; other APIs' buffers are
    /// unmapped then. Nothing where the device is lost.
    pub(super) fn read(&self, bytes: usize) -> Option<Vec<u8>> {
        if let Some(pages) = &self.pages {
            // SAFETY: the memory is at least as long as the buffer, zeroed when it was made, and the host has it.
            let all = unsafe { pages.slice(self.buffer.size() as usize) };
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

/// A staging buffer, which goes back to its cache when the host and the streams have let go of it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) buffer: Buffer,
    /// As in [`Staged`].
    pages: Option<MappedMemory>,
    direction: Direction,
    /// Whether the host has it.
    is_host_owned: AtomicBool,
    /// The submissions that copy from or to it, since the host had it last.
    submissions: Mutex<SmallVec<[SubmissionIndex; 1]>>,
    cache: Arc<BlockCache<Staged>>,
    queue: Queue,
}

impl Block {
    /// Notes a submission with a copy from or to it.
    pub(super) fn note(&self, submission: &SubmissionIndex) {
        if self.pages.is_some() {
            self.submissions.lock().unwrap_or_else(PoisonError::into_inner).push(submission.clone());
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let (cache, class) = (self.cache.clone(), self.buffer.size());
        let staged = Staged { buffer: self.buffer.clone(), pages: self.pages.take() };
        if *self.is_host_owned.get_mut() {
            cache.put(class, staged);
            return drop(cache.take_excess());
        }
        // The copy was submitted and may be under way.
        staged.when_idle(&self.queue, self.direction, move |staged| match staged {
            Some(staged) => cache.put(class, staged),
            None => cache.remove_in_use(class),
        });
    }
}

/// Host memory. While a copy is under way it has no bytes.
#[derive(Debug)]
pub(super) struct WgpuHostMemory {
    open: Arc<OpenDevice>,
    block: Arc<Block>,
    /// What the host works on where the staging buffer's memory is wgpu's.
    shadow: Option<Vec<CacheLine>>,
    bytes: usize,
    /// What a copy under way overwrites behind its last byte, because wgpu copies whole inner_message.
    saved: Option<SavedBytes>,
    /// Bytes that downloads under way write.
    coming: SmallVec<[Range<usize>; 1]>,
}

/// The bytes between a download's end and the end of its last word, to be put back when it has ended.
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
        let (Staged { buffer, pages }, is_host_owned) = match cache.take(class) {
            Some((_, staged)) => (staged, true),
            None => {
                drop(cache.take_excess());
                let staged = open.make_staging(OPERATION, bytes, direction)?;
                cache.add_in_use(staged.buffer.size());
                let is_host_owned = staged.pages.is_some() || direction == Direction::Upload;
                (staged, is_host_owned)
            }
        };
        let shadow = pages.is_none().then(|| CacheLine::zeroed(bytes as usize));
        let block = Block {
            buffer,
            pages,
            direction,
            is_host_owned: AtomicBool::new(is_host_owned),
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
            coming: SmallVec::new(),
        };
        memory.reclaim()?;
        Ok(memory)
    }

    fn is_host_owned(&self) -> bool {
        self.block.is_host_owned.load(Acquire)
    }

    /// Hands the block to a stream, which must keep it until the copy is submitted.
    pub(super) fn lend(
        memory: &mut dyn HostMemory,
        open: &Arc<OpenDevice>,
        direction: Direction,
    ) -> Result<Arc<Block>> {
        let refuse = |detail: &str| Err(Error::unsupported(&open.id, "copying", detail));
        let Some(memory) = (memory as &mut dyn Any).downcast_mut::<WgpuHostMemory>() else {
            return refuse("the host memory was made for another device");
        };
        if !Arc::ptr_eq(&memory.open, open) {
            return refuse("the host memory was made for another device");
        }
        if memory.block.direction != direction {
            return refuse("the host memory was made for the other direction");
        }
        if memory.is_host_owned() {
            if let (Some(shadow), Direction::Upload) = (&memory.shadow, direction) {
                let from: &[u8] = &bytemuck::cast_slice(shadow)[..memory.bytes];
                let _turn = open.turn();
                let mut to = memory.block.buffer.get_mapped_range_mut(..).map_err(|why| gone(open, &why))?;
                to.slice(..from.len()).copy_from_slice(from);
            }
            if memory.shadow.is_some() {
                open.attempt("copying", || memory.block.buffer.unmap())?;
            }
            memory.block.is_host_owned.store(false, Release);
        }
        Ok(memory.block.clone())
    }

    /// Hands the block to a stream for a download to these bytes of it.
    pub(super) fn lend_for_download(
        memory: &mut dyn HostMemory,
        open: &Arc<OpenDevice>,
        to: Range<u64>,
    ) -> Result<Arc<Block>> {
        if let Some(memory) = (memory as &mut dyn Any).downcast_mut::<WgpuHostMemory>() {
            memory.spare(open, to.start as usize..to.end as usize)?;
        }
        Self::lend(memory, open, Direction::Download)
    }

    /// Notes which bytes a download is to write, and keeps those that it overwrites beside them.
    fn spare(&mut self, open: &OpenDevice, to: Range<usize>) -> Result<()> {
        let word = wgpu::COPY_BUFFER_ALIGNMENT as usize;
        if to.end > self.bytes {
            let detail = format!("bytes {to:?} of host memory of {}", self.bytes);
            return Err(Error::unsupported(&open.id, "downloading", detail));
        }
        if self.is_host_owned() {
            // No copy is under way; one that was refused may have left these.
            self.saved = None;
            self.coming.clear();
        }
        let beside = to.end..to.end.next_multiple_of(word).min(self.bytes);
        if !beside.is_empty() {
            let Some(bytes) = self.bytes().get(beside.clone()) else {
                let detail =
                    format!("bytes {to:?} of host memory that another copy uses: not a multiple of {word}");
                return Err(Error::unsupported(&open.id, "downloading", detail));
            };
            let mut saved = SavedBytes { start: beside.start, bytes: [0; 4], len: bytes.len() };
            saved.bytes[..bytes.len()].copy_from_slice(bytes);
            self.saved = Some(saved);
        } else if self.saved.is_some_and(|saved| to.contains(&saved.start)) {
            // A later download writes them.
            self.saved = None;
        }
        self.coming.push(to);
        Ok(())
    }

    /// Fails when a copy from or to memory of ours has not ended.
    fn check_ended(&self) -> Result<()> {
        self.open.check(RECLAIMING)?;
        let mut submissions = self.block.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(last) = submissions.last() {
            if !self.open.reached(RECLAIMING, last, Some(Duration::ZERO))? {
                return Err(Error::unsupported(&self.open.id, RECLAIMING, "the copy has not ended"));
            }
            submissions.pop();
        }
        Ok(())
    }

    /// Maps wgpu's buffer again. Fails when the copy has not ended.
    fn map(&self) -> Result<()> {
        let state = Arc::new(AtomicU8::new(0));
        let told = state.clone();
        self.open.attempt(RECLAIMING, || {
            self.block.buffer.map_async(mode(self.block.direction), .., move |outcome| {
                told.store(if outcome.is_ok() { 1 } else { 2 }, Release);
            });
        })?;
        // Another thread's poll may have taken the mapping in hand and not be done with it.
        let began = Instant::now();
        while state.load(Acquire) == 0 && began.elapsed() < MAPPING_TIMEOUT {
            self.open.poll(RECLAIMING)?;
            std::thread::yield_now();
        }
        match state.load(Acquire) {
            1 => Ok(()),
            0 => {
                self.open.attempt(RECLAIMING, || self.block.buffer.unmap())?;
                Err(Error::unsupported(&self.open.id, RECLAIMING, "the copy has not ended"))
            }
            _ => Err(Error::lost(&self.open.id, RECLAIMING, "the driver did not map it")),
        }
    }
}

fn gone(open: &OpenDevice, why: &wgpu::MapRangeError) -> Error {
    Error::lost(&open.id, "reaching host memory", why.to_string())
}

impl HostMemory for WgpuHostMemory {
    fn bytes(&self) -> &[u8] {
        match (&self.block.pages, &self.shadow) {
            _ if !self.is_host_owned() => &[],
            (_, Some(shadow)) => &bytemuck::cast_slice(shadow)[..self.bytes],
            // SAFETY: the block is at least this long, zeroed when it was made, and shared with nobody while this is
            // borrowed: streams have let go of it, and their copies have ended.
            (Some(pages), None) => unsafe { pages.slice(self.bytes) },
            (None, None) => &[],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match (&self.block.pages, &mut self.shadow) {
            _ if !self.block.is_host_owned.load(Acquire) => &mut [],
            (_, Some(shadow)) => &mut bytemuck::cast_slice_mut(shadow)[..self.bytes],
            // SAFETY: as above, and this is borrowed exclusively.
            (Some(pages), None) => unsafe { pages.slice_mut(self.bytes) },
            (None, None) => &mut [],
        }
    }

    fn reclaim(&mut self) -> Result<()> {
        if self.is_host_owned() {
            return Ok(());
        }
        if Arc::strong_count(&self.block) > 1 {
            let detail = "the copy has not been started";
            return Err(Error::unsupported(&self.open.id, RECLAIMING, detail));
        }
        if self.block.pages.is_some() {
            self.check_ended()?;
        } else {
            self.map()?;
        }
        // From here on, dropping the block returns it to its cache at once.
        self.block.is_host_owned.store(true, Release);
        let coming = std::mem::take(&mut self.coming);
        if let (Some(shadow), Direction::Download, false) =
            (&mut self.shadow, self.block.direction, coming.is_empty())
        {
            let _turn = self.open.turn();
            let from = self.block.buffer.get_mapped_range(..).map_err(|why| gone(&self.open, &why))?;
            let to: &mut [u8] = bytemuck::cast_slice_mut(shadow);
            for range in coming {
                to[range.clone()].copy_from_slice(&from[range]);
            }
        }
        if let Some(SavedBytes { start, bytes, len }) = self.saved.take() {
            self.bytes_mut()[start..start + len].copy_from_slice(&bytes[..len]);
        }
        Ok(())
    }

    // A stream that copies from a block has it alone, and then the host cannot read it.
    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        CopiedMemory::of(self.bytes())
    }
}
