//! The traits of a back end.
//!
//! A [`Source`] is a device that discovery found. Opening it returns a [`Backend`], which allocates memory, compiles
//! kernels and creates streams. A [`StreamBackend`] runs operations in order, asynchronously to the caller.
//! [`Device`](crate::Device), [`Buffer`](crate::Buffer) and [`Stream`](crate::Stream) are the typed interface over these
//! traits. They check limits, bounds, alignments and argument types once for all back ends, so that a back end receives
//! valid arguments only.
//!
//! Rules for every implementation:
//! - It never panics and never prints. Each error of the driver becomes an [`Error`](crate::Error).
//! - It keeps the memory of an operation alive until the operation has finished, even if the caller drops it.
//! - Dropping an object, even with work in flight, neither blocks for long nor frees memory that is in use.
//! - After the device is lost, every call soon returns `Error::Lost`.
#![allow(unsafe_code)]

pub(crate) mod block_cache;
pub(crate) mod copy;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
pub(crate) mod cuda;
pub mod dlpack;
#[cfg(feature = "wgpu")]
pub(crate) mod wgpu;
#[cfg(not(feature = "wgpu"))]
#[path = "no_wgpu.rs"]
pub(crate) mod wgpu;

use std::{
    any::Any,
    ffi::c_void,
    fmt::Debug,
    ops::Range,
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    describe::{Capabilities, Description},
    error::Result,
    kernel::Kernel,
};

/// A device that was found and can be opened, any number of times.
pub trait Source: Send + Sync + Debug {
    /// Its description.
    fn describe(&self) -> &Description;

    /// Opens the device. Each call returns a new, independent opening.
    fn open(&self) -> Result<Arc<dyn Backend>>;

    /// Splits the device into partitions of these many compute units, each a device of its own.
    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>>;

    /// Binds the calling thread to one of a processor partition's cores (the index wraps around). Does nothing for other
    /// devices.
    fn bind_thread(&self, index: usize) {
        let _ = index;
    }

    /// Whether the device is there, so that opening it is worth a try. `false` for a device of a machine that is still to
    /// come, such as a node that a batch system has not allocated yet. Returns at once.
    fn is_there(&self) -> bool {
        true
    }

    /// When the device will be taken away, if that is known: the time limit of a batch system's job. Returns at once.
    fn available_until(&self) -> Option<Instant> {
        None
    }
}

/// An open device.
pub trait Backend: Send + Sync + Debug {
    /// Its features and limits.
    fn capabilities(&self) -> &Capabilities;

    /// Allocates device memory, from the cache if a block fits.
    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>>;

    /// Wraps another library's memory on this device, which stays valid until `owner` is dropped. Returns `None` if the
    /// device has no such addresses.
    ///
    /// # Safety
    /// As for [`Device::buffer_at_cuda_address`](crate::Device::buffer_at_cuda_address).
    unsafe fn adopt(
        &self,
        address: Address,
        bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Option<Arc<dyn Memory>>> {
        let _ = (address, bytes, owner);
        Ok(None)
    }

    /// Wraps a buffer that the caller created with the same `wgpu::Device`. Returns `None` if this device was not made
    /// from one.
    #[cfg(feature = "wgpu")]
    fn adopt_wgpu(&self, buffer: &::wgpu::Buffer) -> Result<Option<Arc<dyn Memory>>> {
        let _ = buffer;
        Ok(None)
    }

    /// Allocates host memory for asynchronous copies from or to this device.
    fn allocate_host(&self, bytes: u64, direction: Direction) -> Result<Box<dyn HostMemory>>;

    /// Compiles the kernel's body for this device.
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn ProgramBackend>>;

    /// Creates a stream.
    fn stream(&self) -> Result<Box<dyn StreamBackend>>;

    /// Creates a stream for a thread that does nothing else: its operations may run on the thread that queues them. Default:
    /// an ordinary stream.
    fn stream_for_thread(&self) -> Result<Box<dyn StreamBackend>> {
        self.stream()
    }

    /// Bytes in use, at their peak, and cached.
    fn memory(&self) -> MemoryUsage;

    /// Frees cached memory.
    fn trim(&self);
}

/// The initial contents of a new buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Zeros.
    Zeroed,
    /// Undefined: the caller writes each element before it reads it. Saves the time of zeroing.
    Uninit,
}

/// The direction of a copy between host and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the host to the device. Reading such memory on the host can be slow.
    Upload,
    /// From the device to the host.
    Download,
}

/// Bytes held by one open device: on the device, and in host memory for copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoryUsage {
    /// In live buffers.
    pub in_use_bytes: u64,
    /// The maximum that was ever in use.
    pub peak_bytes: u64,
    /// Cached for reuse.
    pub cached_bytes: u64,
    /// Pinned or mapped host memory in use: in live host buffers, or by copies in flight. The system cannot swap it out.
    /// Always 0 for the processor, whose host buffers are ordinary memory.
    pub pinned_bytes: u64,
    /// Pinned or mapped host memory, cached for reuse.
    pub pinned_cached_bytes: u64,
}

impl MemoryUsage {
    /// Adds the usage of a cache of pinned host memory.
    pub(crate) fn with_pinned(mut self, pinned: MemoryUsage) -> Self {
        self.pinned_bytes += pinned.in_use_bytes;
        self.pinned_cached_bytes += pinned.cached_bytes;
        self
    }
}

/// A block of device memory. Dropping the last reference returns it to the cache once no operation uses it.
pub trait Memory: Any + Send + Sync + Debug {
    /// The requested size in bytes.
    fn bytes(&self) -> u64;

    /// Its address, if other libraries can use it.
    fn address(&self) -> Option<Address> {
        None
    }
}

/// The address of memory, for other libraries in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// On the host.
    Host(NonNull<u8>),
    /// On a CUDA device.
    Cuda {
        /// The driver's number of the device in this process, if known.
        ordinal: Option<i32>,
        /// The device's address (`CUdeviceptr`).
        address: u64,
    },
}

/// A range of a block of device memory.
#[derive(Debug, Clone)]
pub struct Region {
    /// The block.
    pub memory: Arc<dyn Memory>,
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl Region {
    /// Whether the two have a byte in common.
    pub fn overlaps(&self, other: &Region) -> bool {
        let ends = |region: &Region| region.offset.saturating_add(region.bytes);
        Arc::ptr_eq(&self.memory, &other.memory)
            && self.bytes > 0
            && other.bytes > 0
            && self.offset < ends(other)
            && other.offset < ends(self)
    }
}

/// Host memory for asynchronous copies. While a copy is in flight the owner does not access it, and then calls
/// [`reclaim`](HostMemory::reclaim) before the next access.
pub trait HostMemory: Any + Send + Debug {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, to write.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Makes the bytes accessible to the host again after a copy that has finished.
    fn reclaim(&mut self) -> Result<()>;
    /// Has the memory zeroed before it is reused or freed. No copy may be in flight.
    fn zero_on_release(&mut self);
    /// Makes it read-only, so that the host and any number of copies to devices may read it at once. No copy may be in
    /// flight.
    fn share(self: Box<Self>) -> Arc<dyn SharedMemory>;
}

/// Read-only host memory.
pub trait SharedMemory: Any + Send + Sync + Debug {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

/// Alignment of host memory in bytes: a cache line. Elements that need more are refused.
pub(crate) const HOST_ALIGNMENT: usize = 64;

/// One cache line of host memory, aligned for every element type and vector instruction.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
pub(crate) struct CacheLine([u8; HOST_ALIGNMENT]);

impl Debug for CacheLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CacheLine")
    }
}

impl CacheLine {
    /// Returns zeroed lines for at least this many bytes.
    pub(crate) fn zeroed(bytes: usize) -> Vec<CacheLine> {
        bytemuck::allocation::zeroed_vec(bytes.div_ceil(HOST_ALIGNMENT))
    }
}

/// Shared memory of a device without direct copies from it: a copy of the bytes.
#[derive(Debug)]
pub(crate) struct CopiedMemory {
    lines: Vec<CacheLine>,
    bytes: usize,
}

impl CopiedMemory {
    pub(crate) fn of(bytes: &[u8]) -> Arc<dyn SharedMemory> {
        let mut lines = CacheLine::zeroed(bytes.len());
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Arc::new(CopiedMemory { lines, bytes: bytes.len() })
    }
}

impl SharedMemory for CopiedMemory {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }
}

/// A compiled kernel.
pub trait ProgramBackend: Any + Send + Sync + Debug {
    /// The body that was compiled: `CUDA C`, `WGSL`, `WGSL with INT64`, `Rust`.
    fn body(&self) -> &str;
    /// Binds the buffers, so that each launch costs little.
    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn BoundKernelBackend>>;
}

/// A compiled kernel with its buffers.
pub trait BoundKernelBackend: Any + Send + Sync + Debug {
    /// Returns the same bound kernel with the workgroup size and dynamic shared memory of `kernel`, which is otherwise
    /// the kernel that it was compiled from.
    fn with_workgroup(&self, kernel: &Kernel) -> Result<Arc<dyn BoundKernelBackend>>;

    /// The number of workgroups that a compute unit runs at once, if known.
    fn occupancy(&self) -> Result<Option<u32>> {
        Ok(None)
    }
}

/// A recorded launch.
#[derive(Debug, Clone)]
pub struct RecordedLaunch {
    /// The bound kernel.
    pub bound: Arc<dyn BoundKernelBackend>,
    /// The number of workgroups.
    pub groups: [u32; 3],
    /// The bytes of the parameters.
    pub params: Arc<[u8]>,
}

/// Recorded launches, in the back end's form.
pub trait GraphBackend: Any + Send + Sync + Debug {}

/// A point in a stream.
pub trait EventBackend: Any + Send + Sync + Debug {
    /// Whether all operations before it have finished.
    fn is_done(&self) -> Result<bool>;
    /// Waits until all operations before it have finished.
    fn wait(&self, timeout: Option<Duration>) -> Result<()>;
}

/// A reading of the device's clock at a point in a stream.
pub trait TimestampBackend: Any + Send + Sync + Debug {
    /// The time from an earlier timestamp of the same device to this one. Both must have been reached.
    fn since(&self, earlier: &dyn TimestampBackend) -> Result<Duration>;
}

/// A stream: operations that run in order, asynchronously to the caller.
pub trait StreamBackend: Send + Debug {
    /// Copies part of host memory to the device.
    fn upload(&mut self, from: &mut dyn HostMemory, range: Range<u64>, to: &Region) -> Result<()>;
    /// Copies part of shared memory to the device, without staging. Returns false if the device cannot do that.
    fn upload_shared(
        &mut self,
        from: &Arc<dyn SharedMemory>,
        range: Range<u64>,
        to: &Region,
    ) -> Result<bool> {
        let _ = (from, range, to);
        Ok(false)
    }
    /// Copies from the device into host memory at `offset`.
    fn download(&mut self, from: &Region, to: &mut dyn HostMemory, offset: u64) -> Result<()>;
    /// Copies on the device. The regions do not overlap, but may be of the same block.
    fn copy(&mut self, from: &Region, to: &Region) -> Result<()>;
    /// Fills a region with zeros.
    fn zero(&mut self, region: &Region) -> Result<()>;
    /// Fills a region, whose length is a multiple of the pattern's, with copies of a pattern. Returns false if the device
    /// cannot do that by itself.
    fn fill(&mut self, region: &Region, pattern: &[u8]) -> Result<bool> {
        let _ = (region, pattern);
        Ok(false)
    }
    /// Fails if a kernel cannot be launched on this stream, because it belongs to another device. [`launch`] makes the same
    /// check; the recorder of a graph makes it when a launch is recorded.
    ///
    /// [`launch`]: StreamBackend::launch
    fn check_kernel(&self, bound: &Arc<dyn BoundKernelBackend>) -> Result<()>;
    /// Runs a kernel.
    fn launch(&mut self, bound: &Arc<dyn BoundKernelBackend>, groups: [u32; 3], params: &[u8]) -> Result<()>;
    /// Records launches that can be queued with one call. Returns `None` if the device cannot do that.
    fn record_graph(&mut self, launches: &[RecordedLaunch]) -> Result<Option<Arc<dyn GraphBackend>>> {
        let _ = launches;
        Ok(None)
    }
    /// Queues the launches of a graph. Returns false if the graph is not of this device.
    fn replay(&mut self, graph: &Arc<dyn GraphBackend>) -> Result<bool> {
        let _ = graph;
        Ok(false)
    }
    /// Reads the device's clock when all operations before have finished.
    fn timestamp(&mut self) -> Result<Arc<dyn TimestampBackend>>;
    /// Records an event here, and starts all operations before it.
    fn record_event(&mut self) -> Result<Arc<dyn EventBackend>>;
    /// Makes later operations of this stream wait for an event of another stream of the same device.
    fn wait_event(&mut self, event: &Arc<dyn EventBackend>) -> Result<()>;
    /// The driver's handle of this stream, on a CUDA device.
    fn cuda_handle(&self) -> Option<*mut c_void> {
        None
    }
    /// Makes later operations wait for a CUDA event of another library. Returns false if this is not a CUDA device.
    ///
    /// # Safety
    /// The event is alive, and was created on this stream's device.
    unsafe fn wait_cuda_event(&mut self, event: *mut c_void) -> Result<bool> {
        let _ = event;
        Ok(false)
    }
    /// Records a CUDA event of another library. Returns false if this is not a CUDA device.
    ///
    /// # Safety
    /// As for [`wait_cuda_event`](StreamBackend::wait_cuda_event).
    unsafe fn record_cuda_event(&mut self, event: *mut c_void) -> Result<bool> {
        let _ = event;
        Ok(false)
    }
    /// Starts all queued operations.
    fn flush(&mut self) -> Result<()>;
    /// Waits until all queued operations have finished.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<()>;
}
