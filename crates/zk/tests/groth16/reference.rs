//! The same key, witness and secrets give the proofs of other implementations, bit by bit; and files are read as another
//! reader reads them.

use ark_bn254::{Bn254, Fr};
use ark_ff::{One, Zero};
use ark_groth16::Groth16;
use ark_relations::utils::matrix::Matrix;
use evener_zk::{
    Error,
    format::{public_from_json, public_to_json},
    groth16::{Proof, Prover, ProvingKey, R1cs, Squares, VerifyingKey, Witness},
};
use taceo_circom_types::{CheckElement, groth16::Zkey};
use taceo_groth16::{CircomReduction, ConstraintMatrices};

use crate::{
    PROOF, PUBLIC, R1CS, VKEY, WTNS, ZKEY, key, pool, prover, r1cs, scalars, squares, verifying_key, witness,
};

/// Secrets with edge values.
pub(crate) fn secrets() -> Vec<(Fr, Fr)> {
    let random = scalars(1, 4);
    vec![
        (random[0], random[1]),
        (random[2], random[3]),
        (Fr::zero(), Fr::zero()),
        (Fr::zero(), random[0]),
        (random[0], Fr::zero()),
        (-Fr::one(), Fr::one()),
    ]
}

#[test]
fn with_fixed_secrets_the_proof_for_an_arkworks_key_is_that_of_ark_groth16() {
    check_arkworks_keys(&|key| Prover::load(&pool(), key), &[1, 4, 5, 9], &secrets());
}

/// Checks that a prover's proofs for keys of arkworks are those of `ark-groth16`.
pub(crate) fn check_arkworks_keys(load: &dyn Fn(ProvingKey) -> Prover, powers: &[u32], secrets: &[(Fr, Fr)]) {
    for &power in powers {
        let circuit = Squares::filling(power);
        let r1cs = circuit.r1cs().unwrap();
        let mut random = <ark_std::rand::rngs::StdRng as ark_std::rand::SeedableRng>::seed_from_u64(7);
        let ark = Groth16::<Bn254>::generate_random_parameters_with_reduction(&r1cs, &mut random).unwrap();
        let prover = load(ProvingKey::from_ark(ark.clone(), &r1cs).unwrap());
        let matrix = |index: usize| -> Matrix<Fr> {
            let matrix = [r1cs.a(), r1cs.b(), r1cs.c()][index];
            let row = |row| matrix.row(row).iter().map(|&(wire, value)| (value, wire as usize)).collect();
            (0..matrix.rows()).map(row).collect()
        };
        let matrices = [matrix(0), matrix(1), matrix(2)];
        for &(r, s) in secrets {
            let witness = circuit.witness(r + Fr::from(5)).unwrap();
            let expected = Groth16::<Bn254>::create_proof_with_reduction_and_matrices(
                &ark,
                r,
                s,
                &matrices,
                2,
                r1cs.constraints(),
                witness.values(),
            );
            let proved = prover.prove_with_secrets(witness, r, s).unwrap();
            assert_eq!(proved.proof, expected.unwrap().into(), "2^{power}, r {r}, s {s}");
        }
    }
}

#[test]
fn with_fixed_secrets_the_proof_for_a_zkey_is_that_of_taceo_groth16() {
    check_zkey(&|key| Prover::load(&pool(), key), &secrets());
}

/// Checks that a prover's proofs for a key of snarkjs are those of `taceo-groth16`.
pub(crate) fn check_zkey(load: &dyn Fn(ProvingKey) -> Prover, secrets: &[(Fr, Fr)]) {
    let zkey = Zkey::<Bn254>::from_reader(ZKEY, CheckElement::Yes).unwrap();
    let (matrices, ark): (ConstraintMatrices<Fr>, ark_groth16::ProvingKey<Bn254>) = zkey.into();
    let prover = load(key());
    for &(r, s) in secrets {
        let expected = taceo_groth16::Groth16::<Bn254>::prove::<CircomReduction>(
            &ark,
            r,
            s,
            &matrices,
            witness().values(),
        );
        let proved = prover.prove_with_secrets(witness(), r, s).unwrap();
        assert_eq!(proved.proof, expected.unwrap().into(), "r {r}, s {s}");
    }
}

#[test]
fn the_proof_of_snarkjs_is_valid_and_its_key_is_the_one_in_the_zkey() {
    let (proof, public) =
        (Proof::from_json("proof.json", PROOF).unwrap(), public_from_json("public.json", PUBLIC).unwrap());
    verifying_key().verify(&proof, &public).unwrap();
    assert_eq!(**key().verifying_key(), verifying_key());
    let wrong = [public[0] + Fr::one()];
    assert!(matches!(verifying_key().verify(&proof, &wrong), Err(Error::InvalidProof)));
    let count = verifying_key().verify(&proof, &[]);
    assert!(matches!(count, Err(Error::PublicInputCount { expected: 1, found: 0 })));
}

#[test]
fn json_is_read_as_it_was_written() {
    let text = |value: serde_json::Value| serde_json::to_vec(&value).unwrap();
    let proof = Proof::from_json("proof.json", PROOF).unwrap();
    assert_eq!(Proof::from_json("again", &text(proof.to_json())).unwrap(), proof);
    let again = VerifyingKey::from_json("again", &text(verifying_key().to_json()), false).unwrap();
    assert_eq!(again, verifying_key());
    let public = public_from_json("public.json", PUBLIC).unwrap();
    assert_eq!(public_from_json("again", &text(public_to_json(&public))).unwrap(), public);
    // The numbers and names are those that snarkjs wrote.
    let theirs: serde_json::Value = serde_json::from_slice(PROOF).unwrap();
    assert_eq!(proof.to_json(), theirs);
}

#[test]
fn files_are_read_as_taceo_circom_types_reads_them() {
    use taceo_circom_types::{R1CS as TheirR1cs, Witness as TheirWitness};
    let theirs = TheirWitness::<Fr>::from_reader(WTNS).unwrap();
    assert_eq!(witness().values(), theirs.values);
    let theirs = TheirR1cs::<Bn254>::from_reader(std::io::Cursor::new(R1CS)).unwrap();
    let ours = r1cs();
    assert_eq!(ours.constraints(), theirs.constraints.len());
    for (row, (a, b, c)) in theirs.constraints.iter().enumerate() {
        for (ours, theirs) in [(ours.a(), a), (ours.b(), b), (ours.c(), c)] {
            let ours: Vec<(usize, Fr)> =
                ours.row(row).iter().map(|&(wire, value)| (wire as usize, value)).collect();
            assert_eq!(ours, *theirs, "constraint {row}");
        }
    }
    assert_eq!(ours, squares().r1cs().unwrap(), "the circuit of the files is the one for measurements");
}

#[test]
fn verifying_key_json_of_snarkjs_is_read_as_taceo_circom_types_reads_it() {
    let theirs: taceo_circom_types::groth16::VerificationKey<Bn254> = serde_json::from_slice(VKEY).unwrap();
    assert_eq!(*verifying_key().ark(), theirs.into());
}

#[test]
fn constraints_from_a_file_can_be_set_up_and_proved() {
    let r1cs: R1cs = r1cs();
    let key = ProvingKey::set_up(&r1cs).unwrap();
    let verifying = key.verifying_key().clone();
    let proved = prover(key).prove(Witness::from_wtns("squares.wtns", WTNS).unwrap()).unwrap();
    verifying.verify(&proved.proof, &proved.public).unwrap();
    assert_eq!(proved.public, public_from_json("public.json", PUBLIC).unwrap());
}
