//! The crate's error type.

use std::io;

use evener_schedule::RunError;

use crate::{hash::Hash, rule::Rule};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of building, storing, reading or proving a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run on the pool failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The device that holds the leaves failed.
    #[error(transparent)]
    Device(#[from] evener_device::Error),
    /// A name of a hash function or rule that does not exist.
    #[error("unknown {what} `{asked}`: expected one of {known}")]
    UnknownName {
        /// The kind of thing: `hash` or `rule`.
        what: &'static str,
        /// The name as given.
        asked: String,
        /// The valid names.
        known: &'static str,
    },
    /// A rule that does not work with the hash function.
    #[error(
        "rule `{rule}` hashes with SHA-256 twice and does not work with `{hash}`: use sha256, or another rule"
    )]
    UnsupportedScheme {
        /// The rule.
        rule: Rule,
        /// The hash function.
        hash: Hash,
    },
    /// The tree has no leaves, and the rule defines no root for an empty tree.
    #[error("there are no leaves, and rule `{rule}` defines no root for an empty tree (rfc6962 does)")]
    NoLeaves {
        /// The rule.
        rule: Rule,
    },
    /// The number of bytes is not a multiple of the leaf size.
    #[error("{bytes} bytes are {whole} leaves of {leaf_bytes} bytes and {over} bytes over: {hint}", whole = .bytes / (*.leaf_bytes).max(1), over = .bytes % (*.leaf_bytes).max(1))]
    PartialLeaf {
        /// The number of bytes.
        bytes: u64,
        /// The size of a leaf.
        leaf_bytes: u64,
        /// How to avoid the error.
        hint: &'static str,
    },
    /// The tree has no leaf with this index.
    #[error("leaf {index} of a tree of {leaves} leaves: indices are less than {leaves}")]
    LeafOutOfRange {
        /// The requested index.
        index: u64,
        /// The number of leaves in the tree.
        leaves: u64,
    },
    /// A multi-proof was requested for an empty list of leaves.
    #[error("a proof needs at least one leaf")]
    NoLeavesToProve,
    /// A text that is not 64 hexadecimal digits.
    #[error("`{text}` is not a digest: expected 64 hexadecimal digits")]
    InvalidDigest {
        /// The first characters of the text.
        text: String,
    },
    /// The proof does not fit a tree of its size, so that no root can verify it.
    #[error("the proof is malformed: {detail}")]
    MalformedProof {
        /// The mismatch.
        detail: String,
    },
    /// The proof computes another root than the expected one.
    #[error("the proof is invalid: it computes root {found}, not {expected}")]
    RootMismatch {
        /// The root that the proof computes.
        found: crate::Digest,
        /// The root that it was verified against.
        expected: crate::Digest,
    },
    /// A file could not be read or written, or has the wrong contents.
    #[error("{path}: {detail}")]
    File {
        /// The file.
        path: String,
        /// What went wrong.
        detail: String,
        /// The system's error, if it comes from one.
        source: Option<io::Error>,
    },
}

impl Error {
    pub(crate) fn file(path: &std::path::Path, detail: impl Into<String>) -> Self {
        Error::File { path: path.display().to_string(), detail: detail.into(), source: None }
    }

    pub(crate) fn io(path: &std::path::Path, doing: &str, error: io::Error) -> Self {
        let detail = format!("{doing}: {error}");
        Error::File { path: path.display().to_string(), detail, source: Some(error) }
    }
}
