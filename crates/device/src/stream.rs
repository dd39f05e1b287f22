//! Streams: operations that run in order on one device, asynchronously to the host.

use std::{
    any::type_name,
    collections::VecDeque,
    ffi::c_void,
    fmt,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use bytemuck::Pod;

use crate::{
    backend::{self, Backend, Direction, HostMemory, Region, StreamBackend, copy::copy_parallel},
    buffer::{Buffer, HostBuffer, SharedBuffer, StagingBuffer, size_in_bytes},
    describe::DeviceId,
    error::{Error, Result},
    graph::{Graph, GraphRecorder},
    kernel::{BoundKernel, Extent},
    launch::count_threads,
};

/// Size of the pieces in which a slice is copied through staging memory, so that the copy into staging memory and the
/// copy to the device overlap.
const PIECE_BYTES: usize = StagingBuffer::<u8>::PIECE_BYTES;

/// Maximum number of pieces in flight before the host waits for the oldest.
const PIECES_IN_FLIGHT: usize = 4;

/// Downloads of at most this many bytes use host memory of their own; longer ones go through staging memory in pieces.
const DIRECT_DOWNLOAD_BYTES: u64 = 64 << 20;

/// Pieces of a download in flight, each with the index of its first element.
type PendingPieces<T> = VecDeque<(usize, Transfer<T>)>;

/// Waits for the oldest piece in flight, copies it into `arrived`, and returns its host memory for reuse.
fn take_oldest<T: Pod>(
    pending: &mut PendingPieces<T>,
    arrived: &mut [T],
    timeout: Option<Duration>,
) -> Result<Option<HostBuffer<T>>> {
    let Some((first, transfer)) = pending.pop_front() else { return Ok(None) };
    let host = transfer.finish(timeout)?;
    let to = &mut arrived[first..];
    // The last piece may be shorter than its host memory.
    let len = host.as_slice().len().min(to.len());
    copy_parallel(&host.as_slice()[..len], &mut to[..len]);
    Ok(Some(host))
}

/// Operations that run in order on one device, asynchronously to the host.
///
/// An error of an operation on the device is returned by a later call, at the latest by [`wait`](Stream::wait).
/// Operations of different streams of a device may overlap: copies hide behind compute if chunks alternate between two
/// streams.
#[derive(Debug)]
pub struct Stream {
    inner: Box<dyn StreamBackend>,
    backend: Arc<dyn Backend>,
    device: DeviceId,
}

impl Stream {
    pub(crate) fn new(inner: Box<dyn StreamBackend>, backend: Arc<dyn Backend>, device: DeviceId) -> Self {
        Stream { inner, backend, device }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &DeviceId {
        &self.device
    }

    /// Copies elements to the beginning of a buffer. Returns as soon as the elements may change again. For the full rate
    /// of the bus, fill a [`HostBuffer`] and use [`upload_host`](Stream::upload_host).
    pub fn upload<T: Pod>(&mut self, elements: &[T], to: &Buffer<T>) -> Result<()> {
        self.check_capacity("uploading", elements.len(), to)?;
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        self.check_copy("uploading", to.region(), bytes.len() as u64)?;
        let mut pieces: VecDeque<Arc<dyn backend::EventBackend>> = VecDeque::new();
        for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            if pieces.len() >= PIECES_IN_FLIGHT
                && let Some(oldest) = pieces.pop_front()
            {
                oldest.wait(None)?;
            }
            let mut staging = self.backend.allocate_host(piece.len() as u64, Direction::Upload)?;
            copy_parallel(piece, staging.bytes_mut());
            let region = sub_region(to.region(), (index * PIECE_BYTES) as u64, piece.len() as u64);
            self.inner.upload(&mut *staging, 0..piece.len() as u64, &region)?;
            if bytes.len() > PIECE_BYTES {
                pieces.push_back(self.inner.record_event()?);
            }
        }
        Ok(())
    }

    /// Copies host memory to the beginning of a buffer. The transfer returns the host memory when the copy has finished.
    pub fn upload_host<T: Pod>(&mut self, from: HostBuffer<T>, to: &Buffer<T>) -> Result<Transfer<T>> {
        let all = from.memory.bytes().len() / size_of::<T>().max(1);
        self.upload_host_prefix(from, all, to)
    }

    /// Copies the first `count` elements of host memory to the beginning of a buffer, as
    /// [`upload_host`](Stream::upload_host) copies all of them.
    pub fn upload_host_prefix<T: Pod>(
        &mut self,
        mut from: HostBuffer<T>,
        count: usize,
        to: &Buffer<T>,
    ) -> Result<Transfer<T>> {
        let bytes = size_in_bytes::<T>(&self.device, "uploading", count)?;
        let available = from.memory.bytes().len() as u64;
        if bytes > available {
            let operation = format!("uploading {bytes} bytes from host memory of {available} bytes");
            return Err(Error::unsupported(&self.device, operation, "the host memory is too short"));
        }
        self.check_capacity("uploading", count, to)?;
        self.check_copy("uploading", to.region(), bytes)?;
        if bytes > 0 {
            self.inner.upload(&mut *from.memory, 0..bytes, &sub_region(to.region(), 0, bytes))?;
        }
        Ok(Transfer { host: from, event: self.inner.record_event()? })
    }

    /// Copies `count` elements to the beginning of a buffer through staging memory, which the upload returns when the
    /// copies have finished. `fill` writes the elements piece by piece: it gets the indices of a piece's elements and the
    /// memory for them, and may queue operations before the copy of that piece. One piece is copied while the next is
    /// written.
    ///
    /// An error of `fill` is returned unchanged; the pieces before it are in the buffer.
    ///
    /// ```
    /// use evener_device::{Device, copy_parallel};
    ///
    /// let (device, numbers) = (Device::cpu(), vec![3u32; 5000]);
    /// let (mut stream, buffer) = (device.stream()?, device.buffer::<u32>(5000)?);
    /// let staging = device.staging_buffer(5000)?;
    /// let upload = stream.upload_staged(staging, 5000, &buffer, |_, piece, memory| {
    ///     copy_parallel(&numbers[piece], memory);
    ///     Ok(())
    /// })?;
    /// upload.wait()?;
    /// assert_eq!(stream.download(&buffer)?.wait()?, numbers);
    /// # Ok::<(), evener_device::Error>(())
    /// ```
    pub fn upload_staged<T: Pod>(
        &mut self,
        mut through: StagingBuffer<T>,
        count: usize,
        to: &Buffer<T>,
        mut fill: impl FnMut(&mut Stream, Range<usize>, &mut [T]) -> Result<()>,
    ) -> Result<StagedUpload<T>> {
        if count > through.len() {
            let operation =
                format!("uploading {count} elements through staging memory of {} elements", through.len());
            return Err(Error::unsupported(&self.device, operation, "the staging memory is too short"));
        }
        self.check_capacity("uploading", count, to)?;
        let element = size_of::<T>() as u64;
        let bytes = size_in_bytes::<T>(&self.device, "uploading", count)?;
        self.check_copy("uploading", to.region(), bytes)?;
        let mut first = 0;
        for piece in &mut through.pieces {
            let len = StagingBuffer::<T>::PIECE_LEN.min(count - first);
            if len == 0 {
                break;
            }
            fill(self, first..first + len, &mut piece.as_mut_slice()[..len])?;
            let region = sub_region(to.region(), first as u64 * element, len as u64 * element);
            self.inner.upload(&mut *piece.memory, 0..region.bytes, &region)?;
            first += len;
            if first < count {
                self.inner.flush()?;
            }
        }
        Ok(StagedUpload { through, event: self.inner.record_event()? })
    }

    /// Copies some elements of shared host memory to the beginning of a buffer. Fails if the range is out of bounds.
    pub fn upload_shared<T: Pod>(
        &mut self,
        from: &SharedBuffer<T>,
        range: Range<usize>,
        to: &Buffer<T>,
    ) -> Result<()> {
        let len = from.as_slice().len();
        let Some(elements) = from.as_slice().get(range.clone()) else {
            let operation = format!("uploading elements {range:?} of shared memory of {len} elements");
            return Err(Error::unsupported(&self.device, operation, "the range is out of bounds"));
        };
        self.check_capacity("uploading", elements.len(), to)?;
        let element = size_of::<T>() as u64;
        let bytes = elements.len() as u64 * element;
        self.check_copy("uploading", to.region(), bytes)?;
        let first = from.bytes.start as u64;
        let byte_range = first + range.start as u64 * element..first + range.end as u64 * element;
        match self.inner.upload_shared(&from.memory, byte_range, &sub_region(to.region(), 0, bytes))? {
            true => Ok(()),
            false => self.upload(elements, to),
        }
    }

    /// Begins to copy a buffer to the host.
    ///
    /// Up to 64 MiB the call returns at once. A longer buffer is copied through a bounded amount of staging memory,
    /// because the system cannot swap out the memory that a device copies to: the call then returns when all but the last
    /// pieces have arrived, and so waits for all operations queued before. To have a long download in flight, or to limit
    /// the wait, use [`download_host`](Stream::download_host) with a host buffer of your own.
    pub fn download<T: Pod>(&mut self, from: &Buffer<T>) -> Result<Download<T>> {
        let device = self.device.clone();
        if from.bytes() > DIRECT_DOWNLOAD_BYTES {
            let (arrived, pending) = self.download_staged(from)?;
            return Ok(Download { arrived, pending, device });
        }
        let memory = self.backend.allocate_host(from.bytes(), Direction::Download)?;
        let transfer = self.download_host(from, HostBuffer::new(memory, &device)?)?;
        Ok(Download { arrived: Vec::new(), pending: VecDeque::from([(0, transfer)]), device })
    }

    /// Copies a buffer to ordinary memory through staging memory, piece by piece. Returns the elements, and the pieces in
    /// flight, which are not yet among them.
    fn download_staged<T: Pod>(&mut self, from: &Buffer<T>) -> Result<(Vec<T>, PendingPieces<T>)> {
        let len = from.len();
        let mut arrived: Vec<T> =
            bytemuck::allocation::try_zeroed_vec(len).map_err(|()| Error::OutOfMemory {
                device: self.device.clone(),
                operation: "downloading".into(),
                requested: from.bytes(),
                available: None,
                detail: "limited by the machine's memory".into(),
            })?;
        let piece_len = 4 * StagingBuffer::<T>::PIECE_LEN;
        let mut pending = VecDeque::with_capacity(PIECES_IN_FLIGHT);
        let mut spare = None;
        for first in (0..len).step_by(piece_len) {
            if pending.len() >= PIECES_IN_FLIGHT {
                spare = take_oldest(&mut pending, &mut arrived, None)?;
            }
            let piece = from.slice(first..len.min(first + piece_len))?;
            let host = match spare.take() {
                Some(host) => host,
                None => {
                    let memory = self.backend.allocate_host(piece.bytes(), Direction::Download)?;
                    HostBuffer::new(memory, &self.device)?
                }
            };
            pending.push_back((first, self.download_host(&piece, host)?));
        }
        Ok((arrived, pending))
    }

    /// Begins to copy a buffer to the beginning of host memory. The transfer returns the host memory when the copy has
    /// finished.
    pub fn download_host<T: Pod>(&mut self, from: &Buffer<T>, mut to: HostBuffer<T>) -> Result<Transfer<T>> {
        let capacity = to.memory.bytes().len() as u64;
        if capacity < from.bytes() {
            let operation = format!("downloading {} bytes to host memory of {capacity} bytes", from.bytes());
            return Err(Error::unsupported(&self.device, operation, "the host memory is too short"));
        }
        self.check_copy("downloading", from.region(), from.bytes())?;
        if !from.is_empty() {
            self.inner.download(from.region(), &mut *to.memory, 0)?;
        }
        Ok(Transfer { host: to, event: self.inner.record_event()? })
    }

    /// Copies a buffer to the beginning of another one on the same device. They may be slices of one buffer that do not
    /// overlap.
    pub fn copy<T: Pod>(&mut self, from: &Buffer<T>, to: &Buffer<T>) -> Result<()> {
        self.check_capacity("copying", from.len(), to)?;
        self.check_copy("copying", from.region(), from.bytes())?;
        self.check_copy("copying", to.region(), from.bytes())?;
        if from.is_empty() {
            return Ok(());
        }
        let target = sub_region(to.region(), 0, from.bytes());
        if from.region().overlaps(&target) {
            return Err(Error::unsupported(
                &self.device,
                "copying a buffer",
                "source and target overlap: copy through another buffer",
            ));
        }
        self.inner.copy(from.region(), &target)
    }

    /// Fills a buffer with zeros.
    pub fn zero<T: Pod>(&mut self, buffer: &Buffer<T>) -> Result<()> {
        self.check_copy("zeroing", buffer.region(), buffer.bytes())?;
        if buffer.is_empty() {
            return Ok(());
        }
        self.inner.zero(buffer.region())
    }

    /// Fills a buffer with copies of an element.
    ///
    /// ```
    /// use evener_device::Device;
    ///
    /// let device = Device::cpu();
    /// let (mut stream, buffer) = (device.stream()?, device.buffer::<[u32; 3]>(4)?);
    /// stream.fill(&buffer, [1, 2, 3])?;
    /// assert_eq!(stream.download(&buffer)?.wait()?, [[1, 2, 3]; 4]);
    /// # Ok::<(), evener_device::Error>(())
    /// ```
    pub fn fill<T: Pod>(&mut self, buffer: &Buffer<T>, element: T) -> Result<()> {
        self.check_copy("filling", buffer.region(), buffer.bytes())?;
        let pattern = bytemuck::bytes_of(&element);
        if buffer.is_empty() || pattern.is_empty() {
            return Ok(());
        }
        if pattern.iter().all(|&byte| byte == 0) {
            return self.inner.zero(buffer.region());
        }
        if self.inner.fill(buffer.region(), pattern)? {
            return Ok(());
        }
        // One piece is uploaded, and then copied on the device.
        let piece = StagingBuffer::<T>::PIECE_LEN.min(buffer.len());
        if piece == buffer.len() {
            return self.upload(&vec![element; piece], buffer);
        }
        let memory = self.backend.allocate((piece * size_of::<T>()) as u64, backend::Contents::Uninit)?;
        let block = Buffer::new(memory, self.device.clone());
        self.upload(&vec![element; piece], &block)?;
        for first in (0..buffer.len()).step_by(piece) {
            let target = buffer.slice(first..buffer.len().min(first + piece))?;
            match target.len() == piece {
                true => self.copy(&block, &target)?,
                // Devices that copy whole words allow an odd length only at a buffer's end.
                false => self.upload(&vec![element; target.len()], &target)?,
            }
        }
        Ok(())
    }

    /// Runs a kernel. `groups` is the number of workgroups, as one number or three; `params` is the declared parameter
    /// struct, or `&()` if there is none. A launch without workgroups does nothing.
    pub fn launch<P: Pod>(
        &mut self,
        bound: &BoundKernel,
        groups: impl Into<Extent>,
        params: &P,
    ) -> Result<()> {
        let Extent(groups) = groups.into();
        let params = bytemuck::bytes_of(params);
        match self.check_launch(bound, groups, params.len())? {
            true => self.inner.launch(&bound.inner, groups, params),
            false => Ok(()),
        }
    }

    /// Whether there is anything to launch. Fails if there are too many workgroups, or the parameters have another size.
    #[inline]
    fn check_launch(&self, bound: &BoundKernel, groups: [u32; 3], params_bytes: usize) -> Result<bool> {
        let limits = self.backend.capabilities().max_groups;
        let fits = groups.iter().zip(&limits).all(|(asked, limit)| asked <= limit);
        let overflows = count_threads(groups, bound.kernel.workgroup).is_none();
        if !fits || overflows || params_bytes != bound.kernel.params_bytes as usize {
            return Err(self.refuse_launch(bound, groups, params_bytes));
        }
        Ok(!groups.contains(&0))
    }

    /// Checks a launch that is recorded, as [`launch`](Stream::launch) checks it. Returns whether there is anything to
    /// launch.
    pub(crate) fn check_recorded_launch(
        &self,
        bound: &BoundKernel,
        groups: [u32; 3],
        params_bytes: usize,
    ) -> Result<bool> {
        let has_groups = self.check_launch(bound, groups, params_bytes)?;
        if has_groups {
            self.inner.check_kernel(&bound.inner)?;
        }
        Ok(has_groups)
    }

    /// Records launches without running them, so that they can be queued any number of times as one operation.
    ///
    /// ```
    /// use evener_device::{Device, Kernel};
    ///
    /// let device = Device::cpu();
    /// let add = Kernel::new("add").writes::<u32>().params::<u32>().rust(|launch| {
    ///     launch.write::<u32>(0)?[0] += launch.params::<u32>()?;
    ///     Ok(())
    /// });
    /// let sum = device.buffer::<u32>(1)?;
    /// let bound = device.compile(&add)?.bind(&[sum.arg()])?;
    /// let mut stream = device.stream()?;
    /// let graph = stream.record_graph(|recorder| {
    ///     recorder.launch(&bound, 1, &2u32)?;
    ///     recorder.launch(&bound, 1, &3u32)
    /// })?;
    /// stream.replay(&graph)?;
    /// stream.replay(&graph)?;
    /// assert_eq!(stream.download(&sum)?.wait()?, [10]);
    /// # Ok::<(), evener_device::Error>(())
    /// ```
    pub fn record_graph(
        &mut self,
        record: impl FnOnce(&mut GraphRecorder<'_>) -> Result<()>,
    ) -> Result<Graph> {
        let mut recorder = GraphRecorder { stream: self, launches: Vec::new() };
        record(&mut recorder)?;
        let launches = recorder.launches;
        Ok(Graph { inner: self.inner.record_graph(&launches)?, launches })
    }

    /// Queues the launches of a graph, in the order in which they were recorded.
    pub fn replay(&mut self, graph: &Graph) -> Result<()> {
        if let Some(inner) = &graph.inner
            && self.inner.replay(inner)?
        {
            return Ok(());
        }
        let launch = |recorded: &backend::RecordedLaunch| {
            self.inner.launch(&recorded.bound, recorded.groups, &recorded.params)
        };
        graph.launches.iter().try_for_each(launch)
    }

    /// Runs a kernel with this many workgroups, in as many dimensions as the device needs for them: on wgpu, one
    /// dimension has at most 65,535.
    ///
    /// The kernel computes the index of its workgroup as `x + X * (y + Y * z)`, where `X` and `Y` are the numbers of
    /// workgroups in the first two dimensions (`gridDim` in CUDA C, `num_workgroups` in WGSL). The launch may have a few
    /// more workgroups than requested, to fill all dimensions: the kernel has to check the index.
    pub fn launch_folded<P: Pod>(&mut self, bound: &BoundKernel, groups: u64, params: &P) -> Result<()> {
        let limits = self.backend.capabilities().max_groups;
        let threads = groups.checked_mul(bound.kernel.workgroup_threads());
        match fold(groups, limits).filter(|_| threads.is_some()) {
            Some(folded) => self.launch(bound, folded, params),
            None => {
                let workgroup = bound.kernel.workgroup;
                let detail = format!(
                    "{groups} workgroups of {workgroup:?}, but the device allows at most {limits:?} and {} threads in total",
                    u64::MAX
                );
                let operation = format!("launching kernel `{}`", bound.kernel.name);
                Err(Error::unsupported(&self.device, operation, detail))
            }
        }
    }

    #[cold]
    fn refuse_launch(&self, bound: &BoundKernel, groups: [u32; 3], params_bytes: usize) -> Error {
        let detail = if params_bytes != bound.kernel.params_bytes as usize {
            format!("{} bytes of parameters are declared and {params_bytes} given", bound.kernel.params_bytes)
        } else if count_threads(groups, bound.kernel.workgroup).is_none() {
            let workgroup = bound.kernel.workgroup;
            format!("{groups:?} workgroups of {workgroup:?}, and at most {} threads are possible", u64::MAX)
        } else {
            format!(
                "{groups:?} workgroups, but the device allows at most {:?}",
                self.backend.capabilities().max_groups
            )
        };
        Error::unsupported(&self.device, format!("launching kernel `{}`", bound.kernel.name), detail)
    }

    /// Reads the device's clock when all operations before have finished.
    pub fn timestamp(&mut self) -> Result<Timestamp> {
        Ok(Timestamp { inner: self.inner.timestamp()? })
    }

    /// Records an event at this point of the stream, and starts all operations before it.
    pub fn record_event(&mut self) -> Result<Event> {
        Ok(Event { inner: self.inner.record_event()? })
    }

    /// Makes later operations wait for an event of another stream of the same device.
    pub fn wait_event(&mut self, event: &Event) -> Result<()> {
        self.inner.wait_event(&event.inner)
    }

    /// The driver's handle (`CUstream`), for other libraries that queue their own work behind the operations so far;
    /// `None` on other devices than CUDA. Such work has to finish before the stream is dropped, and its buffers have to
    /// be kept until then.
    pub fn cuda_handle(&self) -> Option<*mut c_void> {
        self.inner.cuda_handle()
    }

    /// Makes later operations wait for an event (`CUevent`) that another library has recorded. Fails with `Unsupported`
    /// if this is not a CUDA device.
    ///
    /// # Safety
    /// The event is alive, and was created in this device's primary context.
    #[allow(unsafe_code)]
    pub unsafe fn wait_cuda_event(&mut self, event: *mut c_void) -> Result<()> {
        // SAFETY: the caller promises that the event is alive and was created in this device's primary context.
        let is_known = unsafe { self.inner.wait_cuda_event(event) }?;
        self.expect_cuda(is_known, "waiting for an event")
    }

    /// Records an event (`CUevent`) of another library behind all operations so far. Fails with `Unsupported` if this is
    /// not a CUDA device.
    ///
    /// # Safety
    /// The event is alive, and was created in this device's primary context.
    #[allow(unsafe_code)]
    pub unsafe fn record_cuda_event(&mut self, event: *mut c_void) -> Result<()> {
        // SAFETY: the caller promises that the event is alive and was created in this device's primary context.
        let is_known = unsafe { self.inner.record_cuda_event(event) }?;
        self.expect_cuda(is_known, "recording an event")
    }

    fn expect_cuda(&self, is_known: bool, operation: &str) -> Result<()> {
        match is_known {
            true => Ok(()),
            false => Err(Error::unsupported(&self.device, operation, "the device is not a CUDA device")),
        }
    }

    /// Starts all queued operations, without waiting for them.
    pub fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }

    /// Waits until all queued operations have finished.
    pub fn wait(&mut self) -> Result<()> {
        self.inner.wait(None)
    }

    /// Waits until all queued operations have finished, or fails with `TimedOut`.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.inner.wait(Some(timeout))
    }

    /// Checks that a buffer has room for elements that are copied to its beginning.
    fn check_capacity<T: Pod>(&self, operation: &str, elements: usize, to: &Buffer<T>) -> Result<()> {
        if elements <= to.len() {
            return Ok(());
        }
        let operation = format!("{operation} {elements} elements to a buffer of {} elements", to.len());
        Err(Error::unsupported(&self.device, operation, "the buffer is too short"))
    }

    /// Checks that a copy begins and ends at a multiple of the device's copy alignment, or at the buffer's end.
    fn check_copy(&self, operation: &str, region: &Region, bytes: u64) -> Result<()> {
        let alignment = self.backend.capabilities().copy_alignment;
        let end = region.offset + bytes;
        if region.offset.is_multiple_of(alignment)
            && (end.is_multiple_of(alignment) || end == region.memory.bytes())
        {
            return Ok(());
        }
        let operation = format!("{operation} bytes {}..{end} of a buffer", region.offset);
        let detail =
            format!("the range does not begin and end at a multiple of {alignment} or at the buffer's end");
        Err(Error::unsupported(&self.device, operation, detail))
    }
}

fn sub_region(of: &Region, offset: u64, bytes: u64) -> Region {
    Region { memory: of.memory.clone(), offset: of.offset + offset, bytes }
}

/// A point in a stream.
#[derive(Debug, Clone)]
pub struct Event {
    inner: Arc<dyn backend::EventBackend>,
}

impl Event {
    /// Whether all operations before it have finished.
    pub fn is_done(&self) -> Result<bool> {
        self.inner.is_done()
    }

    /// Waits until all operations before it have finished.
    pub fn wait(&self) -> Result<()> {
        self.inner.wait(None)
    }

    /// Waits until all operations before it have finished, or fails with `TimedOut`.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<()> {
        self.inner.wait(Some(timeout))
    }
}

/// A reading of the device's clock.
#[derive(Debug, Clone)]
pub struct Timestamp {
    inner: Arc<dyn backend::TimestampBackend>,
}

impl Timestamp {
    /// The time on the device's clock from an earlier timestamp to this one. Wait for the stream before you call it.
    pub fn since(&self, earlier: &Timestamp) -> Result<Duration> {
        self.inner.since(&*earlier.inner)
    }
}

/// A copy in flight between host memory and a device.
pub struct Transfer<T> {
    host: HostBuffer<T>,
    event: Arc<dyn backend::EventBackend>,
}

impl<T: Pod> Transfer<T> {
    /// Whether the copy has finished.
    pub fn is_done(&self) -> Result<bool> {
        self.event.is_done()
    }

    /// Waits until the copy has finished, and returns the host memory.
    pub fn wait(self) -> Result<HostBuffer<T>> {
        self.finish(None)
    }

    /// Waits until the copy has finished, or fails with `TimedOut`, and the host memory is dropped.
    pub fn wait_timeout(self, timeout: Duration) -> Result<HostBuffer<T>> {
        self.finish(Some(timeout))
    }

    fn finish(mut self, timeout: Option<Duration>) -> Result<HostBuffer<T>> {
        self.event.wait(timeout)?;
        HostMemory::reclaim(&mut *self.host.memory)?;
        Ok(self.host)
    }
}

impl<T> fmt::Debug for Transfer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transfer<{}>", type_name::<T>())
    }
}

/// A copy in flight to a device through staging memory.
#[derive(Debug)]
pub struct StagedUpload<T> {
    through: StagingBuffer<T>,
    event: Arc<dyn backend::EventBackend>,
}

impl<T: Pod> StagedUpload<T> {
    /// Waits until the copy has finished, and returns the staging memory.
    pub fn wait(mut self) -> Result<StagingBuffer<T>> {
        self.event.wait(None)?;
        self.through.pieces.iter_mut().try_for_each(|piece| piece.memory.reclaim())?;
        Ok(self.through)
    }
}

/// A copy in flight of a buffer to the host.
#[derive(Debug)]
pub struct Download<T> {
    /// Empty if there is only one piece.
    arrived: Vec<T>,
    pending: PendingPieces<T>,
    device: DeviceId,
}

impl<T: Pod> Download<T> {
    /// Whether the copy has finished.
    pub fn is_done(&self) -> Result<bool> {
        self.pending.back().map_or(Ok(true), |(_, last)| last.is_done())
    }

    /// Waits until the copy has finished, and returns the elements.
    pub fn wait(self) -> Result<Vec<T>> {
        self.finish(None)
    }

    /// Waits until the copy has finished, or fails with `TimedOut`.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Vec<T>> {
        self.finish(Some(timeout))
    }

    /// Waits until the copy has finished, and copies the elements to a slice: for large buffers that is several times as
    /// fast as a new vector, whose memory the system has to allocate first. Fails if the lengths differ.
    pub fn wait_into(mut self, elements: &mut [T]) -> Result<()> {
        let check = |found: usize, device: &DeviceId| {
            if found == elements.len() {
                return Ok(());
            }
            let operation = format!("copying {found} elements to a slice of {} elements", elements.len());
            Err(Error::unsupported(device, operation, "the lengths differ"))
        };
        if let Some(host) = self.only_piece(None)? {
            check(host.as_slice().len(), &self.device)?;
            copy_parallel(host.as_slice(), elements);
            return Ok(());
        }
        check(self.arrived.len(), &self.device)?;
        copy_parallel(&self.finish(None)?, elements);
        Ok(())
    }

    /// Waits for the host memory, if there is only one piece.
    fn only_piece(&mut self, timeout: Option<Duration>) -> Result<Option<HostBuffer<T>>> {
        if !self.arrived.is_empty() {
            return Ok(None);
        }
        self.pending.pop_front().map(|(_, transfer)| transfer.finish(timeout)).transpose()
    }

    fn finish(mut self, timeout: Option<Duration>) -> Result<Vec<T>> {
        if let Some(host) = self.only_piece(timeout)? {
            return Ok(host.as_slice().to_vec());
        }
        let began = Instant::now();
        while !self.pending.is_empty() {
            let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
            take_oldest(&mut self.pending, &mut self.arrived, left)?;
        }
        Ok(self.arrived)
    }
}

/// Returns at least `groups` workgroups in as few dimensions as possible; `None` if they are too many for three.
fn fold(groups: u64, limits: [u32; 3]) -> Option<[u32; 3]> {
    let [max_x, max_y, max_z] = limits.map(|limit| u64::from(limit.max(1)));
    let rows = groups.div_ceil(max_x).max(1);
    let z = rows.div_ceil(max_y);
    let y = rows.div_ceil(z);
    let x = groups.div_ceil(y * z);
    (z <= max_z).then_some([x as u32, y as u32, z as u32])
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Device;

    #[test]
    fn refused_copies_say_what_was_copied_where() {
        let device = Device::cpu();
        let mut stream = device.stream().unwrap();
        let (long, short) = (device.buffer::<u32>(12).unwrap(), device.buffer::<u32>(10).unwrap());
        let shared = device.host_buffer::<u32>(12, Direction::Upload).unwrap().share();
        let host = |len| device.host_buffer::<u32>(len, Direction::Upload).unwrap();
        let staging = device.staging_buffer::<u32>(10).unwrap();
        let same = long.slice(1..11).unwrap();
        let refusals = [
            (
                stream.upload(&[7; 12], &short),
                "uploading 12 elements to a buffer of 10 elements failed: the buffer is too short",
            ),
            (
                stream.copy(&long, &short),
                "copying 12 elements to a buffer of 10 elements failed: the buffer is too short",
            ),
            (
                stream.copy(&long.slice(..10).unwrap(), &same),
                "copying a buffer failed: source and target overlap: copy through another buffer",
            ),
            (
                stream.upload_host_prefix(host(10), 12, &long).map(drop),
                "uploading 48 bytes from host memory of 40 bytes failed: the host memory is too short",
            ),
            (
                stream.download_host(&long, host(10)).map(drop),
                "downloading 48 bytes to host memory of 40 bytes failed: the host memory is too short",
            ),
            (
                stream.upload_staged(staging, 12, &long, |_, _, _| Ok(())).map(drop),
                "uploading 12 elements through staging memory of 10 elements failed: the staging memory is too short",
            ),
            (
                stream.upload_shared(&shared, 5..13, &long),
                "uploading elements 5..13 of shared memory of 12 elements failed: the range is out of bounds",
            ),
            (
                stream.download(&long).unwrap().wait_into(&mut [0; 10]),
                "copying 12 elements to a slice of 10 elements failed: the lengths differ",
            ),
        ];
        for (result, text) in refusals {
            assert_eq!(result.unwrap_err().to_string(), format!("cpu: {text}"));
        }
    }

    #[test]
    fn workgroups_are_folded_into_as_few_dimensions_as_possible() {
        let limits = [65_535; 3];
        assert_eq!(fold(0, limits), Some([0, 1, 1]));
        assert_eq!(fold(65_535, limits), Some([65_535, 1, 1]));
        assert_eq!(fold(65_536, limits), Some([32_768, 2, 1]));
        assert_eq!(fold(65_537, limits), Some([32_769, 2, 1]));
        let max = 65_535u64.pow(3);
        assert_eq!(fold(max, limits), Some(limits));
        assert_eq!(fold(max + 1, limits), None);
        for groups in [1 << 17, (1 << 32) + 1, (1 << 40) + 12_345] {
            let folded = fold(groups, limits).unwrap();
            let there: u64 = folded.iter().map(|&n| u64::from(n)).product();
            assert!(folded.iter().zip(&limits).all(|(n, limit)| n <= limit), "{folded:?}");
            assert!(there >= groups && there - groups < 1 << 20, "{groups} in {folded:?}");
        }
        assert_eq!(fold(1 << 31, [i32::MAX as u32, 65_535, 65_535]), Some([1 << 30, 2, 1]));
    }
}
