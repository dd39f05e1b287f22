//! Multi-scalar multiplication: the sum of scalar times point, on a device or over a pool.
//!
//! [`MsmBases`] keeps points on a device; each call then multiplies them by other scalars. [`msm_g1`] and [`msm_g2`] spread
//! one multiplication over the devices of a pool.
//!
//! ```
//! use ark_bn254::{Fr, G1Affine, G1Projective};
//! use ark_ec::{AffineRepr, PrimeGroup};
//! use evener_device::Device;
//! use evener_zk::msm::MsmBases;
//!
//! let bases = MsmBases::<G1Projective>::upload(&Device::cpu(), &[G1Affine::generator(); 2])?;
//! let sum = bases.msm(&[Fr::from(2), Fr::from(3)])?;
//! assert_eq!(sum, G1Projective::generator() * Fr::from(5));
//! # Ok::<(), evener_device::Error>(())
//! ```
//!
//! # Algorithm
//! A scalar is cut into windows of c bits, with signed digits; the digit d of a window adds the point, or its negative, to
//! bucket |d| of the window. If memory allows, 2^(c k) times each point is computed once for every window k, and all windows
//! share one set of buckets: then fewer and wider windows are best.
//!
//! 1. `count_digits` counts the digits of each bucket, the scan computes where each bucket's entries begin, and
//!    `write_entries` writes the sorted entries: point and sign of each digit that is not zero.
//! 2. `accumulate` cuts the entries into segments of equal length, one for each thread that the device runs at once, so that
//!    all threads take the same time however the digits are distributed.
//! 3. `merge` adds up buckets that several segments share, in a tree.
//! 4. `reduce` computes, in a tree over the buckets, the sum of all buckets and of those whose index has bit k set, for each
//!    k. The host combines these few sums.
//!
//! No kernel waits for the host. The processor uses arkworks.

mod bases;
mod group;
mod kernels;
mod parts;
mod plan;
mod pool;
#[cfg(test)]
mod test;
mod workspace;

pub(crate) use self::workspace::{grown, zero_elements};
pub use self::{
    bases::{MsmBases, MsmKernels, MsmOptions, PendingMsm, Tables},
    group::MsmGroup,
    pool::{MsmError, msm, msm_g1, msm_g2},
    workspace::MsmWorkspace,
};
