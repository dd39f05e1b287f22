//! The disk cache of compiled kernels: each kernel is compiled once per machine, not once per run.
//!
//! A file's name is a hash of the source, the options, the architecture and the compiler's version. The file ends in a
//! checksum that is keyed with the same hash. A file that is damaged, was compiled from another source, or is refused by the
//! driver is compiled again.
//!
//! A checksum does not protect against another user who can write to the folder, and the files contain code that runs on the
//! card. A folder that belongs to another user, or that other users may write to, is therefore neither read nor written.

use super::nvrtc::{self, Nvrtc};
use crate::{describe::DeviceId, disk_cache::CacheFile, error::Result, module::CudaCode};

pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    /// Whether it was read from disk. The driver may refuse it although its checksum is right.
    pub(super) cached: bool,
}

/// A source, and what it is compiled with and for.
pub(super) struct Compilation<'a> {
    pub(super) nvrtc: &'a Nvrtc,
    pub(super) device: &'a DeviceId,
    pub(super) architecture: &'a str,
    pub(super) kernel: &'a str,
    pub(super) source: &'a CudaCode,
}

impl Compilation<'_> {
    /// Reads the binary from disk, or compiles the source.
    pub(super) fn read_or_compile(&self) -> Result<Image> {
        let cached = cache_file(self.nvrtc, self.architecture, self.source).and_then(|file| file.read());
        match cached {
            Some(bytes) => Ok(Image { bytes, cached: true }),
            None => self.compile(),
        }
    }

    /// Compiles the source, and caches the binary.
    pub(super) fn compile(&self) -> Result<Image> {
        let Compilation { nvrtc, device, architecture, kernel, source } = self;
        let bytes = nvrtc.compile(device, architecture, kernel, source)?;
        if let Some(file) = cache_file(nvrtc, architecture, source)
            && let Err(why) = file.write(&bytes)
        {
            tracing::debug!("{}: cannot cache a compiled kernel: {why}", file.path.display());
        }
        Ok(Image { bytes, cached: false })
    }
}

/// Returns the cache file of a source. `None` if there is no cache folder, or if the source includes files from outside.
fn cache_file(nvrtc: &Nvrtc, architecture: &str, source: &CudaCode) -> Option<CacheFile> {
    if !source.is_self_contained() {
        return None;
    }
    let version = nvrtc.version_text();
    let mut hasher = blake3::Hasher::new();
    for part in nvrtc::options(architecture).iter().map(String::as_str).chain([architecture, &version]) {
        hasher.update(part.as_bytes()).update(b"\0");
    }
    source.hash(&mut hasher);
    let key = hasher.finalize();
    let file = format!("{}-{architecture}-nvrtc{version}.cubin", key.to_hex());
    CacheFile::new("cubin", &file, *key.as_bytes())
}

#[cfg(test)]
mod with_nvrtc {
    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_name_of_a_file_depends_on_everything_that_it_was_compiled_from() {
        let nvrtc = Nvrtc::get().unwrap();
        let source = CudaCode::plain;
        let first = cache_file(nvrtc, "sm_90", &source("a")).unwrap();
        for (architecture, text) in [("sm_90", "b"), ("sm_80", "a"), ("sm_90a", "a")] {
            let other = cache_file(nvrtc, architecture, &source(text)).unwrap();
            assert!(other.path != first.path && other.key != first.key);
        }
        assert_eq!(cache_file(nvrtc, "sm_90", &source("a")).unwrap(), first);
        let name = first.path.file_name().unwrap().to_str().unwrap();
        assert!(name.ends_with(&format!("-sm_90-nvrtc{}.cubin", nvrtc.version_text())), "{name}");
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn a_damaged_file_is_compiled_again_and_repaired() {
        let nvrtc = Nvrtc::get().unwrap();
        let source = CudaCode::plain(format!(
            "extern \"C\" __global__ void one(unsigned *out) {{ *out = {}u; }}",
            std::process::id()
        ));
        let path = cache_file(nvrtc, "sm_90", &source).unwrap().path;
        let device = DeviceId::from("cuda");
        let compilation =
            Compilation { nvrtc, device: &device, architecture: "sm_90", kernel: "one", source: &source };
        let obtain = || compilation.read_or_compile().unwrap();
        let first = obtain();
        assert!(!first.cached);
        assert!(obtain().cached);
        std::fs::write(&path, b"damaged").unwrap();
        let again = obtain();
        assert!(!again.cached);
        assert_eq!(again.bytes, first.bytes);
        assert!(obtain().cached, "and the file is whole again");
        std::fs::remove_file(path).unwrap();
    }
}
