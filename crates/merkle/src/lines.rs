//! Finds and hashes the lines of a text on all cores.
//!
//! Memory per line is its digest alone, and only for one batch of lines at a time: a text of empty lines has as many lines
//! as bytes, so that any memory per line is a multiple of the text.

use memchr::{memchr, memchr_iter};
use rayon::prelude::*;

use crate::{
    hash::{Digest, batch},
    rule::Scheme,
};

/// The approximate number of bytes of text that a rayon task hashes.
const PART_BYTES: usize = 1 << 16;
/// The number of parts whose lines are counted in parallel.
const PARTS: usize = 16;
/// The minimum number of lines of a batch, unless the text ends.
const BATCH_LINES: usize = 1 << 20;

/// Iterates over the lines, without their line endings (`\n` or `\r\n`). Text after the last line ending is a line if it
/// is not empty.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, after) = match memchr(b'\n', rest) {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &[][..]),
        };
        rest = after;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    })
}

/// Counts the lines.
pub(crate) fn count(text: &[u8]) -> u64 {
    let ends = text.par_chunks(PART_BYTES).map(|part| memchr_iter(b'\n', part).count() as u64).sum::<u64>();
    ends + u64::from(text.last().is_some_and(|&last| last != b'\n'))
}

/// Consecutive lines that are hashed together.
#[derive(Debug, Default)]
pub(crate) struct LineBatch<'a> {
    /// Parts of the text, each of which ends at the end of a line, and their numbers of lines.
    parts: Vec<(&'a [u8], usize)>,
    lines: usize,
}

impl LineBatch<'_> {
    /// Computes the hashes of the lines.
    pub(crate) fn hash(&self, scheme: Scheme) -> Vec<Digest> {
        let mut all = vec![Digest::default(); self.lines];
        let mut rest = all.as_mut_slice();
        let mut work = Vec::with_capacity(self.parts.len());
        for (text, lines) in &self.parts {
            let (out, after) = rest.split_at_mut(*lines);
            work.push((*text, out));
            rest = after;
        }
        work.into_par_iter().for_each(|(text, out)| batch::hash_leaves(scheme, lines(text), out));
        all
    }
}

/// Cuts a text into batches of lines.
pub(crate) fn batches(text: &[u8]) -> impl Iterator<Item = LineBatch<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut batch = LineBatch::default();
        while batch.lines < BATCH_LINES && !rest.is_empty() {
            let mut next = Vec::new();
            while next.len() < PARTS && !rest.is_empty() {
                let least = PART_BYTES.min(rest.len()) - 1;
                let end = memchr(b'\n', &rest[least..]).map_or(rest.len(), |end| least + end + 1);
                let (part, after) = rest.split_at(end);
                next.push(part);
                rest = after;
            }
            let of = |part: &[u8]| {
                memchr_iter(b'\n', part).count() + usize::from(part.last().is_some_and(|&last| last != b'\n'))
            };
            batch.parts.par_extend(next.into_par_iter().map(|part| (part, of(part))));
            batch.lines = batch.parts.iter().map(|(_, lines)| lines).sum();
        }
        (batch.lines > 0).then_some(batch)
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn lines_are_without_their_ends() {
        let found = |text: &'static str| -> Vec<String> {
            lines(text.as_bytes()).map(|line| String::from_utf8_lossy(line).into_owned()).collect()
        };
        assert_eq!(found(""), Vec::<String>::new());
        assert_eq!(found("a\nb"), ["a", "b"]);
        assert_eq!(found("a\r\n\nb\n"), ["a", "", "b"]);
        assert_eq!(found("a\rb\r"), ["a\rb"]);
        assert_eq!(found("\n"), [""]);
    }

    #[test]
    fn batches_have_every_line_once_and_in_order() {
        let scheme = Scheme::default();
        let long = "x".repeat(3 * PART_BYTES);
        let mixed: String = (0..40_000)
            .map(|n| match n % 1000 {
                999 => format!("{long}\r\n"),
                _ => format!("{n}\n"),
            })
            .collect();
        let empty = "\n".repeat(BATCH_LINES + 3 * PART_BYTES + 7);
        for text in ["", "a", "a\n", "\n\n", &mixed, &mixed[..mixed.len() - 1], &empty, &format!("{empty}z")]
        {
            let expected: Vec<Digest> = lines(text.as_bytes()).map(|line| scheme.hash_leaf(line)).collect();
            assert_eq!(count(text.as_bytes()), expected.len() as u64);
            let mut found = Vec::new();
            for batch in batches(text.as_bytes()) {
                assert!(batch.lines < BATCH_LINES + (PARTS + 3) * PART_BYTES, "{} lines", batch.lines);
                found.extend(batch.hash(scheme));
            }
            assert!(found == expected, "{} bytes", text.len());
        }
    }
}
