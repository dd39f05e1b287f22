//! The engine of the processor's cores, by arkworks' multi-scalar multiplications and Fourier transforms.

use std::sync::Arc;

use ark_bn254::{Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use ark_ec::VariableBaseMSM;
use ark_ff::{BigInt, FftField, Field, PrimeField, Zero};
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use evener_device::{DeviceId, Error, Result};
use rayon::prelude::*;
use zeroize::Zeroizing;

use super::{Engine, Evaluations, Reduction};

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
    type G1Bases = Arc<[G1Affine]>;
    type G2Bases = Arc<[G2Affine]>;
    type Scalars = Zeroizing<Vec<BigInt<4>>>;
    type G1Sum = G1Projective;
    type G2Sum = G2Projective;

    fn load_g1(&mut self, points: &Arc<[G1Affine]>) -> Result<Self::G1Bases> {
        Ok(points.clone())
    }

    fn load_g2(&mut self, points: &Arc<[G2Affine]>) -> Result<Self::G2Bases> {
        Ok(points.clone())
    }

    fn load_scalars(&mut self, scalars: &[Fr]) -> Result<Self::Scalars> {
        Ok(Zeroizing::new(scalars.par_iter().map(|scalar| scalar.into_bigint()).collect()))
    }

    fn quotient(&mut self, values: Evaluations, reduction: Reduction) -> Result<Self::Scalars> {
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
        let mut c = Zeroizing::new(product(&a, &b));
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
        }
        self.load_scalars(&a)
    }

    fn begin_g1(
        &mut self,
        points: &Self::G1Bases,
        scalars: &Self::Scalars,
        first: usize,
    ) -> Result<G1Projective> {
        Ok(G1Projective::msm_bigint(points, &scalars[first..][..points.len()]))
    }

    fn begin_g2(
        &mut self,
        points: &Self::G2Bases,
        scalars: &Self::Scalars,
        first: usize,
    ) -> Result<G2Projective> {
        Ok(G2Projective::msm_bigint(points, &scalars[first..][..points.len()]))
    }

    fn finish_g1(&mut self, sum: G1Projective) -> Result<G1Projective> {
        Ok(sum)
    }

    fn finish_g2(&mut self, sum: G2Projective) -> Result<G2Projective> {
        Ok(sum)
    }
}

/// Returns the product element by element.
fn product(a: &[Fr], b: &[Fr]) -> Vec<Fr> {
    a.par_iter().zip(b).map(|(a, b)| *a * b).collect()
}
