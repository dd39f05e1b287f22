//! Tree rules: what a leaf hash and a node hash are computed from, and how a node without a sibling is handled.

use std::{fmt, io, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    hash::{Digest, Hash, Hasher},
};

/// How leaves and nodes are hashed, and how a node without a sibling is handled.
///
/// | rule | leaf | node | last of an odd number of nodes | empty tree |
/// | --- | --- | --- | --- | --- |
/// | `rfc6962` | H(`00` ‖ leaf) | H(`01` ‖ left ‖ right) | is promoted unchanged | H() |
/// | `bitcoin` | H(H(leaf)) | H(H(left ‖ right)) | is paired with itself | an error |
/// | `rs-merkle` | H(leaf) | H(left ‖ right) | is promoted unchanged | an error |
///
/// Promoting the last node unchanged, level by level, gives the same tree that RFC 6962 defines by recursive halving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Rule {
    /// The rule of Certificate Transparency. Prefixes keep a leaf from being taken for a node.
    #[default]
    #[serde(rename = "rfc6962")]
    Rfc6962,
    /// The rule of Bitcoin, for SHA-256 only. Different lists of leaves can have the same root if leaves are repeated at
    /// the end (CVE-2012-2459): a program that accepts leaves from others must reject repeated ones.
    #[serde(rename = "bitcoin")]
    Bitcoin,
    /// The rule of the `rs_merkle` crate. Without prefixes, a node can be passed off as a leaf of 64 bytes.
    #[serde(rename = "rs-merkle")]
    RsMerkle,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 3] = [Rule::Rfc6962, Rule::Bitcoin, Rule::RsMerkle];

    /// Returns the rule's name: `rfc6962`, `bitcoin` or `rs-merkle`.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Rfc6962 => "rfc6962",
            Rule::Bitcoin => "bitcoin",
            Rule::RsMerkle => "rs-merkle",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name).ok_or_else(|| Error::UnknownName {
            what: "rule",
            asked: name.into(),
            known: "rfc6962, bitcoin, rs-merkle",
        })
    }
}

/// A hash function and a rule, which together determine the root of a list of leaves.
///
/// ```
/// use evener_merkle::{Hash, Rule, Scheme};
///
/// let scheme = Scheme::new(Hash::Sha256, Rule::Rfc6962)?;
/// let (left, right) = (scheme.hash_leaf(b"left"), scheme.hash_leaf(b"right"));
/// assert_eq!(scheme.hash_leaf(b"left"), Hash::Sha256.digest(b"\0left"));
/// assert_ne!(scheme.hash_node(&left, &right), scheme.hash_node(&right, &left));
/// assert!(Scheme::new(Hash::Blake3, Rule::Bitcoin).is_err());
/// # Ok::<(), evener_merkle::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "UncheckedScheme")]
pub struct Scheme {
    hash: Hash,
    rule: Rule,
}

/// A deserialized hash function and rule, before [`Scheme::new`] has checked that they work together.
#[derive(Deserialize)]
struct UncheckedScheme {
    hash: Hash,
    rule: Rule,
}

impl TryFrom<UncheckedScheme> for Scheme {
    type Error = Error;

    fn try_from(unchecked: UncheckedScheme) -> Result<Self> {
        Scheme::new(unchecked.hash, unchecked.rule)
    }
}

impl Scheme {
    /// Combines a hash function and a rule. Fails if the rule does not work with the function: [`Rule::Bitcoin`] needs
    /// SHA-256.
    pub fn new(hash: Hash, rule: Rule) -> Result<Self> {
        if rule == Rule::Bitcoin && hash != Hash::Sha256 {
            return Err(Error::UnsupportedScheme { rule, hash });
        }
        Ok(Scheme { hash, rule })
    }

    /// Iterates over all valid schemes.
    pub fn all() -> impl Iterator<Item = Scheme> {
        let pairs = Hash::ALL.into_iter().flat_map(|hash| Rule::ALL.map(|rule| (hash, rule)));
        pairs.filter_map(|(hash, rule)| Scheme::new(hash, rule).ok())
    }

    /// Returns the hash function.
    pub fn hash(self) -> Hash {
        self.hash
    }

    /// Returns the rule.
    pub fn rule(self) -> Rule {
        self.rule
    }

    /// Computes the hash of a leaf.
    pub fn hash_leaf(self, leaf: &[u8]) -> Digest {
        self.finish(self.hash.digest_parts(&[self.leaf_prefix(), leaf]))
    }

    /// Computes the hash of a leaf that a reader yields, such as a whole file. Fails if the reader fails.
    pub fn hash_leaf_from(self, mut reader: impl io::Read) -> io::Result<Digest> {
        let mut hasher = self.leaf_hasher();
        let mut piece = vec![0; 1 << 16];
        loop {
            match reader.read(&mut piece) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(count) => hasher.update(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts the hash of a leaf that arrives in pieces.
    pub(crate) fn leaf_hasher(self) -> LeafHasher {
        let mut hasher = Hasher::new(self.hash);
        hasher.update(self.leaf_prefix());
        LeafHasher { scheme: self, hasher }
    }

    /// Computes the hash of a node from its children.
    pub fn hash_node(self, left: &Digest, right: &Digest) -> Digest {
        self.finish(self.hash.digest_parts(&[self.node_prefix(), &left.0, &right.0]))
    }

    /// Returns the root of an empty tree, if the rule defines one.
    pub fn empty_root(self) -> Option<Digest> {
        (self.rule == Rule::Rfc6962).then(|| self.hash.digest(b""))
    }

    /// Returns the parent of a node without a sibling.
    pub(crate) fn parent_of_unpaired(self, node: &Digest) -> Digest {
        if self.duplicates_unpaired() { self.hash_node(node, node) } else { *node }
    }

    /// Returns whether a node without a sibling is paired with itself (instead of promoted unchanged).
    pub(crate) fn duplicates_unpaired(self) -> bool {
        self.rule == Rule::Bitcoin
    }

    /// Returns whether every hash is the hash of a hash.
    pub(crate) fn hashes_twice(self) -> bool {
        self.rule == Rule::Bitcoin
    }

    /// Returns the bytes that are hashed before a leaf.
    pub(crate) fn leaf_prefix(self) -> &'static [u8] {
        if self.rule == Rule::Rfc6962 { &[0] } else { &[] }
    }

    /// Returns the bytes that are hashed before a node's children.
    pub(crate) fn node_prefix(self) -> &'static [u8] {
        if self.rule == Rule::Rfc6962 { &[1] } else { &[] }
    }

    fn finish(self, digest: Digest) -> Digest {
        if self.hashes_twice() { self.hash.digest(&digest.0) } else { digest }
    }
}

/// The hash of a leaf that comes piece by piece.
pub(crate) struct LeafHasher {
    scheme: Scheme,
    hasher: Hasher,
}

impl LeafHasher {
    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.hasher.update(piece);
    }

    pub(crate) fn finish(self) -> Digest {
        self.scheme.finish(self.hasher.finish())
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.hash, self.rule)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for rule in Rule::ALL {
            assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
        assert_eq!(Scheme::all().count(), 7);
        let json = serde_json::to_string(&Scheme::default()).unwrap();
        assert_eq!(json, r#"{"hash":"sha256","rule":"rfc6962"}"#);
        let refused = serde_json::from_str::<Scheme>(r#"{"hash":"blake3","rule":"bitcoin"}"#).unwrap_err();
        assert!(refused.to_string().contains("bitcoin"), "{refused}");
    }

    #[test]
    fn a_leaf_that_is_read_is_the_leaf() {
        let leaf: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        for scheme in Scheme::all() {
            assert_eq!(scheme.hash_leaf_from(&leaf[..]).unwrap(), scheme.hash_leaf(&leaf), "{scheme}");
        }
    }
}
