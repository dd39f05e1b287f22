//! Why there is no root, no tree or no proof.

use std::io;

use evener_schedule::RunError;

use crate::{hash::Hash, rule::Rule};

/// The result of something with trees.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no root, no tree or no proof.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool could not do it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The device that has the leaves could not do it.
    #[error(transparent)]
    Device(#[from] evener_device::Error),
    /// A name that nothing has.
    #[error("no {what} is called `{asked}`: one of {known}")]
    Name {
        /// What was named.
        what: &'static str,
        /// The name.
        asked: String,
        /// The names that there are.
        known: &'static str,
    },
    /// A rule that is not made for a hash function.
    #[error("rule `{rule}` is double SHA-256 and cannot be had with `{hash}`: use sha256, or another rule")]
    Scheme {
        /// The rule.
        rule: Rule,
        /// The hash function.
        hash: Hash,
    },
    /// There are no leaves, and the rule gives no root to nothing.
    #[error("there are no leaves, and rule `{rule}` has no root for none (rfc6962 has)")]
    NoLeaves {
        /// The rule.
        rule: Rule,
    },
    /// The leaves do not come out even.
    #[error("{bytes} bytes are {whole} leaves of {leaf_bytes} bytes and {over} bytes over: {hint}", whole = .bytes / (*.leaf_bytes).max(1), over = .bytes % (*.leaf_bytes).max(1))]
    Uneven {
        /// How many bytes there are.
        bytes: u64,
        /// How many a leaf has.
        leaf_bytes: u64,
        /// What to do.
        hint: &'static str,
    },
    /// There is no such leaf.
    #[error("leaf {index} of a tree of {leaves} leaves: indices are less than {leaves}")]
    OutOfRange {
        /// The index asked for.
        index: u64,
        /// How many leaves there are.
        leaves: u64,
    },
    /// A multi-proof was asked for no leaves at all.
    #[error("a proof needs at least one leaf")]
    NothingToProve,
    /// A text that is no digest.
    #[error("`{text}` is not a digest: 64 hexadecimal digits are")]
    NotADigest {
        /// The beginning of it.
        text: String,
    },
    /// A proof does not fit its tree: it can prove nothing, whatever it is checked against.
    #[error("the proof is malformed: {detail}")]
    Malformed {
        /// What does not fit.
        detail: String,
    },
    /// A proof does not lead from the leaf to the root.
    #[error("the proof does not hold: it leads to root {found}, not {expected}")]
    DoesNotHold {
        /// The root that it leads to.
        found: crate::Digest,
        /// The root that it was checked against.
        expected: crate::Digest,
    },
    /// A file could not be read or written, or is not what it should be.
    #[error("{path}: {detail}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        detail: String,
    },
}

impl Error {
    pub(crate) fn file(path: &std::path::Path, detail: impl Into<String>) -> Self {
        Error::File { path: path.display().to_string(), detail: detail.into() }
    }

    pub(crate) fn io(path: &std::path::Path, doing: &str, error: &io::Error) -> Self {
        Error::file(path, format!("{doing}: {error}"))
    }
}
