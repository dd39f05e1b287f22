//! Proving keys.

use std::sync::Arc;

use ark_bn254::{Fr, G1Affine, G2Affine};
use ark_ff::UniformRand;
use rayon::prelude::*;

use super::{
    R1cs, Secrets, SparseMatrix, VerifyingKey, Witness, cpu::bit_reversed, randomness::seeded_generator,
};
use crate::error::{Error, Result};

/// A Groth16 proving key over BN254, with the matrices of its circuit.
///
/// It comes from a [`.zkey` file](ProvingKey::read) of snarkjs, or from [arkworks' set-up](ProvingKey::set_up).
#[derive(Debug, Clone)]
pub struct ProvingKey {
    pub(crate) verifying: Arc<VerifyingKey>,
    pub(crate) beta_g1: G1Affine,
    pub(crate) delta_g1: G1Affine,
    pub(crate) queries: Queries,
    /// The rows of A and B on the domain: the constraints, then one row of A for each public wire.
    pub(crate) a: SparseMatrix,
    pub(crate) b: SparseMatrix,
    /// The constraints of C. A `.zkey` does not have them.
    pub(crate) c: Option<SparseMatrix>,
    pub(crate) constraints: usize,
    pub(crate) domain: usize,
    pub(crate) reduction: Reduction,
}

/// The points of a key that the five multi-scalar multiplications of a proof use.
#[derive(Debug, Clone)]
pub(crate) struct Queries {
    /// A point for each wire: A in the first group.
    pub(crate) a: Arc<[G1Affine]>,
    /// A point for each wire: B in the first group.
    pub(crate) b_g1: Arc<[G1Affine]>,
    /// A point for each wire: B in the second group.
    pub(crate) b_g2: Arc<[G2Affine]>,
    /// A point for each private wire.
    pub(crate) l: Arc<[G1Affine]>,
    /// A point for each element of the quotient.
    pub(crate) h: Arc<[G1Affine]>,
}

/// How a key's points represent the quotient polynomial H = (A·B − C) / Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Keys of snarkjs: by the values of A·B − C on the odd coset of the domain of twice the size. Z is a constant there,
    /// which the key's points contain.
    Circom,
    /// Keys of arkworks and libsnark: by the coefficients of H.
    Libsnark,
}

impl ProvingKey {
    /// The key that verifies this key's proofs.
    pub fn verifying_key(&self) -> &Arc<VerifyingKey> {
        &self.verifying
    }

    /// Returns the number of wires: values of a witness.
    pub fn wires(&self) -> usize {
        self.queries.a.len()
    }

    /// Returns the number of public wires, without the constant 1.
    pub fn public(&self) -> usize {
        self.verifying.public()
    }

    /// Returns the number of constraints.
    pub fn constraints(&self) -> usize {
        self.constraints
    }

    /// Returns the number of elements of the domain, a power of two.
    pub fn domain(&self) -> usize {
        self.domain
    }

    /// How the key's points represent the quotient polynomial.
    pub fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Returns whether the key has a phase-2 contribution. Without one, gamma equals delta.
    pub(crate) fn has_contribution(&self) -> bool {
        let key = self.verifying.ark();
        key.gamma_g2 != key.delta_g2
    }

    /// Adds the constraints of the key's circuit, so that a witness that does not satisfy them is found before it is
    /// proved, and the constraint is named. Fails with [`Error::OtherConstraints`] if they are those of another circuit.
    pub fn with_r1cs(self, r1cs: &R1cs) -> Result<ProvingKey> {
        let other = |detail: String| Error::OtherConstraints { detail };
        if (r1cs.wires(), r1cs.public()) != (self.wires(), self.public()) {
            let detail = format!(
                "the constraints have {} wires, {} of them public, and the key has {} and {}",
                r1cs.wires(),
                r1cs.public(),
                self.wires(),
                self.public()
            );
            return Err(other(detail));
        }
        // Different matrices have different products with a random vector.
        let mut generator = seeded_generator()?;
        let random: Vec<Fr> = (0..self.wires()).map(|_| Fr::rand(&mut generator)).collect();
        let rows = self.a.rows().max(r1cs.constraints() + 1 + self.public()).max(self.b.rows());
        let product = |matrix: &SparseMatrix| {
            let mut product = vec![Fr::default(); rows];
            matrix.multiply(&random, &mut product);
            product
        };
        let mut a = product(&r1cs.a);
        a[r1cs.constraints()..][..=self.public()].copy_from_slice(&random[..=self.public()]);
        for (letter, own, theirs) in [("A", product(&self.a), a), ("B", product(&self.b), product(&r1cs.b))] {
            if let Some(row) = (0..rows).find(|&row| own[row] != theirs[row]) {
                return Err(other(format!("constraint {row}, counted from 0, differs in {letter}")));
            }
        }
        Ok(ProvingKey { constraints: r1cs.constraints(), c: Some(r1cs.c.clone()), ..self })
    }

    /// Returns the points that are multiplied by the scalars of [`Engine::quotient`](super::Engine::quotient), in the same
    /// order and number.
    pub(crate) fn quotient_points(&self) -> Arc<[G1Affine]> {
        match self.reduction {
            Reduction::Circom => self.queries.h.clone(),
            Reduction::Libsnark => {
                // There is no point for the last coefficient.
                let mut points = self.queries.h.to_vec();
                points.resize(self.domain, G1Affine::identity());
                bit_reversed(&points, |point| *point).into()
            }
        }
    }

    /// Fails if this is not the number of values of a witness for the circuit.
    pub(crate) fn check_len(&self, values: usize) -> Result<()> {
        if values == self.wires() {
            return Ok(());
        }
        let detail = format!("it has {values} values, and the key's circuit has {} wires", self.wires());
        Err(Error::OtherCircuit { detail })
    }

    /// Evaluates the constraints with a witness, in the threads of the current rayon pool. Fails if the key has all
    /// matrices and one of the constraints does not hold.
    pub(crate) fn evaluate(&self, witness: &Witness) -> Result<Evaluations> {
        let product = |matrix: &SparseMatrix| {
            let mut product = Secrets::from(vec![Fr::default(); self.domain]);
            matrix.multiply(witness.values(), &mut product);
            product
        };
        let (a, b) = (product(&self.a), product(&self.b));
        if let Some(c) = &self.c {
            let fails = |&row: &usize| a[row] * b[row] != c.row_product(row, witness.values());
            let rows = (0..self.constraints).into_par_iter().with_min_len(256).filter(fails);
            let failed =
                rows.map(|row| (row, 1)).reduce_with(|one, other| (one.0.min(other.0), one.1 + other.1));
            if let Some((constraint, failed)) = failed {
                return Err(Error::Unsatisfied { constraint, failed, constraints: self.constraints });
            }
        }
        Ok(Evaluations { a, b })
    }
}

/// The products of A and B with a witness, on the whole domain. The product with C equals their product element by element
/// if the witness satisfies the constraints, so it is not kept.
pub struct Evaluations {
    /// A·w.
    pub a: Secrets<Fr>,
    /// B·w.
    pub b: Secrets<Fr>,
}
