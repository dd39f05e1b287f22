//! Points in memory, and their conversions from and to arkworks' types.

use ark_bn254::{Fq2, G1Affine, G1Projective, G2Affine, G2Projective};
use ark_ec::AffineRepr;
use ark_ff::Zero;
use bytemuck::{Pod, Zeroable};

use crate::field::Limbs;

/// An affine point of G1. The default is infinity, (0, 0).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct AffineG1 {
    /// The x coordinate.
    pub x: Limbs,
    /// The y coordinate.
    pub y: Limbs,
}

/// An affine point of G2. A coordinate is c0 + c1·u. The default is infinity, (0, 0).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct AffineG2 {
    /// The x coordinate.
    pub x: [Limbs; 2],
    /// The y coordinate.
    pub y: [Limbs; 2],
}

/// A point of G1 in XYZZ coordinates. The default is infinity.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub struct XyzzG1 {
    /// x · ZZ.
    pub x: Limbs,
    /// y · ZZZ.
    pub y: Limbs,
    /// z².
    pub zz: Limbs,
    /// z³.
    pub zzz: Limbs,
}

/// A point of G2 in XYZZ coordinates. A coordinate is c0 + c1·u. The default is infinity.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub struct XyzzG2 {
    /// x · ZZ.
    pub x: [Limbs; 2],
    /// y · ZZZ.
    pub y: [Limbs; 2],
    /// z².
    pub zz: [Limbs; 2],
    /// z³.
    pub zzz: [Limbs; 2],
}

fn limbs_of(element: Fq2) -> [Limbs; 2] {
    [element.c0.into(), element.c1.into()]
}

fn element_of([c0, c1]: [Limbs; 2]) -> Fq2 {
    Fq2::new(c0.into(), c1.into())
}

impl From<&G1Affine> for AffineG1 {
    fn from(point: &G1Affine) -> Self {
        point.xy().map_or(AffineG1::default(), |(x, y)| AffineG1 { x: x.into(), y: y.into() })
    }
}

impl From<&G2Affine> for AffineG2 {
    fn from(point: &G2Affine) -> Self {
        point.xy().map_or(AffineG2::default(), |(x, y)| AffineG2 { x: limbs_of(x), y: limbs_of(y) })
    }
}

/// The point must be one that a device computed, or that was made from a `G1Affine`: it is not checked.
impl From<AffineG1> for G1Affine {
    fn from(point: AffineG1) -> Self {
        if point == AffineG1::default() {
            return G1Affine::identity();
        }
        G1Affine::new_unchecked(point.x.into(), point.y.into())
    }
}

/// The point must be one that a device computed, or that was made from a `G2Affine`: it is not checked.
impl From<AffineG2> for G2Affine {
    fn from(point: AffineG2) -> Self {
        if point == AffineG2::default() {
            return G2Affine::identity();
        }
        G2Affine::new_unchecked(element_of(point.x), element_of(point.y))
    }
}

/// To Jacobian coordinates without an inversion: with ZZ for z, X·ZZ and Y·ZZZ are x·ZZ² and y·ZZ³.
impl From<XyzzG1> for G1Projective {
    fn from(point: XyzzG1) -> Self {
        let [x, y, zz, zzz]: [ark_bn254::Fq; 4] = [point.x, point.y, point.zz, point.zzz].map(Into::into);
        if zz.is_zero() {
            return G1Projective::zero();
        }
        G1Projective::new_unchecked(x * zz, y * zzz, zz)
    }
}

/// As for G1.
impl From<XyzzG2> for G2Projective {
    fn from(point: XyzzG2) -> Self {
        let [x, y, zz, zzz] = [point.x, point.y, point.zz, point.zzz].map(element_of);
        if zz.is_zero() {
            return G2Projective::zero();
        }
        G2Projective::new_unchecked(x * zz, y * zzz, zz)
    }
}
