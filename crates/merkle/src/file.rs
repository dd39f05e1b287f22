//! Leaves in a file.
//!
//! They are read with positioned reads, not mapped into memory. A mapped file that somebody shortens kills the process
//! that touches what is gone, and no code of its own can prevent that everywhere; a read says what happened. It is no
//! slower here: a device copies from pinned memory of its own, which a read fills directly, where a mapped file would be
//! copied there by the processor, page fault by page fault; and the processor's cores read a piece into their cache just
//! before they hash it.

use std::{
    fs::{File, Metadata},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use crate::error::{Error, Result};

/// A file of leaves, open to be read from any place by any thread. Its size and time of change are those that it had when
/// it was opened; that it has others at the end is an error.
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
    /// The bytes that are leaves.
    bytes: u64,
    /// All bytes that it had when it was opened.
    size: u64,
    changed: Option<SystemTime>,
    /// What went wrong first while it was read.
    failure: Mutex<Option<String>>,
}

impl LeafFile {
    /// Opens a file. Fails where it cannot be read, and for what has no size, such as a pipe: read that instead.
    pub fn open(path: impl AsRef<Path>) -> Result<LeafFile> {
        let path = path.as_ref();
        let failed = |error| Error::io(path, "cannot be opened", &error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::file(
                path,
                "is not a file that can be read from any place: read it as a stream",
            ));
        }
        let changed = metadata.modified().ok();
        let size = metadata.len();
        Ok(LeafFile { path: path.into(), file, bytes: size, size, changed, failure: Mutex::default() })
    }

    /// Reads the bytes after the last whole leaf, and no longer counts them among the file's leaves. Fails where they
    /// cannot be read, and for leaves of no size.
    ///
    /// ```
    /// use evener_merkle::{LeafFile, Leaves};
    ///
    /// let path = std::env::temp_dir().join("evener-uneven-file-example");
    /// std::fs::write(&path, [7; 70])?;
    /// let mut file = LeafFile::open(&path)?;
    /// assert_eq!(file.split_off_rest(32)?, [7; 6]);
    /// assert_eq!(Leaves::file(file, 32)?.count(), 2);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split_off_rest(&mut self, leaf_bytes: usize) -> Result<Vec<u8>> {
        let whole = self.bytes.checked_div(leaf_bytes as u64).map(|leaves| leaves * leaf_bytes as u64);
        let whole = whole.ok_or_else(|| Error::file(&self.path, "a leaf has at least one byte"))?;
        // Less than a leaf.
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

    /// How many bytes of leaves it had when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads bytes from a place. What goes wrong is kept, for whoever started the run.
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

    /// The error for a read that failed.
    pub(crate) fn failed(&self, detail: String) -> Error {
        self.failure().unwrap_or_else(|| Error::file(&self.path, detail))
    }

    /// What went wrong while it was read, if anything did.
    pub(crate) fn failure(&self) -> Option<Error> {
        let detail = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Error::file(&self.path, detail))
    }

    /// Fails when it is not as it was when it was opened.
    pub(crate) fn is_unchanged(&self) -> Result<()> {
        let same = |now: &Metadata| now.len() == self.size && now.modified().ok() == self.changed;
        match self.file.metadata() {
            Ok(now) if same(&now) => Ok(()),
            Ok(_) => {
                Err(Error::file(&self.path, "changed while it was read, so there is no root that it has"))
            }
            Err(error) => Err(Error::io(&self.path, "cannot be looked at", &error)),
        }
    }
}

/// Writes a file whole or not at all: beside where it is to be, and then in its place. A file that was there keeps its
/// mode; a new one has what the umask says. Where that fails, nothing is changed and nothing left behind.
#[doc(hidden)] // For the command, which writes more than trees.
pub fn replace_file(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    // The umask is taken off these as of any new file's; without them, nobody else could ever read it.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder)?;
    write(file.as_file_mut())?;
    if let Ok(there) = path.metadata() {
        file.as_file().set_permissions(there.permissions())?;
    }
    // Some systems find out only here that there is no room.
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
        file.is_unchanged().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(90).unwrap();
        file.read(60, &mut bytes).unwrap_err();
        let told = file.failure().unwrap().to_string();
        assert!(told.contains("cut short") && told.contains("100") && told.contains("90"), "{told}");
        assert!(file.is_unchanged().unwrap_err().to_string().contains("changed"));
    }

    #[test]
    fn what_is_no_file_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        assert!(LeafFile::open(&missing).unwrap_err().to_string().contains("missing"));
        assert!(LeafFile::open(folder.path()).is_err());
    }
}
