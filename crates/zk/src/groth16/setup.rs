//! Circuits in Rust, and arkworks' set-up.

use std::sync::Arc;

use ark_bn254::{Bn254, Fr};
use ark_ff::{One, Zero};
use ark_groth16::Groth16;
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use ark_relations::gr1cs::{
    ConstraintSynthesizer, ConstraintSystem, ConstraintSystemRef, LinearCombination, OptimizationGoal,
    R1CS_PREDICATE_LABEL, SynthesisError, SynthesisMode, Variable,
};

use super::{ProvingKey, Queries, Reduction, SparseMatrix, Witness, randomness::seeded_generator};
use crate::error::{Error, Result};

/// The constraints of a circuit: A·w ∘ B·w = C·w for the values w of all wires.
///
/// Wire 0 is the constant 1, the public wires follow, then the private ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct R1cs {
    public: usize,
    pub(crate) a: SparseMatrix,
    pub(crate) b: SparseMatrix,
    pub(crate) c: SparseMatrix,
}

impl R1cs {
    /// Makes constraints from matrices with the same numbers of rows and columns. `public` is the number of public wires
    /// without the constant 1. Fails if the sizes do not match.
    pub(crate) fn new(public: usize, a: SparseMatrix, b: SparseMatrix, c: SparseMatrix) -> Result<R1cs> {
        let sizes = [&a, &b, &c].map(|matrix| (matrix.rows(), matrix.columns()));
        if sizes.iter().any(|size| *size != sizes[0]) || public >= sizes[0].1 {
            let detail = format!("{public} public wires, and matrices of {sizes:?} rows and columns");
            return Err(Error::Circuit { detail });
        }
        Ok(R1cs { public, a, b, c })
    }

    /// Returns the constraints of a circuit.
    pub fn synthesize(circuit: impl ConstraintSynthesizer<Fr>) -> Result<R1cs> {
        let system = synthesize(circuit, SynthesisMode::Setup)?;
        let matrices = system.to_matrices().map_err(circuit_error)?;
        let Some([a, b, c]) = matrices.get(R1CS_PREDICATE_LABEL).map(Vec::as_slice) else {
            return Err(Error::Circuit { detail: "it has no constraints of rank one".into() });
        };
        let wires = system.num_instance_variables() + system.num_witness_variables();
        let matrix = |rows: &[Vec<(Fr, usize)>]| {
            let mut matrix = SparseMatrix::builder();
            for row in rows {
                row.iter().for_each(|&(value, wire)| matrix.push(wire as u32, value));
                matrix.end_row();
            }
            matrix.build(wires)
        };
        R1cs::new(system.num_instance_variables() - 1, matrix(a), matrix(b), matrix(c))
    }

    /// The matrix A.
    pub fn a(&self) -> &SparseMatrix {
        &self.a
    }

    /// The matrix B.
    pub fn b(&self) -> &SparseMatrix {
        &self.b
    }

    /// The matrix C.
    pub fn c(&self) -> &SparseMatrix {
        &self.c
    }

    /// Returns the number of wires.
    pub fn wires(&self) -> usize {
        self.a.columns()
    }

    /// Returns the number of public wires, without the constant 1.
    pub fn public(&self) -> usize {
        self.public
    }

    /// Returns the number of constraints.
    pub fn constraints(&self) -> usize {
        self.a.rows()
    }
}

/// Constraints that are read from a file can be set up by arkworks.
impl ConstraintSynthesizer<Fr> for &R1cs {
    fn generate_constraints(self, system: ConstraintSystemRef<Fr>) -> Result<(), SynthesisError> {
        let mut wires = vec![Variable::One];
        for wire in 1..self.wires() {
            let missing = || Err(SynthesisError::AssignmentMissing);
            wires.push(match wire <= self.public {
                true => system.new_input_variable(missing)?,
                false => system.new_witness_variable(missing)?,
            });
        }
        let combination = |matrix: &SparseMatrix, row: usize| {
            let terms = matrix.row(row).iter().map(|&(wire, value)| (value, wires[wire as usize]));
            LinearCombination(terms.collect())
        };
        for row in 0..self.constraints() {
            system.enforce_r1cs_constraint(
                || combination(&self.a, row),
                || combination(&self.b, row),
                || combination(&self.c, row),
            )?;
        }
        Ok(())
    }
}

impl Witness {
    /// Computes the witness of a circuit that is written with `ark-relations`.
    pub fn synthesize(circuit: impl ConstraintSynthesizer<Fr>) -> Result<Witness> {
        let mode = SynthesisMode::Prove { construct_matrices: false, generate_lc_assignments: false };
        let system = synthesize(circuit, mode)?;
        let system = system.borrow().ok_or_else(|| circuit_error(SynthesisError::MissingCS))?;
        let public = system.instance_assignment().map_err(circuit_error)?;
        let private = system.witness_assignment().map_err(circuit_error)?;
        Witness::new([public, private].concat())
    }
}

fn synthesize(
    circuit: impl ConstraintSynthesizer<Fr>,
    mode: SynthesisMode,
) -> Result<ConstraintSystemRef<Fr>> {
    let system = ConstraintSystem::new_ref();
    // As arkworks' set-up does.
    system.set_optimization_goal(OptimizationGoal::Constraints);
    system.set_mode(mode);
    circuit.generate_constraints(system.clone()).map_err(circuit_error)?;
    system.finalize();
    Ok(system)
}

fn circuit_error(error: SynthesisError) -> Error {
    Error::Circuit { detail: error.to_string() }
}

impl ProvingKey {
    /// Makes a key for constraints with arkworks' set-up and randomness of the operating system, which is then forgotten.
    ///
    /// Whoever runs this could keep the randomness and forge proofs, so it is for verifiers that trust this process.
    /// snarkjs' `zkey contribute` makes keys that many parties have contributed to.
    pub fn set_up(r1cs: &R1cs) -> Result<ProvingKey> {
        let mut random = seeded_generator()?;
        let key = Groth16::<Bn254>::generate_random_parameters_with_reduction(r1cs, &mut random);
        ProvingKey::from_ark(key.map_err(circuit_error)?, r1cs)
    }

    /// Takes a key of `ark-groth16`, with libsnark's reduction, and the constraints that it is for. Fails if the sizes do
    /// not match.
    pub fn from_ark(key: ark_groth16::ProvingKey<Bn254>, r1cs: &R1cs) -> Result<ProvingKey> {
        let (wires, public, constraints) = (r1cs.wires(), r1cs.public(), r1cs.constraints());
        let too_large =
            || Error::Circuit { detail: format!("{constraints} constraints are too many for BN254") };
        let domain =
            Radix2EvaluationDomain::<Fr>::new(constraints + public + 1).ok_or_else(too_large)?.size();
        let sizes = [
            ("IC", key.vk.gamma_abc_g1.len(), public + 1),
            ("A", key.a_query.len(), wires),
            ("B1", key.b_g1_query.len(), wires),
            ("B2", key.b_g2_query.len(), wires),
            ("L", key.l_query.len(), wires - public - 1),
            ("H", key.h_query.len(), domain - 1),
        ];
        if let Some((name, found, expected)) = sizes.iter().find(|(_, found, expected)| found != expected) {
            let detail = format!("{found} points {name}, and the circuit has {expected}");
            return Err(Error::OtherCircuit { detail });
        }
        // The rows of the public wires make the polynomials of A independent; B and C are zero there.
        let mut a = SparseMatrix::builder();
        for row in 0..constraints {
            r1cs.a.row(row).iter().for_each(|&(wire, value)| a.push(wire, value));
            a.end_row();
        }
        for wire in 0..=public {
            a.push(wire as u32, Fr::one());
            a.end_row();
        }
        let verifying = Arc::new(key.vk.into());
        let (beta_g1, delta_g1) = (key.beta_g1, key.delta_g1);
        let queries = Queries {
            a: key.a_query.into(),
            b_g1: key.b_g1_query.into(),
            b_g2: key.b_g2_query.into(),
            l: key.l_query.into(),
            h: key.h_query.into(),
        };
        let (a, b, c) = (a.build(wires), r1cs.b.clone(), Some(r1cs.c.clone()));
        let reduction = Reduction::Libsnark;
        Ok(ProvingKey { verifying, beta_g1, delta_g1, queries, a, b, c, constraints, domain, reduction })
    }
}

/// A circuit of any size with a dense witness, for measurements: constraint i is (xᵢ + i)·(xᵢ + 7) = xᵢ₊₁. The first x is
/// private, the last one public.
#[derive(Debug, Clone, Copy)]
pub struct Squares {
    constraints: usize,
}

impl Squares {
    /// Makes the circuit whose constraints and public wires fill a domain of 2^`power` elements: it has 2^`power` − 8
    /// constraints, or one if `power` is less than 4.
    pub fn filling(power: u32) -> Squares {
        Squares { constraints: (1usize << power.min(27)).saturating_sub(8).max(1) }
    }

    /// The wire of xᵢ.
    fn wire(&self, index: usize) -> u32 {
        match index {
            _ if index == self.constraints => 1,
            0 => 2,
            _ => index as u32 + 2,
        }
    }

    /// Returns the constraints.
    pub fn r1cs(&self) -> Result<R1cs> {
        let mut matrices = [(); 3].map(|()| SparseMatrix::builder());
        let [a, b, c] = &mut matrices;
        for index in 0..self.constraints {
            a.push(0, Fr::from(index as u64));
            a.push(self.wire(index), Fr::one());
            b.push(0, Fr::from(7));
            b.push(self.wire(index), Fr::one());
            c.push(self.wire(index + 1), Fr::one());
            for matrix in [&mut *a, &mut *b, &mut *c] {
                matrix.end_row();
            }
        }
        let [a, b, c] = matrices.map(|matrix| matrix.build(self.constraints + 2));
        R1cs::new(1, a, b, c)
    }

    /// Returns the witness with the first value x₀.
    pub fn witness(&self, first: Fr) -> Result<Witness> {
        let mut values = vec![Fr::zero(); self.constraints + 2];
        values[0] = Fr::one();
        let mut x = first;
        values[self.wire(0) as usize] = x;
        for index in 0..self.constraints {
            x = (x + Fr::from(index as u64)) * (x + Fr::from(7));
            values[self.wire(index + 1) as usize] = x;
        }
        Witness::new(values)
    }
}
