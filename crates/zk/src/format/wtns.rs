//! `.wtns`: the values of all wires of a circuit.

use std::{
    io::{Cursor as Bytes, Read, Seek},
    path::Path,
};

use ark_bn254::Fr;
use ark_ff::Zero;
use rayon::prelude::*;
use zeroize::Zeroizing;

use super::{
    numbers::{Cursor, scalar},
    open,
    sections::{FileKind, Sections},
};
use crate::{error::Result, groth16::Witness};

static WTNS: FileKind =
    FileKind { magic: b"wtns", versions: &[1, 2], sections: &[(HEADER, "header"), (VALUES, "values")] };
pub(super) const HEADER: u32 = 1;
pub(super) const VALUES: u32 = 2;

impl Witness {
    /// Reads a `.wtns` file of circom or snarkjs.
    pub fn read(path: impl AsRef<Path>) -> Result<Witness> {
        let path = path.as_ref();
        read(&path.display().to_string(), open(path)?)
    }

    /// Reads the contents of a `.wtns` file. Errors call it `name`.
    pub fn from_wtns(name: &str, bytes: &[u8]) -> Result<Witness> {
        read(name, Bytes::new(bytes))
    }
}

fn read(name: &str, reader: impl Read + Seek) -> Result<Witness> {
    let mut sections = Sections::open(name, reader, &WTNS)?;
    let header = sections.read(HEADER)?;
    let mut cursor = Cursor::new(&header);
    sections.expect_field::<Fr>(HEADER, &mut cursor, "field")?;
    let Some(count) = cursor.u32().filter(|_| cursor.rest() == 0) else {
        return Err(sections.error(HEADER, format!("has {} bytes, and 40 are expected", header.len())));
    };
    sections.expect_len(VALUES, u64::from(count), 32)?;
    let mut bytes = Zeroizing::new(Vec::new());
    sections.read_into(VALUES, &mut bytes)?;
    // The values are written where they stay. Collecting results would leave copies of them in memory that is freed.
    let mut values = Zeroizing::new(vec![Fr::zero(); count as usize]);
    let wrong = values.par_iter_mut().zip(bytes.par_chunks(32)).enumerate().find_map_first(
        |(index, (value, bytes))| match scalar(bytes) {
            Ok(number) => {
                *value = number;
                None
            }
            Err(detail) => Some((index, detail)),
        },
    );
    if let Some((index, detail)) = wrong {
        return Err(sections.error(VALUES, format!("value {index} {detail}")));
    }
    Witness::new(std::mem::take(&mut *values))
}
