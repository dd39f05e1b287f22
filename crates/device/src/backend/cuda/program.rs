//! Compiled kernels.

use std::{
    collections::HashMap,
    ffi::{CString, c_int, c_void},
    mem::MaybeUninit,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUfunction_attribute, CUmodule, CUresult, CUstream};
use smallvec::SmallVec;

use super::{
    context::ContextGuard,
    cubin::{self, Image},
    driver::SUCCESS,
    errors::{self, Meaning},
    memory::CudaMemory,
    nvrtc::{BODY, Nvrtc},
    open::OpenDevice,
};
use crate::{
    backend::{BoundKernel, Memory, Program, Region},
    error::{Error, Result},
    kernel::Kernel,
    module::CudaSource,
};

/// The most bytes of parameters: the 4096 that every card takes, less room for 64 pointers.
pub(super) const MAX_PARAMS: usize = 3584;

/// A workgroup has so much shared memory without asking for more.
const PLAIN_SHARED_BYTES: u32 = 48 << 10;

/// A driver's module.
#[derive(Debug, Clone, Copy)]
struct RawModule(CUmodule);

// SAFETY: a module may be used from any thread in whose context it is.
unsafe impl Send for RawModule {}

/// The modules of one opening, by their source, so that kernels which share a source share the module.
#[derive(Debug, Default)]
pub(super) struct Modules {
    /// Each has a lock of its own, so that different sources compile at the same time.
    loaded: Mutex<HashMap<blake3::Hash, Arc<Mutex<Option<RawModule>>>>>,
}

impl Modules {
    fn get(&self, open: &OpenDevice, kernel: &str, source: &CudaSource) -> Result<RawModule> {
        let mut hasher = blake3::Hasher::new();
        source.hash(&mut hasher);
        let key = hasher.finalize();
        let place = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            loaded.entry(key).or_default().clone()
        };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        match *place {
            Some(module) => Ok(module),
            None => Ok(*place.insert(build(open, kernel, source)?)),
        }
    }

    /// Unloads all of them.
    pub(super) fn clear(&self, guard: &ContextGuard<'_>) {
        for place in std::mem::take(&mut *self.loaded.lock().unwrap_or_else(PoisonError::into_inner)).values()
        {
            if let Some(module) = place.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // SAFETY: loaded in this context; nothing that was made from it is left.
                unsafe { (guard.driver.module_unload)(module.0) };
            }
        }
    }
}

/// Compiles a source, or finds it compiled, and loads it.
fn build(open: &OpenDevice, kernel: &str, source: &CudaSource) -> Result<RawModule> {
    let id = &open.context.id;
    let nvrtc = Nvrtc::get()
        .map_err(|why| Error::unsupported(id, format!("compiling kernel `{kernel}`"), why.to_owned()))?;
    let architecture = nvrtc.architecture_for(&open.card.architecture);
    let image = cubin::obtain(nvrtc, id, &architecture, kernel, source)?;
    let guard = open.context.enter("loading a compiled kernel")?;
    let mut code = 0;
    let mut load = |image: &Image| {
        let mut module = std::ptr::null_mut();
        // SAFETY: the context is current; the image is a whole cubin, which states its own length; the driver
        // reads it before it returns.
        code = unsafe { (guard.driver.module_load_data)(&mut module, image.bytes.as_ptr().cast()) };
        (code == SUCCESS).then_some(RawModule(module))
    };
    if let Some(module) = load(&image) {
        return Ok(module);
    }
    if image.cached {
        // Whole, and yet not to the driver's taste: compiled anew it may be.
        let image = cubin::compile(nvrtc, id, &architecture, kernel, source)?;
        if let Some(module) = load(&image) {
            return Ok(module);
        }
    }
    let error = guard.check_for(code, 0, || format!("loading kernel `{kernel}`"));
    if errors::meaning(code) != Meaning::Refused {
        error?;
    }
    let log = format!(
        "the driver ({}) refuses what {nvrtc} compiled for {architecture}: {}",
        guard.driver.version_text(),
        guard.driver.text(code)
    );
    Err(will_not_compile(open, kernel, log))
}

/// Compiles a kernel's CUDA C and checks it against what the kernel declares.
pub(super) fn compile(open: &Arc<OpenDevice>, kernel: &Kernel) -> Result<Arc<dyn Program>> {
    let Some(source) = &kernel.cuda else {
        let operation = format!("compiling kernel `{}`", kernel.name);
        return Err(Error::unsupported(&open.context.id, operation, "it has no CUDA C body"));
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
    // SAFETY: the module is alive and of this context; the name ends in zero; the pointer is to a live pointer.
    let code = unsafe { (guard.driver.module_get_function)(&mut function, module.0, name.as_ptr()) };
    if code == errors::NOT_FOUND {
        return Err(missing());
    }
    guard.check(code)?;
    check_parameters(open, &guard, kernel, function)?;
    check_threads(open, &guard, kernel, function)?;
    allow_shared(open, &guard, kernel, function)?;
    let launch = Arc::new(LoadedKernel::new(function, kernel));
    Ok(Arc::new(CudaProgram { open: open.clone(), launch }))
}

fn will_not_compile(open: &OpenDevice, kernel: &str, log: String) -> Error {
    Error::WillNotCompile { device: open.context.id.clone(), kernel: kernel.into(), body: BODY.into(), log }
}

fn refuse(open: &OpenDevice, kernel: &Kernel, detail: String) -> Error {
    Error::unsupported(&open.context.id, format!("compiling kernel `{}`", kernel.name), detail)
}

/// Checks that the CUDA C takes the parameters that the kernel declares: with others, a launch would read past
/// the ones it is given. Drivers before CUDA 12.4 do not tell, and are trusted.
fn check_parameters(
    open: &OpenDevice,
    guard: &ContextGuard<'_>,
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
            (SUCCESS, _) if index == declared => {
                Some(format!("it takes more than the {declared} parameters that the kernel declares"))
            }
            (OUT_OF_RANGE, _) if index < declared => {
                Some(format!("it takes {index} parameters, the kernel declares {declared}"))
            }
            (SUCCESS, bytes) if bytes != expected => Some(format!(
                "parameter {index} has {bytes} bytes, the kernel declares {expected} ({})",
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

/// Checks that a workgroup's registers fit.
fn check_threads(
    open: &OpenDevice,
    guard: &ContextGuard<'_>,
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
        "a workgroup of {threads} threads asked for, at most {limit} fit with {registers} registers each: \
         use a smaller one, or __launch_bounds__"
    );
    Err(refuse(open, kernel, detail))
}

/// Asks for as much dynamic shared memory as the card has, where the kernel needs more than the usual.
fn allow_shared(
    open: &OpenDevice,
    guard: &ContextGuard<'_>,
    kernel: &Kernel,
    function: CUfunction,
) -> Result<()> {
    let fixed = attribute(guard, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
    if fixed.saturating_add(kernel.shared_bytes) <= PLAIN_SHARED_BYTES {
        return Ok(());
    }
    let all = open.card.capabilities.max_shared_bytes;
    let limit = all.saturating_sub(fixed);
    if kernel.shared_bytes > limit {
        let asked = kernel.shared_bytes;
        return Err(refuse(
            open,
            kernel,
            format!("{asked} bytes of shared memory beside {fixed} in the body, at most {all} here"),
        ));
    }
    let name = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // The limit and not the need: another kernel may share the function and need more.
    // SAFETY: the function is alive and of this context.
    guard.check(unsafe { (guard.driver.func_set_attribute)(function, name as u32, limit as c_int) })
}

fn attribute(guard: &ContextGuard<'_>, function: CUfunction, name: CUfunction_attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the function is alive and of this context; the pointer is to a live integer.
    guard.check(unsafe { (guard.driver.func_get_attribute)(&mut value, name as u32, function) })?;
    Ok(value.max(0) as u32)
}

/// What a launch needs to know of a kernel.
#[derive(Debug)]
struct LoadedKernel {
    /// Alive for as long as the opening that it was loaded in.
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

// SAFETY: a function may be used from any thread in whose context it is.
unsafe impl Send for LoadedKernel {}
// SAFETY: as above.
unsafe impl Sync for LoadedKernel {}

#[derive(Debug)]
struct CudaProgram {
    open: Arc<OpenDevice>,
    launch: Arc<LoadedKernel>,
}

impl Program for CudaProgram {
    fn body(&self) -> &str {
        BODY
    }

    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn BoundKernel>> {
        let pointers = arguments
            .iter()
            .map(|region| CudaMemory::address(region, &self.open, "binding a buffer"))
            .collect::<Result<_>>()?;
        Ok(Arc::new(CudaBoundKernel {
            open: self.open.clone(),
            launch: self.launch.clone(),
            pointers,
            _memory: arguments.iter().map(|region| region.memory.clone()).collect(),
        }))
    }
}

/// A kernel with its buffers.
#[derive(Debug)]
pub(super) struct CudaBoundKernel {
    /// Keeps the function loaded.
    pub(super) open: Arc<OpenDevice>,
    launch: Arc<LoadedKernel>,
    pointers: SmallVec<[CUdeviceptr; 8]>,
    _memory: Vec<Arc<dyn Memory>>,
}

impl BoundKernel for CudaBoundKernel {
    fn with_workgroup(&self, kernel: &Kernel) -> Result<Arc<dyn BoundKernel>> {
        let (open, function) = (&self.open, self.launch.function);
        if let Some(detail) = kernel.exceeds(&open.card.capabilities) {
            return Err(refuse(open, kernel, detail));
        }
        let guard = open.context.enter("sizing a workgroup")?;
        check_threads(open, &guard, kernel, function)?;
        allow_shared(open, &guard, kernel, function)?;
        Ok(Arc::new(CudaBoundKernel {
            open: open.clone(),
            launch: Arc::new(LoadedKernel::new(function, kernel)),
            pointers: self.pointers.clone(),
            _memory: self._memory.clone(),
        }))
    }

    fn occupancy(&self) -> Result<Option<u32>> {
        let LoadedKernel { function, workgroup, shared_bytes, .. } = *self.launch;
        let guard = self.open.context.enter("asking for a kernel's occupancy")?;
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
    /// Queues the kernel. The caller keeps `self` until it has ended.
    #[inline]
    pub(super) fn launch(
        &self,
        guard: &ContextGuard<'_>,
        stream: CUstream,
        groups: [u32; 3],
        params: &[u8],
    ) -> Result<()> {
        #[repr(align(16))]
        struct Aligned(MaybeUninit<[u8; MAX_PARAMS]>);

        let LoadedKernel { function, workgroup, shared_bytes, .. } = *self.launch;
        let refused = || format!("launching kernel `{}`", self.launch.name);
        if params.len() > MAX_PARAMS {
            let detail = format!("{} bytes of parameters, at most {MAX_PARAMS}", params.len());
            return Err(Error::unsupported(&self.open.context.id, refused(), detail));
        }
        let address = |pointer: &CUdeviceptr| std::ptr::from_ref(pointer).cast_mut().cast::<c_void>();
        let mut values: SmallVec<[*mut c_void; 16]> = self.pointers.iter().map(address).collect();
        let mut block = Aligned(MaybeUninit::uninit());
        if !params.is_empty() {
            let place: *mut u8 = block.0.as_mut_ptr().cast();
            // SAFETY: the block was checked to have room, and is not the caller's slice.
            unsafe { std::ptr::copy_nonoverlapping(params.as_ptr(), place, params.len()) };
            values.push(place.cast());
        }
        let [[x, y, z], [width, height, depth]] = [groups, workgroup];
        // SAFETY: function and stream are alive and of the context that is current. There is a value for each
        // of the function's parameters, of its size (`check_parameters`); the driver reads them before it
        // returns. The buffers are kept with `self`; that the kernel stays within them is for its author.
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
        guard.check_for(code, 0, || format!("{} over {groups:?} workgroups", refused()))
    }
}
