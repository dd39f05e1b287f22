//! The files of a proof.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use anyhow::Result;
use evener_zk::{format::public_to_json, groth16::Proved};

use crate::{
    UsageError,
    output::{display_path, write_file},
};

/// The files of one proof.
#[derive(Debug)]
pub(super) struct OutputFiles {
    pub(super) proof: PathBuf,
    pub(super) public: PathBuf,
}

impl OutputFiles {
    fn new(folder: &Path, name: &str) -> OutputFiles {
        OutputFiles {
            proof: folder.join(format!("{name}.proof.json")),
            public: folder.join(format!("{name}.public.json")),
        }
    }

    /// Names the files after the witnesses. Fails if two witnesses have the same name.
    pub(super) fn of_witnesses(folder: &Path, witnesses: &[PathBuf]) -> Result<Vec<OutputFiles>> {
        let mut names: HashMap<String, &Path> = HashMap::new();
        let mut files = Vec::new();
        for path in witnesses {
            let Some(name) = path.file_stem() else {
                return Err(UsageError(format!("{}: is not a file", display_path(path))).into());
            };
            let name = name.to_string_lossy().into_owned();
            files.push(OutputFiles::new(folder, &name));
            if let Some(other) = names.insert(name, path) {
                let message = format!(
                    "{} and {}: their proofs would have the same name: prove them into two folders",
                    display_path(other),
                    display_path(path)
                );
                return Err(UsageError(message).into());
            }
        }
        Ok(files)
    }

    /// Names the files by numbers.
    pub(super) fn numbered(folder: &Path, count: u32) -> Vec<OutputFiles> {
        (0..count).map(|number| OutputFiles::new(folder, &number.to_string())).collect()
    }

    /// Returns the paths.
    pub(super) fn paths(&self) -> [&Path; 2] {
        [&self.proof, &self.public]
    }

    /// Writes a proof and its public inputs.
    pub(super) fn write(&self, proved: &Proved) -> Result<()> {
        for (path, value) in
            [(&self.public, public_to_json(&proved.public)), (&self.proof, proved.proof.to_json())]
        {
            write_file(path, (serde_json::to_string_pretty(&value)? + "\n").as_bytes())?;
        }
        Ok(())
    }
}
