//! The prover over a pool.

use std::{sync::Arc, time::Duration};

use ark_bn254::Fr;
use evener_schedule::{Cancel, Job, Pool, Progress, Report, Strategy, Trace};

use super::{
    Engines, Proved, ProvingKey, Witness,
    task::{Item, OwnEngines, ProofTask},
};
use crate::error::{Error, Result};

/// Proves witnesses of one circuit on the devices of a pool.
///
/// The first proof on a device copies the key's points there, where they stay as long as the prover. Each proof is verified
/// before it is returned. If one does not verify, the prover makes it again on the host: if that one verifies, the device
/// was wrong, and the scheduler quarantines it and has the witness proved by another device; otherwise the witness does not
/// satisfy the circuit.
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
    job: Job<'static, ProofTask>,
}

impl Prover {
    /// Makes a prover for a key on the devices of a pool.
    pub fn load(pool: &Pool, key: impl Into<Arc<ProvingKey>>) -> Prover {
        Prover::with_engines(pool, key, Arc::new(OwnEngines))
    }

    /// Makes a prover with other engines, for tests and for devices of the program's own.
    pub fn with_engines(pool: &Pool, key: impl Into<Arc<ProvingKey>>, engines: Arc<dyn Engines>) -> Prover {
        let key = key.into();
        let job = pool.job(&ProofTask::new(key.clone(), engines));
        Prover { key, job }
    }

    /// The key.
    pub fn key(&self) -> &Arc<ProvingKey> {
        &self.key
    }

    /// Sets the strategy that shares out witnesses, instead of the pool's.
    pub fn strategy(self, strategy: Strategy) -> Self {
        Prover { job: self.job.strategy(strategy), ..self }
    }

    /// Uses all devices, including those that are not expected to make a batch faster.
    pub fn all_devices(self) -> Self {
        Prover { job: self.job.all_devices(), ..self }
    }

    /// Records a trace, which [`Batch::trace`] returns.
    pub fn trace(self) -> Self {
        Prover { job: self.job.trace(), ..self }
    }

    /// Sets the token that cancels batches.
    pub fn cancel(self, cancel: &Cancel) -> Self {
        Prover { job: self.job.cancel(cancel), ..self }
    }

    /// Fails a batch that takes longer than this.
    pub fn deadline(self, deadline: Duration) -> Self {
        Prover { job: self.job.deadline(deadline), ..self }
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
    pub fn prove(&self, witness: Witness) -> Result<Proved> {
        let mut batch = self.prove_batch(vec![witness])?;
        batch.results.pop().unwrap_or(Err(Error::Unprovable))
    }

    /// Proves witnesses, and verifies the proofs. The results are in the order of the witnesses, each with its own error.
    /// Fails as a whole if no device is left that can prove.
    pub fn prove_batch(&self, witnesses: Vec<Witness>) -> Result<Batch> {
        self.run(witnesses, |_| None)
    }

    /// Proves a witness with these secrets. For tests only: two proofs with the same secrets reveal the witness.
    #[doc(hidden)]
    pub fn prove_with_secrets(&self, witness: Witness, r: Fr, s: Fr) -> Result<Proved> {
        let mut batch = self.run(vec![witness], |_| Some((r, s)))?;
        batch.results.pop().unwrap_or(Err(Error::Unprovable))
    }

    fn run(&self, witnesses: Vec<Witness>, fixed: impl Fn(usize) -> Option<(Fr, Fr)>) -> Result<Batch> {
        // Witnesses of another circuit use no device.
        let checked: Vec<Result<()>> = witnesses.iter().map(|witness| self.key.check_len(witness)).collect();
        let all = witnesses.into_iter().zip(&checked).enumerate();
        let items: Vec<Item> = all
            .filter(|(_, (_, checked))| checked.is_ok())
            .map(|(index, (witness, _))| Item { witness: Arc::new(witness), fixed: fixed(index) })
            .collect();
        let (proved, report, trace) = match items.is_empty() {
            true => (Vec::new(), None, Trace::default()),
            false => {
                let mapped = self.job.map(&items)?;
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
