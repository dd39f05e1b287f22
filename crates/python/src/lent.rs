//! Memory of Python's arrays, lent to a call.
//!
//! The stable ABI of Python 3.9 has no buffer protocol, so Python's part of the package passes addresses, and keeps the arrays
//! alive for as long as the call.
#![allow(unsafe_code)]

use std::slice;

use bytemuck::Pod;

/// Memory of an array that lives as long as the call which it was passed to.
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

impl Lent {
    /// The memory, for reading. Programs must not change an array in another thread while a call reads it, as for NumPy's own
    /// functions.
    pub(crate) fn read(&self) -> &[u8] {
        self.typed()
    }

    /// The memory as elements. Empty if it is not aligned for them, which arrays of NumPy are.
    pub(crate) fn typed<T: Pod>(&self) -> &[T] {
        if self.bytes == 0 || !self.address.is_multiple_of(align_of::<T>()) {
            return &[];
        }
        // SAFETY: `_arrays.py` passes the address and the size of a contiguous array which it holds during the call.
        unsafe { slice::from_raw_parts(self.address as *const T, self.bytes / size_of::<T>()) }
    }

    /// The memory as elements that can be written. Empty as for `typed`.
    ///
    /// # Safety
    /// Nothing else may use the memory while the slice lives.
    pub(crate) unsafe fn typed_mut<'a, T: Pod>(&self) -> &'a mut [T] {
        if self.bytes == 0 || !self.address.is_multiple_of(align_of::<T>()) {
            return &mut [];
        }
        // SAFETY: as for `typed`, of an array that can be written; the caller promises that nothing else uses it.
        unsafe { slice::from_raw_parts_mut(self.address as *mut T, self.bytes / size_of::<T>()) }
    }
}
