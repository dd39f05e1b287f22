//! Devices that fail or are wrong in the middle of proofs. Whatever happens, every proof that is handed out verifies, the
//! others finish the work, no right device is blamed, and no device keeps a witness.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use ark_bn254::{Bn254, Fr};
use ark_groth16::Groth16;
use ark_std::rand::{Rng, SeedableRng, rngs::StdRng};
use evener_device::{
    Api, Device, DeviceKind,
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{Resident, Strategy};
use evener_zk::groth16::{Engines, Proved, Prover, ProvingKey, Split, Squares, Witness};

use crate::{
    devices::devices,
    pool_of,
    processors::{EngineFault, FaultyEngines, processors, renamed, within},
};

/// A longer proof has hung.
const LIMIT: Duration = Duration::from_secs(60);

fn circuit() -> Squares {
    Squares::filling(4)
}

/// The key of the circuit.
fn set_up() -> Arc<ProvingKey> {
    Arc::new(ProvingKey::set_up(&circuit().r1cs().unwrap()).unwrap())
}

fn witness(first: u64) -> Witness {
    circuit().witness(Fr::from(first)).unwrap()
}

/// Verifies a proof with arkworks' own verifier.
fn assert_valid(key: &ProvingKey, proved: &Proved, about: &str) {
    let prepared = ark_groth16::prepare_verifying_key(key.verifying_key().ark());
    let is_valid = Groth16::<Bn254>::verify_proof(&prepared, &proved.proof.into(), &proved.public);
    assert!(is_valid.unwrap(), "{about}: an invalid proof was handed out");
}

/// The work in whose middle a device fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    Shared,
    Batch,
}

/// Processors with faults, and a prover over them.
struct Case {
    key: Arc<ProvingKey>,
    engines: Arc<FaultyEngines>,
    devices: Vec<Device>,
    prover: Prover,
}

impl Case {
    fn new(key: &Arc<ProvingKey>, devices: Vec<Device>) -> Case {
        let engines = FaultyEngines::new(&devices);
        let prover = Prover::with_engines(&pool_of(&devices), key.clone(), engines.clone());
        // Few constraints make a quick test, and many pieces a thorough one.
        let cut = |_, points| (0..points).step_by(2).map(|at| at..(at + 2).min(points)).collect();
        let prover = prover.split(Split::Shared).cut(cut).all_devices().deadline(LIMIT);
        Case { key: key.clone(), engines, devices, prover }
    }

    /// Proves, and checks what must hold whatever the faults are.
    fn prove(&self, work: Work, about: &str) {
        match work {
            Work::Shared => {
                let proved = self.prover.prove(witness(7)).unwrap_or_else(|error| panic!("{about}: {error}"));
                assert_eq!(proved.public, [witness(7).values()[1]]);
                assert_valid(&self.key, &proved, about);
            }
            Work::Batch => {
                let witnesses = (0..5).map(witness).collect();
                let batch =
                    self.prover.prove_batch(witnesses).unwrap_or_else(|error| panic!("{about}: {error}"));
                for (first, result) in (0..).zip(batch.into_results()) {
                    let proved = result.unwrap_or_else(|error| panic!("{about}: {error}"));
                    assert_eq!(proved.public, [witness(first).values()[1]], "{about}");
                    assert_valid(&self.key, &proved, about);
                }
            }
        }
        self.engines.assert_no_secrets(about);
    }

    /// Number of operations that a device needs for the work, with its preparation and without.
    fn operations(&self, work: Work, device: usize) -> (u64, u64) {
        self.prove(work, "without faults");
        let first = self.engines.of(device).operations();
        self.prove(work, "without faults");
        (first, self.engines.of(device).operations() - first)
    }
}

/// Makes one fault at each step of some work, at every `step`th operation.
fn each_step(work: Work, fault: EngineFault, step: usize) {
    let about = format!("{work:?}, {fault:?}");
    within(4 * LIMIT, &about.clone(), move || {
        let key = set_up();
        let (first, later) = Case::new(&key, processors(2)).operations(work, 0);
        let mut blamed = 0;
        for operation in (1..=first + later).step_by(step) {
            let about = format!("{about} in operation {operation}");
            let case = Case::new(&key, processors(2));
            case.engines.of(0).at(operation, fault);
            case.prove(work, &about);
            // The fault may come only now.
            case.prove(work, &about);
            let quarantined = case.prover.quarantined();
            assert!(
                !quarantined.contains(case.devices[1].id()),
                "{about}: a device that was right is blamed"
            );
            if fault != EngineFault::Flip {
                assert!(quarantined.is_empty(), "{about}: a device that failed is called wrong");
            }
            blamed += usize::from(!quarantined.is_empty());
            case.prove(work, &about);
        }
        if fault == EngineFault::Flip && work == Work::Shared {
            assert!(blamed > 0, "no changed word made a proof wrong");
        }
    });
}

#[test]
fn a_device_lost_at_any_step_of_a_shared_proof_costs_no_proof() {
    each_step(Work::Shared, EngineFault::Lose, 1);
}

#[test]
fn a_device_destroyed_at_any_step_of_a_shared_proof_costs_no_proof() {
    each_step(Work::Shared, EngineFault::Destroy, 3);
}

#[test]
fn a_device_without_memory_at_any_step_of_a_shared_proof_costs_no_proof() {
    each_step(Work::Shared, EngineFault::OutOfMemory, 3);
}

#[test]
fn a_word_changed_at_any_step_of_a_shared_proof_is_found_and_blamed_on_its_device() {
    each_step(Work::Shared, EngineFault::Flip, 1);
}

#[test]
fn a_device_lost_at_any_step_of_a_batch_costs_no_proof() {
    each_step(Work::Batch, EngineFault::Lose, 5);
}

#[test]
fn a_device_destroyed_at_any_step_of_a_batch_costs_no_proof() {
    each_step(Work::Batch, EngineFault::Destroy, 7);
}

#[test]
fn a_word_changed_at_any_step_of_a_batch_leaves_every_proof_valid() {
    each_step(Work::Batch, EngineFault::Flip, 4);
}

#[test]
fn a_wrong_sum_is_blamed_on_its_device_which_takes_no_part_in_the_next_proof() {
    let key = set_up();
    let case = Case::new(&key, processors(3));
    case.prove(Work::Shared, "before");
    let faults = case.engines.of(1);
    // Every operation from now on is wrong, so the device is, in the first proof in which it takes part.
    let now = faults.operations();
    (now + 1..now + 10_000).for_each(|operation| faults.at(operation, EngineFault::Flip));
    for _ in 0..50 {
        case.prove(Work::Shared, "while a device is wrong");
        if faults.flips() > 0 {
            break;
        }
    }
    assert_eq!(case.prover.quarantined(), [case.devices[1].id().clone()]);
    let before = faults.operations();
    case.prove(Work::Shared, "in quarantine");
    assert_eq!(faults.operations(), before, "it takes no part");
}

#[test]
fn if_all_devices_are_wrong_the_host_makes_the_proof() {
    let key = set_up();
    let case = Case::new(&key, processors(2));
    for device in 0..2 {
        (1..10_000).for_each(|operation| case.engines.of(device).at(operation, EngineFault::Flip));
    }
    case.prove(Work::Shared, "all wrong");
    assert!(case.engines.of(0).flips() + case.engines.of(1).flips() > 0);
}

#[test]
fn a_device_that_hangs_in_a_shared_proof_is_not_waited_for() {
    within(LIMIT, "a hang", || {
        let key = set_up();
        let devices = vec![renamed("card:0", DeviceKind::Discrete), renamed("processor:0", DeviceKind::Cpu)];
        let case = Case::new(&key, devices);
        let faults = case.engines.of(0);
        let mut hangs = 0;
        for round in 0..300 {
            // A proof has many operations of the card, once it is ready.
            if round > 5 {
                faults.at(faults.operations() + 1 + round % 7, EngineFault::Hang);
            }
            let proved = case.prover.prove(witness(round)).unwrap();
            assert_valid(&key, &proved, "a hang");
            hangs += usize::from(faults.is_hung());
            faults.release();
            case.engines.assert_no_secrets("after a hang");
            if hangs == 2 {
                return;
            }
        }
        panic!("the card hung {hangs} times");
    });
}

#[test]
fn a_proof_that_panics_leaves_no_secrets_on_its_device() {
    let (key, devices) = (set_up(), processors(1));
    let engines = FaultyEngines::new(&devices);
    let faults = engines.of(0);
    let mut maker = engines.open(&devices[0], &key, &Resident::default()).unwrap();
    let mut make = || maker.make(&key, &witness(3), &Fr::from(5), &Fr::from(6)).map(drop);
    let before = faults.operations();
    make().unwrap();
    let operations = faults.operations() - before;
    for operation in 1..=operations {
        faults.at(faults.operations() + operation, EngineFault::Panic);
        assert!(catch_unwind(AssertUnwindSafe(&mut make)).is_err(), "operation {operation} panics");
        assert!(!faults.has_secrets(), "after a panic in operation {operation}");
    }
    make().unwrap();
}

/// Random faults of random devices at random steps, in shared proofs and batches.
#[test]
fn random_faults_leave_every_proof_valid_and_every_right_device_unblamed() {
    within(4 * LIMIT, "random faults", || {
        let key = set_up();
        for seed in 0..25 {
            let mut random = StdRng::seed_from_u64(seed);
            let case = Case::new(&key, processors(random.gen_range(2..=3)));
            let mut is_wrong = vec![false; case.devices.len()];
            // The last device never fails, so that there is always one.
            for _ in 0..random.gen_range(1..4) {
                let device = random.gen_range(0..case.devices.len() - 1);
                let fault = match random.gen_range(0..4) {
                    0 => EngineFault::Lose,
                    1 => EngineFault::OutOfMemory,
                    2 => EngineFault::Destroy,
                    _ => EngineFault::Flip,
                };
                is_wrong[device] |= fault == EngineFault::Flip;
                case.engines.of(device).at(random.gen_range(1..60), fault);
            }
            for round in 0..3 {
                let work = if random.gen_range(0..3) == 0 { Work::Batch } else { Work::Shared };
                case.prove(work, &format!("seed {seed}, round {round}, {work:?}"));
            }
            for device in case.prover.quarantined() {
                let index = case.devices.iter().position(|it| *it.id() == device).unwrap();
                assert!(is_wrong[index], "seed {seed}: {device} was right");
            }
        }
    });
}

/// A GPU is killed, has too little memory or returns a wrong word in the middle of a shared proof and of a batch, beside a
/// processor.
fn check_gpu_faults(gpu: &Device, rounds: u64) {
    let (key, mut random) = (set_up(), StdRng::seed_from_u64(5));
    for round in 0..rounds {
        let fault = match round % 3 {
            0 => Fault::Corrupt,
            1 => Fault::Fail(InjectedError::OutOfMemory),
            _ => Fault::Fail(InjectedError::Lost),
        };
        let about = format!("{fault:?} in round {round}");
        let (faulty, faults) = Faults::wrap(gpu);
        let devices = [vec![faulty.clone()], processors(1)].concat();
        // With equal shares, the GPU takes part however slow it is.
        let prover = Prover::load(&pool_of(&devices), key.clone()).strategy(Strategy::Equal);
        let cut = |_, points| (0..points).step_by(2).map(|at| at..(at + 2).min(points)).collect();
        let prover = prover.split(Split::Shared).cut(cut).all_devices().deadline(LIMIT);
        let prove = || {
            let before = faults.operations();
            let proved = prover.prove(witness(before)).unwrap_or_else(|error| panic!("{about}: {error}"));
            assert_valid(&key, &proved, &about);
            faults.operations() - before
        };
        // The first proofs end while the GPU compiles its kernels and loads the key.
        let mut used = 0;
        for _ in 0..600 {
            let before = faults.operations();
            used = prove();
            if before > 0 && used > 20 && prove() > 20 {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(used > 20, "{about}: the GPU took no part");
        faults.at(faults.operations() + random.gen_range(1..=used), fault);
        prove();
        prove();
        // A batch takes more operations than a proof, so the fault comes in its middle if the GPU takes part.
        faults.at(faults.operations() + random.gen_range(1..=2 * used), fault);
        let batch = prover.prove_batch((0..12).map(witness).collect());
        let batch = batch.unwrap_or_else(|error| panic!("{about}, batch: {error}"));
        for (first, result) in (0..).zip(batch.into_results()) {
            let proved = result.unwrap_or_else(|error| panic!("{about}, batch: {error}"));
            assert_eq!(proved.public, [witness(first).values()[1]]);
            assert_valid(&key, &proved, &about);
        }
        assert!(prover.quarantined().iter().all(|device| device == faulty.id()), "{about}");
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_gpu_that_fails_in_a_shared_proof_costs_no_proof_with_vulkan() {
    check_gpu_faults(&devices(Api::Vulkan)[0], 3);
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_gpu_that_fails_in_a_shared_proof_costs_no_proof_with_card() {
    check_gpu_faults(&devices(Api::Cuda)[0], 12);
}
