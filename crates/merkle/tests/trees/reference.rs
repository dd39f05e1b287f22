//! Reference implementations, which share no code with the crate under test.

use evener_merkle::{Digest, Hash, Rule, Scheme};
use rs_merkle::{Hasher, MerkleTree};
use sha2::Digest as _;

/// Returns the same pseudo-random bytes every time.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

pub(crate) fn hash(hash: Hash, message: &[u8]) -> [u8; 32] {
    match hash {
        Hash::Sha256 => sha2::Sha256::digest(message).into(),
        Hash::Keccak256 => sha3::Keccak256::digest(message).into(),
        Hash::Blake3 => blake3::hash(message).into(),
    }
}

/// A hash function for `rs_merkle`.
#[derive(Clone)]
pub(crate) struct Sha256;
#[derive(Clone)]
pub(crate) struct Keccak256;
#[derive(Clone)]
pub(crate) struct Blake3;

macro_rules! hasher {
    ($name:ident) => {
        impl Hasher for $name {
            type Hash = [u8; 32];

            fn hash(data: &[u8]) -> [u8; 32] {
                hash(Hash::$name, data)
            }
        }
    };
}
hasher!(Sha256);
hasher!(Keccak256);
hasher!(Blake3);

/// Computes the root that a rule defines: with `rs_merkle` for its own rule, by the recursion in the text of RFC 6962, and
/// with a loop over pairs for Bitcoin's.
pub(crate) fn root(scheme: Scheme, leaves: &[&[u8]]) -> Option<Digest> {
    if leaves.is_empty() {
        return (scheme.rule() == Rule::Rfc6962).then(|| Digest(hash(scheme.hash(), b"")));
    }
    Some(Digest(match scheme.rule() {
        Rule::RsMerkle => {
            let hashed: Vec<[u8; 32]> = leaves.iter().map(|leaf| hash(scheme.hash(), leaf)).collect();
            match scheme.hash() {
                Hash::Sha256 => MerkleTree::<Sha256>::from_leaves(&hashed).root()?,
                Hash::Keccak256 => MerkleTree::<Keccak256>::from_leaves(&hashed).root()?,
                Hash::Blake3 => MerkleTree::<Blake3>::from_leaves(&hashed).root()?,
            }
        }
        Rule::Rfc6962 => tree_hash(scheme.hash(), leaves),
        Rule::Bitcoin => {
            let twice = |message: &[u8]| hash(Hash::Sha256, &hash(Hash::Sha256, message));
            let mut level: Vec<[u8; 32]> = leaves.iter().map(|leaf| twice(leaf)).collect();
            while level.len() > 1 {
                level =
                    level.chunks(2).map(|pair| twice(&[pair[0], pair[pair.len() - 1]].concat())).collect();
            }
            level[0]
        }
    }))
}

/// Section 2.1 of RFC 6962.
fn tree_hash(function: Hash, leaves: &[&[u8]]) -> [u8; 32] {
    match leaves {
        [leaf] => hash(function, &[&[0], *leaf].concat()),
        _ => {
            // The largest power of two smaller than their number.
            let split = leaves.len().next_power_of_two() / 2;
            let (left, right) =
                (tree_hash(function, &leaves[..split]), tree_hash(function, &leaves[split..]));
            hash(function, &[&[1][..], &left, &right].concat())
        }
    }
}
