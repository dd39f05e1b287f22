//! Leaves in a file.
//!
//! They are read with positioned reads, not mapped into memory. A mapped file that somebody shortens kills the process
//! that touches what is gone, and no code of its own can prevent that everywhere; a read says what happened. It is no
//! slower here: a device copies from pinned memory of its own, which a read fills directly, where a mapped file would be
//! copied there by the processor, page fault by page fault; and the processor's cores read a piece into their cache just
//! before they hash it.

use std::{
    fs::{File, Metadata},
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
    bytes: u64,
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
        Ok(LeafFile { path: path.into(), file, bytes: metadata.len(), changed, failure: Mutex::default() })
    }

    /// How many bytes it had when it was opened.
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
                    let had = self.bytes;
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

    /// What went wrong while it was read, if anything did.
    pub(crate) fn failure(&self) -> Option<Error> {
        let detail = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Error::file(&self.path, detail))
    }

    /// Fails when it is not as it was when it was opened.
    pub(crate) fn is_unchanged(&self) -> Result<()> {
        let same = |now: &Metadata| now.len() == self.bytes && now.modified().ok() == self.changed;
        match self.file.metadata() {
            Ok(now) if same(&now) => Ok(()),
            Ok(_) => {
                Err(Error::file(&self.path, "changed while it was read, so there is no root that it has"))
            }
            Err(error) => Err(Error::io(&self.path, "cannot be looked at", &error)),
        }
    }
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
