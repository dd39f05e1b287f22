//! Circuits that are written with `ark-relations`, and witnesses that do not fit.

use ark_bn254::{Bn254, Fr};
use ark_groth16::Groth16;
use ark_relations::{
    gr1cs::{ConstraintSynthesizer, ConstraintSystemRef, SynthesisError, Variable},
    lc,
};
use evener_zk::{
    Error,
    groth16::{ProvingKey, R1cs, Squares, Witness},
};

use crate::{key, prover, r1cs, scalars, squares, witness};

/// x³ + x + 5 = y, where y is public.
#[derive(Clone, Copy)]
struct Cubic(Option<u64>);

impl ConstraintSynthesizer<Fr> for Cubic {
    fn generate_constraints(self, system: ConstraintSystemRef<Fr>) -> Result<(), SynthesisError> {
        let value =
            |of: fn(u64) -> u64| self.0.map(of).map(Fr::from).ok_or(SynthesisError::AssignmentMissing);
        let y = system.new_input_variable(|| value(|x| x * x * x + x + 5))?;
        let x = system.new_witness_variable(|| value(|x| x))?;
        let square = system.new_witness_variable(|| value(|x| x * x))?;
        let cube = system.new_witness_variable(|| value(|x| x * x * x))?;
        system.enforce_r1cs_constraint(|| lc!() + x, || lc!() + x, || lc!() + square)?;
        system.enforce_r1cs_constraint(|| lc!() + square, || lc!() + x, || lc!() + cube)?;
        system.enforce_r1cs_constraint(
            || lc!() + cube + x + (Fr::from(5u64), Variable::One),
            || lc!() + Variable::One,
            || lc!() + y,
        )
    }
}

#[test]
fn a_circuit_in_rust_is_set_up_proved_and_verified_by_arkworks_too() {
    let r1cs = R1cs::synthesize(Cubic(None)).unwrap();
    assert_eq!((r1cs.constraints(), r1cs.wires(), r1cs.public()), (3, 5, 1));
    let key = ProvingKey::set_up(&r1cs).unwrap();
    let verifying = ark_groth16::prepare_verifying_key(key.verifying_key().ark());
    let proved = prover(key).prove(Witness::synthesize(Cubic(Some(3))).unwrap()).unwrap();
    assert_eq!(proved.public, [Fr::from(35)]);
    assert!(Groth16::<Bn254>::verify_proof(&verifying, &proved.proof.into(), &[Fr::from(35)]).unwrap());
    assert!(!Groth16::<Bn254>::verify_proof(&verifying, &proved.proof.into(), &[Fr::from(36)]).unwrap());
}

#[test]
fn the_same_circuit_through_arkworks_prover_has_the_same_proof() {
    let r1cs = R1cs::synthesize(Cubic(None)).unwrap();
    let mut random = <ark_std::rand::rngs::StdRng as ark_std::rand::SeedableRng>::seed_from_u64(3);
    let ark = Groth16::<Bn254>::generate_random_parameters_with_reduction(Cubic(None), &mut random).unwrap();
    let [r, s] = scalars(4, 2)[..] else { panic!("two numbers") };
    let expected = Groth16::<Bn254>::create_proof_with_reduction(Cubic(Some(9)), &ark, r, s).unwrap();
    let prover = prover(ProvingKey::from_ark(ark, &r1cs).unwrap());
    let proved = prover.prove_with_secrets(Witness::synthesize(Cubic(Some(9))).unwrap(), r, s).unwrap();
    assert_eq!(proved.proof, expected.into());
}

/// The witness of the files, with one value changed.
fn changed(index: usize) -> Witness {
    let mut values = witness().values().to_vec();
    values[index] += Fr::from(1);
    Witness::new(values).unwrap()
}

#[test]
fn a_witness_that_does_not_satisfy_the_circuit_is_refused_with_the_constraint_if_it_is_known() {
    let with_constraints = prover(key().with_r1cs(&r1cs()).unwrap());
    // Wire 5 is x₃: the result of constraint 2, and a factor of constraint 3.
    let error = with_constraints.prove(changed(5)).unwrap_err();
    assert!(matches!(error, Error::Unsatisfied { constraint: 2, failed: 2, constraints: 8 }), "{error}");
    // A .zkey alone does not have C: the proof shows it.
    let error = prover(key()).prove(changed(5)).unwrap_err();
    assert!(matches!(error, Error::Unprovable), "{error}");
    let error = prover(ProvingKey::set_up(&r1cs()).unwrap()).prove(changed(1)).unwrap_err();
    assert!(matches!(error, Error::Unsatisfied { constraint: 7, failed: 1, .. }), "{error}");
}

#[test]
fn a_witness_of_another_circuit_is_refused_by_its_length() {
    let other = Squares::filling(5).witness(Fr::from(3)).unwrap();
    let error = prover(key()).prove(other).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the witness is for another circuit: it has 26 values, and the key's circuit has 10 wires"
    );
    assert!(matches!(Witness::new(vec![Fr::from(2)]), Err(Error::OtherCircuit { .. })));
    assert!(matches!(Witness::new(vec![]), Err(Error::OtherCircuit { .. })));
}

#[test]
fn constraints_of_another_circuit_are_refused() {
    let error = key().with_r1cs(&Squares::filling(5).r1cs().unwrap()).unwrap_err();
    assert!(error.to_string().contains("26 wires"), "{error}");
    // As many wires and constraints, with another coefficient.
    let mut bytes = crate::R1CS.to_vec();
    let seven =
        bytes.windows(32).rposition(|it| it[0] == 7 && it[1..].iter().all(|&byte| byte == 0)).unwrap();
    bytes[seven] = 8;
    let other = R1cs::from_r1cs("other.r1cs", &bytes).unwrap();
    let error = key().with_r1cs(&other).unwrap_err();
    assert!(error.to_string().contains("constraint 7, counted from 0, differs in B"), "{error}");
    assert!(key().with_r1cs(&squares().r1cs().unwrap()).is_ok());
}

#[test]
fn a_witness_is_not_shown() {
    assert_eq!(format!("{:?}", witness()), "Witness(10 values)");
}
