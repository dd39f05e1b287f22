//! What a kernel's Rust body sees of a launch.

use std::any::{TypeId, type_name};

use bytemuck::{AnyBitPattern, Pod};

use crate::kernel::{Binding, BoxError};

/// One launch, as the Rust body of a kernel sees it.
///
/// Slices of buffers that the kernel writes are exclusive, so safe Rust, rayon's `par_chunks_mut` included,
/// is all that a body needs.
#[derive(Debug)]
pub struct Launch<'a> {
    pub(crate) groups: [u32; 3],
    pub(crate) workgroup: [u32; 3],
    pub(crate) params: &'a [u8],
    /// What the kernel declares of each buffer.
    pub(crate) bindings: &'a [Binding],
    pub(crate) buffers: Vec<Slot<'a>>,
}

/// A buffer of a launch.
#[derive(Debug)]
pub(crate) enum Slot<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
    /// Already handed to the body.
    Taken,
}

impl<'a> Launch<'a> {
    /// How many workgroups were launched.
    pub fn groups(&self) -> [u32; 3] {
        self.groups
    }

    /// The workgroup's size that the kernel declares.
    pub fn workgroup(&self) -> [u32; 3] {
        self.workgroup
    }

    /// How many threads the same launch has on a GPU.
    pub fn threads(&self) -> u64 {
        count_threads(self.groups, self.workgroup).unwrap_or(u64::MAX)
    }

    /// The parameters. Fails when `P` is not of the declared size.
    pub fn params<P: AnyBitPattern>(&self) -> Result<P, BoxError> {
        bytemuck::try_pod_read_unaligned(self.params).map_err(|_| {
            let (given, asked) = (self.params.len(), size_of::<P>());
            format!("{given} bytes of parameters declared, asked for as {} of {asked}", type_name::<P>())
                .into()
        })
    }

    /// A buffer that the kernel reads, or the present contents of one that it writes. The latter takes the buffer: it cannot
    /// be written in this launch any more. Fails when the buffer's declared element type is not `T`.
    pub fn read<T: Pod>(&mut self, index: usize) -> Result<&'a [T], BoxError> {
        let slot = self.take::<T>(index)?;
        let bytes: &'a [u8] = match slot {
            Slot::Read(bytes) => {
                self.buffers[index] = Slot::Read(bytes);
                bytes
            }
            Slot::Write(bytes) => bytes,
            Slot::Taken => &[],
        };
        // An empty slice need not be aligned for its elements.
        if bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(bytes).map_err(|_| unfit::<T>(index, bytes.as_ptr(), bytes.len()))
    }

    /// A buffer that the kernel writes. Each can be taken once. Fails when the buffer's declared element type is not `T`.
    pub fn write<T: Pod>(&mut self, index: usize) -> Result<&'a mut [T], BoxError> {
        match self.take::<T>(index)? {
            Slot::Write([]) => Ok(&mut []),
            Slot::Write(bytes) => {
                let (start, len) = (bytes.as_ptr(), bytes.len());
                bytemuck::try_cast_slice_mut(bytes).map_err(|_| unfit::<T>(index, start, len))
            }
            _ => Err(format!("buffer {index} is declared as read only").into()),
        }
    }

    fn take<T: Pod>(&mut self, index: usize) -> Result<Slot<'a>, BoxError> {
        let count = self.buffers.len();
        if let Some(binding) = self.bindings.get(index).filter(|binding| binding.element != TypeId::of::<T>())
        {
            let (declared, asked) = (binding.element_name, type_name::<T>());
            return Err(format!("buffer {index} is declared as {declared}, asked for as {asked}").into());
        }
        let slot = self.buffers.get_mut(index).ok_or_else(|| format!("buffer {index} of {count}"))?;
        match std::mem::replace(slot, Slot::Taken) {
            Slot::Taken => Err(format!("buffer {index} was taken before in this launch").into()),
            slot => Ok(slot),
        }
    }
}

/// How many threads a launch has. Nothing where they are more than can be counted.
pub(crate) fn count_threads(groups: [u32; 3], workgroup: [u32; 3]) -> Option<u64> {
    let mut extents = groups.into_iter().chain(workgroup).map(u64::from);
    if extents.clone().any(|extent| extent == 0) {
        return Some(0);
    }
    extents.try_fold(1, u64::checked_mul)
}

/// Why bytes are no elements of this type: they are in memory of another library.
fn unfit<T>(index: usize, start: *const u8, len: usize) -> BoxError {
    let (name, size, alignment) = (type_name::<T>(), size_of::<T>(), align_of::<T>());
    format!(
        "buffer {index} has {len} bytes at {start:p}, {name} has {size} bytes and is aligned to {alignment}"
    )
    .into()
}
