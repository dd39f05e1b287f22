//! What a back end must be able to do, as a few small traits.
//!
//! A [`Source`] is a device that discovery found. Opening it gives a [`Backend`], which allocates
//! memory, compiles kernels and makes streams. A [`StreamBackend`] is a sequence of operations that run
//! in order, asynchronously to the caller. The typed, checked interface over these is in
//! [`Device`](crate::Device), [`Buffer`](crate::Buffer) and [`Stream`](crate::Stream): limits, bounds,
//! alignments and argument types are checked there, once for all back ends, so that what arrives here is
//! well-formed.
//!
//! Rules for every implementation:
//! - It never panics and never prints. Whatever the driver says becomes an [`Error`](crate::Error).
//! - It keeps the memory of an operation alive until the operation has ended, whatever the caller drops.
//! - Dropping anything, even with work under way, neither blocks for long nor frees what is in use.
//! - After the device is lost, every call returns `Error::Lost` soon.
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

use std::{any::Any, ffi::c_void, fmt::Debug, ops::Range, ptr::NonNull, sync::Arc, time::Duration};

use crate::{
    describe::{Capabilities, Description},
    error::Result,
    kernel::Kernel,
};

/// A device that was found and can be opened, any number of times.
pub trait Source: Send + Sync + Debug {
    /// The facts about it.
    fn describe(&self) -> &Description;

    /// Takes hold of the device. Each call gives a new, independent hold.
    fn open(&self) -> Result<Arc<dyn Backend>>;

    /// Cuts the device into partitions of these many compute units, each a device of its own.
    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>>;

    /// Binds the calling thread to one of the device's cores, counted round, where it is a partition of the
    /// processor. Nothing for other devices.
    fn bind_thread(&self, index: usize) {
        let _ = index;
    }
}

/// An open device.
pub trait Backend: Send + Sync + Debug {
    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Takes device memory, from the shelf of returned blocks where one fits.
    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>>;

    /// Takes memory of this device that another library has, which keeps it until `owner` is dropped. Nothing where the
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

    /// Takes a buffer that the caller has made with the same `wgpu::Device`. Nothing where this is no device of the caller's.
    #[cfg(feature = "wgpu")]
    fn adopt_wgpu(&self, buffer: &::wgpu::Buffer) -> Result<Option<Arc<dyn Memory>>> {
        let _ = buffer;
        Ok(None)
    }

    /// Takes host memory that this device can copy from or to asynchronously.
    fn allocate_host(&self, bytes: u64, direction: Direction) -> Result<Box<dyn HostMemory>>;

    /// Compiles the body of the kernel that suits this device.
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Program>>;

    /// Makes a new sequence of operations.
    fn stream(&self) -> Result<Box<dyn StreamBackend>>;

    /// Memory in use now, at its peak, and on the shelf.
    fn memory(&self) -> MemoryUsage;

    /// Gives the shelf's memory back to the driver.
    fn trim(&self);
}

/// What a new buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Zeros.
    Zeroed,
    /// Undefined: the caller writes each element before it reads it. Saves the time of zeroing.
    Uninit,
}

/// Which way a host buffer's bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the host to the device. Reading such memory on the host can be slow.
    Upload,
    /// From the device to the host.
    Download,
}

/// Memory held through one open device, in bytes: the device's own, and the host memory that it copies from and to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct MemoryUsage {
    /// In buffers that are alive.
    pub in_use_bytes: u64,
    /// The most that was ever in use at once.
    pub peak_bytes: u64,
    /// Kept for reuse.
    pub cached_bytes: u64,
    /// Host memory that is pinned or mapped for copies and in use: in host buffers that are alive, or by copies in
    /// flight. The system cannot swap it out. None on the processor, whose host buffers are ordinary memory.
    pub pinned_bytes: u64,
    /// The same kind of host memory, kept for reuse.
    pub pinned_cached_bytes: u64,
}

impl MemoryUsage {
    /// The same, with what a shelf of pinned host memory holds.
    pub(crate) fn with_pinned(mut self, pinned: MemoryUsage) -> Self {
        self.pinned_bytes += pinned.in_use_bytes;
        self.pinned_cached_bytes += pinned.cached_bytes;
        self
    }
}

/// A block of device memory. Dropping the last reference returns it to the shelf once no operation uses it.
pub trait Memory: Any + Send + Sync + Debug {
    /// How many bytes were asked for.
    fn bytes(&self) -> u64;

    /// Where it is, where that can be told to another library.
    fn address(&self) -> Option<Address> {
        None
    }
}

/// Where memory is, for other libraries in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// On the host.
    Host(NonNull<u8>),
    /// On a CUDA device.
    Cuda {
        /// The number that the driver has for the device in this process, where it is known.
        ordinal: Option<i32>,
        /// The device's address (`CUdeviceptr`).
        address: u64,
    },
}

/// A part of a block of device memory.
#[derive(Debug, Clone)]
pub struct Region {
    /// The block.
    pub memory: Arc<dyn Memory>,
    /// Where the part begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
}

impl Region {
    /// Whether both have a byte in common.
    pub fn overlaps(&self, other: &Region) -> bool {
        let ends = |region: &Region| region.offset.saturating_add(region.bytes);
        Arc::ptr_eq(&self.memory, &other.memory)
            && self.bytes > 0
            && other.bytes > 0
            && self.offset < ends(other)
            && other.offset < ends(self)
    }
}

/// Host memory that a device can copy from or to asynchronously. While a copy is under way its owner
/// does not touch it, and calls [`reclaim`](HostMemory::reclaim) before touching it again.
pub trait HostMemory: Any + Send + Debug {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, to write.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Makes the bytes accessible to the host again after a copy that has ended.
    fn reclaim(&mut self) -> Result<()>;
    /// Gives up writing, so that the host and any number of copies to devices may read at once. No copy may be under way.
    fn share(self: Box<Self>) -> Arc<dyn SharedMemory>;
}

/// Host memory that nobody writes any more.
pub trait SharedMemory: Any + Send + Sync + Debug {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

/// What host memory is aligned to, in bytes: a cache line. Elements that need more are refused.
pub(crate) const HOST_ALIGNMENT: usize = 64;

/// So many bytes of host memory, aligned so that any element type and any vector instruction fits.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
pub(crate) struct CacheLine([u8; HOST_ALIGNMENT]);

impl Debug for CacheLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CacheLine")
    }
}

impl CacheLine {
    /// Lines of zeros with room for so many bytes.
    pub(crate) fn zeroed(bytes: usize) -> Vec<CacheLine> {
        bytemuck::allocation::zeroed_vec(bytes.div_ceil(HOST_ALIGNMENT))
    }
}

/// Shared memory that a device has no faster way to than any other: a copy of what was shared.
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
pub trait Program: Any + Send + Sync + Debug {
    /// Which body was compiled, for people: `CUDA C`, `WGSL`, `WGSL with INT64`, `Rust`.
    fn body(&self) -> &str;
    /// Fixes the buffers that the kernel works on, so that launching it again costs nothing more.
    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn BoundKernel>>;
}

/// A compiled kernel with its buffers.
pub trait BoundKernel: Any + Send + Sync + Debug {
    /// The same with the workgroup and the dynamic shared memory that this kernel declares, which is otherwise the one
    /// that it was compiled from.
    fn with_workgroup(&self, kernel: &Kernel) -> Result<Arc<dyn BoundKernel>>;

    /// The number of workgroups that a compute unit runs at once, where that is known.
    fn occupancy(&self) -> Result<Option<u32>> {
        Ok(None)
    }
}

/// A launch to be queued later, as often as wanted.
#[derive(Debug, Clone)]
pub struct RecordedLaunch {
    /// The kernel with its buffers.
    pub bound: Arc<dyn BoundKernel>,
    /// How many workgroups.
    pub groups: [u32; 3],
    /// The parameters' bytes.
    pub params: Arc<[u8]>,
}

/// Launches that were recorded.
pub trait Graph: Any + Send + Sync + Debug {}

/// A point in a stream.
pub trait Event: Any + Send + Sync + Debug {
    /// Whether everything before it has ended.
    fn is_done(&self) -> Result<bool>;
    /// Waits until everything before it has ended.
    fn wait(&self, timeout: Option<Duration>) -> Result<()>;
}

/// A reading of the device's clock at a point in a stream.
pub trait Timestamp: Any + Send + Sync + Debug {
    /// The time from an earlier timestamp of the same device to this one. Both must be done.
    fn since(&self, earlier: &dyn Timestamp) -> Result<Duration>;
}

/// A sequence of operations that run in order, asynchronously to the caller.
pub trait StreamBackend: Send + Debug {
    /// Copies part of host memory to the device.
    fn upload(&mut self, from: &mut dyn HostMemory, range: Range<u64>, to: &Region) -> Result<()>;
    /// Copies part of shared memory to the device, where that needs no staging memory between. Says whether it does.
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
    /// Copies on the device, between regions of one block too, which then do not overlap.
    fn copy(&mut self, from: &Region, to: &Region) -> Result<()>;
    /// Fills with zeros.
    fn zero(&mut self, region: &Region) -> Result<()>;
    /// Fills with repetitions of a pattern, a whole number of which the region has room for, where the device has a way to
    /// do that by itself. Says whether it does.
    fn fill(&mut self, region: &Region, pattern: &[u8]) -> Result<bool> {
        let _ = (region, pattern);
        Ok(false)
    }
    /// Runs a kernel.
    fn launch(&mut self, bound: &Arc<dyn BoundKernel>, groups: [u32; 3], params: &[u8]) -> Result<()>;
    /// Records launches, to be queued as one operation. Nothing where the device has no way to do that.
    fn record_graph(&mut self, launches: &[RecordedLaunch]) -> Result<Option<Arc<dyn Graph>>> {
        let _ = launches;
        Ok(None)
    }
    /// Queues launches that a stream of this device has recorded. Says whether they are such.
    fn replay(&mut self, graph: &Arc<dyn Graph>) -> Result<bool> {
        let _ = graph;
        Ok(false)
    }
    /// Reads the device's clock when everything before has ended.
    fn timestamp(&mut self) -> Result<Arc<dyn Timestamp>>;
    /// Records an event here, and starts everything before it.
    fn record_event(&mut self) -> Result<Arc<dyn Event>>;
    /// Holds what comes next in this stream until another stream of the same device has reached an event.
    fn wait_event(&mut self, event: &Arc<dyn Event>) -> Result<()>;
    /// The driver's handle of this stream, where it is of a CUDA device.
    fn cuda_handle(&self) -> Option<*mut c_void> {
        None
    }
    /// Holds what comes next until a CUDA event of another library has happened. Says whether the device knows such.
    ///
    /// # Safety
    /// The event is alive, and of this stream's device.
    unsafe fn wait_cuda_event(&mut self, event: *mut c_void) -> Result<bool> {
        let _ = event;
        Ok(false)
    }
    /// Has a CUDA event of another library happen when everything before has ended. Says whether the device knows such.
    ///
    /// # Safety
    /// As for [`wait_cuda_event`](StreamBackend::wait_cuda_event).
    unsafe fn record_cuda_event(&mut self, event: *mut c_void) -> Result<bool> {
        let _ = event;
        Ok(false)
    }
    /// Starts everything that was queued and not yet started.
    fn flush(&mut self) -> Result<()>;
    /// Waits until everything queued so far has ended.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<()>;
}
