//! How the sums of a proof are cut into pieces.

use std::ops::Range;

use super::super::ProvingKey;

/// Pieces of a sum in the first group, and in the second: enough to divide by the devices' rates.
const G1_PIECES: usize = 24;
const G2_PIECES: usize = 48;
/// Minimum number of points of a piece: sums of fewer take longer per point.
const MIN_POINTS: usize = 512;
/// Pieces with more points than this begin at a multiple of it, from where a GPU can multiply without the points before.
const ALIGNMENT: usize = 1 << 11;
/// The cost of a point in the second group, and of an element of the domain for the quotient, relative to a point in the
/// first group.
const G2_COST: f64 = 3.0;
const QUOTIENT_COST: f64 = 0.6;

/// One of the five sums of a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sum {
    /// A, over all wires.
    A,
    /// B in the first group, over all wires.
    B1,
    /// B in the second group, over all wires.
    B2,
    /// L, over the private wires.
    L,
    /// H, over the scalars of the quotient polynomial.
    H,
}

impl Sum {
    /// The sums whose scalars are values of the witness. The one that takes longest is first.
    pub(super) const OF_WIRES: [Sum; 4] = [Sum::B2, Sum::A, Sum::B1, Sum::L];

    /// Number of points.
    pub(super) fn points(self, key: &ProvingKey) -> usize {
        match self {
            Sum::A | Sum::B1 | Sum::B2 => key.wires(),
            Sum::L => key.queries.l.len(),
            Sum::H => key.domain(),
        }
    }
}

/// A range of the points of a sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The sum.
    pub sum: Sum,
    /// The points.
    pub range: Range<usize>,
}

/// A piece of a proof, which one device computes at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// The scalars of the quotient polynomial.
    Quotient,
    /// Some points of a sum.
    Points(Part),
}

impl Piece {
    /// The cost relative to a point in the first group.
    pub(super) fn cost(&self, key: &ProvingKey) -> f64 {
        match self {
            Piece::Quotient => key.domain() as f64 * QUOTIENT_COST,
            Piece::Points(Part { sum: Sum::B2, range }) => range.len() as f64 * G2_COST,
            Piece::Points(Part { range, .. }) => range.len() as f64,
        }
    }
}

/// Cuts a number of points into ranges.
pub(super) type Cut = dyn Fn(Sum, usize) -> Vec<Range<usize>> + Send + Sync;

/// Cuts points into about equal ranges.
pub(super) fn even_ranges(sum: Sum, points: usize) -> Vec<Range<usize>> {
    let pieces = if sum == Sum::B2 { G2_PIECES } else { G1_PIECES };
    let mut size = points.div_ceil(pieces).max(MIN_POINTS);
    if size > ALIGNMENT {
        size = size.next_multiple_of(ALIGNMENT);
    }
    (0..points).step_by(size).map(|start| start..(start + size).min(points)).collect()
}

/// Returns the pieces of some sums, those of one sum after the other.
pub(super) fn pieces(key: &ProvingKey, sums: &[Sum], cut: &Cut) -> Vec<Piece> {
    let of_sum = |&sum: &Sum| {
        cut(sum, sum.points(key)).into_iter().map(move |range| Piece::Points(Part { sum, range }))
    };
    sums.iter().flat_map(of_sum).collect()
}

/// Joins pieces that follow each other into as few parts as possible.
pub(super) fn joined<'a>(pieces: impl IntoIterator<Item = &'a Piece>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for piece in pieces {
        let Piece::Points(part) = piece else { continue };
        match parts.last_mut() {
            Some(last) if last.sum == part.sum && last.range.end == part.range.start => {
                last.range.end = part.range.end;
            }
            _ => parts.push(part.clone()),
        }
    }
    parts
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_point_is_in_one_range_and_pieces_in_order_are_joined() {
        for points in [0, 1, 511, 512, 513, 1000, 5000, 100_000, 1 << 20, (1 << 20) + 77] {
            for sum in [Sum::A, Sum::B2] {
                let ranges = even_ranges(sum, points);
                let end = ranges.iter().fold(0, |end, range| {
                    assert!(range.start == end && !range.is_empty(), "{points}: {ranges:?}");
                    range.end
                });
                assert_eq!(end, points);
                assert!(ranges.len() <= G2_PIECES);
                let pieces: Vec<Piece> =
                    ranges.into_iter().map(|range| Piece::Points(Part { sum, range })).collect();
                let whole = (points > 0).then_some(Part { sum, range: 0..points });
                assert_eq!(joined(&pieces), Vec::from_iter(whole));
            }
        }
        let part = |sum, range| Piece::Points(Part { sum, range });
        let apart = [Piece::Quotient, part(Sum::A, 0..3), part(Sum::B1, 3..5), part(Sum::B1, 6..7)];
        assert_eq!(joined(&apart).len(), 3);
    }
}
