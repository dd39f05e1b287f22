//! Kernels: one computation with up to three bodies, and its compiled form.
//!
//! The conventions of the bodies:
//! - Buffers are passed in the order in which the kernel declares them. In CUDA C they are the first parameters, as
//!   pointers; in WGSL they are `@group(0) @binding(0)`, `@binding(1)` and so on, declared `var<storage, read>` or
//!   `var<storage, read_write>`; in Rust they are slices by index.
//! - Parameters are one plain struct of at most [`Capabilities::max_params_bytes`]. In CUDA C it is the last parameter,
//!   by value; in WGSL it is `var<immediate>`; in Rust it is [`Launch::params`].
//! - The entry point has the kernel's name (`extern "C" __global__` in CUDA C, `@compute` in WGSL).
//!
//! [`Capabilities::max_params_bytes`]: crate::Capabilities::max_params_bytes

use std::{
    any::{TypeId, type_name},
    borrow::Cow,
    fmt,
    sync::Arc,
};

use bytemuck::Pod;

use crate::{
    backend,
    buffer::Argument,
    describe::{Api, Capabilities, DeviceId, Features},
    dtype::DType,
    error::{Error, Result},
    launch::{Launch, count_threads},
    module::{CudaCode, WgslBody},
};

/// The error type of the user's Rust code.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type RustBody = dyn Fn(&mut Launch<'_>) -> Result<(), BoxError> + Send + Sync;

/// Whether a kernel may write to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// It only reads.
    Read,
    /// It reads and writes.
    ReadWrite,
}

/// One buffer that a kernel declares: its access and its element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Whether the kernel writes to it.
    pub access: Access,
    pub(crate) element: TypeId,
    pub(crate) element_name: &'static str,
}

/// One computation, with a body for each kind of device that it can run on.
///
/// A Rust body is safe Rust. WGSL is compiled with run-time checks, so it cannot access memory outside of its buffers.
/// CUDA C can access any address, so [`cuda`](Kernel::cuda) is `unsafe`. Use a [`Module`](crate::Module) for a source
/// with several entry points, constants, headers or compiler options.
///
/// ```
/// use evener_device::{Device, Kernel};
///
/// let twice = Kernel::new("twice")
///     .reads::<u32>()
///     .writes::<u32>()
///     .workgroup(64)
///     .wgsl(r#"
///         @group(0) @binding(0) var<storage, read> in: array<u32>;
///         @group(0) @binding(1) var<storage, read_write> out: array<u32>;
///         @compute @workgroup_size(64)
///         fn twice(@builtin(global_invocation_id) id: vec3<u32>) { out[id.x] = 2 * in[id.x]; }"#)
///     .rust(|launch| {
///         let (input, output) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
///         for (out, value) in output.iter_mut().zip(input) { *out = 2 * value; }
///         Ok(())
///     });
/// // SAFETY: the launch below has one thread for each element of both buffers.
/// let twice = unsafe { twice.cuda(r#"
///     extern "C" __global__ void twice(const unsigned *in, unsigned *out) {
///         unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
///         out[i] = 2 * in[i];
///     }"#) };
///
/// let device = Device::cpu();
/// let program = device.compile(&twice)?;
/// let input = device.buffer_from(&[1u32; 64])?;
/// let output = device.buffer::<u32>(64)?;
/// let mut stream = device.stream()?;
/// stream.launch(&program.bind(&[input.arg(), output.arg()])?, 1, &())?;
/// assert_eq!(stream.download(&output)?.wait()?, [2; 64]);
/// # Ok::<(), evener_device::Error>(())
/// ```
#[derive(Clone)]
pub struct Kernel {
    pub(crate) name: Cow<'static, str>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) params_bytes: u32,
    pub(crate) workgroup: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) cuda: Option<Arc<CudaCode>>,
    pub(crate) wgsl: Vec<WgslBody>,
    pub(crate) rust: Option<Arc<RustBody>>,
}

impl Kernel {
    /// Creates a kernel without a body. `name` is the entry point in each body. The workgroup has 64 threads unless
    /// [`workgroup`](Kernel::workgroup) changes it.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Kernel {
            name: name.into(),
            bindings: Vec::new(),
            params_bytes: 0,
            workgroup: [64, 1, 1],
            shared_bytes: 0,
            cuda: None,
            wgsl: Vec::new(),
            rust: None,
        }
    }

    /// Declares the next buffer, which the kernel only reads.
    pub fn reads<T: Pod>(self) -> Self {
        self.binding::<T>(Access::Read)
    }

    /// Declares the next buffer, which the kernel reads and writes.
    pub fn writes<T: Pod>(self) -> Self {
        self.binding::<T>(Access::ReadWrite)
    }

    /// Declares the next buffer, which the kernel only reads, of a type that is known at run time.
    pub fn reads_dtype(self, dtype: DType) -> Self {
        self.binding_of(Access::Read, dtype.element())
    }

    /// Declares the next buffer, which the kernel reads and writes, of a type that is known at run time.
    pub fn writes_dtype(self, dtype: DType) -> Self {
        self.binding_of(Access::ReadWrite, dtype.element())
    }

    fn binding<T: Pod>(self, access: Access) -> Self {
        self.binding_of(access, (TypeId::of::<T>(), type_name::<T>()))
    }

    fn binding_of(mut self, access: Access, (element, element_name): (TypeId, &'static str)) -> Self {
        self.bindings.push(Binding { access, element, element_name });
        self
    }

    /// Declares the parameters. Their layout must be the same in all three languages, as it is for fields of four bytes,
    /// and for fields of eight bytes at multiples of eight.
    pub fn params<P: Pod>(mut self) -> Self {
        self.params_bytes = size_of::<P>() as u32;
        self
    }

    /// Sets the size of a workgroup, as one number or three. A WGSL body must declare the same.
    pub fn workgroup(mut self, size: impl Into<Extent>) -> Self {
        self.workgroup = size.into().0;
        self
    }

    /// Sets the bytes of dynamic shared memory of a workgroup in CUDA C (`extern __shared__`). WGSL declares its own with
    /// `var<workgroup>`.
    pub fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Sets the body for CUDA devices.
    ///
    /// # Safety
    /// The addresses that CUDA C accesses are not checked. In every launch of this kernel, with the workgroups, the
    /// parameters and the buffers of that launch, the source must
    /// - read only elements of its buffers, and write only elements of those declared with [`writes`](Kernel::writes),
    ///   apart from its parameters and its own local and shared memory;
    /// - use no more dynamic shared memory than [`shared_bytes`](Kernel::shared_bytes).
    ///
    /// The promise covers launches by other code. A function that returns the kernel to its callers must be `unsafe`
    /// itself and state which launches are allowed, unless the source is within bounds in all of them.
    ///
    /// ```compile_fail,E0133
    /// use evener_device::Kernel;
    ///
    /// let anywhere = r#"extern "C" __global__ void store() { *(int *)0xdead0000 = 42; }"#;
    /// let kernel = Kernel::new("store").cuda(anywhere);
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn cuda(mut self, source: impl Into<Cow<'static, str>>) -> Self {
        self.cuda = Some(Arc::new(CudaCode::plain(source)));
        self
    }

    /// Sets the body for devices driven through wgpu, without optional features.
    pub fn wgsl(self, source: impl Into<Cow<'static, str>>) -> Self {
        self.wgsl_with(Features::empty(), source)
    }

    /// Adds a body for devices driven through wgpu that have these features. A device uses the first body whose features
    /// it has.
    ///
    /// The body is compiled with run-time checks. An index out of bounds reads or writes some element of the same buffer,
    /// or does nothing; a division by zero has a result; a loop ends after 2^64 iterations. If these cost too much,
    /// [`wgsl_unchecked`](Kernel::wgsl_unchecked) leaves them out.
    pub fn wgsl_with(self, needs: Features, source: impl Into<Cow<'static, str>>) -> Self {
        self.wgsl_body(WgslBody { needs, source: source.into(), is_checked: true, constants: Vec::new() })
    }

    /// Adds a body as [`wgsl_with`](Kernel::wgsl_with) does, compiled without run-time checks.
    ///
    /// The check of loops alone has made kernels up to a hundred times slower on some drivers (gfx-rs/wgpu#7698).
    ///
    /// # Safety
    /// In every launch of this kernel, with the workgroups, the parameters and the buffers of that launch,
    /// - every index must be within its array or buffer;
    /// - every loop must end: compilers may treat an endless one as unreachable code;
    /// - no integer may be divided by zero, nor the smallest one by -1.
    ///
    /// The promise covers launches by other code, as with [`cuda`](Kernel::cuda).
    ///
    /// ```compile_fail,E0133
    /// use evener_device::{Features, Kernel};
    ///
    /// let beyond = "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
    ///     @compute @workgroup_size(1) fn beyond() { data[1000000] = 42; }";
    /// let kernel = Kernel::new("beyond").writes::<u32>().wgsl_unchecked(Features::empty(), beyond);
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn wgsl_unchecked(self, needs: Features, source: impl Into<Cow<'static, str>>) -> Self {
        self.wgsl_body(WgslBody { needs, source: source.into(), is_checked: false, constants: Vec::new() })
    }

    fn wgsl_body(mut self, body: WgslBody) -> Self {
        self.wgsl.push(body);
        self
    }

    /// Sets the body for the processor: it computes the whole launch, and may use rayon to run on all of the device's
    /// threads. Each of these has a stack of 8 MiB, or of `RUST_MIN_STACK` bytes if that is more.
    pub fn rust(
        mut self,
        body: impl Fn(&mut Launch<'_>) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.rust = Some(Arc::new(body));
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A hash of its name, workgroup and sources, the same in every program. It does not include Rust code.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        let constant = |(name, value): &(String, f64)| format!("{name}={value}");
        let of_wgsl = |body: &WgslBody| {
            let constants = body.constants.iter().map(constant).collect();
            [body.source.clone().into_owned(), constants]
        };
        let wgsl: Vec<String> = self.wgsl.iter().flat_map(of_wgsl).collect();
        for part in std::iter::once(&*self.name).chain(wgsl.iter().map(String::as_str)) {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        if let Some(source) = &self.cuda {
            source.hash(&mut hasher);
        }
        hasher.update(&self.workgroup.map(u32::to_le_bytes).concat());
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// The buffers that it declares.
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// Whether it has a body for devices of this API. A WGSL body may still need features that a device lacks.
    pub fn has_body_for(&self, api: Api) -> bool {
        match api {
            Api::Cuda => self.cuda.is_some(),
            Api::Cpu => self.rust.is_some(),
            Api::Vulkan | Api::Metal | Api::Dx12 | Api::Gl => !self.wgsl.is_empty(),
        }
    }

    /// The number of threads in a workgroup.
    pub fn workgroup_threads(&self) -> u64 {
        count_threads([1; 3], self.workgroup).unwrap_or(u64::MAX)
    }

    /// The CUDA C body, if it has one.
    pub fn cuda_source(&self) -> Option<&str> {
        self.cuda.as_ref().map(|source| &*source.text)
    }

    /// The number of workgroups for this many items, one thread per item.
    pub fn groups_for(&self, items: u64) -> u64 {
        items.div_ceil(self.workgroup_threads().max(1))
    }

    /// Returns why a workgroup is too large for a device, if it is.
    pub(crate) fn exceeds(&self, has: &Capabilities) -> Option<String> {
        let threads = self.workgroup_threads();
        let is_too_long = self.workgroup.iter().zip(&has.max_workgroup).any(|(asked, limit)| asked > limit);
        if threads == 0 || threads > u64::from(has.max_workgroup_threads) || is_too_long {
            return Some(format!(
                "a workgroup of {:?}, but the device allows at most {:?} and {} threads in total",
                self.workgroup, has.max_workgroup, has.max_workgroup_threads
            ));
        }
        let (asked, limit) = (self.shared_bytes, has.max_shared_bytes);
        (asked > limit)
            .then(|| format!("{asked} bytes of shared memory, but the device allows at most {limit}"))
    }

    /// The WGSL body for a device with these features.
    pub(crate) fn wgsl_for(&self, features: Features) -> Option<&WgslBody> {
        self.wgsl.iter().find(|body| features.contains(body.needs))
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("bindings", &self.bindings.len())
            .field("params_bytes", &self.params_bytes)
            .field("workgroup", &self.workgroup)
            .field("cuda", &self.cuda.is_some())
            .field("wgsl", &self.wgsl.iter().map(|body| body.needs).collect::<Vec<_>>())
            .field("rust", &self.rust.is_some())
            .finish_non_exhaustive()
    }
}

/// Up to three dimensions, from one number or an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent(pub(crate) [u32; 3]);

impl From<u32> for Extent {
    fn from(x: u32) -> Self {
        Extent([x, 1, 1])
    }
}

impl From<[u32; 2]> for Extent {
    fn from([x, y]: [u32; 2]) -> Self {
        Extent([x, y, 1])
    }
}

impl From<[u32; 3]> for Extent {
    fn from(all: [u32; 3]) -> Self {
        Extent(all)
    }
}

/// A kernel compiled for one open device.
#[derive(Debug, Clone)]
pub struct Program {
    pub(crate) inner: Arc<dyn backend::ProgramBackend>,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) device: DeviceId,
    pub(crate) max_binding_bytes: u64,
    pub(crate) binding_alignment: u64,
}

impl Program {
    /// The body that was compiled: `CUDA C`, `WGSL`, `WGSL with INT64`, `Rust`.
    pub fn body(&self) -> &str {
        self.inner.body()
    }

    /// The kernel it was compiled from.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Binds buffers to the kernel, in the order of their declaration. The result can be launched any number of times.
    ///
    /// The buffers may be slices of one buffer. Fails if the number, element type, size or alignment of the buffers does
    /// not fit, and if two slices overlap and the kernel writes to one of them, which would be a data race. On wgpu, a
    /// slice that the kernel only reads is copied before every launch if the kernel writes to another slice of the same
    /// buffer; declare it with [`Kernel::writes`] to use it in place.
    pub fn bind(&self, arguments: &[Argument]) -> Result<BoundKernel> {
        let kernel = &*self.kernel;
        let refuse = |detail: String| {
            Err(Error::unsupported(&self.device, format!("binding kernel `{}`", kernel.name), detail))
        };
        if arguments.len() != kernel.bindings.len() {
            return refuse(format!(
                "{} buffers are declared and {} given",
                kernel.bindings.len(),
                arguments.len()
            ));
        }
        for (index, (argument, binding)) in arguments.iter().zip(&kernel.bindings).enumerate() {
            if argument.element != binding.element {
                return refuse(format!(
                    "buffer {index} is declared as {} and given as {}",
                    binding.element_name, argument.element_name
                ));
            }
            let (offset, bytes) = (argument.region.offset, argument.region.bytes);
            if bytes > self.max_binding_bytes {
                return refuse(format!(
                    "buffer {index} has {bytes} bytes, but the device allows at most {}: pass it in parts",
                    self.max_binding_bytes
                ));
            }
            // The offset of an empty slice does not matter.
            if bytes > 0 && !offset.is_multiple_of(self.binding_alignment) {
                return refuse(format!(
                    "buffer {index} begins at byte {offset}, and the device needs a multiple of {}",
                    self.binding_alignment
                ));
            }
            let shared = |(other, rival): (&Argument, &Binding)| {
                argument.region.overlaps(&other.region)
                    && (binding.access == Access::ReadWrite || rival.access == Access::ReadWrite)
            };
            if let Some(other) = arguments[..index].iter().zip(&kernel.bindings).position(shared) {
                return refuse(format!(
                    "buffers {other} and {index} overlap, and the kernel writes to one of them"
                ));
            }
        }
        let regions: Vec<_> = arguments.iter().map(|argument| argument.region.clone()).collect();
        Ok(BoundKernel { inner: self.inner.bind(&regions)?, kernel: self.kernel.clone() })
    }
}

/// A compiled kernel with its buffers, ready to launch.
#[derive(Debug, Clone)]
pub struct BoundKernel {
    pub(crate) inner: Arc<dyn backend::BoundKernelBackend>,
    pub(crate) kernel: Arc<Kernel>,
}

impl BoundKernel {
    /// Returns the same kernel and buffers with another workgroup size and size of the dynamic shared memory. Nothing is
    /// compiled or bound again.
    ///
    /// Fails with `Unsupported` if the device, or the kernel's registers, do not allow the sizes; and on wgpu, because
    /// WGSL fixes both: there, give a [`Module`](crate::Module) a constant for an `override`.
    ///
    /// ```
    /// use evener_device::{Device, Kernel};
    ///
    /// let device = Device::cpu();
    /// let kernel = Kernel::new("threads").writes::<u64>().workgroup(64).rust(|launch| {
    ///     launch.write::<u64>(0)?[0] = launch.threads();
    ///     Ok(())
    /// });
    /// let count = device.buffer::<u64>(1)?;
    /// let mut stream = device.stream()?;
    /// let bound = device.compile(&kernel)?.bind(&[count.arg()])?.with_workgroup(128, 0)?;
    /// stream.launch(&bound, 2, &())?;
    /// assert_eq!(stream.download(&count)?.wait()?, [256]);
    /// # Ok::<(), evener_device::Error>(())
    /// ```
    pub fn with_workgroup(&self, size: impl Into<Extent>, shared_bytes: u32) -> Result<BoundKernel> {
        let kernel = Kernel { workgroup: size.into().0, shared_bytes, ..(*self.kernel).clone() };
        let inner = self.inner.with_workgroup(&kernel)?;
        Ok(BoundKernel { inner, kernel: Arc::new(kernel) })
    }

    /// The number of workgroups that a compute unit runs at once, limited by their registers and shared memory; `None` on
    /// devices other than CUDA.
    pub fn occupancy(&self) -> Result<Option<u32>> {
        self.inner.occupancy()
    }

    /// The kernel that it was compiled from, with the sizes of this launch.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }
}
