//! The device: a handle that describes it, opens it on demand and makes everything that runs on it.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
};

use bytemuck::Pod;

use crate::{
    affinity::unbound,
    backend::{self, Address, Backend, Contents, Direction, MemoryUsage, Source},
    buffer::{Buffer, HostBuffer, StagingBuffer, check_alignment, size_in_bytes},
    describe::{Capabilities, Description, DeviceId},
    error::{Error, Result},
    kernel::{Kernel, Program},
    stream::Stream,
};

/// One thing that computes: a GPU through one API, a partition of a GPU, or a set of CPU cores.
///
/// A device is opened by the first operation that needs it and closed when its last clone, and everything
/// made from it, is dropped. Finding and describing a device therefore costs nothing on it.
#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    source: Arc<dyn Source>,
    open: Mutex<Option<Arc<dyn Backend>>>,
}

impl Device {
    /// A device from a back end's source. This is how a back end of your own, or one that wraps another,
    /// becomes a device.
    pub fn from_source(source: Arc<dyn Source>) -> Self {
        Device { inner: Arc::new(Inner { source, open: Mutex::new(None) }) }
    }

    /// The processor's cores, all of them: the one device that every machine has.
    pub fn cpu() -> Self {
        Device::from_source(backend::cpu::source())
    }

    /// The facts about it.
    pub fn describe(&self) -> &Description {
        self.inner.source.describe()
    }

    /// Its id.
    pub fn id(&self) -> &DeviceId {
        &self.describe().id
    }

    /// The same hardware, not yet opened: what was lost with this handle is not lost with that one.
    pub fn reopened(&self) -> Device {
        Device::from_source(self.inner.source.clone())
    }

    /// Opens the device if it is not open yet. Anything that needs it open does this by itself.
    pub fn open(&self) -> Result<()> {
        self.backend().map(drop)
    }

    /// What it can do. Opens it.
    pub fn capabilities(&self) -> Result<Capabilities> {
        Ok(self.backend()?.capabilities().clone())
    }

    /// Cuts it into partitions of these many compute units (multiprocessors of a CUDA device, cores of the
    /// processor), each a device of its own named `…/a`, `…/b` and so on. Where the hardware only allows
    /// certain sizes, a size is rounded up and the partition's description says so; sizes that cannot be
    /// had at all are an error that states the step.
    pub fn split(&self, sizes: &[u32]) -> Result<Vec<Device>> {
        let refuse = |detail: &str| {
            Err(Error::Split { device: self.id().clone(), sizes: sizes.to_vec(), detail: detail.into() })
        };
        if sizes.is_empty() {
            return refuse("no size was given");
        }
        if sizes.contains(&0) {
            return refuse("a partition needs at least one unit");
        }
        Ok(self.inner.source.split(sizes)?.into_iter().map(Device::from_source).collect())
    }

    /// Binds the calling thread to one of this device's cores, counted round, where it is a partition of the
    /// processor: for whoever runs host code of their own on its share of the cores. Nothing for other devices.
    pub fn bind_thread(&self, index: usize) {
        self.inner.source.bind_thread(index);
    }

    /// A buffer of zeros. Fails, as everything that makes a buffer, for elements that are aligned to more than 64 bytes.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Contents::Zeroed)
    }

    /// A buffer whose contents are anything, for whoever writes all of it before reading.
    pub fn buffer_uninit<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.allocate(len, Contents::Any)
    }

    /// A buffer with these elements.
    pub fn buffer_from<T: Pod>(&self, elements: &[T]) -> Result<Buffer<T>> {
        let buffer = self.allocate(elements.len(), Contents::Any)?;
        let mut stream = self.stream()?;
        stream.upload(elements, &buffer)?;
        stream.wait()?;
        Ok(buffer)
    }

    /// A buffer over memory of this CUDA device that another library has, such as a tensor of PyTorch's: it is used in
    /// place. The library keeps it until `owner` is dropped, which is when the last handle on the buffer is gone and no
    /// operation uses it any more.
    ///
    /// Work of the other library is not ordered with Evener's by itself: see [`Stream::wait_cuda_event`] and
    /// [`Stream::record_cuda_event`], or wait on the host. Fails with `Unsupported` where this is no CUDA device, and where
    /// the address is no multiple of 16, as kernels may rely on.
    ///
    /// # Safety
    /// - The address is of so many elements in memory of this device, in its primary context, and of nothing else that
    ///   Evener has a buffer on.
    /// - The memory stays there until `owner` is dropped.
    /// - Nobody else writes to it while operations of Evener's use it, or reads it while they write to it.
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
        // SAFETY: the caller promises the same.
        unsafe { self.adopt(Address::Cuda { ordinal: None, address }, bytes, Box::new(owner)) }
    }

    /// A buffer over so many bytes of memory that another library has.
    ///
    /// # Safety
    /// As for [`buffer_at_cuda_address`](Device::buffer_at_cuda_address), on the host where the address is of the host.
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
                return refuse(&format!("address {address:#x} is no multiple of {ALIGNMENT}"));
            }
            Address::Cuda { .. } => "it is no CUDA device",
            Address::Host(_) => "it is not the processor",
        };
        // SAFETY: the caller promises the same.
        match unsafe { self.backend()?.adopt(address, bytes, owner) }? {
            Some(memory) => Ok(Buffer::new(memory, self.id().clone())),
            None => refuse(absent),
        }
    }

    /// A device over a `wgpu::Device` of the caller's, whose buffers then are used in place by both:
    /// [`buffer_over_wgpu`](Device::buffer_over_wgpu) takes a buffer of the caller's, and
    /// [`Buffer::wgpu_buffer`] gives one of Evener's.
    ///
    /// - It can do what the `wgpu::Device` was requested with: [`wgpu_features`](crate::wgpu_features) names the features
    ///   that Evener has a use for. Without `IMMEDIATES`, kernels have no parameters.
    /// - Both submit to one queue, which runs submissions in their order. [`Stream::flush`] submits what was queued; work
    ///   that the caller submits after it sees its results, and the other way round.
    /// - The callbacks for errors and for the loss of the device stay the caller's. Evener's errors come from its calls. That
    ///   the device is lost is told by the next wait at the latest, and it stays lost: make a new `wgpu::Device`.
    /// - The caller may poll. Its callbacks may run in polls of Evener's, and must not call Evener then.
    /// - Dropping it leaves the `wgpu::Device` as it is. Its id is new each time.
    ///
    /// The adapter, the device and the queue must belong together and be of one wgpu instance: wgpu panics otherwise, here or
    /// later.
    ///
    /// Fails with `Unsupported` where wgpu does not drive the device natively.
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

    /// A buffer over one that the caller has made with the same `wgpu::Device`. It is used in place, and kept until the last
    /// handle is gone and no operation uses it any more. Where the caller destroys or maps it meanwhile, operations on it
    /// fail.
    ///
    /// Of a buffer that Evener has a handle on already, because it was adopted before or came from
    /// [`Buffer::wgpu_buffer`], this is another handle on the same elements.
    ///
    /// The buffer must be of the same wgpu instance as the device: wgpu panics otherwise, when the buffer is used.
    ///
    /// Fails with `Unsupported` where this is no device of [`from_wgpu`](Device::from_wgpu), where the buffer was made without
    /// `STORAGE`, `COPY_SRC` and `COPY_DST`, and where its size is no multiple of 4 and of an element.
    #[cfg(feature = "wgpu")]
    pub fn buffer_over_wgpu<T: Pod>(&self, buffer: &wgpu::Buffer) -> Result<Buffer<T>> {
        match self.backend()?.adopt_wgpu(buffer)? {
            Some(memory) => Buffer::<u8>::new(memory, self.id().clone()).cast(),
            None => Err(Error::unsupported(
                self.id(),
                "adopting a buffer",
                "it is no device of `Device::from_wgpu`",
            )),
        }
    }

    /// Host memory that this device copies from or to without stopping the host. Fails for elements that are aligned
    /// to more than 64 bytes.
    pub fn host_buffer<T: Pod>(&self, len: usize, direction: Direction) -> Result<HostBuffer<T>> {
        let bytes = self.size_in_bytes::<T>(len)?;
        HostBuffer::new(self.backend()?.allocate_host(bytes, direction)?, self.id())
    }

    /// Host memory in pieces, through which so many elements from anywhere reach this device.
    pub fn staging_buffer<T: Pod>(&self, len: usize) -> Result<StagingBuffer<T>> {
        StagingBuffer::new(len, |piece| self.host_buffer(piece, Direction::Upload))
    }

    /// Compiles a kernel. Fails with `Unsupported` where the kernel has no body for this kind of device or
    /// asks for more than the device has, and with `WillNotCompile` and the compiler's words where the body
    /// is wrong.
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
            return refuse(format!("{asked} bytes of parameters, at most {limit} here: use a buffer"));
        }
        if kernel.bindings.len() as u64 > u64::from(has.max_bindings) {
            return refuse(format!("{} buffers, at most {} here", kernel.bindings.len(), has.max_bindings));
        }
        Ok(Program {
            inner: backend.compile(kernel)?,
            kernel: Arc::new(kernel.clone()),
            device: self.id().clone(),
            max_binding_bytes: has.max_binding_bytes,
            binding_alignment: has.binding_alignment,
        })
    }

    /// A new stream of operations.
    pub fn stream(&self) -> Result<Stream> {
        let backend = self.backend()?;
        Ok(Stream::new(backend.stream()?, backend, self.id().clone()))
    }

    /// Memory held through this handle: in use, at its peak, and kept for reuse, on the device and pinned on the host.
    /// All zero while it is not open.
    pub fn memory(&self) -> MemoryUsage {
        self.inner.lock().as_ref().map(|backend| backend.memory()).unwrap_or_default()
    }

    /// Gives memory kept for reuse back to the driver.
    pub fn trim(&self) {
        if let Some(backend) = self.inner.lock().as_ref() {
            backend.trim();
        }
    }

    /// The source behind it, for a back end that wraps another.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.inner.source
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
                detail: "the largest single buffer here".into(),
            });
        }
        Ok(Buffer::new(backend.allocate(bytes, contents)?, self.id().clone()))
    }

    fn size_in_bytes<T>(&self, len: usize) -> Result<u64> {
        check_alignment::<T>(self.id(), "allocating a buffer")?;
        size_in_bytes::<T>(self.id(), "allocating a buffer", len)
    }

    fn backend(&self) -> Result<Arc<dyn Backend>> {
        let mut open = self.inner.lock();
        if let Some(backend) = &*open {
            return Ok(backend.clone());
        }
        // Drivers start threads too.
        let backend = unbound(|| self.inner.source.open())?;
        Ok(open.insert(backend).clone())
    }
}

impl Inner {
    // Nothing is left half-done under this lock: the slot is either empty or holds an open device.
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn Backend>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
