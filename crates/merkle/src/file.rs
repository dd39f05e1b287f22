//! Leaves in a file.
//!
//! Leaves are read with positioned reads, not mapped into memory. If another program truncates a mapped file, an access
//! past the new end kills the process, and the process cannot prevent that on every system; a read returns an error. Reads
//! are not slower here: a device copies from its own pinned memory, which a read fills directly, whereas the CPU would
//! copy a mapped file there page fault by page fault; and a core reads a piece into its cache just before it hashes it.

use std::{
    fs::{File, Metadata},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use crate::error::{Error, Result};

/// An open file of leaves, which any thread can read at any offset. A change of its size or modification time between
/// opening and the end of a build is an error.
///
/// ```
/// use evener_merkle::LeafFile;
///
/// let path = std::env::temp_dir().join("evener-leaf-file-example");
/// std::fs::write(&path, [0; 64])?;
/// let file = LeafFile::open(&path)?;
/// assert_eq!(file.bytes(), 64);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LeafFile {
    path: PathBuf,
    file: File,
    /// The number of bytes that belong to leaves.
    bytes: u64,
    /// The size of the file when it was opened.
    size: u64,
    modified: Option<SystemTime>,
    /// The first error of a read.
    failure: Mutex<Option<String>>,
}

impl LeafFile {
    /// Opens a file. Fails if it cannot be read, or is not a regular file, such as a pipe (see
    /// [`Builder::root_from_reader`](crate::Builder::root_from_reader)).
    pub fn open(path: impl AsRef<Path>) -> Result<LeafFile> {
        let path = path.as_ref();
        let failed = |error| Error::io(path, "cannot be opened", error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::file(path, "is not a regular file: read it as a stream"));
        }
        let modified = metadata.modified().ok();
        let size = metadata.len();
        Ok(LeafFile { path: path.into(), file, bytes: size, size, modified, failure: Mutex::default() })
    }

    /// Reads the bytes after the last whole leaf and removes them from the leaves of this file. Fails if they cannot be
    /// read, or the leaf size is 0.
    ///
    /// ```
    /// use evener_merkle::{LeafFile, Leaves};
    ///
    /// let path = std::env::temp_dir().join("evener-uneven-file-example");
    /// std::fs::write(&path, [7; 70])?;
    /// let mut file = LeafFile::open(&path)?;
    /// assert_eq!(file.split_off_partial_leaf(32)?, [7; 6]);
    /// assert_eq!(Leaves::file(file, 32)?.count(), 2);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split_off_partial_leaf(&mut self, leaf_bytes: usize) -> Result<Vec<u8>> {
        let whole = self.bytes.checked_div(leaf_bytes as u64).map(|leaves| leaves * leaf_bytes as u64);
        let whole = whole.ok_or_else(|| Error::file(&self.path, "a leaf has at least one byte"))?;
        let mut rest = Vec::new();
        let wanted = (self.bytes - whole) as usize;
        rest.try_reserve_exact(wanted).map_err(|_| {
            Error::file(&self.path, format!("there is no memory for its last {wanted} bytes"))
        })?;
        rest.resize(wanted, 0);
        self.read(whole, &mut rest).map_err(|detail| self.failed(detail))?;
        self.bytes = whole;
        Ok(rest)
    }

    /// Returns the number of bytes that belong to leaves.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads bytes at an offset. The first error is kept, so that [`LeafFile::failure`] can return it to the thread that
    /// started the run.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), String> {
        let wanted = bytes.len();
        self.read_exactly(at, bytes).map_err(|error| {
            let detail = match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    let now = self.file.metadata().map(|now| now.len()).unwrap_or_default();
                    let had = self.size;
                    format!("was cut short while it was read: it had {had} bytes and now has {now}")
                }
                _ => format!("cannot be read ({wanted} bytes at {at}): {error}"),
            };
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| detail.clone());
            format!("{}: {detail}", self.path.display())
        })
    }

    #[cfg(unix)]
    fn read_exactly(&self, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, bytes, at)
    }

    #[cfg(windows)]
    fn read_exactly(&self, mut at: u64, mut bytes: &mut [u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(&self.file, bytes, at) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => (at, bytes) = (at + count as u64, &mut bytes[count..]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the first error of a read, or one with this detail.
    pub(crate) fn failed(&self, detail: String) -> Error {
        self.failure().unwrap_or_else(|| Error::file(&self.path, detail))
    }

    /// Takes the first error of a read, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        let detail = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Error::file(&self.path, detail))
    }

    /// Fails if the file's size or modification time has changed since it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let same = |now: &Metadata| now.len() == self.size && now.modified().ok() == self.modified;
        match self.file.metadata() {
            Ok(now) if same(&now) => Ok(()),
            Ok(_) => Err(Error::file(&self.path, "changed while it was read, so it has no root")),
            Err(error) => Err(Error::io(&self.path, "has no readable metadata", error)),
        }
    }
}

/// Replaces a file atomically: writes a temporary file in the same folder, then renames it. An existing file keeps its
/// mode; a new file gets the mode of the umask. If writing fails, nothing is changed and no temporary file remains.
#[doc(hidden)] // The `evener` command writes other files the same way.
pub fn replace_file(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    // The umask applies to this mode as to any new file's. The default of `tempfile` is 0600.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder)?;
    write(file.as_file_mut())?;
    if let Ok(there) = path.metadata() {
        file.as_file().set_permissions(there.permissions())?;
    }
    // Some file systems report a full disk only here.
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_cut_short_or_changed_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leaves");
        std::fs::write(&path, [7; 100]).unwrap();
        let file = LeafFile::open(&path).unwrap();
        let mut bytes = [0; 40];
        file.read(60, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 40]);
        file.check_unchanged().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(90).unwrap();
        file.read(60, &mut bytes).unwrap_err();
        let told = file.failure().unwrap().to_string();
        assert!(told.contains("cut short") && told.contains("100") && told.contains("90"), "{told}");
        assert!(file.check_unchanged().unwrap_err().to_string().contains("changed"));
    }

    #[test]
    fn what_is_no_file_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        assert!(LeafFile::open(&missing).unwrap_err().to_string().contains("missing"));
        assert!(LeafFile::open(folder.path()).is_err());
    }
}
