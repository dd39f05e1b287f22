//! Stores a tree in a file.
//!
//! The format does not depend on the devices that built the tree: eight bytes `EVNRTREE`, the version (4 bytes), the hash
//! function and the rule (one byte each), two zero bytes, the number of leaves (8 bytes), all numbers little-endian; then the
//! nodes, level by level from the leaf hashes to the root, 32 bytes each; then the BLAKE3 hash of all of that.

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

/// The block height of a tree that was read from a file.
const BLOCK_HEIGHT: u32 = 12;

/// The scheme, number of leaves and root of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeSummary {
    /// The hash function and the rule.
    #[serde(flatten)]
    pub scheme: Scheme,
    /// The number of leaves.
    pub leaves: u64,
    /// The root; `None` if the tree is empty and the rule defines no root for it.
    pub root: Option<Digest>,
}

impl MerkleTree {
    /// Returns the scheme, number of leaves and root.
    pub fn summary(&self) -> TreeSummary {
        TreeSummary { scheme: self.scheme(), leaves: self.leaves(), root: self.root() }
    }

    /// Writes the tree to a file atomically: if writing fails, an existing file is unchanged and no temporary file remains.
    /// An existing file keeps its mode; a new file gets the mode of the umask.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = |error: io::Error| Error::io(path, "cannot be written", error);
        replace_file(path, |file| self.write_to(file)).map_err(failed)
    }

    /// Writes the tree in the format that [`MerkleTree::read_from`] reads.
    pub fn write_to(&self, to: impl Write) -> io::Result<()> {
        let mut to =
            Checksummed { inner: BufWriter::with_capacity(1 << 20, to), checksum: blake3::Hasher::new() };
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        to.write_all(&[
            index_of(&Hash::ALL, self.scheme.hash()),
            index_of(&Rule::ALL, self.scheme.rule()),
            0,
            0,
        ])?;
        to.write_all(&self.leaves().to_le_bytes())?;
        for level in 0..self.levels() {
            self.write_level(level, &mut to)?;
        }
        let checksum = to.checksum.finalize();
        to.inner.write_all(checksum.as_bytes())?;
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

    /// Reads a tree from a file. Fails if the file cannot be read, is truncated or damaged, or is not a tree.
    pub fn load(path: impl AsRef<Path>) -> Result<MerkleTree> {
        let path = path.as_ref();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => Error::file(path, error.to_string()),
            io::ErrorKind::UnexpectedEof => Error::file(path, "is cut short: it ends within the tree"),
            _ => Error::io(path, "cannot be read", error),
        };
        let file = File::open(path).map_err(failed)?;
        // A pipe has no size.
        let metadata = file.metadata().map_err(failed)?;
        MerkleTree::read(file, metadata.is_file().then_some(metadata.len())).map_err(failed)
    }

    /// Reads a tree that [`MerkleTree::write_to`] wrote. Damaged input is an error of kind `InvalidData`.
    pub fn read_from(from: impl Read) -> io::Result<MerkleTree> {
        MerkleTree::read(from, None)
    }

    fn read(from: impl Read, bytes: Option<u64>) -> io::Result<MerkleTree> {
        let mut from =
            Checksummed { inner: BufReader::with_capacity(1 << 20, from), checksum: blake3::Hasher::new() };
        let magic: [u8; 8] = from.take_bytes()?;
        let version = u32::from_le_bytes(from.take_bytes()?);
        if magic != MAGIC || version != VERSION {
            return Err(invalid(format!("is not a tree file of version {VERSION}")));
        }
        let [hash, rule, ..]: [u8; 4] = from.take_bytes()?;
        let (hash, rule) = (Hash::ALL.get(usize::from(hash)), Rule::ALL.get(usize::from(rule)));
        let scheme = hash.zip(rule).and_then(|(hash, rule)| Scheme::new(*hash, *rule).ok());
        let scheme = scheme.ok_or_else(|| invalid("names an unknown hash function or rule".into()))?;
        let leaves = u64::from_le_bytes(from.take_bytes()?);
        // Checked before any allocation, since the number of leaves may be damaged.
        let nodes: u128 =
            (0..level_count(leaves)).map(|level| u128::from(nodes_in_level(leaves, level))).sum();
        let expected = u128::from(HEADER_BYTES + DIGEST_BYTES) + nodes * u128::from(DIGEST_BYTES);
        if let Some(bytes) = bytes.filter(|&bytes| u128::from(bytes) != expected) {
            let detail =
                format!("is cut short or damaged: it has {bytes} bytes, and {leaves} leaves take {expected}");
            return Err(invalid(detail));
        }
        let mut levels = Vec::new();
        for level in 0..level_count(leaves) {
            levels.push(from.take_digests(nodes_in_level(leaves, level))?);
        }
        let checksum = from.checksum.finalize();
        let mut kept = [0; 32];
        from.inner.read_exact(&mut kept)?;
        if checksum != kept {
            return Err(invalid("is damaged: its checksum does not match".into()));
        }
        Ok(MerkleTree::from_levels(scheme, &levels))
    }

    /// Creates a tree from all of its levels.
    fn from_levels(scheme: Scheme, levels: &[Vec<Digest>]) -> MerkleTree {
        let bottom = levels.first().map_or(&[][..], Vec::as_slice);
        let complete = bottom.len() >> BLOCK_HEIGHT;
        let block = |index: usize| {
            let of_level = |level: usize| {
                let count = 1 << (BLOCK_HEIGHT as usize - level);
                &levels[level][index * count..(index + 1) * count]
            };
            (0..=BLOCK_HEIGHT as usize).flat_map(of_level).copied().collect()
        };
        let blocks = (0..complete).map(block).collect();
        MerkleTree::from_blocks(scheme, BLOCK_HEIGHT, blocks, bottom[complete << BLOCK_HEIGHT..].to_vec())
    }
}

fn invalid(detail: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}

/// Returns the index of a value among all of its kind.
fn index_of<T: PartialEq>(all: &[T], value: T) -> u8 {
    all.iter().position(|it| *it == value).unwrap_or_default() as u8
}

/// A reader or writer that computes the checksum of all bytes.
struct Checksummed<S> {
    inner: S,
    checksum: blake3::Hasher,
}

impl<W: Write> Write for Checksummed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.checksum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Checksummed<R> {
    fn take_bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    /// Reads digests in batches, so that memory is allocated only for digests that exist.
    fn take_digests(&mut self, count: u64) -> io::Result<Vec<Digest>> {
        const BATCH: u64 = 1 << 15;
        let mut digests: Vec<Digest> = Vec::new();
        while (digests.len() as u64) < count {
            let before = digests.len();
            let more = BATCH.min(count - before as u64) as usize;
            digests.resize(before + more, Digest::default());
            let bytes = bytemuck::cast_slice_mut(&mut digests[before..]);
            self.inner.read_exact(bytes)?;
            self.checksum.update(bytes);
        }
        Ok(digests)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn tree(count: u32) -> MerkleTree {
        let digests: Vec<Digest> =
            (0..count).map(|n| Scheme::default().hash_leaf(&n.to_le_bytes())).collect();
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

    /// A writer with room for a number of bytes.
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
