//! Where the witnesses of a batch come from, and where their results go while the batch runs.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
};

use super::{Proved, ProvingKey, Witness};
use crate::error::Result;

/// A witness of a batch: in memory, or read when a device is about to prove it.
///
/// A witness that is read is in memory only while a device proves it, so that the memory of a batch does not grow with the
/// number of its witnesses. An error of reading is the result of that witness alone. A file that is missing, cut short or of
/// another circuit is found before any device is used.
#[derive(Clone)]
pub struct WitnessSource(Kind);

#[derive(Clone)]
enum Kind {
    InMemory(Arc<Witness>),
    File(Arc<Path>),
    Read(Arc<dyn Fn() -> Result<Witness> + Send + Sync>),
}

impl WitnessSource {
    /// Reads a `.wtns` file, as [`Witness::read`] does.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        WitnessSource(Kind::File(path.into().into()))
    }

    /// Calls a closure for the witness. If a device fails or hangs, the closure is called again, for another device: it must
    /// return the same witness each time.
    pub fn read_by(read: impl Fn() -> Result<Witness> + Send + Sync + 'static) -> Self {
        WitnessSource(Kind::Read(Arc::new(read)))
    }

    /// Returns the witness, if it is for the key's circuit.
    pub(super) fn get(&self, key: &ProvingKey) -> Result<Arc<Witness>> {
        let witness = match &self.0 {
            Kind::InMemory(witness) => witness.clone(),
            Kind::File(path) => Arc::new(Witness::read(path)?),
            Kind::Read(read) => Arc::new(read()?),
        };
        key.check_len(witness.values().len()).map(|()| witness)
    }

    /// Fails if the witness is in memory and for another circuit, or in a file whose beginning is not that of a witness for
    /// the circuit. A pipe can be read once, so it is not looked at.
    pub(super) fn check(&self, key: &ProvingKey) -> Result<()> {
        match &self.0 {
            Kind::InMemory(witness) => key.check_len(witness.values().len()),
            Kind::File(path) => match path.metadata() {
                Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => Ok(()),
                _ => Witness::read_public(path, key).map(drop),
            },
            Kind::Read(_) => Ok(()),
        }
    }
}

impl From<Witness> for WitnessSource {
    fn from(witness: Witness) -> Self {
        Arc::new(witness).into()
    }
}

impl From<Arc<Witness>> for WitnessSource {
    fn from(witness: Arc<Witness>) -> Self {
        WitnessSource(Kind::InMemory(witness))
    }
}

impl fmt::Debug for WitnessSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::InMemory(witness) => witness.fmt(f),
            Kind::File(path) => f.debug_tuple("WitnessSource").field(path).finish(),
            Kind::Read(_) => f.write_str("WitnessSource(read when needed)"),
        }
    }
}

/// The finished results of a batch. The first result of a witness counts: one that a speculative copy finds later is
/// replaced by it, so that the results of a batch are those that were reported.
pub(super) struct Finished {
    results: Box<[OnceLock<Result<Proved>>]>,
    /// The indices of results as they come; `None` once the batch has ended.
    sender: Mutex<Option<Sender<usize>>>,
}

impl Finished {
    /// Makes the results of a number of witnesses, and the receiver of their indices, which ends with the batch.
    pub(super) fn new(witnesses: usize) -> (Finished, Receiver<usize>) {
        let (sender, receiver) = channel();
        let results = (0..witnesses).map(|_| OnceLock::new()).collect();
        (Finished { results, sender: Mutex::new(Some(sender)) }, receiver)
    }

    /// Keeps the result of a witness, and returns the one that counts.
    pub(super) fn set(&self, index: usize, result: Result<Proved>) -> Result<Proved> {
        let mut is_first = false;
        let first = self.results[index].get_or_init(|| {
            is_first = true;
            result
        });
        if is_first {
            let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody receives if `on_proof` has panicked.
            let _ = sender.as_ref().map(|sender| sender.send(index));
        }
        first.clone()
    }

    /// Returns the result of a witness, if it has one.
    pub(super) fn get(&self, index: usize) -> Option<&Result<Proved>> {
        self.results[index].get()
    }

    /// Ends the batch: a device that still computes reports nothing any more.
    pub(super) fn end(&self) {
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Ends a batch when dropped, also after a panic, so that the thread that reports results ends too.
pub(super) struct EndBatchOnDrop<'a>(pub(super) &'a Finished);

impl Drop for EndBatchOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
