//! The arrays that a kernel reads and writes in one run, and the caller of the run lends.
//!
//! The threads of a run may outlive it, so they have pointers to the arrays. Inputs are read only while their thread is
//! inside the gate of the run's items, and outputs written only while it is inside the gate of the run's results; the run
//! ends by shutting both.
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
/// On an error, what is in the outputs is any mixture of what was there and results.
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

    /// Adds the next output, which the results are written to. It is not read: the kernel does not see what is in it, and
    /// must write every element. Those that the kernel leaves unwritten are unspecified afterwards.
    pub fn output<T: Pod>(mut self, output: &'a mut [T]) -> Self {
        self.outputs.push(LentArray::new::<T>(NonNull::from(output)));
        self
    }
}

/// The type of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element {
    id: TypeId,
    pub(super) name: &'static str,
    pub(super) bytes: usize,
}

impl Element {
    pub(super) fn of<T: Pod>() -> Self {
        Element { id: TypeId::of::<T>(), name: type_name::<T>(), bytes: size_of::<T>() }
    }
}

/// An array of so many elements that belongs to the caller of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct LentArray {
    start: NonNull<u8>,
    pub(super) element: Element,
    pub(super) len: usize,
}

// SAFETY: the pointer is of plain bytes, and whoever follows it promises that no other thread is in the way.
unsafe impl Send for LentArray {}
// SAFETY: as above.
unsafe impl Sync for LentArray {}

impl LentArray {
    fn new<T: Pod>(array: NonNull<[T]>) -> Self {
        LentArray { start: array.cast(), element: Element::of::<T>(), len: array.len() }
    }

    /// Where these bytes begin.
    fn start(&self, range: &Range<usize>) -> *mut u8 {
        let all = self.len * self.element.bytes;
        assert!(range.start <= range.end && range.end <= all, "bytes {range:?} of {all}");
        // SAFETY: the range is within the array.
        unsafe { self.start.as_ptr().add(range.start) }
    }

    /// Some of its bytes.
    ///
    /// # Safety
    /// The array must be there, and not be written to, for as long as the slice is used.
    pub(super) unsafe fn read<'s>(&self, range: Range<usize>) -> &'s [u8] {
        // SAFETY: they are bytes of elements without padding, which are there as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start(&range), range.len()) }
    }

    /// Writes some of its bytes, from this one on.
    ///
    /// # Safety
    /// The array must be there and be an output, and nobody else may touch these bytes meanwhile.
    pub(super) unsafe fn write(&self, first: usize, bytes: &[u8]) {
        let to = self.start(&(first..first + bytes.len()));
        // SAFETY: the range is within the output, which is there and exclusively the caller's.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}
