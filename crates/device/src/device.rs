//! The handle of a device: describes it, opens it on demand, and creates its buffers, kernels and streams.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use bytemuck::Pod;

use crate::{
    affinity::unbound,
    backend::{self, Address, Backend, Contents, Direction, MemoryUsage, Source},
    buffer::{Buffer, HostBuffer, StagingBuffer, check_alignment, size_in_bytes},
    describe::{Capabilities, Description, DeviceId},
    discover::same_hardware,
    error::{Error, Result},
    kernel::{Kernel, Program},
    stream::Stream,
};

/// A compute device: a GPU through one API, a partition of a GPU, or a set of CPU cores.
///
/// The first operation that needs the device opens it. It is closed when its last clone, and everything made from it, is
/// dropped. Finding and describing a device therefore uses nothing of the hardware.
#[derive(Debug, Clone)]
pub struct Device {
    shared: Arc<DeviceState>,
}

/// The state that all clones of a device share.
#[derive(Debug)]
struct DeviceState {
    source: Arc<dyn Source>,
    open: Mutex<Option<Arc<dyn Backend>>>,
}

impl Device {
    /// Creates a device from a back end's source. Use this for a back end of your own, or for one that wraps another.
    pub fn from_source(source: Arc<dyn Source>) -> Self {
        Device { shared: Arc::new(DeviceState { source, open: Mutex::new(None) }) }
    }

    /// Returns the processor with all of its cores: the one device that every machine has.
    pub fn cpu() -> Self {
        Device::from_source(backend::cpu::source())
    }

    /// Its description.
    pub fn describe(&self) -> &Description {
        self.shared.source.describe()
    }

    /// Its id.
    pub fn id(&self) -> &DeviceId {
        &self.describe().id
    }

    /// Returns a new handle of the same hardware, not yet opened. Use it after this handle was lost.
    pub fn reopened(&self) -> Device {
        Device::from_source(self.shared.source.clone())
    }

    /// Whether two handles are clones of each other, so that what is made from one can be used with the other. Handles of
    /// the same hardware that were opened separately, as by [`reopened`](Device::reopened), are not.
    ///
    /// ```
    /// use evener_device::Device;
    ///
    /// let device = Device::cpu();
    /// assert!(device.is_clone_of(&device.clone()));
    /// assert!(!device.is_clone_of(&device.reopened()));
    /// ```
    pub fn is_clone_of(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether the device is there, so that opening it is worth a try. `false` for a device of a machine that is still to
    /// come: a node that SLURM has not allocated yet.
    pub fn is_there(&self) -> bool {
        self.shared.source.is_there()
    }

    /// When the device will be taken away, if that is known: the time limit of SLURM's job. It may change.
    pub fn available_until(&self) -> Option<Instant> {
        self.shared.source.available_until()
    }

    /// Opens the device if it is not open yet. Operations do this automatically.
    pub fn open(&self) -> Result<()> {
        self.backend().map(drop)
    }

    /// Returns its features and limits. Opens it.
    pub fn capabilities(&self) -> Result<Capabilities> {
        Ok(self.backend()?.capabilities().clone())
    }

    /// Splits it into partitions of these many compute units (multiprocessors of a CUDA device, cores of the processor),
    /// each a device of its own named `…/a`, `…/b` and so on. If the hardware allows certain sizes only, a size is
    /// rounded up and the partition's description says so. Sizes that are not possible are an error, which states the
    /// possible ones. The processor has as many cores as its description has compute units: a quota may allow fewer than
    /// the machine has.
    pub fn split(&self, sizes: &[u32]) -> Result<Vec<Device>> {
        let refuse = |detail: &str| {
            Err(Error::Split { device: self.id().clone(), sizes: sizes.to_vec(), detail: detail.into() })
        };
        if sizes.is_empty() {
            return refuse("no sizes were given");
        }
        if sizes.contains(&0) {
            return refuse("a partition needs at least one compute unit");
        }
        Ok(self.shared.source.split(sizes)?.into_iter().map(Device::from_source).collect())
    }

    /// Whether two devices are the same hardware, whole or in part, so that each would slow the other down: one device twice,
    /// a device and a partition of it, or one GPU through two APIs. Two partitions of one device are not the same hardware.
    pub fn shares_hardware_with(&self, other: &Device) -> bool {
        let (a, b) = (self.describe(), other.describe());
        let is_within = |part: &Description, whole: &Description| {
            let is_whole = |id: &DeviceId| {
                let rest = id.as_str().strip_prefix(whole.id.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            part.part_of.as_ref().is_some_and(is_whole)
        };
        a.id == b.id || is_within(a, b) || is_within(b, a) || same_hardware(a, b)
    }

    /// Binds the calling thread to one of the cores of a processor partition (the index wraps around), for programs that
    /// run host code of their own on those cores. Does nothing for other devices. On a system that cannot bind threads
    /// ([`affinity`](crate::affinity) lists them), the partition logs one warning.
    pub fn bind_thread(&self, index: usize) {
        self.shared.source.bind_thread(index);
    }

    /// Allocates a zeroed buffer. This and all other functions that make a buffer fail for elements with an alignment of
    /// more than 64 bytes.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Contents::Zeroed)
    }

    /// Allocates a buffer with undefined contents, for a caller that writes every element before it reads it.
    pub fn buffer_uninit<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Contents::Uninit)
    }

    /// Allocates a buffer and copies these elements to it.
    pub fn buffer_from<T: Pod>(&self, elements: &[T]) -> Result<Buffer<T>> {
        let buffer = self.allocate(elements.len(), Contents::Uninit)?;
        let mut stream = self.stream()?;
        stream.upload(elements, &buffer)?;
        stream.wait()?;
        Ok(buffer)
    }

    /// Makes a buffer of another library's memory on this CUDA device, such as a PyTorch tensor, which is used in place.
    /// `owner` is dropped, and may free the memory, when the last handle of the buffer is dropped and no operation uses
    /// it.
    ///
    /// The other library's work is not ordered with Evener's automatically: use [`Stream::wait_cuda_event`] and
    /// [`Stream::record_cuda_event`], or wait on the host. Fails with `Unsupported` if this is not a CUDA device, or if
    /// the address is not a multiple of 16, which kernels may rely on.
    ///
    /// # Safety
    /// - The address is that of `len` elements in memory of this device, in its primary context, and Evener has no other
    ///   buffer over them.
    /// - The memory stays valid until `owner` is dropped.
    /// - No other code writes the memory while Evener's operations use it, or reads it while Evener's operations write
    ///   it.
    ///
    /// ```compile_fail,E0133
    /// let buffer = evener_device::Device::cpu().buffer_at_cuda_address::<u32>(0x7f00_0000_0000, 1000, ());
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn buffer_at_cuda_address<T: Pod>(
        &self,
        address: u64,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Result<Buffer<T>> {
        let bytes = self.size_in_bytes::<T>(len)?;
        // SAFETY: the caller promises that the elements at `address` stay valid until `owner` is dropped, and that no
        // other code writes them while Evener uses them.
        unsafe { self.adopt(Address::Cuda { ordinal: None, address }, bytes, Box::new(owner)) }
    }

    /// Makes a buffer of another library's memory.
    ///
    /// # Safety
    /// As for [`buffer_at_cuda_address`](Device::buffer_at_cuda_address), or the same on the host for a host address.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn adopt<T: Pod>(
        &self,
        address: Address,
        bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Buffer<T>> {
        const ALIGNMENT: u64 = 16;
        let refuse = |detail: &str| Err(Error::unsupported(self.id(), "adopting memory", detail));
        let absent = match address {
            Address::Cuda { address, .. } if !address.is_multiple_of(ALIGNMENT) => {
                return refuse(&format!("the address {address:#x} is not a multiple of {ALIGNMENT}"));
            }
            Address::Cuda { .. } => "the device is not a CUDA device",
            Address::Host(_) => "the device is not the processor",
        };
        // SAFETY: the caller promises that the bytes at `address` stay valid until `owner` is dropped, and that no other
        // code writes them while Evener uses them.
        match unsafe { self.backend()?.adopt(address, bytes, owner) }? {
            Some(memory) => Ok(Buffer::new(memory, self.id().clone())),
            None => refuse(absent),
        }
    }

    /// Makes a device of the caller's `wgpu::Device`, so that both use each other's buffers in place:
    /// [`buffer_over_wgpu`](Device::buffer_over_wgpu) takes a buffer of the caller, and [`Buffer::wgpu_buffer`] returns
    /// one of Evener.
    ///
    /// - The device has the features that the `wgpu::Device` was requested with: [`wgpu_features`](crate::wgpu_features)
    ///   returns those that Evener uses. Without `IMMEDIATES`, kernels cannot have parameters.
    /// - Both submit to one queue, which runs submissions in order. [`Stream::flush`] submits Evener's queued operations:
    ///   work that the caller submits afterwards sees their results, and the other way round.
    /// - The callbacks for errors and for the loss of the device stay the caller's. Evener's calls return Evener's
    ///   errors. The next wait, at the latest, reports a loss. A lost device stays lost: create a new `wgpu::Device`.
    /// - The caller may poll the device. The caller's callbacks (of `map_async` and `on_submitted_work_done`) may run during
    ///   Evener's polls and submissions, and must not call Evener then. If one panics, Evener's call panics with the same
    ///   message, and the device stays usable.
    /// - Dropping the device leaves the `wgpu::Device` as it is. Its id is new each time.
    ///
    /// The adapter, the device and the queue must belong together and come from one wgpu instance: otherwise wgpu panics,
    /// here or later, or uses another device or queue, because every instance counts its ids from the same number.
    ///
    /// Fails with `Unsupported` if wgpu does not drive the device natively.
    ///
    /// ```no_run
    /// use evener_device::{Device, wgpu, wgpu_features};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    /// let adapter = instance.request_adapter(&Default::default()).await?;
    /// let descriptor = wgpu::DeviceDescriptor {
    ///     required_features: wgpu_features(adapter.features()),
    ///     required_limits: adapter.limits(),
    ///     ..Default::default()
    /// };
    /// let (device, queue) = adapter.request_device(&descriptor).await?;
    /// let evener = Device::from_wgpu(&adapter, &device, &queue)?;
    /// let numbers = evener.buffer_from(&[1u32, 2, 3])?;
    /// let (buffer, range) = numbers.wgpu_buffer().ok_or("not in a wgpu buffer")?; // for a bind group of the caller's
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "wgpu")]
    pub fn from_wgpu(adapter: &wgpu::Adapter, device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Device> {
        Ok(Device::from_source(backend::wgpu::source_of(adapter, device, queue)?))
    }

    /// Makes a buffer of one that the caller created with the same `wgpu::Device`. It is used in place, and kept until
    /// the last handle is dropped and no operation uses it. If the caller destroys or maps it meanwhile, operations on it
    /// fail.
    ///
    /// If Evener already has a handle of the buffer, because it was adopted before or comes from
    /// [`Buffer::wgpu_buffer`], this returns another handle of the same elements. A buffer from `wgpu_buffer` whose last
    /// handle has been dropped has the size that wgpu reports: Evener rounds sizes up, so it may be longer than before.
    ///
    /// The buffer must come from the same wgpu instance as the device: otherwise wgpu panics when the buffer is used, or
    /// uses another buffer, because every instance counts its ids from the same number.
    ///
    /// Fails with `Unsupported` if the device does not come from [`from_wgpu`](Device::from_wgpu), if the buffer lacks
    /// one of the usages `STORAGE`, `COPY_SRC` and `COPY_DST`, or if its size is not a multiple of 4 and of an element.
    #[cfg(feature = "wgpu")]
    pub fn buffer_over_wgpu<T: Pod>(&self, buffer: &wgpu::Buffer) -> Result<Buffer<T>> {
        match self.backend()?.adopt_wgpu(buffer)? {
            Some(memory) => Buffer::<u8>::new(memory, self.id().clone()).cast(),
            None => Err(Error::unsupported(
                self.id(),
                "adopting a buffer",
                "the device does not come from `Device::from_wgpu`",
            )),
        }
    }

    /// Allocates host memory for asynchronous copies from or to this device. Fails for elements with an alignment of more
    /// than 64 bytes.
    pub fn host_buffer<T: Pod>(&self, len: usize, direction: Direction) -> Result<HostBuffer<T>> {
        let bytes = self.size_in_bytes::<T>(len)?;
        HostBuffer::new(self.backend()?.allocate_host(bytes, direction)?, self.id())
    }

    /// Allocates staging memory, through which [`Stream::upload_staged`] copies up to `len` elements to this device.
    pub fn staging_buffer<T: Pod>(&self, len: usize) -> Result<StagingBuffer<T>> {
        StagingBuffer::new(len, |piece| self.host_buffer(piece, Direction::Upload))
    }

    /// Compiles a kernel. Fails with `Unsupported` if the kernel has no body for this kind of device or needs more than
    /// the device has, and with `WillNotCompile` and the compiler's log if the body is wrong.
    pub fn compile(&self, kernel: &Kernel) -> Result<Program> {
        let backend = self.backend()?;
        let has = backend.capabilities();
        let refuse = |detail: String| {
            Err(Error::unsupported(self.id(), format!("compiling kernel `{}`", kernel.name), detail))
        };
        if let Some(detail) = kernel.exceeds(has) {
            return refuse(detail);
        }
        if kernel.params_bytes > has.max_params_bytes {
            let (asked, limit) = (kernel.params_bytes, has.max_params_bytes);
            return refuse(format!(
                "{asked} bytes of parameters, but the device allows at most {limit}: use a buffer"
            ));
        }
        if kernel.bindings.len() as u64 > u64::from(has.max_bindings) {
            return refuse(format!(
                "{} buffers, but the device allows at most {}",
                kernel.bindings.len(),
                has.max_bindings
            ));
        }
        Ok(Program {
            inner: backend.compile(kernel)?,
            kernel: Arc::new(kernel.clone()),
            device: self.id().clone(),
            max_binding_bytes: has.max_binding_bytes,
            binding_alignment: has.binding_alignment,
        })
    }

    /// Creates a stream of operations.
    pub fn stream(&self) -> Result<Stream> {
        let backend = self.backend()?;
        Ok(Stream::new(backend.stream()?, backend, self.id().clone()))
    }

    /// Creates a stream for a thread that does nothing else: its operations may run on the thread that queues them.
    pub(crate) fn stream_for_thread(&self) -> Result<Stream> {
        let backend = self.backend()?;
        Ok(Stream::new(backend.stream_for_thread()?, backend, self.id().clone()))
    }

    /// The memory of this handle: in use, at its peak, and cached, on the device and pinned on the host. All zero if it
    /// is not open.
    pub fn memory(&self) -> MemoryUsage {
        self.opened().map(|backend| backend.memory()).unwrap_or_default()
    }

    /// Frees cached memory.
    pub fn trim(&self) {
        if let Some(backend) = self.opened() {
            backend.trim();
        }
    }

    /// The device's source, for a back end that wraps another.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.shared.source
    }

    fn allocate<T: Pod>(&self, len: usize, contents: Contents) -> Result<Buffer<T>> {
        let bytes = self.size_in_bytes::<T>(len)?;
        let backend = self.backend()?;
        let limit = backend.capabilities().max_buffer_bytes;
        if bytes > limit {
            return Err(Error::OutOfMemory {
                device: self.id().clone(),
                operation: "allocating a buffer".into(),
                requested: bytes,
                available: Some(limit),
                detail: "limited by the device's largest buffer".into(),
            });
        }
        Ok(Buffer::new(backend.allocate(bytes, contents)?, self.id().clone()))
    }

    fn size_in_bytes<T>(&self, len: usize) -> Result<u64> {
        check_alignment::<T>(self.id(), "allocating a buffer")?;
        size_in_bytes::<T>(self.id(), "allocating a buffer", len)
    }

    /// Returns the back end if the device is open. A call to it may take long, and must not hold up others.
    fn opened(&self) -> Option<Arc<dyn Backend>> {
        self.shared.lock().clone()
    }

    fn backend(&self) -> Result<Arc<dyn Backend>> {
        let mut open = self.shared.lock();
        if let Some(backend) = &*open {
            return Ok(backend.clone());
        }
        // Drivers start threads, too.
        let backend = unbound(|| self.shared.source.open())?;
        Ok(open.insert(backend).clone())
    }
}

impl DeviceState {
    // No code under this lock can panic between two changes that belong together.
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn Backend>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
