//! Host memory that a device copies from or to: staging buffers.
//!
//! A block is in one of three places. The host has it, and reads and writes it. A stream has it, until it has submitted
//! the copy. Nobody has it: it goes back to the shelf when the copy has ended.
//!
//! On a Vulkan device the host works on the staging buffer itself, which is in memory of ours ([`super::pages`]). The other
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
    super::{Copied, Direction, HostMemory, Line, SharedMemory, cpu::pinned_cap, shelf::Shelf},
    hold::Hold,
    pages::Pages,
};
use crate::error::{Error, Result};

/// So long mapping a block may take whose copy has ended.
const MAPPING: Duration = Duration::from_secs(1);

const RECLAIMING: &str = "taking host memory back";

/// Blocks that wait to be used again, for each direction.
#[derive(Debug)]
pub(super) struct Staging {
    upload: Arc<Shelf<Staged>>,
    download: Arc<Shelf<Staged>>,
}

impl Staging {
    pub(super) fn new() -> Self {
        let shelf = || Arc::new(Shelf::new(pinned_cap() / 2));
        Staging { upload: shelf(), download: shelf() }
    }

    fn shelf(&self, direction: Direction) -> &Arc<Shelf<Staged>> {
        match direction {
            Direction::Upload => &self.upload,
            Direction::Download => &self.download,
        }
    }

    pub(super) fn memory_use(&self, direction: Direction) -> super::super::MemoryUsage {
        self.shelf(direction).memory_use()
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
    pub(super) pages: Option<Pages>,
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

/// A staging buffer, which goes back to its shelf when the host and the streams have let go of it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) buffer: Buffer,
    /// As in [`Staged`].
    pages: Option<Pages>,
    direction: Direction,
    /// Whether the host has it.
    is_with_host: AtomicBool,
    /// The submissions that copy from or to it, since the host had it last.
    submissions: Mutex<SmallVec<[SubmissionIndex; 1]>>,
    shelf: Arc<Shelf<Staged>>,
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
        let (shelf, class) = (self.shelf.clone(), self.buffer.size());
        let staged = Staged { buffer: self.buffer.clone(), pages: self.pages.take() };
        if *self.is_with_host.get_mut() {
            shelf.put(class, staged);
            return drop(shelf.excess());
        }
        // The copy was submitted and may be under way.
        staged.when_idle(&self.queue, self.direction, move |staged| match staged {
            Some(staged) => shelf.put(class, staged),
            None => shelf.discount(class),
        });
    }
}

/// Host memory. While a copy is under way it has no bytes.
#[derive(Debug)]
pub(super) struct WgpuHostMemory {
    hold: Arc<Hold>,
    block: Arc<Block>,
    /// What the host works on where the staging buffer's memory is wgpu's.
    shadow: Option<Vec<Line>>,
    bytes: usize,
    /// What a copy under way overwrites behind its last byte, because wgpu copies whole words.
    spared: Option<Spared>,
    /// Bytes that downloads under way write.
    coming: SmallVec<[Range<usize>; 1]>,
}

/// The bytes between a download's end and the end of its last word, to be put back when it has ended.
#[derive(Debug, Clone, Copy)]
struct Spared {
    start: usize,
    bytes: [u8; 4],
    len: usize,
}

impl WgpuHostMemory {
    pub(super) fn allocate(hold: &Arc<Hold>, bytes: u64, direction: Direction) -> Result<Self> {
        const OPERATION: &str = "allocating host memory";
        hold.check(OPERATION)?;
        let class = hold.class(OPERATION, bytes)?;
        let shelf = hold.staging.shelf(direction).clone();
        let (Staged { buffer, pages }, is_with_host) = match shelf.take(class) {
            Some((_, staged)) => (staged, true),
            None => {
                drop(shelf.excess());
                let staged = hold.make_staging(OPERATION, bytes, direction)?;
                shelf.count(staged.buffer.size());
                let is_with_host = staged.pages.is_some() || direction == Direction::Upload;
                (staged, is_with_host)
            }
        };
        let shadow = pages.is_none().then(|| Line::zeroed(bytes as usize));
        let block = Block {
            buffer,
            pages,
            direction,
            is_with_host: AtomicBool::new(is_with_host),
            submissions: Mutex::default(),
            shelf,
            queue: hold.queue.clone(),
        };
        let mut memory = WgpuHostMemory {
            hold: hold.clone(),
            block: Arc::new(block),
            shadow,
            bytes: bytes as usize,
            spared: None,
            coming: SmallVec::new(),
        };
        memory.reclaim()?;
        Ok(memory)
    }

    fn is_with_host(&self) -> bool {
        self.block.is_with_host.load(Acquire)
    }

    /// Hands the block to a stream, which must keep it until the copy is submitted.
    pub(super) fn lend(
        memory: &mut dyn HostMemory,
        hold: &Arc<Hold>,
        direction: Direction,
    ) -> Result<Arc<Block>> {
        let refuse = |detail: &str| Err(Error::unsupported(&hold.id, "copying", detail));
        let Some(memory) = (memory as &mut dyn Any).downcast_mut::<WgpuHostMemory>() else {
            return refuse("the host memory was made for another device");
        };
        if !Arc::ptr_eq(&memory.hold, hold) {
            return refuse("the host memory was made for another device");
        }
        if memory.block.direction != direction {
            return refuse("the host memory was made for the other direction");
        }
        if memory.is_with_host() {
            if let (Some(shadow), Direction::Upload) = (&memory.shadow, direction) {
                let from: &[u8] = &bytemuck::cast_slice(shadow)[..memory.bytes];
                let _turn = hold.turn();
                let mut to = memory.block.buffer.get_mapped_range_mut(..).map_err(|why| gone(hold, &why))?;
                to.slice(..from.len()).copy_from_slice(from);
            }
            if memory.shadow.is_some() {
                hold.attempt("copying", || memory.block.buffer.unmap())?;
            }
            memory.block.is_with_host.store(false, Release);
        }
        Ok(memory.block.clone())
    }

    /// Hands the block to a stream for a download to these bytes of it.
    pub(super) fn lend_for_download(
        memory: &mut dyn HostMemory,
        hold: &Arc<Hold>,
        to: Range<u64>,
    ) -> Result<Arc<Block>> {
        if let Some(memory) = (memory as &mut dyn Any).downcast_mut::<WgpuHostMemory>() {
            memory.spare(hold, to.start as usize..to.end as usize)?;
        }
        Self::lend(memory, hold, Direction::Download)
    }

    /// Notes which bytes a download is to write, and keeps those that it overwrites beside them.
    fn spare(&mut self, hold: &Hold, to: Range<usize>) -> Result<()> {
        let word = wgpu::COPY_BUFFER_ALIGNMENT as usize;
        if to.end > self.bytes {
            let detail = format!("bytes {to:?} of host memory of {}", self.bytes);
            return Err(Error::unsupported(&hold.id, "downloading", detail));
        }
        if self.is_with_host() {
            // No copy is under way; one that was refused may have left these.
            self.spared = None;
            self.coming.clear();
        }
        let beside = to.end..to.end.next_multiple_of(word).min(self.bytes);
        if !beside.is_empty() {
            let Some(bytes) = self.bytes().get(beside.clone()) else {
                let detail =
                    format!("bytes {to:?} of host memory that another copy uses: not a multiple of {word}");
                return Err(Error::unsupported(&hold.id, "downloading", detail));
            };
            let mut spared = Spared { start: beside.start, bytes: [0; 4], len: bytes.len() };
            spared.bytes[..bytes.len()].copy_from_slice(bytes);
            self.spared = Some(spared);
        } else if self.spared.is_some_and(|spared| to.contains(&spared.start)) {
            // A later download writes them.
            self.spared = None;
        }
        self.coming.push(to);
        Ok(())
    }

    /// Fails when a copy from or to memory of ours has not ended.
    fn check_ended(&self) -> Result<()> {
        self.hold.check(RECLAIMING)?;
        let mut submissions = self.block.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(last) = submissions.last() {
            if !self.hold.reached(RECLAIMING, last, Some(Duration::ZERO))? {
                return Err(Error::unsupported(&self.hold.id, RECLAIMING, "the copy has not ended"));
            }
            submissions.pop();
        }
        Ok(())
    }

    /// Maps wgpu's buffer again. Fails when the copy has not ended.
    fn map(&self) -> Result<()> {
        let state = Arc::new(AtomicU8::new(0));
        let told = state.clone();
        self.hold.attempt(RECLAIMING, || {
            self.block.buffer.map_async(mode(self.block.direction), .., move |outcome| {
                told.store(if outcome.is_ok() { 1 } else { 2 }, Release);
            });
        })?;
        // Another thread's poll may have taken the mapping in hand and not be done with it.
        let began = Instant::now();
        while state.load(Acquire) == 0 && began.elapsed() < MAPPING {
            self.hold.poll(RECLAIMING)?;
            std::thread::yield_now();
        }
        match state.load(Acquire) {
            1 => Ok(()),
            0 => {
                self.hold.attempt(RECLAIMING, || self.block.buffer.unmap())?;
                Err(Error::unsupported(&self.hold.id, RECLAIMING, "the copy has not ended"))
            }
            _ => Err(Error::lost(&self.hold.id, RECLAIMING, "the driver did not map it")),
        }
    }
}

fn gone(hold: &Hold, why: &wgpu::MapRangeError) -> Error {
    Error::lost(&hold.id, "reaching host memory", why.to_string())
}

impl HostMemory for WgpuHostMemory {
    fn bytes(&self) -> &[u8] {
        match (&self.block.pages, &self.shadow) {
            _ if !self.is_with_host() => &[],
            (_, Some(shadow)) => &bytemuck::cast_slice(shadow)[..self.bytes],
            // SAFETY: the block is at least this long, zeroed when it was made, and shared with nobody while this is
            // borrowed: streams have let go of it, and their copies have ended.
            (Some(pages), None) => unsafe { pages.slice(self.bytes) },
            (None, None) => &[],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match (&self.block.pages, &mut self.shadow) {
            _ if !self.block.is_with_host.load(Acquire) => &mut [],
            (_, Some(shadow)) => &mut bytemuck::cast_slice_mut(shadow)[..self.bytes],
            // SAFETY: as above, and this is borrowed exclusively.
            (Some(pages), None) => unsafe { pages.slice_mut(self.bytes) },
            (None, None) => &mut [],
        }
    }

    fn reclaim(&mut self) -> Result<()> {
        if self.is_with_host() {
            return Ok(());
        }
        if Arc::strong_count(&self.block) > 1 {
            let detail = "the copy has not been started";
            return Err(Error::unsupported(&self.hold.id, RECLAIMING, detail));
        }
        if self.block.pages.is_some() {
            self.check_ended()?;
        } else {
            self.map()?;
        }
        // From here on, dropping the block returns it to its shelf at once.
        self.block.is_with_host.store(true, Release);
        let coming = std::mem::take(&mut self.coming);
        if let (Some(shadow), Direction::Download, false) =
            (&mut self.shadow, self.block.direction, coming.is_empty())
        {
            let _turn = self.hold.turn();
            let from = self.block.buffer.get_mapped_range(..).map_err(|why| gone(&self.hold, &why))?;
            let to: &mut [u8] = bytemuck::cast_slice_mut(shadow);
            for range in coming {
                to[range.clone()].copy_from_slice(&from[range]);
            }
        }
        if let Some(Spared { start, bytes, len }) = self.spared.take() {
            self.bytes_mut()[start..start + len].copy_from_slice(&bytes[..len]);
        }
        Ok(())
    }

    // A stream that copies from a block has it alone, and then the host cannot read it.
    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        Copied::of(self.bytes())
    }
}
