//! Witnesses.

use std::fmt;

use ark_bn254::Fr;
use ark_ff::One;

use super::Secrets;
use crate::error::{Error, Result};

/// The values of all wires of a circuit: 1, the public ones (outputs, then inputs), and the private ones.
///
/// The values are zeroed when the witness is dropped, and are not shown by `Debug`.
pub struct Witness {
    values: Secrets<Fr>,
}

impl Witness {
    /// Makes a witness. Fails if the first value is not 1.
    pub fn new(values: Vec<Fr>) -> Result<Witness> {
        let witness = Witness { values: values.into() };
        match witness.values.first() {
            Some(first) if first.is_one() => Ok(witness),
            Some(_) => Err(Error::OtherCircuit {
                detail: "its first value is not 1, which every circuit's is".into(),
            }),
            None => Err(Error::OtherCircuit { detail: "it has no values".into() }),
        }
    }

    /// The values.
    pub fn values(&self) -> &[Fr] {
        &self.values
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Witness({} values)", self.values.len())
    }
}
