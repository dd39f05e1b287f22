//! Leaves that are read piece by piece.

use std::io::Read;

use super::{Builder, Built, block_height, roots_here};
use crate::{
    error::{Error, Result},
    hash::Digest,
    leaves::Leaves,
    subtree::join,
    task::Roots,
};

/// So many bytes of a stream are read before they are hashed, while the next are read.
const GULP_BYTES: usize = 64 << 20;

impl Builder {
    /// The root over leaves of one size that come from a stream, which may be longer than memory. Fails as
    /// [`Builder::root`], where reading fails, and where the stream ends within a leaf.
    pub fn root_of_stream(&self, stream: impl Read + Send, leaf_bytes: usize) -> Result<Built<Digest>> {
        // No leaves of no size: says why.
        Leaves::of_size(&[], leaf_bytes)?;
        let height = block_height(u64::MAX, leaf_bytes);
        let gulp = (GULP_BYTES / (leaf_bytes << height)).max(1) * (leaf_bytes << height);
        let mut stream = Gulps { stream, gulp };
        let mut next = stream.next()?;
        let (mut roots, mut count) = (Vec::new(), 0);
        while next.len() == gulp {
            let now = next;
            // The next gulp is read while this one is hashed.
            let (hashed, read) = std::thread::scope(|scope| {
                let reading = scope.spawn(|| stream.next());
                let hashed = self.subtree_roots(&Leaves::of_size(&now, leaf_bytes)?, height);
                let read =
                    reading.join().map_err(|_| Error::file("stream".as_ref(), "reading it panicked"))?;
                Ok::<_, Error>((hashed, read))
            })?;
            roots.extend(hashed?);
            count += (gulp / leaf_bytes) as u64;
            next = read?;
        }
        let last = Leaves::of_size(&next, leaf_bytes)?;
        if roots.is_empty() {
            return self.root(&last);
        }
        let format = self.format(&last);
        let value = match next.len() / (leaf_bytes << height) {
            0 => join(self.scheme, [(height, roots), (0, format.bottom_of(&next))]),
            whole => {
                let (blocks, rest) = next.split_at(whole * (leaf_bytes << height));
                roots.extend(self.subtree_roots(&Leaves::of_size(blocks, leaf_bytes)?, height)?);
                join(self.scheme, [(height, roots), (0, format.bottom_of(rest))])
            }
        };
        let leaves = count + last.count();
        Ok(Built::without_run(value, leaves))
    }

    /// The roots of whole blocks.
    fn subtree_roots(&self, leaves: &Leaves<'_>, height: u32) -> Result<Vec<Digest>> {
        if let Some(digests) = self.hashed_here(leaves)? {
            return self.subtree_roots(&Leaves::digests(&digests), height);
        }
        let format = self.format(leaves);
        let built =
            self.blocks::<Roots>(leaves, format, height, |blocks| roots_here(&format, blocks, height))?;
        Ok(built.into_value().0)
    }
}

/// A stream, some bytes at a time.
struct Gulps<R> {
    stream: R,
    gulp: usize,
}

impl<R: Read> Gulps<R> {
    /// The next bytes: fewer than a gulp only at the end.
    fn next(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let limited = self.stream.by_ref().take(self.gulp as u64).read_to_end(&mut bytes);
        limited.map_err(|error| Error::io("stream".as_ref(), "cannot be read", &error))?;
        Ok(bytes)
    }
}
