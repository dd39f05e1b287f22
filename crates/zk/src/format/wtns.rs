//! `.wtns`: the values of all wires of a circuit.

use std::{
    fs::File,
    io::{self, Cursor as Bytes, Read, Seek},
    path::Path,
};

use ark_bn254::Fr;
use ark_ff::{One, Zero};
use rayon::prelude::*;
use zeroize::Zeroizing;

use super::{
    numbers::{Cursor, scalar},
    open,
    sections::{FileKind, Sections},
};
use crate::{
    error::{Error, Result},
    groth16::{ProvingKey, Witness},
};

static WTNS: FileKind =
    FileKind { magic: b"wtns", versions: &[1, 2], sections: &[(HEADER, "header"), (VALUES, "values")] };
pub(super) const HEADER: u32 = 1;
pub(super) const VALUES: u32 = 2;

impl Witness {
    /// Reads a `.wtns` file of circom or snarkjs. A pipe is read to its end first, into memory.
    pub fn read(path: impl AsRef<Path>) -> Result<Witness> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match path.metadata() {
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => {
                let pipe = File::open(path).map_err(|error| Error::io(path, "cannot be opened", error))?;
                Witness::from_reader(&name, pipe)
            }
            _ => read(&name, open(path)?),
        }
    }

    /// Reads the public values in a `.wtns` file, which are at its beginning.
    ///
    /// Fails as [`read`](Self::read) does if the file is cut short or of another kind, and with [`Error::OtherCircuit`] if it
    /// has another number of values than the key's circuit has wires. The private values are not read.
    pub fn read_public(path: impl AsRef<Path>, key: &ProvingKey) -> Result<Vec<Fr>> {
        let path = path.as_ref();
        let (mut sections, count) = open_values(&path.display().to_string(), open(path)?)?;
        key.check_len(count)?;
        let mut values = read_values(&mut sections, (1 + key.public()).min(count))?;
        values.remove(0);
        Ok(std::mem::take(&mut *values))
    }

    /// Reads the contents of a `.wtns` file from a pipe or another source to its end, into memory that is zeroed. Errors call it
    /// `name`.
    pub fn from_reader(name: &str, reader: impl Read) -> Result<Witness> {
        let bytes = read_to_end(reader).map_err(|error| Error::io(name.as_ref(), "cannot be read", error))?;
        Witness::from_wtns(name, &bytes)
    }

    /// Reads the contents of a `.wtns` file. Errors call it `name`.
    pub fn from_wtns(name: &str, bytes: &[u8]) -> Result<Witness> {
        read(name, Bytes::new(bytes))
    }
}

/// Reads to the end, or until the beginning is not that of a witness. No copy of the bytes is left in memory that is freed.
fn read_to_end(mut reader: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    let (mut bytes, mut len) = (Zeroizing::new(vec![0; 1 << 16]), 0);
    loop {
        let is_over = match reader.read(&mut bytes[len..]) {
            Ok(count) => {
                len += count;
                count == 0 || (len >= WTNS.magic.len() && !bytes.starts_with(WTNS.magic))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
            Err(error) => return Err(error),
        };
        if is_over {
            bytes.truncate(len);
            return Ok(bytes);
        }
        if len == bytes.len() {
            let mut larger = Zeroizing::new(vec![0; 2 * len]);
            larger[..len].copy_from_slice(&bytes);
            bytes = larger;
        }
    }
}

fn read(name: &str, reader: impl Read + Seek) -> Result<Witness> {
    let (mut sections, count) = open_values(name, reader)?;
    let mut values = read_values(&mut sections, count)?;
    Witness::new(std::mem::take(&mut *values))
}

/// Reads the header, and returns the number of values.
fn open_values<R: Read + Seek>(name: &str, reader: R) -> Result<(Sections<R>, usize)> {
    let mut sections = Sections::open(name, reader, &WTNS)?;
    let header = sections.read(HEADER)?;
    let mut cursor = Cursor::new(&header);
    sections.expect_field::<Fr>(HEADER, &mut cursor, "field")?;
    let Some(count) = cursor.u32().filter(|_| cursor.rest() == 0) else {
        return Err(sections.error(HEADER, format!("has {} bytes, and 40 are expected", header.len())));
    };
    sections.expect_len(VALUES, u64::from(count), 32)?;
    Ok((sections, count as usize))
}

/// Reads the first values. Fails if the very first one is not 1.
fn read_values(sections: &mut Sections<impl Read + Seek>, count: usize) -> Result<Zeroizing<Vec<Fr>>> {
    let mut bytes = Zeroizing::new(Vec::new());
    sections.read_beginning(VALUES, count as u64 * 32, &mut bytes)?;
    // The values are written where they stay. Collecting results would leave copies of them in memory that is freed.
    let mut values = Zeroizing::new(vec![Fr::zero(); count]);
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
    if !values.first().is_some_and(One::is_one) {
        return Err(sections.error(VALUES, "its first value is not 1, which every circuit's is"));
    }
    Ok(values)
}
