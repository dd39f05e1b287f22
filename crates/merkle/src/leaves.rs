//! The leaves of a tree and where they are stored.

use std::sync::Arc;

use evener_device::{Buffer, Device, SharedBuffer};

use rayon::prelude::*;

use crate::{
    error::{Error, Result},
    file::LeafFile,
    hash::{Digest, batch},
    lines,
    rule::Scheme,
};

/// The leaves of a tree, in memory, in a file or on a device. Cloning does not copy the leaves.
///
/// ```
/// use evener_merkle::Leaves;
///
/// let bytes = [0; 96];
/// assert_eq!(Leaves::fixed_size(&bytes, 32)?.count(), 3);
/// assert!(Leaves::fixed_size(&bytes, 36).is_err(), "two leaves and 24 more bytes");
/// assert_eq!(Leaves::lines(b"one\ntwo\n").count(), 2);
/// # Ok::<(), evener_merkle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Leaves<'a> {
    pub(crate) source: LeafSource<'a>,
    /// The size of a leaf; 0 if leaves differ in size.
    pub(crate) leaf_bytes: usize,
    /// Whether the leaves are leaf hashes already.
    pub(crate) prehashed: bool,
}

/// Where the leaves are stored.
#[derive(Debug, Clone)]
pub(crate) enum LeafSource<'a> {
    Bytes(&'a [u8]),
    Shared(SharedBuffer<u8>),
    File(Arc<LeafFile>),
    Slices(Arc<[&'a [u8]]>),
    /// A text and its number of lines.
    Lines(&'a [u8], u64),
    Device(Device, Buffer<u8>),
}

impl<'a> Leaves<'a> {
    /// Splits a slice into leaves of one size. Fails if the slice is not a multiple of the leaf size, or the size is 0.
    pub fn fixed_size(bytes: &'a [u8], leaf_bytes: usize) -> Result<Self> {
        check_whole_leaves(bytes.len() as u64, leaf_bytes)?;
        Ok(Leaves { source: LeafSource::Bytes(bytes), leaf_bytes, prehashed: false })
    }

    /// Splits a shared (pinned) host buffer into leaves of one size. Devices copy from it at the full rate of the bus.
    /// Fails as [`Leaves::fixed_size`].
    pub fn shared_buffer(bytes: &SharedBuffer<u8>, leaf_bytes: usize) -> Result<Self> {
        check_whole_leaves(bytes.as_slice().len() as u64, leaf_bytes)?;
        Ok(Leaves { source: LeafSource::Shared(bytes.clone()), leaf_bytes, prehashed: false })
    }

    /// Splits a file, which may be larger than memory, into leaves of one size. Fails as [`Leaves::fixed_size`].
    pub fn file(file: LeafFile, leaf_bytes: usize) -> Result<Self> {
        check_whole_leaves(file.bytes(), leaf_bytes)
            .map_err(|error| Error::file(file.path(), error.to_string()))?;
        Ok(Leaves { source: LeafSource::File(Arc::new(file)), leaf_bytes, prehashed: false })
    }

    /// Splits a device buffer into leaves of one size. Only that device works on them. Fails as [`Leaves::fixed_size`],
    /// and if the buffer belongs to another device.
    pub fn on_device(device: &Device, bytes: &Buffer<u8>, leaf_bytes: usize) -> Result<Self> {
        check_whole_leaves(bytes.len() as u64, leaf_bytes)?;
        if bytes.device() != device.id() {
            let detail = format!("the leaves are on {}", bytes.device());
            let operation = "reading leaves".into();
            return Err(
                evener_device::Error::Unsupported { device: device.id().clone(), operation, detail }.into()
            );
        }
        Ok(Leaves { source: LeafSource::Device(device.clone(), bytes.clone()), leaf_bytes, prehashed: false })
    }

    /// Takes each slice as a leaf, of any size. The CPU's cores hash the leaves; all devices hash the levels above them.
    pub fn slices(slices: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Leaves { source: LeafSource::Slices(slices.into_iter().collect()), leaf_bytes: 0, prehashed: false }
    }

    /// Takes each line of a text as a leaf, without its line ending (`\n` or `\r\n`). Text after the last line ending is a
    /// line if it is not empty. No memory is used per line, so a text may have as many lines as bytes.
    pub fn lines(text: &'a [u8]) -> Self {
        Leaves { source: LeafSource::Lines(text, lines::count(text)), leaf_bytes: 0, prehashed: false }
    }

    /// Takes digests as leaf hashes, without hashing them again: the transaction ids of a Bitcoin block, or results of
    /// [`Scheme::hash_leaf`](crate::Scheme::hash_leaf).
    pub fn digests(digests: &'a [Digest]) -> Self {
        let source = LeafSource::Bytes(bytemuck::cast_slice(digests));
        Leaves { source, leaf_bytes: size_of::<Digest>(), prehashed: true }
    }

    /// Declares that these leaves are leaf hashes already, which are not hashed again. Fails if their size is not 32 bytes.
    pub fn prehashed(self) -> Result<Self> {
        if self.leaf_bytes != size_of::<Digest>() {
            let hint = "digests have 32 bytes each";
            return Err(Error::PartialLeaf { bytes: self.leaf_bytes as u64, leaf_bytes: 32, hint });
        }
        Ok(Leaves { prehashed: true, ..self })
    }

    /// Returns the number of leaves.
    pub fn count(&self) -> u64 {
        let bytes = match &self.source {
            LeafSource::Bytes(bytes) => bytes.len() as u64,
            LeafSource::Shared(bytes) => bytes.as_slice().len() as u64,
            LeafSource::File(file) => file.bytes(),
            LeafSource::Device(_, bytes) => bytes.len() as u64,
            LeafSource::Slices(slices) => return slices.len() as u64,
            LeafSource::Lines(_, count) => return *count,
        };
        bytes / self.leaf_bytes as u64
    }
}

/// The number of leaves that a rayon task hashes.
const LEAVES_PER_TASK: usize = 64;
/// The size of a read: a longer leaf of a file is read in several.
const READ_BYTES: usize = 1 << 20;

impl Scheme {
    /// Computes the hashes of leaves, in order, on the CPU's cores. Fails if leaves cannot be read, or if their file changes
    /// during the read.
    ///
    /// ```
    /// use evener_merkle::{Leaves, Scheme};
    ///
    /// let scheme = Scheme::default();
    /// let digests = scheme.hash_leaves(&Leaves::lines(b"one\ntwo"))?;
    /// assert_eq!(digests, [scheme.hash_leaf(b"one"), scheme.hash_leaf(b"two")]);
    /// # Ok::<(), evener_merkle::Error>(())
    /// ```
    pub fn hash_leaves(self, leaves: &Leaves<'_>) -> Result<Vec<Digest>> {
        let of_bytes = |bytes: &[u8]| match leaves.prehashed {
            true => bytes.chunks_exact(size_of::<Digest>()).map(bytemuck::pod_read_unaligned).collect(),
            false => {
                let mut out = vec![Digest::default(); bytes.len() / leaves.leaf_bytes];
                let tasks = bytes
                    .par_chunks(LEAVES_PER_TASK * leaves.leaf_bytes)
                    .zip(out.par_chunks_mut(LEAVES_PER_TASK));
                tasks
                    .for_each(|(bytes, out)| batch::hash_leaves_of_size(self, bytes, leaves.leaf_bytes, out));
                out
            }
        };
        Ok(match &leaves.source {
            LeafSource::Slices(slices) => {
                let mut out = vec![Digest::default(); slices.len()];
                let tasks = slices.par_chunks(LEAVES_PER_TASK).zip(out.par_chunks_mut(LEAVES_PER_TASK));
                tasks.for_each(|(slices, out)| batch::hash_leaves(self, slices.iter().copied(), out));
                out
            }
            LeafSource::Lines(text, _) => lines::batches(text).flat_map(|batch| batch.hash(self)).collect(),
            LeafSource::Bytes(bytes) => of_bytes(bytes),
            LeafSource::Shared(bytes) => of_bytes(bytes.as_slice()),
            LeafSource::Device(device, buffer) => of_bytes(&device.stream()?.download(buffer)?.wait()?),
            LeafSource::File(file) => self.digests_of_file(file, leaves)?,
        })
    }

    fn digests_of_file(self, file: &LeafFile, leaves: &Leaves<'_>) -> Result<Vec<Digest>> {
        let size = leaves.leaf_bytes as u64;
        let read = |buffer: &mut Vec<u8>, index: u64| -> Result<Digest, String> {
            buffer.resize(leaves.leaf_bytes.min(READ_BYTES), 0);
            let mut at = index * size;
            let mut hasher = self.leaf_hasher();
            for piece in (0..size).step_by(READ_BYTES) {
                let bytes = &mut buffer[..READ_BYTES.min((size - piece) as usize)];
                file.read(at, bytes)?;
                hasher.update(bytes);
                at += bytes.len() as u64;
            }
            match leaves.prehashed {
                true => Ok(bytemuck::pod_read_unaligned(buffer)),
                false => Ok(hasher.finish()),
            }
        };
        let digests: Result<Vec<Digest>, String> =
            (0..leaves.count()).into_par_iter().map_init(Vec::new, read).collect();
        let digests = digests.map_err(|detail| file.failed(detail))?;
        file.check_unchanged()?;
        Ok(digests)
    }
}

impl<'a, const N: usize> From<&'a [[u8; N]]> for Leaves<'a> {
    fn from(leaves: &'a [[u8; N]]) -> Self {
        const { assert!(N > 0, "a leaf has at least one byte") };
        Leaves { source: LeafSource::Bytes(leaves.as_flattened()), leaf_bytes: N, prehashed: false }
    }
}

impl<'a, const N: usize> From<&'a Vec<[u8; N]>> for Leaves<'a> {
    fn from(leaves: &'a Vec<[u8; N]>) -> Self {
        leaves.as_slice().into()
    }
}

/// Fails if the number of bytes is not a multiple of the leaf size, or the size is 0.
fn check_whole_leaves(bytes: u64, leaf_bytes: usize) -> Result<()> {
    let hint = match leaf_bytes {
        0 => "a leaf has at least one byte",
        _ => "cut the input, pad it, or choose another leaf size",
    };
    if leaf_bytes == 0 || !bytes.is_multiple_of(leaf_bytes as u64) {
        return Err(Error::PartialLeaf { bytes, leaf_bytes: leaf_bytes as u64, hint });
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn leaves_that_do_not_come_out_even_are_refused() {
        let error = Leaves::fixed_size(&[0; 100], 32).unwrap_err().to_string();
        assert!(error.starts_with("100 bytes are 3 leaves of 32 bytes and 4 bytes over"), "{error}");
        assert!(Leaves::fixed_size(&[], 0).is_err());
        assert_eq!(Leaves::fixed_size(&[], 32).unwrap().count(), 0);
    }
}
