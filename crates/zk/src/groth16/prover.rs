//! The prover over a pool.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ark_bn254::Fr;
use evener_device::{DeviceId, affinity::unbound};
use evener_schedule::{Cancel, Job, Pool, Progress, Report, Strategy, Trace};
use rayon::prelude::*;
use zeroize::Zeroizing;

use super::{
    Engines, Proved, ProvingKey, Split, Sum, Witness, WitnessSource,
    key_cache::KeyCache,
    randomness::Blinding,
    shared::{Chooser, ProofTotals, SharedProver, Way},
    source::{EndBatchOnDrop, Finished},
    task::{Item, OwnEngines, ProofTask},
};
use crate::error::{Error, Result};

/// Proves witnesses of one circuit on the devices of a pool.
///
/// The first proof on a device copies the key's points there, where they stay as long as the prover: 320 bytes for each wire and 64
/// for each element of the domain, and on a GPU with memory of its own some 12 to 20 times as much for tables of multiples, where
/// these fit. They take at most three fifths of a device's memory; the other points are copied for each proof. The witnesses of a batch
/// are spread over the devices, one proof each; a [single proof](Self::prove) may be shared by all of them.
///
/// Each proof is verified before it is returned. If one does not verify, the prover makes it again on the host: if that one
/// verifies, the device was wrong, and the scheduler quarantines it and has the witness proved by another device; otherwise
/// the witness does not satisfy the circuit.
///
/// ```
/// use ark_bn254::Fr;
/// use evener_device::Device;
/// use evener_schedule::Pool;
/// use evener_zk::groth16::{Prover, ProvingKey, Squares};
///
/// let circuit = Squares::filling(6);
/// let key = ProvingKey::set_up(&circuit.r1cs()?)?;
/// let prover = Prover::load(&Pool::new([Device::cpu()])?, key);
/// let proved = prover.prove(circuit.witness(Fr::from(3))?)?;
/// prover.key().verifying_key().verify(&proved.proof, &proved.public)?;
/// # Ok::<(), evener_zk::Error>(())
/// ```
pub struct Prover {
    key: Arc<ProvingKey>,
    /// Whole proofs, one per device.
    job: Job<'static, ProofTask>,
    /// Proofs that all devices make together.
    shared: SharedProver,
    keys: Arc<KeyCache>,
    split: Split,
    chooser: Mutex<Chooser>,
    devices: usize,
}

impl Prover {
    /// Makes a prover for a key on the devices of a pool.
    pub fn load(pool: &Pool, key: impl Into<Arc<ProvingKey>>) -> Prover {
        Prover::with_engines(pool, key, Arc::new(OwnEngines::for_pool(pool)))
    }

    /// Makes a prover with other [engines](super::engines), for tests and for devices of the program's own.
    pub fn with_engines(pool: &Pool, key: impl Into<Arc<ProvingKey>>, engines: Arc<dyn Engines>) -> Prover {
        let (key, keys) = (key.into(), Arc::new(KeyCache::default()));
        let devices = pool.devices().iter().filter(|device| engines.can_use(device)).count();
        let job = pool.job(&ProofTask::new(key.clone(), engines.clone(), keys.clone()));
        let shared = SharedProver::new(pool, key.clone(), engines, keys.clone());
        let (split, chooser) = (Split::default(), Mutex::default());
        Prover { key, job, shared, keys, split, chooser, devices }
    }

    /// Sets how [`prove`](Self::prove) makes a proof: by one device, by all devices together, or by whichever was faster so
    /// far. Batches are not affected: each of their proofs is made by one device.
    pub fn split(self, split: Split) -> Self {
        Prover { split, ..self }
    }

    /// Cuts the points of the sums of a shared proof in another way, for tests. The ranges of a sum must contain every point
    /// once, in order.
    #[doc(hidden)]
    pub fn cut(self, cut: impl Fn(Sum, usize) -> Vec<Range<usize>> + Send + Sync + 'static) -> Self {
        Prover { shared: self.shared.cut(Arc::new(cut)), ..self }
    }

    /// The devices that take no part in shared proofs now, because they computed a wrong part of one not long ago.
    pub fn quarantined(&self) -> Vec<DeviceId> {
        self.shared.quarantined()
    }

    /// The key.
    pub fn key(&self) -> &Arc<ProvingKey> {
        &self.key
    }

    /// Sets the strategy that shares out witnesses, instead of the pool's.
    pub fn strategy(self, strategy: Strategy) -> Self {
        Prover { job: self.job.strategy(strategy), shared: self.shared.strategy(strategy), ..self }
    }

    /// Uses all devices, including those that are not expected to make a batch faster.
    pub fn all_devices(self) -> Self {
        Prover { job: self.job.all_devices(), ..self }
    }

    /// Records a trace, which [`Batch::trace`] returns.
    pub fn trace(self) -> Self {
        Prover { job: self.job.trace(), shared: self.shared.trace(), ..self }
    }

    /// Sets the token that cancels batches and proofs. A cancelled batch fails as a whole:
    /// [`prove_each`](Self::prove_each) hands out its finished proofs before that.
    pub fn cancel(self, cancel: &Cancel) -> Self {
        Prover { job: self.job.cancel(cancel), shared: self.shared.cancel(cancel), ..self }
    }

    /// Fails a batch or a proof that takes longer than this. [`prove_each`](Self::prove_each) hands out the proofs that were
    /// finished in time.
    pub fn deadline(self, deadline: Duration) -> Self {
        Prover { job: self.job.deadline(deadline), shared: self.shared.deadline(deadline), ..self }
    }

    /// Draws a progress bar on standard error for batches and shared proofs that take longer than a second, if it is a terminal.
    pub fn progress_bar(self) -> Self {
        Prover { job: self.job.progress_bar(), shared: self.shared.progress_bar(), ..self }
    }

    /// Calls `tell` with the progress of a batch, ten times a second and at its end. An item is a witness.
    pub fn on_progress(self, tell: impl FnMut(&Progress) + Send + 'static) -> Self {
        Prover { job: self.job.on_progress(tell), ..self }
    }

    /// Proves a witness, and verifies the proof.
    ///
    /// On a pool with several devices, the devices may share the proof: see [`split`](Self::split). Whatever device computed
    /// which part, the proof is the same for the same secrets. If a shared proof does not verify, the host finds out which
    /// device was wrong, and that device is [left out](Self::quarantined) for a while.
    ///
    /// ```
    /// use ark_bn254::Fr;
    /// use evener_device::Device;
    /// use evener_schedule::Pool;
    /// use evener_zk::groth16::{Prover, ProvingKey, Split, Squares};
    ///
    /// let circuit = Squares::filling(8);
    /// let key = ProvingKey::set_up(&circuit.r1cs()?)?;
    /// // Each core is a device, as an example.
    /// let cores = Device::cpu().describe().compute_units.unwrap_or(1) as usize;
    /// let pool = Pool::new(Device::cpu().split(&vec![1; cores])?)?;
    /// let prover = Prover::load(&pool, key).split(Split::Shared);
    /// let proved = prover.prove(circuit.witness(Fr::from(3))?)?;
    /// prover.key().verifying_key().verify(&proved.proof, &proved.public)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::OtherCircuit`]: the witness has another number of values than the key's circuit has wires.
    /// - [`Error::Unsatisfied`]: the witness does not satisfy a constraint, and the key has
    ///   [all of them](ProvingKey::with_r1cs).
    /// - [`Error::Unprovable`]: the witness does not satisfy the circuit, or the key is damaged, and the key does not tell
    ///   which.
    /// - [`Error::Run`]: no device is left that can prove, or the proof was [cancelled](Self::cancel) or took longer than its
    ///   [deadline](Self::deadline). A device that fails while another one is left is no error.
    /// - [`Error::Randomness`]: the operating system gave no random bytes for the proof's secrets.
    pub fn prove(&self, witness: Witness) -> Result<Proved> {
        self.prove_one(witness, None)
    }

    fn prove_one(&self, witness: Witness, fixed: Option<(Fr, Fr)>) -> Result<Proved> {
        self.key.check_len(witness.values().len())?;
        let witness = Arc::new(witness);
        let chooser = || self.chooser.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.keys.settled_preparations();
        let way = match self.split {
            Split::Whole => Way::Whole,
            Split::Shared => Way::Shared,
            Split::Auto if self.devices < 2 => Way::Whole,
            Split::Auto => chooser().choose(before.is_none()),
        };
        let begin = Instant::now();
        let proved = match way {
            Way::Whole => {
                let items = [Item { source: witness.into(), fixed, finished: None }];
                let mut proved = self.job.map(&items)?.into_results();
                proved.pop().unwrap_or(Err(Error::Unprovable))
            }
            Way::Shared => {
                let blinding = match fixed {
                    Some((r, s)) => Blinding { r: Zeroizing::new(r), s: Zeroizing::new(s) },
                    None => Blinding::random()?,
                };
                self.shared.prove(&witness, &blinding, &mut ProofTotals::default())
            }
        };
        if proved.is_ok() {
            let is_settled = before.is_some() && before == self.keys.settled_preparations();
            chooser().record(way, begin.elapsed(), is_settled);
        }
        proved
    }

    /// Proves witnesses, and verifies the proofs. The results are in the order of the witnesses, each with its own error.
    ///
    /// # Errors
    ///
    /// The batch fails as a whole, and its proofs are lost, if no device is left that can prove, if it is
    /// [cancelled](Self::cancel), or if it takes longer than its [deadline](Self::deadline).
    /// [`prove_each`](Self::prove_each) hands out each proof before that.
    pub fn prove_batch(&self, witnesses: Vec<Witness>) -> Result<Batch> {
        let (finished, _) = Finished::new(witnesses.len());
        finished.end();
        self.run(witnesses.into_iter().map(WitnessSource::from).collect(), &Arc::new(finished))
    }

    /// Proves witnesses as [`prove_batch`](Self::prove_batch) does, and calls `on_proof` with the index and the result of
    /// each as soon as its proof is verified, in the order in which they finish. Witnesses can be
    /// [read when they are needed](WitnessSource), so that memory does not grow with the batch.
    ///
    /// Another thread calls `on_proof`, while devices go on proving, and calls it once for each witness with a result. If it
    /// panics, the panic continues here once the batch has ended.
    ///
    /// ```
    /// # use ark_bn254::Fr;
    /// # use evener_device::Device;
    /// # use evener_schedule::Pool;
    /// # use evener_zk::groth16::{Prover, ProvingKey, Squares, WitnessSource};
    /// # let circuit = Squares::filling(6);
    /// # let key = ProvingKey::set_up(&circuit.r1cs()?)?;
    /// # let prover = Prover::load(&Pool::new([Device::cpu()])?, key);
    /// let read = |number: u64| WitnessSource::read_by(move || circuit.witness(Fr::from(number))); // or WitnessSource::file
    /// let mut proofs = Vec::new();
    /// prover.prove_each((0..3).map(read), |index, result| match result {
    ///     Ok(proved) => proofs.push((index, proved.proof.to_json())), // write it
    ///     Err(error) => println!("{index}: {error}"),
    /// })?;
    /// assert_eq!(proofs.len(), 3);
    /// # Ok::<(), evener_zk::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`prove_batch`](Self::prove_batch). Before a batch that is cancelled, passes its deadline or has no device left
    /// returns its error, `on_proof` was called for every proof that was finished until then. The proofs in flight on the
    /// processor are finished first; those on other devices are lost.
    pub fn prove_each<S: Into<WitnessSource>>(
        &self,
        witnesses: impl IntoIterator<Item = S>,
        mut on_proof: impl FnMut(usize, &Result<Proved>) + Send,
    ) -> Result<Batch> {
        let sources: Vec<WitnessSource> = witnesses.into_iter().map(Into::into).collect();
        let (finished, indices) = Finished::new(sources.len());
        let finished = Arc::new(finished);
        std::thread::scope(|scope| {
            let reported = &finished;
            let _end = EndBatchOnDrop(reported);
            let report = move || {
                for (index, result) in indices.iter().filter_map(|index| Some((index, reported.get(index)?)))
                {
                    on_proof(index, result);
                }
            };
            let thread = std::thread::Builder::new().name("evener-proofs".into());
            unbound(|| thread.spawn_scoped(scope, report)).map_err(|error| evener_device::Error::Lost {
                device: DeviceId::from("cpu"),
                operation: "starting a thread".into(),
                detail: error.to_string(),
            })?;
            self.run(sources, &finished)
        })
    }

    /// Proves witnesses, each by one device.
    fn run(&self, sources: Vec<WitnessSource>, finished: &Arc<Finished>) -> Result<Batch> {
        // No device is used for what memory and the beginnings of files can tell.
        let mut items = Vec::with_capacity(sources.len());
        let mut checked = Vec::with_capacity(sources.len());
        for (index, source) in sources.into_iter().enumerate() {
            checked.push(source.check(&self.key).inspect_err(|error| {
                let _ = finished.set(index, Err(error.clone()));
            }));
            if checked.last().is_some_and(Result::is_ok) {
                items.push(Item { source, fixed: None, finished: Some((finished.clone(), index)) });
            }
        }
        let (proved, report, trace) = match items.is_empty() {
            true => (Vec::new(), None, Trace::default()),
            false => {
                let mapped = self.job.map(&items)?;
                // Each witness is zeroed by one of many threads.
                items.into_par_iter().for_each(drop);
                let (report, trace) = (mapped.report().clone(), mapped.trace().clone());
                (mapped.into_results(), Some(report), trace)
            }
        };
        let mut proved = proved.into_iter();
        let results = checked
            .into_iter()
            .map(|checked| checked.and_then(|()| proved.next().unwrap_or(Err(Error::Unprovable))));
        Ok(Batch { results: results.collect(), report, trace, is_shared: false })
    }

    /// Proves witnesses one after the other, each by all devices together, and verifies the proofs: for fewer witnesses than
    /// devices, some of which [`prove_batch`](Self::prove_batch) would leave idle. The results are in the order of the
    /// witnesses, each with its own error.
    ///
    /// # Errors
    ///
    /// As [`prove_batch`](Self::prove_batch); the deadline is that of each proof.
    pub fn prove_shared(&self, witnesses: Vec<Witness>) -> Result<Batch> {
        self.prove_each_shared(witnesses, |_, _| ())
    }

    /// Proves witnesses as [`prove_shared`](Self::prove_shared) does, and calls `on_proof` with the index and the result of
    /// each as soon as its proof is verified. Witnesses can be [read when they are needed](WitnessSource).
    ///
    /// # Errors
    ///
    /// As [`prove_shared`](Self::prove_shared). Before that, `on_proof` was called for every proof that was finished.
    pub fn prove_each_shared<S: Into<WitnessSource>>(
        &self,
        witnesses: impl IntoIterator<Item = S>,
        mut on_proof: impl FnMut(usize, &Result<Proved>),
    ) -> Result<Batch> {
        let (mut results, mut totals) = (Vec::new(), ProofTotals::default());
        for (index, source) in witnesses.into_iter().enumerate() {
            let proved = source.into().get(&self.key).and_then(|witness| {
                let blinding = Blinding::random()?;
                self.shared.prove(&witness, &blinding, &mut totals)
            });
            if let Err(error @ Error::Run(_)) = proved {
                return Err(error);
            }
            on_proof(index, &proved);
            results.push(proved);
        }
        let (report, trace) = totals.runs.into_parts();
        Ok(Batch { results, report, trace, is_shared: true })
    }

    /// Proves a witness with these secrets. For tests only: two proofs with the same secrets reveal the witness.
    #[doc(hidden)]
    pub fn prove_with_secrets(&self, witness: Witness, r: Fr, s: Fr) -> Result<Proved> {
        self.prove_one(witness, Some((r, s)))
    }
}

impl std::fmt::Debug for Prover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prover({} constraints, {} wires)", self.key.constraints(), self.key.wires())
    }
}

/// The proofs of a batch.
#[derive(Debug)]
pub struct Batch {
    results: Vec<Result<Proved>>,
    report: Option<Report>,
    trace: Trace,
    is_shared: bool,
}

impl Batch {
    /// The results, in the order of the witnesses.
    pub fn results(&self) -> &[Result<Proved>] {
        &self.results
    }

    /// Takes the results.
    pub fn into_results(self) -> Vec<Result<Proved>> {
        self.results
    }

    /// What each device did; `None` if no device was used.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Whether all devices made each proof together: then an item of the report is a piece of a proof, and otherwise a proof.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// What every lane did, when; empty unless [`Prover::trace`] asked for it.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}
