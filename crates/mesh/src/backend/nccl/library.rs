//! NCCL and some functions of the CUDA driver, loaded at run time.

use std::{
    env,
    ffi::{CStr, c_char, c_int, c_void},
    path::PathBuf,
    sync::OnceLock,
};

use libloading::Library;

use crate::backend::symbols::symbols;

/// Names the library to use.
const LIBRARY_VARIABLE: &str = "EVENER_NCCL";

pub(super) const ID_BYTES: usize = 128;

pub(super) type Ptr = *mut c_void;

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; ID_BYTES]);

/// The first fields of `ncclConfig_t`, as of version 2.14: later versions read only `size` bytes.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl Config {
    pub(super) fn not_blocking() -> Self {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 }
    }
}

symbols! {
    /// NCCL's functions, each as its header declares it.
    Nccl of Library {
        get_version b"ncclGetVersion" (*mut c_int) -> c_int;
        get_unique_id b"ncclGetUniqueId" (*mut UniqueId) -> c_int;
        comm_init_rank_config b"ncclCommInitRankConfig" (*mut Ptr, c_int, UniqueId, c_int, *mut Config) -> c_int;
        comm_get_async_error b"ncclCommGetAsyncError" (Ptr, *mut c_int) -> c_int;
        comm_abort b"ncclCommAbort" (Ptr) -> c_int;
        all_reduce b"ncclAllReduce" (Ptr, Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int;
        reduce b"ncclReduce" (Ptr, Ptr, usize, c_int, c_int, c_int, Ptr, Ptr) -> c_int;
        broadcast b"ncclBroadcast" (Ptr, Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int;
        all_gather b"ncclAllGather" (Ptr, Ptr, usize, c_int, Ptr, Ptr) -> c_int;
        reduce_scatter b"ncclReduceScatter" (Ptr, Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int;
        send b"ncclSend" (Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int;
        recv b"ncclRecv" (Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int;
        group_start b"ncclGroupStart" () -> c_int;
        group_end b"ncclGroupEnd" () -> c_int;
        get_error_string b"ncclGetErrorString" (c_int) -> *const c_char;
    }
}

symbols! {
    /// The CUDA driver's functions, each as its header declares it.
    Driver of Library {
        stream_create b"cuStreamCreate" (*mut Ptr, u32) -> c_int;
        stream_query b"cuStreamQuery" (Ptr) -> c_int;
        stream_destroy b"cuStreamDestroy_v2" (Ptr) -> c_int;
    }
}

#[derive(Debug)]
pub(super) struct Libraries {
    pub(super) version: String,
    pub(super) nccl: Nccl,
    pub(super) driver: Driver,
}

pub(crate) fn available() -> Result<String, String> {
    open().map(|found| found.version.clone())
}

pub(super) fn open() -> Result<&'static Libraries, String> {
    static OPENED: OnceLock<Result<Libraries, String>> = OnceLock::new();
    OPENED.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Libraries, String> {
    // SAFETY: the driver library runs nothing but its own constructors when it is opened.
    let driver = unsafe { Library::new("libcuda.so.1") }.map_err(|_| "no CUDA driver (libcuda.so.1)")?;
    let (nccl, name) = candidates()
        .into_iter()
        // SAFETY: NCCL runs only its own constructors when it is opened.
        .find_map(|path| unsafe { Library::new(&path) }.ok().map(|library| (library, path)))
        .ok_or_else(|| format!("no NCCL (libnccl.so.2; {LIBRARY_VARIABLE} sets another)"))?;
    let of = |why: String| format!("{}: {why}", name.display());
    // SAFETY: NCCL's and the driver's headers declare the functions with these types, and the pointer is to a live
    // variable.
    let found = unsafe {
        let (found, mut version) = (Nccl::find(&nccl).map_err(of)?, 0);
        (found.get_version)(&mut version);
        let version = format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
        Libraries { version, nccl: found, driver: Driver::find(&driver)? }
    };
    // Never closed: the function pointers are used until the process ends.
    std::mem::forget((driver, nccl));
    Ok(found)
}

/// Returns the paths to try: the system's, and those of Python packages.
fn candidates() -> Vec<PathBuf> {
    if let Some(own) = env::var_os(LIBRARY_VARIABLE).filter(|it| !it.is_empty()) {
        return vec![own.into()];
    }
    let mut paths: Vec<PathBuf> = vec!["libnccl.so.2".into(), "libnccl.so".into()];
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    let roots =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from).chain(home);
    for root in roots.chain(["/usr/local".into(), "/usr".into()]) {
        let Ok(entries) = std::fs::read_dir(root.join("lib")) else { continue };
        for entry in entries.flatten().filter(|it| it.file_name().to_string_lossy().starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let library = entry.path().join(packages).join("nvidia/nccl/lib/libnccl.so.2");
                paths.extend(Some(library).filter(|it| it.exists()));
            }
        }
    }
    paths
}

impl Nccl {
    pub(super) fn check(&self, code: c_int, name: &str) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL returns a static string for every code.
        let text = unsafe { CStr::from_ptr((self.get_error_string)(code)) };
        Err(format!("{name}: {}", text.to_string_lossy()))
    }
}
