//! The task of a run: proves and verifies one witness per item.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use ark_bn254::Fr;
use evener_device::{
    Api, Device, DeviceId, DeviceKind, Error as DeviceError, Result as DeviceResult,
    affinity::{lower_priority, unbound},
};
use evener_schedule::{Chunk, Pool, Resident, Results, Task};
use rayon::{ThreadPool, ThreadPoolBuilder};
use zeroize::Zeroizing;

use super::{
    CpuEngine, Engine, GpuEngine, Part, PartSum, Proof, Proved, ProvingKey, Secrets, SharedProof, Sum,
    Witness, WitnessSource,
    key_cache::KeyCache,
    prove::{LoadedKey, prove, time_operations},
    randomness::Blinding,
    source::Finished,
};
use crate::error::{Error, Result};

/// Chooses the engine of each device.
pub trait Engines: Send + Sync + 'static {
    /// Whether there is an engine for a device.
    fn can_use(&self, device: &Device) -> bool;

    /// Number of workers of a device, each with an engine of its own. More than one overlaps the host's work on one proof
    /// with the device's work on another.
    fn workers(&self, device: &Device) -> usize;

    /// Makes the engine of one worker. All workers of the device share the key's points in `resident`: see
    /// [`Worker::new`].
    fn open(
        &self,
        device: &Device,
        key: &Arc<ProvingKey>,
        resident: &Resident,
    ) -> DeviceResult<Box<dyn ProofMaker>>;
}

/// Makes proofs for one key on one device, or parts of them. They may be wrong: the caller verifies them.
pub trait ProofMaker: Send {
    /// Proves a witness with the secrets `r` and `s`, and zeroes all memory that depends on the witness. The outer error is
    /// the device's, the inner one the witness's.
    fn make(&mut self, key: &ProvingKey, witness: &Witness, r: &Fr, s: &Fr) -> DeviceResult<Result<Proof>>;

    /// Computes the scalars of the quotient polynomial for a proof that several devices share, in the order of
    /// [`Engine::quotient`]. The outer error is the device's, the inner one the witness's.
    fn make_quotient(&mut self, key: &ProvingKey, proof: &SharedProof) -> DeviceResult<Result<Secrets<Fr>>>;

    /// Computes parts of the sums of a proof that several devices share, in the order of the parts. The witness may stay on
    /// the device for further parts of the same proof.
    fn add_up(&mut self, key: &ProvingKey, proof: &SharedProof, parts: &[Part])
    -> DeviceResult<Vec<PartSum>>;

    /// Zeroes all memory that depends on a witness. This is the last call for each shared proof.
    fn erase(&mut self) -> DeviceResult<()>;
}

/// An engine, with the points of a key on its device.
pub struct Worker<E: Engine> {
    engine: E,
    loaded: Arc<LoadedKey<E>>,
    held: Held<E>,
    /// The threads for the host's part of a proof; `None` for rayon's own.
    threads: Option<Arc<ThreadPool>>,
}

/// The secrets of a shared proof that are on a device.
struct Held<E: Engine> {
    proof: Option<u64>,
    /// What was copied to the device last: scalars, and whether they are the quotient's. Each copy replaces the last one.
    loaded: Option<(bool, E::Scalars)>,
    /// The quotient's scalars, if this device computed them.
    computed: Option<E::Scalars>,
}

impl<E: Engine> Default for Held<E> {
    fn default() -> Self {
        Held { proof: None, loaded: None, computed: None }
    }
}

impl<E: Engine> Held<E> {
    /// Returns the scalars of a proof's wires, or of its quotient. They are copied to the device if they are not there.
    fn scalars(
        &mut self,
        engine: &mut E,
        proof: &SharedProof,
        of_quotient: bool,
    ) -> DeviceResult<&E::Scalars> {
        if self.proof != Some(proof.id()) {
            *self = Held { proof: Some(proof.id()), ..Held::default() };
        }
        let Held { loaded, computed, .. } = self;
        if let Some(computed) = computed.as_ref().filter(|_| of_quotient) {
            return Ok(computed);
        }
        let scalars = match loaded.take() {
            Some((is_of_quotient, scalars)) if is_of_quotient == of_quotient => scalars,
            _ => {
                engine.load_scalars(if of_quotient { proof.quotient() } else { proof.witness().values() })?
            }
        };
        Ok(&loaded.insert((of_quotient, scalars)).1)
    }
}

/// Computes the quotient's scalars for a shared proof.
fn make_quotient<E: Engine>(
    engine: &mut E,
    loaded: &LoadedKey<E>,
    held: &mut Held<E>,
    key: &ProvingKey,
    proof: &SharedProof,
) -> DeviceResult<Result<Secrets<Fr>>> {
    held.computed = None;
    let wires = held.scalars(engine, proof, false)?;
    let values = match engine.evaluate(&loaded.constraints, key, proof.witness(), wires)? {
        Ok(values) => values,
        Err(error) => return Ok(Err(error)),
    };
    let computed = engine.quotient(&loaded.constraints, values, key.reduction)?;
    if let Err(error) = engine.check(key, proof.witness())? {
        return Ok(Err(error));
    }
    let scalars = engine.read_scalars(&computed)?;
    held.computed = Some(computed);
    Ok(Ok(scalars))
}

/// A sum that the device may still be computing.
enum Begun<E: Engine> {
    G1(E::G1Sum),
    G2(E::G2Sum),
}

/// Computes parts of sums for a shared proof: first those over the wires, then those over the quotient's scalars.
fn add_up<E: Engine>(
    engine: &mut E,
    loaded: &LoadedKey<E>,
    held: &mut Held<E>,
    proof: &SharedProof,
    parts: &[Part],
) -> DeviceResult<Vec<PartSum>> {
    let mut sums = vec![None; parts.len()];
    for of_quotient in [false, true] {
        let own: Vec<usize> =
            (0..parts.len()).filter(|&index| (parts[index].sum == Sum::H) == of_quotient).collect();
        if own.is_empty() {
            continue;
        }
        let scalars = held.scalars(engine, proof, of_quotient)?;
        let mut begun = Vec::with_capacity(own.len());
        for &index in &own {
            let Part { sum, range } = parts[index].clone();
            begun.push(match sum {
                Sum::A => Begun::<E>::G1(engine.begin_g1(&loaded.a, range, scalars)?),
                Sum::B1 => Begun::G1(engine.begin_g1(&loaded.b_g1, range, scalars)?),
                Sum::L => Begun::G1(engine.begin_g1(&loaded.l, range, scalars)?),
                Sum::H => Begun::G1(engine.begin_g1(&loaded.h, range, scalars)?),
                Sum::B2 => Begun::G2(engine.begin_g2(&loaded.b_g2, range, scalars)?),
            });
        }
        for (index, sum) in own.into_iter().zip(begun) {
            sums[index] = Some(match sum {
                Begun::G1(sum) => PartSum::G1(engine.finish_g1(sum)?),
                Begun::G2(sum) => PartSum::G2(engine.finish_g2(sum)?),
            });
        }
    }
    Ok(sums.into_iter().flatten().collect())
}

impl<E: Engine + 'static> Worker<E> {
    /// Makes a worker. The first worker of a device copies the key's points there.
    pub fn new(mut engine: E, key: &ProvingKey, resident: &Resident) -> DeviceResult<Self> {
        let loaded = resident.get_or_make(|| LoadedKey::load(&mut engine, key))?;
        Ok(Worker { engine, loaded, held: Held::default(), threads: None })
    }

    /// Times each operation of a proof by itself, for measurements. The outer error is the device's, the inner one the
    /// witness's.
    #[doc(hidden)]
    pub fn time_operations(
        &mut self,
        key: &ProvingKey,
        witness: &Witness,
    ) -> DeviceResult<Result<Vec<(&'static str, Duration)>>> {
        self.with_threads(|engine, loaded, _| time_operations(engine, key, loaded, witness))
    }

    /// Runs the host's part of a proof in the worker's threads. After a panic, nothing of the proof stays on the device.
    fn with_threads<R: Send>(
        &mut self,
        work: impl FnOnce(&mut E, &LoadedKey<E>, &mut Held<E>) -> R + Send,
    ) -> R {
        let Worker { engine, loaded, held, threads } = self;
        let work = || {
            // The engine is used once more, and then dropped with the worker by the scheduler.
            catch_unwind(AssertUnwindSafe(|| work(engine, loaded, held))).unwrap_or_else(|panic| {
                *held = Held::default();
                let _ = erase(engine);
                resume_unwind(panic)
            })
        };
        match threads {
            Some(threads) => threads.install(work),
            None => work(),
        }
    }

    /// Does a part of a shared proof. After an error of the device, nothing of the proof stays on it.
    fn share<R: Send>(
        &mut self,
        work: impl FnOnce(&mut E, &LoadedKey<E>, &mut Held<E>) -> DeviceResult<R> + Send,
    ) -> DeviceResult<R> {
        self.with_threads(|engine, loaded, held| {
            let result = work(engine, loaded, held);
            if result.is_err() {
                *held = Held::default();
                let _ = erase(engine);
            }
            result
        })
    }

    #[cfg(test)]
    pub(super) fn engine(&mut self) -> &mut E {
        &mut self.engine
    }

    #[cfg(test)]
    pub(super) fn loaded(&self) -> &LoadedKey<E> {
        &self.loaded
    }
}

impl<E: Engine + 'static> ProofMaker for Worker<E> {
    fn make(&mut self, key: &ProvingKey, witness: &Witness, r: &Fr, s: &Fr) -> DeviceResult<Result<Proof>> {
        self.with_threads(|engine, loaded, held| {
            *held = Held::default();
            let proof = prove(engine, key, loaded, witness, r, s);
            // After an error of the device, that error counts.
            let erased = erase(engine);
            let proof = proof?;
            erased.map(|()| proof)
        })
    }

    fn make_quotient(&mut self, key: &ProvingKey, proof: &SharedProof) -> DeviceResult<Result<Secrets<Fr>>> {
        self.share(|engine, loaded, held| make_quotient(engine, loaded, held, key, proof))
    }

    fn add_up(&mut self, _: &ProvingKey, proof: &SharedProof, parts: &[Part]) -> DeviceResult<Vec<PartSum>> {
        self.share(|engine, loaded, held| add_up(engine, loaded, held, proof, parts))
    }

    fn erase(&mut self) -> DeviceResult<()> {
        self.held = Held::default();
        erase(&mut self.engine)
    }
}

/// Zeroes all memory that depends on a witness. What fails for another reason than the loss of the device, such as too little
/// memory for a moment, may work the second time.
fn erase<E: Engine>(engine: &mut E) -> DeviceResult<()> {
    match engine.erase() {
        Err(error) if !matches!(error, DeviceError::Lost { .. }) => engine.erase(),
        erased => erased,
    }
}

/// The engines of this crate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnEngines {
    /// Whether threads that feed other devices need the processor's cores too.
    has_other_devices: bool,
}

impl OwnEngines {
    pub(crate) fn for_pool(pool: &Pool) -> Self {
        OwnEngines {
            has_other_devices: pool.devices().iter().any(|device| device.describe().api != Api::Cpu),
        }
    }
}

impl Engines for OwnEngines {
    fn can_use(&self, device: &Device) -> bool {
        // A processor of another machine has no Rust code of this program.
        !device.describe().is_remote_processor()
    }

    fn workers(&self, device: &Device) -> usize {
        match device.describe().kind {
            // All cores work on one proof.
            DeviceKind::Cpu | DeviceKind::Software => 1,
            // One proof is verified, and the next witness copied, while the device computes another proof.
            DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Virtual => 2,
        }
    }

    fn open(
        &self,
        device: &Device,
        key: &Arc<ProvingKey>,
        resident: &Resident,
    ) -> DeviceResult<Box<dyn ProofMaker>> {
        if device.describe().api != Api::Cpu {
            return Ok(Box::new(Worker::new(GpuEngine::new(device)?, key, resident)?));
        }
        let worker = Worker::new(CpuEngine::new(device.id().clone()), key, resident)?;
        let threads = threads_of(device, self.has_other_devices)?;
        Ok(Box::new(Worker { threads: Some(Arc::new(threads)), ..worker }))
    }
}

/// Starts a thread for each core of a processor or a partition of it, on these cores. With a low priority, they leave the
/// cores to the threads that feed other devices: a GPU that waits for its next launch costs more than a core brings.
fn threads_of(device: &Device, has_low_priority: bool) -> DeviceResult<ThreadPool> {
    let (cores, bound) = (device.describe().compute_units.unwrap_or(1), device.clone());
    let threads = ThreadPoolBuilder::new()
        .num_threads(cores as usize)
        .thread_name(|index| format!("evener-zk-{index}"))
        .start_handler(move |index| {
            bound.bind_thread(index);
            if has_low_priority && !lower_priority() {
                tracing::debug!("the threads of proofs on {} keep their priority", bound.id());
            }
        });
    unbound(|| threads.build()).map_err(|error| DeviceError::Lost {
        device: device.id().clone(),
        operation: "starting threads".into(),
        detail: error.to_string(),
    })
}

/// A witness to prove.
#[derive(Clone)]
pub(crate) struct Item {
    pub(super) source: WitnessSource,
    /// The secrets, if a test has fixed them.
    pub(super) fixed: Option<(Fr, Fr)>,
    /// The results of the batch, and the index of this witness.
    pub(super) finished: Option<(Arc<Finished>, usize)>,
}

/// Proves witnesses with one key.
#[derive(Clone)]
pub(crate) struct ProofTask {
    name: Arc<str>,
    key: Arc<ProvingKey>,
    engines: Arc<dyn Engines>,
    keys: Arc<KeyCache>,
}

impl ProofTask {
    pub(super) fn new(key: Arc<ProvingKey>, engines: Arc<dyn Engines>, keys: Arc<KeyCache>) -> Self {
        let name = format!("groth16, domain 2^{}, {} wires", key.domain().ilog2(), key.wires());
        ProofTask { name: name.into(), key, engines, keys }
    }

    /// Proves and verifies a witness. The outer error is the device's, the inner one the witness's.
    fn prove_item(&self, state: &mut State, item: &Item) -> DeviceResult<Result<Proved>> {
        let blinding = match item.fixed {
            Some((r, s)) => Ok(Blinding { r: Zeroizing::new(r), s: Zeroizing::new(s) }),
            None => Blinding::random(),
        };
        let blinding = match blinding {
            Ok(blinding) => blinding,
            Err(error) => return Ok(Err(error)),
        };
        let witness = match item.source.get(&self.key) {
            Ok(witness) => witness,
            Err(error) => return Ok(Err(error)),
        };
        let proof = match state.maker.make(&self.key, &witness, &blinding.r, &blinding.s)? {
            Ok(proof) => proof,
            Err(error) => return Ok(Err(error)),
        };
        let public = witness.values()[1..=self.key.public()].to_vec();
        if self.key.verifying.verify(&proof, &public).is_ok() {
            return Ok(Ok(Proved { proof, public }));
        }
        // Either the device is wrong, or no device could prove this witness: the reference on the host decides.
        tracing::debug!(device = %state.device, "a proof does not verify: proving it on the host");
        match self.is_provable(&witness, &public) {
            Ok(true) => Err(DeviceError::BadResult {
                device: state.device.clone(),
                operation: "proving a witness".into(),
                detail: "the proof does not verify, and the host's proof of the same witness does".into(),
            }),
            Ok(false) => Ok(Err(Error::Unprovable)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Returns whether a proof by the reference on the host verifies.
    fn is_provable(&self, witness: &Witness, public: &[Fr]) -> Result<bool> {
        let Blinding { r, s } = Blinding::random()?;
        let engine = CpuEngine::new(DeviceId::from("cpu"));
        let proof =
            Worker::new(engine, &self.key, &Resident::default())?.make(&self.key, witness, &r, &s)??;
        Ok(self.key.verifying.verify(&proof, public).is_ok())
    }
}

/// A worker's engine.
pub(crate) struct State {
    device: DeviceId,
    maker: Box<dyn ProofMaker>,
}

impl Task for ProofTask {
    type Input = Item;
    type Output = Result<Proved>;
    type State = State;

    fn name(&self) -> &str {
        &self.name
    }

    fn can_use(&self, device: &Device) -> bool {
        self.engines.can_use(device)
    }

    fn prepare(&self, device: &Device) -> DeviceResult<State> {
        self.prepare_with(device, &Resident::default())
    }

    fn prepare_with(&self, device: &Device, _: &Resident) -> DeviceResult<State> {
        let maker = self.keys.prepare(device, |shared| self.engines.open(device, &self.key, shared))?;
        Ok(State { device: device.id().clone(), maker })
    }

    fn workers(&self, device: &Device) -> usize {
        self.engines.workers(device)
    }

    fn may_hang(&self, device: &Device) -> bool {
        device.describe().kind != DeviceKind::Cpu
    }

    fn is_divisible(&self, _: &Device) -> bool {
        true
    }

    fn run<'s>(
        &self,
        state: &'s mut State,
        chunk: &Chunk<'_, Item>,
        results: &mut Results<'s, Result<Proved>>,
    ) -> DeviceResult<()> {
        while let Some(claimed) = chunk.claim(results, 1) {
            // A clone, so that a device that hangs does not hold the memory of the run's caller.
            for index in claimed {
                let item = chunk.read(|items| items[index].clone())?;
                let result = self.prove_item(state, &item)?;
                results.push(match &item.finished {
                    Some((finished, index)) => finished.set(*index, result),
                    None => result,
                });
            }
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod test {
    use super::*;

    /// The niceness of the calling thread, which is the seventeenth field after the thread's name.
    fn niceness() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn threads_of_the_processor_have_a_low_priority_beside_other_devices_only() {
        let own = niceness();
        for (has_low_priority, expected) in [(false, own), (true, own.max(10))] {
            let threads = threads_of(&Device::cpu(), has_low_priority).unwrap();
            let found = threads.broadcast(|_| niceness());
            assert!(found.iter().all(|&niceness| niceness == expected), "{found:?}, {expected} expected");
        }
    }
}
