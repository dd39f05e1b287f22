//! An MPI library, loaded at run time: building needs no MPI.
//!
//! The functions are the same in all libraries; the handles are not. The standard ABI of MPI-5 has fixed small numbers
//! for predefined handles, Open MPI the addresses of its variables, and MPICH and its relatives 32-bit numbers.

use std::{
    env,
    ffi::{CStr, c_char, c_int, c_void},
    fmt::Debug,
};

use libloading::os::unix::{Library as Opened, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use crate::backend::symbols::symbols;

/// Names the library to use.
pub(crate) const LIBRARY_VARIABLE: &str = "EVENER_MPI";

const OPEN_MPI: &str = "Open MPI";

pub(super) trait MpiHandle: Copy + Send + Sync + Debug + PartialEq + 'static {
    fn of(number: usize) -> Self;
    fn number(self) -> usize;
}
macro_rules! handles {
    ($($handle:ty),*) => {$(
        impl MpiHandle for $handle {
            fn of(number: usize) -> Self { number as $handle }
            fn number(self) -> usize { self as usize }
        }
    )*};
}
handles!(usize, c_int);

/// The constants that differ between families.
#[derive(Debug, Clone, Copy)]
pub(super) struct Constants<H> {
    pub(super) world: H,
    pub(super) byte: H,
    pub(super) null_request: H,
    pub(super) errors_return: H,
    pub(super) any_source: c_int,
    pub(super) status_ignore: usize,
    pub(super) tag_upper_bound: c_int,
    pub(super) thread_serialized: c_int,
}

symbols! {
    /// The functions that are used, each as the standard declares it, except that the data to send is not `const`.
    Calls<H> of Opened {
        initialized b"MPI_Initialized" (*mut c_int) -> c_int;
        finalized b"MPI_Finalized" (*mut c_int) -> c_int;
        query_thread b"MPI_Query_thread" (*mut c_int) -> c_int;
        init_thread b"MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
        finalize b"MPI_Finalize" () -> c_int;
        comm_dup b"MPI_Comm_dup" (H, *mut H) -> c_int;
        comm_free b"MPI_Comm_free" (*mut H) -> c_int;
        comm_rank b"MPI_Comm_rank" (H, *mut c_int) -> c_int;
        comm_size b"MPI_Comm_size" (H, *mut c_int) -> c_int;
        comm_get_attr b"MPI_Comm_get_attr" (H, c_int, *mut *mut c_int, *mut c_int) -> c_int;
        comm_set_errhandler b"MPI_Comm_set_errhandler" (H, H) -> c_int;
        isend b"MPI_Isend" (*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
        irecv b"MPI_Irecv" (*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
        send_init b"MPI_Send_init" (*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
        recv_init b"MPI_Recv_init" (*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
        start b"MPI_Start" (*mut H) -> c_int;
        request_free b"MPI_Request_free" (*mut H) -> c_int;
        iprobe b"MPI_Iprobe" (c_int, c_int, H, *mut c_int, usize) -> c_int;
        test b"MPI_Test" (*mut H, *mut c_int, usize) -> c_int;
        cancel b"MPI_Cancel" (*mut H) -> c_int;
        error_string b"MPI_Error_string" (c_int, *mut c_char, *mut c_int) -> c_int;
    }
}

#[derive(Debug)]
pub(super) struct Library<H> {
    pub(super) calls: Calls<H>,
    pub(super) constants: Constants<H>,
    /// The version to display, for example `Open MPI v4.1.4` or `MPICH 5.0.2, standard ABI`.
    pub(super) version: String,
    /// Whether it handles the launcher's signal that a process has died, as MPICH does.
    pub(super) takes_signals: bool,
    // Never closed: MPI libraries do not support it.
    _opened: std::mem::ManuallyDrop<Opened>,
}

impl<H: MpiHandle> Library<H> {
    fn new(
        opened: std::mem::ManuallyDrop<Opened>,
        constants: Constants<H>,
        version: String,
        takes_signals: bool,
    ) -> Result<Self, String> {
        // SAFETY: the types are those of the MPI standard, with the handles of this family.
        let calls = unsafe { Calls::find(&opened) }?;
        Ok(Library { calls, constants, version, takes_signals, _opened: opened })
    }
}

/// A library of either width of handles.
#[derive(Debug)]
pub(super) enum AnyLibrary {
    Wide(Library<usize>),
    Narrow(Library<c_int>),
}

/// Returns the names to try: first libraries that the program has loaded itself, then the standard ABI, Open MPI and
/// MPICH. A library of another family than the launcher's would not find the other ranks.
fn names() -> Vec<String> {
    if let Some(own) = env::var_os(LIBRARY_VARIABLE).filter(|it| !it.is_empty()) {
        return vec![own.to_string_lossy().into_owned()];
    }
    let abi = ["libmpi_abi.so.1", "libmpi_abi.so", "libmpi_abi.1.dylib", "libmpi_abi.dylib"];
    let open_mpi = ["libmpi.so.40", "libmpi.so.80", "libmpi.40.dylib"];
    let mpich = ["libmpich.so.12", "libmpi.so.12", "libmpi.so.0", "libmpi.12.dylib"];
    let plain = ["libmpi.so", "libmpi.dylib"];
    let all = abi.iter().chain(&open_mpi).chain(&mpich).chain(&plain);
    let mut names: Vec<String> = all.map(|it| (*it).into()).collect();
    names.sort_by_key(|name| open_as(name, RTLD_LOCAL | libc::RTLD_NOLOAD).is_err());
    names
}

/// Returns the family of the launcher that started this process, if its environment variables tell.
fn launcher() -> Option<Family> {
    let has = |name| env::var_os(name).is_some();
    if has("OMPI_COMM_WORLD_SIZE") {
        Some(Family::OpenMpi)
    } else if has("PMI_SIZE") && has("PMI_RANK") && !has("PMIX_RANK") && !has("SLURM_PROCID") {
        Some(Family::Mpich)
    } else {
        None
    }
}

/// Returns whether an MPI launcher (`mpirun`, `mpiexec` or `srun`) started this process.
pub(crate) fn was_launched() -> bool {
    let more_than_one =
        |name| env::var(name).is_ok_and(|count| count.parse::<usize>().is_ok_and(|count| count > 1));
    launcher().is_some()
        || env::var_os("PMIX_RANK").is_some()
        || (env::var_os("SLURM_PROCID").is_some() && more_than_one("SLURM_STEP_NUM_TASKS"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    OpenMpi,
    Mpich,
}

/// Opens the first usable library. The error lists what was tried.
pub(super) fn open() -> Result<AnyLibrary, String> {
    let mut tried = Vec::new();
    for name in names() {
        // Local scope first: the symbols of a library that is not used must not be visible to the one that is.
        let Ok(opened) = open_as(&name, RTLD_LOCAL) else {
            tried.push(name);
            continue;
        };
        let version = version(&opened).unwrap_or_default();
        let family = if version.contains(OPEN_MPI) { Family::OpenMpi } else { Family::Mpich };
        if launcher().is_some_and(|launcher| launcher != family) && env::var_os(LIBRARY_VARIABLE).is_none() {
            tried.push(format!("{name} ({version}, but the launcher of another MPI started this process)"));
            continue;
        }
        // Plug-ins of MPI libraries look symbols up in the global scope.
        let used = open_as(&name, RTLD_GLOBAL).and_then(|opened| library(opened, &name, version));
        return used.map_err(|why| format!("{name}: {why}"));
    }
    Err(format!("none of {} could be used: set {LIBRARY_VARIABLE} to an MPI library", tried.join(", ")))
}

fn open_as(name: &str, scope: c_int) -> Result<std::mem::ManuallyDrop<Opened>, String> {
    // SAFETY: MPI libraries only run their own constructors when they are opened.
    let opened = unsafe { Opened::open(Some(name), RTLD_NOW | scope) };
    opened.map(std::mem::ManuallyDrop::new).map_err(|why| why.to_string())
}

fn library(
    opened: std::mem::ManuallyDrop<Opened>,
    name: &str,
    version: String,
) -> Result<AnyLibrary, String> {
    // SAFETY: only the addresses of these variables are taken.
    let address =
        |symbol: &[u8]| unsafe { opened.get::<*const c_void>(symbol) }.map(|it| it.as_raw_ptr() as usize);
    if name.contains("mpi_abi") {
        check_abi(&opened)?;
        let (takes_signals, version) = (!version.contains(OPEN_MPI), format!("{version}, standard ABI"));
        // The values of the standard's `mpi_abi.h`.
        let constants = Constants {
            world: 0x101,
            byte: 0x247,
            null_request: 0x180,
            errors_return: 0x143,
            any_source: -1,
            status_ignore: 0,
            tag_upper_bound: 501,
            thread_serialized: 2048,
        };
        return Library::new(opened, constants, version, takes_signals).map(AnyLibrary::Wide);
    }
    if let Ok(world) = address(b"ompi_mpi_comm_world") {
        let of = |symbol: &str| address(symbol.as_bytes()).map_err(|why| why.to_string());
        let constants = Constants {
            world,
            byte: of("ompi_mpi_byte")?,
            null_request: of("ompi_request_null")?,
            errors_return: of("ompi_mpi_errors_return")?,
            any_source: -1,
            status_ignore: 0,
            tag_upper_bound: 0,
            thread_serialized: 2,
        };
        return Library::new(opened, constants, version, false).map(AnyLibrary::Wide);
    }
    let constants = Constants {
        world: 0x4400_0000,
        byte: 0x4c00_010d,
        null_request: 0x2c00_0000,
        errors_return: 0x5400_0001,
        any_source: -2,
        status_ignore: 1,
        tag_upper_bound: 0x6440_0001,
        thread_serialized: 2,
    };
    Library::new(opened, constants, version, true).map(AnyLibrary::Narrow)
}

/// Fails unless the library has version 1 of the standard ABI: drafts had other numbers.
fn check_abi(opened: &Opened) -> Result<(), String> {
    // SAFETY: the MPI standard declares the function with this type, and allows calling it at any time.
    let get: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
        *unsafe { opened.get(b"MPI_Abi_get_version") }.map_err(|why| why.to_string())?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the pointers are to live variables.
    unsafe { get(&mut major, &mut minor) };
    if major == 1 { Ok(()) } else { Err(format!("it has version {major}.{minor} of the MPI ABI, not 1")) }
}

/// Returns the library's version text, shortened to a name and a number.
fn version(opened: &Opened) -> Option<String> {
    // SAFETY: the MPI standard declares the function with this type, and allows calling it at any time.
    let get: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int =
        unsafe { *opened.get(b"MPI_Get_library_version").ok()? };
    let (mut text, mut len) = (vec![0u8; 8192], 0);
    // SAFETY: the text is at most 8192 bytes in every library, with a terminating zero.
    unsafe { get(text.as_mut_ptr().cast(), &mut len) };
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned();
    let first = text.lines().next().unwrap_or_default();
    let first = first.split(',').next().unwrap_or_default().replace("Version:", "").replace('\t', " ");
    Some(first.split_whitespace().collect::<Vec<_>>().join(" "))
}
