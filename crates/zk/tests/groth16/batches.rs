//! Batches over a pool: order, errors of single witnesses, and devices that are wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ark_bn254::{Fr, G1Affine};
use ark_ec::{AffineRepr, CurveGroup};
use evener_device::{Device, DeviceId, Result as DeviceResult};
use evener_schedule::{Resident, RunError};
use evener_zk::{
    Error, Result,
    groth16::{
        CpuEngine, Engines, Part, PartSum, Proof, ProofMaker, Prover, ProvingKey, SharedProof, Squares,
        Witness, Worker,
    },
};
use zeroize::Zeroizing;

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

    fn make_quotient(
        &mut self,
        key: &ProvingKey,
        proof: &SharedProof,
    ) -> DeviceResult<Result<Zeroizing<Vec<Fr>>>> {
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
