//! The arguments of a kernel's Rust body.

use bytemuck::{AnyBitPattern, Pod};

use crate::kernel::BoxError;

/// One launch, as the Rust body of a kernel sees it.
///
/// Slices of buffers that the kernel writes are exclusive, so a body needs only safe Rust and may use rayon's
/// `par_chunks_mut`.
#[derive(Debug)]
pub struct Launch<'a> {
    pub(crate) groups: [u32; 3],
    pub(crate) workgroup: [u32; 3],
    pub(crate) params: &'a [u8],
    pub(crate) buffers: Vec<Slot<'a>>,
}

/// A buffer of a launch.
#[derive(Debug)]
pub(crate) enum Slot<'a> {
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
        let count = |extent: [u32; 3]| extent.into_iter().map(u64::from).product::<u64>();
        count(self.groups).saturating_mul(count(self.workgroup))
    }

    /// The parameters. Fails if `P` does not have the declared size.
    pub fn params<P: AnyBitPattern>(&self) -> Result<P, BoxError> {
        bytemuck::try_pod_read_unaligned(self.params)
            .map_err(|why| format!("the launch has {} bytes of parameters: {why}", self.params.len()).into())
    }

    /// Returns a buffer that the kernel reads, or the current contents of one that it writes.
    pub fn read<T: Pod>(&mut self, index: usize) -> Result<&'a [T], BoxError> {
        let slot = self.take(index)?;
        let bytes: &'a [u8] = match slot {
            Slot::Read(bytes) => {
                self.buffers[index] = Slot::Read(bytes);
                bytes
            }
            Slot::Write(bytes) => bytes,
            Slot::Taken => &[],
        };
        bytemuck::try_cast_slice(bytes).map_err(|why| format!("buffer {index}: {why}").into())
    }

    /// Returns a buffer that the kernel writes. Each one can be taken once.
    pub fn write<T: Pod>(&mut self, index: usize) -> Result<&'a mut [T], BoxError> {
        match self.take(index)? {
            Slot::Write(bytes) => {
                bytemuck::try_cast_slice_mut(bytes).map_err(|why| format!("buffer {index}: {why}").into())
            }
            _ => Err(format!("buffer {index} is declared with `reads`: declare it with `writes`").into()),
        }
    }

    fn take(&mut self, index: usize) -> Result<Slot<'a>, BoxError> {
        let count = self.buffers.len();
        let slot = self
            .buffers
            .get_mut(index)
            .ok_or_else(|| format!("there is no buffer {index}: the kernel declares {count}"))?;
        match std::mem::replace(slot, Slot::Taken) {
            Slot::Taken => Err(format!("buffer {index} was already taken in this launch").into()),
            slot => Ok(slot),
        }
    }
}
