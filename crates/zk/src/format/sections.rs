//! The container of `.zkey`, `.wtns` and `.r1cs`: a magic number, a version and numbered sections.

use std::io::{Read, Seek, SeekFrom};

use ark_ff::{BigInt, PrimeField};

use super::numbers::{Cursor, limbs};
use crate::error::{Error, Result};

/// Maximum number of sections. Files of snarkjs have about ten; a hostile one could have a section for every twelve bytes.
const MAX_SECTIONS: u32 = 256;

/// A kind of file, and the names of its sections.
pub(super) struct FileKind {
    pub(super) magic: &'static [u8; 4],
    /// The accepted versions.
    pub(super) versions: &'static [u32],
    /// The required sections by number.
    pub(super) sections: &'static [(u32, &'static str)],
}

/// The sections of an open file.
pub(super) struct Sections<R> {
    reader: R,
    file: String,
    kind: &'static FileKind,
    /// Number, first byte and length of each section.
    table: Vec<(u32, u64, u64)>,
}

impl<R: Read + Seek> Sections<R> {
    /// Reads the table of sections. Fails if the file is of another kind, or its sections do not fill it exactly.
    pub(super) fn open(file: &str, mut reader: R, kind: &'static FileKind) -> Result<Self> {
        let fail = |part: &str, detail: String| Error::Format {
            file: file.to_owned(),
            part: part.to_owned(),
            detail,
        };
        let unreadable = |error: std::io::Error| fail("file header", format!("cannot be read: {error}"));
        let length = reader.seek(SeekFrom::End(0)).map_err(unreadable)?;
        reader.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        if length < 12 {
            return Err(fail(
                "file header",
                format!("the file has {length} bytes, and the header alone has 12"),
            ));
        }
        let mut header = [0; 12];
        reader.read_exact(&mut header).map_err(unreadable)?;
        if header[..4] != kind.magic[..] {
            let (found, expected) = (header[..4].escape_ascii(), kind.magic.escape_ascii());
            return Err(fail(
                "file header",
                format!("the file begins with `{found}`, not with `{expected}`"),
            ));
        }
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (version, count) = (word(4), word(8));
        if !kind.versions.contains(&version) {
            return Err(fail(
                "file header",
                format!("version {version} is not known (known: {:?})", kind.versions),
            ));
        }
        if count > MAX_SECTIONS {
            return Err(fail(
                "file header",
                format!("{count} sections, and at most {MAX_SECTIONS} are expected"),
            ));
        }
        let mut sections = Sections { reader, file: file.to_owned(), kind, table: Vec::new() };
        let mut at = 12u64;
        for index in 0..count {
            let part = format!("section header {index} of {count}");
            if length - at < 12 {
                let detail = format!("the file ends at byte {length}, before this header is complete");
                return Err(fail(&part, detail));
            }
            let mut header = [0; 12];
            sections.reader.read_exact(&mut header).map_err(unreadable)?;
            let mut cursor = Cursor::new(&header);
            let (number, size) = (cursor.u32().unwrap_or(0), cursor.u64().unwrap_or(0));
            at += 12;
            if size > length - at {
                let detail = format!("{size} bytes are announced, and the file has {} more", length - at);
                return Err(fail(&sections.name(number), detail));
            }
            if sections.table.iter().any(|entry| entry.0 == number) {
                return Err(fail(&sections.name(number), "the file has it twice".into()));
            }
            sections.table.push((number, at, size));
            at += size;
            sections.reader.seek(SeekFrom::Start(at)).map_err(unreadable)?;
        }
        if at < length {
            return Err(fail("end of the file", format!("{} bytes follow the last section", length - at)));
        }
        for &(number, _) in kind.sections {
            if !sections.table.iter().any(|entry| entry.0 == number) {
                return Err(fail(&sections.name(number), "is missing".into()));
            }
        }
        Ok(sections)
    }

    /// Returns the name of a section for messages.
    pub(super) fn name(&self, number: u32) -> String {
        match self.kind.sections.iter().find(|entry| entry.0 == number) {
            Some((_, name)) => format!("section {number} ({name})"),
            None => format!("section {number}"),
        }
    }

    /// Returns an error about a section.
    pub(super) fn error(&self, number: u32, detail: impl Into<String>) -> Error {
        Error::Format { file: self.file.clone(), part: self.name(number), detail: detail.into() }
    }

    /// Returns the length of a section in bytes; zero if the file has no such section.
    pub(super) fn len(&self, number: u32) -> u64 {
        self.table.iter().find(|entry| entry.0 == number).map_or(0, |entry| entry.2)
    }

    /// Fails unless a section has this many elements of a size.
    pub(super) fn expect_len(&self, number: u32, elements: u64, bytes_each: u64) -> Result<()> {
        let found = self.len(number);
        match elements.checked_mul(bytes_each) {
            Some(expected) if expected == found => Ok(()),
            _ => {
                let detail =
                    format!("has {found} bytes, and {elements} elements of {bytes_each} bytes are expected");
                Err(self.error(number, detail))
            }
        }
    }

    /// Reads a section.
    pub(super) fn read(&mut self, number: u32) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_into(number, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a section into an empty vector, which is allocated once: if the caller zeroes it, no copy of a secret is left.
    pub(super) fn read_into(&mut self, number: u32, bytes: &mut Vec<u8>) -> Result<()> {
        self.read_beginning(number, u64::MAX, bytes)
    }

    /// Reads at most this many bytes of a section, as [`read_into`](Self::read_into) does.
    pub(super) fn read_beginning(&mut self, number: u32, max: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let Some(&(_, at, size)) = self.table.iter().find(|entry| entry.0 == number) else {
            return Err(self.error(number, "is missing"));
        };
        let size = size.min(max);
        // The length is at most the file's.
        let reserved = usize::try_from(size).ok().filter(|&size| bytes.try_reserve_exact(size).is_ok());
        let Some(size) = reserved else {
            return Err(self.error(number, format!("{size} bytes do not fit into memory")));
        };
        bytes.resize(size, 0);
        let read = self.reader.seek(SeekFrom::Start(at)).and_then(|_| self.reader.read_exact(bytes));
        read.map_err(|error| self.error(number, format!("cannot be read: {error}")))
    }

    /// Reads the size and the modulus of a field, and fails unless they are those of `F`.
    pub(super) fn expect_field<F: PrimeField<BigInt = BigInt<4>>>(
        &self,
        number: u32,
        cursor: &mut Cursor<'_>,
        name: &str,
    ) -> Result<()> {
        let short = || self.error(number, "is too short");
        let bytes = cursor.u32().ok_or_else(short)?;
        if bytes != 32 {
            let detail = format!("numbers of the {name} have {bytes} bytes, and those of BN254 have 32");
            return Err(self.error(number, detail));
        }
        let modulus = limbs(cursor.take(32).ok_or_else(short)?);
        match modulus == F::MODULUS {
            true => Ok(()),
            false => {
                let detail = format!(
                    "the {name} is the integers modulo {modulus}, and that of BN254 modulo {}",
                    F::MODULUS
                );
                Err(self.error(number, detail))
            }
        }
    }
}
