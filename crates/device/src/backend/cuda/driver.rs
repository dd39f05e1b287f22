//! The driver's functions, looked up once.
//!
//! cudarc finds and opens the library and gives the types. Its own functions are not called, for two
//! reasons: they panic where a symbol is missing, and they return an enum that a newer driver's codes do not
//! fit. Here a missing symbol is a line of text, and a result is a number that [`errors`](super::errors)
//! reads.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use cudarc::driver::sys::{
    self, CUcontext, CUdevResourceDesc, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUgreenCtx, CUmodule, CUstream, CUuuid,
};

/// What every function returns when all is well.
pub(super) const SUCCESS: c_int = 0;

/// Where the driver's library is looked for, for people.
pub(super) const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Makes a struct of function pointers, and the function that looks all of them up in a library.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($field:ident = $symbol:literal ($($argument:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl $table {
            /// Fails with the name of the first symbol that is missing.
            fn load() -> Result<Self, &'static str> {
                Ok($table {
                    // SAFETY: the driver's header gives the symbol this signature, and the library stays open
                    // for as long as the process lives.
                    $($field: unsafe { symbol(concat!($symbol, "\0")) }.ok_or($symbol)?,)*
                })
            }
        }
    };
}

functions! {
    /// What this back end cannot do without. All of it is in every driver since CUDA 11.
    Functions {
        init = "cuInit"(c_uint);
        driver_get_version = "cuDriverGetVersion"(*mut c_int);
        get_error_name = "cuGetErrorName"(c_int, *mut *const c_char);
        get_error_string = "cuGetErrorString"(c_int, *mut *const c_char);
        device_get_count = "cuDeviceGetCount"(*mut c_int);
        device_get = "cuDeviceGet"(*mut CUdevice, c_int);
        device_get_name = "cuDeviceGetName"(*mut c_char, c_int, CUdevice);
        device_get_uuid = "cuDeviceGetUuid"(*mut CUuuid, CUdevice);
        device_total_mem = "cuDeviceTotalMem_v2"(*mut usize, CUdevice);
        device_get_attribute = "cuDeviceGetAttribute"(*mut c_int, c_uint, CUdevice);
        primary_retain = "cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
        primary_release = "cuDevicePrimaryCtxRelease_v2"(CUdevice);
        ctx_get_current = "cuCtxGetCurrent"(*mut CUcontext);
        ctx_push_current = "cuCtxPushCurrent_v2"(CUcontext);
        ctx_pop_current = "cuCtxPopCurrent_v2"(*mut CUcontext);
        mem_alloc = "cuMemAlloc_v2"(*mut CUdeviceptr, usize);
        mem_free = "cuMemFree_v2"(CUdeviceptr);
        mem_get_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
        mem_host_register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
        mem_host_unregister = "cuMemHostUnregister"(*mut c_void);
        memcpy_to_device = "cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
        memcpy_to_host = "cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
        memcpy_on_device = "cuMemcpyDtoDAsync_v2"(CUdeviceptr, CUdeviceptr, usize, CUstream);
        memset_d8 = "cuMemsetD8Async"(CUdeviceptr, u8, usize, CUstream);
        memset_d16 = "cuMemsetD16Async"(CUdeviceptr, u16, usize, CUstream);
        memset_d32 = "cuMemsetD32Async"(CUdeviceptr, c_uint, usize, CUstream);
        module_load_data = "cuModuleLoadData"(*mut CUmodule, *const c_void);
        module_unload = "cuModuleUnload"(CUmodule);
        module_get_function = "cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);
        func_get_attribute = "cuFuncGetAttribute"(*mut c_int, c_uint, CUfunction);
        func_set_attribute = "cuFuncSetAttribute"(CUfunction, c_uint, c_int);
        max_active_blocks = "cuOccupancyMaxActiveBlocksPerMultiprocessor"(*mut c_int, CUfunction, c_int, usize);
        launch_kernel = "cuLaunchKernel"(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void,
        );
        stream_create = "cuStreamCreate"(*mut CUstream, c_uint);
        stream_destroy = "cuStreamDestroy_v2"(CUstream);
        stream_query = "cuStreamQuery"(CUstream);
        stream_wait_event = "cuStreamWaitEvent"(CUstream, CUevent, c_uint);
        event_create = "cuEventCreate"(*mut CUevent, c_uint);
        event_destroy = "cuEventDestroy_v2"(CUevent);
        event_record = "cuEventRecord"(CUevent, CUstream);
        event_query = "cuEventQuery"(CUevent);
        event_elapsed_time = "cuEventElapsedTime"(*mut f32, CUevent, CUevent);
    }
}

functions! {
    /// GreenContext contexts: part of a device's multiprocessors. In drivers since CUDA 12.5.
    GreenFunctions {
        device_get_resource = "cuDeviceGetDevResource"(CUdevice, *mut Resource, c_uint);
        green_get_resource = "cuGreenCtxGetDevResource"(CUgreenCtx, *mut Resource, c_uint);
        split_by_count = "cuDevSmResourceSplitByCount"(
            *mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint,
        );
        generate_descriptor = "cuDevResourceGenerateDesc"(*mut CUdevResourceDesc, *mut Resource, c_uint);
        create = "cuGreenCtxCreate"(*mut CUgreenCtx, CUdevResourceDesc, CUdevice, c_uint);
        destroy = "cuGreenCtxDestroy"(CUgreenCtx);
        stream_create = "cuGreenCtxStreamCreate"(*mut CUstream, CUgreenCtx, c_uint, c_int);
    }
}

functions! {
    /// Recording launches. In drivers since CUDA 11.4.
    #[derive(Debug)]
    GraphFunctions {
        begin_capture = "cuStreamBeginCapture_v2"(CUstream, c_int);
        end_capture = "cuStreamEndCapture"(CUstream, *mut CUgraph);
        instantiate = "cuGraphInstantiateWithFlags"(*mut CUgraphExec, CUgraph, u64);
        launch = "cuGraphLaunch"(CUgraphExec, CUstream);
        destroy = "cuGraphDestroy"(CUgraph);
        exec_destroy = "cuGraphExecDestroy"(CUgraphExec);
    }
}

functions! {
    /// What a compiled kernel's parameters look like. In drivers since CUDA 12.4.
    ParameterFunctions {
        func_get_param_info = "cuFuncGetParamInfo"(CUfunction, usize, *mut usize, *mut usize);
    }
}

/// A set of multiprocessors, `CUdevResource` in the driver's words. Only its kind and its count are open to
/// us. It is larger than the 144 bytes of CUDA 12, so that a driver with more to say has room; for that
/// reason never put several into one array for the driver.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Resource {
    pub(super) kind: u32,
    internal: [u8; 92],
    pub(super) units: u32,
    rest: [u8; 156],
}

impl Resource {
    /// The kind that is multiprocessors.
    pub(super) const MULTIPROCESSORS: c_uint = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM as c_uint;

    pub(super) fn empty() -> Self {
        Resource { kind: 0, internal: [0; 92], units: 0, rest: [0; 156] }
    }
}

/// The driver.
pub(super) struct Driver {
    functions: Functions,
    /// Absent from older drivers.
    pub(super) green: Option<GreenFunctions>,
    /// Absent from older drivers.
    pub(super) parameters: Option<ParameterFunctions>,
    pub(super) graphs: Option<GraphFunctions>,
    /// As the driver counts: 13000 is CUDA 13.0.
    pub(super) version: c_int,
}

impl std::ops::Deref for Driver {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.version_text())
    }
}

impl Driver {
    /// The driver, opened and initialised; or why it cannot be, as text for people.
    pub(super) fn get() -> Result<&'static Driver, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).as_ref().map_err(String::clone)
    }

    fn load() -> Result<Self, String> {
        // SAFETY: opening the driver's library runs its initialisers, which are written to be run so.
        if !unsafe { sys::is_culib_present() } {
            return Err(format!("no driver library found ({LIBRARY})"));
        }
        let functions =
            Functions::load().map_err(|missing| format!("the driver is too old: it has no {missing}"))?;
        let mut driver = Driver {
            functions,
            green: GreenFunctions::load().ok(),
            parameters: ParameterFunctions::load().ok(),
            graphs: GraphFunctions::load().ok(),
            version: 0,
        };
        // SAFETY: may be called before initialisation; the pointer is to a live integer.
        unsafe { (driver.driver_get_version)(&mut driver.version) };
        // SAFETY: the flags must be zero.
        let code = unsafe { (driver.init)(0) };
        if code == SUCCESS {
            return Ok(driver);
        }
        Err(format!("driver found, no device ({})", driver.text(code)))
    }

    /// `CUDA 13.0`.
    pub(super) fn version_text(&self) -> String {
        format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// An error's name and meaning, in the driver's words.
    pub(super) fn text(&self, code: c_int) -> String {
        let say = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the pointer is to a live pointer, which the driver sets to a string of its own or null.
            let found = unsafe { function(code, &mut text) } == SUCCESS && !text.is_null();
            // SAFETY: the driver's strings end in zero and live as long as the process.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
        };
        match (say(self.get_error_name), say(self.get_error_string)) {
            (Some(name), Some(meaning)) => format!("{name}: {meaning}"),
            (Some(name), None) => name.into_owned(),
            _ => format!("error {code}, which this driver has no name for"),
        }
    }
}

/// A function of the driver's library, if it is there. `name` ends in zero.
///
/// # Safety
/// `F` must be the type of a pointer to a function of the signature that the symbol has, and the library must
/// have been found to be present.
unsafe fn symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller knows that the library is present, without which this would panic.
    let library = unsafe { sys::culib() };
    // SAFETY: the caller gives the symbol's type.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_resource_is_laid_out_as_the_driver_writes_it() {
        assert_eq!(std::mem::offset_of!(Resource, units), 96);
        assert!(size_of::<Resource>() >= size_of::<sys::CUdevResource>());
        assert!(align_of::<Resource>() >= align_of::<sys::CUdevResource>());
        assert_eq!(std::mem::offset_of!(sys::CUdevResource, __bindgen_anon_1), 96);
    }

    #[test]
    fn a_machine_without_a_driver_is_told_so_in_one_line() {
        if let Err(reason) = Driver::get() {
            assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
        }
    }
}
