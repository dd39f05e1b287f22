//! The prover over a pool.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ark_bn254::Fr;
use evener_device::DeviceId;
use evener_schedule::{Cancel, Job, Pool, Progress, Report, Strategy, Trace};
use rayon::prelude::*;
use zeroize::Zeroizing;

use super::{
    Engines, Proved, ProvingKey, Split, Sum, Witness,
    key_cache::KeyCache,
    randomness::Blinding,
    shared::{Chooser, SharedProver, Way},
    task::{Item, OwnEngines, ProofTask},
};
use crate::error::{Error, Result};

/// Proves witnesses of one circuit on the devices of a pool.
///
/// The first proof on a device copies the key's points there, where they stay as long as the prover. The witnesses of a batch
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
        Prover::with_engines(pool, key, Arc::new(OwnEngines))
    }

    /// Makes a prover with other engines, for tests and for devices of the program's own.
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
        Prover { job: self.job.trace(), ..self }
    }

    /// Sets the token that cancels batches and proofs.
    pub fn cancel(self, cancel: &Cancel) -> Self {
        Prover { job: self.job.cancel(cancel), shared: self.shared.cancel(cancel), ..self }
    }

    /// Fails a batch or a proof that takes longer than this.
    pub fn deadline(self, deadline: Duration) -> Self {
        Prover { job: self.job.deadline(deadline), shared: self.shared.deadline(deadline), ..self }
    }

    /// Draws a progress bar on standard error for batches that take longer than a second, if it is a terminal.
    pub fn progress_bar(self) -> Self {
        Prover { job: self.job.progress_bar(), ..self }
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
    pub fn prove(&self, witness: Witness) -> Result<Proved> {
        self.prove_one(witness, None)
    }

    fn prove_one(&self, witness: Witness, fixed: Option<(Fr, Fr)>) -> Result<Proved> {
        self.key.check_len(&witness)?;
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
                let items = [Item { witness: witness.clone(), fixed }];
                let mut proved = self.job.map(&items)?.into_results();
                proved.pop().unwrap_or(Err(Error::Unprovable))
            }
            Way::Shared => {
                let blinding = match fixed {
                    Some((r, s)) => Blinding { r: Zeroizing::new(r), s: Zeroizing::new(s) },
                    None => Blinding::random()?,
                };
                self.shared.prove(&witness, &blinding)
            }
        };
        if proved.is_ok() {
            let is_settled = before.is_some() && before == self.keys.settled_preparations();
            chooser().record(way, begin.elapsed(), is_settled);
        }
        // A worker that still has it zeroes it.
        Arc::into_inner(witness).into_iter().for_each(Witness::erase);
        proved
    }

    /// Proves witnesses, and verifies the proofs. The results are in the order of the witnesses, each with its own error.
    /// Fails as a whole if no device is left that can prove.
    pub fn prove_batch(&self, witnesses: Vec<Witness>) -> Result<Batch> {
        // Witnesses of another circuit use no device.
        let checked: Vec<Result<()>> = witnesses.iter().map(|witness| self.key.check_len(witness)).collect();
        let items: Vec<Item> = witnesses
            .into_iter()
            .zip(&checked)
            .filter(|(_, checked)| checked.is_ok())
            .map(|(witness, _)| Item { witness: Arc::new(witness), fixed: None })
            .collect();
        let (proved, report, trace) = match items.is_empty() {
            true => (Vec::new(), None, Trace::default()),
            false => {
                let mapped = self.job.map(&items)?;
                items
                    .into_par_iter()
                    .filter_map(|item| Arc::into_inner(item.witness))
                    .for_each(Witness::erase);
                let (report, trace) = (mapped.report().clone(), mapped.trace().clone());
                (mapped.into_results(), Some(report), trace)
            }
        };
        let mut proved = proved.into_iter();
        let results = checked
            .into_iter()
            .map(|checked| checked.and_then(|()| proved.next().unwrap_or(Err(Error::Unprovable))));
        Ok(Batch { results: results.collect(), report, trace })
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

    /// What every lane did, when; empty unless [`Prover::trace`] asked for it.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}
