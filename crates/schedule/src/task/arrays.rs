//! The arrays that a kernel reads and writes in one run, and the caller of the run lends.
//!
//! The threads of a run may outlive it, so they have pointers to the arrays. Inputs are read only while their thread is
//! inside the gate of the run's items, and outputs written only while it is inside the gate of the run's results; the run
//! ends by shutting both.
#![allow(unsafe_code)] // Each block says why it is sound.

use std::{
    any::{TypeId, type_name},
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
    pub(super) inputs: Vec<Array<&'a [u8]>>,
    pub(super) outputs: Vec<Array<&'a mut [u8]>>,
}

/// A slice of some type, as bytes.
#[derive(Debug)]
pub(super) struct Array<B> {
    bytes: B,
    pub(super) element: Element,
    pub(super) len: usize,
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

impl<'a> Arrays<'a> {
    /// No arrays yet.
    pub fn new() -> Self {
        Arrays::default()
    }

    /// Adds the next input.
    pub fn input<T: Pod>(mut self, input: &'a [T]) -> Self {
        let (element, len) = (Element::of::<T>(), input.len());
        self.inputs.push(Array { bytes: bytemuck::cast_slice(input), element, len });
        self
    }

    /// Adds the next output, which the results are written to.
    pub fn output<T: Pod>(mut self, output: &'a mut [T]) -> Self {
        let (element, len) = (Element::of::<T>(), output.len());
        self.outputs.push(Array { bytes: bytemuck::cast_slice_mut(output), element, len });
        self
    }

    /// The same for threads that may outlive the arrays.
    pub(super) fn lend(self) -> LentArrays {
        LentArrays {
            inputs: self
                .inputs
                .iter()
                .map(|input| (NonNull::from(input.bytes).cast(), input.bytes.len()))
                .collect(),
            outputs: self
                .outputs
                .into_iter()
                .map(|it| (NonNull::from(&mut *it.bytes).cast(), it.bytes.len()))
                .collect(),
        }
    }
}

/// Arrays that belong to the caller of a run: where the bytes of each begin, and how many there are.
#[derive(Debug)]
pub(super) struct LentArrays {
    inputs: Vec<(NonNull<u8>, usize)>,
    outputs: Vec<(NonNull<u8>, usize)>,
}

// SAFETY: the pointers are of plain bytes, and whoever follows one promises that no other thread is in the way.
unsafe impl Send for LentArrays {}
// SAFETY: as above.
unsafe impl Sync for LentArrays {}

impl LentArrays {
    /// Some bytes of an input.
    ///
    /// # Safety
    /// The input must be there, and not be written to, for as long as the slice is used.
    pub(super) unsafe fn input(&self, index: usize, range: Range<usize>) -> &[u8] {
        let (start, len) = self.inputs[index];
        // SAFETY: the pointer and the length are of a slice, which is there as the caller promises.
        let all = unsafe { std::slice::from_raw_parts(start.as_ptr(), len) };
        &all[range]
    }

    /// Writes some bytes of an output.
    ///
    /// # Safety
    /// The output must be there, and nobody else may touch these bytes meanwhile.
    pub(super) unsafe fn write(&self, index: usize, first: usize, bytes: &[u8]) {
        let (start, len) = self.outputs[index];
        assert!(first <= len && bytes.len() <= len - first, "bytes past the end of output {index}");
        // SAFETY: the range is within the output, which is there and exclusively the caller's.
        unsafe { start.as_ptr().add(first).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}
