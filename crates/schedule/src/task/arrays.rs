//! The arrays that a kernel reads and writes in one run, borrowed from the run's caller.
//!
//! Worker threads may outlive the run, so they have pointers to the arrays. A worker reads inputs only inside the gate of
//! the run's items, and writes outputs only inside the gate of the run's results; the run ends by closing both.
#![allow(unsafe_code)] // Each block says why it is sound.

use std::{
    any::{TypeId, type_name},
    marker::PhantomData,
    ops::Range,
    ptr::NonNull,
};

use bytemuck::Pod;

/// The slices that a [`KernelTask`](super::KernelTask) made with [`arrays`](super::KernelTask::arrays) reads and writes in
/// one run: see [`Pool::map_arrays`](crate::Pool::map_arrays).
///
/// After an error, the outputs hold any mixture of old values and results.
#[derive(Debug, Default)]
pub struct Arrays<'a> {
    pub(super) inputs: Vec<LentArray>,
    pub(super) outputs: Vec<LentArray>,
    lent: PhantomData<&'a mut [u8]>,
}

impl<'a> Arrays<'a> {
    /// No arrays yet.
    pub fn new() -> Self {
        Arrays::default()
    }

    /// Adds the next input.
    pub fn input<T: Pod>(mut self, input: &'a [T]) -> Self {
        self.inputs.push(LentArray::new::<T>(NonNull::from(input)));
        self
    }

    /// Adds the next output, to which the results are written. The kernel does not see the previous contents, and must write
    /// every element: an element that it leaves unwritten is unspecified afterwards.
    pub fn output<T: Pod>(mut self, output: &'a mut [T]) -> Self {
        self.outputs.push(LentArray::new::<T>(NonNull::from(output)));
        self
    }
}

/// The type of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ElementType {
    id: TypeId,
    pub(super) name: &'static str,
    pub(super) bytes: usize,
}

impl ElementType {
    pub(super) fn of<T: Pod>() -> Self {
        ElementType { id: TypeId::of::<T>(), name: type_name::<T>(), bytes: size_of::<T>() }
    }
}

/// A pointer to an array of the run's caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct LentArray {
    start: NonNull<u8>,
    pub(super) element: ElementType,
    pub(super) len: usize,
}

// SAFETY: only `read` and `write` use the pointer, and their callers promise that the array is alive and not written by
// another thread. Its elements are plain bytes (`Pod`), which any thread may have.
unsafe impl Send for LentArray {}
// SAFETY: as for `Send`.
unsafe impl Sync for LentArray {}

impl LentArray {
    fn new<T: Pod>(array: NonNull<[T]>) -> Self {
        LentArray { start: array.cast(), element: ElementType::of::<T>(), len: array.len() }
    }

    /// Pointer to the first byte of a range. Panics if the range is out of bounds.
    fn start(&self, range: &Range<usize>) -> *mut u8 {
        let all = self.len * self.element.bytes;
        assert!(range.start <= range.end && range.end <= all, "bytes {range:?} of {all}");
        // SAFETY: the assertion keeps the range within the array.
        unsafe { self.start.as_ptr().add(range.start) }
    }

    /// Returns a range of the array's bytes.
    ///
    /// # Safety
    /// The array must be alive, and not be written to, for as long as the slice is used.
    pub(super) unsafe fn read<'s>(&self, range: Range<usize>) -> &'s [u8] {
        // SAFETY: `start` has checked the range, `Pod` elements have no padding, and the caller keeps the array alive.
        unsafe { std::slice::from_raw_parts(self.start(&range), range.len()) }
    }

    /// Copies bytes into the array, from byte `first` on.
    ///
    /// # Safety
    /// The array must be a live output, and no other thread may use these bytes during the call.
    pub(super) unsafe fn write(&self, first: usize, bytes: &[u8]) {
        let to = self.start(&(first..first + bytes.len()));
        // SAFETY: `start` has checked the range, and the caller has the bytes of a live output to itself.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}
