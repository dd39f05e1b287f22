//! Random numbers of the operating system.

use ark_bn254::Fr;
use ark_ff::PrimeField;
use ark_std::rand::{SeedableRng, rngs::StdRng};
use zeroize::Zeroizing;

use crate::error::{Error, Result};

/// The two secrets that hide the witness in a proof. They are zeroed when dropped, and used for one proof only.
pub(crate) struct Blinding {
    pub(crate) r: Zeroizing<Fr>,
    pub(crate) s: Zeroizing<Fr>,
}

impl Blinding {
    /// Takes new secrets from the operating system.
    pub(crate) fn random() -> Result<Blinding> {
        Ok(Blinding { r: Zeroizing::new(random_scalar()?), s: Zeroizing::new(random_scalar()?) })
    }
}

/// Returns a number of the scalar field, from twice as many random bits as it has, so that no number is likelier.
fn random_scalar() -> Result<Fr> {
    let mut bytes = Zeroizing::new([0; 64]);
    fill(&mut *bytes)?;
    Ok(Fr::from_le_bytes_mod_order(&*bytes))
}

/// Returns a generator of random numbers for the crates that want one, with a seed of the operating system.
pub(crate) fn seeded_generator() -> Result<StdRng> {
    let mut seed = Zeroizing::new([0; 32]);
    fill(&mut *seed)?;
    Ok(StdRng::from_seed(*seed))
}

fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| Error::Randomness { detail: error.to_string() })
}
