//! Compiled kernels.

use std::{
    any::Any,
    collections::HashMap,
    ffi::{CString, c_int, c_void},
    mem::MaybeUninit,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUfunction_attribute, CUmodule, CUresult, CUstream};
use smallvec::SmallVec;

use super::{
    context::DriverGuard,
    cubin::{Compilation, Image},
    driver::SUCCESS,
    errors::{self, ErrorClass},
    memory::CudaMemory,
    nvrtc::{BODY, Nvrtc},
    open::OpenDevice,
};
use crate::{
    backend::{BoundKernelBackend, Memory, ProgramBackend, Region},
    error::{Error, Result},
    kernel::Kernel,
    module::CudaCode,
};

/// Maximum bytes of parameters: the 4096 that every card takes, minus 64 pointers.
pub(super) const MAX_PARAMS: usize = 3584;

/// Bytes of shared memory that a workgroup may use without opting in to more.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// The driver's handle of a module.
#[derive(Debug, Clone, Copy)]
struct RawModule(CUmodule);

// SAFETY: the driver allows a module in any thread to which the module's context is current.
unsafe impl Send for RawModule {}

/// The loaded modules of an open device, by source: kernels with the same source share a module.
#[derive(Debug, Default)]
pub(super) struct Modules {
    /// Each module has its own lock, so that different sources compile at the same time.
    loaded: Mutex<HashMap<blake3::Hash, Arc<Mutex<Option<RawModule>>>>>,
}

impl Modules {
    fn get(&self, open: &OpenDevice, kernel: &str, source: &CudaCode) -> Result<RawModule> {
        let mut hasher = blake3::Hasher::new();
        source.hash(&mut hasher);
        let key = hasher.finalize();
        let slot = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            loaded.entry(key).or_default().clone()
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match *slot {
            Some(module) => Ok(module),
            None => Ok(*slot.insert(build(open, kernel, source)?)),
        }
    }

    pub(super) fn clear(&self, guard: &DriverGuard<'_>) {
        for slot in std::mem::take(&mut *self.loaded.lock().unwrap_or_else(PoisonError::into_inner)).values()
        {
            if let Some(module) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // SAFETY: the module was loaded in this context, and the kernels of it are gone: each holds the `OpenDevice`.
                unsafe { (guard.driver.module_unload)(module.0) };
            }
        }
    }
}

/// Compiles a source, or reads it from the disk cache, and loads it.
fn build(open: &OpenDevice, kernel: &str, source: &CudaCode) -> Result<RawModule> {
    let id = &open.context.id;
    let nvrtc = Nvrtc::get()
        .map_err(|why| Error::unsupported(id, format!("compiling kernel `{kernel}`"), why.to_owned()))?;
    let architecture = nvrtc.architecture_for(&open.card.architecture);
    let compilation = Compilation { nvrtc, device: id, architecture: &architecture, kernel, source };
    let image = compilation.read_or_compile()?;
    let guard = open.context.enter("loading a compiled kernel")?;
    let mut code = 0;
    let mut load = |image: &Image| {
        let mut module = std::ptr::null_mut();
        // SAFETY: the guard's context is current; the image is a complete cubin, which states its own length; the driver
        // reads it before the call returns.
        code = unsafe { (guard.driver.module_load_data)(&mut module, image.bytes.as_ptr().cast()) };
        (code == SUCCESS).then_some(RawModule(module))
    };
    if let Some(module) = load(&image) {
        return Ok(module);
    }
    if image.cached {
        // The cached file is intact, but the driver refuses it: compile it again.
        let image = compilation.compile()?;
        if let Some(module) = load(&image) {
            return Ok(module);
        }
    }
    let error = guard.check_for(code, 0, || format!("loading kernel `{kernel}`"));
    if errors::meaning(code) != ErrorClass::Refused {
        error?;
    }
    let log = format!(
        "the driver ({}) cannot load what {nvrtc} compiled for {architecture}: {}",
        guard.driver.version_text(),
        guard.driver.text(code)
    );
    Err(will_not_compile(open, kernel, log))
}

/// Compiles a kernel's CUDA C and checks it against what the kernel declares.
pub(super) fn compile(open: &Arc<OpenDevice>, kernel: &Kernel) -> Result<Arc<dyn ProgramBackend>> {
    let Some(source) = &kernel.cuda else {
        let operation = format!("compiling kernel `{}`", kernel.name);
        return Err(Error::unsupported(
            &open.context.id,
            operation,
            "the kernel has no CUDA C body: add one with `Kernel::cuda`",
        ));
    };
    let module = open.modules.get(open, &kernel.name, source)?;
    let guard = open.context.enter("loading a compiled kernel")?;
    let missing = || {
        let name = &kernel.name;
        let log = format!("no entry point `{name}`: declare it as extern \"C\" __global__ void {name}(…)");
        will_not_compile(open, name, log)
    };
    let name = CString::new(&*kernel.name).map_err(|_| missing())?;
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is alive and of this context; the name is a C string; the pointer is to a live pointer.
    let code = unsafe { (guard.driver.module_get_function)(&mut function, module.0, name.as_ptr()) };
    if code == errors::NOT_FOUND {
        return Err(missing());
    }
    guard.check(code)?;
    check_parameters(open, &guard, kernel, function)?;
    check_threads(open, &guard, kernel, function)?;
    allow_shared_memory(open, &guard, kernel, function)?;
    let loaded = Arc::new(LoadedKernel::new(function, kernel));
    Ok(Arc::new(CudaProgram { open: open.clone(), loaded }))
}

fn will_not_compile(open: &OpenDevice, kernel: &str, log: String) -> Error {
    Error::WillNotCompile { device: open.context.id.clone(), kernel: kernel.into(), body: BODY.into(), log }
}

fn refuse(open: &OpenDevice, kernel: &Kernel, detail: String) -> Error {
    Error::unsupported(&open.context.id, format!("compiling kernel `{}`", kernel.name), detail)
}

/// Checks that the CUDA C function takes the parameters that the kernel declares: otherwise a launch would read past the
/// given ones. Drivers before CUDA 12.4 do not report parameters, so nothing is checked there.
fn check_parameters(
    open: &OpenDevice,
    guard: &DriverGuard<'_>,
    kernel: &Kernel,
    function: CUfunction,
) -> Result<()> {
    const OUT_OF_RANGE: c_int = CUresult::CUDA_ERROR_INVALID_VALUE as c_int;
    let Some(functions) = &guard.driver.parameters else { return Ok(()) };
    let size_of_parameter = |index: usize| {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the function is alive and of this context; both pointers are to live integers.
        let code = unsafe { (functions.func_get_param_info)(function, index, &mut offset, &mut bytes) };
        (code, bytes)
    };
    let buffers = kernel.bindings.len();
    let declared = buffers + usize::from(kernel.params_bytes > 0);
    let detail = (0..=declared).find_map(|index| {
        let expected = if index < buffers { size_of::<CUdeviceptr>() } else { kernel.params_bytes as usize };
        match size_of_parameter(index) {
            (SUCCESS, _) if index == declared => Some(format!(
                "the function takes more than the {declared} parameters that the kernel declares"
            )),
            (OUT_OF_RANGE, _) if index < declared => {
                Some(format!("the function takes {index} parameters, and the kernel declares {declared}"))
            }
            (SUCCESS, bytes) if bytes != expected => Some(format!(
                "parameter {index} has {bytes} bytes, and the kernel declares {expected} ({})",
                if index < buffers { "a pointer to a buffer" } else { "the params, by value" }
            )),
            _ => None,
        }
    });
    match detail {
        Some(log) => Err(will_not_compile(open, &kernel.name, log)),
        None => Ok(()),
    }
}

/// Checks that the registers of a workgroup fit a multiprocessor.
fn check_threads(
    open: &OpenDevice,
    guard: &DriverGuard<'_>,
    kernel: &Kernel,
    function: CUfunction,
) -> Result<()> {
    let limit = attribute(guard, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    let threads = kernel.workgroup.iter().map(|&n| u64::from(n)).product::<u64>();
    if threads <= u64::from(limit) {
        return Ok(());
    }
    let registers = attribute(guard, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?;
    let detail = format!(
        "a workgroup has {threads} threads, and at most {limit} fit with {registers} registers each: \
         use a smaller workgroup, or __launch_bounds__"
    );
    Err(refuse(open, kernel, detail))
}

/// Opts in to all of the card's dynamic shared memory, for a kernel that needs more than the default.
fn allow_shared_memory(
    open: &OpenDevice,
    guard: &DriverGuard<'_>,
    kernel: &Kernel,
    function: CUfunction,
) -> Result<()> {
    let fixed = attribute(guard, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
    if fixed.saturating_add(kernel.shared_bytes) <= DEFAULT_SHARED_BYTES {
        return Ok(());
    }
    let all = open.card.capabilities.max_shared_bytes;
    let limit = all.saturating_sub(fixed);
    if kernel.shared_bytes > limit {
        let asked = kernel.shared_bytes;
        return Err(refuse(
            open,
            kernel,
            format!(
                "{asked} bytes of dynamic shared memory and {fixed} static ones, and the device has {all} per workgroup"
            ),
        ));
    }
    let name = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // The limit, not this kernel's need: another kernel may share the function and need more.
    // SAFETY: the function is alive and of this context.
    guard.check(unsafe { (guard.driver.func_set_attribute)(function, name as u32, limit as c_int) })
}

fn attribute(guard: &DriverGuard<'_>, function: CUfunction, name: CUfunction_attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the function is alive and of this context; the pointer is to a live integer.
    guard.check(unsafe { (guard.driver.func_get_attribute)(&mut value, name as u32, function) })?;
    Ok(value.max(0) as u32)
}

/// A loaded function and the sizes that it is launched with.
#[derive(Debug)]
struct LoadedKernel {
    /// Valid while the `OpenDevice` that loaded it lives.
    function: CUfunction,
    name: Box<str>,
    workgroup: [u32; 3],
    shared_bytes: u32,
}

impl LoadedKernel {
    fn new(function: CUfunction, kernel: &Kernel) -> Self {
        LoadedKernel {
            function,
            name: kernel.name.as_ref().into(),
            workgroup: kernel.workgroup,
            shared_bytes: kernel.shared_bytes,
        }
    }
}

// SAFETY: the driver allows a function in any thread to which the function's context is current.
unsafe impl Send for LoadedKernel {}
// SAFETY: as for `Send`; nothing is written through a shared reference.
unsafe impl Sync for LoadedKernel {}

#[derive(Debug)]
struct CudaProgram {
    open: Arc<OpenDevice>,
    loaded: Arc<LoadedKernel>,
}

impl ProgramBackend for CudaProgram {
    fn body(&self) -> &str {
        BODY
    }

    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn BoundKernelBackend>> {
        let pointers = arguments
            .iter()
            .map(|region| CudaMemory::address(region, &self.open, "binding a buffer"))
            .collect::<Result<_>>()?;
        Ok(Arc::new(CudaBoundKernel {
            open: self.open.clone(),
            loaded: self.loaded.clone(),
            pointers,
            _memory: arguments.iter().map(|region| region.memory.clone()).collect(),
        }))
    }
}

#[derive(Debug)]
pub(super) struct CudaBoundKernel {
    /// Keeps the function loaded.
    pub(super) open: Arc<OpenDevice>,
    loaded: Arc<LoadedKernel>,
    pointers: SmallVec<[CUdeviceptr; 8]>,
    _memory: Vec<Arc<dyn Memory>>,
}

impl CudaBoundKernel {
    /// Returns a kernel of this device's context, which the whole device and its partitions share.
    #[inline]
    pub(super) fn of<'a>(bound: &'a Arc<dyn BoundKernelBackend>, open: &OpenDevice) -> Result<&'a Self> {
        let kernel = (&**bound as &dyn Any).downcast_ref::<CudaBoundKernel>();
        match kernel.filter(|kernel| kernel.open.context.is_same_context(&open.context)) {
            Some(kernel) => Ok(kernel),
            None => errors::wrong_device(&open.context.id, "launching a kernel", "kernel"),
        }
    }
}

impl BoundKernelBackend for CudaBoundKernel {
    fn with_workgroup(&self, kernel: &Kernel) -> Result<Arc<dyn BoundKernelBackend>> {
        let (open, function) = (&self.open, self.loaded.function);
        if let Some(detail) = kernel.exceeds(&open.card.capabilities) {
            return Err(refuse(open, kernel, detail));
        }
        let guard = open.context.enter("sizing a workgroup")?;
        check_threads(open, &guard, kernel, function)?;
        allow_shared_memory(open, &guard, kernel, function)?;
        Ok(Arc::new(CudaBoundKernel {
            open: open.clone(),
            loaded: Arc::new(LoadedKernel::new(function, kernel)),
            pointers: self.pointers.clone(),
            _memory: self._memory.clone(),
        }))
    }

    fn occupancy(&self) -> Result<Option<u32>> {
        let LoadedKernel { function, workgroup, shared_bytes, .. } = *self.loaded;
        let guard = self.open.context.enter("querying a kernel's occupancy")?;
        let threads = workgroup.iter().product::<u32>() as c_int;
        let mut groups = 0;
        // SAFETY: the function is alive and of this context; the pointer is to a live integer.
        let code = unsafe {
            (guard.driver.max_active_blocks)(&mut groups, function, threads, shared_bytes as usize)
        };
        guard.check(code)?;
        Ok(Some(groups.max(0) as u32))
    }
}

impl CudaBoundKernel {
    /// Queues the kernel. The caller keeps `self` until the kernel has finished.
    #[inline]
    pub(super) fn launch(
        &self,
        guard: &DriverGuard<'_>,
        stream: CUstream,
        groups: [u32; 3],
        params: &[u8],
    ) -> Result<()> {
        #[repr(align(16))]
        struct Aligned(MaybeUninit<[u8; MAX_PARAMS]>);

        let LoadedKernel { function, workgroup, shared_bytes, .. } = *self.loaded;
        let operation = || format!("launching kernel `{}`", self.loaded.name);
        if params.len() > MAX_PARAMS {
            let detail =
                format!("{} bytes of parameters, and at most {MAX_PARAMS} are possible", params.len());
            return Err(Error::unsupported(&self.open.context.id, operation(), detail));
        }
        let address = |pointer: &CUdeviceptr| std::ptr::from_ref(pointer).cast_mut().cast::<c_void>();
        let mut values: SmallVec<[*mut c_void; 16]> = self.pointers.iter().map(address).collect();
        let mut block = Aligned(MaybeUninit::uninit());
        if !params.is_empty() {
            let target: *mut u8 = block.0.as_mut_ptr().cast();
            // SAFETY: the length was checked above, and the block is a local variable, so it does not overlap `params`.
            unsafe { std::ptr::copy_nonoverlapping(params.as_ptr(), target, params.len()) };
            values.push(target.cast());
        }
        let [[x, y, z], [width, height, depth]] = [groups, workgroup];
        // SAFETY: function and stream are alive and of the guard's context. There is a value of the right size for each of the
        // function's parameters (`check_parameters`), and the driver reads them before the call returns. `self` keeps the
        // buffers; the caller of `Kernel::cuda` promised that the kernel stays within them.
        let code = unsafe {
            (guard.driver.launch_kernel)(
                function,
                x,
                y,
                z,
                width,
                height,
                depth,
                shared_bytes,
                stream,
                values.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        guard.check_for(code, 0, || format!("{} over {groups:?} workgroups", operation()))
    }
}
