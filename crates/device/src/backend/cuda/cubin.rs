//! Compiled kernels on disk, so that a kernel is compiled once on a machine and not once a run.
//!
//! A file is named by what went into it (source and options), the architecture and the compiler's version, and ends in a
//! checksum of itself that is keyed with all of these: one that is damaged, or that was compiled from something else and
//! renamed, is compiled again, as is one that the driver refuses.
//!
//! A checksum is no defence against somebody who may write to the folder, and what is in these files runs on the card. So
//! a folder that belongs to another user, or that others may write to, is neither read nor written.

use super::nvrtc::{self, Nvrtc};
use crate::{describe::DeviceId, disk_cache::CacheFile, error::Result, module::CudaSource};

/// A compiled source.
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    /// It was on disk, and so may be stale in a way that the checksum does not show.
    pub(super) cached: bool,
}

/// The binary for a source: from disk where it is there, compiled where it is not.
pub(super) fn obtain(
    nvrtc: &Nvrtc,
    device: &DeviceId,
    architecture: &str,
    kernel: &str,
    source: &CudaSource,
) -> Result<Image> {
    let cached = place(nvrtc, architecture, source).and_then(|place| place.read());
    match cached {
        Some(bytes) => Ok(Image { bytes, cached: true }),
        None => compile(nvrtc, device, architecture, kernel, source),
    }
}

/// The binary for a source, compiled now, and written to disk.
pub(super) fn compile(
    nvrtc: &Nvrtc,
    device: &DeviceId,
    architecture: &str,
    kernel: &str,
    source: &CudaSource,
) -> Result<Image> {
    let bytes = nvrtc.compile(device, architecture, kernel, source)?;
    if let Some(place) = place(nvrtc, architecture, source)
        && let Err(why) = place.write(&bytes)
    {
        tracing::debug!("{}: compiled kernels are not kept: {why}", place.path.display());
    }
    Ok(Image { bytes, cached: false })
}

/// Where the binary for a source is kept. Nothing where there is no such place, or what goes into the binary is not known.
fn place(nvrtc: &Nvrtc, architecture: &str, source: &CudaSource) -> Option<CacheFile> {
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
    fn the_name_of_a_file_depends_on_all_that_went_into_it() {
        let nvrtc = Nvrtc::get().unwrap();
        let source = CudaSource::plain;
        let first = place(nvrtc, "sm_90", &source("a")).unwrap();
        for (architecture, text) in [("sm_90", "b"), ("sm_80", "a"), ("sm_90a", "a")] {
            let other = place(nvrtc, architecture, &source(text)).unwrap();
            assert!(other.path != first.path && other.key != first.key);
        }
        assert_eq!(place(nvrtc, "sm_90", &source("a")).unwrap(), first);
        let name = first.path.file_name().unwrap().to_str().unwrap();
        assert!(name.ends_with(&format!("-sm_90-nvrtc{}.cubin", nvrtc.version_text())), "{name}");
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn a_damaged_file_is_compiled_again_and_repaired() {
        let nvrtc = Nvrtc::get().unwrap();
        let source = CudaSource::plain(format!(
            "extern \"C\" __global__ void one(unsigned *out) {{ *out = {}u; }}",
            std::process::id()
        ));
        let path = place(nvrtc, "sm_90", &source).unwrap().path;
        let obtain = || obtain(nvrtc, &DeviceId::from("cuda"), "sm_90", "one", &source).unwrap();
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
