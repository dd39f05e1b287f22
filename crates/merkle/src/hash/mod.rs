//! The hash functions and their digests.

#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod batch;
mod digest;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

pub use self::digest::Digest;
use crate::error::{Error, Result};

/// A hash function with a digest of 32 bytes.
///
/// ```
/// use evener_merkle::Hash;
///
/// let digest = Hash::Sha256.digest(b"abc");
/// assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
/// assert_eq!("keccak256".parse::<Hash>()?, Hash::Keccak256);
/// # Ok::<(), evener_merkle::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hash {
    /// SHA-256 (FIPS 180-4).
    #[default]
    Sha256,
    /// Keccak-256 as Ethereum uses it: with the padding of the original Keccak submission, not that of SHA-3.
    Keccak256,
    /// BLAKE3, unkeyed, with 32 bytes of output. A leaf hash and a node hash are each the whole function over one message,
    /// which for messages up to 1024 bytes is a chain of compressions.
    Blake3,
}

impl Hash {
    /// All hash functions.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Keccak256, Hash::Blake3];

    /// Returns the function's name: `sha256`, `keccak256` or `blake3`.
    pub fn name(self) -> &'static str {
        match self {
            Hash::Sha256 => "sha256",
            Hash::Keccak256 => "keccak256",
            Hash::Blake3 => "blake3",
        }
    }

    /// Computes the hash of a message.
    pub fn digest(self, message: &[u8]) -> Digest {
        self.digest_parts(&[message])
    }

    /// Computes the hash of the concatenation of parts.
    pub(crate) fn digest_parts(self, parts: &[&[u8]]) -> Digest {
        let mut hasher = Hasher::new(self);
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finish()
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Hash {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Hash::ALL.into_iter().find(|hash| hash.name() == name).ok_or_else(|| Error::UnknownName {
            what: "hash",
            asked: name.into(),
            known: "sha256, keccak256, blake3",
        })
    }
}

/// An incremental hash.
pub(crate) enum Hasher {
    Sha256(sha2::Sha256),
    Keccak256(sha3::Keccak256),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    pub(crate) fn new(hash: Hash) -> Self {
        match hash {
            Hash::Sha256 => Hasher::Sha256(sha2::Sha256::new()),
            Hash::Keccak256 => Hasher::Keccak256(sha3::Keccak256::new()),
            Hash::Blake3 => Hasher::Blake3(Box::new(blake3::Hasher::new())),
        }
    }

    pub(crate) fn update(&mut self, piece: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(piece),
            Hasher::Keccak256(hasher) => hasher.update(piece),
            Hasher::Blake3(hasher) => drop(hasher.update(piece)),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(match self {
            Hasher::Sha256(hasher) => hasher.finalize().into(),
            Hasher::Keccak256(hasher) => hasher.finalize().into(),
            Hasher::Blake3(hasher) => hasher.finalize().into(),
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_hash_functions_give_what_is_published() {
        let published = [
            (Hash::Sha256, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (Hash::Keccak256, "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
            (Hash::Blake3, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        ];
        for (hash, digest) in published {
            assert_eq!(hash.digest(b"").to_string(), digest, "{hash} of nothing");
        }
        let keccak = "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45";
        assert_eq!(Hash::Keccak256.digest(b"abc").to_string(), keccak);
    }

    #[test]
    fn a_message_in_parts_is_the_message() {
        for hash in Hash::ALL {
            assert_eq!(hash.digest_parts(&[b"one", b"", b"two"]), hash.digest(b"onetwo"));
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for hash in Hash::ALL {
            assert_eq!(hash.to_string().parse::<Hash>().unwrap(), hash);
        }
        let error = "md5".parse::<Hash>().unwrap_err().to_string();
        assert_eq!(error, "unknown hash `md5`: expected one of sha256, keccak256, blake3");
    }
}
