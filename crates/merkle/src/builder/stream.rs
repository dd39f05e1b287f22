//! Roots over leaves that arrive in pieces.

use std::{io::Read, thread, time::Instant};

use super::{Builder, Built, block_height, block_roots, blocks::read_bytes, totals::BuildTotals};
use crate::{
    error::{Error, Result},
    hash::Digest,
    leaves::{LeafSource, Leaves},
    lines::{self, LineBatch},
    subtree::Peaks,
    task::BlockRoots,
};

/// The approximate size of a piece of a stream: one piece is hashed while the next is read.
const PIECE_BYTES: usize = 64 << 20;

impl Builder {
    /// Starts a root over leaves that arrive in pieces and need not be in memory together.
    pub fn stream(&self) -> RootStream<'_> {
        RootStream {
            builder: self,
            peaks: Peaks::default(),
            pending_lines: Vec::new(),
            height: 0,
            totals: BuildTotals::default(),
            began: Instant::now(),
            has_failed: false,
        }
    }

    /// Builds the root over leaves of one size from a reader, which may yield more than fits in memory. Fails as
    /// [`Builder::root`], if reading fails, and if the input ends within a leaf.
    pub fn root_from_reader(&self, reader: impl Read + Send, leaf_bytes: usize) -> Result<Built<Digest>> {
        // Refuses a leaf size of 0.
        Leaves::fixed_size(&[], leaf_bytes)?;
        let piece_bytes = RootStream::recommended_piece_bytes(leaf_bytes);
        let mut pieces = PieceReader { reader, piece_bytes };
        let mut root = self.stream();
        let mut next = pieces.next()?;
        while next.len() == piece_bytes {
            let now = next;
            let (pushed, read) = thread::scope(|scope| {
                let reading = scope.spawn(|| pieces.next());
                let pushed = Leaves::fixed_size(&now, leaf_bytes).and_then(|leaves| root.push(&leaves));
                (pushed, reading.join())
            });
            pushed?;
            next = read.map_err(|_| Error::file("stream".as_ref(), "reading it panicked"))??;
        }
        root.push(&Leaves::fixed_size(&next, leaf_bytes)?)?;
        root.finish()
    }
}

/// A root over leaves that arrive in pieces. It keeps only the roots of complete subtrees, fewer than 64.
///
/// ```
/// use evener_device::Device;
/// use evener_merkle::{Builder, Leaves};
/// use evener_schedule::Pool;
///
/// let pool = Pool::new([Device::cpu()])?;
/// let builder = Builder::new(&pool);
/// let mut stream = builder.stream();
/// stream.push(&Leaves::lines(b"one\ntwo\n"))?;
/// stream.push(&Leaves::slices([&b"three"[..]]))?;
/// let root = stream.finish()?;
/// assert_eq!(root.value(), builder.root(&Leaves::lines(b"one\ntwo\nthree"))?.value());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RootStream<'b> {
    builder: &'b Builder,
    peaks: Peaks,
    /// Hashes of lines, which the devices reduce while the CPU's cores hash the next lines.
    pending_lines: Vec<Digest>,
    /// The minimum block height, which is that of the largest piece so far.
    height: u32,
    totals: BuildTotals,
    began: Instant,
    /// Whether an earlier push has failed, so that there is no root.
    has_failed: bool,
}

impl RootStream<'_> {
    /// Returns the recommended size of a piece: a power of two of leaves, enough to keep devices busy.
    pub fn recommended_piece_bytes(leaf_bytes: usize) -> usize {
        leaf_bytes << (PIECE_BYTES / leaf_bytes.max(1)).max(1).ilog2()
    }

    /// Returns the number of leaves so far.
    pub fn leaves(&self) -> u64 {
        self.peaks.leaves() + self.pending_lines.len() as u64
    }

    /// Adds the next leaves, of any kind and number. Pieces of one power of two of leaves are fastest. Fails as
    /// [`Builder::root`]; the stream then has no root.
    pub fn push(&mut self, leaves: &Leaves<'_>) -> Result<()> {
        self.check()?;
        let pushed = self.push_all(leaves);
        self.has_failed = pushed.is_err();
        pushed
    }

    /// Fails if an earlier push has failed.
    fn check(&self) -> Result<()> {
        match self.has_failed {
            false => Ok(()),
            true => Err(Error::file(
                "stream".as_ref(),
                "some of its leaves could not be added, so it has no root",
            )),
        }
    }

    fn push_all(&mut self, leaves: &Leaves<'_>) -> Result<()> {
        if let LeafSource::Lines(text, _) = &leaves.source {
            return lines::batches(text).try_for_each(|batch| self.push_lines(&batch));
        }
        self.add_pending_lines()?;
        self.add(leaves)
    }

    /// Hashes lines on the CPU's cores while the devices reduce the hashes of the lines before them.
    fn push_lines(&mut self, batch: &LineBatch<'_>) -> Result<()> {
        let scheme = self.builder.scheme;
        let (added, hashed) = thread::scope(|scope| {
            let hashing = scope.spawn(|| batch.hash(scheme));
            (self.add_pending_lines(), hashing.join())
        });
        added?;
        self.pending_lines = hashed.map_err(|_| Error::file("lines".as_ref(), "hashing them panicked"))?;
        Ok(())
    }

    fn add_pending_lines(&mut self) -> Result<()> {
        let digests = std::mem::take(&mut self.pending_lines);
        if digests.is_empty() { Ok(()) } else { self.add(&Leaves::digests(&digests)) }
    }

    fn add(&mut self, leaves: &Leaves<'_>) -> Result<()> {
        let (builder, scheme, count) = (self.builder, self.builder.scheme, leaves.count());
        let is_on_device = matches!(leaves.source, LeafSource::Device(..));
        if is_on_device || !builder.can_use_devices(leaves) {
            let digests = scheme.hash_leaves(leaves)?;
            return if digests.is_empty() { Ok(()) } else { self.add(&Leaves::digests(&digests)) };
        }
        let format = builder.format(leaves);
        let height = block_height(count, format.leaf_size()).max(self.height);
        self.height = height;
        // The leaves before the first block boundary.
        let before = self.peaks.leaves();
        let head = (before.next_multiple_of(1 << height) - before).min(count);
        if head > 0 {
            let bytes = read_bytes(leaves, 0..head * format.leaf_size() as u64)?;
            self.peaks.add_leaves(scheme, &format.leaf_level_of(&bytes));
        }
        let began = self.began.elapsed();
        let built = builder.reduce_blocks::<BlockRoots>(leaves, format, height, head, |blocks| {
            block_roots(&format, blocks, height)
        })?;
        self.totals.add(&built, began);
        let (roots, rest) = built.into_value();
        roots.into_iter().for_each(|root| self.peaks.add(scheme, height, root));
        self.peaks.add_leaves(scheme, &rest);
        Ok(())
    }

    /// Returns the root over all leaves, with the totals of all runs. Fails as [`Builder::root`].
    pub fn finish(mut self) -> Result<Built<Digest>> {
        self.check()?;
        self.add_pending_lines()?;
        let (scheme, leaves) = (self.builder.scheme, self.peaks.leaves());
        let root = self.peaks.root(scheme).or(scheme.empty_root());
        let value = root.ok_or(Error::NoLeaves { rule: scheme.rule() })?;
        Ok(self.totals.finish(value, leaves))
    }
}

/// Reads pieces of a fixed size.
struct PieceReader<R> {
    reader: R,
    piece_bytes: usize,
}

impl<R: Read> PieceReader<R> {
    /// Reads the next piece, which is shorter only at the end of the input.
    fn next(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let limited = self.reader.by_ref().take(self.piece_bytes as u64).read_to_end(&mut bytes);
        limited.map_err(|error| Error::io("stream".as_ref(), "cannot be read", error))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod test {
    use evener_device::Device;
    use evener_schedule::Pool;

    use super::*;
    use crate::{hash::Hash, rule::Rule, rule::Scheme};

    #[test]
    fn pieces_come_to_the_root_of_all() {
        let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
        for rule in Rule::ALL {
            let scheme = Scheme::new(Hash::Sha256, rule).unwrap();
            let builder = Builder::new(&pool).scheme(scheme);
            for count in (1..70).chain([1023, 2048, 5000]) {
                let bytes: Vec<u8> =
                    (0..count * 32).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
                let of_all = builder.root(&Leaves::fixed_size(&bytes, 32).unwrap()).unwrap();
                for piece in [1, 3, 8, 300, 2048].into_iter().filter(|&piece| piece < 100 || count > 100) {
                    let mut stream = builder.stream();
                    for piece in bytes.chunks(piece * 32) {
                        stream.push(&Leaves::fixed_size(piece, 32).unwrap()).unwrap();
                    }
                    assert_eq!(stream.leaves(), u64::from(count));
                    let built = stream.finish().unwrap();
                    assert_eq!(built.value(), of_all.value(), "{rule}: {count} leaves in pieces of {piece}");
                }
            }
        }
    }

    #[test]
    fn leaves_of_every_kind_may_follow_each_other() {
        let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
        let builder = Builder::new(&pool);
        let scheme = builder.scheme;
        let bytes: Vec<u8> = (0..32 * 3000u32).map(|n| (n >> 3) as u8).collect();
        let text: String = (0..3000).map(|n| format!("{n}\r\n")).collect();
        let long = vec![7; 2 * 5000];
        let mut expected: Vec<Digest> = bytes.chunks(32).map(|leaf| scheme.hash_leaf(leaf)).collect();
        expected.extend(text.lines().map(|line| scheme.hash_leaf(line.as_bytes())));
        expected.extend(long.chunks(5000).map(|leaf| scheme.hash_leaf(leaf)));
        expected.extend([scheme.hash_leaf(b"short"), Digest([3; 32])]);
        expected.extend(bytes.chunks(32).map(|leaf| scheme.hash_leaf(leaf)));
        let mut stream = builder.stream();
        stream.push(&Leaves::fixed_size(&bytes, 32).unwrap()).unwrap();
        stream.push(&Leaves::lines(text.as_bytes())).unwrap();
        stream.push(&Leaves::fixed_size(&long, 5000).unwrap()).unwrap();
        stream.push(&Leaves::slices([&b"short"[..]])).unwrap();
        stream.push(&Leaves::digests(&[Digest([3; 32])])).unwrap();
        stream.push(&Leaves::fixed_size(&[], 32).unwrap()).unwrap();
        stream.push(&Leaves::fixed_size(&bytes, 32).unwrap()).unwrap();
        let (found, all) = (stream.finish().unwrap(), builder.root(&Leaves::digests(&expected)).unwrap());
        assert_eq!((found.value(), found.leaves()), (all.value(), expected.len() as u64));
    }

    #[test]
    fn a_stream_has_the_report_and_the_trace_of_all_its_runs() {
        let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
        let builder = Builder::new(&pool).trace();
        let bytes = vec![0; 32 << 16];
        let leaves = Leaves::fixed_size(&bytes, 32).unwrap();
        let alone = builder.root(&leaves).unwrap();
        let mut stream = builder.stream();
        (0..3).for_each(|_| stream.push(&leaves).unwrap());
        let built = stream.finish().unwrap();
        let (report, alone) = (built.report().unwrap(), alone.report().unwrap());
        assert_eq!(report.items, 3 * alone.items);
        assert_eq!(built.leaves_per_item().unwrap() * report.items, built.leaves());
        assert!(built.trace().spans.len() as u64 >= 3, "{:?}", built.trace());
        assert!(builder.stream().finish().unwrap().report().is_none());
    }

    #[test]
    fn a_piece_is_a_power_of_two_of_leaves() {
        for size in [1, 7, 32, 33, 4096, PIECE_BYTES - 1, PIECE_BYTES + 1] {
            let piece = RootStream::recommended_piece_bytes(size);
            assert!(piece.is_multiple_of(size) && (piece / size).is_power_of_two(), "{size}: {piece}");
        }
    }
}
