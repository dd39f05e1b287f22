//! A function that borrows, as a task for the processor's cores.
//!
//! Worker threads may outlive the run, so they have a pointer to the function. They follow it only inside the gate of the
//! run's items, and the run ends by closing that gate. The items are values of type `()`, which take no memory.
#![allow(unsafe_code)] // Each block says why it is sound.

use std::{cell::Cell, fmt};

use evener_device::{BoxError, Result};

use super::{
    Closure,
    closure::{ChunkFunction, ClaimedItems},
};

/// A pointer to a function of an item's number, owned by the run's caller.
pub(crate) struct BorrowedFunction<O> {
    function: *const (),
    call: CallFunction<O>,
}

/// Calls the function at the address with the numbers of a block's items. Returns how many it has begun.
type CallFunction<O> = unsafe fn(*const (), ClaimedItems<'_, '_, (), O>) -> usize;

// SAFETY: the pointer is only used to call the function through a shared reference, and `borrowed_task` requires `Sync`.
unsafe impl<O> Send for BorrowedFunction<O> {}
// SAFETY: as for `Send`.
unsafe impl<O> Sync for BorrowedFunction<O> {}

impl<O> fmt::Debug for BorrowedFunction<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BorrowedFunction")
    }
}

/// A task that calls a function with the number of each item.
///
/// # Safety
/// The function must be alive for as long as a chunk of a run of this task can be [read](super::Chunk::read): until each
/// of its runs over lent items has returned.
pub(crate) unsafe fn borrowed_task<O, F>(name: &str, function: &F) -> Closure<(), O, BorrowedFunction<O>>
where
    O: Send + 'static,
    F: Fn(usize) -> O + Sync,
{
    /// # Safety
    /// The address is that of a live function of this type.
    unsafe fn call<O, F: Fn(usize) -> O>(function: *const (), block: ClaimedItems<'_, '_, (), O>) -> usize {
        // SAFETY: the caller passes the address of a live `F`.
        let function = unsafe { &*function.cast::<F>() };
        let next = Cell::new(block.first as usize);
        block.fill(|()| function(next.replace(next.get() + 1)))
    }
    Closure::of(name, BorrowedFunction { function: std::ptr::from_ref(function).cast(), call: call::<O, F> })
}

impl<O: 'static> ChunkFunction<(), O> for BorrowedFunction<O> {
    fn run(&self, block: ClaimedItems<'_, '_, (), O>) -> Result<usize, BoxError> {
        // SAFETY: `Closure::run` calls this inside `Chunk::read`, and the caller of `borrowed_task` keeps the function
        // alive for as long as a chunk can be read. `call` was made for the function's own type.
        Ok(unsafe { (self.call)(self.function, block) })
    }
}
