//! The operations of a proof that devices implement.

use std::sync::Arc;

use ark_bn254::{Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use evener_device::Result;

use super::{Evaluations, Reduction};

/// The operations of a Groth16 proof on one device, for one worker.
///
/// Points of a key are loaded once and stay on the device; all workers of the device share them. Operations may return
/// before the device has finished: the prover begins all sums, and then waits for each.
///
/// Errors are those of a device: the scheduler decides by their kind whether to retry and whether to quarantine the device.
/// No operation has to detect wrong results, because every proof is verified.
pub trait Engine: Send {
    /// Points of the first group on the device.
    type G1Bases: Send + Sync + 'static;
    /// Points of the second group on the device.
    type G2Bases: Send + Sync + 'static;
    /// Scalars on the device. They are secret: dropping them zeroes their memory.
    type Scalars;
    /// A sum in the first group that the device may still be computing.
    type G1Sum;
    /// A sum in the second group that the device may still be computing.
    type G2Sum;

    /// Copies points of the first group to the device, for any number of sums.
    fn load_g1(&mut self, points: &Arc<[G1Affine]>) -> Result<Self::G1Bases>;

    /// Copies points of the second group to the device, for any number of sums.
    fn load_g2(&mut self, points: &Arc<[G2Affine]>) -> Result<Self::G2Bases>;

    /// Copies scalars to the device.
    fn load_scalars(&mut self, scalars: &[Fr]) -> Result<Self::Scalars>;

    /// Computes the scalars of the quotient polynomial H = (A·B − C) / Z, where A, B and C have the values `a`, `b` and
    /// `a`·`b` on the domain. Their number is that of the values, a power of two.
    ///
    /// - [`Reduction::Circom`]: the values of A·B − C at ω·ωᵢ, where ω is the root of unity of twice the domain's order, in
    ///   the order of the domain's elements ωᵢ. They are not divided by Z.
    /// - [`Reduction::Libsnark`]: the coefficients of H, constant first. The last one is zero.
    fn quotient(&mut self, values: Evaluations, reduction: Reduction) -> Result<Self::Scalars>;

    /// Begins to compute Σ sᵢ·Pᵢ over all points, where s₀ is the scalar with index `first`. There are enough scalars.
    fn begin_g1(
        &mut self,
        points: &Self::G1Bases,
        scalars: &Self::Scalars,
        first: usize,
    ) -> Result<Self::G1Sum>;

    /// As [`begin_g1`](Self::begin_g1), in the second group.
    fn begin_g2(
        &mut self,
        points: &Self::G2Bases,
        scalars: &Self::Scalars,
        first: usize,
    ) -> Result<Self::G2Sum>;

    /// Waits for a sum.
    fn finish_g1(&mut self, sum: Self::G1Sum) -> Result<G1Projective>;

    /// Waits for a sum.
    fn finish_g2(&mut self, sum: Self::G2Sum) -> Result<G2Projective>;
}
