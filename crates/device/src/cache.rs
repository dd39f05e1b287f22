//! Files that Evener keeps between runs: compiled kernels and measured rates.
//!
//! A cache is a convenience: when its folder cannot be had, read or written, the answer is computed again.
//! Files are written whole or not at all, so that two processes cannot spoil each other's.

use std::{
    io::Write,
    path::{Path, PathBuf},
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
pub fn write(path: &Path, contents: &[u8]) -> std::io::Result<()> {
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/file");
        write(&path, b"first, and longer").unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
