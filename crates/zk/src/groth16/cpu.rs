//! The engine of the processor's cores, by arkworks' multi-scalar multiplications and Fourier transforms.

use std::{ops::Range, sync::Arc};

use ark_bn254::{Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use ark_ec::VariableBaseMSM;
use ark_ff::{BigInt, FftField, Field, PrimeField, Zero};
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use evener_device::{DeviceId, Error, Result as DeviceResult};
use rayon::prelude::*;

use super::{Engine, Evaluations, ProvingKey, Reduction, Secrets, Witness};
use crate::error::Result;

/// Runs on the threads of the current rayon pool. It is also the reference for other engines.
///
/// All copies of secret scalars that this code makes are zeroed. Digits of scalars that arkworks' multiplication allocates
/// for itself are freed without.
#[derive(Debug, Clone)]
pub struct CpuEngine {
    device: DeviceId,
}

impl CpuEngine {
    /// Makes an engine. Errors name this device.
    pub fn new(device: DeviceId) -> Self {
        CpuEngine { device }
    }
}

impl Engine for CpuEngine {
    type G1Bases = CpuBases<G1Affine>;
    type G2Bases = CpuBases<G2Affine>;
    type Constraints = ();
    type Scalars = Secrets<BigInt<4>>;
    type Values = Evaluations;
    type G1Sum = G1Projective;
    type G2Sum = G2Projective;

    fn load_constraints(&mut self, _: &ProvingKey) -> DeviceResult<()> {
        // They are in the key.
        Ok(())
    }

    fn load_g1(&mut self, points: &Arc<[G1Affine]>, first: usize) -> DeviceResult<Self::G1Bases> {
        Ok(CpuBases { points: points.clone(), first })
    }

    fn load_g2(&mut self, points: &Arc<[G2Affine]>, first: usize) -> DeviceResult<Self::G2Bases> {
        Ok(CpuBases { points: points.clone(), first })
    }

    fn load_scalars(&mut self, scalars: &[Fr]) -> DeviceResult<Self::Scalars> {
        Ok(Secrets::from(scalars.par_iter().map(|scalar| scalar.into_bigint()).collect::<Vec<_>>()))
    }

    fn evaluate(
        &mut self,
        (): &(),
        key: &ProvingKey,
        witness: &Witness,
        _: &Self::Scalars,
    ) -> DeviceResult<Result<Evaluations>> {
        Ok(key.evaluate(witness))
    }

    fn check(&mut self, _: &ProvingKey, _: &Witness) -> DeviceResult<Result<()>> {
        // `evaluate` has told.
        Ok(Ok(()))
    }

    fn quotient(
        &mut self,
        (): &(),
        values: Evaluations,
        reduction: Reduction,
    ) -> DeviceResult<Self::Scalars> {
        let Evaluations { mut a, mut b } = values;
        let unsupported = || Error::Unsupported {
            device: self.device.clone(),
            operation: "computing the quotient polynomial".into(),
            detail: format!("the field has no domain of {} elements", a.len()),
        };
        let domain = Radix2EvaluationDomain::<Fr>::new(a.len()).ok_or_else(unsupported)?;
        let shift = match reduction {
            Reduction::Circom => Fr::get_root_of_unity(2 * a.len() as u64).ok_or_else(unsupported)?,
            Reduction::Libsnark => Fr::GENERATOR,
        };
        let coset = domain.get_coset(shift).ok_or_else(unsupported)?;
        let mut c = Secrets::from(product(&a, &b));
        for polynomial in [&mut a, &mut b, &mut c] {
            domain.ifft_in_place(&mut **polynomial);
            coset.fft_in_place(&mut **polynomial);
        }
        a.par_iter_mut().zip(&**b).zip(&**c).for_each(|((a, b), c)| *a = *a * b - c);
        if reduction == Reduction::Libsnark {
            // Z is the same number everywhere on the coset, and not zero there.
            let vanishing = domain.evaluate_vanishing_polynomial(shift).inverse().unwrap_or(Fr::zero());
            a.par_iter_mut().for_each(|value| *value *= vanishing);
            coset.ifft_in_place(&mut *a);
            return Ok(Secrets::from(bit_reversed(&a, |scalar| scalar.into_bigint())));
        }
        self.load_scalars(&a)
    }

    fn read_scalars(&mut self, scalars: &Self::Scalars) -> DeviceResult<Secrets<Fr>> {
        // They were made from elements of the field.
        let scalar = |number: &BigInt<4>| Fr::from_bigint(*number).unwrap_or_default();
        Ok(Secrets::from(scalars.par_iter().map(scalar).collect::<Vec<_>>()))
    }

    fn begin_g1(
        &mut self,
        bases: &Self::G1Bases,
        range: Range<usize>,
        scalars: &Self::Scalars,
    ) -> DeviceResult<G1Projective> {
        Ok(G1Projective::msm_bigint(&bases.points[range.clone()], bases.scalars(range, scalars)))
    }

    fn begin_g2(
        &mut self,
        bases: &Self::G2Bases,
        range: Range<usize>,
        scalars: &Self::Scalars,
    ) -> DeviceResult<G2Projective> {
        Ok(G2Projective::msm_bigint(&bases.points[range.clone()], bases.scalars(range, scalars)))
    }

    fn finish_g1(&mut self, sum: G1Projective) -> DeviceResult<G1Projective> {
        Ok(sum)
    }

    fn finish_g2(&mut self, sum: G2Projective) -> DeviceResult<G2Projective> {
        Ok(sum)
    }

    fn wait(&mut self) -> DeviceResult<()> {
        Ok(())
    }

    fn erase(&mut self) -> DeviceResult<()> {
        // Scalars and values zero themselves.
        Ok(())
    }
}

/// Points, and the index of the scalar of the first.
#[derive(Debug)]
pub struct CpuBases<P> {
    points: Arc<[P]>,
    first: usize,
}

impl<P> CpuBases<P> {
    fn scalars<'a>(&self, range: Range<usize>, all: &'a [BigInt<4>]) -> &'a [BigInt<4>] {
        &all[self.first..][range]
    }
}

/// Returns the product element by element.
fn product(a: &[Fr], b: &[Fr]) -> Vec<Fr> {
    a.par_iter().zip(b).map(|(a, b)| *a * b).collect()
}

/// Returns the elements of a power of two, each at the index whose bits are those of its own in reverse.
pub(super) fn bit_reversed<T: Sync, U: Send>(elements: &[T], each: impl Fn(&T) -> U + Sync) -> Vec<U> {
    let unused = usize::BITS - elements.len().max(1).ilog2();
    let at = |index: usize| index.reverse_bits().checked_shr(unused).unwrap_or(0);
    (0..elements.len()).into_par_iter().map(|index| each(&elements[at(index)])).collect()
}
