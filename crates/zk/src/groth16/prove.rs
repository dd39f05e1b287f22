//! Groth16's prover, for one witness on one engine.
//!
//! With the key's points ⟦x⟧ and a witness w, and r and s random:
//!
//! ```text
//! A = α + Σ wᵢ·aᵢ + r·δ                                  in the first group
//! B = β + Σ wᵢ·bᵢ + s·δ                                  in both groups
//! C = Σ_private wᵢ·lᵢ + Σ hᵢ·zᵢ + s·A + r·B − r·s·δ       in the first group
//! ```
//!
//! h is the quotient polynomial of A·w, B·w and C·w. The proof is A, B in the second group, and C.

use std::sync::Arc;

use ark_bn254::Fr;
use ark_ec::CurveGroup;
use evener_device::Result;

use super::{Engine, Evaluations, Proof, ProvingKey, Witness};

/// The points of a key on a device.
pub(crate) struct LoadedKey<E: Engine> {
    a: E::G1Bases,
    b_g1: E::G1Bases,
    b_g2: E::G2Bases,
    l: E::G1Bases,
    h: E::G1Bases,
}

impl<E: Engine> LoadedKey<E> {
    /// Copies the points of a key to a device.
    pub(crate) fn load(engine: &mut E, key: &ProvingKey) -> Result<Self> {
        Ok(LoadedKey {
            a: engine.load_g1(&key.queries.a)?,
            b_g1: engine.load_g1(&key.queries.b_g1)?,
            b_g2: engine.load_g2(&key.queries.b_g2)?,
            l: engine.load_g1(&key.queries.l)?,
            h: engine.load_g1(&key.queries.h)?,
        })
    }
}

/// Proves a witness, whose length was checked and with which the constraints were evaluated. The proof is not verified here.
pub(crate) fn prove<E: Engine>(
    engine: &mut E,
    key: &ProvingKey,
    loaded: &Arc<LoadedKey<E>>,
    witness: &Witness,
    values: Evaluations,
    r: &Fr,
    s: &Fr,
) -> Result<Proof> {
    let verifying = key.verifying.ark();
    let wires = engine.load_scalars(witness.values())?;
    // The sum in the second group takes longest, so it begins first.
    let b_g2 = engine.begin_g2(&loaded.b_g2, &wires, 0)?;
    let a = engine.begin_g1(&loaded.a, &wires, 0)?;
    let b_g1 = engine.begin_g1(&loaded.b_g1, &wires, 0)?;
    let l = engine.begin_g1(&loaded.l, &wires, key.public() + 1)?;
    let quotient = engine.quotient(values, key.reduction)?;
    let h = engine.begin_g1(&loaded.h, &quotient, 0)?;

    let (r, s) = (*r, *s);
    let a = engine.finish_g1(a)? + verifying.alpha_g1 + key.delta_g1 * r;
    let b_g1 = engine.finish_g1(b_g1)? + key.beta_g1 + key.delta_g1 * s;
    let b_g2 = engine.finish_g2(b_g2)? + verifying.beta_g2 + verifying.delta_g2 * s;
    let c = engine.finish_g1(l)? + engine.finish_g1(h)? + a * s + b_g1 * r - key.delta_g1 * (r * s);
    Ok(Proof { a: a.into_affine(), b: b_g2.into_affine(), c: c.into_affine() })
}
