//! Leaves that come one after another become a root, without all of them being in memory.
//!
//! As many leaves as are a power of two are a complete subtree: its root is computed by the devices while the next leaves
//! are read, and is all that is kept of it.

use std::{
    sync::mpsc::{Receiver, sync_channel},
    time::Instant,
};

use anyhow::Result;
use evener_merkle::{Builder, Digest, Leaves, Rule, Scheme};
use indicatif::ProgressBar;
use rayon::prelude::*;

use super::{input::Origin, sum::Sum};

/// So many bytes are read before they are worked on, while the next are read.
const PIECE_BYTES: usize = 64 << 20;
/// So many hashes of lines are a subtree.
const GROUP_LINES: usize = 1 << 20;

/// How a stream is cut into leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Size(usize),
    Lines,
}

/// What is read, piece by piece, by a thread of its own. That thread is left behind where nobody wants more: it may wait
/// for standard input for ever.
pub(super) fn pieces(origins: Vec<Origin>, cut: Cut) -> Receiver<Result<Vec<u8>>> {
    let (send, receive) = sync_channel(1);
    std::thread::spawn(move || {
        let mut take = |piece: Vec<u8>| piece.is_empty() || send.send(Ok(piece)).is_ok();
        let read = || -> Result<()> {
            let mut rest = Vec::new();
            for origin in origins {
                match cut {
                    Cut::Size(size) => rest = origin.pieces(piece_bytes(size), size, rest, &mut take)?,
                    Cut::Lines => origin.lines(PIECE_BYTES, &mut take)?,
                }
            }
            take(rest);
            Ok(())
        };
        if let Err(error) = read() {
            // Whoever has gone does not want to know.
            let _ = send.send(Err(error));
        }
    });
    receive
}

/// A power of two of leaves, of about as many bytes as a piece should have.
fn piece_bytes(leaf_bytes: usize) -> usize {
    leaf_bytes << (PIECE_BYTES / leaf_bytes).max(1).ilog2()
}

/// What a stream came to.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) root: Digest,
    pub(super) leaves: u64,
    pub(super) bytes: u64,
    pub(super) sum: Sum,
}

/// The root over a stream, with what its runs did in all.
pub(super) fn root(
    builder: &Builder,
    scheme: Scheme,
    pieces: &Receiver<Result<Vec<u8>>>,
    cut: Cut,
    bar: &ProgressBar,
) -> Result<Gathered> {
    let mut groups = Groups::new(builder, scheme);
    let (mut hashed, mut bytes) = (Vec::new(), 0);
    for piece in pieces {
        let piece = piece?;
        bytes += piece.len() as u64;
        match cut {
            Cut::Size(size) => groups.add(&Leaves::of_size(&piece, size)?, piece_bytes(size) / size)?,
            Cut::Lines => {
                hashed.extend(line_hashes(scheme, &piece));
                while hashed.len() >= GROUP_LINES {
                    let rest = hashed.split_off(GROUP_LINES);
                    groups.add(&Leaves::digests(&hashed), GROUP_LINES)?;
                    hashed = rest;
                }
            }
        }
        bar.set_position(bytes);
    }
    if !hashed.is_empty() {
        groups.add(&Leaves::digests(&hashed), GROUP_LINES)?;
    }
    Ok(Gathered { bytes, ..groups.finish()? })
}

/// The hashes of all leaves of a stream, and how many bytes these have.
pub(super) fn hashes(
    scheme: Scheme,
    pieces: &Receiver<Result<Vec<u8>>>,
    cut: Cut,
    bar: &ProgressBar,
) -> Result<(Vec<Digest>, u64)> {
    let (mut hashed, mut bytes) = (Vec::new(), 0);
    for piece in pieces {
        let piece = piece?;
        bytes += piece.len() as u64;
        match cut {
            Cut::Size(size) => {
                let each = piece.par_chunks(size).map(|leaf| scheme.leaf(leaf));
                hashed.par_extend(each);
            }
            Cut::Lines => hashed.extend(line_hashes(scheme, &piece)),
        }
        bar.set_position(bytes);
    }
    Ok((hashed, bytes))
}

/// The hashes of lines, without what ends them, as [`Leaves::lines`] has them.
fn line_hashes(scheme: Scheme, text: &[u8]) -> Vec<Digest> {
    let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    let hash = |line: &&[u8]| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        scheme.leaf(line.strip_suffix(b"\r").unwrap_or(line))
    };
    lines.par_iter().map(hash).collect()
}

/// Complete subtrees, and what comes after them.
struct Groups<'a> {
    builder: &'a Builder,
    scheme: Scheme,
    /// The roots of complete subtrees, all of one size; the last may be of fewer leaves, lifted to their height.
    roots: Vec<Digest>,
    leaves: u64,
    sum: Sum,
    began: Instant,
}

impl<'a> Groups<'a> {
    fn new(builder: &'a Builder, scheme: Scheme) -> Self {
        let (roots, sum) = (Vec::new(), Sum::default());
        Groups { builder, scheme, roots, leaves: 0, sum, began: Instant::now() }
    }

    /// Adds the next group: so many leaves, a power of two, or fewer in the last.
    fn add(&mut self, leaves: &Leaves<'_>, full: usize) -> Result<()> {
        let began = self.began.elapsed();
        let built = self.builder.root(leaves)?;
        self.sum.add(built.report(), built.trace(), began);
        let count = leaves.count();
        let root = match self.roots.is_empty() {
            // Of what stands alone the root is the root of all.
            true => *built.value(),
            false => lift(self.scheme, *built.value(), count, full as u64),
        };
        self.roots.push(root);
        self.leaves += count;
        Ok(())
    }

    fn finish(mut self) -> Result<Gathered> {
        while self.roots.len() > 1 {
            self.roots = self.roots.chunks(2).map(|pair| join(self.scheme, pair)).collect();
        }
        let root = match self.roots.first() {
            Some(root) => *root,
            None => *self.builder.root(&Leaves::digests(&[]))?.value(),
        };
        Ok(Gathered { root, leaves: self.leaves, bytes: 0, sum: self.sum })
    }
}

/// What the root of a tree of fewer leaves becomes at the height of a complete one.
fn lift(scheme: Scheme, root: Digest, leaves: u64, full: u64) -> Digest {
    let levels = full.ilog2() - leaves.next_power_of_two().ilog2();
    (0..levels).fold(root, |node, _| join(scheme, &[node]))
}

/// The node over one or two.
fn join(scheme: Scheme, nodes: &[Digest]) -> Digest {
    match (nodes, scheme.rule()) {
        ([left, right], _) => scheme.node(left, right),
        (_, Rule::Bitcoin) => scheme.node(&nodes[0], &nodes[0]),
        _ => nodes[0],
    }
}

#[cfg(test)]
mod test {
    use evener_device::Device;
    use evener_merkle::Hash;
    use evener_schedule::Pool;

    use super::*;

    #[test]
    fn groups_come_to_the_root_of_all() {
        let pool = Pool::new([Device::cpu()]).unwrap();
        for rule in Rule::ALL {
            let scheme = Scheme::new(Hash::Sha256, rule).unwrap();
            let builder = Builder::new(&pool).scheme(scheme).keep_history_at(None);
            for count in 1..70u32 {
                let hashes: Vec<Digest> = (0..count).map(|n| scheme.leaf(&n.to_le_bytes())).collect();
                for full in [1, 4, 8] {
                    let mut groups = Groups::new(&builder, scheme);
                    for group in hashes.chunks(full) {
                        groups.add(&Leaves::digests(group), full).unwrap();
                    }
                    let of_all = builder.root(&Leaves::digests(&hashes)).unwrap();
                    assert_eq!(groups.leaves, u64::from(count));
                    let root = groups.finish().unwrap().root;
                    assert_eq!(root, *of_all.value(), "{rule}: {count} leaves in groups of {full}");
                }
            }
        }
    }

    #[test]
    fn a_piece_is_a_power_of_two_of_leaves() {
        for size in [1, 7, 32, 33, 4096, PIECE_BYTES - 1, PIECE_BYTES + 1] {
            let piece = piece_bytes(size);
            assert!(piece.is_multiple_of(size) && (piece / size).is_power_of_two(), "{size}: {piece}");
        }
    }

    #[test]
    fn lines_are_those_of_the_library() {
        let scheme = Scheme::default();
        let pool = Pool::new([Device::cpu()]).unwrap();
        let builder = Builder::new(&pool).keep_history_at(None);
        for text in ["a", "a\n", "\n", "a\r\n\nb\r", "one\ntwo\nthree\n"] {
            let hashes = line_hashes(scheme, text.as_bytes());
            let of_library = builder.root(&Leaves::lines(text.as_bytes())).unwrap();
            assert_eq!(
                builder.root(&Leaves::digests(&hashes)).unwrap().value(),
                of_library.value(),
                "{text:?}"
            );
        }
    }
}
