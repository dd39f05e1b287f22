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

use ark_bn254::{Fr, G1Projective, G2Projective};
use ark_ec::CurveGroup;
use evener_device::Result as DeviceResult;
use zeroize::Zeroizing;

use super::{Engine, Proof, ProvingKey, Witness};
use crate::error::Result;

/// A key on a device.
pub(crate) struct LoadedKey<E: Engine> {
    pub(super) constraints: E::Constraints,
    pub(super) a: E::G1Bases,
    pub(super) b_g1: E::G1Bases,
    pub(super) b_g2: E::G2Bases,
    pub(super) l: E::G1Bases,
    pub(super) h: E::G1Bases,
}

impl<E: Engine> LoadedKey<E> {
    /// Copies the constraints and the points of a key to a device.
    pub(crate) fn load(engine: &mut E, key: &ProvingKey) -> DeviceResult<Self> {
        let constraints = engine.load_constraints(key)?;
        Ok(LoadedKey {
            constraints,
            a: engine.load_g1(&key.queries.a, 0)?,
            b_g1: engine.load_g1(&key.queries.b_g1, 0)?,
            b_g2: engine.load_g2(&key.queries.b_g2, 0)?,
            l: engine.load_g1(&key.queries.l, key.public() + 1)?,
            h: engine.load_g1(&key.quotient_points(), 0)?,
        })
    }
}

/// The sums of a proof.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) a: G1Projective,
    pub(super) b_g1: G1Projective,
    pub(super) b_g2: G2Projective,
    pub(super) l: G1Projective,
    pub(super) h: G1Projective,
}

/// What a proof consists of besides the sums. It needs no sum, so it is computed while a device works.
pub(super) struct Blinds {
    r: Zeroizing<Fr>,
    s: Zeroizing<Fr>,
    a: G1Projective,
    b_g1: G1Projective,
    b_g2: G2Projective,
    c: G1Projective,
}

impl Blinds {
    pub(super) fn new(key: &ProvingKey, r: &Fr, s: &Fr) -> Blinds {
        let (verifying, r, s) = (key.verifying.ark(), *r, *s);
        Blinds {
            a: key.delta_g1 * r + verifying.alpha_g1,
            b_g1: key.delta_g1 * s + key.beta_g1,
            b_g2: verifying.delta_g2 * s + verifying.beta_g2,
            c: -(key.delta_g1 * (r * s)),
            r: Zeroizing::new(r),
            s: Zeroizing::new(s),
        }
    }

    /// Combines the sums of A and B in the first group. What needs no other sum is computed while a device works on those.
    pub(super) fn combine(&self, a: G1Projective, b_g1: G1Projective) -> Combined {
        let (a, b_g1) = (a + self.a, b_g1 + self.b_g1);
        Combined { a, c: a * *self.s + b_g1 * *self.r + self.c, b_g2: self.b_g2 }
    }

    /// Returns the proof with these sums.
    pub(super) fn proof(&self, sums: &Sums) -> Proof {
        self.combine(sums.a, sums.b_g1).proof(sums.b_g2, sums.l + sums.h)
    }
}

/// A, and what B and C consist of besides the other sums.
pub(super) struct Combined {
    a: G1Projective,
    b_g2: G2Projective,
    c: G1Projective,
}

impl Combined {
    /// Returns the proof with the sum of B in the second group, and those of L and H together.
    pub(super) fn proof(self, b_g2: G2Projective, l_and_h: G1Projective) -> Proof {
        let (b, c) = (self.b_g2 + b_g2, self.c + l_and_h);
        Proof { a: self.a.into_affine(), b: b.into_affine(), c: c.into_affine() }
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
    let (wire_count, private) = (key.wires(), key.queries.l.len());
    let wires = engine.load_scalars(witness.values())?;
    let values = match engine.evaluate(&loaded.constraints, key, witness, &wires)? {
        Ok(values) => values,
        Err(error) => return Ok(Err(error)),
    };
    // The sum in the second group takes longest, so it begins first.
    let b_g2 = engine.begin_g2(&loaded.b_g2, 0..wire_count, &wires)?;
    let a = engine.begin_g1(&loaded.a, 0..wire_count, &wires)?;
    let b_g1 = engine.begin_g1(&loaded.b_g1, 0..wire_count, &wires)?;
    let l = engine.begin_g1(&loaded.l, 0..private, &wires)?;
    let quotient = engine.quotient(&loaded.constraints, values, key.reduction)?;
    let h = engine.begin_g1(&loaded.h, 0..key.domain(), &quotient)?;
    if let Err(error) = engine.check(key, witness)? {
        return Ok(Err(error));
    }
    let blinds = Blinds::new(key, r, s);
    let combined = blinds.combine(engine.finish_g1(a)?, engine.finish_g1(b_g1)?);
    let l = engine.finish_g1(l)?;
    let b_g2 = engine.finish_g2(b_g2)?;
    Ok(Ok(combined.proof(b_g2, l + engine.finish_g1(h)?)))
}

/// The time of each operation of a proof by itself, in the order in which [`prove`] begins them.
pub(crate) fn time_operations<E: Engine>(
    engine: &mut E,
    key: &ProvingKey,
    loaded: &LoadedKey<E>,
    witness: &Witness,
) -> DeviceResult<Result<Vec<(&'static str, Duration)>>> {
    let (wire_count, private) = (key.wires(), key.queries.l.len());
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
    if let Err(error) = engine.check(key, witness)? {
        return Ok(Err(error));
    }
    done(engine, "evaluate")?;
    let sum = engine.begin_g2(&loaded.b_g2, 0..wire_count, &wires)?;
    let _ = engine.finish_g2(sum)?;
    done(engine, "B in G2")?;
    let sums =
        [("A", &loaded.a, wire_count), ("B in G1", &loaded.b_g1, wire_count), ("L", &loaded.l, private)];
    for (operation, bases, count) in sums {
        let sum = engine.begin_g1(bases, 0..count, &wires)?;
        let _ = engine.finish_g1(sum)?;
        done(engine, operation)?;
    }
    let quotient = engine.quotient(&loaded.constraints, values, key.reduction)?;
    done(engine, "quotient")?;
    let sum = engine.begin_g1(&loaded.h, 0..key.domain(), &quotient)?;
    let _ = engine.finish_g1(sum)?;
    done(engine, "H")?;
    engine.erase()?;
    done(engine, "erase")?;
    Ok(Ok(times))
}
