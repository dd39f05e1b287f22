//! What became of each witness of a batch.

use std::path::{Path, PathBuf};

use ark_bn254::Fr;
use evener_zk::groth16::{Proved, ProvingKey, Witness};

use super::OutputFiles;
use crate::{
    input::{display_input, is_stdin},
    output::is_special,
};

/// What became of a witness.
#[derive(Debug)]
pub(super) enum WitnessResult {
    /// The run ended before the witness was proved.
    NotReached,
    /// The proof of an earlier run is kept.
    Kept,
    /// The witness was proved, and the proof's files written, if there are any.
    Proved,
    Failed(anyhow::Error),
}

/// What became of each witness. Proofs are written as they come.
#[derive(Debug)]
pub(super) struct WitnessResults<'a> {
    /// The witnesses' files, if there are any.
    witnesses: &'a [PathBuf],
    /// The proofs' files, if they are written.
    files: &'a [OutputFiles],
    results: Vec<WitnessResult>,
}

impl<'a> WitnessResults<'a> {
    pub(super) fn new(count: usize, witnesses: &'a [PathBuf], files: &'a [OutputFiles]) -> Self {
        WitnessResults { witnesses, files, results: (0..count).map(|_| WitnessResult::NotReached).collect() }
    }

    /// Keeps the proofs that are there already, valid for this key, and about the public values of the witness.
    pub(super) fn keep_valid(&mut self, key: &ProvingKey) {
        for ((result, files), witness) in self.results.iter_mut().zip(self.files).zip(self.witnesses) {
            let public = files.read_valid(key.verifying_key());
            if public.is_some_and(|public| may_be_about(&public, witness, key)) {
                *result = WitnessResult::Kept;
            }
        }
    }

    /// Writes a proof, or keeps the error of its witness and removes the proof of an earlier run. If the witness cannot be
    /// opened, nothing is known about that proof, and it stays: its witness may have been deleted on purpose. A witness that
    /// fails does not prevent the proofs of the others.
    pub(super) fn add(&mut self, index: usize, result: &evener_zk::Result<Proved>) {
        let files = self.files.get(index);
        let written = match (result, files) {
            (Ok(proved), Some(files)) => files.write(proved),
            (Ok(_), None) => Ok(()),
            (Err(error), _) => {
                // Errors of reading name the file themselves.
                let path = self.witnesses.get(index).filter(|_| error.file().is_none());
                let error = anyhow::Error::from(error.clone());
                Err(match path {
                    Some(path) => error.context(display_input(path)),
                    None => error,
                })
            }
        };
        self.results[index] = match written {
            Ok(()) => WitnessResult::Proved,
            Err(error) => {
                let is_unknown = matches!(result, Err(evener_zk::Error::File { .. }));
                let removed = files.filter(|_| !is_unknown).map_or(Ok(()), OutputFiles::remove);
                WitnessResult::Failed(match removed {
                    Ok(()) => error,
                    Err(other) => error.context(format!("{other:#}")),
                })
            }
        };
    }

    /// Returns the indices of the witnesses that have no result.
    pub(super) fn missing(&self) -> Vec<usize> {
        let is_missing = |index: &usize| matches!(self.results[*index], WitnessResult::NotReached);
        (0..self.results.len()).filter(is_missing).collect()
    }

    /// Returns the number of witnesses.
    pub(super) fn len(&self) -> usize {
        self.results.len()
    }

    /// Returns the number of witnesses that were proved.
    pub(super) fn proved(&self) -> usize {
        self.results.iter().filter(|result| matches!(result, WitnessResult::Proved)).count()
    }

    /// Returns the file, the proof's files and the result of each witness.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<&Path>, Option<&OutputFiles>, &WitnessResult)> {
        self.results.iter().enumerate().map(|(index, result)| {
            (self.witnesses.get(index).map(PathBuf::as_path), self.files.get(index), result)
        })
    }

    /// Takes the errors.
    pub(super) fn into_errors(self) -> Vec<anyhow::Error> {
        let error = |result| match result {
            WitnessResult::Failed(error) => Some(error),
            _ => None,
        };
        self.results.into_iter().filter_map(error).collect()
    }
}

/// Returns whether the public inputs of a proof may be those of a witness: not if they are others in its file, and not if it
/// comes from a pipe, which can be read once and is another one in each run. Nothing is known about a file that cannot be
/// opened.
fn may_be_about(public: &[Fr], witness: &Path, key: &ProvingKey) -> bool {
    if is_stdin(witness) || is_special(witness) {
        return false;
    }
    match Witness::read_public(witness, key) {
        Ok(own) => own == public,
        Err(error) => matches!(error, evener_zk::Error::File { .. }),
    }
}
