//! Modules: source code with several entry points, and its constants, headers and compiler options.

use std::{borrow::Cow, sync::Arc};

use crate::{describe::Features, kernel::Kernel};

/// Source code with several entry points, in CUDA C and in WGSL, with its constants, headers and compiler options.
///
/// A device compiles a module once for all of its kernels. A constant has the same name in both languages: it is a macro
/// in CUDA C and an `override` in WGSL. Rust bodies are set on the kernels.
///
/// ```
/// use evener_device::{Device, Module};
///
/// let module = Module::new().constant("FACTOR", 3).wgsl(
///     "override FACTOR: u32;
///      @group(0) @binding(0) var<storage, read_write> data: array<u32>;
///      @compute @workgroup_size(64)
///      fn multiply(@builtin(global_invocation_id) id: vec3<u32>) { data[id.x] *= FACTOR; }
///      @compute @workgroup_size(64)
///      fn add(@builtin(global_invocation_id) id: vec3<u32>) { data[id.x] += FACTOR; }",
/// );
/// // SAFETY: both kernels are launched with one thread per element.
/// let module = unsafe { module.cuda(
///     r#"#define I blockIdx.x * blockDim.x + threadIdx.x
///        extern "C" __global__ void multiply(unsigned *data) { data[I] *= FACTOR; }
///        extern "C" __global__ void add(unsigned *data) { data[I] += FACTOR; }"#,
/// ) };
/// let multiply = module.kernel("multiply").writes::<u32>().rust(|launch| {
///     launch.write::<u32>(0)?.iter_mut().for_each(|element| *element *= 3);
///     Ok(())
/// });
/// let device = Device::cpu();
/// let data = device.buffer_from(&[5u32; 64])?;
/// let mut stream = device.stream()?;
/// stream.launch(&device.compile(&multiply)?.bind(&[data.arg()])?, 1, &())?;
/// assert_eq!(stream.download(&data)?.wait()?, [15; 64]);
/// # Ok::<(), evener_device::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Module {
    cuda: Option<Cow<'static, str>>,
    wgsl: Vec<(Features, Cow<'static, str>, bool)>,
    constants: Vec<(String, f64)>,
    defines: Vec<(String, String)>,
    headers: Vec<(String, Cow<'static, str>)>,
    options: Vec<String>,
}

impl Module {
    /// Creates a module without source.
    pub fn new() -> Self {
        Module::default()
    }

    /// Sets the source for CUDA devices.
    ///
    /// # Safety
    /// As for [`Kernel::cuda`], for every kernel of this module and with its constants, headers and options.
    ///
    /// ```compile_fail,E0133
    /// use evener_device::Module;
    ///
    /// let module = Module::new().cuda(r#"extern "C" __global__ void store() { *(int *)0xdead0000 = 42; }"#);
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn cuda(mut self, source: impl Into<Cow<'static, str>>) -> Self {
        self.cuda = Some(source.into());
        self
    }

    /// Sets the source for devices driven through wgpu, without optional features.
    pub fn wgsl(self, source: impl Into<Cow<'static, str>>) -> Self {
        self.wgsl_with(Features::empty(), source)
    }

    /// Adds a source for devices driven through wgpu that have these features, as [`Kernel::wgsl_with`] does.
    pub fn wgsl_with(mut self, needs: Features, source: impl Into<Cow<'static, str>>) -> Self {
        self.wgsl.push((needs, source.into(), true));
        self
    }

    /// Adds a source as [`wgsl_with`](Module::wgsl_with) does, compiled without run-time checks.
    ///
    /// # Safety
    /// As for [`Kernel::wgsl_unchecked`], for every kernel of this module and with its constants.
    ///
    /// ```compile_fail,E0133
    /// use evener_device::{Features, Module};
    ///
    /// let module = Module::new().wgsl_unchecked(Features::empty(), "");
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn wgsl_unchecked(mut self, needs: Features, source: impl Into<Cow<'static, str>>) -> Self {
        self.wgsl.push((needs, source.into(), false));
        self
    }

    /// Sets a constant: a macro of this name in CUDA C, and the value of an `override` of this name in WGSL, which may be
    /// a workgroup size or the length of an array in `var<workgroup>`. A WGSL source without such an `override` ignores
    /// it.
    pub fn constant(mut self, name: impl Into<String>, value: impl Into<f64>) -> Self {
        self.constants.push((name.into(), value.into()));
        self
    }

    /// Defines a macro for CUDA C only, with any text.
    pub fn define(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.defines.push((name.into(), text.into()));
        self
    }

    /// Adds a header for CUDA C: `#include "name"` includes this text.
    pub fn include(mut self, name: impl Into<String>, text: impl Into<Cow<'static, str>>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// Adds an option of the CUDA C compiler (NVRTC), such as `--maxrregcount=64`. Binaries are not cached on disk if an
    /// option names headers outside of the module (`--include-path`), which may change.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Returns a kernel whose CUDA C and WGSL bodies are the module's. `entry` is the name of the entry point.
    pub fn kernel(&self, entry: impl Into<Cow<'static, str>>) -> Kernel {
        let mut kernel = Kernel::new(entry);
        kernel.cuda = self.cuda.as_ref().map(|text| {
            let constants = self.constants.iter().map(|(name, value)| (name.clone(), in_c(*value)));
            Arc::new(CudaCode {
                text: text.clone(),
                defines: constants.chain(self.defines.iter().cloned()).collect(),
                headers: self.headers.clone(),
                options: self.options.clone(),
            })
        });
        let body = |(needs, source, is_checked): &(Features, Cow<'static, str>, bool)| WgslBody {
            needs: *needs,
            source: source.clone(),
            is_checked: *is_checked,
            constants: self.constants.clone(),
        };
        kernel.wgsl = self.wgsl.iter().map(body).collect();
        kernel
    }
}

/// Formats a number for CUDA C.
fn in_c(value: f64) -> String {
    // Larger integers are not all exact in an `f64`.
    const EXACT: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;
    if value.fract() == 0.0 && value.abs() < EXACT {
        format!("{}", value as i64)
    } else {
        format!("{value:?}")
    }
}

/// CUDA C, with its macros, headers and compiler options.
#[derive(Debug, Clone, Default)]
pub(crate) struct CudaCode {
    pub(crate) text: Cow<'static, str>,
    defines: Vec<(String, String)>,
    pub(crate) headers: Vec<(String, Cow<'static, str>)>,
    options: Vec<String>,
}

impl CudaCode {
    /// A source without macros, headers or options.
    pub(crate) fn plain(text: impl Into<Cow<'static, str>>) -> Self {
        CudaCode { text: text.into(), ..CudaCode::default() }
    }

    /// Returns the compiler options.
    pub(crate) fn options(&self) -> impl Iterator<Item = String> {
        let define = |(name, text): &(String, String)| format!("--define-macro={name}={text}");
        self.defines.iter().map(define).chain(self.options.iter().cloned())
    }

    /// Whether the binary depends on nothing outside of this source.
    pub(crate) fn is_self_contained(&self) -> bool {
        const OUTSIDE: [&str; 4] = ["-I", "--include-path", "-include", "--pre-include"];
        !self.options.iter().any(|option| OUTSIDE.iter().any(|outside| option.starts_with(outside)))
    }

    /// Hashes everything that the binary depends on, so that different sources have different hashes.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        let options: Vec<_> = self.options().collect();
        for number in [options.len(), self.headers.len()] {
            part(&(number as u64).to_le_bytes());
        }
        options.iter().for_each(|option| part(option.as_bytes()));
        for (name, text) in &self.headers {
            part(name.as_bytes());
            part(text.as_bytes());
        }
        part(self.text.as_bytes());
    }
}

/// A WGSL body of a kernel.
#[derive(Debug, Clone)]
pub(crate) struct WgslBody {
    pub(crate) needs: Features,
    pub(crate) source: Cow<'static, str>,
    /// Whether run-time checks are compiled in: of indices, divisors and endless loops.
    pub(crate) is_checked: bool,
    /// Values of `override` declarations.
    pub(crate) constants: Vec<(String, f64)>,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn numbers_are_written_as_cuda_c_reads_them() {
        assert_eq!(
            [3.0, -1.0, 0.5, 4294967295.0, 1e300].map(in_c),
            ["3", "-1", "0.5", "4294967295", "1e300"]
        );
    }

    #[test]
    fn sources_that_differ_in_anything_have_different_hashes() {
        let hash = |source: &CudaCode| {
            let mut hasher = blake3::Hasher::new();
            source.hash(&mut hasher);
            hasher.finalize()
        };
        let text = |text: &str| text.to_owned();
        let all = [
            CudaCode::plain("a"),
            CudaCode::plain("b"),
            CudaCode { options: vec![text("a")], ..CudaCode::default() },
            CudaCode { options: vec![text("a"), text("b")], ..CudaCode::default() },
            CudaCode { options: vec![text("ab")], ..CudaCode::default() },
            CudaCode { defines: vec![(text("A"), text("1"))], ..CudaCode::default() },
            CudaCode { defines: vec![(text("A"), text("2"))], ..CudaCode::default() },
            CudaCode { headers: vec![(text("a"), "b".into())], ..CudaCode::default() },
            CudaCode { headers: vec![(text("ab"), "".into())], ..CudaCode::default() },
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| hash(one) != hash(other)), "{one:?}");
        }
    }

    #[test]
    fn headers_outside_of_the_module_are_detected() {
        let with = |option: &str| CudaCode { options: vec![option.into()], ..CudaCode::default() };
        assert!(with("--maxrregcount=64").is_self_contained());
        assert!(!with("-I/usr/include").is_self_contained());
        assert!(!with("--include-path=/usr/include").is_self_contained());
    }
}
