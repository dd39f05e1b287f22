//! Witnesses.

use std::fmt;

use ark_bn254::Fr;
use ark_ff::One;
use rayon::prelude::*;
use zeroize::Zeroize;

use crate::error::{Error, Result};

/// The values of all wires of a circuit: 1, the public ones (outputs, then inputs), and the private ones.
///
/// The values are zeroed when the witness is dropped, and are not shown by `Debug`.
pub struct Witness {
    values: Vec<Fr>,
}

impl Witness {
    /// Makes a witness. Fails if the first value is not 1.
    pub fn new(values: Vec<Fr>) -> Result<Witness> {
        let witness = Witness { values };
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

    /// Drops the witness and zeroes its values in the threads of the current rayon pool: one thread takes a millisecond for a
    /// million values.
    pub(crate) fn erase(mut self) {
        /// Values that a thread zeroes at once.
        const SHARE: usize = 1 << 12;
        let mut values = std::mem::take(&mut self.values);
        values.spare_capacity_mut().zeroize();
        values.par_chunks_mut(SHARE).for_each(|share| share.iter_mut().zeroize());
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.values.zeroize();
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Witness({} values)", self.values.len())
    }
}
