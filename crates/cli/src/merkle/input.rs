//! Sources of leaves: files, standard input and test data.

use std::{
    fs::{File, Metadata},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;

use crate::{
    UsageError,
    input::is_stdin,
    output::{display_path, format_count, format_counted},
};

/// The maximum length of a line. A longer one means that the input is not text.
const MAX_LINE_BYTES: usize = 1 << 30;

/// Reads all of a file or of standard input.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut reader = LeafReader::open(path)?;
    let mut all = Vec::new();
    let name = reader.name.clone();
    reader.reader().read_to_end(&mut all).with_context(|| format!("{name}: cannot be read"))?;
    Ok(all)
}

/// How to handle the bytes after the last whole leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PartialLeaf {
    /// Hash them as a shorter leaf
    Short,
    /// Pad them with zeros to a whole leaf
    Pad,
}

/// A source of leaves with a name for messages. The size and modification time of a file are checked after reading.
pub(super) struct LeafReader {
    name: String,
    reader: Box<dyn Read + Send>,
    /// The file, and its metadata when it was opened.
    file: Option<(File, Metadata)>,
}

impl LeafReader {
    /// Opens a file, or standard input for `-`.
    pub(super) fn open(path: &Path) -> Result<LeafReader> {
        if is_stdin(path) {
            return Ok(LeafReader {
                name: "standard input".into(),
                reader: Box::new(io::stdin()),
                file: None,
            });
        }
        let name = display_path(path);
        let opened = || -> io::Result<_> {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let file_again = file.try_clone()?;
            Ok((file, has_size(&metadata).then_some((file_again, metadata))))
        };
        let (reader, file) = opened().with_context(|| format!("{name}: cannot be opened"))?;
        Ok(LeafReader { name, reader: Box::new(reader), file })
    }

    /// Returns a source of test data.
    pub(super) fn test_data(leaves: u64, leaf_bytes: usize) -> LeafReader {
        LeafReader {
            name: "test data".into(),
            reader: Box::new(TestData::new(leaves, leaf_bytes)),
            file: None,
        }
    }

    /// Returns the number of bytes, if it is known.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.file.as_ref().map(|(_, metadata)| metadata.len())
    }

    /// Fails if the number of bytes is known and is not a multiple of the leaf size.
    pub(super) fn check_size(&self, leaf_bytes: usize) -> Result<()> {
        self.bytes().map_or(Ok(()), |bytes| check_whole_leaves(&self.name, bytes, leaf_bytes))
    }

    /// Reads all leaves in pieces of `piece_bytes` bytes and passes them to `take`, which returns whether to continue.
    /// `carried` is the beginning of the first piece, from the source before; returns the incomplete last piece. Every
    /// piece is a whole number of leaves, except one that ends with a partial leaf.
    pub(super) fn read_pieces(
        mut self,
        piece_bytes: usize,
        leaf_bytes: usize,
        partial: Option<PartialLeaf>,
        carried: Vec<u8>,
        mut take: impl FnMut(Vec<u8>) -> bool,
    ) -> Result<Vec<u8>> {
        let (mut piece, mut total) = (carried, 0);
        loop {
            let room = piece_bytes - piece.len();
            total += self.read_up_to(room, &mut piece)? as u64;
            if piece.len() < piece_bytes {
                break;
            }
            if !take(std::mem::take(&mut piece)) {
                return Ok(Vec::new());
            }
        }
        match partial {
            None => check_whole_leaves(&self.name, total, leaf_bytes)?,
            // `read_up_to` has reserved a whole piece.
            Some(PartialLeaf::Pad) => piece.resize(piece.len().next_multiple_of(leaf_bytes), 0),
            Some(PartialLeaf::Short) if piece.len().is_multiple_of(leaf_bytes) => {}
            Some(PartialLeaf::Short) => drop(take(std::mem::take(&mut piece))),
        }
        self.check_unchanged(total)?;
        Ok(piece)
    }

    fn read_up_to(&mut self, bytes: usize, piece: &mut Vec<u8>) -> Result<usize> {
        reserve(piece, bytes, &self.name)?;
        let read = self.reader.by_ref().take(bytes as u64).read_to_end(piece);
        read.with_context(|| format!("{}: cannot be read", self.name))
    }

    /// Reads all lines in pieces of about `piece_bytes` bytes and passes them to `take`, as for
    /// [`LeafReader::read_pieces`].
    pub(super) fn read_lines(
        mut self,
        piece_bytes: usize,
        mut take: impl FnMut(Vec<u8>) -> bool,
    ) -> Result<()> {
        let name = self.name.clone();
        let cannot = || format!("{name}: cannot be read");
        let mut reader =
            BufReader::with_capacity(1 << 20, std::mem::replace(&mut self.reader, Box::new(io::empty())));
        let mut total = 0;
        loop {
            let mut piece = Vec::new();
            reserve(&mut piece, piece_bytes, &name)?;
            let read = reader.by_ref().take(piece_bytes as u64).read_to_end(&mut piece);
            read.with_context(cannot)?;
            let rest = reader.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut piece);
            if rest.with_context(cannot)? == MAX_LINE_BYTES && piece.last() != Some(&b'\n') {
                bail!("{name}: has a line of more than {MAX_LINE_BYTES} bytes: the input is not text");
            }
            total += piece.len() as u64;
            if piece.is_empty() {
                return self.check_unchanged(total);
            }
            if !take(piece) {
                return Ok(());
            }
        }
    }

    /// Returns the reader. The caller must call [`LeafReader::check_unchanged`] after reading.
    pub(super) fn reader(&mut self) -> &mut (dyn Read + Send) {
        &mut self.reader
    }

    /// Fails if a file has changed since it was opened, or `read`, the number of bytes read, is not its size.
    pub(super) fn check_unchanged(&self, read: u64) -> Result<()> {
        let Some((file, then)) = &self.file else { return Ok(()) };
        let now = file.metadata().with_context(|| format!("{}: has no readable metadata", self.name))?;
        if now.len() < then.len() || read < then.len() {
            let (had, has) = (then.len(), now.len());
            bail!("{}: was cut short while it was read: it had {had} bytes and now has {has}", self.name);
        }
        if read != then.len() || now.len() != then.len() || now.modified().ok() != then.modified().ok() {
            bail!("{}: changed while it was read, so it has no root", self.name);
        }
        Ok(())
    }
}

/// Returns whether the size of a file is known. Files that the system generates, as in /proc, claim to be empty.
fn has_size(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.len() > 0
}

/// Returns whether a path is a regular file, which devices can read at any offset.
pub(super) fn is_file(path: &Path) -> bool {
    !is_stdin(path) && path.metadata().is_ok_and(|metadata| has_size(&metadata))
}

/// Reserves memory for more bytes. Fails if there is not enough.
pub(super) fn reserve(piece: &mut Vec<u8>, more: usize, name: &str) -> Result<()> {
    piece.try_reserve_exact(more).map_err(|_| no_memory(name, (piece.len() + more) as u64, None))
}

/// Returns the error for more bytes than there is memory for.
fn no_memory(name: &str, bytes: u64, free: Option<u64>) -> anyhow::Error {
    let free = free.map_or(String::new(), |free| format!(", and {} bytes are free", format_count(free)));
    anyhow!(
        "{name}: {} bytes of memory are needed{free}: choose a smaller leaf, or hash whole files with --files",
        format_count(bytes)
    )
}

/// Fails if the leaves of a stream are so large that the pieces in flight do not fit in memory.
pub(super) fn check_memory(leaf_bytes: usize, piece_bytes: usize, free: Option<u64>) -> Result<()> {
    // One piece is being read, one waits, and one is being hashed.
    let needed = (piece_bytes as u64).saturating_mul(3);
    match free {
        // Small pieces are not checked, because the amount of free memory is an estimate.
        Some(free) if leaf_bytes >= piece_bytes && needed > free => {
            let name = format!("leaves of {} bytes", format_count(leaf_bytes as u64));
            Err(no_memory(&name, needed, Some(free)))
        }
        _ => Ok(()),
    }
}

/// Fails if the number of bytes is not a multiple of the leaf size. The message names sizes that would fit.
pub(super) fn check_whole_leaves(name: &str, bytes: u64, leaf_bytes: usize) -> Result<()> {
    let size = leaf_bytes as u64;
    let over = bytes % size;
    if over == 0 {
        return Ok(());
    }
    let fits = |candidate: &u64| bytes.is_multiple_of(*candidate);
    let below = (2..size).rev().take(1 << 16).find(fits);
    let above = (size + 1..=size.saturating_mul(8).min(bytes)).take(1 << 16).find(fits);
    let sizes: Vec<String> = [below, above].into_iter().flatten().map(|size| size.to_string()).collect();
    let or_size =
        if sizes.is_empty() { String::new() } else { format!(", or --leaf-size {}", sizes.join(" or ")) };
    let (less, more) = (format_count(bytes - over), format_count(bytes - over + size));
    Err(UsageError(format!(
        "{name}: {} are {} of {size} bytes and {over} more {}: {less} or {more} bytes would fit{or_size}; --last short \
         hashes the rest as a shorter leaf, --last pad pads it with zeros",
        format_counted(bytes, "byte", "bytes"),
        format_counted(bytes / size, "leaf", "leaves"),
        if over == 1 { "byte" } else { "bytes" },
    ))
    .into())
}

/// Test data: leaf n is the number n, little-endian, padded with zeros.
pub(crate) struct TestData {
    leaves: u64,
    leaf_bytes: usize,
    /// The index of the next leaf.
    next: u64,
    /// The index of the next byte in it.
    within: usize,
}

impl TestData {
    fn new(leaves: u64, leaf_bytes: usize) -> TestData {
        TestData { leaves, leaf_bytes, next: 0, within: 0 }
    }

    /// Writes a leaf of test data.
    pub(crate) fn write_leaf(index: u64, leaf: &mut [u8]) {
        leaf.fill(0);
        for (byte, number) in leaf.iter_mut().zip(index.to_le_bytes()) {
            *byte = number;
        }
    }
}

impl Read for TestData {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut rest, size) = (&mut *bytes, self.leaf_bytes);
        while !rest.is_empty() && self.next < self.leaves {
            let number = self.next.to_le_bytes();
            let some = (size - self.within).min(rest.len());
            let (part, after) = rest.split_at_mut(some);
            part.fill(0);
            let number = number.get(self.within..).unwrap_or_default();
            part.iter_mut().zip(number).for_each(|(byte, number)| *byte = *number);
            self.within += some;
            if self.within == size {
                (self.next, self.within) = (self.next + 1, 0);
            }
            rest = after;
        }
        let left = rest.len();
        Ok(bytes.len() - left)
    }
}

/// The input that the command line names.
#[derive(Debug)]
pub(super) enum Input {
    /// Files in this order; one of them may be standard input.
    Files(Vec<PathBuf>),
    /// This number of leaves of test data.
    TestData(u64),
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn made_up_leaves_are_their_numbers_however_they_are_read() {
        let mut all = Vec::new();
        TestData::new(300, 5).read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 1500);
        assert_eq!(all[299 * 5..], [43, 1, 0, 0, 0]);
        let (mut piece, mut pieces, mut numbers) = ([0; 7], Vec::new(), TestData::new(300, 5));
        while let Ok(count @ 1..) = numbers.read(&mut piece) {
            pieces.extend_from_slice(&piece[..count]);
        }
        assert_eq!(pieces, all);
    }

    #[test]
    fn what_does_not_come_out_even_is_told_with_what_would() {
        check_whole_leaves("f", 96, 32).unwrap();
        check_whole_leaves("f", 0, 32).unwrap();
        let told = check_whole_leaves("f", 100, 32).unwrap_err().to_string();
        let expected = "f: 100 bytes are 3 leaves of 32 bytes and 4 more bytes: 96 or 128 bytes would fit, \
                        or --leaf-size 25 or 50; --last short hashes the rest as a shorter leaf, --last pad pads it \
                        with zeros";
        assert_eq!(told, expected);
        let one = check_whole_leaves("f", 33, 32).unwrap_err().to_string();
        assert!(one.contains("33 bytes are 1 leaf of 32 bytes and 1 more byte: "), "{one}");
        let prime = check_whole_leaves("f", 101, 32).unwrap_err().to_string();
        assert!(prime.contains("96 or 128 bytes would fit, or --leaf-size 101;"), "{prime}");
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leaves");
        std::fs::write(&path, [7; 100]).unwrap();
        let reader = LeafReader::open(&path).unwrap();
        reader.check_unchanged(100).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(90).unwrap();
        let told = reader.check_unchanged(90).unwrap_err().to_string();
        assert!(told.contains("cut short") && told.contains("100") && told.contains("90"), "{told}");
        let reader = LeafReader::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(110).unwrap();
        let told = reader.check_unchanged(90).unwrap_err().to_string();
        assert!(told.contains("changed while it was read"), "{told}");
    }

    #[test]
    fn pieces_are_whole_but_for_what_is_given_back() {
        let reader = LeafReader::test_data(25, 4);
        let mut pieces = Vec::new();
        let rest = reader
            .read_pieces(32, 4, None, vec![9; 8], |piece| {
                pieces.push(piece.len());
                true
            })
            .unwrap();
        assert_eq!((pieces, rest.len()), (vec![32, 32, 32], 12));
    }

    #[test]
    fn lines_are_never_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "one\ntwo, and longer\n\nthree").unwrap();
        let mut pieces = Vec::new();
        let take = |piece| {
            pieces.push(String::from_utf8(piece).unwrap());
            true
        };
        LeafReader::open(&path).unwrap().read_lines(6, take).unwrap();
        assert_eq!(pieces, ["one\ntwo, and longer\n", "\nthree"]);
    }
}
