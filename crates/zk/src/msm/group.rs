//! The groups that a multi-scalar multiplication can be in.

use ark_bn254::{Fr, G1Affine, G2Affine, g1, g2};
use ark_ec::{CurveGroup, VariableBaseMSM, short_weierstrass::Projective};
use bytemuck::Pod;

use crate::{
    curve::{AffineG1, AffineG2, Group, XyzzG1, XyzzG2},
    field::Limbs,
};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Projective<ark_bn254::g1::Config> {}
    impl Sealed for super::Projective<ark_bn254::g2::Config> {}
}

/// A group of BN254: `ark_bn254::G1Projective` or `G2Projective`.
pub trait MsmGroup: CurveGroup<ScalarField = Fr> + sealed::Sealed {
    /// Which group it is.
    const GROUP: Group;
    /// An affine point in a device's memory.
    type DevicePoint: Pod + Send + Sync;
    /// A point in XYZZ coordinates in a device's memory.
    type DeviceSum: Pod + Send + Sync;

    /// Returns a point as it is in a device's memory.
    fn device_point(point: &Self::Affine) -> Self::DevicePoint;

    /// Returns a point that a device computed.
    fn from_device(sum: Self::DeviceSum) -> Self;

    /// Computes the sum of scalar times point on the processor, with arkworks. Ignores what is beyond the shorter of the
    /// two.
    fn msm_on_host(points: &[Self::Affine], scalars: &[Fr]) -> Self;
}

// The names `G1Projective` and `G2Projective` stand for associated types, of which the compiler cannot tell that they differ.
impl MsmGroup for Projective<g1::Config> {
    const GROUP: Group = Group::G1;
    type DevicePoint = AffineG1;
    type DeviceSum = XyzzG1;

    fn device_point(point: &G1Affine) -> AffineG1 {
        point.into()
    }

    fn from_device(sum: XyzzG1) -> Self {
        sum.into()
    }

    fn msm_on_host(points: &[G1Affine], scalars: &[Fr]) -> Self {
        Self::msm_unchecked(points, scalars)
    }
}

impl MsmGroup for Projective<g2::Config> {
    const GROUP: Group = Group::G2;
    type DevicePoint = AffineG2;
    type DeviceSum = XyzzG2;

    fn device_point(point: &G2Affine) -> AffineG2 {
        point.into()
    }

    fn from_device(sum: XyzzG2) -> Self {
        sum.into()
    }

    fn msm_on_host(points: &[G2Affine], scalars: &[Fr]) -> Self {
        Self::msm_unchecked(points, scalars)
    }
}

/// Elements of `Limbs` of an affine point.
pub(super) fn point_limbs<P: MsmGroup>() -> usize {
    size_of::<P::DevicePoint>() / size_of::<Limbs>()
}

/// Elements of `Limbs` of a point in XYZZ coordinates.
pub(super) fn sum_limbs<P: MsmGroup>() -> usize {
    size_of::<P::DeviceSum>() / size_of::<Limbs>()
}
