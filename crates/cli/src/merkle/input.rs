//! Where leaves come from: files, standard input, or nowhere.

use std::{
    fs::{File, Metadata},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{Usage, output::count};

/// A longer line is taken for what is no text.
const LONGEST_LINE: usize = 1 << 30;

/// What is read from: something with a name, whose size and time of change are known where it is a file.
pub(super) struct Origin {
    name: String,
    reader: Box<dyn Read + Send>,
    /// The file, and what it was when it was opened.
    file: Option<(File, Metadata)>,
}

impl Origin {
    /// A file, or whatever else has a path.
    pub(super) fn open(path: &Path) -> Result<Origin> {
        let name = path.display().to_string();
        let opened = || -> io::Result<_> {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let file_again = file.try_clone()?;
            Ok((file, metadata.is_file().then_some((file_again, metadata))))
        };
        let (reader, file) = opened().with_context(|| format!("{name}: cannot be opened"))?;
        Ok(Origin { name, reader: Box::new(reader), file })
    }

    /// What comes on standard input.
    pub(super) fn stdin() -> Origin {
        Origin { name: "standard input".into(), reader: Box::new(io::stdin()), file: None }
    }

    /// Test data.
    pub(super) fn made_up(leaves: u64, leaf_bytes: usize) -> Origin {
        Origin { name: "test data".into(), reader: Box::new(Numbers::new(leaves, leaf_bytes)), file: None }
    }

    /// How many bytes there are, where that is known.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.file.as_ref().map(|(_, metadata)| metadata.len())
    }

    /// Fails where it is known already that it is no whole number of leaves.
    pub(super) fn check_size(&self, leaf_bytes: usize) -> Result<()> {
        self.bytes().map_or(Ok(()), |bytes| whole_leaves(&self.name, bytes, leaf_bytes))
    }

    /// Reads all of it, in pieces of so many bytes; each is given to `take`, which says whether to go on. `filled` are
    /// bytes of the next piece that are there already; what is left of the last piece is given back.
    pub(super) fn pieces(
        mut self,
        piece_bytes: usize,
        leaf_bytes: usize,
        filled: Vec<u8>,
        mut take: impl FnMut(Vec<u8>) -> bool,
    ) -> Result<Vec<u8>> {
        let (mut piece, mut total) = (filled, 0);
        loop {
            let room = (piece_bytes - piece.len()) as u64;
            total += self.read_up_to(room, &mut piece)? as u64;
            if piece.len() < piece_bytes {
                break;
            }
            if !take(std::mem::take(&mut piece)) {
                return Ok(Vec::new());
            }
        }
        whole_leaves(&self.name, total, leaf_bytes)?;
        self.check_unchanged(total)?;
        Ok(piece)
    }

    fn read_up_to(&mut self, bytes: u64, piece: &mut Vec<u8>) -> Result<usize> {
        let read = self.reader.by_ref().take(bytes).read_to_end(piece);
        read.with_context(|| format!("{}: cannot be read", self.name))
    }

    /// Reads all of it, in pieces of whole lines and about so many bytes.
    pub(super) fn lines(mut self, piece_bytes: usize, mut take: impl FnMut(Vec<u8>) -> bool) -> Result<()> {
        let name = self.name.clone();
        let cannot = || format!("{name}: cannot be read");
        let mut reader =
            BufReader::with_capacity(1 << 20, std::mem::replace(&mut self.reader, Box::new(io::empty())));
        let mut total = 0;
        loop {
            let mut piece = Vec::with_capacity(piece_bytes);
            let read = reader.by_ref().take(piece_bytes as u64).read_to_end(&mut piece);
            read.with_context(cannot)?;
            let rest = reader.by_ref().take(LONGEST_LINE as u64).read_until(b'\n', &mut piece);
            if rest.with_context(cannot)? == LONGEST_LINE && piece.last() != Some(&b'\n') {
                bail!("{name}: has a line of more than {LONGEST_LINE} bytes: are these lines?");
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

    /// The reader, to read all of it elsewhere; then [`Origin::check_unchanged`] is to be asked.
    pub(super) fn reader(&mut self) -> &mut (dyn Read + Send) {
        &mut self.reader
    }

    /// Fails where a file of which so many bytes were read is not what it was when it was opened.
    pub(super) fn check_unchanged(&self, read: u64) -> Result<()> {
        let Some((file, then)) = &self.file else { return Ok(()) };
        let now = file.metadata().with_context(|| format!("{}: cannot be looked at", self.name))?;
        if now.len() < then.len() || read < then.len() {
            let (had, has) = (then.len(), now.len());
            bail!("{}: was cut short while it was read: it had {had} bytes and now has {has}", self.name);
        }
        if read != then.len() || now.len() != then.len() || now.modified().ok() != then.modified().ok() {
            bail!("{}: changed while it was read, so there is no root that it has", self.name);
        }
        Ok(())
    }
}

/// Fails where so many bytes are no whole number of leaves, with what would be.
pub(super) fn whole_leaves(name: &str, bytes: u64, leaf_bytes: usize) -> Result<()> {
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
    let (less, more) = (count(bytes - over), count(bytes - over + size));
    Err(Usage(format!(
        "{name}: {} bytes are {} leaves of {size} bytes and {over} bytes over: {less} or {more} bytes would fit{or_size}",
        count(bytes),
        count(bytes / size),
    ))
    .into())
}

/// Leaves that anybody can make: leaf n is the number n, its lowest byte first, in as many bytes as a leaf has.
pub(crate) struct Numbers {
    leaves: u64,
    leaf_bytes: usize,
    /// Which byte of all comes next.
    next: u128,
}

impl Numbers {
    fn new(leaves: u64, leaf_bytes: usize) -> Numbers {
        Numbers { leaves, leaf_bytes, next: 0 }
    }

    /// Writes a leaf.
    pub(crate) fn leaf(index: u64, leaf: &mut [u8]) {
        leaf.fill(0);
        for (byte, number) in leaf.iter_mut().zip(index.to_le_bytes()) {
            *byte = number;
        }
    }
}

impl Read for Numbers {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let size = self.leaf_bytes as u128;
        let left = u128::from(self.leaves) * size - self.next;
        let wanted = (bytes.len() as u128).min(left) as usize;
        let (mut done, mut leaf) = (0, vec![0; self.leaf_bytes]);
        while done < wanted {
            let (index, within) = ((self.next / size) as u64, (self.next % size) as usize);
            let some = (self.leaf_bytes - within).min(wanted - done);
            Numbers::leaf(index, &mut leaf);
            bytes[done..done + some].copy_from_slice(&leaf[within..within + some]);
            done += some;
            self.next += some as u128;
        }
        Ok(done)
    }
}

/// Where leaves come from, as it was asked for.
#[derive(Debug)]
pub(super) enum Input {
    Files(Vec<PathBuf>),
    Stdin,
    Numbers(u64),
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn made_up_leaves_are_their_numbers_however_they_are_read() {
        let mut all = Vec::new();
        Numbers::new(300, 5).read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 1500);
        assert_eq!(all[299 * 5..], [43, 1, 0, 0, 0]);
        let (mut piece, mut pieces, mut numbers) = ([0; 7], Vec::new(), Numbers::new(300, 5));
        while let Ok(count @ 1..) = numbers.read(&mut piece) {
            pieces.extend_from_slice(&piece[..count]);
        }
        assert_eq!(pieces, all);
    }

    #[test]
    fn what_does_not_come_out_even_is_told_with_what_would() {
        whole_leaves("f", 96, 32).unwrap();
        whole_leaves("f", 0, 32).unwrap();
        let told = whole_leaves("f", 100, 32).unwrap_err().to_string();
        let expected = "f: 100 bytes are 3 leaves of 32 bytes and 4 bytes over: 96 or 128 bytes would fit, \
                        or --leaf-size 25 or 50";
        assert_eq!(told, expected);
        let prime = whole_leaves("f", 101, 32).unwrap_err().to_string();
        assert!(prime.ends_with("96 or 128 bytes would fit, or --leaf-size 101"), "{prime}");
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leaves");
        std::fs::write(&path, [7; 100]).unwrap();
        let origin = Origin::open(&path).unwrap();
        origin.check_unchanged(100).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(90).unwrap();
        let told = origin.check_unchanged(90).unwrap_err().to_string();
        assert!(told.contains("cut short") && told.contains("100") && told.contains("90"), "{told}");
        let origin = Origin::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(110).unwrap();
        let told = origin.check_unchanged(90).unwrap_err().to_string();
        assert!(told.contains("changed while it was read"), "{told}");
    }

    #[test]
    fn pieces_are_whole_but_for_what_is_given_back() {
        let origin = Origin::made_up(25, 4);
        let mut pieces = Vec::new();
        let rest = origin
            .pieces(32, 4, vec![9; 8], |piece| {
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
        Origin::open(&path).unwrap().lines(6, take).unwrap();
        assert_eq!(pieces, ["one\ntwo, and longer\n", "\nthree"]);
    }
}
