//! An item of a run: a block of leaves, and where it is.
#![allow(unsafe_code)] // Each block says why it is sound.

use std::{marker::PhantomData, ops::Range, ptr::NonNull, sync::Arc};

use evener_device::{SharedBuffer, copy_parallel};

use crate::{
    file::LeafFile,
    leaves::{Leaves, Source},
};

/// The items of a run over some leaves, which are borrowed for as long as there are items.
#[derive(Debug)]
pub(crate) struct Items<'a> {
    blocks: Vec<Block>,
    leaves: PhantomData<&'a [u8]>,
}

impl<'a> Items<'a> {
    /// So many blocks of so many bytes, from a byte on. None of leaves that are not bytes in the host's reach.
    pub(crate) fn new(leaves: &Leaves<'a>, start: u64, count: u64, block_bytes: usize) -> Items<'a> {
        let place = || match &leaves.source {
            // SAFETY: the bytes are borrowed for as long as `Items` is there, and blocks cannot be had out of it.
            Source::Bytes(bytes) => Some(Place::Lent(unsafe { Lent::new(bytes) })),
            Source::Shared(shared) => Some(Place::Shared(shared.clone())),
            Source::File(file) => Some(Place::File(file.clone())),
            Source::Parts(_) | Source::Lines(..) | Source::Device(..) => None,
        };
        let block = |index| Some(Block { place: place()?, at: start + index * block_bytes as u64 });
        Items { blocks: (0..count).map_while(block).collect(), leaves: PhantomData }
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }
}

/// An aligned block of leaves: it begins at a byte of a place, and is as long as the run's blocks are.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) place: Place,
    pub(crate) at: u64,
}

/// Where a run's leaves are.
#[derive(Debug)]
pub(crate) enum Place {
    /// With the caller of the run.
    Lent(Lent),
    Shared(SharedBuffer<u8>),
    File(Arc<LeafFile>),
}

/// Bytes that belong to somebody else.
///
/// A run takes items without a lifetime, because what hangs may hold on to it. It gives them out, though, only as
/// references for the moment of a look, and none of them outlives the call that started it; nor can one be copied.
#[derive(Debug)]
pub(crate) struct Lent {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: all that is done with the pointer is to make shared references of it.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// # Safety
    /// The bytes must stay as they are for as long as this is there.
    unsafe fn new(bytes: &[u8]) -> Lent {
        Lent { start: NonNull::from(bytes).cast(), bytes: bytes.len() }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the pointer and the length are of a slice that stays as it is for as long as `self` is there.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl Block {
    /// The bytes from where the block begins on, where they are in memory: they may go on into the next block.
    pub(crate) fn in_memory(&self, bytes: usize) -> Option<&[u8]> {
        self.part_in_memory(0..bytes)
    }

    /// Some of the bytes, counted from where the block begins.
    fn part_in_memory(&self, part: Range<usize>) -> Option<&[u8]> {
        let all = match &self.place {
            Place::Lent(lent) => lent.bytes(),
            Place::Shared(shared) => shared.as_slice(),
            Place::File(_) => return None,
        };
        all.get(self.at as usize..)?.get(part)
    }

    /// Copies some of the bytes, counted from where the block begins: as many as there is room for. Says what went wrong.
    pub(crate) fn copy_to(&self, first: usize, bytes: &mut [u8]) -> Result<(), String> {
        let at = self.at + first as u64;
        match (&self.place, self.part_in_memory(first..first + bytes.len())) {
            (Place::File(file), _) => file.read(at, bytes),
            (_, Some(there)) => {
                copy_parallel(there, bytes);
                Ok(())
            }
            (_, None) => Err(format!("the leaves end before byte {}", at + bytes.len() as u64)),
        }
    }
}
