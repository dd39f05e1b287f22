//! Leaves that come one after another become a root, without all of them being in memory.

use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::Result;
use evener_merkle::{Builder, Built, Digest, Leaves, RootStream, Scheme};
use indicatif::ProgressBar;

use super::input::{Last, Origin};

/// So many bytes of text are read before they are worked on, while the next are read.
const TEXT_BYTES: usize = 16 << 20;

/// How a stream is cut into leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Size(usize, Option<Last>),
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
                    Cut::Size(size, last) => {
                        rest = origin.pieces(
                            RootStream::recommended_piece_bytes(size),
                            size,
                            last,
                            rest,
                            &mut take,
                        )?;
                    }
                    Cut::Lines => origin.lines(TEXT_BYTES, &mut take)?,
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

/// The leaves of a piece: those of one size or lines, and one that is shorter.
fn leaves(piece: &[u8], cut: Cut) -> Result<[Leaves<'_>; 2]> {
    Ok(match cut {
        Cut::Lines => [Leaves::lines(piece), Leaves::slices([])],
        Cut::Size(size, _) => {
            let (whole, short) = piece.split_at(piece.len() / size * size);
            [Leaves::fixed_size(whole, size)?, Leaves::slices(Some(short).filter(|short| !short.is_empty()))]
        }
    })
}

/// The root over a stream, with what its runs did in all, and how many bytes it has.
pub(super) fn root(
    builder: &Builder,
    pieces: &Receiver<Result<Vec<u8>>>,
    cut: Cut,
    bar: &ProgressBar,
) -> Result<(Built<Digest>, u64)> {
    let (mut stream, mut bytes) = (builder.stream(), 0);
    for piece in pieces {
        let piece = piece?;
        leaves(&piece, cut)?.iter().try_for_each(|leaves| stream.push(leaves))?;
        bytes += piece.len() as u64;
        bar.set_position(bytes);
    }
    Ok((stream.finish()?, bytes))
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
        for leaves in leaves(&piece, cut)? {
            hashed.extend(scheme.hash_leaves(&leaves)?);
        }
        bytes += piece.len() as u64;
        bar.set_position(bytes);
    }
    Ok((hashed, bytes))
}
