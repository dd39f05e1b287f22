//! Reads leaves in pieces and reduces them to a root, without having all of them in memory.

use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::Result;
use evener_merkle::{Builder, Built, Digest, Leaves, RootStream, Scheme};
use indicatif::ProgressBar;

use super::input::{LeafReader, PartialLeaf};

/// The size of a piece of text: one piece is hashed while the next is read.
const TEXT_PIECE_BYTES: usize = 16 << 20;

/// How a stream is split into leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// Leaves of this size, and how to handle a partial leaf at the end of a file.
    Size(usize, Option<PartialLeaf>),
    Lines,
}

/// Reads pieces on a separate thread. The thread is not joined, because it may block on standard input for ever.
pub(super) fn read_pieces(readers: Vec<LeafReader>, split: Split) -> Receiver<Result<Vec<u8>>> {
    let (send, receive) = sync_channel(1);
    std::thread::spawn(move || {
        let mut take = |piece: Vec<u8>| piece.is_empty() || send.send(Ok(piece)).is_ok();
        let read = || -> Result<()> {
            let mut rest = Vec::new();
            for reader in readers {
                match split {
                    Split::Size(size, partial) => {
                        let piece_bytes = RootStream::recommended_piece_bytes(size);
                        rest = reader.read_pieces(piece_bytes, size, partial, rest, &mut take)?;
                    }
                    Split::Lines => reader.read_lines(TEXT_PIECE_BYTES, &mut take)?,
                }
            }
            take(rest);
            Ok(())
        };
        if let Err(error) = read() {
            // The receiver may have failed already.
            let _ = send.send(Err(error));
        }
    });
    receive
}

/// Returns the leaves of a piece: those of one size or lines, and a partial one.
fn leaves(piece: &[u8], split: Split) -> Result<[Leaves<'_>; 2]> {
    Ok(match split {
        Split::Lines => [Leaves::lines(piece), Leaves::slices([])],
        Split::Size(size, _) => {
            let (whole, partial) = piece.split_at(piece.len() / size * size);
            [Leaves::fixed_size(whole, size)?, Leaves::slices(Some(partial).filter(|leaf| !leaf.is_empty()))]
        }
    })
}

/// Computes the root of a stream, and its number of bytes.
pub(super) fn root(
    builder: &Builder,
    pieces: &Receiver<Result<Vec<u8>>>,
    split: Split,
    bar: &ProgressBar,
) -> Result<(Built<Digest>, u64)> {
    let (mut stream, mut bytes) = (builder.stream(), 0);
    for piece in pieces {
        let piece = piece?;
        leaves(&piece, split)?.iter().try_for_each(|leaves| stream.push(leaves))?;
        bytes += piece.len() as u64;
        bar.set_position(bytes);
    }
    Ok((stream.finish()?, bytes))
}

/// Computes the leaf hashes of a stream, and its number of bytes.
pub(super) fn leaf_hashes(
    scheme: Scheme,
    pieces: &Receiver<Result<Vec<u8>>>,
    split: Split,
    bar: &ProgressBar,
) -> Result<(Vec<Digest>, u64)> {
    let (mut hashes, mut bytes) = (Vec::new(), 0);
    for piece in pieces {
        let piece = piece?;
        for leaves in leaves(&piece, split)? {
            hashes.extend(scheme.hash_leaves(&leaves)?);
        }
        bytes += piece.len() as u64;
        bar.set_position(bytes);
    }
    Ok((hashes, bytes))
}
