//! Files that Evener keeps between runs: compiled kernels and measured rates.
//!
//! A cache is a convenience: when its folder cannot be had, read or written, the answer is computed again.
//! Files are written whole or not at all, so that two processes cannot spoil each other's.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Once,
};

use directories::ProjectDirs;

/// The variable that names the cache folder; the user's own cache folder serves where it is not set.
pub const CACHE_VARIABLE: &str = "EVENER_CACHE_DIR";

/// The cache folder, where the system has one.
pub fn folder() -> Option<PathBuf> {
    match std::env::var_os(CACHE_VARIABLE) {
        Some(folder) if !folder.is_empty() => Some(folder.into()),
        _ => ProjectDirs::from("", "", "evener").map(|dirs| dirs.cache_dir().to_owned()),
    }
}

/// Writes a file whole or not at all: nobody ever sees a part of it, and two that write do not spoil each other's.
/// Makes the folder. Fails where that, or the file, cannot be written.
pub fn write_atomically(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(contents)?;
    file.persist(path)?;
    Ok(())
}

/// Makes a folder, and those above it, that other users may not write to. One that is there stays as it is.
pub(crate) fn create_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Fails where another user owns a folder or may write to it. One that does not exist is nobody's.
#[cfg(unix)]
pub(crate) fn check_private(folder: &Path) -> std::io::Result<()> {
    use std::{io::Error, os::unix::fs::MetadataExt, sync::OnceLock};

    /// The user that this process creates files as.
    static USER: OnceLock<Option<u32>> = OnceLock::new();
    let user = *USER.get_or_init(|| Some(tempfile::tempfile().ok()?.metadata().ok()?.uid()));
    let found = match std::fs::metadata(folder) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if Some(found.uid()) != user {
        return Err(Error::other(format!("{} belongs to another user", folder.display())));
    }
    if found.mode() & 0o022 != 0 {
        let mode = found.mode() & 0o777;
        return Err(Error::other(format!("other users may write to {} (mode {mode:o})", folder.display())));
    }
    Ok(())
}

/// The folders of a user are private on other systems.
#[cfg(not(unix))]
pub(crate) fn check_private(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Where something that was compiled is kept: the file is named by what went into it, and ends in a checksum that is keyed
/// with all of that.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CacheFile {
    pub(crate) path: PathBuf,
    /// A hash of all that went into it.
    pub(crate) key: [u8; blake3::KEY_LEN],
}

impl CacheFile {
    /// A file in a part of the cache folder, where the system has one.
    pub(crate) fn new(part: &str, file: &str, key: [u8; blake3::KEY_LEN]) -> Option<Self> {
        Some(CacheFile { path: folder()?.join(part).join(file), key })
    }

    /// The image in the file, if there is one, it is whole, it is for this key, and nobody else may have written it.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        self.check_folder().inspect_err(|why| warn_once(&self.path, why)).ok()?;
        let mut contents = std::fs::read(&self.path).ok()?;
        let end = contents.len().checked_sub(blake3::OUT_LEN).filter(|&end| end > 0)?;
        let checksum: [u8; blake3::OUT_LEN] = contents[end..].try_into().ok()?;
        // The checksum follows the image, so that the image begins where the allocation does: aligned.
        contents.truncate(end);
        (blake3::keyed_hash(&self.key, &contents) == checksum).then_some(contents)
    }

    pub(crate) fn write(&self, image: &[u8]) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            create_private(folder)?;
        }
        self.check_folder()?;
        write_atomically(&self.path, &[image, blake3::keyed_hash(&self.key, image).as_bytes()].concat())
    }

    /// Fails where another user may have put files into the folder. One that is not there yet will do.
    fn check_folder(&self) -> std::io::Result<()> {
        self.path.parent().map_or(Ok(()), check_private)
    }
}

fn warn_once(path: &Path, why: &std::io::Error) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| tracing::warn!("{}: compiled kernels are not kept: {why}", path.display()));
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/file");
        write_atomically(&path, b"first, and longer").unwrap();
        write_atomically(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    fn place(folder: &Path, name: &str, key: u8) -> CacheFile {
        CacheFile { path: folder.join("cubin").join(name), key: [key; blake3::KEY_LEN] }
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
