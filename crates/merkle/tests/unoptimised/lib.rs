//! Checks that the vectorised hash functions need little stack without optimisation, where every intermediate value has
//! its own place on the stack: `cargo test --manifest-path crates/merkle/tests/unoptimised/Cargo.toml`.
#![cfg(target_arch = "x86_64")]
#![allow(dead_code, unreachable_pub)]

#[path = "../../src/hash/avx512/mod.rs"]
mod avx512;

use bytemuck::{Pod, Zeroable};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Digest(pub [u8; 32]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    Sha256,
    Keccak256,
    Blake3,
}

#[cfg(test)]
mod test {
    use sha2::Digest as _;

    use super::*;
    use crate::avx512::{Framing, hash_digests, hash_pairs};

    /// A sixteenth of the 2 MiB that Rust gives a thread. The rest is for the callers: rayon runs other work on the stack of a
    /// thread that waits.
    const STACK_BYTES: usize = 128 << 10;

    /// The number of messages: one full group and a part of another.
    const MESSAGES: usize = 20;

    fn hash_both(framing: Framing) -> Option<[Vec<Digest>; 2]> {
        let children: Vec<Digest> = (0..2 * MESSAGES as u8).map(|byte| Digest([byte; 32])).collect();
        let [mut leaves, mut nodes] = [2 * MESSAGES, MESSAGES].map(|count| vec![Digest::default(); count]);
        let hashed = hash_digests(framing, &children, &mut leaves) && hash_pairs(framing, &children, &mut nodes);
        hashed.then_some([leaves, nodes])
    }

    fn hash_on_a_small_stack(hash: Hash) {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            for prefix in [None, Some(1)] {
                for double in [false, true] {
                    if double && hash != Hash::Sha256 {
                        continue;
                    }
                    let Some([_, nodes]) = hash_both(Framing { hash, prefix, double }) else {
                        // There is nothing to check on a CPU without these instructions.
                        assert!(!is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512bw"));
                        continue;
                    };
                    if hash == Hash::Sha256 {
                        let message = [prefix.as_slice(), &[38; 32], &[39; 32]].concat();
                        let once = sha2::Sha256::digest(message);
                        let expected = if double { sha2::Sha256::digest(once) } else { once };
                        assert_eq!(nodes[MESSAGES - 1].0, expected.as_slice());
                    }
                }
            }
        });
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn sha256_needs_little_stack() {
        hash_on_a_small_stack(Hash::Sha256);
    }

    #[test]
    fn keccak256_needs_little_stack() {
        hash_on_a_small_stack(Hash::Keccak256);
    }

    #[test]
    fn blake3_needs_little_stack() {
        hash_on_a_small_stack(Hash::Blake3);
    }
}
