//! Batches over a pool: order, errors of single witnesses, and devices that are wrong.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ark_bn254::{Fr, G1Affine};
use ark_ec::{AffineRepr, CurveGroup};
use evener_device::{
    Device, DeviceId, Result as DeviceResult,
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{Cancel, Resident, RunError};
use evener_zk::{
    Error, Result,
    groth16::{
        CpuEngine, Engines, Part, PartSum, Proof, ProofMaker, Proved, Prover, ProvingKey, Secrets,
        SharedProof, Squares, Witness, WitnessSource, Worker,
    },
};

use crate::{key, pool, pool_of, prover, squares, witness};

#[test]
fn results_are_in_the_order_of_the_witnesses_each_with_its_own_error() {
    let devices = Device::cpu().split(&[1, 1]).unwrap_or(vec![Device::cpu()]);
    let prover = Prover::load(&pool_of(&devices), key()).all_devices();
    let mut witnesses: Vec<Witness> =
        (0..9).map(|first| squares().witness(Fr::from(first)).unwrap()).collect();
    let expected: Vec<Fr> = witnesses.iter().map(|witness| witness.values()[1]).collect();
    witnesses[4] = Squares::filling(5).witness(Fr::from(4)).unwrap();
    let mut values = witnesses[6].values().to_vec();
    values[3] += Fr::from(1);
    witnesses[6] = Witness::new(values).unwrap();

    let batch = prover.prove_batch(witnesses).unwrap();
    assert_eq!(batch.report().unwrap().items, 8, "the witness of another circuit used no device");
    assert_eq!(batch.results().len(), 9);
    for (index, result) in batch.into_results().into_iter().enumerate() {
        match (index, result) {
            (4, result) => assert!(matches!(result, Err(Error::OtherCircuit { .. }))),
            (6, result) => assert!(matches!(result, Err(Error::Unprovable))),
            (_, result) => {
                let proved = result.unwrap();
                assert_eq!(proved.public, [expected[index]], "{index}");
                prover.key().verifying_key().verify(&proved.proof, &proved.public).unwrap();
            }
        }
    }
}

#[test]
fn each_proof_is_handed_out_once_and_is_the_one_of_the_batch() {
    let devices = Device::cpu().split(&[1, 1]).unwrap_or(vec![Device::cpu()]);
    let prover = Prover::load(&pool_of(&devices), key()).all_devices();
    let source = |number: u64| match number {
        2 => WitnessSource::from(Squares::filling(5).witness(Fr::from(number)).unwrap()),
        4 => WitnessSource::read_by(|| Err(Error::Randomness { detail: "unreadable".into() })),
        5 => WitnessSource::read_by(|| Squares::filling(5).witness(Fr::from(5))),
        _ => WitnessSource::read_by(move || squares().witness(Fr::from(number))),
    };
    for is_shared in [false, true] {
        let mut handed_out = BTreeMap::new();
        let on_proof = |index: usize, result: &Result<Proved>| {
            assert!(handed_out.insert(index, result.clone()).is_none(), "{index} twice");
        };
        let batch = match is_shared {
            false => prover.prove_each((0..8).map(source), on_proof),
            true => prover.prove_each_shared((0..8).map(source), on_proof),
        };
        let results = batch.unwrap().into_results();
        assert_eq!((results.len(), handed_out.len()), (8, 8));
        for (index, result) in results.iter().enumerate() {
            match (index, result, &handed_out[&index]) {
                (2 | 5, Err(Error::OtherCircuit { .. }), Err(Error::OtherCircuit { .. })) => {}
                (4, Err(Error::Randomness { .. }), Err(Error::Randomness { .. })) => {}
                (0 | 1 | 3 | 6 | 7, Ok(one), Ok(other)) => assert_eq!(one, other),
                wrong => panic!("{wrong:?}"),
            }
        }
    }
}

#[test]
fn files_that_have_no_witness_of_the_circuit_use_no_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("right.wtns"), crate::WTNS).unwrap();
    std::fs::write(path("cut.wtns"), &crate::WTNS[..crate::WTNS.len() - 1]).unwrap();
    std::fs::write(path("key.wtns"), crate::ZKEY).unwrap();
    Squares::filling(5).witness(Fr::from(4)).unwrap().write_wtns(path("other.wtns")).unwrap();
    let names = ["none.wtns", "cut.wtns", "right.wtns", "key.wtns", "other.wtns"];
    let batch = prover(key()).prove_each(names.map(|name| WitnessSource::file(path(name))), |_, _| ());
    let batch = batch.unwrap();
    assert_eq!(batch.report().unwrap().items, 1);
    for (name, result) in names.iter().zip(batch.results()) {
        match (*name, result) {
            ("none.wtns", Err(Error::File { .. })) => {}
            ("cut.wtns" | "key.wtns", Err(Error::Format { .. })) => {}
            ("other.wtns", Err(Error::OtherCircuit { .. })) => {}
            ("right.wtns", Ok(proved)) => {
                assert_eq!(Witness::read_public(path(name), &key()).unwrap(), proved.public);
            }
            wrong => panic!("{wrong:?}"),
        }
    }
}

#[test]
fn a_cancelled_batch_has_handed_out_what_was_finished() {
    let cancel = Cancel::new();
    let prover = prover(key()).cancel(&cancel);
    let read = Arc::new(AtomicU64::new(0));
    let source = |number: u64| {
        let (cancel, read) = (cancel.clone(), read.clone());
        WitnessSource::read_by(move || {
            read.fetch_add(1, Relaxed);
            if number == 3 {
                cancel.cancel();
                // The scheduler looks at the token every ten milliseconds.
                std::thread::sleep(Duration::from_millis(100));
            }
            squares().witness(Fr::from(number))
        })
    };
    let mut finished = Vec::new();
    let result = prover.prove_each((0..1000).map(source), |index, result| {
        assert!(result.is_ok());
        finished.push(index);
    });
    assert!(matches!(result, Err(Error::Run(RunError::Cancelled { .. }))), "{result:?}");
    assert!(finished.starts_with(&[0, 1, 2]), "{finished:?}");
    assert!(read.load(Relaxed) < 20, "witnesses are read when they are needed: {read:?}");
}

#[test]
fn a_panic_of_the_receiver_of_proofs_continues_in_the_caller() {
    let prover = prover(key());
    let proved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        prover.prove_each([witness(), witness()], |_, _| panic!("full"))
    }));
    assert!(proved.is_err());
    assert!(prover.prove(witness()).is_ok());
}

#[test]
fn an_empty_batch_uses_no_device() {
    let batch = prover(key()).prove_batch(Vec::new()).unwrap();
    assert!(batch.results().is_empty() && batch.report().is_none());
}

#[test]
fn two_proofs_of_one_witness_have_nothing_in_common() {
    let prover = prover(key());
    let (one, two) = (prover.prove(witness()).unwrap(), prover.prove(witness()).unwrap());
    assert_eq!(one.public, two.public);
    let (one, two) = (one.proof, two.proof);
    assert!(one.a != two.a && one.b != two.b && one.c != two.c);
}

#[test]
fn injected_faults_do_not_reach_proofs_on_the_processor() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    faults.at_next(Fault::Fail(InjectedError::Lost));
    assert!(Prover::load(&pool_of(&[device]), key()).prove(witness()).is_ok());
    assert_eq!(faults.operations(), 0);
}

#[test]
fn a_trace_is_recorded_if_asked_for() {
    let prover = Prover::load(&pool(), key()).trace();
    assert!(!prover.prove_batch(vec![witness(), witness()]).unwrap().trace().spans.is_empty());
}

/// Engines of the processor, of which those of one device add a point to every proof.
struct OneWrong {
    device: Option<DeviceId>,
    wrong_proofs: Arc<AtomicU64>,
}

struct Maker {
    worker: Worker<CpuEngine>,
    wrong_proofs: Option<Arc<AtomicU64>>,
}

impl ProofMaker for Maker {
    fn make(&mut self, key: &ProvingKey, witness: &Witness, r: &Fr, s: &Fr) -> DeviceResult<Result<Proof>> {
        let proof = self.worker.make(key, witness, r, s)?;
        let Some(count) = &self.wrong_proofs else { return Ok(proof) };
        count.fetch_add(1, Relaxed);
        Ok(proof.map(|proof| Proof { c: (proof.c + G1Affine::generator()).into_affine(), ..proof }))
    }

    fn make_quotient(&mut self, key: &ProvingKey, proof: &SharedProof) -> DeviceResult<Result<Secrets<Fr>>> {
        self.worker.make_quotient(key, proof)
    }

    fn add_up(
        &mut self,
        key: &ProvingKey,
        proof: &SharedProof,
        parts: &[Part],
    ) -> DeviceResult<Vec<PartSum>> {
        self.worker.add_up(key, proof, parts)
    }

    fn erase(&mut self) -> DeviceResult<()> {
        self.worker.erase()
    }
}

impl Engines for OneWrong {
    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn workers(&self, _: &Device) -> usize {
        1
    }

    fn open(
        &self,
        device: &Device,
        key: &Arc<ProvingKey>,
        resident: &Resident,
    ) -> DeviceResult<Box<dyn ProofMaker>> {
        let is_wrong = self.device.as_ref().is_none_or(|wrong| wrong == device.id());
        let worker = Worker::new(CpuEngine::new(device.id().clone()), key, resident)?;
        Ok(Box::new(Maker { worker, wrong_proofs: is_wrong.then(|| self.wrong_proofs.clone()) }))
    }
}

#[test]
fn no_proof_of_a_device_that_is_wrong_is_handed_out() {
    let parts = Device::cpu().split(&[1, 1]).unwrap();
    let wrong_proofs = Arc::new(AtomicU64::new(0));
    let engines = OneWrong { device: Some(parts[0].id().clone()), wrong_proofs: wrong_proofs.clone() };
    let prover = Prover::with_engines(&pool_of(&parts), key(), Arc::new(engines)).all_devices();
    let witnesses = (0..12).map(|first| squares().witness(Fr::from(first)).unwrap()).collect();
    let batch = prover.prove_batch(witnesses).unwrap();
    assert!(wrong_proofs.load(Relaxed) > 0, "the device was used");
    let report = batch.report().unwrap().clone();
    let items = |id: &DeviceId| report.devices.iter().find(|it| it.id == id.to_string()).unwrap().items;
    assert_eq!((items(parts[0].id()), items(parts[1].id())), (0, 12), "{report}");
    for result in batch.into_results() {
        let proved = result.unwrap();
        prover.key().verifying_key().verify(&proved.proof, &proved.public).unwrap();
    }
}

#[test]
fn if_every_device_is_wrong_there_is_an_error_and_no_proof() {
    let engines = OneWrong { device: None, wrong_proofs: Arc::default() };
    let prover =
        Prover::with_engines(&pool(), key(), Arc::new(engines)).deadline(Duration::from_millis(1500));
    let error = prover.prove(witness()).unwrap_err();
    let is_failure =
        matches!(error, Error::Run(RunError::NoDeviceLeft { .. } | RunError::DeadlinePassed { .. }));
    assert!(is_failure, "{error}");
}
