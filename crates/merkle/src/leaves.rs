//! Where leaves are.

use std::sync::Arc;

use evener_device::{Buffer, Device, SharedBuffer};

use rayon::prelude::*;

use crate::{
    error::{Error, Result},
    file::LeafFile,
    hash::{Digest, many},
    lines,
    rule::Scheme,
};

/// The leaves of a tree, wherever they are. Cloning it copies none of them.
///
/// ```
/// use evener_merkle::Leaves;
///
/// let bytes = [0; 96];
/// assert_eq!(Leaves::of_size(&bytes, 32)?.count(), 3);
/// assert!(Leaves::of_size(&bytes, 36).is_err(), "two leaves, and 24 bytes over");
/// assert_eq!(Leaves::lines(b"one\ntwo\n").count(), 2);
/// # Ok::<(), evener_merkle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Leaves<'a> {
    pub(crate) source: Source<'a>,
    /// The bytes of a leaf, where all have as many.
    pub(crate) leaf_bytes: usize,
    /// Leaves are hashes already, and taken as they are.
    pub(crate) hashed: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Shared(SharedBuffer<u8>),
    File(Arc<LeafFile>),
    Parts(Arc<[&'a [u8]]>),
    /// A text and how many lines it has.
    Lines(&'a [u8], u64),
    Device(Device, Buffer<u8>),
}

impl<'a> Leaves<'a> {
    /// Leaves of one size that follow each other in memory. Fails when they do not come out even, or are of no size.
    pub fn of_size(bytes: &'a [u8], leaf_bytes: usize) -> Result<Self> {
        even(bytes.len() as u64, leaf_bytes)?;
        Ok(Leaves { source: Source::Bytes(bytes), leaf_bytes, hashed: false })
    }

    /// Leaves of one size in memory that a device copies from at the full rate of the bus. Fails as [`Leaves::of_size`].
    pub fn shared(bytes: &SharedBuffer<u8>, leaf_bytes: usize) -> Result<Self> {
        even(bytes.as_slice().len() as u64, leaf_bytes)?;
        Ok(Leaves { source: Source::Shared(bytes.clone()), leaf_bytes, hashed: false })
    }

    /// Leaves of one size in a file, which may be larger than memory. Fails as [`Leaves::of_size`].
    pub fn file(file: LeafFile, leaf_bytes: usize) -> Result<Self> {
        even(file.bytes(), leaf_bytes).map_err(|error| Error::file(file.path(), error.to_string()))?;
        Ok(Leaves { source: Source::File(Arc::new(file)), leaf_bytes, hashed: false })
    }

    /// Leaves of one size that are on a device already. Only that device works on them. Fails as [`Leaves::of_size`], and
    /// where the buffer is not the device's.
    pub fn on_device(device: &Device, bytes: &Buffer<u8>, leaf_bytes: usize) -> Result<Self> {
        even(bytes.len() as u64, leaf_bytes)?;
        if bytes.device() != device.id() {
            let detail = format!("the leaves are on {}", bytes.device());
            let operation = "reading leaves".into();
            return Err(
                evener_device::Error::Unsupported { device: device.id().clone(), operation, detail }.into()
            );
        }
        Ok(Leaves { source: Source::Device(device.clone(), bytes.clone()), leaf_bytes, hashed: false })
    }

    /// Leaves of any sizes. They are hashed on the processor's cores, and only what is above them on every device.
    pub fn parts(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Leaves { source: Source::Parts(parts.into_iter().collect()), leaf_bytes: 0, hashed: false }
    }

    /// The lines of a text, without what ends them (`\n`, or `\r\n`). What comes after the last end of a line is a line
    /// if it is not empty. Nothing is kept for a line: a text may have as many as it has bytes.
    pub fn lines(text: &'a [u8]) -> Self {
        Leaves { source: Source::Lines(text, lines::count(text)), leaf_bytes: 0, hashed: false }
    }

    /// Leaves that are hashes already and are taken as they are, such as the transaction ids of a Bitcoin block, or what
    /// [`Scheme::leaf`](crate::Scheme::leaf) gave.
    pub fn digests(digests: &'a [Digest]) -> Self {
        let source = Source::Bytes(bytemuck::cast_slice(digests));
        Leaves { source, leaf_bytes: size_of::<Digest>(), hashed: true }
    }

    /// Says that these leaves are hashes already, to be taken as they are. Fails where they are not of 32 bytes.
    pub fn that_are_digests(self) -> Result<Self> {
        if self.leaf_bytes != size_of::<Digest>() {
            let hint = "digests have 32 bytes each";
            return Err(Error::Uneven { bytes: self.leaf_bytes as u64, leaf_bytes: 32, hint });
        }
        Ok(Leaves { hashed: true, ..self })
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        let bytes = match &self.source {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Shared(bytes) => bytes.as_slice().len() as u64,
            Source::File(file) => file.bytes(),
            Source::Device(_, bytes) => bytes.len() as u64,
            Source::Parts(parts) => return parts.len() as u64,
            Source::Lines(_, count) => return *count,
        };
        bytes / self.leaf_bytes as u64
    }
}

/// Leaves are hashed one by one on the processor's cores in runs of so many.
const RUN: usize = 64;
/// Longer leaves of a file are read in pieces of this size.
const PIECE: usize = 1 << 20;

impl Scheme {
    /// The hashes of leaves, in order, by the processor's cores. Fails where leaves cannot be read or change meanwhile.
    ///
    /// ```
    /// use evener_merkle::{Leaves, Scheme};
    ///
    /// let scheme = Scheme::default();
    /// let digests = scheme.leaf_digests(&Leaves::lines(b"one\ntwo"))?;
    /// assert_eq!(digests, [scheme.leaf(b"one"), scheme.leaf(b"two")]);
    /// # Ok::<(), evener_merkle::Error>(())
    /// ```
    pub fn leaf_digests(self, leaves: &Leaves<'_>) -> Result<Vec<Digest>> {
        let of_bytes = |bytes: &[u8]| match leaves.hashed {
            true => bytes.chunks_exact(size_of::<Digest>()).map(bytemuck::pod_read_unaligned).collect(),
            false => {
                let mut out = vec![Digest::default(); bytes.len() / leaves.leaf_bytes];
                let runs = bytes.par_chunks(RUN * leaves.leaf_bytes).zip(out.par_chunks_mut(RUN));
                runs.for_each(|(bytes, out)| many::leaves(self, bytes, leaves.leaf_bytes, out));
                out
            }
        };
        Ok(match &leaves.source {
            Source::Parts(parts) => {
                let mut out = vec![Digest::default(); parts.len()];
                let runs = parts.par_chunks(RUN).zip(out.par_chunks_mut(RUN));
                runs.for_each(|(parts, out)| many::each(self, parts.iter().copied(), out));
                out
            }
            Source::Lines(text, _) => lines::batches(text).flat_map(|batch| batch.hash(self)).collect(),
            Source::Bytes(bytes) => of_bytes(bytes),
            Source::Shared(bytes) => of_bytes(bytes.as_slice()),
            Source::Device(device, buffer) => of_bytes(&device.stream()?.download(buffer)?.wait()?),
            Source::File(file) => self.digests_of_file(file, leaves)?,
        })
    }

    fn digests_of_file(self, file: &LeafFile, leaves: &Leaves<'_>) -> Result<Vec<Digest>> {
        let size = leaves.leaf_bytes as u64;
        let read = |buffer: &mut Vec<u8>, index: u64| -> Result<Digest, String> {
            buffer.resize(leaves.leaf_bytes.min(PIECE), 0);
            let mut at = index * size;
            let mut hasher = self.leaf_hasher();
            for piece in (0..size).step_by(PIECE) {
                let bytes = &mut buffer[..PIECE.min((size - piece) as usize)];
                file.read(at, bytes)?;
                hasher.update(bytes);
                at += bytes.len() as u64;
            }
            match leaves.hashed {
                true => Ok(bytemuck::pod_read_unaligned(buffer)),
                false => Ok(hasher.finish()),
            }
        };
        let digests: Result<Vec<Digest>, String> =
            (0..leaves.count()).into_par_iter().map_init(Vec::new, read).collect();
        let digests = digests.map_err(|detail| file.failed(detail))?;
        file.is_unchanged()?;
        Ok(digests)
    }
}

impl<'a, const N: usize> From<&'a [[u8; N]]> for Leaves<'a> {
    fn from(leaves: &'a [[u8; N]]) -> Self {
        const { assert!(N > 0, "a leaf has at least one byte") };
        Leaves { source: Source::Bytes(leaves.as_flattened()), leaf_bytes: N, hashed: false }
    }
}

impl<'a, const N: usize> From<&'a Vec<[u8; N]>> for Leaves<'a> {
    fn from(leaves: &'a Vec<[u8; N]>) -> Self {
        leaves.as_slice().into()
    }
}

fn even(bytes: u64, leaf_bytes: usize) -> Result<()> {
    let hint = match leaf_bytes {
        0 => "a leaf has at least one byte",
        _ => "cut it, fill it up, or choose another size of leaf",
    };
    if leaf_bytes == 0 || !bytes.is_multiple_of(leaf_bytes as u64) {
        return Err(Error::Uneven { bytes, leaf_bytes: leaf_bytes as u64, hint });
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn leaves_that_do_not_come_out_even_are_refused() {
        let error = Leaves::of_size(&[0; 100], 32).unwrap_err().to_string();
        assert!(error.starts_with("100 bytes are 3 leaves of 32 bytes and 4 bytes over"), "{error}");
        assert!(Leaves::of_size(&[], 0).is_err());
        assert_eq!(Leaves::of_size(&[], 32).unwrap().count(), 0);
    }
}
