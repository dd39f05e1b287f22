//! Compiled kernels on disk, so that a kernel is compiled once on a machine and not once a run.
//!
//! A file is named by what went into it (source and options), the architecture and the compiler's version, and ends in a
//! checksum of itself that is keyed with all of these: one that is damaged, or that was compiled from something else and
//! renamed, is compiled again, as is one that the driver refuses.
//!
//! A checksum is no defence against somebody who may write to the folder, and what is in these files runs on the card. So
//! a folder that belongs to another user, or that others may write to, is neither read nor written.

use std::{
    path::{Path, PathBuf},
    sync::Once,
};

use super::nvrtc::{self, Nvrtc};
use crate::{cache, describe::DeviceId, error::Result, module::CudaSource};

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
    let cached = Place::of(nvrtc, architecture, source).and_then(|place| place.read());
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
    if let Some(place) = Place::of(nvrtc, architecture, source)
        && let Err(why) = place.write(&bytes)
    {
        tracing::debug!("{}: compiled kernels are not kept: {why}", place.path.display());
    }
    Ok(Image { bytes, cached: false })
}

/// Where the binary for a source is kept.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    /// A hash of all that went into the binary.
    key: [u8; blake3::KEY_LEN],
}

impl Place {
    /// Nothing where there is no such place, or what goes into the binary is not known.
    fn of(nvrtc: &Nvrtc, architecture: &str, source: &CudaSource) -> Option<Self> {
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
        Some(Place { path: cache::folder()?.join("cubin").join(file), key: *key.as_bytes() })
    }

    /// The image in the file, if there is one, it is whole, it is for this key, and nobody else may have written it.
    fn read(&self) -> Option<Vec<u8>> {
        self.check_folder().inspect_err(|why| warn_once(&self.path, why)).ok()?;
        let mut contents = std::fs::read(&self.path).ok()?;
        let end = contents.len().checked_sub(blake3::OUT_LEN).filter(|&end| end > 0)?;
        let checksum: [u8; blake3::OUT_LEN] = contents[end..].try_into().ok()?;
        // The checksum follows the image, so that the image begins where the allocation does: aligned.
        contents.truncate(end);
        (blake3::keyed_hash(&self.key, &contents) == checksum).then_some(contents)
    }

    fn write(&self, image: &[u8]) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            cache::create_private(folder)?;
        }
        self.check_folder()?;
        cache::write(&self.path, &[image, blake3::keyed_hash(&self.key, image).as_bytes()].concat())
    }

    /// Fails where another user may have put files into the folder. One that is not there yet will do.
    fn check_folder(&self) -> std::io::Result<()> {
        self.path.parent().map_or(Ok(()), cache::check_private)
    }
}

fn warn_once(path: &Path, why: &std::io::Error) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| tracing::warn!("{}: compiled kernels are not kept: {why}", path.display()));
}

#[cfg(test)]
mod test {
    use super::*;

    fn place(folder: &Path, name: &str, key: u8) -> Place {
        Place { path: folder.join("cubin").join(name), key: [key; blake3::KEY_LEN] }
    }

    #[test]
    fn an_image_is_read_back_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path(), "one", 1);
        assert_eq!(place.read(), None, "not there");
        let image: Vec<u8> = (0..=255).collect();
        place.write(&image).unwrap();
        assert_eq!(place.read().as_deref(), Some(&*image));
        let whole = std::fs::read(&place.path).unwrap();
        for length in [0, 1, 31, 32, 33, whole.len() - 1] {
            std::fs::write(&place.path, &whole[..length]).unwrap();
            assert_eq!(place.read(), None, "cut to {length} bytes");
        }
        for at in [0, 100, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&place.path, changed).unwrap();
            assert_eq!(place.read(), None, "changed at {at}");
        }
        place.write(&image).unwrap();
        assert_eq!(place.read().as_deref(), Some(&*image), "and is written again");
    }

    #[test]
    fn an_image_of_another_source_is_not_taken_for_this_ones() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (place(folder.path(), "one", 1), place(folder.path(), "other", 2));
        one.write(b"image").unwrap();
        std::fs::copy(&one.path, &other.path).unwrap();
        assert_eq!(other.read(), None);
        assert_eq!(one.read().as_deref(), Some(&b"image"[..]));
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_may_write_to_is_neither_read_nor_written() {
        use std::{fs::Permissions, os::unix::fs::PermissionsExt};

        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path(), "one", 1);
        place.write(b"image").unwrap();
        let parent = place.path.parent().unwrap();
        let mode = || std::fs::metadata(parent).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o700, "made for this user alone");
        for mode in [0o777, 0o770, 0o702] {
            std::fs::set_permissions(parent, Permissions::from_mode(mode)).unwrap();
            assert_eq!(place.read(), None, "{mode:o}");
            assert!(place.write(b"image").is_err(), "{mode:o}");
        }
        std::fs::set_permissions(parent, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(place.read().as_deref(), Some(&b"image"[..]));
    }
}

#[cfg(test)]
mod with_nvrtc {
    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_name_of_a_file_depends_on_all_that_went_into_it() {
        let nvrtc = Nvrtc::get().unwrap();
        let source = CudaSource::plain;
        let first = Place::of(nvrtc, "sm_90", &source("a")).unwrap();
        for (architecture, text) in [("sm_90", "b"), ("sm_80", "a"), ("sm_90a", "a")] {
            let other = Place::of(nvrtc, architecture, &source(text)).unwrap();
            assert!(other.path != first.path && other.key != first.key);
        }
        assert_eq!(Place::of(nvrtc, "sm_90", &source("a")).unwrap(), first);
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
        let path = Place::of(nvrtc, "sm_90", &source).unwrap().path;
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
