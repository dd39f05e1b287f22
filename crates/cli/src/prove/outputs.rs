//! The files of a proof.

use std::{
    collections::HashMap,
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::Result;
use ark_bn254::Fr;
use evener_zk::{
    format::{public_from_json, public_to_json},
    groth16::{Proof, Proved, VerifyingKey},
};

use crate::{
    UsageError,
    input::{display_input, is_stdin},
    output::{display_path, is_special, write_file},
};

/// The files of one proof.
#[derive(Debug)]
pub(super) struct OutputFiles {
    pub(super) proof: PathBuf,
    pub(super) public: PathBuf,
}

impl OutputFiles {
    fn new(folder: &Path, name: &OsStr) -> OutputFiles {
        let file = |end: &str| {
            let mut file = name.to_owned();
            file.push(end);
            folder.join(file)
        };
        OutputFiles { proof: file(".proof.json"), public: file(".public.json") }
    }

    /// Names the files after the witnesses, or `stdin` for standard input. Fails if two witnesses have the same name.
    pub(super) fn of_witnesses(folder: &Path, witnesses: &[PathBuf]) -> Result<Vec<OutputFiles>> {
        let mut names: HashMap<&OsStr, &Path> = HashMap::new();
        let mut files = Vec::new();
        for path in witnesses {
            let name = if is_stdin(path) { Some("stdin".as_ref()) } else { path.file_stem() };
            let Some(name) = name else {
                return Err(UsageError(format!("{}: is not a file", display_path(path))).into());
            };
            files.push(OutputFiles::new(folder, name));
            if let Some(other) = names.insert(name, path) {
                let message = format!(
                    "{} and {}: their proofs would have the same name: prove them into two folders",
                    display_input(other),
                    display_input(path)
                );
                return Err(UsageError(message).into());
            }
        }
        Ok(files)
    }

    /// Names the files by numbers.
    pub(super) fn numbered(folder: &Path, count: u32) -> Vec<OutputFiles> {
        (0..count).map(|number| OutputFiles::new(folder, number.to_string().as_ref())).collect()
    }

    /// Returns the paths.
    pub(super) fn paths(&self) -> [&Path; 2] {
        [&self.proof, &self.public]
    }

    /// Returns the public inputs if both files are there and the proof in them is valid.
    pub(super) fn read_valid(&self, key: &VerifyingKey) -> Option<Vec<Fr>> {
        let (proof, public) = (std::fs::read(&self.proof).ok()?, std::fs::read(&self.public).ok()?);
        let proof = Proof::from_json("proof", &proof).ok()?;
        let public = public_from_json("public", &public).ok()?;
        key.verify(&proof, &public).is_ok().then_some(public)
    }

    /// Removes the proof and the public inputs of an earlier run, which are not those of this run's witness.
    pub(super) fn remove(&self) -> Result<()> {
        // The proof is the first: public inputs alone claim nothing.
        for path in [&self.proof, &self.public].into_iter().filter(|path| !is_special(path)) {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let what =
                        format!("{}: the proof of an earlier run cannot be removed", display_path(path));
                    return Err(anyhow::Error::from(error).context(what));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes a proof and its public inputs, each atomically. The proof is the last: where it is new, so are the inputs.
    pub(super) fn write(&self, proved: &Proved) -> Result<()> {
        for (path, value) in
            [(&self.public, public_to_json(&proved.public)), (&self.proof, proved.proof.to_json())]
        {
            write_file(path, (serde_json::to_string_pretty(&value)? + "\n").as_bytes())?;
        }
        Ok(())
    }
}
