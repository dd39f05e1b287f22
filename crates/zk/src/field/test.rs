//! Values for tests.

use ark_ff::{AdditiveGroup, BigInt, BigInteger, Field, Fp, MontBackend, MontConfig};

/// Returns values at which carries and reductions go wrong first: as numbers, and as limbs in Montgomery form.
pub(crate) fn edge_values<C: MontConfig<4>>() -> Vec<Fp<MontBackend<C, 4>, 4>> {
    type F<C> = Fp<MontBackend<C, 4>, 4>;
    let modulus = C::MODULUS;
    let mut below = modulus;
    below.sub_with_borrow(&BigInt::from(1u64));
    let ones = |count: usize| std::array::from_fn(|limb| if limb < count { u64::MAX } else { 0 });
    let mut top = modulus.0;
    top[3] -= 1;
    let limbs = [
        below.0,
        ones(1),
        ones(2),
        ones(3),
        [u64::MAX, u64::MAX, u64::MAX, top[3]],
        [0, 0, 0, modulus.0[3]],
        [1, 0, 0, 0],
        [u64::from(u32::MAX), 0, 0, 0],
        [0, u64::MAX << 32, 0, 1 << 32],
        [modulus.0[0] - 1, modulus.0[1], modulus.0[2], modulus.0[3]],
        [0, modulus.0[1], modulus.0[2], modulus.0[3]],
    ];
    let mut values: Vec<F<C>> = limbs.into_iter().map(|limbs| F::<C>::new_unchecked(BigInt(limbs))).collect();
    values.extend([F::<C>::ZERO, F::<C>::ONE, -F::<C>::ONE, F::<C>::ONE.double(), -F::<C>::ONE.double()]);
    // 2^256 − 1, reduced.
    values.push(F::<C>::from(2u64).pow([256]) - F::<C>::ONE);
    values
}
