//! Typed memory: on a device, and on the host for copies.

use std::{
    any::{TypeId, type_name},
    fmt,
    marker::PhantomData,
    ops::{Bound as End, Range, RangeBounds},
    sync::Arc,
};

use bytemuck::Pod;

use crate::{
    backend::{self, Address, CopiedMemory, HOST_ALIGNMENT, HostMemory, Memory, Region, SharedMemory},
    describe::DeviceId,
    error::{Error, Result},
};

/// Returns the size of `len` elements. Fails on overflow.
pub(crate) fn size_in_bytes<T>(device: &DeviceId, operation: &str, len: usize) -> Result<u64> {
    (len as u64).checked_mul(size_of::<T>() as u64).ok_or_else(|| {
        let detail = format!("{len} elements of {} bytes are more than 2^64 bytes", size_of::<T>());
        Error::unsupported(device, operation, detail)
    })
}

/// Fails for elements with a larger alignment than host memory: no device could copy them from or to it.
pub(crate) fn check_alignment<T>(device: &DeviceId, operation: &str) -> Result<()> {
    let needed = align_of::<T>();
    if needed <= HOST_ALIGNMENT {
        return Ok(());
    }
    let detail = format!(
        "{} needs an alignment of {needed} bytes, and host memory has {HOST_ALIGNMENT}",
        type_name::<T>()
    );
    Err(Error::unsupported(device, operation, detail))
}

/// Resolves the bounds of a range. Fails if the range is out of bounds.
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
        let detail = format!("elements {start}..{end} are out of bounds: the buffer has {len}");
        return Err(Error::unsupported(device, "slicing a buffer", detail));
    }
    Ok(start..end)
}

/// Elements in a device's memory, or a slice of them. A clone is another handle of the same elements; the memory is
/// reused once the last handle is dropped and no operation uses it.
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

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.region.bytes as usize / size_of::<T>().max(1)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.region.bytes
    }

    /// The device whose memory it is in.
    pub fn device(&self) -> &DeviceId {
        &self.device
    }

    /// Returns a handle of some of the elements. Fails if the range is out of bounds.
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

    /// Returns a handle of the same bytes as elements of another type. Fails if size or offset is not a multiple of an
    /// element, and for elements with an alignment of more than 64 bytes.
    pub fn cast<U: Pod>(&self) -> Result<Buffer<U>> {
        check_alignment::<U>(&self.device, "casting a buffer")?;
        let element = size_of::<U>() as u64;
        if element == 0
            || !self.region.bytes.is_multiple_of(element)
            || !self.region.offset.is_multiple_of(element)
        {
            let detail = format!(
                "{} bytes at offset {} are not a whole number of {} of {element} bytes",
                self.region.bytes,
                self.region.offset,
                type_name::<U>()
            );
            return Err(Error::unsupported(&self.device, "casting a buffer", detail));
        }
        Ok(Buffer { region: self.region.clone(), device: self.device.clone(), element: PhantomData })
    }

    /// Returns a handle of the same bytes.
    pub(crate) fn untyped(&self) -> Buffer<u8> {
        Buffer { region: self.region.clone(), device: self.device.clone(), element: PhantomData }
    }

    /// This buffer as an argument of a kernel.
    pub fn arg(&self) -> Argument {
        Argument { region: self.region.clone(), element: TypeId::of::<T>(), element_name: type_name::<T>() }
    }

    /// The address of the first element in a CUDA device's memory, for libraries that take such addresses; `None` on
    /// other devices. Keep the buffer while the address is used, and wait for the streams that write to it.
    pub fn cuda_address(&self) -> Option<u64> {
        match self.region.memory.address()? {
            Address::Cuda { address, .. } => Some(address + self.region.offset),
            Address::Host(_) => None,
        }
    }

    /// The primary context of its memory on a CUDA device; `None` on other devices. Other libraries enter the context
    /// before they use the memory.
    pub fn cuda_context(&self) -> Option<backend::cuda::primary_context::PrimaryContext> {
        backend::cuda::primary_context::context_of(&self.region)
    }

    /// The wgpu buffer of the elements, and their byte range in it, for the caller's bind groups; `None` if the device
    /// does not come from [`Device::from_wgpu`](crate::Device::from_wgpu).
    ///
    /// Use it as storage and in copies, and keep this handle until that work is submitted. The wgpu buffer belongs to
    /// Evener: if it is mapped or destroyed, operations on it fail.
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

/// A buffer as an argument of a kernel, with its element type for the check.
#[derive(Debug, Clone)]
pub struct Argument {
    pub(crate) region: Region,
    pub(crate) element: TypeId,
    pub(crate) element_name: &'static str,
}

/// Elements in host memory for asynchronous copies: pinned memory for CUDA, a staging buffer for wgpu.
pub struct HostBuffer<T> {
    pub(crate) memory: Box<dyn HostMemory>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> HostBuffer<T> {
    /// Fails if the memory is not aligned for the elements: only for alignments above [`HOST_ALIGNMENT`].
    pub(crate) fn new(memory: Box<dyn HostMemory>, device: &DeviceId) -> Result<Self> {
        check_alignment::<T>(device, "allocating host memory")?;
        if !memory.bytes().as_ptr().cast::<T>().is_aligned() {
            let detail = format!("the back end's memory is not aligned to {} bytes", align_of::<T>());
            return Err(Error::unsupported(device, "allocating host memory", detail));
        }
        Ok(HostBuffer { memory, element: PhantomData })
    }

    /// Has the memory zeroed before it is reused or freed, for secrets: when this is dropped, also by a copy that failed, and
    /// no copy uses the memory any more. The memory of a lost device is neither zeroed nor reused. Of a device on another
    /// machine, the memory of this process is zeroed.
    ///
    /// ```
    /// use evener_device::{Device, Direction};
    ///
    /// let mut secret = Device::cpu().host_buffer::<u64>(4, Direction::Upload)?.zeroed_on_release();
    /// secret.as_mut_slice().fill(7);
    /// drop(secret); // Zeroed.
    /// # Ok::<(), evener_device::Error>(())
    /// ```
    pub fn zeroed_on_release(mut self) -> Self {
        self.memory.zero_on_release();
        self
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        bytemuck::cast_slice(self.memory.bytes())
    }

    /// The elements, to write. Reading memory for uploads can be slow.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.memory.bytes_mut())
    }
}

impl<T: Pod> HostBuffer<T> {
    /// Makes it read-only, so that several threads can read it and copy parts of it to devices, any number of times.
    pub fn share(self) -> SharedBuffer<T> {
        let mut memory = self.memory.share();
        // Other back ends may share a copy with another alignment.
        if !memory.bytes().as_ptr().cast::<T>().is_aligned() {
            memory = CopiedMemory::of(memory.bytes());
        }
        SharedBuffer { bytes: 0..memory.bytes().len(), memory, element: PhantomData }
    }
}

/// Read-only elements in host memory. A clone is another handle of the same elements.
///
/// A CUDA device copies from its own shared [`HostBuffer`] at the full rate of the bus; other devices copy through
/// staging memory.
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
    /// The byte range of the elements in the memory.
    pub(crate) bytes: Range<usize>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> SharedBuffer<T> {
    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        bytemuck::cast_slice(&self.memory.bytes()[self.bytes.clone()])
    }

    /// Returns a handle of some of the elements, or `None` if the range is out of bounds.
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

/// Host memory in pieces, through which elements are copied to a device: one piece is copied while the next is written.
/// [`Stream::upload_staged`](crate::Stream::upload_staged) uses it.
pub struct StagingBuffer<T> {
    pub(crate) pieces: Vec<HostBuffer<T>>,
    len: usize,
}

impl<T: Pod> StagingBuffer<T> {
    /// Bytes of a piece: small enough that the first copy starts soon, large enough that starting a copy costs little.
    pub(crate) const PIECE_BYTES: usize = 4 << 20;

    /// Number of elements in a piece; the last one may have fewer. A multiple of four, so that every device can copy to
    /// the beginning of each piece.
    pub(crate) const PIECE_LEN: usize = {
        let element = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
        let quarter = Self::PIECE_BYTES / 4 / element;
        if quarter == 0 { 4 } else { 4 * quarter }
    };

    /// Allocates the pieces for `len` elements with `allocate`.
    pub(crate) fn new(len: usize, mut allocate: impl FnMut(usize) -> Result<HostBuffer<T>>) -> Result<Self> {
        let pieces = (0..len)
            .step_by(Self::PIECE_LEN)
            .map(|first| allocate(Self::PIECE_LEN.min(len - first)))
            .collect::<Result<_>>()?;
        Ok(StagingBuffer { pieces, len })
    }

    /// Has the memory zeroed before it is reused or freed, as [`HostBuffer::zeroed_on_release`] does.
    pub fn zeroed_on_release(mut self) -> Self {
        self.pieces.iter_mut().for_each(|piece| piece.memory.zero_on_release());
        self
    }

    /// The memory of each piece, in order.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        self.pieces.iter_mut().map(HostBuffer::as_mut_slice)
    }

    /// The capacity in elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the capacity is 0.
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
