//! Kernels: one computation with up to three bodies, and the compiled form of it.
//!
//! The bodies agree on this:
//! - Buffers are given in the order in which the kernel declares them. In CUDA C they are the first
//!   parameters, as pointers; in WGSL they are `@group(0) @binding(0)`, `@binding(1)` and so on, declared
//!   `var<storage, read>` or `var<storage, read_write>`; in Rust they are slices by index.
//! - Parameters are one plain struct of at most [`Capabilities::max_params_bytes`]. In CUDA C it is the last
//!   parameter, by value; in WGSL it is `var<immediate>`; in Rust it is [`Launch::params`].
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
    describe::{Api, DeviceId, Features},
    error::{Error, Result},
    launch::Launch,
};

/// What the user's own Rust code may return when it fails.
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

/// One buffer that a kernel works on: what it does with it, and what the buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// What the kernel does with it.
    pub access: Access,
    pub(crate) element: TypeId,
    pub(crate) element_name: &'static str,
}

/// One computation, with a body for each kind of device that it can run on.
///
/// ```
/// use evener_device::{Device, Kernel};
///
/// let double = Kernel::new("double")
///     .reads::<u32>()
///     .writes::<u32>()
///     .workgroup(64)
///     .cuda(r#"
///         extern "C" __global__ void double(const unsigned *in, unsigned *out) {
///             unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
///             out[i] = 2 * in[i];
///         }"#)
///     .wgsl(r#"
///         @group(0) @binding(0) var<storage, read> in: array<u32>;
///         @group(0) @binding(1) var<storage, read_write> out: array<u32>;
///         @compute @workgroup_size(64)
///         fn double(@builtin(global_invocation_id) id: vec3<u32>) { out[id.x] = 2 * in[id.x]; }"#)
///     .rust(|launch| {
///         let (input, output) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
///         for (out, value) in output.iter_mut().zip(input) { *out = 2 * value; }
///         Ok(())
///     });
///
/// let device = Device::cpu();
/// let program = device.compile(&double)?;
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
    pub(crate) cuda: Option<Cow<'static, str>>,
    pub(crate) wgsl: Vec<(Features, Cow<'static, str>)>,
    pub(crate) rust: Option<Arc<RustBody>>,
}

impl Kernel {
    /// A kernel without a body yet. The name is that of the entry point in each body.
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

    fn binding<T: Pod>(mut self, access: Access) -> Self {
        self.bindings.push(Binding { access, element: TypeId::of::<T>(), element_name: type_name::<T>() });
        self
    }

    /// Declares the parameters. Their layout must be the same in all three languages: fields of four
    /// bytes, or of eight at multiples of eight, are.
    pub fn params<P: Pod>(mut self) -> Self {
        self.params_bytes = size_of::<P>() as u32;
        self
    }

    /// Sets the workgroup's size, as one number or three. A WGSL body must declare the same.
    pub fn workgroup(mut self, size: impl Into<Extent>) -> Self {
        self.workgroup = size.into().0;
        self
    }

    /// Sets how much dynamic shared memory a workgroup gets in CUDA C (`extern __shared__`). WGSL declares
    /// its own with `var<workgroup>`.
    pub fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Gives the body for CUDA devices.
    pub fn cuda(mut self, source: impl Into<Cow<'static, str>>) -> Self {
        self.cuda = Some(source.into());
        self
    }

    /// Gives the body for devices driven through wgpu that needs no feature.
    pub fn wgsl(self, source: impl Into<Cow<'static, str>>) -> Self {
        self.wgsl_with(Features::empty(), source)
    }

    /// Gives a body for devices driven through wgpu that have these features. Of the bodies that a
    /// device has the features for, the first one given is used. Every loop in it must end: drivers may
    /// take one that does not for code that is never reached.
    pub fn wgsl_with(mut self, needs: Features, source: impl Into<Cow<'static, str>>) -> Self {
        self.wgsl.push((needs, source.into()));
        self
    }

    /// Gives the body for the processor's cores: it computes the whole launch, and may use rayon to spread
    /// it over the device's threads.
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

    /// A hash of its name, workgroup and sources, the same in every program. Code in Rust does not count.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        let sources = self.cuda.iter().chain(self.wgsl.iter().map(|(_, source)| source));
        for part in std::iter::once(&self.name).chain(sources) {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hasher.update(&self.workgroup.map(u32::to_le_bytes).concat());
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// The buffers it works on.
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// Whether it has a body for devices of this API. One in WGSL may still ask for features that a device lacks.
    pub fn has_body_for(&self, api: Api) -> bool {
        match api {
            Api::Cuda => self.cuda.is_some(),
            Api::Cpu => self.rust.is_some(),
            Api::Vulkan | Api::Metal | Api::Dx12 | Api::Gl => !self.wgsl.is_empty(),
        }
    }

    /// How many threads a workgroup has.
    pub fn workgroup_threads(&self) -> u64 {
        self.workgroup.iter().map(|&n| u64::from(n)).product()
    }

    /// The body for CUDA devices, where it has one.
    pub fn cuda_source(&self) -> Option<&str> {
        self.cuda.as_deref()
    }

    /// How many workgroups cover this many items, one thread an item.
    pub fn groups_for(&self, items: u64) -> u64 {
        items.div_ceil(self.workgroup_threads().max(1))
    }

    /// The WGSL body for a device with these features.
    pub(crate) fn wgsl_for(&self, features: Features) -> Option<(Features, &str)> {
        let (needs, source) = self.wgsl.iter().find(|(needs, _)| features.contains(*needs))?;
        Some((*needs, source))
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
            .field("wgsl", &self.wgsl.iter().map(|(needs, _)| needs).collect::<Vec<_>>())
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
    pub(crate) inner: Arc<dyn backend::Program>,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) device: DeviceId,
    pub(crate) max_binding_bytes: u64,
    pub(crate) binding_alignment: u64,
}

impl Program {
    /// Which body was compiled: `CUDA C`, `WGSL`, `WGSL with INT64`, `Rust`.
    pub fn body(&self) -> &str {
        self.inner.body()
    }

    /// The kernel it was compiled from.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Fixes the buffers that the kernel works on, in the order of their declaration. The result can be
    /// launched any number of times at no further cost.
    ///
    /// Fails when a buffer's number, element type, size or place does not fit, and when one buffer is given
    /// twice and the kernel writes to it: that would be a data race on every kind of device.
    pub fn bind(&self, arguments: &[Argument]) -> Result<Bound> {
        let kernel = &*self.kernel;
        let refuse = |detail: String| {
            Err(Error::unsupported(&self.device, format!("binding kernel `{}`", kernel.name), detail))
        };
        if arguments.len() != kernel.bindings.len() {
            return refuse(format!("{} buffers declared, {} given", kernel.bindings.len(), arguments.len()));
        }
        for (index, (argument, binding)) in arguments.iter().zip(&kernel.bindings).enumerate() {
            if argument.element != binding.element {
                return refuse(format!(
                    "buffer {index} is declared as {}, given as {}",
                    binding.element_name, argument.element_name
                ));
            }
            let (offset, bytes) = (argument.region.offset, argument.region.bytes);
            if bytes > self.max_binding_bytes {
                return refuse(format!(
                    "buffer {index} has {bytes} bytes, a kernel can be given {} here: pass it in parts",
                    self.max_binding_bytes
                ));
            }
            if !offset.is_multiple_of(self.binding_alignment) {
                return refuse(format!(
                    "buffer {index} begins at byte {offset}, which must be a multiple of {} here",
                    self.binding_alignment
                ));
            }
            let shared = |(other, rival): (&Argument, &Binding)| {
                Arc::ptr_eq(&argument.region.memory, &other.region.memory)
                    && (binding.access == Access::ReadWrite || rival.access == Access::ReadWrite)
            };
            if let Some(other) = arguments[..index].iter().zip(&kernel.bindings).position(shared) {
                return refuse(format!(
                    "buffers {other} and {index} are the same memory, and one is written"
                ));
            }
        }
        let regions: Vec<_> = arguments.iter().map(|argument| argument.region.clone()).collect();
        Ok(Bound { inner: self.inner.bind(&regions)?, kernel: self.kernel.clone() })
    }
}

/// A compiled kernel with its buffers, ready to launch.
#[derive(Debug, Clone)]
pub struct Bound {
    pub(crate) inner: Arc<dyn backend::Bound>,
    pub(crate) kernel: Arc<Kernel>,
}
