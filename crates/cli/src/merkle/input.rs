//! Where leaves come from: files, standard input, or nowhere.

use std::{
    fs::{File, Metadata},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;

use crate::{
    Usage,
    output::{count, shown},
};

/// A longer line is taken for what is no text.
const LONGEST_LINE: usize = 1 << 30;

/// Whether a path means standard input. A file of that name can be had as `./-`.
pub(super) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// All that is in a file, or on standard input.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut origin = Origin::open(path)?;
    let mut all = Vec::new();
    let name = origin.name.clone();
    origin.reader().read_to_end(&mut all).with_context(|| format!("{name}: cannot be read"))?;
    Ok(all)
}

/// What becomes of bytes after the last whole leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Last {
    /// They are a leaf, which is shorter
    Short,
    /// They are filled up with zeros to a whole leaf
    Pad,
}

/// What is read from: something with a name, whose size and time of change are known where it is a file.
pub(super) struct Origin {
    name: String,
    reader: Box<dyn Read + Send>,
    /// The file, and what it was when it was opened.
    file: Option<(File, Metadata)>,
}

impl Origin {
    /// A file, or whatever else has a path; or standard input for `-`.
    pub(super) fn open(path: &Path) -> Result<Origin> {
        if is_stdin(path) {
            return Ok(Origin { name: "standard input".into(), reader: Box::new(io::stdin()), file: None });
        }
        let name = shown(path);
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
        Ok(Origin { name, reader: Box::new(reader), file })
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
    /// bytes of the next piece that are there already; what is left of the last piece is given back. Only a piece that
    /// ends with a short leaf is no whole number of leaves.
    pub(super) fn pieces(
        mut self,
        piece_bytes: usize,
        leaf_bytes: usize,
        last: Option<Last>,
        filled: Vec<u8>,
        mut take: impl FnMut(Vec<u8>) -> bool,
    ) -> Result<Vec<u8>> {
        let (mut piece, mut total) = (filled, 0);
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
        match last {
            None => whole_leaves(&self.name, total, leaf_bytes)?,
            // There is room for a whole piece.
            Some(Last::Pad) => piece.resize(piece.len().next_multiple_of(leaf_bytes), 0),
            Some(Last::Short) if piece.len().is_multiple_of(leaf_bytes) => {}
            Some(Last::Short) => drop(take(std::mem::take(&mut piece))),
        }
        self.check_unchanged(total)?;
        Ok(piece)
    }

    fn read_up_to(&mut self, bytes: usize, piece: &mut Vec<u8>) -> Result<usize> {
        make_room(piece, bytes, &self.name)?;
        let read = self.reader.by_ref().take(bytes as u64).read_to_end(piece);
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
            let mut piece = Vec::new();
            make_room(&mut piece, piece_bytes, &name)?;
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

/// Files that the system makes as they are read say that they are empty: all that is known of them is what comes.
fn has_size(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.len() > 0
}

/// Whether a path is one of a file that can be read from any place.
pub(super) fn is_file(path: &Path) -> bool {
    !is_stdin(path) && path.metadata().is_ok_and(|there| has_size(&there))
}

/// Makes room for more bytes. Fails where there is no memory for them.
pub(super) fn make_room(piece: &mut Vec<u8>, more: usize, name: &str) -> Result<()> {
    piece.try_reserve_exact(more).map_err(|_| no_memory(name, (piece.len() + more) as u64, None))
}

/// The error where so many bytes are more than there is memory for.
fn no_memory(name: &str, bytes: u64, free: Option<u64>) -> anyhow::Error {
    let free = free.map_or(String::new(), |free| format!(", and {} bytes are free", count(free)));
    anyhow!(
        "{name}: {} bytes of memory are needed{free}: choose a smaller leaf, or hash whole files with --files",
        count(bytes)
    )
}

/// Fails where leaves of a stream are so large that the pieces in flight do not fit in memory.
pub(super) fn check_memory(leaf_bytes: usize, piece_bytes: usize, free: Option<u64>) -> Result<()> {
    // One that is read, one that waits, and one that is worked on.
    let needed = (piece_bytes as u64).saturating_mul(3);
    match free {
        // Small pieces are not worth a refusal: how much is free is a guess.
        Some(free) if leaf_bytes >= piece_bytes && needed > free => {
            let name = format!("leaves of {} bytes", count(leaf_bytes as u64));
            Err(no_memory(&name, needed, Some(free)))
        }
        _ => Ok(()),
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
        "{name}: {} bytes are {} leaves of {size} bytes and {over} bytes over: {less} or {more} bytes would fit{or_size}; \
         --last short takes them as a shorter leaf, --last pad fills them up with zeros",
        count(bytes),
        count(bytes / size),
    ))
    .into())
}

/// Leaves that anybody can make: leaf n is the number n, its lowest byte first, in as many bytes as a leaf has.
pub(crate) struct Numbers {
    leaves: u64,
    leaf_bytes: usize,
    /// Which leaf comes next,
    next: u64,
    /// and which byte of it.
    within: usize,
}

impl Numbers {
    fn new(leaves: u64, leaf_bytes: usize) -> Numbers {
        Numbers { leaves, leaf_bytes, next: 0, within: 0 }
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

/// Where leaves come from, as it was asked for.
#[derive(Debug)]
pub(super) enum Input {
    /// Files in this order; one of them may be standard input.
    Files(Vec<PathBuf>),
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
                        or --leaf-size 25 or 50; --last short takes them as a shorter leaf, --last pad fills them up \
                        with zeros";
        assert_eq!(told, expected);
        let prime = whole_leaves("f", 101, 32).unwrap_err().to_string();
        assert!(prime.contains("96 or 128 bytes would fit, or --leaf-size 101;"), "{prime}");
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
            .pieces(32, 4, None, vec![9; 8], |piece| {
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
