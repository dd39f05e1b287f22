//! The driver's functions, looked up once.
//!
//! cudarc loads the library and provides the types. Its functions are not used, for two reasons: they panic if a symbol is
//! missing, and they return an enum that has no values for the codes of newer drivers. Here a missing symbol is an error
//! message, and a result is a number that [`errors`](super::errors) interprets.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use cudarc::driver::sys::{
    self, CUcontext, CUdevResourceDesc, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUgreenCtx, CUmodule, CUstream, CUuuid,
};

pub(super) const SUCCESS: c_int = 0;

/// The name of the driver's library, for messages.
pub(super) const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Defines a struct of function pointers, and a function that looks all of them up.
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
                    // SAFETY: the symbol has this signature in the driver's header, and the library is never unloaded.
                    $($field: unsafe { symbol(concat!($symbol, "\0")) }.ok_or($symbol)?,)*
                })
            }
        }
    };
}

functions! {
    /// Required functions. Every driver since CUDA 11 has all of them.
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
    /// Green contexts, which contain some of a device's multiprocessors. In drivers since CUDA 12.5.
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
    /// Graphs. In drivers since CUDA 11.4.
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
    /// The parameters of a compiled kernel. In drivers since CUDA 12.4.
    ParameterFunctions {
        func_get_param_info = "cuFuncGetParamInfo"(CUfunction, usize, *mut usize, *mut usize);
    }
}

/// A set of multiprocessors: the driver's `CUdevResource`, of which only the kind and the count are documented. It is larger
/// than the 144 bytes of CUDA 12, in case a newer driver writes more; so the driver must never be given an array of these.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Resource {
    pub(super) kind: u32,
    internal: [u8; 92],
    pub(super) units: u32,
    rest: [u8; 156],
}

impl Resource {
    /// The kind of resource for multiprocessors.
    pub(super) const MULTIPROCESSORS: c_uint = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM as c_uint;

    pub(super) fn empty() -> Self {
        Resource { kind: 0, internal: [0; 92], units: 0, rest: [0; 156] }
    }
}

/// The loaded and initialised driver.
pub(super) struct Driver {
    functions: Functions,
    /// `None` in older drivers, as the two below.
    pub(super) green: Option<GreenFunctions>,
    pub(super) parameters: Option<ParameterFunctions>,
    pub(super) graphs: Option<GraphFunctions>,
    /// In the driver's format: 13000 is CUDA 13.0.
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
    /// Returns the driver, which the first call loads and initialises, or a line that says why there is none.
    pub(super) fn get() -> Result<&'static Driver, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).as_ref().map_err(String::clone)
    }

    fn load() -> Result<Self, String> {
        // SAFETY: loading the driver's library runs its initialisers, which are safe to run at any time.
        if !unsafe { sys::is_culib_present() } {
            return Err(format!("no driver library found ({LIBRARY})"));
        }
        let functions = Functions::load()
            .map_err(|missing| format!("the driver is too old: it has no function {missing}"))?;
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
        Err(format!("driver found, but no device ({})", driver.text(code)))
    }

    /// The version as text: `CUDA 13.0`.
    pub(super) fn version_text(&self) -> String {
        format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// Returns the driver's name and description of an error code.
    pub(super) fn text(&self, code: c_int) -> String {
        let lookup = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the pointer is to a live pointer, which the driver sets to a string of its own or null.
            let found = unsafe { function(code, &mut text) } == SUCCESS && !text.is_null();
            // SAFETY: it is a static C string of the driver.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
        };
        match (lookup(self.get_error_name), lookup(self.get_error_string)) {
            (Some(name), Some(meaning)) => format!("{name}: {meaning}"),
            (Some(name), None) => name.into_owned(),
            _ => format!("error {code}, which has no name in this driver"),
        }
    }
}

/// Looks up a function of the driver's library. `name` ends in a zero byte.
///
/// # Safety
/// `F` must be the type of a pointer to a function of the signature that the symbol has, and the library must
/// have been found to be present.
unsafe fn symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller promises that the library is present; otherwise this would panic.
    let library = unsafe { sys::culib() };
    // SAFETY: the caller promises the symbol's type.
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
    fn a_missing_driver_is_reported_in_one_line() {
        if let Err(reason) = Driver::get() {
            assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
        }
    }
}
