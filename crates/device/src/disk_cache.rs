//! Files that Evener keeps between runs: compiled kernels and measured rates.
//!
//! The cache is optional: if its folder is not available, results are computed again. Files are written atomically, so
//! that two processes cannot corrupt each other's.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Once,
};

use directories::ProjectDirs;

/// The environment variable that names the cache folder. The default is the user's cache folder.
pub const CACHE_VARIABLE: &str = "EVENER_CACHE_DIR";

/// Returns the cache folder, if the system has one.
pub fn folder() -> Option<PathBuf> {
    match std::env::var_os(CACHE_VARIABLE) {
        Some(folder) if !folder.is_empty() => Some(folder.into()),
        _ => ProjectDirs::from("", "", "evener").map(|dirs| dirs.cache_dir().to_owned()),
    }
}

/// Writes a file atomically: readers see the old or the new contents, never a part, and concurrent writers do not
/// interfere. Creates the folder. Fails if the folder or the file cannot be written.
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

/// Creates a folder and its parents, writable by this user only. An existing folder is not changed.
pub(crate) fn create_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Fails if another user owns a folder or may write to it. A folder that does not exist is accepted.
#[cfg(unix)]
pub(crate) fn check_private(folder: &Path) -> std::io::Result<()> {
    use std::{io::Error, os::unix::fs::MetadataExt, sync::OnceLock};

    /// The user id of files that this process creates.
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

/// On other systems the folders of a user are private.
#[cfg(not(unix))]
pub(crate) fn check_private(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// A file of the disk cache. Its name is a hash of its inputs, and it ends in a checksum that is keyed with the same
/// hash.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CacheFile {
    pub(crate) path: PathBuf,
    /// The hash of all inputs.
    pub(crate) key: [u8; blake3::KEY_LEN],
}

impl CacheFile {
    /// Returns a file in a subfolder of the cache folder, if the system has one.
    pub(crate) fn new(subfolder: &str, file: &str, key: [u8; blake3::KEY_LEN]) -> Option<Self> {
        Some(CacheFile { path: folder()?.join(subfolder).join(file), key })
    }

    /// Reads the image, if the file exists, is intact and was written for this key, and other users cannot write to the
    /// folder.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        self.check_folder().inspect_err(|why| warn_once(&self.path, why)).ok()?;
        let mut contents = std::fs::read(&self.path).ok()?;
        let end = contents.len().checked_sub(blake3::OUT_LEN).filter(|&end| end > 0)?;
        let checksum: [u8; blake3::OUT_LEN] = contents[end..].try_into().ok()?;
        // The checksum follows the image, so that the image keeps the alignment of the allocation.
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

    /// Fails if another user may have put files into the folder. A folder that does not exist is accepted.
    fn check_folder(&self) -> std::io::Result<()> {
        self.path.parent().map_or(Ok(()), check_private)
    }
}

fn warn_once(path: &Path, why: &std::io::Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| tracing::warn!("{}: compiled kernels are not cached: {why}", path.display()));
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_file_is_replaced_atomically_and_no_temporary_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/file");
        write_atomically(&path, b"first, and longer").unwrap();
        write_atomically(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    fn cache_file(folder: &Path, name: &str, key: u8) -> CacheFile {
        CacheFile { path: folder.join("cubin").join(name), key: [key; blake3::KEY_LEN] }
    }

    #[test]
    fn an_image_is_read_back_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = cache_file(folder.path(), "one", 1);
        assert_eq!(file.read(), None, "not there");
        let image: Vec<u8> = (0..=255).collect();
        file.write(&image).unwrap();
        assert_eq!(file.read().as_deref(), Some(&*image));
        let whole = std::fs::read(&file.path).unwrap();
        for length in [0, 1, 31, 32, 33, whole.len() - 1] {
            std::fs::write(&file.path, &whole[..length]).unwrap();
            assert_eq!(file.read(), None, "cut to {length} bytes");
        }
        for at in [0, 100, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&file.path, changed).unwrap();
            assert_eq!(file.read(), None, "changed at {at}");
        }
        file.write(&image).unwrap();
        assert_eq!(file.read().as_deref(), Some(&*image), "and is written again");
    }

    #[test]
    fn an_image_of_another_source_is_not_taken_for_this_ones() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (cache_file(folder.path(), "one", 1), cache_file(folder.path(), "other", 2));
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
        let file = cache_file(folder.path(), "one", 1);
        file.write(b"image").unwrap();
        let parent = file.path.parent().unwrap();
        let mode = || std::fs::metadata(parent).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o700, "made for this user alone");
        for mode in [0o777, 0o770, 0o702] {
            std::fs::set_permissions(parent, Permissions::from_mode(mode)).unwrap();
            assert_eq!(file.read(), None, "{mode:o}");
            assert!(file.write(b"image").is_err(), "{mode:o}");
        }
        std::fs::set_permissions(parent, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(file.read().as_deref(), Some(&b"image"[..]));
    }
}

/// Tests that change the owner of a folder, which only root may. They are ignored by default.
#[cfg(all(test, unix))]
mod with_root {
    use std::os::unix::fs::{MetadataExt, chown};

    use super::*;

    #[test]
    #[ignore = "needs root"]
    fn a_folder_that_belongs_to_another_user_is_neither_read_nor_written() {
        const OTHER_USER: u32 = 65_534;
        let folder = tempfile::tempdir().unwrap();
        let file = CacheFile { path: folder.path().join("cubin/one"), key: [1; blake3::KEY_LEN] };
        file.write(b"image").unwrap();
        let parent = file.path.parent().unwrap();
        let own = std::fs::metadata(parent).unwrap().uid();
        assert_ne!(own, OTHER_USER);
        chown(parent, Some(OTHER_USER), None).unwrap();
        assert_eq!(file.read(), None);
        let error = file.write(b"image").unwrap_err().to_string();
        assert!(error.ends_with("belongs to another user"), "{error}");
        chown(parent, Some(own), None).unwrap();
        assert_eq!(file.read().as_deref(), Some(&b"image"[..]));
    }
}
