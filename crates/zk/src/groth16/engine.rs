//! The operations of a proof that devices implement.

use std::{ops::Range, sync::Arc};

use ark_bn254::{Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use evener_device::Result as DeviceResult;

use super::{ProvingKey, Reduction, Secrets, Witness};
use crate::error::Result;

/// The operations of a Groth16 proof on one device, for one worker.
///
/// What a key consists of is loaded once and stays on the device; all workers of the device share it. Operations may return
/// before the device has finished: the prover begins all sums, and then waits for each.
///
/// Errors are those of a device: the scheduler decides by their kind whether to retry and whether to quarantine the device.
/// No operation has to detect wrong results, because every proof is verified.
pub trait Engine: Send {
    /// Points of the first group on the device.
    type G1Bases: Send + Sync + 'static;
    /// Points of the second group on the device.
    type G2Bases: Send + Sync + 'static;
    /// The constraints of a key on the device.
    type Constraints: Send + Sync + 'static;
    /// Scalars on the device. They are secret.
    type Scalars: Send;
    /// The values of A and B on the domain. They are secret.
    type Values;
    /// A sum in the first group that the device may still be computing.
    type G1Sum;
    /// A sum in the second group that the device may still be computing.
    type G2Sum;

    /// Copies the constraints of a key to the device. This is the first call of all.
    fn load_constraints(&mut self, key: &ProvingKey) -> DeviceResult<Self::Constraints>;

    /// Copies points of the first group to the device, for any number of sums. `first` is the index of the scalar that the
    /// first point is multiplied by.
    fn load_g1(&mut self, points: &Arc<[G1Affine]>, first: usize) -> DeviceResult<Self::G1Bases>;

    /// Copies points of the second group to the device, as [`load_g1`](Self::load_g1) does.
    fn load_g2(&mut self, points: &Arc<[G2Affine]>, first: usize) -> DeviceResult<Self::G2Bases>;

    /// Copies scalars to the device. Those of an earlier call are no longer used.
    fn load_scalars(&mut self, scalars: &[Fr]) -> DeviceResult<Self::Scalars>;

    /// Evaluates A and B with a witness, whose values are in `wires` too. The inner error is the witness's: it does not
    /// satisfy a constraint. Only keys that have C can tell. An engine that does not know yet when it returns tells in
    /// [`check`](Self::check).
    fn evaluate(
        &mut self,
        constraints: &Self::Constraints,
        key: &ProvingKey,
        witness: &Witness,
        wires: &Self::Scalars,
    ) -> DeviceResult<Result<Self::Values>>;

    /// Waits for the last evaluation, and fails with the witness's error if [`evaluate`](Self::evaluate) did not and the
    /// witness does not satisfy a constraint. The prover calls it once it has begun all work of the proof, so that a device
    /// is not idle while the host waits.
    fn check(&mut self, key: &ProvingKey, witness: &Witness) -> DeviceResult<Result<()>>;

    /// Computes the scalars of the quotient polynomial H = (A·B − C) / Z, where A and B have the given values on the domain,
    /// and C the product of these. Their number is the size of the domain.
    ///
    /// - [`Reduction::Circom`]: the values of A·B − C at ω·ωᵢ, where ω is the root of unity of twice the domain's order, in
    ///   the order of the domain's elements ωᵢ. They are not divided by Z.
    /// - [`Reduction::Libsnark`]: the coefficients of H in bit-reversed order: coefficient j is where j has its bits
    ///   reversed. The coefficient of the highest power, which is the last, is zero.
    fn quotient(
        &mut self,
        constraints: &Self::Constraints,
        values: Self::Values,
        reduction: Reduction,
    ) -> DeviceResult<Self::Scalars>;

    /// Copies scalars of the device to the host. Fails with `BadResult` if one is not less than the modulus.
    fn read_scalars(&mut self, scalars: &Self::Scalars) -> DeviceResult<Secrets<Fr>>;

    /// Begins to compute the sum of scalar times point over a range of the points. There are enough points and scalars.
    fn begin_g1(
        &mut self,
        points: &Self::G1Bases,
        range: Range<usize>,
        scalars: &Self::Scalars,
    ) -> DeviceResult<Self::G1Sum>;

    /// As [`begin_g1`](Self::begin_g1), in the second group.
    fn begin_g2(
        &mut self,
        points: &Self::G2Bases,
        range: Range<usize>,
        scalars: &Self::Scalars,
    ) -> DeviceResult<Self::G2Sum>;

    /// Waits for a sum.
    fn finish_g1(&mut self, sum: Self::G1Sum) -> DeviceResult<G1Projective>;

    /// Waits for a sum.
    fn finish_g2(&mut self, sum: Self::G2Sum) -> DeviceResult<G2Projective>;

    /// Waits for everything that was begun.
    fn wait(&mut self) -> DeviceResult<()>;

    /// Zeroes all memory that depends on the witness. This is the last call for each proof, also after errors.
    fn erase(&mut self) -> DeviceResult<()>;
}
