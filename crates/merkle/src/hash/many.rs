//! Many leaves or nodes at once, on the processor.
//!
//! Digests go through AVX-512 where the processor has it ([`wide`](super::wide)): sixteen messages at a time, or eight of
//! Keccak-256's. Otherwise, and for leaves of other sizes, SHA-256 goes through `tape-sha256`, four messages at a time with
//! the SHA instructions and eight with AVX2; Keccak-256 and BLAKE3 go through their crates, one message after another.

use super::{Digest, Hash};
use crate::rule::Scheme;

/// So many messages are hashed in one go.
const GO: usize = 64;

/// Hashes leaves of one size that follow each other, as many as there is room for.
pub(crate) fn leaves(scheme: Scheme, bytes: &[u8], size: usize, out: &mut [Digest]) {
    debug_assert_eq!(bytes.len(), size * out.len());
    #[cfg(target_arch = "x86_64")]
    if size == size_of::<Digest>()
        && super::wide::hash_ones(around(scheme, scheme.leaf_prefix()), bytemuck::cast_slice(bytes), out)
    {
        return;
    }
    messages(scheme, scheme.leaf_prefix(), bytes, size, out);
}

/// Hashes pairs of neighbours, as many as there is room for.
pub(crate) fn nodes(scheme: Scheme, children: &[Digest], out: &mut [Digest]) {
    debug_assert_eq!(children.len(), 2 * out.len());
    // A few are done sooner one by one than as many at once as there are lanes.
    const FEW: usize = 3;
    #[cfg(target_arch = "x86_64")]
    if out.len() > FEW && super::wide::hash_pairs(around(scheme, scheme.node_prefix()), children, out) {
        return;
    }
    messages(scheme, scheme.node_prefix(), bytemuck::cast_slice(children), 2 * size_of::<Digest>(), out);
}

#[cfg(target_arch = "x86_64")]
fn around(scheme: Scheme, prefix: &[u8]) -> super::wide::Around {
    let (hash, prefix, double) = (scheme.hash(), prefix.first().copied(), scheme.is_double());
    super::wide::Around { hash, prefix, double }
}

/// Hashes leaves of any sizes, as many as there is room for.
pub(crate) fn each<'a>(scheme: Scheme, leaves: impl IntoIterator<Item = &'a [u8]>, out: &mut [Digest]) {
    let mut leaves = leaves.into_iter();
    if scheme.hash() != Hash::Sha256 || scheme.is_double() {
        leaves.zip(out).for_each(|(leaf, out)| *out = scheme.leaf(leaf));
        return;
    }
    // Messages that are hashed together take as long as the longest of them: long ones are hashed one by one.
    const LONG: usize = 1024;
    for out in out.chunks_mut(GO) {
        let mut list: [&[u8]; GO] = [&[]; GO];
        list.iter_mut().zip(leaves.by_ref().take(out.len())).for_each(|(slot, leaf)| *slot = leaf);
        let list = &mut list[..out.len()];
        let long: Vec<(usize, &[u8])> =
            list.iter().copied().enumerate().filter(|(_, leaf)| leaf.len() > LONG).collect();
        long.iter().for_each(|(index, _)| list[*index] = &[]);
        tape_sha256::hash_many_prefixed(scheme.leaf_prefix(), list, bytemuck::cast_slice_mut(out));
        long.iter().for_each(|(index, leaf)| out[*index] = scheme.leaf(leaf));
    }
}

/// Hashes messages of one size that follow each other, each with a prefix.
fn messages(scheme: Scheme, prefix: &[u8], bytes: &[u8], size: usize, out: &mut [Digest]) {
    match scheme.hash() {
        Hash::Sha256 => {
            for (bytes, out) in bytes.chunks(GO * size).zip(out.chunks_mut(GO)) {
                let mut list: [&[u8]; GO] = [&[]; GO];
                let count = out.len();
                list.iter_mut().zip(bytes.chunks(size)).for_each(|(slot, message)| *slot = message);
                let out: &mut [[u8; 32]] = bytemuck::cast_slice_mut(out);
                tape_sha256::hash_many_prefixed(prefix, &list[..count], out);
                if scheme.is_double() {
                    let mut once = [[0; 32]; GO];
                    once[..count].copy_from_slice(out);
                    list.iter_mut().zip(&once).for_each(|(slot, message)| *slot = message);
                    tape_sha256::hash_many(&list[..count], out);
                }
            }
        }
        Hash::Blake3 if prefix.len() + size <= MESSAGE => {
            // One call on one piece of memory: several pieces would each take a hasher's way.
            let mut message = [0; MESSAGE];
            let whole = &mut message[..prefix.len() + size];
            whole[..prefix.len()].copy_from_slice(prefix);
            for (leaf, out) in bytes.chunks(size).zip(out) {
                whole[prefix.len()..].copy_from_slice(leaf);
                *out = Digest(blake3::hash(whole).into());
            }
        }
        hash => {
            for (message, out) in bytes.chunks(size).zip(out) {
                *out = hash.of_parts(&[prefix, message]);
            }
        }
    }
}

/// Messages up to this size are put together before they are hashed.
const MESSAGE: usize = 128;

#[cfg(test)]
mod test {
    use super::*;

    fn noise(count: usize) -> Vec<u8> {
        (0..count as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[test]
    fn many_leaves_are_each_what_one_is() {
        for scheme in Scheme::all() {
            for size in [1, 20, 31, 32, 33, 54, 55, 56, 64, 100, 1000, 1024] {
                for count in [0, 1, 15, 16, 17, 40, 129] {
                    let bytes = noise(size * count);
                    let mut out = vec![Digest::default(); count];
                    leaves(scheme, &bytes, size, &mut out);
                    let expected: Vec<Digest> = bytes.chunks(size).map(|leaf| scheme.leaf(leaf)).collect();
                    assert_eq!(out, expected, "{scheme}, {count} leaves of {size} bytes");
                }
            }
        }
    }

    #[test]
    fn leaves_of_unequal_size_are_each_what_one_is() {
        for scheme in Scheme::all() {
            let bytes = noise(5000);
            let parts: Vec<&[u8]> = (0..300).map(|n| &bytes[n..n + (n * 37) % 2000]).collect();
            let mut out = vec![Digest::default(); parts.len()];
            each(scheme, parts.iter().copied(), &mut out);
            let expected: Vec<Digest> = parts.iter().map(|leaf| scheme.leaf(leaf)).collect();
            assert_eq!(out, expected, "{scheme}");
        }
    }

    #[test]
    fn many_nodes_are_each_what_one_is() {
        for scheme in Scheme::all() {
            for count in [0, 1, 2, 3, 4, 15, 16, 17, 40, 129] {
                let bytes = noise(64 * count);
                let children: &[Digest] = bytemuck::cast_slice(&bytes);
                let mut out = vec![Digest::default(); count];
                nodes(scheme, children, &mut out);
                let expected: Vec<Digest> =
                    children.chunks(2).map(|pair| scheme.node(&pair[0], &pair[1])).collect();
                assert_eq!(out, expected, "{scheme}, {count} nodes");
            }
        }
    }

    #[test]
    fn what_processors_without_avx512_do_is_the_same() {
        for scheme in Scheme::all() {
            let bytes = noise(64 * 100);
            for (prefix, size) in [(scheme.leaf_prefix(), 32), (scheme.node_prefix(), 64)] {
                let mut out = vec![Digest::default(); bytes.len() / size];
                messages(scheme, prefix, &bytes, size, &mut out);
                let one = |message: &[u8]| {
                    let once = scheme.hash().of_parts(&[prefix, message]);
                    if scheme.is_double() { scheme.hash().of(&once.0) } else { once }
                };
                let expected: Vec<Digest> = bytes.chunks(size).map(one).collect();
                assert_eq!(out, expected, "{scheme}, messages of {size} bytes");
            }
        }
    }
}
