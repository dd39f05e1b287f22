//! Several processors, which are this one under other names, and engines of processors that fail on purpose.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use ark_bn254::{Fq, Fq2, Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use ark_ff::{BigInt, Field};
use evener_device::{
    Description, Device, DeviceId, DeviceKind, Error as DeviceError, Result as DeviceResult,
    backend::{Backend, Source},
};
use evener_schedule::Resident;
use evener_zk::{
    Result,
    groth16::{
        CpuBases, CpuEngine, Engine, Engines, Evaluations, ProofMaker, ProvingKey, Reduction, Secrets,
        Witness, Worker,
    },
};

/// This processor under another name.
#[derive(Debug)]
struct Renamed {
    under: Arc<dyn Source>,
    description: Description,
}

impl Source for Renamed {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> DeviceResult<Arc<dyn Backend>> {
        self.under.open()
    }

    fn split(&self, sizes: &[u32]) -> DeviceResult<Vec<Arc<dyn Source>>> {
        self.under.split(sizes)
    }
}

/// A processor under this name, as a device of some kind.
pub(crate) fn renamed(id: &str, kind: DeviceKind) -> Device {
    let cpu = Device::cpu();
    let description =
        Description { id: DeviceId::from(id), kind, compute_units: Some(1), ..cpu.describe().clone() };
    Device::from_source(Arc::new(Renamed { under: cpu.source().clone(), description }))
}

/// So many processors of one core.
pub(crate) fn processors(count: usize) -> Vec<Device> {
    (0..count).map(|index| renamed(&format!("processor:{index}"), DeviceKind::Cpu)).collect()
}

/// Ends a test that takes too long, on a thread of its own.
pub(crate) fn within<R: Send + 'static>(
    limit: Duration,
    about: &str,
    test: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(test()));
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{about}: not done after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err());
        }
    }
}

/// A fault of an engine's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineFault {
    /// The device is lost, until it is opened again.
    Lose,
    /// The device is lost for good.
    Destroy,
    /// The operation fails with too little memory.
    OutOfMemory,
    /// One word of what the operation reads or writes is changed.
    Flip,
    /// The operation does not end before [`EngineFaults::release`].
    Hang,
    /// The operation panics.
    Panic,
}

/// The planned faults of a device's engines. Operations are counted from 1.
#[derive(Debug, Default)]
pub(crate) struct EngineFaults {
    plan: Mutex<BTreeMap<u64, EngineFault>>,
    operations: AtomicU64,
    openings: AtomicU64,
    lost_opening: AtomicU64,
    flips: AtomicU64,
    /// Whether the memory of each opening's engine depends on a witness.
    has_secrets: Mutex<BTreeMap<u64, bool>>,
    is_hung: Mutex<bool>,
    released: Condvar,
}

impl EngineFaults {
    /// Plans a fault for the operation of this number.
    pub(crate) fn at(&self, operation: u64, fault: EngineFault) {
        self.plan.lock().unwrap().insert(operation, fault);
    }

    pub(crate) fn operations(&self) -> u64 {
        self.operations.load(SeqCst)
    }

    /// Number of words that were changed.
    pub(crate) fn flips(&self) -> u64 {
        self.flips.load(SeqCst)
    }

    /// Whether an engine that is not lost has memory that depends on a witness.
    pub(crate) fn has_secrets(&self) -> bool {
        let lost = self.lost_opening.load(SeqCst);
        self.has_secrets.lock().unwrap().iter().any(|(&opening, &has)| has && opening > lost)
    }

    pub(crate) fn is_hung(&self) -> bool {
        *self.is_hung.lock().unwrap()
    }

    /// Ends a hang.
    pub(crate) fn release(&self) {
        *self.is_hung.lock().unwrap() = false;
        self.released.notify_all();
    }
}

/// An engine of the processor with faults.
pub(crate) struct FaultyEngine {
    under: CpuEngine,
    device: DeviceId,
    faults: Arc<EngineFaults>,
    opening: u64,
    /// The next sum is wrong.
    flip_sum: bool,
}

impl FaultyEngine {
    /// Counts an operation. Returns whether its data is to be changed.
    fn operation(&self, name: &str) -> DeviceResult<bool> {
        let faults = &self.faults;
        let number = faults.operations.fetch_add(1, SeqCst) + 1;
        let fault = faults.plan.lock().unwrap().remove(&number);
        let (device, operation) = (self.device.clone(), name.to_owned());
        match fault {
            Some(EngineFault::Lose) => drop(faults.lost_opening.fetch_max(self.opening, SeqCst)),
            Some(EngineFault::Destroy) => faults.lost_opening.store(u64::MAX, SeqCst),
            Some(EngineFault::OutOfMemory) => {
                let detail = "on purpose".into();
                return Err(DeviceError::OutOfMemory {
                    device,
                    operation,
                    requested: 0,
                    available: None,
                    detail,
                });
            }
            Some(EngineFault::Hang) => {
                let mut is_hung = faults.is_hung.lock().unwrap();
                *is_hung = true;
                drop(faults.released.wait_while(is_hung, |is_hung| *is_hung).unwrap());
            }
            Some(EngineFault::Panic) => panic!("{operation}: a panic on purpose"),
            Some(EngineFault::Flip) | None => {}
        }
        if self.opening <= faults.lost_opening.load(SeqCst) {
            return Err(DeviceError::Lost { device, operation, detail: "on purpose".into() });
        }
        Ok(fault == Some(EngineFault::Flip))
    }

    fn set_secrets(&self, has: bool) {
        self.faults.has_secrets.lock().unwrap().insert(self.opening, has);
    }

    fn flipped(&self) {
        self.faults.flips.fetch_add(1, SeqCst);
    }
}

/// Changes one bit of a scalar in the middle.
fn flip(scalars: &mut [BigInt<4>]) {
    let middle = scalars.len() / 2;
    scalars[middle].0[0] ^= 1;
}

impl Engine for FaultyEngine {
    type G1Bases = CpuBases<G1Affine>;
    type G2Bases = CpuBases<G2Affine>;
    type Constraints = ();
    type Scalars = Secrets<BigInt<4>>;
    type Values = Evaluations;
    type G1Sum = G1Projective;
    type G2Sum = G2Projective;

    fn load_constraints(&mut self, key: &ProvingKey) -> DeviceResult<()> {
        self.operation("loading constraints")?;
        self.under.load_constraints(key)
    }

    fn load_g1(&mut self, points: &Arc<[G1Affine]>, first: usize) -> DeviceResult<Self::G1Bases> {
        self.operation("loading points")?;
        self.under.load_g1(points, first)
    }

    fn load_g2(&mut self, points: &Arc<[G2Affine]>, first: usize) -> DeviceResult<Self::G2Bases> {
        self.operation("loading points")?;
        self.under.load_g2(points, first)
    }

    fn load_scalars(&mut self, scalars: &[Fr]) -> DeviceResult<Self::Scalars> {
        let is_wrong = self.operation("loading scalars")?;
        self.set_secrets(true);
        let mut loaded = self.under.load_scalars(scalars)?;
        if is_wrong {
            self.flipped();
            flip(&mut loaded);
        }
        Ok(loaded)
    }

    fn evaluate(
        &mut self,
        constraints: &(),
        key: &ProvingKey,
        witness: &Witness,
        wires: &Self::Scalars,
    ) -> DeviceResult<Result<Evaluations>> {
        let is_wrong = self.operation("evaluating")?;
        let mut values = self.under.evaluate(constraints, key, witness, wires)?;
        if let Ok(values) = values.as_mut()
            && is_wrong
        {
            self.flipped();
            let middle = values.a.len() / 2;
            values.a[middle] += Fr::ONE;
        }
        Ok(values)
    }

    fn check(&mut self, key: &ProvingKey, witness: &Witness) -> DeviceResult<Result<()>> {
        self.operation("checking the witness")?;
        self.under.check(key, witness)
    }

    fn quotient(
        &mut self,
        constraints: &(),
        values: Evaluations,
        reduction: Reduction,
    ) -> DeviceResult<Self::Scalars> {
        let is_wrong = self.operation("computing the quotient")?;
        let mut scalars = self.under.quotient(constraints, values, reduction)?;
        if is_wrong {
            self.flipped();
            flip(&mut scalars);
        }
        Ok(scalars)
    }

    fn read_scalars(&mut self, scalars: &Self::Scalars) -> DeviceResult<Secrets<Fr>> {
        let is_wrong = self.operation("reading scalars")?;
        let mut read = self.under.read_scalars(scalars)?;
        if is_wrong {
            self.flipped();
            let middle = read.len() / 2;
            read[middle] += Fr::ONE;
        }
        Ok(read)
    }

    fn begin_g1(
        &mut self,
        points: &Self::G1Bases,
        range: Range<usize>,
        scalars: &Self::Scalars,
    ) -> DeviceResult<G1Projective> {
        self.flip_sum |= self.operation("beginning a sum")?;
        self.under.begin_g1(points, range, scalars)
    }

    fn begin_g2(
        &mut self,
        points: &Self::G2Bases,
        range: Range<usize>,
        scalars: &Self::Scalars,
    ) -> DeviceResult<G2Projective> {
        self.flip_sum |= self.operation("beginning a sum")?;
        self.under.begin_g2(points, range, scalars)
    }

    fn finish_g1(&mut self, sum: G1Projective) -> DeviceResult<G1Projective> {
        self.flip_sum |= self.operation("finishing a sum")?;
        let mut sum = self.under.finish_g1(sum)?;
        if std::mem::take(&mut self.flip_sum) {
            self.flipped();
            sum.x += Fq::ONE;
        }
        Ok(sum)
    }

    fn finish_g2(&mut self, sum: G2Projective) -> DeviceResult<G2Projective> {
        self.flip_sum |= self.operation("finishing a sum")?;
        let mut sum = self.under.finish_g2(sum)?;
        if std::mem::take(&mut self.flip_sum) {
            self.flipped();
            sum.y += Fq2::ONE;
        }
        Ok(sum)
    }

    fn wait(&mut self) -> DeviceResult<()> {
        self.under.wait()
    }

    fn erase(&mut self) -> DeviceResult<()> {
        self.flip_sum = false;
        self.operation("zeroing memory")?;
        self.set_secrets(false);
        self.under.erase()
    }
}

/// Engines with faults, for devices that are processors.
pub(crate) struct FaultyEngines {
    devices: Vec<(DeviceId, Arc<EngineFaults>)>,
}

impl FaultyEngines {
    pub(crate) fn new(devices: &[Device]) -> Arc<FaultyEngines> {
        let devices = devices.iter().map(|device| (device.id().clone(), Arc::default())).collect();
        Arc::new(FaultyEngines { devices })
    }

    pub(crate) fn of(&self, index: usize) -> &EngineFaults {
        &self.devices[index].1
    }

    /// Waits until no engine has memory that depends on a witness: a worker that was not waited for may take a moment.
    pub(crate) fn assert_no_secrets(&self, about: &str) {
        for _ in 0..2000 {
            if !self.devices.iter().any(|(_, faults)| faults.has_secrets()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{about}: a device still has secrets");
    }
}

impl Engines for FaultyEngines {
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
        let (id, faults) = self.devices.iter().find(|(id, _)| id == device.id()).unwrap().clone();
        let opening = faults.openings.fetch_add(1, SeqCst) + 1;
        let under = CpuEngine::new(id.clone());
        let engine = FaultyEngine { under, device: id, faults, opening, flip_sum: false };
        engine.operation("opening")?;
        Ok(Box::new(Worker::new(engine, key, resident)?))
    }
}
