//! The items of a run: blocks of leaves and where they are stored.
#![allow(unsafe_code)] // For `BorrowedBytes`.

use std::{marker::PhantomData, ops::Range, ptr::NonNull, sync::Arc};

use evener_device::{SharedBuffer, copy_parallel};

use crate::{
    file::LeafFile,
    leaves::{LeafSource, Leaves},
};

/// The items of a run over some leaves. The leaves stay borrowed while the items exist.
#[derive(Debug)]
pub(crate) struct BlockItems<'a> {
    blocks: Vec<Block>,
    leaves: PhantomData<&'a [u8]>,
}

impl<'a> BlockItems<'a> {
    /// Creates `count` blocks of `block_bytes` bytes, from the byte `start` on. Creates none for leaves that are not
    /// contiguous bytes on the host.
    pub(crate) fn new(leaves: &Leaves<'a>, start: u64, count: u64, block_bytes: usize) -> BlockItems<'a> {
        let source = || match &leaves.source {
            // SAFETY: the bytes outlive the `BorrowedBytes`: `BlockItems<'a>` borrows them for `'a`, owns the blocks and
            // hands out only references to them (`BlockItems::blocks`), and `Block` is not `Clone`.
            LeafSource::Bytes(bytes) => Some(BlockSource::Borrowed(unsafe { BorrowedBytes::new(bytes) })),
            LeafSource::Shared(shared) => Some(BlockSource::Shared(shared.clone())),
            LeafSource::File(file) => Some(BlockSource::File(file.clone())),
            LeafSource::Slices(_) | LeafSource::Lines(..) | LeafSource::Device(..) => None,
        };
        let block = |index| Some(Block { source: source()?, offset: start + index * block_bytes as u64 });
        BlockItems { blocks: (0..count).map_while(block).collect(), leaves: PhantomData }
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }
}

/// An aligned block of leaves. All blocks of a run have the same size, which the task knows.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) source: BlockSource,
    /// The block's first byte within the source.
    pub(crate) offset: u64,
}

/// Where the leaves of a block are stored.
#[derive(Debug)]
pub(crate) enum BlockSource {
    /// In memory that the caller of the run owns.
    Borrowed(BorrowedBytes),
    Shared(SharedBuffer<u8>),
    File(Arc<LeafFile>),
}

/// Bytes that the caller of a run owns, without a lifetime.
///
/// The items of a run must be `'static`, because a thread of a hung device may outlive the run. The scheduler passes items
/// to tasks only as references within [`Chunk::read`](evener_schedule::Chunk::read), which does not return items after the
/// run has ended, and this type cannot be cloned. So no access outlives the call that started the run.
#[derive(Debug)]
pub(crate) struct BorrowedBytes {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pointer is only used for shared references to bytes, which any thread may read (`BorrowedBytes::bytes`).
unsafe impl Send for BorrowedBytes {}
// SAFETY: as for `Send`: all accesses are shared reads.
unsafe impl Sync for BorrowedBytes {}

impl BorrowedBytes {
    /// Erases the lifetime of a slice.
    ///
    /// # Safety
    /// The slice must stay valid and unchanged while the result exists.
    unsafe fn new(bytes: &[u8]) -> BorrowedBytes {
        BorrowedBytes { start: NonNull::from(bytes).cast(), bytes: bytes.len() }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `start` and `bytes` come from one slice in `new`, whose caller keeps it valid and unchanged while `self`
        // exists.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl Block {
    /// Returns the first `bytes` bytes from the block's first on, if they are in memory. They may extend into the
    /// following blocks.
    pub(crate) fn slice(&self, bytes: usize) -> Option<&[u8]> {
        self.subslice(0..bytes)
    }

    /// Returns a range of bytes, counted from the block's first.
    fn subslice(&self, part: Range<usize>) -> Option<&[u8]> {
        let all = match &self.source {
            BlockSource::Borrowed(borrowed) => borrowed.bytes(),
            BlockSource::Shared(shared) => shared.as_slice(),
            BlockSource::File(_) => return None,
        };
        all.get(self.offset as usize..)?.get(part)
    }

    /// Copies bytes to fill `bytes`, from `first` on, counted from the block's first byte. Returns the error as text.
    pub(crate) fn copy_to(&self, first: usize, bytes: &mut [u8]) -> Result<(), String> {
        let at = self.offset + first as u64;
        match (&self.source, self.subslice(first..first + bytes.len())) {
            (BlockSource::File(file), _) => file.read(at, bytes),
            (_, Some(leaves)) => {
                copy_parallel(leaves, bytes);
                Ok(())
            }
            (_, None) => Err(format!("the leaves end before byte {}", at + bytes.len() as u64)),
        }
    }
}
