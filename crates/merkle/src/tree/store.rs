//! A tree in a file.
//!
//! The file is the same whatever devices have built the tree: eight bytes `EVNRTREE`, the version (4 bytes), hash function
//! and rule (a byte each) and two bytes 0, the number of leaves (8 bytes), all numbers with the lowest byte first; then the
//! nodes, level after level from the leaves' hashes to the root, 32 bytes each; then the BLAKE3 hash of all of that.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{MerkleTree, level_count, nodes_in_level};
use crate::{
    error::{Error, Result},
    file::replace_file,
    hash::{Digest, Hash},
    rule::{Rule, Scheme},
};

const MAGIC: [u8; 8] = *b"EVNRTREE";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 24;
const DIGEST_BYTES: u64 = size_of::<Digest>() as u64;

/// Complete subtrees of a tree that was read have this height.
const HEIGHT: u32 = 12;

/// What a tree is over and what it comes to, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The hash function and the rule.
    #[serde(flatten)]
    pub scheme: Scheme,
    /// How many leaves it has.
    pub leaves: u64,
    /// Its root; nothing for no leaves where the rule has no root for none.
    pub root: Option<Digest>,
}

impl MerkleTree {
    /// What it is over and what it comes to, in short.
    pub fn summary(&self) -> Summary {
        Summary { scheme: self.scheme(), leaves: self.leaves(), root: self.root() }
    }

    /// Writes the tree to a file, whole or not at all: where that fails, for want of room or for another reason, a file
    /// that was there is as it was, and no part of a new one is left behind. A file that is replaced keeps its mode; a new
    /// one has what the umask says.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = |error: io::Error| Error::io(path, "cannot be written", &error);
        replace_file(path, |file| self.write_to(file)).map_err(failed)
    }

    /// Writes what [`MerkleTree::read_from`] reads.
    pub fn write_to(&self, to: impl Write) -> io::Result<()> {
        let mut to = Summed { inner: BufWriter::with_capacity(1 << 20, to), sum: blake3::Hasher::new() };
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        to.write_all(&[code(&Hash::ALL, self.scheme.hash()), code(&Rule::ALL, self.scheme.rule()), 0, 0])?;
        to.write_all(&self.leaves().to_le_bytes())?;
        for level in 0..self.levels() {
            self.write_level(level, &mut to)?;
        }
        let sum = to.sum.finalize();
        to.inner.write_all(sum.as_bytes())?;
        to.inner.flush()
    }

    fn write_level(&self, level: u32, to: &mut impl Write) -> io::Result<()> {
        if level >= self.height && !self.blocks.is_empty() {
            return to.write_all(bytemuck::cast_slice(&self.top[(level - self.height) as usize]));
        }
        if level <= self.height {
            let start = super::level_start(self.height, level);
            for block in &self.blocks {
                to.write_all(bytemuck::cast_slice(&block[start..start + (1 << (self.height - level))]))?;
            }
        }
        self.edge.get(level as usize).map_or(Ok(()), |edge| to.write_all(bytemuck::cast_slice(edge)))
    }

    /// Reads a tree that was written to a file. Fails where the file cannot be read, is cut short or damaged, or is none
    /// of these.
    pub fn load(path: impl AsRef<Path>) -> Result<MerkleTree> {
        let path = path.as_ref();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => Error::file(path, error.to_string()),
            io::ErrorKind::UnexpectedEof => Error::file(path, "is cut short: it ends within the tree"),
            _ => Error::io(path, "cannot be read", &error),
        };
        let file = File::open(path).map_err(failed)?;
        // What is no file, such as a pipe, has no size to be known before it is read.
        let there = file.metadata().map_err(failed)?;
        MerkleTree::read(file, there.is_file().then_some(there.len())).map_err(failed)
    }

    /// Reads what [`MerkleTree::write_to`] wrote. What is damaged, or none of that, is `InvalidData`.
    pub fn read_from(from: impl Read) -> io::Result<MerkleTree> {
        MerkleTree::read(from, None)
    }

    fn read(from: impl Read, bytes: Option<u64>) -> io::Result<MerkleTree> {
        let mut from = Summed { inner: BufReader::with_capacity(1 << 20, from), sum: blake3::Hasher::new() };
        let magic: [u8; 8] = from.take_bytes()?;
        let version = u32::from_le_bytes(from.take_bytes()?);
        if magic != MAGIC || version != VERSION {
            return Err(invalid(format!("is not a tree that this version reads ({VERSION})")));
        }
        let [hash, rule, ..]: [u8; 4] = from.take_bytes()?;
        let (hash, rule) = (Hash::ALL.get(usize::from(hash)), Rule::ALL.get(usize::from(rule)));
        let scheme = hash.zip(rule).and_then(|(hash, rule)| Scheme::new(*hash, *rule).ok());
        let scheme =
            scheme.ok_or_else(|| invalid("names a hash function or a rule that there is not".into()))?;
        let leaves = u64::from_le_bytes(from.take_bytes()?);
        // Before anything is allocated for what a damaged number asks for.
        let nodes: u128 =
            (0..level_count(leaves)).map(|level| u128::from(nodes_in_level(leaves, level))).sum();
        let expected = u128::from(HEADER_BYTES + DIGEST_BYTES) + nodes * u128::from(DIGEST_BYTES);
        if let Some(bytes) = bytes.filter(|&bytes| u128::from(bytes) != expected) {
            let detail =
                format!("is cut short or damaged: {bytes} bytes, and {leaves} leaves take {expected}");
            return Err(invalid(detail));
        }
        let mut levels = Vec::new();
        for level in 0..level_count(leaves) {
            levels.push(from.take_digests(nodes_in_level(leaves, level))?);
        }
        let sum = from.sum.finalize();
        let mut kept = [0; 32];
        from.inner.read_exact(&mut kept)?;
        if sum != kept {
            return Err(invalid("is damaged: its checksum is another".into()));
        }
        Ok(MerkleTree::from_levels(scheme, &levels))
    }

    /// A tree of all of its levels.
    fn from_levels(scheme: Scheme, levels: &[Vec<Digest>]) -> MerkleTree {
        let bottom = levels.first().map_or(&[][..], Vec::as_slice);
        let complete = bottom.len() >> HEIGHT;
        let block = |index: usize| {
            let of_level = |level: usize| {
                let count = 1 << (HEIGHT as usize - level);
                &levels[level][index * count..(index + 1) * count]
            };
            (0..=HEIGHT as usize).flat_map(of_level).copied().collect()
        };
        let blocks = (0..complete).map(block).collect();
        MerkleTree::from_blocks(scheme, HEIGHT, blocks, bottom[complete << HEIGHT..].to_vec())
    }
}

fn invalid(detail: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}

/// The place of a value among all of its kind.
fn code<T: PartialEq>(all: &[T], value: T) -> u8 {
    all.iter().position(|it| *it == value).unwrap_or_default() as u8
}

/// A stream whose bytes are summed up as they pass.
struct Summed<S> {
    inner: S,
    sum: blake3::Hasher,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Summed<R> {
    fn take_bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.sum.update(&bytes);
        Ok(bytes)
    }

    /// Reads so many digests, some at a time: nothing is allocated for what is not there.
    fn take_digests(&mut self, count: u64) -> io::Result<Vec<Digest>> {
        const SOME: u64 = 1 << 15;
        let mut digests: Vec<Digest> = Vec::new();
        while (digests.len() as u64) < count {
            let before = digests.len();
            let some = SOME.min(count - before as u64) as usize;
            digests.resize(before + some, Digest::default());
            let bytes = bytemuck::cast_slice_mut(&mut digests[before..]);
            self.inner.read_exact(bytes)?;
            self.sum.update(bytes);
        }
        Ok(digests)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn tree(count: u32) -> MerkleTree {
        let digests: Vec<Digest> = (0..count).map(|n| Scheme::default().leaf(&n.to_le_bytes())).collect();
        MerkleTree::from_blocks(Scheme::default(), 14, Vec::new(), digests)
    }

    #[test]
    fn a_tree_that_is_stored_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tree");
        for count in [0, 1, 2, 3, 100, 4095, 4096, 4097, 10_000] {
            let tree = tree(count);
            tree.save(&path).unwrap();
            let mut loaded = MerkleTree::load(&path).unwrap();
            assert_eq!(loaded.summary(), tree.summary());
            let (mut again, mut written) = (Vec::new(), Vec::new());
            tree.write_to(&mut written).unwrap();
            loaded.write_to(&mut again).unwrap();
            assert!(written == again, "{count} leaves: the file is the same whatever the blocks");
            loaded.append(b"one more");
            assert_eq!(loaded.leaves(), u64::from(count) + 1);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_cut_short_or_damaged_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tree");
        tree(1000).save(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 7, 23, 24, 1000, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let error = MerkleTree::load(&path).unwrap_err().to_string();
            assert!(error.contains("cut short"), "cut to {cut}: {error}");
            assert!(MerkleTree::read_from(&whole[..cut]).is_err());
        }
        for place in [3, 9, 12, 13, 16, 23, 24, 5000, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            assert!(MerkleTree::load(&path).is_err(), "byte {place}");
        }
        let long = [&whole[..], &[0]].concat();
        std::fs::write(&path, long).unwrap();
        assert!(MerkleTree::load(&path).is_err());
    }

    /// Room for so many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_told() {
        let error = tree(100_000).write_to(Full(1 << 21)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        // A folder that is in the way cannot be replaced by a file.
        let path = folder.path().join("tree");
        std::fs::create_dir(&path).unwrap();
        assert!(tree(10).save(&path).unwrap_err().to_string().contains("tree"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(tree(10).save(folder.path().join("no/such/folder")).is_err());
    }
}
