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

use std::time::{Duration, Instant};

use ark_bn254::Fr;
use ark_ec::CurveGroup;
use evener_device::Result as DeviceResult;

use super::{Engine, Proof, ProvingKey, Witness};
use crate::error::Result;

/// A key on a device.
pub(crate) struct LoadedKey<E: Engine> {
    constraints: E::Constraints,
    a: E::G1Bases,
    b_g1: E::G1Bases,
    b_g2: E::G2Bases,
    l: E::G1Bases,
    h: E::G1Bases,
}

impl<E: Engine> LoadedKey<E> {
    /// Copies the constraints and the points of a key to a device.
    pub(crate) fn load(engine: &mut E, key: &ProvingKey) -> DeviceResult<Self> {
        let constraints = engine.load_constraints(key)?;
        Ok(LoadedKey {
            a: engine.load_g1(&key.queries.a, 0)?,
            b_g1: engine.load_g1(&key.queries.b_g1, 0)?,
            b_g2: engine.load_g2(&key.queries.b_g2, 0)?,
            l: engine.load_g1(&key.queries.l, key.public() + 1)?,
            h: engine.load_quotient(&key.queries.h, &constraints, key.reduction)?,
            constraints,
        })
    }
}

/// Proves a witness, whose length was checked. The proof is not verified here. The outer error is the device's, the inner one
/// the witness's.
pub(crate) fn prove<E: Engine>(
    engine: &mut E,
    key: &ProvingKey,
    loaded: &LoadedKey<E>,
    witness: &Witness,
    r: &Fr,
    s: &Fr,
) -> DeviceResult<Result<Proof>> {
    let verifying = key.verifying.ark();
    let wires = engine.load_scalars(witness.values())?;
    let values = match engine.evaluate(&loaded.constraints, key, witness, &wires)? {
        Ok(values) => values,
        Err(error) => return Ok(Err(error)),
    };
    // The sum in the second group takes longest, so it begins first.
    let b_g2 = engine.begin_g2(&loaded.b_g2, &wires)?;
    let a = engine.begin_g1(&loaded.a, &wires)?;
    let b_g1 = engine.begin_g1(&loaded.b_g1, &wires)?;
    let l = engine.begin_g1(&loaded.l, &wires)?;
    let quotient = engine.quotient(&loaded.constraints, values, key.reduction)?;
    let h = engine.begin_g1(&loaded.h, &quotient)?;

    // What needs no sum is computed while the device works.
    let (r, s) = (*r, *s);
    let blind_a = key.delta_g1 * r + verifying.alpha_g1;
    let blind_b_g1 = key.delta_g1 * s + key.beta_g1;
    let blind_b_g2 = verifying.delta_g2 * s + verifying.beta_g2;
    let blind_c = -(key.delta_g1 * (r * s));
    let a = engine.finish_g1(a)? + blind_a;
    let b_g1 = engine.finish_g1(b_g1)? + blind_b_g1;
    let c = engine.finish_g1(l)? + a * s + b_g1 * r + blind_c;
    let b_g2 = engine.finish_g2(b_g2)? + blind_b_g2;
    let c = c + engine.finish_g1(h)?;
    Ok(Ok(Proof { a: a.into_affine(), b: b_g2.into_affine(), c: c.into_affine() }))
}

/// The time of each operation of a proof by itself, in the order in which [`prove`] begins them.
pub(crate) fn time_operations<E: Engine>(
    engine: &mut E,
    key: &ProvingKey,
    loaded: &LoadedKey<E>,
    witness: &Witness,
) -> DeviceResult<Result<Vec<(&'static str, Duration)>>> {
    let mut times = Vec::new();
    let mut start = Instant::now();
    let mut done = |engine: &mut E, operation| {
        engine.wait()?;
        times.push((operation, start.elapsed()));
        start = Instant::now();
        DeviceResult::Ok(())
    };
    let wires = engine.load_scalars(witness.values())?;
    done(engine, "copy")?;
    let values = match engine.evaluate(&loaded.constraints, key, witness, &wires)? {
        Ok(values) => values,
        Err(error) => return Ok(Err(error)),
    };
    done(engine, "evaluate")?;
    let sum = engine.begin_g2(&loaded.b_g2, &wires)?;
    let _ = engine.finish_g2(sum)?;
    done(engine, "B in G2")?;
    for (operation, bases) in [("A", &loaded.a), ("B in G1", &loaded.b_g1), ("L", &loaded.l)] {
        let sum = engine.begin_g1(bases, &wires)?;
        let _ = engine.finish_g1(sum)?;
        done(engine, operation)?;
    }
    let quotient = engine.quotient(&loaded.constraints, values, key.reduction)?;
    done(engine, "quotient")?;
    let sum = engine.begin_g1(&loaded.h, &quotient)?;
    let _ = engine.finish_g1(sum)?;
    done(engine, "H")?;
    engine.erase()?;
    done(engine, "erase")?;
    Ok(Ok(times))
}
