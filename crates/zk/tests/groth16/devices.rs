//! Proofs by GPUs: the same bytes as other implementations, alone and beside the processor, and never an invalid one.

use std::time::Duration;

use ark_bn254::Fr;
use ark_relations::{
    gr1cs::{ConstraintSynthesizer, ConstraintSystemRef, SynthesisError},
    lc,
};
use evener_device::{
    Api, Device, Inventory,
    testing::{Fault, Faults},
};
use evener_schedule::Report;
use evener_zk::{
    Error,
    groth16::{Prover, ProvingKey, R1cs, Squares, Witness},
};

use crate::{
    key, pool_of,
    reference::{check_arkworks_keys, check_zkey, secrets},
    scalars, witness,
};

pub(crate) fn devices(api: Api) -> Vec<Device> {
    let inventory = Inventory::discover_all_apis();
    let found: Vec<Device> =
        inventory.devices().iter().filter(|device| device.describe().api == api).cloned().collect();
    assert!(!found.is_empty(), "no {api} device");
    found
}

/// Keys of arkworks and of snarkjs, with fixed secrets, on each device alone.
fn check_bytes(api: Api, powers: &[u32], secrets: &[(Fr, Fr)]) {
    for device in devices(api) {
        let pool = pool_of(&[device]);
        check_arkworks_keys(&|key| Prover::load(&pool, key), powers, secrets);
        check_zkey(&|key| Prover::load(&pool, key), secrets);
    }
}

/// Returns the number of witnesses that a device proved, and of its failures.
fn counts(report: &Report, device: &Device) -> (u64, u64) {
    let of_device = report.devices.iter().find(|it| it.id == device.id().to_string());
    of_device.map_or((0, 0), |it| (it.items, it.retries))
}

/// Proves batches until every GPU has taken part in one: some take seconds to compile their kernels.
fn wait_until_ready(prover: &Prover, gpus: &[Device], circuit: Squares) {
    for _ in 0..200 {
        let witnesses =
            (0..16 * gpus.len() as u64).map(|first| circuit.witness(Fr::from(first)).unwrap()).collect();
        let batch = prover.prove_batch(witnesses).unwrap();
        let report = batch.report().unwrap();
        if gpus.iter().all(|gpu| counts(report, gpu).0 > 0) {
            return;
        }
    }
    panic!("not every GPU proved");
}

/// A batch in which one witness does not satisfy the constraints, over some GPUs and the processor.
fn check_batch(gpus: &[Device], power: u32, count: usize) {
    let circuit = Squares::filling(power);
    let key = ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap();
    let prover = Prover::load(&pool_of(&[gpus, &[Device::cpu()]].concat()), key).all_devices();
    wait_until_ready(&prover, gpus, circuit);
    let firsts = scalars(9, count);
    let mut witnesses: Vec<Witness> = firsts.iter().map(|first| circuit.witness(*first).unwrap()).collect();
    let expected: Vec<Fr> = witnesses.iter().map(|witness| witness.values()[1]).collect();
    let mut values = witnesses[2].values().to_vec();
    values[7] += Fr::from(1);
    witnesses[2] = Witness::new(values).unwrap();
    let batch = prover.prove_batch(witnesses).unwrap();
    let report = batch.report().unwrap().clone();
    for gpu in gpus {
        assert!(counts(&report, gpu).0 > 0, "{} proved nothing: {report}", gpu.id());
    }
    for (index, result) in batch.into_results().into_iter().enumerate() {
        if index == 2 {
            // Wire 7 is x₅, which constraints 4 and 5 are about.
            let is_named = matches!(result, Err(Error::Unsatisfied { constraint: 4, failed: 2, .. }));
            assert!(is_named, "{result:?}");
            continue;
        }
        let proved = result.unwrap();
        assert_eq!(proved.public, [expected[index]], "{index}");
        prover.key().verifying_key().verify(&proved.proof, &proved.public).unwrap();
    }
}

/// A witness for a key that has no matrix C, so that only the proof can tell that it is wrong.
fn check_unprovable(device: &Device) {
    let prover = Prover::load(&pool_of(std::slice::from_ref(device)), key());
    let mut values = witness().values().to_vec();
    values[3] += Fr::from(1);
    let error = prover.prove(Witness::new(values).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Unprovable), "{error}");
}

/// Flips a bit of what a device returns, after the first operation of a proof and after later ones. The proof is made again, or
/// there is none.
fn check_wrong_results(device: &Device) {
    let (counted, faults) = Faults::wrap(device);
    let alone = Prover::load(&pool_of(&[counted]), key());
    alone.prove(witness()).unwrap();
    let before = faults.operations();
    alone.prove(witness()).unwrap();
    let of_one_proof = faults.operations() - before;
    assert!(of_one_proof > 20, "the device was used: {of_one_proof} operations");

    let mut failures = 0;
    for third in 0..3 {
        let (faulty, faults) = Faults::wrap(device);
        let prover =
            Prover::load(&pool_of(std::slice::from_ref(&faulty)), key()).deadline(Duration::from_secs(20));
        prover.prove(witness()).unwrap();
        faults.at(faults.operations() + third * of_one_proof / 3 + 1, Fault::Corrupt);
        match prover.prove_batch(vec![witness()]) {
            Ok(batch) => {
                failures += counts(batch.report().unwrap(), &faulty).1;
                for proved in batch.into_results().into_iter().map(Result::unwrap) {
                    prover.key().verifying_key().verify(&proved.proof, &proved.public).unwrap();
                }
            }
            // No other device is there to prove.
            Err(Error::Run(_)) => failures += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(failures > 0, "no flipped bit made a proof wrong");
}

/// A circuit in which every wire is public, or all but one: so many public ones, each of which is a bit.
#[derive(Clone, Copy)]
struct Bits {
    public: usize,
    private: usize,
}

impl ConstraintSynthesizer<Fr> for Bits {
    fn generate_constraints(self, system: ConstraintSystemRef<Fr>) -> Result<(), SynthesisError> {
        for index in 0..self.public + self.private {
            let value = || Ok(Fr::from(index as u64 % 2));
            let bit = match index < self.public {
                true => system.new_input_variable(value)?,
                false => system.new_witness_variable(value)?,
            };
            system.enforce_r1cs_constraint(|| lc!() + bit, || lc!() + bit, || lc!() + bit)?;
        }
        Ok(())
    }
}

/// Keys without private wires or without public ones, and with as many public wires as sums of private wires are aligned to.
/// Most of their points are infinite, equal or have zeros as scalars.
fn check_few_wires(device: &Device) {
    for (public, private) in [(0, 1), (1, 0), (62, 1), (63, 0), (63, 1), (64, 0)] {
        let circuit = Bits { public, private };
        let key = ProvingKey::set_up(&R1cs::synthesize(circuit).unwrap()).unwrap();
        let prover = Prover::load(&pool_of(std::slice::from_ref(device)), key);
        let proved = prover.prove(Witness::synthesize(circuit).unwrap());
        let proved = proved.unwrap_or_else(|error| panic!("{public} public, {private} private: {error}"));
        assert_eq!(proved.public.len(), public);
    }
}

#[test]
fn keys_with_few_wires_prove() {
    check_few_wires(&Device::cpu());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn keys_with_few_wires_prove_with_vulkan() {
    check_few_wires(&devices(Api::Vulkan)[0]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn keys_with_few_wires_prove_with_card() {
    check_few_wires(&devices(Api::Cuda)[0]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn with_fixed_secrets_the_proof_is_that_of_other_implementations_with_vulkan() {
    check_bytes(Api::Vulkan, &[1, 4, 7], &secrets()[..3]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn with_fixed_secrets_the_proof_is_that_of_other_implementations_with_card() {
    check_bytes(Api::Cuda, &[1, 4, 5, 9, 13], &secrets());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_gpu_and_the_processor_prove_a_batch_in_order_with_vulkan() {
    check_batch(&devices(Api::Vulkan)[..1], 5, 24);
}

#[test]
#[ignore = "needs a CUDA device"]
fn partitions_of_a_card_and_the_processor_prove_a_batch_in_order_with_card() {
    let card = devices(Api::Cuda).remove(0);
    check_batch(std::slice::from_ref(&card), 12, 40);
    check_batch(&card.split(&[16, 40, 76]).unwrap(), 12, 60);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn an_unprovable_witness_is_told_from_a_wrong_device_with_vulkan() {
    check_unprovable(&devices(Api::Vulkan)[0]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn an_unprovable_witness_is_told_from_a_wrong_device_with_card() {
    check_unprovable(&devices(Api::Cuda)[0]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn no_proof_with_a_wrong_result_of_a_device_is_handed_out_with_vulkan() {
    check_wrong_results(&devices(Api::Vulkan)[0]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn no_proof_with_a_wrong_result_of_a_device_is_handed_out_with_card() {
    check_wrong_results(&devices(Api::Cuda)[0]);
}
