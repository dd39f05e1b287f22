//! What the emitters need to know of a prime field.

use ark_ff::{MontConfig, PrimeField as _};

/// Number of 32-bit limbs of an element.
pub(crate) const LIMBS: usize = 8;

/// A prime field of 254 bits, as the emitters see it: 32-bit limbs, the least significant first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDescription {
    /// Prefix of the emitted functions: `fq` gives `fq_mul`.
    pub prefix: &'static str,
    /// Name of the emitted type.
    pub type_name: &'static str,
    /// The modulus p. It is odd and less than 2^254, so that two elements can be added without a carry out of the last
    /// limb.
    pub modulus: [u32; LIMBS],
    /// The element 1 in Montgomery form: 2^256 mod p.
    pub one: [u32; LIMBS],
    /// −1/p mod 2^32.
    pub negative_inverse: u32,
}

impl FieldDescription {
    /// The base field of BN254, in which the coordinates of points are. Its functions are named `fq_*`, its type `Fq`.
    pub fn fq() -> Self {
        Self::of::<ark_bn254::FqConfig>("fq", "Fq")
    }

    /// The scalar field of BN254. Its functions are named `fr_*`, its type `Fr`.
    pub fn fr() -> Self {
        Self::of::<ark_bn254::FrConfig>("fr", "Fr")
    }

    fn of<C: MontConfig<4>>(prefix: &'static str, type_name: &'static str) -> Self {
        FieldDescription {
            prefix,
            type_name,
            modulus: split(ark_ff::Fp::<ark_ff::MontBackend<C, 4>, 4>::MODULUS.0),
            one: split(C::R.0),
            negative_inverse: C::INV as u32,
        }
    }

    /// p − 2, the exponent that inverts an element.
    pub(crate) fn inversion_exponent(&self) -> [u32; LIMBS] {
        let mut exponent = self.modulus;
        // The modulus of BN254's fields ends in 47 and 1: the subtraction may borrow.
        let mut borrow = 2;
        for limb in &mut exponent {
            let (difference, is_negative) = limb.overflowing_sub(borrow);
            (*limb, borrow) = (difference, is_negative.into());
        }
        exponent
    }
}

/// Splits limbs of 64 bits into limbs of 32 bits.
pub(crate) fn split(limbs: [u64; LIMBS / 2]) -> [u32; LIMBS] {
    std::array::from_fn(|index| (limbs[index / 2] >> (32 * (index % 2))) as u32)
}

/// Joins limbs of 32 bits to limbs of 64 bits.
#[cfg(test)]
pub(crate) fn join(limbs: [u32; LIMBS]) -> [u64; LIMBS / 2] {
    std::array::from_fn(|index| u64::from(limbs[2 * index]) | u64::from(limbs[2 * index + 1]) << 32)
}
