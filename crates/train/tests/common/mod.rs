//! Networks whose time is virtual, and which can be watched.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use evener_train::{
    Computed, Layout, Part, Replica, ReplicaError, Step, Trained, Trainer, TrainerBuilder,
    testing::{Mlp, Optimizer, Regression},
};

pub const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.05, momentum: 0.9 };
pub const ADAM: Optimizer = Optimizer::Adam { learning_rate: 0.01 };

/// What happens in a replica, by its number of steps.
pub type Fault = Arc<dyn Fn(usize, u64) + Send + Sync>;

/// A network that reports its parameters after every step.
pub struct Watched {
    pub network: Mlp,
    rank: usize,
    steps: u64,
    seen: Arc<Seen>,
    fault: Option<Fault>,
}

/// What all replicas of a run did.
#[derive(Default)]
pub struct Seen {
    /// Rank, step number, parameters after it.
    pub steps: Mutex<Vec<(usize, u64, Vec<f64>)>>,
    /// Rank, samples of every batch.
    pub batches: Mutex<Vec<(usize, Vec<u64>)>>,
}

impl Seen {
    /// Panics unless all ranks that made a step had the same parameters after it, bit for bit.
    pub fn assert_replicas_equal(&self) {
        let steps = self.steps.lock().unwrap();
        let mut first = std::collections::HashMap::new();
        for (rank, step, parameters) in &*steps {
            let bits: Vec<u64> = parameters.iter().map(|it| it.to_bits()).collect();
            let (other, expected) = first.entry(*step).or_insert_with(|| (*rank, bits.clone()));
            assert_eq!(*expected, bits, "ranks {other} and {rank} differ after step {step}");
        }
    }
}

impl Replica for Watched {
    type Element = f64;

    fn layout(&self) -> Layout {
        self.network.layout()
    }

    fn gradients(&mut self, samples: &[u64], gradient: &mut [f64]) -> Result<Computed, ReplicaError> {
        if let Some(fault) = &self.fault {
            fault(self.rank, self.steps);
        }
        self.seen.batches.lock().unwrap().push((self.rank, samples.to_vec()));
        self.network.gradients(samples, gradient)
    }

    fn apply(&mut self, gradient: &[f64], step: Step) -> Result<(), ReplicaError> {
        self.steps = step.number + 1;
        self.network.apply(gradient, step)?;
        self.seen.steps.lock().unwrap().push((self.rank, step.number, self.network.parameters().to_vec()));
        Ok(())
    }

    fn read(&self, part: Part, into: &mut [f64]) -> Result<(), ReplicaError> {
        self.network.read(part, into)
    }

    fn write(&mut self, part: Part, from: &[f64]) -> Result<(), ReplicaError> {
        self.network.write(part, from)
    }

    fn micro_batch(&self) -> u64 {
        self.network.micro_batch()
    }

    fn least_share(&self) -> u64 {
        self.network.least_share()
    }
}

/// How the networks of a run are made.
#[derive(Clone)]
pub struct Networks {
    pub data: Arc<Regression>,
    pub optimizer: Optimizer,
    pub batch_norm: bool,
    pub micro_batch: u64,
    /// Virtual seconds per sample of each rank.
    pub speeds: Vec<f64>,
    pub fault: Option<Fault>,
}

impl Networks {
    pub fn new(samples: usize, speeds: &[f64]) -> Self {
        Networks {
            data: Arc::new(Regression::generated(samples, 11)),
            optimizer: SGD,
            batch_norm: false,
            micro_batch: u64::MAX,
            speeds: speeds.to_vec(),
            fault: None,
        }
    }

    pub fn with_fault(&self, fault: impl Fn(usize, u64) + Send + Sync + 'static) -> Self {
        Networks { fault: Some(Arc::new(fault)), ..self.clone() }
    }

    /// Begins a trainer of threads.
    pub fn trainer(&self) -> (TrainerBuilder<Watched>, Arc<Seen>) {
        let (networks, seen) = (self.clone(), Arc::new(Seen::default()));
        let watched = seen.clone();
        let builder = Trainer::builder(move |worker| {
            let speed = networks.speeds[worker.rank];
            let network = Mlp::new(networks.data.clone(), 6, networks.optimizer, worker.rank as u64)
                .with_micro_batch(networks.micro_batch)
                .with_hook(move |samples| Some(Duration::from_secs_f64(speed * samples.len() as f64)));
            let network = if networks.batch_norm { network.with_batch_norm() } else { network };
            let (rank, fault) = (worker.rank, networks.fault.clone());
            Ok(Watched { network, rank, steps: 0, seen: watched.clone(), fault })
        });
        let builder = builder.data(self.data.clone()).workers(self.speeds.len()).processes(false);
        (builder.timeout(Duration::from_secs(10)), seen)
    }

    /// Trains on one worker, as the others are compared with.
    pub fn alone(&self, batch: u64, epochs: u64) -> Trained<Watched> {
        let one = Networks { speeds: vec![1e-3], fault: None, ..self.clone() };
        one.trainer().0.batch(batch).build().unwrap().run(epochs).unwrap()
    }
}

/// The largest difference of two vectors, relative to the largest number.
pub fn difference(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    let size = one.iter().map(|it| it.abs()).fold(0.0, f64::max);
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max) / size
}

pub fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|it| it.to_bits()).collect()
}
