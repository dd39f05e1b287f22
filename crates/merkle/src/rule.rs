//! The rules of a tree: what a leaf and a node hash, and what becomes of an odd node.

use std::{fmt, io, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    hash::{Digest, Hash, Hasher},
};

/// What leaves and nodes hash, and what becomes of a node without a neighbour.
///
/// | rule | leaf | node | the last of an odd number of nodes | no leaves |
/// | --- | --- | --- | --- | --- |
/// | `rfc6962` | H(`00` ‖ leaf) | H(`01` ‖ left ‖ right) | moves up unchanged | H() |
/// | `bitcoin` | H(H(leaf)) | H(H(left ‖ right)) | is its own neighbour | an error |
/// | `rs-merkle` | H(leaf) | H(left ‖ right) | moves up unchanged | an error |
///
/// Moving the last node up unchanged, level by level, gives the very tree that RFC 6962 defines by halving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Rule {
    /// Certificate Transparency's. Prefixes keep a leaf from being taken for a node.
    #[default]
    #[serde(rename = "rfc6962")]
    Rfc6962,
    /// Bitcoin's, for SHA-256 only. Trees of different leaves can have the same root where leaves are repeated at the
    /// end (CVE-2012-2459): whoever accepts leaves from others must refuse repeated ones.
    #[serde(rename = "bitcoin")]
    Bitcoin,
    /// What the `rs_merkle` crate does. Without prefixes, a node can be passed off as a leaf of 64 bytes.
    #[serde(rename = "rs-merkle")]
    RsMerkle,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 3] = [Rule::Rfc6962, Rule::Bitcoin, Rule::RsMerkle];

    /// Its name: `rfc6962`, `bitcoin`, `rs-merkle`.
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
        Rule::ALL.into_iter().find(|rule| rule.name() == name).ok_or_else(|| Error::Name {
            what: "rule",
            asked: name.into(),
            known: "rfc6962, bitcoin, rs-merkle",
        })
    }
}

/// A hash function with a rule: all that decides what root some leaves have.
///
/// ```
/// use evener_merkle::{Hash, Rule, Scheme};
///
/// let scheme = Scheme::new(Hash::Sha256, Rule::Rfc6962)?;
/// let (left, right) = (scheme.leaf(b"left"), scheme.leaf(b"right"));
/// assert_eq!(scheme.leaf(b"left"), Hash::Sha256.of(b"\0left"));
/// assert_ne!(scheme.node(&left, &right), scheme.node(&right, &left));
/// assert!(Scheme::new(Hash::Blake3, Rule::Bitcoin).is_err());
/// # Ok::<(), evener_merkle::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Names")]
pub struct Scheme {
    hash: Hash,
    rule: Rule,
}

/// What is read, before it is known to go together.
#[derive(Deserialize)]
struct Names {
    hash: Hash,
    rule: Rule,
}

impl TryFrom<Names> for Scheme {
    type Error = Error;

    fn try_from(names: Names) -> Result<Self> {
        Scheme::new(names.hash, names.rule)
    }
}

impl Scheme {
    /// A hash function with a rule. Fails where the rule is not made for the function: [`Rule::Bitcoin`] is SHA-256 twice.
    pub fn new(hash: Hash, rule: Rule) -> Result<Self> {
        if rule == Rule::Bitcoin && hash != Hash::Sha256 {
            return Err(Error::Scheme { rule, hash });
        }
        Ok(Scheme { hash, rule })
    }

    /// All that there are.
    pub fn all() -> impl Iterator<Item = Scheme> {
        let pairs = Hash::ALL.into_iter().flat_map(|hash| Rule::ALL.map(|rule| (hash, rule)));
        pairs.filter_map(|(hash, rule)| Scheme::new(hash, rule).ok())
    }

    /// The hash function.
    pub fn hash(self) -> Hash {
        self.hash
    }

    /// The rule.
    pub fn rule(self) -> Rule {
        self.rule
    }

    /// The hash of a leaf.
    pub fn leaf(self, leaf: &[u8]) -> Digest {
        self.finish(self.hash.of_parts(&[self.leaf_prefix(), leaf]))
    }

    /// The hash of a leaf that is read piece by piece, such as a whole file. Fails where reading does.
    pub fn leaf_from(self, mut reader: impl io::Read) -> io::Result<Digest> {
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

    /// The hash of a leaf that comes piece by piece.
    pub(crate) fn leaf_hasher(self) -> LeafHasher {
        let mut hasher = Hasher::new(self.hash);
        hasher.update(self.leaf_prefix());
        LeafHasher { scheme: self, hasher }
    }

    /// The hash of a node.
    pub fn node(self, left: &Digest, right: &Digest) -> Digest {
        self.finish(self.hash.of_parts(&[self.node_prefix(), &left.0, &right.0]))
    }

    /// The root over no leaves, where the rule has one.
    pub fn empty_root(self) -> Option<Digest> {
        (self.rule == Rule::Rfc6962).then(|| self.hash.of(b""))
    }

    /// What a node without a neighbour becomes one level up.
    pub(crate) fn lone(self, node: &Digest) -> Digest {
        if self.pairs_with_itself() { self.node(node, node) } else { *node }
    }

    /// Whether a node without a neighbour is its own.
    pub(crate) fn pairs_with_itself(self) -> bool {
        self.rule == Rule::Bitcoin
    }

    /// Whether everything is hashed twice.
    pub(crate) fn is_double(self) -> bool {
        self.rule == Rule::Bitcoin
    }

    /// What comes before a leaf in what is hashed.
    pub(crate) fn leaf_prefix(self) -> &'static [u8] {
        if self.rule == Rule::Rfc6962 { &[0] } else { &[] }
    }

    /// What comes before a node's children in what is hashed.
    pub(crate) fn node_prefix(self) -> &'static [u8] {
        if self.rule == Rule::Rfc6962 { &[1] } else { &[] }
    }

    fn finish(self, digest: Digest) -> Digest {
        if self.is_double() { self.hash.of(&digest.0) } else { digest }
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
            assert_eq!(scheme.leaf_from(&leaf[..]).unwrap(), scheme.leaf(&leaf), "{scheme}");
        }
    }
}
