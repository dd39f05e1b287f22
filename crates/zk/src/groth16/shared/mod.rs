//! One proof by several devices.
//!
//! A proof is cut into pieces: the quotient polynomial, and ranges of the points of each sum. A first run spreads the quotient
//! and the sums over the wires, a second one the sum over the quotient's scalars. The scheduler hands out the pieces by the
//! devices' measured rates, and gives those of a device that fails to others. A device computes one sum for all pieces of a
//! chunk that follow each other. Addition in a group is exact, so the proof is the same to the last bit, however the pieces
//! were divided.
//!
//! If the proof does not verify, the host computes every sum that the devices computed. Devices whose sums differ are wrong:
//! they take no part in shared proofs for a while, and the host's sums make the proof. If none differs, the witness does not
//! satisfy the circuit.

mod choose;
mod pieces;
mod proof;
mod quarantine;
mod task;

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use ark_bn254::Fr;
use evener_device::DeviceId;
use evener_schedule::{Cancel, Job, Pool, Resident, RunTotals, Strategy};

pub(super) use self::choose::{Chooser, Way};
pub use self::{
    choose::Split,
    pieces::{Part, Sum},
    proof::SharedProof,
    task::PartSum,
};
use self::{
    pieces::{Cut, Piece, even_ranges, joined, pieces},
    proof::EndProofOnDrop,
    quarantine::Quarantine,
    task::{ChunkResult, Item, PieceTask},
};
use super::{
    CpuEngine, Engines, Proof, ProofMaker, Proved, ProvingKey, Secrets, Witness, Worker,
    key_cache::KeyCache,
    prove::{Blinds, Sums},
    randomness::Blinding,
};
use crate::error::{Error, Result};

/// Runs after which the host computes the pieces that are left.
const MAX_RUNS: usize = 3;

/// Makes proofs that all devices of a pool share.
pub(super) struct SharedProver {
    key: Arc<ProvingKey>,
    job: Job<'static, PieceTask>,
    task: PieceTask,
    quarantine: Arc<Quarantine>,
    cut: Arc<Cut>,
    deadline: Option<Duration>,
}

/// The totals of the runs of shared proofs.
#[derive(Debug)]
pub(super) struct ProofTotals {
    began: Instant,
    pub(super) runs: RunTotals,
}

impl Default for ProofTotals {
    fn default() -> Self {
        ProofTotals { began: Instant::now(), runs: RunTotals::default() }
    }
}

/// A part of a sum or the quotient, and the device that computed it.
struct Record {
    device: DeviceId,
    sums: Vec<(Part, PartSum)>,
    quotient: Option<Arc<Secrets<Fr>>>,
}

impl SharedProver {
    pub(super) fn new(
        pool: &Pool,
        key: Arc<ProvingKey>,
        engines: Arc<dyn Engines>,
        keys: Arc<KeyCache>,
    ) -> Self {
        let devices = pool.devices();
        let quarantine = Arc::new(Quarantine::new(devices.iter().map(|device| device.id().clone())));
        let task = PieceTask::new(key.clone(), engines, keys, quarantine.clone());
        // Whether all devices together are faster than one is measured as a whole. A copy of a part of a chunk would make the
        // rest of the chunk useless, because its sum is one: only chunks that may have hung are copied.
        let job = pool.job(&task).speculative_copies(false).all_devices();
        SharedProver { key, job, task, quarantine, cut: Arc::new(even_ranges), deadline: None }
    }

    /// Sets the strategy that shares out the pieces.
    pub(super) fn strategy(self, strategy: Strategy) -> Self {
        SharedProver { job: self.job.strategy(strategy), ..self }
    }

    /// Sets the token that cancels proofs.
    pub(super) fn cancel(self, cancel: &Cancel) -> Self {
        SharedProver { job: self.job.cancel(cancel), ..self }
    }

    /// Fails a proof that takes longer than this.
    pub(super) fn deadline(self, deadline: Duration) -> Self {
        SharedProver { deadline: Some(deadline), ..self }
    }

    /// Records traces of the runs.
    pub(super) fn trace(self) -> Self {
        SharedProver { job: self.job.trace(), ..self }
    }

    /// Draws a progress bar for each run that takes longer than a second.
    pub(super) fn progress_bar(self) -> Self {
        SharedProver { job: self.job.progress_bar(), ..self }
    }

    /// Cuts the points of each sum in another way. The ranges of a sum contain every point once, in order.
    pub(super) fn cut(self, cut: Arc<Cut>) -> Self {
        SharedProver { cut, ..self }
    }

    /// The devices that take no part, because they computed a wrong result not long ago.
    pub(super) fn quarantined(&self) -> Vec<DeviceId> {
        self.quarantine.devices()
    }

    /// Proves a witness, whose length was checked, and verifies the proof. Adds its runs to `totals`.
    pub(super) fn prove(
        &self,
        witness: &Arc<Witness>,
        blinding: &Blinding,
        totals: &mut ProofTotals,
    ) -> Result<Proved> {
        let deadline = self.deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let public = witness.values()[1..=self.key.public()].to_vec();
        let proof = SharedProof::new(witness.clone());
        // Also after errors, no device keeps the witness.
        let end = EndProofOnDrop(proof.clone());
        let mut of_wires = vec![Piece::Quotient];
        of_wires.extend(pieces(&self.key, &Sum::OF_WIRES, &*self.cut));
        let mut records = self.run(&proof, of_wires, deadline, totals)?;
        let Some(quotient) = records.iter().find_map(|record| record.quotient.clone()) else {
            return Err(Error::Unprovable);
        };
        proof.set_quotient(quotient);
        records.extend(self.run(&proof, pieces(&self.key, &[Sum::H], &*self.cut), deadline, totals)?);
        let mut sums = Sums::default();
        for (part, sum) in records.iter().flat_map(|record| &record.sums) {
            sums.add(part.sum, sum);
        }
        let blinds = Blinds::new(&self.key, &blinding.r, &blinding.s);
        let verified = |sums: &Sums| {
            let proof: Proof = blinds.proof(sums);
            let is_valid = self.key.verifying.verify(&proof, &public).is_ok();
            is_valid.then(|| Proved { proof, public: public.clone() })
        };
        if let Some(proved) = verified(&sums) {
            return Ok(proved);
        }
        tracing::debug!("a proof of several devices does not verify: the host computes it again");
        let (wrong, right) = self.audit(&proof, &records)?;
        drop(end);
        for device in wrong {
            tracing::warn!(%device, "a device computed a wrong part of a proof, and is left out of the next ones");
            self.quarantine.add(&device);
        }
        verified(&right).ok_or(Error::Unprovable)
    }

    /// Has the devices compute pieces.
    fn run(
        &self,
        proof: &Arc<SharedProof>,
        pieces: Vec<Piece>,
        deadline: Option<Instant>,
        totals: &mut ProofTotals,
    ) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let mut left: Vec<Item> =
            pieces.into_iter().map(|piece| Item { proof: proof.clone(), piece }).collect();
        for _ in 0..MAX_RUNS {
            if left.is_empty() {
                return Ok(records);
            }
            let began = totals.began.elapsed();
            let results = match deadline {
                None => self.job.map(&left)?,
                Some(deadline) => {
                    let rest = deadline.saturating_duration_since(Instant::now());
                    self.job.with_task(&self.task).deadline(rest).map(&left)?
                }
            };
            totals.runs.add(results.report(), results.trace(), began);
            let mut again = Vec::new();
            for counted in counted_chunks(results.results()) {
                match counted {
                    Counted::Chunk(result) => {
                        let (record, skipped) = Record::new(result)?;
                        records.push(record);
                        again.extend(skipped.map(|index| left[index].clone()));
                    }
                    Counted::Missing(index) => again.push(left[index].clone()),
                }
            }
            // An accepted refusal has ended the proof above.
            proof.drop_refusal();
            left = again;
        }
        if !left.is_empty() {
            let mut host = self.host()?;
            let parts = joined(left.iter().map(|item| &item.piece));
            let quotient = match left.iter().any(|item| item.piece == Piece::Quotient) {
                true => Some(Arc::new(host.make_quotient(&self.key, proof)??)),
                false => None,
            };
            let sums = host.add_up(&self.key, proof, &parts)?;
            let sums = parts.into_iter().zip(sums).collect();
            records.push(Record { device: DeviceId::from("host"), sums, quotient });
        }
        Ok(records)
    }

    /// Computes all parts on the host. Returns the devices whose parts differ, and the right sums.
    fn audit(&self, proof: &Arc<SharedProof>, records: &[Record]) -> Result<(BTreeSet<DeviceId>, Sums)> {
        let (mut host, mut wrong, mut right) = (self.host()?, BTreeSet::new(), Sums::default());
        let quotient = host.make_quotient(&self.key, proof)??;
        // The parts are compared for the scalars that the devices were given, so the host must not use its own.
        host.erase()?;
        // The same proof with the right quotient, if that of the devices is wrong.
        let mut corrected = None;
        if *quotient != proof.quotient() {
            let by = records.iter().filter(|record| record.quotient.is_some());
            wrong.extend(by.map(|record| record.device.clone()));
            let again = SharedProof::new(proof.witness_handle());
            again.set_quotient(Arc::new(quotient));
            corrected = Some(again);
        }
        for record in records {
            let parts: Vec<Part> = record.sums.iter().map(|(part, _)| part.clone()).collect();
            let given = host.add_up(&self.key, proof, &parts)?;
            let corrected = match &corrected {
                Some(corrected) => host.add_up(&self.key, corrected, &parts)?,
                None => given.clone(),
            };
            for (((part, found), given), corrected) in record.sums.iter().zip(&given).zip(&corrected) {
                // A device is right about the scalars that it was given. It may also have computed the quotient itself, in
                // a copy of that piece that came too late: then it used its own scalars.
                if !found.is(given) && !found.is(corrected) {
                    wrong.insert(record.device.clone());
                }
                right.add(part.sum, corrected);
            }
        }
        Ok((wrong, right))
    }

    /// The reference, in the threads of the current rayon pool.
    fn host(&self) -> Result<Worker<CpuEngine>> {
        Ok(Worker::new(CpuEngine::new(DeviceId::from("host")), &self.key, &Resident::default())?)
    }
}

impl Record {
    /// Returns what a device computed, and the indices of the pieces whose sums it did not compute, because a device had
    /// refused the witness. Fails with the witness's error if this device did.
    fn new(result: &ChunkResult) -> Result<(Record, impl Iterator<Item = usize> + use<>)> {
        let quotient = result.quotient.clone().transpose()?;
        let (mut skipped, device) = (0..0, result.device.clone());
        if result.sums.is_none() {
            // If the chunk has the quotient, that is its first piece.
            skipped = result.chunk.start as usize..result.chunk.end as usize;
            skipped.start += usize::from(quotient.is_some());
        }
        Ok((Record { device, sums: result.sums.clone().unwrap_or_default(), quotient }, skipped))
    }
}

/// A chunk that counts as a whole, or a piece that does not count.
enum Counted<'a> {
    Chunk(&'a ChunkResult),
    Missing(usize),
}

/// Returns the chunks of which every piece was accepted, and the indices of the other pieces: if two devices computed
/// overlapping chunks, neither result may count as a whole.
fn counted_chunks(results: &[Arc<ChunkResult>]) -> Vec<Counted<'_>> {
    let mut counted = Vec::new();
    let mut index = 0;
    while index < results.len() {
        let chunk: &Range<u64> = &results[index].chunk;
        let end = usize::try_from(chunk.end).unwrap_or(usize::MAX);
        let own = results.get(index..end).unwrap_or_default();
        let is_whole = chunk.start == index as u64
            && !own.is_empty()
            && own.iter().all(|other| Arc::ptr_eq(other, &results[index]));
        if is_whole {
            counted.push(Counted::Chunk(&results[index]));
            index = end;
        } else {
            counted.push(Counted::Missing(index));
            index += 1;
        }
    }
    counted
}

#[cfg(test)]
mod test {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use ark_ff::Field;
    use evener_device::{Device, Result as DeviceResult};
    use evener_schedule::Settings;

    use super::{
        super::{Squares, task::OwnEngines},
        *,
    };

    /// Engines that tell a closure about each quotient, without parts, and about the parts of each sum, before they are added
    /// up.
    struct Observed(Arc<Observer>);

    type Observer = dyn Fn(&SharedProof, &[Part]) + Send + Sync;

    struct ObservedMaker(Box<dyn ProofMaker>, Arc<Observer>);

    impl Engines for Observed {
        fn can_use(&self, device: &Device) -> bool {
            OwnEngines::default().can_use(device)
        }

        fn workers(&self, device: &Device) -> usize {
            OwnEngines::default().workers(device)
        }

        fn open(
            &self,
            device: &Device,
            key: &Arc<ProvingKey>,
            resident: &Resident,
        ) -> DeviceResult<Box<dyn ProofMaker>> {
            Ok(Box::new(ObservedMaker(OwnEngines::default().open(device, key, resident)?, self.0.clone())))
        }
    }

    impl ProofMaker for ObservedMaker {
        fn make(
            &mut self,
            key: &ProvingKey,
            witness: &Witness,
            r: &Fr,
            s: &Fr,
        ) -> DeviceResult<Result<Proof>> {
            self.0.make(key, witness, r, s)
        }

        fn make_quotient(
            &mut self,
            key: &ProvingKey,
            proof: &SharedProof,
        ) -> DeviceResult<Result<Secrets<Fr>>> {
            (self.1)(proof, &[]);
            self.0.make_quotient(key, proof)
        }

        fn add_up(
            &mut self,
            key: &ProvingKey,
            proof: &SharedProof,
            parts: &[Part],
        ) -> DeviceResult<Vec<PartSum>> {
            (self.1)(proof, parts);
            self.0.add_up(key, proof, parts)
        }

        fn erase(&mut self) -> DeviceResult<()> {
            self.0.erase()
        }
    }

    /// Makes a few proofs with engines that call `observer`. Each piece is one point, so that there are many chunks.
    fn prove_observed(settings: Settings, observer: impl Fn(&SharedProof, &[Part]) + Send + Sync + 'static) {
        let circuit = Squares::filling(4);
        let key = Arc::new(ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap());
        let pool = Pool::builder().devices([Device::cpu()]).settings(settings).keep_history_at(None);
        let engines = Arc::new(Observed(Arc::new(observer)));
        let prover = SharedProver::new(&pool.build().unwrap(), key, engines, Arc::default());
        let prover = prover.cut(Arc::new(|_, points| (0..points).map(|at| at..at + 1).collect()));
        for first in 3u64..6 {
            let witness = Arc::new(circuit.witness(Fr::from(first)).unwrap());
            // Every proof is verified.
            prover.prove(&witness, &Blinding::random().unwrap(), &mut ProofTotals::default()).unwrap();
            assert!(prover.quarantined().is_empty());
        }
    }

    #[test]
    fn sums_that_were_left_out_for_a_refusal_that_does_not_count_are_computed() {
        // As a device does that has a copy of the quotient's piece, and is wrong, and too late.
        let refused = AtomicU64::new(u64::MAX);
        prove_observed(Settings::default(), move |proof, parts| {
            if parts.is_empty() && refused.swap(proof.id(), SeqCst) != proof.id() {
                proof.refuse();
            }
        });
    }

    #[test]
    fn shared_proofs_keep_to_the_settings_of_the_pool() {
        let points = |settings| {
            let most = Arc::new(AtomicU64::new(0));
            let seen = most.clone();
            prove_observed(settings, move |_, parts| {
                let points: usize = parts.iter().map(|part| part.range.len()).sum();
                seen.fetch_max(points as u64, SeqCst);
            });
            most.load(SeqCst)
        };
        assert_eq!(points(Settings { max_items: Some(1), ..Settings::default() }), 1);
        assert!(points(Settings::default()) > 1);
    }

    /// A device that computed a second copy of the quotient uses its own scalars, which are right, though the copy that was
    /// accepted is wrong.
    #[test]
    fn a_device_that_uses_its_own_right_quotient_is_not_blamed_for_a_wrong_one() {
        let circuit = Squares::filling(4);
        let key = Arc::new(ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap());
        let pool = Pool::new([Device::cpu()]).unwrap();
        let prover = SharedProver::new(&pool, key.clone(), Arc::new(OwnEngines::default()), Arc::default());
        let witness = Arc::new(circuit.witness(Fr::from(3)).unwrap());
        let (proof, right) = (SharedProof::new(witness.clone()), SharedProof::new(witness));
        let mut host = prover.host().unwrap();
        let quotient = host.make_quotient(&key, &right).unwrap().unwrap();
        let mut wrong = quotient.clone();
        wrong[2] += Fr::ONE;
        right.set_quotient(Arc::new(quotient));
        proof.set_quotient(Arc::new(wrong.clone()));

        let all = |sum: Sum| Part { sum, range: 0..sum.points(&key) };
        let mut record = |name: &str, of: &SharedProof, sums: &[Sum]| {
            let parts: Vec<Part> = sums.iter().copied().map(all).collect();
            let sums = host.add_up(&key, of, &parts).unwrap();
            Record {
                device: DeviceId::from(name),
                sums: parts.into_iter().zip(sums).collect(),
                quotient: None,
            }
        };
        let of_wires = record("wires", &proof, &Sum::OF_WIRES);
        let own = record("own", &right, &[Sum::H]);
        let given = record("given", &proof, &[Sum::H]);
        let lost_bit = Record { device: "bit".into(), quotient: Some(Arc::new(wrong)), sums: Vec::new() };

        let mut expected = Sums::default();
        for (part, sum) in of_wires.sums.iter().chain(&own.sums) {
            expected.add(part.sum, sum);
        }
        for of_quotient in [own, given] {
            let records = [&lost_bit, &of_wires, &of_quotient].map(Record::copy);
            let (blamed, found) = prover.audit(&proof, &records).unwrap();
            assert_eq!(Vec::from_iter(blamed), [DeviceId::from("bit")], "{}", of_quotient.device);
            assert_eq!(found.h, expected.h, "{}", of_quotient.device);
            assert_eq!((found.a, found.b_g2, found.l), (expected.a, expected.b_g2, expected.l));
        }
    }

    impl Record {
        fn copy(&self) -> Record {
            let Record { device, sums, quotient } = self;
            Record { device: device.clone(), sums: sums.clone(), quotient: quotient.clone() }
        }
    }

    #[test]
    fn a_chunk_counts_only_if_all_its_pieces_were_accepted() {
        let result = |chunk: Range<u64>| {
            let device = DeviceId::from("any");
            Arc::new(ChunkResult { chunk, device, sums: Some(Vec::new()), quotient: None })
        };
        let counted = |results: &[Arc<ChunkResult>]| {
            let (mut chunks, mut missing) = (Vec::new(), Vec::new());
            for counted in counted_chunks(results) {
                match counted {
                    Counted::Chunk(result) => chunks.push(result.chunk.clone()),
                    Counted::Missing(index) => missing.push(index),
                }
            }
            (chunks, missing)
        };
        let (long, end, last) = (result(0..4), result(2..4), result(4..5));
        // The last two pieces of a chunk of four were computed by another device first.
        let overlapping = [long.clone(), long, end.clone(), end, last];
        assert_eq!(counted(&overlapping), (vec![2..4, 4..5], vec![0, 1]));
        assert_eq!(counted(&[]), (vec![], vec![]));
        // Two devices computed the same chunk, and a piece of each was accepted.
        assert_eq!(counted(&[result(0..2), result(0..2)]), (vec![], vec![0, 1]));
    }
}
