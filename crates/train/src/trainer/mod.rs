//! Trainers: workers that train one model together.

mod engine;
mod metrics;
mod recover;
mod rendezvous;
mod report;
mod settings;
mod state;
mod supervise;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use evener_device::{Device, Inventory};
use evener_mesh::comm::World;

use self::{
    engine::Surroundings,
    rendezvous::{InFolder, InProcess, Nowhere, Rendezvous},
    settings::Settings,
    supervise::{ReplicaFn, Supervisor},
};
pub use self::{
    metrics::{Metrics, RankMetrics},
    report::{Report, WorkerFailure, WorkerReport},
    settings::Policy,
};
use crate::{
    cadence::OuterStep,
    error::{Result, TrainError},
    machines::BatchGrowth,
    replica::{Replica, ReplicaError},
};

/// A worker, as the function that creates its replica sees it.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Its number, from 0.
    pub rank: usize,
    /// Number of workers.
    pub size: usize,
    /// Its device, if devices were chosen.
    pub device: Option<Device>,
}

/// Something with a number of samples. Replicas get sample numbers, and read the samples themselves.
pub trait Dataset {
    /// Returns the number of samples.
    fn samples(&self) -> u64;
}

impl Dataset for u64 {
    fn samples(&self) -> u64 {
        *self
    }
}

impl<T> Dataset for Vec<T> {
    fn samples(&self) -> u64 {
        self.len() as u64
    }
}

impl<T> Dataset for [T] {
    fn samples(&self) -> u64 {
        self.len() as u64
    }
}

impl<T: Dataset + ?Sized> Dataset for &T {
    fn samples(&self) -> u64 {
        (**self).samples()
    }
}

impl<T: Dataset + ?Sized> Dataset for Arc<T> {
    fn samples(&self) -> u64 {
        (**self).samples()
    }
}

impl Dataset for crate::testing::Regression {
    fn samples(&self) -> u64 {
        self.len() as u64
    }
}

/// A model after training.
#[derive(Debug)]
pub struct Trained<R> {
    /// The replica of the first worker that was left. In lockstep all replicas are equal.
    pub replica: R,
    /// What the run has done.
    pub report: Report,
}

/// Trains one model on several workers. [`Trainer::builder`] makes one.
pub struct Trainer<R: Replica> {
    settings: Settings,
    replica: ReplicaFn<R>,
    workers: usize,
    devices: Vec<Device>,
    world: Option<World>,
}

/// Gathers the settings of a [`Trainer`].
#[must_use = "a builder does nothing until it is built"]
pub struct TrainerBuilder<R: Replica> {
    settings: Settings,
    replica: ReplicaFn<R>,
    workers: Option<usize>,
    selection: Option<String>,
    processes: Option<bool>,
    world: Option<World>,
}

/// Number of runs that this process has started.
static RUNS: AtomicU64 = AtomicU64::new(0);

impl<R: Replica> Trainer<R> {
    /// Begins a trainer. The function creates a worker's replica, on the thread that will use it; it is called again for
    /// a worker that is restarted. Initial parameters may differ: the first worker's count.
    pub fn builder(
        replica: impl Fn(&Worker) -> Result<R, ReplicaError> + Send + Sync + 'static,
    ) -> TrainerBuilder<R> {
        TrainerBuilder {
            settings: Settings::default(),
            replica: Arc::new(replica),
            workers: None,
            selection: None,
            processes: None,
            world: None,
        }
    }

    /// Trains until this many epochs are complete, those of the checkpoint included, and returns the model.
    pub fn run(self, epochs: u64) -> Result<Trained<R>> {
        self.start(epochs)?.join()
    }

    /// Starts training, and returns a handle.
    pub fn start(mut self, epochs: u64) -> Result<Handle<R>> {
        self.settings.epochs = epochs;
        let cancel = Arc::new(AtomicBool::new(false));
        let (sender, metrics) = channel();
        let supervisor = self.supervisor(cancel.clone(), sender)?;
        let thread = thread::Builder::new().name("evener-train".into()).spawn(move || supervisor.run());
        let thread = thread.map_err(|error| TrainError::Setting {
            setting: "workers",
            detail: format!("the system cannot start a thread: {error}"),
        })?;
        Ok(Handle { thread, metrics, ended: AtomicBool::new(false), cancel })
    }

    fn supervisor(self, cancel: Arc<AtomicBool>, metrics: Sender<Option<Metrics>>) -> Result<Supervisor<R>> {
        let run = RUNS.fetch_add(1, SeqCst);
        let settings = Arc::new(self.settings);
        let (worlds, rendezvous, kind): (Vec<World>, Arc<dyn Rendezvous>, _) = match self.world {
            Some(world) => {
                let rendezvous: Arc<dyn Rendezvous> = match &settings.checkpoint {
                    Some(folder) => {
                        let path = folder.join("rendezvous");
                        let opened = InFolder::new(&path);
                        let detail = |error: std::io::Error| error.to_string();
                        let failed = |error| TrainError::Checkpoint { path, detail: detail(error) };
                        Arc::new(opened.map_err(failed)?)
                    }
                    None => Arc::new(Nowhere),
                };
                (vec![world], rendezvous, "process")
            }
            None => {
                let worlds = World::local_with_timeout(self.workers, settings.timeout);
                (worlds, Arc::new(InProcess::default()), "thread")
            }
        };
        let around = worlds
            .into_iter()
            .map(|world| Surroundings {
                rank: world.rank(),
                world: Arc::new(world),
                run,
                settings: settings.clone(),
                rendezvous: rendezvous.clone(),
                cancel: cancel.clone(),
                metrics: metrics.clone(),
            })
            .collect();
        Ok(Supervisor { replica: self.replica, around, devices: self.devices, kind })
    }
}

impl<R: Replica> TrainerBuilder<R> {
    /// Sets the samples, which are numbered from 0. Every sample is used exactly once an epoch.
    pub fn data(mut self, data: impl Dataset) -> Self {
        self.settings.samples = data.samples();
        self
    }

    /// Sets the samples per step, over all workers. The default is 32.
    pub fn batch(mut self, samples: u64) -> Self {
        self.settings.batch = samples;
        self
    }

    /// Sets the seed of the order of samples. The default is 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Sets the number of workers, which are threads of this process. The default is one per device, or one.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Starts one worker per selected device, for example `all` or `cpu[1,1]`. The function that creates replicas finds
    /// its device in [`Worker::device`].
    pub fn devices(mut self, selection: impl Into<String>) -> Self {
        self.selection = Some(selection.into());
        self
    }

    /// Sets whether the workers are processes that an MPI launcher has started, one each. By default they are if there
    /// was such a launcher.
    pub fn processes(mut self, processes: bool) -> Self {
        self.processes = Some(processes);
        self
    }

    /// Uses a world that the program has joined, whose ranks are the workers. Its timeout is not used.
    pub fn world(mut self, world: World) -> Self {
        self.world = Some(world);
        self
    }

    /// Sets within which time training goes on after a worker has died or hung. A worker that is late by half of this is
    /// taken as gone, so it must be more than twice the longest step. The default is a minute.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Sets when workers exchange. The default is [`Policy::Lockstep`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// Sets the step that follows local steps. The default is [`OuterStep::Identity`].
    pub fn outer_step(mut self, outer: OuterStep) -> Self {
        self.settings.outer = outer;
        self
    }

    /// Sets how much of the compute time the exchange may take before [`Policy::Cadence`] makes more local steps. The
    /// default is 0.1.
    pub fn overhead_target(mut self, part: f64) -> Self {
        self.settings.overhead_target = part;
        self
    }

    /// Sets the largest number of local steps. The default is 64.
    pub fn max_lead(mut self, steps: u64) -> Self {
        self.settings.max_lead = steps;
        self
    }

    /// Limits the norm of the averaged gradient.
    pub fn max_grad_norm(mut self, norm: f64) -> Self {
        self.settings.max_grad_norm = Some(norm);
        self
    }

    /// Sets the workers' speeds, in samples per second or any other unit, instead of measuring them at the start.
    pub fn speed_hint(mut self, speeds: impl Into<Vec<f64>>) -> Self {
        self.settings.speed_hint = Some(speeds.into());
        self
    }

    /// Fixes the workers' samples per step, as long as all of them are there.
    pub fn shares(mut self, shares: impl Into<Vec<u64>>) -> Self {
        self.settings.shares = Some(shares.into());
        self
    }

    /// Limits the workers' samples per step.
    pub fn most_per_worker(mut self, samples: impl Into<Vec<u64>>) -> Self {
        self.settings.most = Some(samples.into());
        self
    }

    /// Lets the batch grow with the noise of the gradients, at the ends of epochs. The learning rate follows.
    pub fn batch_growth(mut self, growth: BatchGrowth) -> Self {
        self.settings.growth = Some(growth);
        self
    }

    /// Writes checkpoints to this folder, and continues from the latest one there, if any.
    pub fn checkpoint(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings.checkpoint = Some(folder.into());
        self
    }

    /// Sets the steps between checkpoints. The default is 100. There is always one at the end.
    pub fn checkpoint_every(mut self, steps: u64) -> Self {
        self.settings.checkpoint_every = steps;
        self
    }

    /// Sets how many failed workers are started again, all together. The default is none. A worker that hung and answers
    /// again always returns.
    pub fn restarts(mut self, restarts: u32) -> Self {
        self.settings.restarts = restarts;
        self
    }

    /// Measures each worker alone at the start, so that the report has the efficiency against the sum of these speeds.
    pub fn measure_alone(mut self) -> Self {
        self.settings.measure_alone = true;
        self
    }

    /// Checks the settings, and finds devices and other processes.
    pub fn build(self) -> Result<Trainer<R>> {
        let TrainerBuilder { settings, replica, workers, selection, processes, world } = self;
        let world = match (world, processes.unwrap_or_else(World::was_launched_by_mpi)) {
            (Some(world), _) => Some(world),
            (None, true) => Some(World::mpi(settings.timeout)?),
            (None, false) => None,
        };
        let mut devices = Vec::new();
        if let Some(selection) = selection {
            let found = Inventory::discover().select(&selection);
            devices = found
                .map_err(|error| TrainError::Setting { setting: "devices", detail: error.to_string() })?;
        }
        let threads = workers.unwrap_or(devices.len().max(1));
        if let Some(world) = &world {
            // Each process takes one of the devices that it sees.
            if !devices.is_empty() {
                let device = devices[world.rank() % devices.len()].clone();
                devices = vec![device; world.size()];
            }
        } else if !devices.is_empty() && devices.len() != threads {
            let detail = format!("{threads} workers for {} devices: leave the number out", devices.len());
            return Err(TrainError::Setting { setting: "workers", detail });
        }
        let workers = world.as_ref().map_or(threads, World::size);
        settings.check(workers)?;
        Ok(Trainer { settings, replica, workers, devices, world })
    }
}

/// A run in progress.
#[derive(Debug)]
pub struct Handle<R: Replica> {
    thread: JoinHandle<Result<Trained<R>>>,
    metrics: Receiver<Option<Metrics>>,
    /// Whether the end of the metrics was received.
    ended: AtomicBool,
    cancel: Arc<AtomicBool>,
}

impl<R: Replica> Handle<R> {
    /// Waits for the end, and returns the model. Fails if training could not go on; if it went on without some workers,
    /// [`Report::failures`] says which failed.
    pub fn join(self) -> Result<Trained<R>> {
        self.thread.join().unwrap_or_else(|_| {
            let detail = "the supervisor panicked".into();
            Err(TrainError::Setting { setting: "workers", detail })
        })
    }

    /// Waits for the next round, and returns how training goes. Returns `None` at the end.
    pub fn next_metrics(&self) -> Option<Metrics> {
        if self.ended.load(SeqCst) {
            return None;
        }
        let received = self.metrics.recv().ok().flatten();
        self.ended.store(received.is_none(), SeqCst);
        received
    }

    /// Returns how training goes if a round has ended since, without waiting.
    pub fn poll_metrics(&self) -> Option<Metrics> {
        if self.ended.load(SeqCst) {
            return None;
        }
        let received = self.metrics.try_recv().ok()?;
        self.ended.store(received.is_none(), SeqCst);
        received
    }

    /// Ends training after the round in progress, which is committed. A checkpoint is written if there is a folder.
    pub fn cancel(&self) {
        self.cancel.store(true, SeqCst);
    }

    /// Returns whether the run has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}
