//! One proof by several devices: the same bytes as other implementations', however the proof is cut.

use ark_bn254::Fr;
use ark_std::rand::{Rng, SeedableRng, rngs::StdRng};
use evener_device::{Api, Device, testing::Faults};
use evener_schedule::Strategy;
use evener_zk::{
    Error,
    groth16::{Prover, ProvingKey, Split, Squares, Sum, Witness},
};

use crate::{
    devices::devices,
    key, pool_of,
    processors::processors,
    reference::{check_arkworks_keys, check_zkey, secrets},
    scalars, witness,
};

/// A prover whose proofs are shared by these devices.
fn shared(devices: &[Device], key: ProvingKey) -> Prover {
    Prover::load(&pool_of(devices), key).split(Split::Shared)
}

/// Cuts the points of a sum at random places.
fn random_ranges(seed: u64) -> impl Fn(Sum, usize) -> Vec<std::ops::Range<usize>> + Send + Sync {
    move |sum, points| {
        let mut random = StdRng::seed_from_u64(seed ^ (sum as u64) << 32);
        let count = random.gen_range(0..12);
        let mut cuts: Vec<usize> = (0..count).map(|_| random.gen_range(0..=points)).collect();
        cuts.extend([0, points]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }
}

#[test]
fn one_two_and_three_devices_make_the_proofs_of_other_implementations() {
    for count in 1..=3 {
        let devices = processors(count);
        check_arkworks_keys(&|key| shared(&devices, key), &[1, 4, 8], &secrets()[..2]);
        check_zkey(&|key| shared(&devices, key), &secrets()[..2]);
    }
}

/// Whatever the cut, the strategy and the devices, the proof is the same.
#[test]
fn random_cuts_over_random_devices_make_the_same_proof() {
    let circuit = Squares::filling(8);
    let key = ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap();
    let alone = Prover::load(&pool_of(&[Device::cpu()]), key.clone());
    let strategies = [Strategy::Adaptive, Strategy::Equal, Strategy::Proportional, Strategy::Dynamic];
    for seed in 0..16 {
        let mut random = StdRng::seed_from_u64(seed);
        let secrets = scalars(seed, 3);
        let devices = processors(random.gen_range(1..=3));
        let strategy = strategies[random.gen_range(0..strategies.len())];
        let prover = shared(&devices, key.clone()).cut(random_ranges(seed)).strategy(strategy);
        let witness = || circuit.witness(secrets[2]).unwrap();
        let expected = alone.prove_with_secrets(witness(), secrets[0], secrets[1]).unwrap();
        let found = prover.prove_with_secrets(witness(), secrets[0], secrets[1]).unwrap();
        assert_eq!(found, expected, "seed {seed}: {strategy:?} over {} devices", devices.len());
        assert!(prover.quarantined().is_empty());
    }
}

#[test]
fn two_shared_proofs_of_one_witness_have_nothing_in_common() {
    let prover = shared(&processors(2), key());
    let (one, two) = (prover.prove(witness()).unwrap(), prover.prove(witness()).unwrap());
    assert_eq!(one.public, two.public);
    let (one, two) = (one.proof, two.proof);
    assert!(one.a != two.a && one.b != two.b && one.c != two.c);
}

#[test]
fn a_witness_that_cannot_be_proved_is_refused_and_blamed_on_no_device() {
    let with_wrong_value = |witness: Witness| {
        let mut values = witness.values().to_vec();
        values[5] += Fr::from(1);
        Witness::new(values).unwrap()
    };
    // The key of arkworks has the matrix C, so the constraint is named.
    let circuit = Squares::filling(5);
    let key_with_c = ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap();
    let prover = shared(&processors(3), key_with_c);
    let error = prover.prove(with_wrong_value(circuit.witness(Fr::from(2)).unwrap())).unwrap_err();
    assert!(matches!(error, Error::Unsatisfied { constraint: 2, failed: 2, .. }), "{error}");
    // The key of snarkjs has not: only the proof can tell.
    let prover = shared(&processors(3), key());
    let error = prover.prove(with_wrong_value(witness())).unwrap_err();
    assert!(matches!(error, Error::Unprovable), "{error}");
    assert!(prover.quarantined().is_empty());
    let error = prover.prove(circuit.witness(Fr::from(2)).unwrap()).unwrap_err();
    assert!(matches!(error, Error::OtherCircuit { .. }), "{error}");
    prover.prove(witness()).unwrap();
}

#[test]
fn proofs_of_either_way_verify_while_the_faster_one_is_found() {
    let circuit = Squares::filling(6);
    let key = ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap();
    let prover = Prover::load(&pool_of(&processors(2)), key);
    for first in 0..12u64 {
        let proved = prover.prove(circuit.witness(Fr::from(first)).unwrap()).unwrap();
        prover.key().verifying_key().verify(&proved.proof, &proved.public).unwrap();
    }
}

/// A GPU and processors share proofs, which are those of the processor alone. Returns when the GPU has taken part.
fn check_mixed(gpu: &Device, beside: &[Device], power: u32) {
    let (counted, faults) = Faults::wrap(gpu);
    let devices: Vec<Device> = [&[counted], beside].concat();
    let circuit = Squares::filling(power);
    let key = ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap();
    let alone = Prover::load(&pool_of(&[Device::cpu()]), key.clone());
    // With equal shares, the GPU takes part however slow it is.
    let prover = shared(&devices, key).cut(random_ranges(u64::from(power))).strategy(Strategy::Equal);
    let mut took_part = 0;
    for round in 0..200 {
        let secrets = scalars(round, 3);
        let witness = || circuit.witness(secrets[2]).unwrap();
        let before = faults.operations();
        let found = prover.prove_with_secrets(witness(), secrets[0], secrets[1]).unwrap();
        let used = faults.operations() - before;
        let expected = alone.prove_with_secrets(witness(), secrets[0], secrets[1]).unwrap();
        assert_eq!(found, expected, "round {round}");
        // Loading the key is many operations too, so a proof after the GPU was ready counts.
        took_part += u32::from(round > 0 && used > 20);
        if took_part >= 4 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(if took_part == 0 { 100 } else { 0 }));
    }
    panic!("{} took no part", gpu.id());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_gpu_alone_and_with_processors_shares_a_proof_with_vulkan() {
    let gpu = devices(Api::Vulkan).remove(0);
    let alone = std::slice::from_ref(&gpu);
    check_arkworks_keys(&|key| shared(alone, key).cut(random_ranges(3)), &[1, 7], &secrets()[..1]);
    check_zkey(&|key| shared(alone, key), &secrets()[..1]);
    check_mixed(&gpu, &processors(2), 9);
}

#[test]
#[ignore = "needs a CUDA device"]
fn partitions_of_a_card_and_the_processor_share_a_proof_with_card() {
    let card = devices(Api::Cuda).remove(0);
    let alone = std::slice::from_ref(&card);
    check_arkworks_keys(&|key| shared(alone, key).cut(random_ranges(3)), &[1, 4, 9, 13], &secrets());
    check_arkworks_keys(&|key| shared(alone, key), &[15], &secrets()[..1]);
    check_mixed(&card, &[Device::cpu()], 12);
    let mut parts = card.split(&[16, 40, 76]).unwrap();
    let first = parts.remove(0);
    parts.push(Device::cpu());
    check_mixed(&first, &parts, 13);
    check_mixed(&first, &parts, 16);
}
