//! Hashes many leaves or nodes at once on a CPU core.
//!
//! Digests and pairs of digests are hashed with AVX-512 if the CPU has it (the module `avx512`): sixteen messages at once,
//! or eight for Keccak-256. Otherwise, and for leaves of other sizes, SHA-256 uses `tape-sha256` (four messages at once
//! with the SHA instructions, eight with AVX2); Keccak-256 and BLAKE3 use their crates, one message at a time.

use super::{Digest, Hash};
use crate::rule::Scheme;

/// The number of messages that are passed to `tape-sha256` in one call.
const BATCH: usize = 64;

/// Hashes contiguous leaves of one size. `out` has one digest per leaf.
pub(crate) fn hash_leaves_of_size(scheme: Scheme, bytes: &[u8], size: usize, out: &mut [Digest]) {
    debug_assert_eq!(bytes.len(), size * out.len());
    #[cfg(target_arch = "x86_64")]
    if size == size_of::<Digest>()
        && super::avx512::hash_digests(
            framing(scheme, scheme.leaf_prefix()),
            bytemuck::cast_slice(bytes),
            out,
        )
    {
        return;
    }
    hash_messages(scheme, scheme.leaf_prefix(), bytes, size, out);
}

/// Hashes pairs of siblings. `out` has one digest per pair.
pub(crate) fn hash_nodes(scheme: Scheme, children: &[Digest], out: &mut [Digest]) {
    debug_assert_eq!(children.len(), 2 * out.len());
    // AVX-512 takes as long for one message as for sixteen.
    const FEW: usize = 3;
    #[cfg(target_arch = "x86_64")]
    if out.len() > FEW && super::avx512::hash_pairs(framing(scheme, scheme.node_prefix()), children, out) {
        return;
    }
    hash_messages(scheme, scheme.node_prefix(), bytemuck::cast_slice(children), 2 * size_of::<Digest>(), out);
}

#[cfg(target_arch = "x86_64")]
fn framing(scheme: Scheme, prefix: &[u8]) -> super::avx512::Framing {
    let (hash, prefix, double) = (scheme.hash(), prefix.first().copied(), scheme.hashes_twice());
    super::avx512::Framing { hash, prefix, double }
}

/// Hashes leaves of any size. `out` has one digest per leaf.
pub(crate) fn hash_leaves<'a>(
    scheme: Scheme,
    leaves: impl IntoIterator<Item = &'a [u8]>,
    out: &mut [Digest],
) {
    let mut leaves = leaves.into_iter();
    if scheme.hash() != Hash::Sha256 || scheme.hashes_twice() {
        leaves.zip(out).for_each(|(leaf, out)| *out = scheme.hash_leaf(leaf));
        return;
    }
    // A batch takes as long as its longest message: long leaves are hashed one by one.
    const LONG: usize = 1024;
    for out in out.chunks_mut(BATCH) {
        let mut list: [&[u8]; BATCH] = [&[]; BATCH];
        list.iter_mut().zip(leaves.by_ref().take(out.len())).for_each(|(slot, leaf)| *slot = leaf);
        let list = &mut list[..out.len()];
        let long: Vec<(usize, &[u8])> =
            list.iter().copied().enumerate().filter(|(_, leaf)| leaf.len() > LONG).collect();
        long.iter().for_each(|(index, _)| list[*index] = &[]);
        tape_sha256::hash_many_prefixed(scheme.leaf_prefix(), list, bytemuck::cast_slice_mut(out));
        long.iter().for_each(|(index, leaf)| out[*index] = scheme.hash_leaf(leaf));
    }
}

/// Hashes contiguous messages of one size, each with a prefix.
fn hash_messages(scheme: Scheme, prefix: &[u8], bytes: &[u8], size: usize, out: &mut [Digest]) {
    match scheme.hash() {
        Hash::Sha256 => {
            for (bytes, out) in bytes.chunks(BATCH * size).zip(out.chunks_mut(BATCH)) {
                let mut list: [&[u8]; BATCH] = [&[]; BATCH];
                let count = out.len();
                list.iter_mut().zip(bytes.chunks(size)).for_each(|(slot, message)| *slot = message);
                let out: &mut [[u8; 32]] = bytemuck::cast_slice_mut(out);
                tape_sha256::hash_many_prefixed(prefix, &list[..count], out);
                if scheme.hashes_twice() {
                    let mut once = [[0; 32]; BATCH];
                    once[..count].copy_from_slice(out);
                    list.iter_mut().zip(&once).for_each(|(slot, message)| *slot = message);
                    tape_sha256::hash_many(&list[..count], out);
                }
            }
        }
        Hash::Blake3 if prefix.len() + size <= MAX_JOINED_BYTES => {
            // `blake3::hash` on contiguous memory is faster than an incremental hasher.
            let mut message = [0; MAX_JOINED_BYTES];
            let whole = &mut message[..prefix.len() + size];
            whole[..prefix.len()].copy_from_slice(prefix);
            for (leaf, out) in bytes.chunks(size).zip(out) {
                whole[prefix.len()..].copy_from_slice(leaf);
                *out = Digest(blake3::hash(whole).into());
            }
        }
        hash => {
            for (message, out) in bytes.chunks(size).zip(out) {
                *out = hash.digest_parts(&[prefix, message]);
            }
        }
    }
}

/// The maximum size of a message whose prefix and body are copied together before BLAKE3 hashes them.
const MAX_JOINED_BYTES: usize = 128;

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
                    hash_leaves_of_size(scheme, &bytes, size, &mut out);
                    let expected: Vec<Digest> =
                        bytes.chunks(size).map(|leaf| scheme.hash_leaf(leaf)).collect();
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
            hash_leaves(scheme, parts.iter().copied(), &mut out);
            let expected: Vec<Digest> = parts.iter().map(|leaf| scheme.hash_leaf(leaf)).collect();
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
                hash_nodes(scheme, children, &mut out);
                let expected: Vec<Digest> =
                    children.chunks(2).map(|pair| scheme.hash_node(&pair[0], &pair[1])).collect();
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
                hash_messages(scheme, prefix, &bytes, size, &mut out);
                let one = |message: &[u8]| {
                    let once = scheme.hash().digest_parts(&[prefix, message]);
                    if scheme.hashes_twice() { scheme.hash().digest(&once.0) } else { once }
                };
                let expected: Vec<Digest> = bytes.chunks(size).map(one).collect();
                assert_eq!(out, expected, "{scheme}, messages of {size} bytes");
            }
        }
    }
}
