//! Host memory of a remote device: ordinary memory, which a copy in flight has.

use std::{
    any::Any,
    ops::Range,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use zeroize::Zeroize;

use crate::{
    backend::{CacheLine, HostMemory, SharedMemory},
    describe::DeviceId,
    error::{Error, Result},
};

/// A block of memory.
#[derive(Debug, Default)]
struct Block {
    lines: Vec<CacheLine>,
    /// Whether it is zeroed before it is freed.
    is_secret: bool,
}

impl Block {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.is_secret {
            self.bytes_mut().zeroize();
        }
    }
}

/// How long a block may take to be returned after its copy has finished.
const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// Where a copy puts the block back when it has finished.
#[derive(Debug, Default)]
struct Home {
    block: Mutex<Option<Block>>,
    returned: Condvar,
}

#[derive(Debug)]
pub(super) struct RemoteHostMemory {
    device: DeviceId,
    block: Block,
    bytes: usize,
    lent: Option<Arc<Home>>,
}

impl RemoteHostMemory {
    /// Allocates zeroed memory. Returns `None` if there is not enough.
    pub(super) fn new(bytes: u64, device: DeviceId) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        let lines = bytemuck::allocation::try_zeroed_vec(bytes.div_ceil(size_of::<CacheLine>())).ok()?;
        Some(RemoteHostMemory { device, block: Block { lines, is_secret: false }, bytes, lent: None })
    }

    pub(super) fn of<'a>(memory: &'a mut dyn HostMemory, device: &DeviceId) -> Result<&'a mut Self> {
        let memory = (memory as &mut dyn Any).downcast_mut::<RemoteHostMemory>();
        memory
            .ok_or_else(|| Error::unsupported(device, "copying", "the host memory belongs to another device"))
    }

    /// Lends the block to a copy.
    pub(super) fn lend(&mut self) -> Result<LentBlock> {
        self.reclaim()?;
        let home = Arc::new(Home::default());
        self.lent = Some(home.clone());
        Ok(LentBlock { block: std::mem::take(&mut self.block), home })
    }

    fn held(&self) -> usize {
        if self.lent.is_some() { 0 } else { self.bytes }
    }
}

impl HostMemory for RemoteHostMemory {
    fn bytes(&self) -> &[u8] {
        &self.block.bytes()[..self.held()]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let held = self.held();
        &mut self.block.bytes_mut()[..held]
    }

    fn reclaim(&mut self) -> Result<()> {
        let Some(home) = &self.lent else { return Ok(()) };
        // The worker may report the end of a copy before the thread that sent its last piece has returned the block.
        let block = home.block.lock().unwrap_or_else(PoisonError::into_inner);
        let returned = home.returned.wait_timeout_while(block, RETURN_LIMIT, |block| block.is_none());
        let Some(block) = returned.unwrap_or_else(PoisonError::into_inner).0.take() else {
            let detail = "the copy is still in flight: wait for it first";
            return Err(Error::unsupported(&self.device, "reclaiming host memory", detail));
        };
        self.block = block;
        self.lent = None;
        Ok(())
    }

    fn zero_on_release(&mut self) {
        self.block.is_secret = true;
    }

    fn share(self: Box<Self>) -> Arc<dyn SharedMemory> {
        Arc::new(RemoteSharedMemory { bytes: self.held(), block: self.block })
    }
}

/// Read-only host memory.
#[derive(Debug)]
struct RemoteSharedMemory {
    block: Block,
    bytes: usize,
}

impl SharedMemory for RemoteSharedMemory {
    fn bytes(&self) -> &[u8] {
        &self.block.bytes()[..self.bytes]
    }
}

/// A block that a copy has. Dropping it returns the block to its owner.
#[derive(Debug)]
pub(super) struct LentBlock {
    block: Block,
    home: Arc<Home>,
}

impl Drop for LentBlock {
    fn drop(&mut self) {
        let block = std::mem::take(&mut self.block);
        *self.home.block.lock().unwrap_or_else(PoisonError::into_inner) = Some(block);
        self.home.returned.notify_all();
    }
}

/// A part of lent memory that is uploaded.
#[derive(Debug)]
pub(super) struct LentPart {
    pub(super) block: Arc<LentBlock>,
    pub(super) range: Range<usize>,
}

impl AsRef<[u8]> for LentPart {
    fn as_ref(&self) -> &[u8] {
        &self.block.block.bytes()[self.range.clone()]
    }
}

/// A part of shared memory that is uploaded.
#[derive(Debug)]
pub(super) struct SharedPart {
    pub(super) memory: Arc<dyn SharedMemory>,
    pub(super) range: Range<usize>,
}

impl AsRef<[u8]> for SharedPart {
    fn as_ref(&self) -> &[u8] {
        &self.memory.bytes()[self.range.clone()]
    }
}

/// Lent memory that a download fills from its beginning to its end.
#[derive(Debug)]
pub(super) struct DownloadTarget {
    block: LentBlock,
    missing: Range<usize>,
    /// The place of the download's first byte in the block.
    start: usize,
}

impl DownloadTarget {
    /// A download into this range of the block, which has it.
    pub(super) fn new(block: LentBlock, range: Range<usize>) -> Self {
        DownloadTarget { block, start: range.start, missing: range }
    }

    /// Takes the place of the next piece. Returns `None` if the piece is not the next, or is too long.
    pub(super) fn next_piece(&mut self, offset: u64, bytes: usize) -> Option<&mut [u8]> {
        let received = (self.missing.start - self.start) as u64;
        if offset != received || bytes == 0 || bytes > self.missing.len() {
            return None;
        }
        let piece = self.missing.start..self.missing.start + bytes;
        self.missing.start = piece.end;
        self.block.block.bytes_mut().get_mut(piece)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}

#[cfg(test)]
mod test {
    use std::thread;

    use super::*;

    #[test]
    fn a_block_whose_copy_has_just_finished_is_waited_for() {
        let mut memory = RemoteHostMemory::new(100, DeviceId::from("cpu")).unwrap();
        memory.bytes_mut().fill(7);
        let lent = memory.lend().unwrap();
        assert!(memory.bytes().is_empty());
        let returning = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(lent);
        });
        memory.reclaim().unwrap();
        assert_eq!(memory.bytes(), [7; 100]);
        returning.join().unwrap();
    }
}
