//! NCCL and the few functions of the CUDA driver that go with it, opened at run time.

use std::{
    env,
    ffi::{CStr, c_char, c_int, c_void},
    path::PathBuf,
    sync::OnceLock,
};

use libloading::Library;

/// A library of one's own choice.
const VARIABLE: &str = "EVENER_NCCL";

pub(super) const ID_BYTES: usize = 128;

pub(super) type Ptr = *mut c_void;

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; ID_BYTES]);

/// The beginning of `ncclConfig_t`, as of version 2.14: later versions read as much as it says that it has.
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

#[derive(Debug)]
pub(super) struct Nccl {
    pub(super) version: String,
    pub(super) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(super) comm_init_rank_config:
        unsafe extern "C" fn(*mut Ptr, c_int, UniqueId, c_int, *mut Config) -> c_int,
    pub(super) comm_get_async_error: unsafe extern "C" fn(Ptr, *mut c_int) -> c_int,
    pub(super) comm_abort: unsafe extern "C" fn(Ptr) -> c_int,
    pub(super) all_reduce: unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int,
    pub(super) reduce: unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, c_int, Ptr, Ptr) -> c_int,
    pub(super) broadcast: unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int,
    pub(super) all_gather: unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Ptr, Ptr) -> c_int,
    pub(super) reduce_scatter: unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int,
    pub(super) send: unsafe extern "C" fn(Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int,
    pub(super) recv: unsafe extern "C" fn(Ptr, usize, c_int, c_int, Ptr, Ptr) -> c_int,
    pub(super) group_start: unsafe extern "C" fn() -> c_int,
    pub(super) group_end: unsafe extern "C" fn() -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub(super) stream_create: unsafe extern "C" fn(*mut Ptr, u32) -> c_int,
    pub(super) stream_query: unsafe extern "C" fn(Ptr) -> c_int,
    pub(super) stream_destroy: unsafe extern "C" fn(Ptr) -> c_int,
}

/// NCCL's version where it can be used, or why it cannot.
pub(crate) fn available() -> Result<String, String> {
    open().map(|nccl| nccl.version.clone())
}

pub(super) fn open() -> Result<&'static Nccl, String> {
    static OPENED: OnceLock<Result<Nccl, String>> = OnceLock::new();
    OPENED.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Nccl, String> {
    // SAFETY: the driver library runs nothing but its own constructors when it is opened.
    let driver = unsafe { Library::new("libcuda.so.1") }.map_err(|_| "no CUDA driver (libcuda.so.1)")?;
    let (nccl, name) = places()
        .into_iter()
        // SAFETY: as above.
        .find_map(|place| unsafe { Library::new(&place) }.ok().map(|library| (library, place)))
        .ok_or_else(|| format!("no NCCL (libnccl.so.2; {VARIABLE} names another)"))?;
    macro_rules! find {
        ($library:expr, $symbol:literal) => {
            // SAFETY: NCCL's and the driver's headers declare the function so.
            *unsafe { $library.get($symbol) }.map_err(|why| format!("{}: {why}", name.display()))?
        };
    }
    let get_version: unsafe extern "C" fn(*mut c_int) -> c_int = find!(nccl, b"ncclGetVersion");
    let mut version = 0;
    // SAFETY: the pointer is to a live variable.
    unsafe { get_version(&mut version) };
    let found = Nccl {
        version: format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100),
        get_unique_id: find!(nccl, b"ncclGetUniqueId"),
        comm_init_rank_config: find!(nccl, b"ncclCommInitRankConfig"),
        comm_get_async_error: find!(nccl, b"ncclCommGetAsyncError"),
        comm_abort: find!(nccl, b"ncclCommAbort"),
        all_reduce: find!(nccl, b"ncclAllReduce"),
        reduce: find!(nccl, b"ncclReduce"),
        broadcast: find!(nccl, b"ncclBroadcast"),
        all_gather: find!(nccl, b"ncclAllGather"),
        reduce_scatter: find!(nccl, b"ncclReduceScatter"),
        send: find!(nccl, b"ncclSend"),
        recv: find!(nccl, b"ncclRecv"),
        group_start: find!(nccl, b"ncclGroupStart"),
        group_end: find!(nccl, b"ncclGroupEnd"),
        get_error_string: find!(nccl, b"ncclGetErrorString"),
        stream_create: find!(driver, b"cuStreamCreate"),
        stream_query: find!(driver, b"cuStreamQuery"),
        stream_destroy: find!(driver, b"cuStreamDestroy_v2"),
    };
    // Never closed: what was found in them is used until the process ends.
    std::mem::forget((driver, nccl));
    Ok(found)
}

/// Where it may be: where the system looks, and where Python packages put it.
fn places() -> Vec<PathBuf> {
    if let Some(own) = env::var_os(VARIABLE).filter(|it| !it.is_empty()) {
        return vec![own.into()];
    }
    let mut places: Vec<PathBuf> = vec!["libnccl.so.2".into(), "libnccl.so".into()];
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    let roots =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from).chain(home);
    for root in roots.chain(["/usr/local".into(), "/usr".into()]) {
        let Ok(entries) = std::fs::read_dir(root.join("lib")) else { continue };
        for entry in entries.flatten().filter(|it| it.file_name().to_string_lossy().starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let library = entry.path().join(packages).join("nvidia/nccl/lib/libnccl.so.2");
                places.extend(Some(library).filter(|it| it.exists()));
            }
        }
    }
    places
}

impl Nccl {
    pub(super) fn check(&self, code: c_int, name: &str) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL gives a static text for every number.
        let text = unsafe { CStr::from_ptr((self.get_error_string)(code)) };
        Err(format!("{name}: {}", text.to_string_lossy()))
    }
}
