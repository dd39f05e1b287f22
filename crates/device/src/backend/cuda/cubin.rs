//! Compiled kernels on disk, so that a kernel is compiled once on a machine and not once a run.
//!
//! A file is named by what went into it (source and options), the architecture and the compiler's version, and
//! ends in a checksum of itself. One that is damaged, or that the driver refuses, is compiled again.

use std::path::{Path, PathBuf};

use super::nvrtc::{self, Nvrtc};
use crate::{cache, describe::DeviceId, error::Result};

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
    source: &str,
) -> Result<Image> {
    let cached = path(nvrtc, architecture, source).and_then(|path| read(&path));
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
    source: &str,
) -> Result<Image> {
    let bytes = nvrtc.compile(device, architecture, kernel, source)?;
    if let Some(path) = path(nvrtc, architecture, source)
        && let Err(why) = write(&path, &bytes)
    {
        tracing::debug!("{}: compiled kernels are not kept: {why}", path.display());
    }
    Ok(Image { bytes, cached: false })
}

fn path(nvrtc: &Nvrtc, architecture: &str, source: &str) -> Option<PathBuf> {
    let mut hasher = blake3::Hasher::new();
    for option in nvrtc::options(architecture) {
        hasher.update(option.as_bytes()).update(b"\0");
    }
    let key = hasher.update(source.as_bytes()).finalize().to_hex();
    let file = format!("{key}-{architecture}-nvrtc{}.cubin", nvrtc.version_text());
    Some(cache::folder()?.join("cubin").join(file))
}

/// The image in a file, if there is one and it is whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut contents = std::fs::read(path).ok()?;
    let end = contents.len().checked_sub(blake3::OUT_LEN).filter(|&end| end > 0)?;
    let checksum: [u8; blake3::OUT_LEN] = contents[end..].try_into().ok()?;
    // The checksum follows the image, so that the image begins where the allocation does: aligned.
    contents.truncate(end);
    (blake3::hash(&contents) == checksum).then_some(contents)
}

fn write(path: &Path, image: &[u8]) -> std::io::Result<()> {
    cache::write(path, &[image, blake3::hash(image).as_bytes()].concat())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_image_is_read_back_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cubin/one");
        assert_eq!(read(&path), None, "not there");
        let image: Vec<u8> = (0..=255).collect();
        write(&path, &image).unwrap();
        assert_eq!(read(&path).as_deref(), Some(&*image));
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 1, 31, 32, 33, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(read(&path), None, "cut to {length} bytes");
        }
        for place in [0, 100, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            std::fs::write(&path, changed).unwrap();
            assert_eq!(read(&path), None, "changed at {place}");
        }
        write(&path, &image).unwrap();
        assert_eq!(read(&path).as_deref(), Some(&*image), "and is written again");
    }
}

#[cfg(test)]
mod with_nvrtc {
    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_name_of_a_file_depends_on_all_that_went_into_it() {
        let nvrtc = Nvrtc::get().unwrap();
        let first = path(nvrtc, "sm_90", "a").unwrap();
        assert_ne!(path(nvrtc, "sm_90", "b").unwrap(), first);
        assert_ne!(path(nvrtc, "sm_80", "a").unwrap(), first);
        assert_eq!(path(nvrtc, "sm_90", "a").unwrap(), first);
        let name = first.file_name().unwrap().to_str().unwrap();
        assert!(name.ends_with(&format!("-sm_90-nvrtc{}.cubin", nvrtc.version_text())), "{name}");
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn a_damaged_file_is_compiled_again_and_repaired() {
        let nvrtc = Nvrtc::get().unwrap();
        let source =
            format!("extern \"C\" __global__ void one(unsigned *out) {{ *out = {}u; }}", std::process::id());
        let path = path(nvrtc, "sm_90", &source).unwrap();
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
