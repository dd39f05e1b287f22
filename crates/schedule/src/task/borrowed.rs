//! A function that borrows, as a task for the processor's cores.
//!
//! The threads of a run may outlive it, so a task owns what it needs. A function that borrows is lent instead, as a run's
//! items are: worker threads have a pointer to it, which they follow only while they are inside the gate of the items, and
//! the run ends by shutting that gate. The items are as many units, which take no memory.
#![allow(unsafe_code)] // Each block says why it is sound.

use std::{cell::Cell, fmt};

use evener_device::{BoxError, Result};

use super::{
    Closure,
    closure::{Block, OfChunk},
};

/// A function of an item's number that belongs to somebody else.
pub(crate) struct BorrowedFunction<O> {
    function: *const (),
    call: Call<O>,
}

/// Gives the numbers of some items to the function at the address. Says how many it has begun.
type Call<O> = unsafe fn(*const (), Block<'_, '_, (), O>) -> usize;

// SAFETY: all that is done with the pointer is to call the function through a shared reference, and `BorrowedFunction::new`
// asks for `Sync`.
unsafe impl<O> Send for BorrowedFunction<O> {}
// SAFETY: as above.
unsafe impl<O> Sync for BorrowedFunction<O> {}

impl<O> fmt::Debug for BorrowedFunction<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BorrowedFunction")
    }
}

/// A task that calls a function with the number of each item.
///
/// # Safety
/// The function must be there for as long as a chunk of a run of this task can be [read](super::Chunk::read): until each of
/// its runs over lent items has returned.
pub(crate) unsafe fn borrowed<O, F>(name: &str, function: &F) -> Closure<(), O, BorrowedFunction<O>>
where
    O: Send + 'static,
    F: Fn(usize) -> O + Sync,
{
    /// # Safety
    /// The address is that of a live function of this type.
    unsafe fn call<O, F: Fn(usize) -> O>(function: *const (), block: Block<'_, '_, (), O>) -> usize {
        // SAFETY: the caller's promise.
        let function = unsafe { &*function.cast::<F>() };
        let next = Cell::new(block.first as usize);
        block.fill(|()| function(next.replace(next.get() + 1)))
    }
    Closure::of(name, BorrowedFunction { function: std::ptr::from_ref(function).cast(), call: call::<O, F> })
}

impl<O: 'static> OfChunk<(), O> for BorrowedFunction<O> {
    fn run(&self, block: Block<'_, '_, (), O>) -> Result<usize, BoxError> {
        // SAFETY: a closure's task calls this while it reads a chunk, and until then the function is there, as the caller
        // of `borrowed` has promised.
        Ok(unsafe { (self.call)(self.function, block) })
    }
}
