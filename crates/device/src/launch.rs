//! The arguments of a kernel's Rust body.

use std::any::{TypeId, type_name};

use bytemuck::{AnyBitPattern, Pod};

use crate::kernel::{Binding, BoxError};

/// One launch, as the Rust body of a kernel sees it.
///
/// Slices of buffers that the kernel writes are exclusive, so a body needs only safe Rust and may use rayon's
/// `par_chunks_mut`.
#[derive(Debug)]
pub struct Launch<'a> {
    pub(crate) groups: [u32; 3],
    pub(crate) workgroup: [u32; 3],
    pub(crate) params: &'a [u8],
    /// The kernel's declaration of each buffer.
    pub(crate) bindings: &'a [Binding],
    pub(crate) buffers: Vec<BufferSlot<'a>>,
}

/// A buffer of a launch.
#[derive(Debug)]
pub(crate) enum BufferSlot<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
    /// The body has taken it.
    Taken,
}

impl<'a> Launch<'a> {
    /// The number of workgroups in each dimension.
    pub fn groups(&self) -> [u32; 3] {
        self.groups
    }

    /// The workgroup size that the kernel declares.
    pub fn workgroup(&self) -> [u32; 3] {
        self.workgroup
    }

    /// The number of threads that the same launch has on a GPU.
    pub fn threads(&self) -> u64 {
        count_threads(self.groups, self.workgroup).unwrap_or(u64::MAX)
    }

    /// The parameters. Fails if `P` does not have the declared size.
    pub fn params<P: AnyBitPattern>(&self) -> Result<P, BoxError> {
        bytemuck::try_pod_read_unaligned(self.params).map_err(|_| {
            let (declared, name, size) = (self.params.len(), type_name::<P>(), size_of::<P>());
            format!("{declared} bytes of parameters are declared, and {name} has {size}").into()
        })
    }

    /// Returns a buffer that the kernel reads, or the current contents of one that it writes. The latter cannot be written
    /// in this launch any more. Fails if the kernel declares the buffer with another element type than `T`.
    pub fn read<T: Pod>(&mut self, index: usize) -> Result<&'a [T], BoxError> {
        let slot = self.take::<T>(index)?;
        let bytes: &'a [u8] = match slot {
            BufferSlot::Read(bytes) => {
                self.buffers[index] = BufferSlot::Read(bytes);
                bytes
            }
            BufferSlot::Write(bytes) => bytes,
            BufferSlot::Taken => &[],
        };
        // An empty slice need not be aligned for its elements.
        if bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(bytes).map_err(|_| cast_error::<T>(index, bytes.as_ptr(), bytes.len()))
    }

    /// Returns a buffer that the kernel writes. Each one can be taken once. Fails if the kernel declares the buffer with
    /// another element type than `T`.
    pub fn write<T: Pod>(&mut self, index: usize) -> Result<&'a mut [T], BoxError> {
        match self.take::<T>(index)? {
            BufferSlot::Write([]) => Ok(&mut []),
            BufferSlot::Write(bytes) => {
                let (start, len) = (bytes.as_ptr(), bytes.len());
                bytemuck::try_cast_slice_mut(bytes).map_err(|_| cast_error::<T>(index, start, len))
            }
            _ => Err(format!("buffer {index} is declared with `reads`: declare it with `writes`").into()),
        }
    }

    fn take<T: Pod>(&mut self, index: usize) -> Result<BufferSlot<'a>, BoxError> {
        let count = self.buffers.len();
        if let Some(binding) = self.bindings.get(index).filter(|binding| binding.element != TypeId::of::<T>())
        {
            let (declared, requested) = (binding.element_name, type_name::<T>());
            return Err(format!("buffer {index} is declared as {declared} and taken as {requested}").into());
        }
        let slot = self
            .buffers
            .get_mut(index)
            .ok_or_else(|| format!("there is no buffer {index}: the kernel declares {count}"))?;
        match std::mem::replace(slot, BufferSlot::Taken) {
            BufferSlot::Taken => Err(format!("buffer {index} was already taken in this launch").into()),
            slot => Ok(slot),
        }
    }
}

/// Returns the number of threads of a launch, or `None` if it overflows.
pub(crate) fn count_threads(groups: [u32; 3], workgroup: [u32; 3]) -> Option<u64> {
    let mut extents = groups.into_iter().chain(workgroup).map(u64::from);
    if extents.clone().any(|extent| extent == 0) {
        return Some(0);
    }
    extents.try_fold(1, u64::checked_mul)
}

/// The error for bytes whose size or alignment does not fit the elements. Only adopted memory can have such bytes.
fn cast_error<T>(index: usize, start: *const u8, len: usize) -> BoxError {
    let (name, size, alignment) = (type_name::<T>(), size_of::<T>(), align_of::<T>());
    format!(
        "buffer {index} has {len} bytes at {start:p}, and {name} has {size} bytes and needs an alignment of {alignment}"
    )
    .into()
}
