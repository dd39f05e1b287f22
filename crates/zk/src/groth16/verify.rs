//! Verification keys, proofs, and verifying.

use ark_bn254::{Bn254, Fr, G1Affine, G1Projective, G2Affine};
use ark_ec::{AffineRepr, VariableBaseMSM};
use ark_groth16::{Groth16, PreparedVerifyingKey, VerifyingKey as ArkVerifyingKey, prepare_verifying_key};

use crate::error::{Error, Result};

/// A Groth16 proof over BN254.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// A, in the first group.
    pub a: G1Affine,
    /// B, in the second group.
    pub b: G2Affine,
    /// C, in the first group.
    pub c: G1Affine,
}

impl From<ark_groth16::Proof<Bn254>> for Proof {
    fn from(proof: ark_groth16::Proof<Bn254>) -> Self {
        Proof { a: proof.a, b: proof.b, c: proof.c }
    }
}

impl From<Proof> for ark_groth16::Proof<Bn254> {
    fn from(proof: Proof) -> Self {
        ark_groth16::Proof { a: proof.a, b: proof.b, c: proof.c }
    }
}

/// A proof that has been verified, and the public values that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proved {
    /// The proof.
    pub proof: Proof,
    /// The values of the public wires: outputs, then inputs.
    pub public: Vec<Fr>,
}

/// A Groth16 verification key over BN254.
#[derive(Debug, Clone)]
pub struct VerifyingKey {
    prepared: PreparedVerifyingKey<Bn254>,
}

impl From<ArkVerifyingKey<Bn254>> for VerifyingKey {
    fn from(key: ArkVerifyingKey<Bn254>) -> Self {
        VerifyingKey { prepared: prepare_verifying_key(&key) }
    }
}

impl PartialEq for VerifyingKey {
    fn eq(&self, other: &Self) -> bool {
        self.ark() == other.ark()
    }
}

impl Eq for VerifyingKey {}

impl VerifyingKey {
    /// The key as arkworks has it.
    pub fn ark(&self) -> &ArkVerifyingKey<Bn254> {
        &self.prepared.vk
    }

    /// Returns the number of public inputs.
    pub fn public(&self) -> usize {
        self.ark().gamma_abc_g1.len().saturating_sub(1)
    }

    /// Verifies a proof. Fails with [`Error::InvalidProof`] if it is not valid for these public inputs.
    pub fn verify(&self, proof: &Proof, public: &[Fr]) -> Result<()> {
        if public.len() != self.public() {
            return Err(Error::PublicInputCount { expected: self.public(), found: public.len() });
        }
        let is_in_group = proof.a.is_on_curve()
            && proof.c.is_on_curve()
            && proof.b.is_on_curve()
            && proof.b.is_in_correct_subgroup_assuming_on_curve();
        if !is_in_group {
            return Err(Error::InvalidProof);
        }
        let points = &self.ark().gamma_abc_g1;
        let (Some(first), rest) = (points.first(), points.get(1..).unwrap_or_default()) else {
            return Err(Error::InvalidProof);
        };
        let inputs = G1Projective::msm_unchecked(rest, public) + first.into_group();
        match Groth16::<Bn254>::verify_proof_with_prepared_inputs(&self.prepared, &(*proof).into(), &inputs) {
            Ok(true) => Ok(()),
            _ => Err(Error::InvalidProof),
        }
    }
}
