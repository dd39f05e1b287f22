//! NVRTC, the library that compiles CUDA C: finding it, and compiling with it.
//!
//! NVRTC comes with the CUDA toolkit, with Linux distributions and with Python packages. It needs neither a card nor a
//! driver. Any version from 11.2 on works if it supports the card's architecture.

use std::{
    borrow::Cow,
    ffi::{CStr, CString, OsStr, c_char, c_int, c_void},
    fmt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use libloading::Library;

use super::{driver::Driver, nvrtc_paths};
use crate::{
    describe::DeviceId,
    error::{Error, Result},
    kernel::Kernel,
    module::CudaCode,
};

/// The environment variable that names the NVRTC library to use instead of the one that would be found.
const VARIABLE: &str = "EVENER_NVRTC";

/// The name of the library, for messages.
const LIBRARY: &str = if cfg!(windows) { "nvrtc64_*.dll" } else { "libnvrtc.so" };

/// The name of the language, for messages.
pub(super) const BODY: &str = "CUDA C";

const SUCCESS: c_int = 0;
const COMPILATION_FAILED: c_int = 6;

type RawProgram = *mut c_void;

struct Functions {
    create: unsafe extern "C" fn(
        *mut RawProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(RawProgram, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(RawProgram, *mut usize) -> c_int,
    log: unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(RawProgram, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut RawProgram) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

pub(super) struct Nvrtc {
    functions: Functions,
    /// Major and minor.
    version: (c_int, c_int),
    /// The architectures that it compiles for, such as `90`; empty if the library does not report them.
    architectures: Vec<c_int>,
    /// Keeps `functions` valid.
    _library: Library,
}

impl fmt::Display for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVRTC {}.{}", self.version.0, self.version.1)
    }
}

impl Nvrtc {
    /// Returns the library, which the first call loads, or one line that says why there is none.
    pub(super) fn get() -> Result<&'static Nvrtc, &'static str> {
        static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        NVRTC.get_or_init(Self::find).as_ref().map_err(String::as_str)
    }

    /// The version as in the names of cached files: `13.0`.
    pub(super) fn version_text(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    fn find() -> Result<Self, String> {
        if let Some(file) = std::env::var_os(VARIABLE).filter(|file| !file.is_empty()) {
            let path = PathBuf::from(&file);
            return Self::open(path.as_os_str()).map_err(|why| {
                format!("{VARIABLE} names {}, which cannot be loaded as NVRTC: {why}", path.display())
            });
        }
        let driver = Driver::get().ok().map(|driver| (driver.version / 1000, driver.version % 1000 / 10));
        let mut found = Vec::new();
        for library in nvrtc_paths::all().filter_map(|name| Self::open(&name).ok()) {
            let is_drivers_own = driver == Some(library.version);
            found.push(library);
            if is_drivers_own {
                break;
            }
        }
        best(driver, found.into_iter(), |library| library.version)
            .ok_or_else(|| format!("no NVRTC library found ({LIBRARY})"))
    }

    fn open(name: &OsStr) -> Result<Self, String> {
        // Some versions look for their second library in the system's search path only, not beside the first. A library
        // that is already loaded is found by its name, so it is loaded here, for the life of the process.
        for path in nvrtc_paths::builtins_beside(Path::new(name)) {
            // SAFETY: as for the first library.
            std::mem::forget(unsafe { Library::new(path) });
        }
        // SAFETY: loading the library runs its initialisers, which are safe to run at any time.
        let library = unsafe { Library::new(name) }.map_err(|why| why.to_string())?;
        // SAFETY: the fields have the signatures that NVRTC's header gives these functions.
        let functions = unsafe {
            Functions {
                create: function(&library, "nvrtcCreateProgram")?,
                compile: function(&library, "nvrtcCompileProgram")?,
                log_size: function(&library, "nvrtcGetProgramLogSize")?,
                log: function(&library, "nvrtcGetProgramLog")?,
                cubin_size: function(&library, "nvrtcGetCUBINSize")?,
                cubin: function(&library, "nvrtcGetCUBIN")?,
                destroy: function(&library, "nvrtcDestroyProgram")?,
                error_string: function(&library, "nvrtcGetErrorString")?,
            }
        };
        type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        // SAFETY: as for `functions`.
        let version: Version = unsafe { function(&library, "nvrtcVersion") }?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to live integers.
        if unsafe { version(&mut major, &mut minor) } != SUCCESS {
            return Err("nvrtcVersion failed".into());
        }
        let architectures = architectures(&library);
        Ok(Nvrtc { functions, version: (major, minor), architectures, _library: library })
    }

    /// Compiles a source to a binary for one architecture, such as `sm_90`.
    pub(super) fn compile(
        &self,
        device: &DeviceId,
        architecture: &str,
        kernel: &str,
        source: &CudaCode,
    ) -> Result<Vec<u8>> {
        let known = |number: c_int| self.architectures.is_empty() || self.architectures.contains(&number);
        let number = architecture.strip_prefix("sm_").map(|number| number.trim_end_matches(['a', 'f']));
        let number = number.and_then(|number| number.parse().ok());
        if number.is_some_and(|number| !known(number)) {
            let known: Vec<_> = self.architectures.iter().map(|number| format!("sm_{number}")).collect();
            let detail = format!(
                "{self} supports {}, and not {architecture}: install another version, or name one in {VARIABLE}",
                known.join(", ")
            );
            return Err(Error::unsupported(device, format!("compiling kernel `{kernel}`"), detail));
        }
        let refuse = |log: String| Error::WillNotCompile {
            device: device.clone(),
            kernel: kernel.into(),
            body: BODY.into(),
            log,
        };
        let program = Compilation::new(self, kernel, source).map_err(refuse)?;
        program.run(architecture, source).map_err(refuse)
    }

    /// Returns the architecture to compile for on a card of an architecture such as `sm_90`: the one with all of the card's
    /// own instructions, `sm_90a`, if this library supports it.
    pub(super) fn architecture_for(&self, card: &str) -> String {
        let since = match card {
            "sm_90" => (12, 0),
            "sm_100" | "sm_120" => (12, 8),
            "sm_103" | "sm_121" => (12, 9),
            _ => return card.to_owned(),
        };
        if self.version >= since { format!("{card}a") } else { card.to_owned() }
    }

    fn text(&self, code: c_int) -> String {
        // SAFETY: the function takes any code, and returns a static string of the library or null.
        let text = unsafe { (self.functions.error_string)(code) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: it is a C string of the library, which is never unloaded.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == SUCCESS { Ok(()) } else { Err(format!("{self}: {}", self.text(code))) }
    }
}

/// Returns the library whose version suits a driver best, and the first of several equal ones.
///
/// A driver loads binaries of its own major version or an older one. The order of preference is: the newest of the driver's
/// major version that is not newer than the driver, the oldest newer one of that major version, the newest of an older major
/// version, the oldest of a newer major version. Without a driver the newest library is best.
fn best<L>(
    driver: Option<(c_int, c_int)>,
    found: impl Iterator<Item = L>,
    version: impl Fn(&L) -> (c_int, c_int),
) -> Option<L> {
    let rank = |library: &L| {
        let (major, minor) = version(library);
        match driver {
            None => (3, major, minor),
            Some(driver) if major == driver.0 && (major, minor) <= driver => (3, 0, minor),
            Some(driver) if major == driver.0 => (2, 0, -minor),
            Some(driver) if major < driver.0 => (1, major, minor),
            Some(_) => (0, -major, -minor),
        }
    };
    // `>` keeps the first of several equal ones.
    found.reduce(|best, next| if rank(&next) > rank(&best) { next } else { best })
}

/// The compiler options of every source. They are part of a cached file's name.
pub(super) fn options(architecture: &str) -> [String; 3] {
    [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-default-device".into()]
}

struct Compilation<'a> {
    nvrtc: &'a Nvrtc,
    raw: RawProgram,
}

impl<'a> Compilation<'a> {
    fn new(nvrtc: &'a Nvrtc, kernel: &str, source: &CudaCode) -> Result<Self, String> {
        let c_string = |text: &str, what: &str| {
            CString::new(text).map_err(|_| format!("the {what} contains a zero byte"))
        };
        let text = c_string(&source.text, "source")?;
        let name = c_string(&format!("{kernel}.cu"), "name")?;
        let header = |(name, text): &(String, Cow<'_, str>)| {
            Ok::<_, String>((c_string(text, "header")?, c_string(name, "header's name")?))
        };
        let headers = source.headers.iter().map(header).collect::<Result<Vec<_>, _>>()?;
        let texts: Vec<_> = headers.iter().map(|(text, _)| text.as_ptr()).collect();
        let names: Vec<_> = headers.iter().map(|(_, name)| name.as_ptr()).collect();
        let mut raw = std::ptr::null_mut();
        let create = nvrtc.functions.create;
        // SAFETY: all strings are C strings and are read before the call returns; `texts` and `names` have `count` elements.
        let code = unsafe {
            let count = headers.len() as c_int;
            create(&mut raw, text.as_ptr(), name.as_ptr(), count, texts.as_ptr(), names.as_ptr())
        };
        nvrtc.check(code)?;
        Ok(Compilation { nvrtc, raw })
    }

    fn run(&self, architecture: &str, source: &CudaCode) -> Result<Vec<u8>, String> {
        let options = options(architecture).into_iter().chain(source.options()).map(CString::new);
        let options: Vec<_> = options
            .collect::<Result<_, _>>()
            .map_err(|_| "a compiler option contains a zero byte".to_owned())?;
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let Functions { compile, cubin_size, cubin, .. } = self.nvrtc.functions;
        // SAFETY: the program is alive; the options are C strings and are read before the call returns.
        match unsafe { compile(self.raw, pointers.len() as c_int, pointers.as_ptr()) } {
            SUCCESS => {}
            COMPILATION_FAILED => return Err(self.log()),
            code => return Err(format!("{}: {}\n{}", self.nvrtc, self.nvrtc.text(code), self.log())),
        }
        let mut bytes = 0;
        // SAFETY: the program is alive; the pointer is to a live integer.
        self.nvrtc.check(unsafe { cubin_size(self.raw, &mut bytes) })?;
        let mut image = vec![0u8; bytes];
        // SAFETY: the image has the length that `cubin_size` returned.
        self.nvrtc.check(unsafe { cubin(self.raw, image.as_mut_ptr().cast()) })?;
        if image.is_empty() {
            return Err(format!("{}: the binary for {architecture} is empty", self.nvrtc));
        }
        Ok(image)
    }

    fn log(&self) -> String {
        let Functions { log_size, log, .. } = self.nvrtc.functions;
        let mut bytes = 0;
        // SAFETY: the program is alive; the pointer is to a live integer.
        if unsafe { log_size(self.raw, &mut bytes) } != SUCCESS || bytes == 0 {
            return String::new();
        }
        let mut text = vec![0u8; bytes];
        // SAFETY: the text has the length that `log_size` returned, which includes the final zero.
        if unsafe { log(self.raw, text.as_mut_ptr().cast()) } != SUCCESS {
            return String::new();
        }
        String::from_utf8_lossy(&text).trim_end_matches('\0').trim_end().to_owned()
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: this library created the program, and it is destroyed once.
        unsafe { (self.nvrtc.functions.destroy)(&mut self.raw) };
    }
}

/// Looks up a function of the library.
///
/// # Safety
/// `F` must be the type of a pointer to a function of the signature that the symbol has, and the library must
/// outlive the pointer.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller promises the symbol's type.
    unsafe { library.get::<F>(name) }.map(|symbol| *symbol).map_err(|_| format!("it has no function {name}"))
}

/// Returns the architectures that the library compiles for; empty if it is too old to report them.
fn architectures(library: &Library) -> Vec<c_int> {
    type Get = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: both functions have this signature in NVRTC's header.
    let found = unsafe {
        (function(library, "nvrtcGetNumSupportedArchs"), function(library, "nvrtcGetSupportedArchs"))
    };
    let (Ok::<Get, _>(number), Ok::<Get, _>(list)) = found else { return Vec::new() };
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    if unsafe { number(&mut count) } != SUCCESS || count <= 0 {
        return Vec::new();
    }
    let mut all = vec![0; count as usize];
    // SAFETY: the list has the length that the library returned.
    if unsafe { list(all.as_mut_ptr()) } == SUCCESS { all } else { Vec::new() }
}

/// Compiles CUDA C to a binary for an architecture such as `sm_90`. No card is needed.
///
/// Fails with `WillNotCompile` and the compiler's log if the source is wrong, and with `Unsupported` if there is no NVRTC
/// library or it does not support the architecture.
pub fn compile_for(architecture: &str, kernel: &str, source: &str) -> Result<Vec<u8>> {
    let device = DeviceId::from("cuda");
    match Nvrtc::get() {
        Ok(nvrtc) => nvrtc.compile(&device, architecture, kernel, &CudaCode::plain(source.to_owned())),
        Err(why) => Err(Error::unsupported(&device, format!("compiling kernel `{kernel}`"), why)),
    }
}

/// Compiles a kernel's CUDA C as [`compile_for`] does, with the constants, headers and options of its module. Fails with
/// `Unsupported` also if the kernel has no CUDA C.
pub fn compile_kernel(architecture: &str, kernel: &Kernel) -> Result<Vec<u8>> {
    let (device, name) = (DeviceId::from("cuda"), kernel.name());
    let refuse = |why: &str| Error::unsupported(&device, format!("compiling kernel `{name}`"), why);
    let source = kernel
        .cuda
        .as_deref()
        .ok_or_else(|| refuse("the kernel has no CUDA C body: add one with `Kernel::cuda`"))?;
    Nvrtc::get().map_err(refuse)?.compile(&device, architecture, name, source)
}

#[cfg(test)]
mod test {
    use super::best;

    /// The index of the best of these versions.
    fn best_index(driver: Option<(i32, i32)>, versions: &[(i32, i32)]) -> usize {
        best(driver, 0..versions.len(), |index| versions[*index]).unwrap()
    }

    #[test]
    fn the_library_of_the_drivers_own_version_is_preferred_wherever_it_is_found() {
        let driver = Some((12, 4));
        assert_eq!(best_index(driver, &[(11, 8), (12, 4)]), 1, "an older toolkit may be found first");
        assert_eq!(best_index(driver, &[(13, 0), (11, 8), (12, 1), (12, 4)]), 3);
        assert_eq!(
            best_index(driver, &[(12, 1), (12, 4), (12, 6)]),
            1,
            "the newest that is not above the driver"
        );
        assert_eq!(best_index(driver, &[(12, 9), (12, 6)]), 1, "else the nearest above it");
        assert_eq!(best_index(driver, &[(13, 0), (11, 2), (11, 8)]), 2, "else the newest of an older one");
        assert_eq!(best_index(driver, &[(14, 0), (13, 1), (13, 0)]), 2, "else the oldest of a newer one");
        assert_eq!(best_index(driver, &[(12, 4), (12, 4)]), 0, "the first of those that are alike");
        assert_eq!(best_index(None, &[(12, 4), (13, 0), (11, 8)]), 1);
        assert_eq!(best(driver, [].into_iter(), |version| *version), None);
    }
}

#[cfg(test)]
mod with_nvrtc {
    use super::*;
    use crate::module::Module;

    const GOOD: &str = "extern \"C\" __global__ void twice(unsigned *out) { out[threadIdx.x] *= 2; }";

    #[test]
    #[ignore = "needs NVRTC"]
    fn a_kernel_compiles_to_a_binary_without_a_card() {
        let nvrtc = Nvrtc::get().unwrap();
        println!("{nvrtc} for {:?}", nvrtc.architectures);
        let image = compile_for("sm_90", "twice", GOOD).unwrap();
        assert_eq!(&image[..4], b"\x7fELF");
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn a_wrong_kernel_is_refused_with_its_name_and_line() {
        let source = "extern \"C\" __global__ void twice(unsigned *out) {\n  out[0] = nonsense;\n}";
        let error = compile_for("sm_90", "twice", source).unwrap_err();
        let Error::WillNotCompile { kernel, body, log, .. } = &error else { panic!("{error}") };
        assert_eq!((kernel.as_str(), body.as_str()), ("twice", "CUDA C"));
        assert!(log.contains("twice.cu(2)") && log.contains("nonsense"), "{log}");
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn an_architecture_that_the_library_does_not_support_is_named() {
        let nvrtc = Nvrtc::get().unwrap();
        assert!(!nvrtc.architectures.is_empty(), "every library since CUDA 11 reports its architectures");
        let error = compile_for("sm_999", "twice", GOOD).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { detail, .. } if detail.contains("sm_999")), "{error}");
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn a_card_gets_the_architecture_with_all_of_its_instructions() {
        let nvrtc = Nvrtc::get().unwrap();
        assert_eq!(nvrtc.architecture_for("sm_75"), "sm_75");
        let own = nvrtc.architecture_for("sm_90");
        assert_eq!(own, if nvrtc.version >= (12, 0) { "sm_90a" } else { "sm_90" });
        // NVRTC defines this macro for sm_90a only.
        let source = "#ifndef __CUDA_ARCH_FEAT_SM90_ALL\n#error not all\n#endif\n".to_owned() + GOOD;
        assert_eq!(compile_for(&own, "twice", &source).is_ok(), own == "sm_90a");
        assert!(compile_for("sm_90", "twice", &source).is_err());
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn a_module_is_compiled_with_its_constants_headers_and_options() {
        let source = r#"#include "sizes.h"
            static_assert(WIDTH == 32 && LENGTH == 7 && HALF == 0.5, "");
            #ifndef __USE_FAST_MATH__
            #error not fast
            #endif
            extern "C" __global__ void one(TYPE *out) { out[0] = WIDTH; }
            extern "C" __global__ void two(TYPE *out) { out[0] = LENGTH; }"#;
        let module = Module::new()
            .constant("WIDTH", 32)
            .constant("HALF", 0.5)
            .define("TYPE", "unsigned long long")
            .include("sizes.h", "#define LENGTH 7\n")
            .option("--use_fast_math");
        // SAFETY: it is never launched.
        let module = unsafe { module.cuda(source) };
        for entry in ["one", "two"] {
            let image = compile_kernel("sm_90", &module.kernel(entry)).unwrap();
            assert_eq!(&image[..4], b"\x7fELF");
        }
        let other = compile_kernel("sm_90", &module.constant("WIDTH", 64).kernel("one")).unwrap_err();
        assert!(matches!(other, Error::WillNotCompile { .. }), "{other}");
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn a_zero_byte_is_an_error_and_not_the_end_of_the_source() {
        assert!(matches!(compile_for("sm_90", "twice", "\0"), Err(Error::WillNotCompile { .. })));
    }
}
