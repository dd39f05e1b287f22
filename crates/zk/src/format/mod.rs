//! The files of circom and snarkjs: `.zkey`, `.wtns`, `.r1cs`, and the JSON of verification keys, proofs and public inputs.
//!
//! The readers trust nothing in a file. A length is compared with the file before memory is allocated for it, every index
//! with what it points into, every number with its field, and every point with its curve. An error names the part of the
//! file.
//!
//! Two kinds of damage are not seen when a `.zkey` is read: other coefficients, because the format has no checksum, and points
//! B2 outside of the subgroup of prime order, because that check takes longer than all others. A proof with such a key
//! does not verify, and is not handed out.

mod json;
mod numbers;
mod r1cs;
mod sections;
mod write;
mod wtns;
mod zkey;

use std::{fs::File, path::Path};

pub use self::json::{public_from_json, public_to_json};
use crate::error::{Error, Result};

/// Opens a file for a reader of sections. It has no buffer, which would keep a part of a witness: sections are few, and each
/// is read at once.
fn open(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|error| Error::io(path, "cannot be opened", error))?;
    match file.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            let found = if metadata.is_dir() { "a folder" } else { "a pipe or a device" };
            Err(Error::Format {
                file: path.display().to_string(),
                part: "file header".into(),
                detail: format!("a file is needed, and this is {found}"),
            })
        }
        _ => Ok(file),
    }
}
