//! The crate's error type.

use std::{io, path::Path, sync::Arc};

use evener_schedule::RunError;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of reading a key or a witness, of proving or of verifying.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run on the pool failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] evener_device::Error),
    /// A file could not be read or written.
    #[error("{file}: {doing}: {error}")]
    File {
        /// The file.
        file: String,
        /// The operation that failed.
        doing: &'static str,
        /// The system's error. The message contains it, so that it is not the error's source, too.
        error: Arc<io::Error>,
    },
    /// A file is damaged, or is not of the expected kind.
    #[error("{file}: {part}: {detail}")]
    Format {
        /// The file.
        file: String,
        /// The part of the file, for example `section 5 (points A)`.
        part: String,
        /// What was expected and what was found.
        detail: String,
    },
    /// A number or a point of a JSON file is written as it should be, and is in no field or group: not less than the modulus, not
    /// on the curve, or not in the subgroup.
    #[error("{file}: {part}: {detail}")]
    InvalidValue {
        /// The file.
        file: String,
        /// The part of the file, for example `pi_a`.
        part: String,
        /// What is wrong.
        detail: String,
    },
    /// The key has no phase-2 contribution: gamma equals delta, so anyone can forge proofs for it.
    #[error(
        "{file}: gamma equals delta: the key has no phase-2 contribution, and anyone can forge proofs for it \
         (`snarkjs zkey contribute` adds one)"
    )]
    UnsafeKey {
        /// The key.
        file: String,
    },
    /// The witness belongs to another circuit than the key.
    #[error("the witness is for another circuit: {detail}")]
    OtherCircuit {
        /// What does not match.
        detail: String,
    },
    /// The constraints belong to another circuit than the key.
    #[error("the constraints and the key are of different circuits: {detail}")]
    OtherConstraints {
        /// What does not match.
        detail: String,
    },
    /// The witness does not satisfy a constraint of the circuit.
    #[error(
        "the witness does not satisfy the circuit: constraint {constraint}, counted from 0, does not hold ({failed} of \
         {constraints} fail)"
    )]
    Unsatisfied {
        /// The first constraint that does not hold.
        constraint: usize,
        /// Number of constraints that do not hold.
        failed: usize,
        /// Number of constraints.
        constraints: usize,
    },
    /// The proof does not verify, neither from the device nor from the reference on the host.
    #[error(
        "the proof from this witness does not verify, on the reference implementation neither: the witness does not \
         satisfy the circuit, or the key is damaged (with the circuit's .r1cs, the constraint can be named)"
    )]
    Unprovable,
    /// The number of public inputs is not that of the verification key.
    #[error("{found} public inputs, and the verification key is for {expected}")]
    PublicInputCount {
        /// The number that the key is for.
        expected: usize,
        /// The number that was given.
        found: usize,
    },
    /// The proof is well-formed, and does not verify for these public inputs and this key.
    #[error("the proof is invalid for these public inputs and this verification key")]
    InvalidProof,
    /// The circuit could not be synthesized.
    #[error("the circuit cannot be synthesized: {detail}")]
    Circuit {
        /// The message of the circuit's code.
        detail: String,
    },
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes: {detail}")]
    Randomness {
        /// The system's message.
        detail: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, doing: &'static str, error: io::Error) -> Self {
        Error::File { file: path.display().to_string(), doing, error: Arc::new(error) }
    }

    /// Returns the file that the message begins with, for errors of files.
    pub fn file(&self) -> Option<&str> {
        match self {
            Error::File { file, .. }
            | Error::Format { file, .. }
            | Error::InvalidValue { file, .. }
            | Error::UnsafeKey { file } => Some(file),
            _ => None,
        }
    }
}
