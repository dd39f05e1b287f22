//! Typed memory: on a device, and on the host where a device can reach it.

use std::{
    any::{TypeId, type_name},
    fmt,
    marker::PhantomData,
    ops::{Bound as End, Range, RangeBounds},
    sync::Arc,
};

use bytemuck::Pod;

use crate::{
    backend::{self, Address, Copied, HOST_ALIGNMENT, HostMemory, Memory, Region, SharedMemory},
    describe::DeviceId,
    error::{Error, Result},
};

/// The bytes of so many elements. Fails where they are more than can be counted.
pub(crate) fn size_in_bytes<T>(device: &DeviceId, operation: &str, len: usize) -> Result<u64> {
    (len as u64).checked_mul(size_of::<T>() as u64).ok_or_else(|| {
        let detail = format!("{len} elements of {} bytes are more than can be counted", size_of::<T>());
        Error::unsupported(device, operation, detail)
    })
}

/// Fails for elements that are aligned to more than host memory is, which no device could copy from or to it.
pub(crate) fn check_alignment<T>(device: &DeviceId, operation: &str) -> Result<()> {
    let needed = align_of::<T>();
    if needed <= HOST_ALIGNMENT {
        return Ok(());
    }
    let detail =
        format!("{} is aligned to {needed} bytes, host memory to {HOST_ALIGNMENT} at most", type_name::<T>());
    Err(Error::unsupported(device, operation, detail))
}

/// The places in a range of so many elements. Fails when the range reaches past the end.
pub(crate) fn slice_range(
    range: impl RangeBounds<usize>,
    len: usize,
    device: &DeviceId,
) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        End::Included(&start) => start,
        End::Excluded(&start) => start.saturating_add(1),
        End::Unbounded => 0,
    };
    let end = match range.end_bound() {
        End::Included(&end) => end.saturating_add(1),
        End::Excluded(&end) => end,
        End::Unbounded => len,
    };
    if start > end || end > len {
        let detail = format!("elements {start}..{end} of a buffer of {}", len);
        return Err(Error::unsupported(device, "taking part of a buffer", detail));
    }
    Ok(start..end)
}

/// Elements in a device's memory, or a part of them. Cloning it gives another handle on the same
/// elements; the memory is reused once the last handle is dropped and no operation uses it any more.
pub struct Buffer<T> {
    region: Region,
    device: DeviceId,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn new(memory: Arc<dyn Memory>, device: DeviceId) -> Self {
        let bytes = memory.bytes();
        Buffer { region: Region { memory, offset: 0, bytes }, device, element: PhantomData }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.region.bytes as usize / size_of::<T>().max(1)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes that is.
    pub fn bytes(&self) -> u64 {
        self.region.bytes
    }

    /// The device whose memory it is in.
    pub fn device(&self) -> &DeviceId {
        &self.device
    }

    /// A handle on some of the elements. Fails when the range reaches past the end.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Buffer<T>> {
        let Range { start, end } = slice_range(range, self.len(), &self.device)?;
        let element = size_of::<T>() as u64;
        let region = Region {
            memory: self.region.memory.clone(),
            offset: self.region.offset + start as u64 * element,
            bytes: (end - start) as u64 * element,
        };
        Ok(Buffer { region, device: self.device.clone(), element: PhantomData })
    }

    /// A handle on the same bytes as elements of another type. Fails when they do not come out even, and for elements that
    /// are aligned to more than 64 bytes.
    pub fn cast<U: Pod>(&self) -> Result<Buffer<U>> {
        check_alignment::<U>(&self.device, "casting a buffer")?;
        let element = size_of::<U>() as u64;
        if element == 0
            || !self.region.bytes.is_multiple_of(element)
            || !self.region.offset.is_multiple_of(element)
        {
            let detail = format!(
                "{} bytes at {} as {} of {element} bytes each",
                self.region.bytes,
                self.region.offset,
                type_name::<U>()
            );
            return Err(Error::unsupported(&self.device, "casting a buffer", detail));
        }
        Ok(Buffer { region: self.region.clone(), device: self.device.clone(), element: PhantomData })
    }

    /// A handle on the same bytes.
    pub(crate) fn untyped(&self) -> Buffer<u8> {
        Buffer { region: self.region.clone(), device: self.device.clone(), element: PhantomData }
    }

    /// This buffer as an argument of a kernel.
    pub fn arg(&self) -> Argument {
        Argument { region: self.region.clone(), element: TypeId::of::<T>(), element_name: type_name::<T>() }
    }

    /// The address of the first element in a CUDA device's memory; nothing where it is not in one. For libraries that
    /// take such addresses. Whoever uses it keeps the buffer, and waits for the streams that write to it.
    pub fn cuda_address(&self) -> Option<u64> {
        match self.region.memory.address()? {
            Address::Cuda { address, .. } => Some(address + self.region.offset),
            Address::Host(_) => None,
        }
    }

    /// The context that its memory is in on a CUDA device; nothing where it is not in one. Other libraries enter it before
    /// they use the memory.
    pub fn cuda_context(&self) -> Option<backend::cuda::guest::Context> {
        backend::cuda::guest::context_of(&self.region)
    }

    /// wgpu's buffer that the elements are in, and which of its bytes they are, for a bind group of the caller's; nothing
    /// where they are not on a device of [`Device::from_wgpu`](crate::Device::from_wgpu).
    ///
    /// It can be used as storage and in copies, and is Evener's: keep this handle until the work that uses it is submitted,
    /// and neither map nor destroy it, after which operations on it fail.
    #[cfg(feature = "wgpu")]
    pub fn wgpu_buffer(&self) -> Option<(wgpu::Buffer, Range<u64>)> {
        let Region { offset, bytes, .. } = self.region;
        Some((backend::wgpu::buffer_of(&self.region)?, offset..offset + bytes))
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Buffer { region: self.region.clone(), device: self.device.clone(), element: PhantomData }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Region { offset, bytes, .. } = self.region;
        write!(f, "Buffer<{}>({bytes} bytes at {offset} on {})", type_name::<T>(), self.device)
    }
}

/// A buffer as an argument of a kernel, its element type remembered so that it can be checked.
#[derive(Debug, Clone)]
pub struct Argument {
    pub(crate) region: Region,
    pub(crate) element: TypeId,
    pub(crate) element_name: &'static str,
}

/// Elements in host memory that a device can copy from or to without stopping the host: pinned memory
/// for CUDA, a staging buffer for wgpu.
pub struct HostBuffer<T> {
    pub(crate) memory: Box<dyn HostMemory>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> HostBuffer<T> {
    /// Fails where the memory is not aligned for the elements, which is for such as are aligned to more than
    /// [`HOST_ALIGNMENT`] only.
    pub(crate) fn new(memory: Box<dyn HostMemory>, device: &DeviceId) -> Result<Self> {
        check_alignment::<T>(device, "allocating host memory")?;
        if !memory.bytes().as_ptr().cast::<T>().is_aligned() {
            let detail = format!("its back end did not align it to {} bytes", align_of::<T>());
            return Err(Error::unsupported(device, "allocating host memory", detail));
        }
        Ok(HostBuffer { memory, element: PhantomData })
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        bytemuck::cast_slice(self.memory.bytes())
    }

    /// The elements, to write. In memory made for uploads, reading them back can be slow.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.memory.bytes_mut())
    }
}

impl<T: Pod> HostBuffer<T> {
    /// Gives up writing, so that it can be read by several, and copied to devices again and again and in parts.
    pub fn share(self) -> SharedBuffer<T> {
        let mut memory = self.memory.share();
        // For back ends of others' making, which may share a copy.
        if !memory.bytes().as_ptr().cast::<T>().is_aligned() {
            memory = Copied::of(memory.bytes());
        }
        SharedBuffer { bytes: 0..memory.bytes().len(), memory, element: PhantomData }
    }
}

/// Elements in host memory that nobody writes any more. Cloning it gives another handle on the same elements.
///
/// A CUDA device copies from what was its [`HostBuffer`] at the full rate of the bus; other devices copy through staging
/// memory.
///
/// ```
/// use evener_device::{Device, Direction};
///
/// let device = Device::cpu();
/// let mut host = device.host_buffer::<u32>(8, Direction::Upload)?;
/// host.as_mut_slice().copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
/// let shared = host.share();
/// let (mut stream, buffer) = (device.stream()?, device.buffer::<u32>(4)?);
/// stream.upload_shared(&shared, 2..6, &buffer)?;
/// assert_eq!(stream.download(&buffer)?.wait()?, [2, 3, 4, 5]);
/// # Ok::<(), evener_device::Error>(())
/// ```
pub struct SharedBuffer<T> {
    pub(crate) memory: Arc<dyn SharedMemory>,
    /// Which of the memory's bytes these are.
    pub(crate) bytes: Range<usize>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> SharedBuffer<T> {
    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        bytemuck::cast_slice(&self.memory.bytes()[self.bytes.clone()])
    }

    /// A handle on some of the elements. Nothing when the range reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Option<SharedBuffer<T>> {
        self.as_slice().get(range.clone())?;
        let (first, element) = (self.bytes.start, size_of::<T>());
        let bytes = first + range.start * element..first + range.end * element;
        Some(SharedBuffer { memory: self.memory.clone(), bytes, element: PhantomData })
    }
}

impl<T> Clone for SharedBuffer<T> {
    fn clone(&self) -> Self {
        let (memory, bytes) = (self.memory.clone(), self.bytes.clone());
        SharedBuffer { memory, bytes, element: PhantomData }
    }
}

impl<T> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuffer<{}>", type_name::<T>())
    }
}

/// Host memory in pieces, through which elements from anywhere reach a device: a piece goes up while the next one is
/// written. [`Stream::upload_staged`](crate::Stream::upload_staged) uses it.
pub struct StagingBuffer<T> {
    pub(crate) pieces: Vec<HostBuffer<T>>,
    len: usize,
}

impl<T: Pod> StagingBuffer<T> {
    /// Bytes of a piece: short enough that the first one is soon on its way, long enough that starting a copy costs
    /// little.
    pub(crate) const PIECE_BYTES: usize = 4 << 20;

    /// Number of elements in a piece; the last one may have fewer. A multiple of four, so that a piece begins where
    /// every device can copy to.
    pub(crate) const PIECE_LEN: usize = {
        let element = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
        let quarter = Self::PIECE_BYTES / 4 / element;
        if quarter == 0 { 4 } else { 4 * quarter }
    };

    /// Makes room for so many elements out of the pieces that `allocate` gives.
    pub(crate) fn new(len: usize, mut allocate: impl FnMut(usize) -> Result<HostBuffer<T>>) -> Result<Self> {
        let pieces = (0..len)
            .step_by(Self::PIECE_LEN)
            .map(|first| allocate(Self::PIECE_LEN.min(len - first)))
            .collect::<Result<_>>()?;
        Ok(StagingBuffer { pieces, len })
    }

    /// How many elements it has room for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has room for none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> fmt::Debug for StagingBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagingBuffer<{}>({})", type_name::<T>(), self.len)
    }
}

impl<T> fmt::Debug for HostBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer<{}>", type_name::<T>())
    }
}
