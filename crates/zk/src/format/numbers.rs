//! Numbers and points in binary files: little-endian, and points in the Montgomery form that snarkjs and arkworks share.

use ark_bn254::{Fq, Fq2, Fr, G1Affine, G2Affine};
use ark_ec::AffineRepr;
use ark_ff::{BigInt, PrimeField, Zero};

/// A position in bytes.
pub(super) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor(bytes)
    }

    /// Takes the next bytes; `None` if there are fewer.
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Returns the number of bytes that are left.
    pub(super) fn rest(&self) -> usize {
        self.0.len()
    }
}

/// Returns the integer in 32 bytes. Missing bytes are zeros.
pub(super) fn limbs(bytes: &[u8]) -> BigInt<4> {
    let mut limbs = [0; 4];
    for (limb, bytes) in limbs.iter_mut().zip(bytes.chunks(8)) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        *limb = u64::from_le_bytes(word);
    }
    BigInt(limbs)
}

/// Why bytes are no number or point.
pub(super) const NOT_REDUCED: &str = "is not less than the modulus";
const NOT_ON_CURVE: &str = "is not on the curve";
const NOT_REDUCED_POINT: &str = "has a coordinate that is not less than the modulus";

/// Returns a number of the scalar field that is written as it is.
pub(super) fn scalar(bytes: &[u8]) -> Result<Fr, &'static str> {
    Fr::from_bigint(limbs(bytes)).ok_or(NOT_REDUCED)
}

/// Returns a coefficient of a `.zkey`. It is written as v·R², so that its Montgomery product with a number that is written
/// as it is has Montgomery form.
pub(super) fn coefficient(bytes: &[u8]) -> Result<Fr, &'static str> {
    let twice = limbs(bytes);
    if twice >= Fr::MODULUS {
        return Err(NOT_REDUCED);
    }
    Ok(Fr::new_unchecked(Fr::new_unchecked(twice).into_bigint()))
}

fn coordinate(bytes: &[u8]) -> Result<Fq, &'static str> {
    let limbs = limbs(bytes);
    if limbs >= Fq::MODULUS { Err(NOT_REDUCED_POINT) } else { Ok(Fq::new_unchecked(limbs)) }
}

/// Returns the point in 64 bytes; all zeros are the point at infinity.
pub(super) fn g1(bytes: &[u8]) -> Result<G1Affine, &'static str> {
    let (x, y) = bytes.split_at_checked(32).ok_or("is too short")?;
    let (x, y) = (coordinate(x)?, coordinate(y)?);
    if x.is_zero() && y.is_zero() {
        return Ok(G1Affine::zero());
    }
    // All points of the curve are in the subgroup.
    let point = G1Affine::new_unchecked(x, y);
    if point.is_on_curve() { Ok(point) } else { Err(NOT_ON_CURVE) }
}

/// Returns the point in 128 bytes; all zeros are the point at infinity. The point may be outside of the subgroup.
pub(super) fn g2(bytes: &[u8]) -> Result<G2Affine, &'static str> {
    let mut parts = bytes.chunks(32).map(coordinate);
    let mut next = || parts.next().unwrap_or(Err("is too short"));
    let (x, y) = (Fq2::new(next()?, next()?), Fq2::new(next()?, next()?));
    if x.is_zero() && y.is_zero() {
        return Ok(G2Affine::zero());
    }
    let point = G2Affine::new_unchecked(x, y);
    if point.is_on_curve() { Ok(point) } else { Err(NOT_ON_CURVE) }
}
