//! Data-parallel training over unlike devices: every device takes the part of each batch that its speed allows.
//!
//! No framework is in here. A model is anything behind [`Replica`], a small trait: gradients of some samples, a step with an
//! averaged gradient, and its state as flat slices. A [`Trainer`] runs one replica per worker, which is a thread or, under
//! `mpirun`, a process. In lockstep the result is that of one worker with the whole batch: gradients are averaged by
//! samples, in a fixed order, and every sample is used exactly once an epoch, also when workers die and return.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use evener_train::{Trainer, testing::{Mlp, Optimizer, Regression}};
//!
//! let data = Arc::new(Regression::generated(350, 1));
//! let samples = data.clone();
//! let trainer = Trainer::builder(move |worker| {
//!     // A made-up time: the second worker is two and a half times slower than the first.
//!     let per_sample = [1e-3, 2.5e-3][worker.rank];
//!     let network = Mlp::new(samples.clone(), 8, Optimizer::Adam { learning_rate: 0.01 }, 7);
//!     Ok(network.with_hook(move |batch| Some(Duration::from_secs_f64(per_sample * batch.len() as f64))))
//! });
//! let trained = trainer.data(data).batch(35).workers(2).max_grad_norm(1.0).build()?.run(10)?;
//! let batches: Vec<u64> = trained.report.workers.iter().map(|worker| worker.batch).collect();
//! assert_eq!(batches, [25, 10]);
//! assert!(trained.report.epoch_losses[9] < trained.report.epoch_losses[0]);
//! println!("{}", trained.report);
//! # Ok::<(), evener_train::TrainError>(())
//! ```
//!
//! # How it decides
//! Each rank appends what it did (weight, samples, compute time, squared norm, loss) to its gradient: one collective a step,
//! after which every rank feeds the same numbers to an equal copy of the same state machines and so decides the same.
//! [`share`] finds the batches, [`ledger`] the samples, [`membership`] who is there, [`noise`] the batch size and
//! [`cadence`] the number of local steps. [`machines`] puts them together, and [`sim`] drives them in virtual time.
//!
//! # What it survives
//! A worker that panics, fails, is killed or hangs is noticed within half of the [timeout](TrainerBuilder::timeout), and the
//! others go on from the last commit with the same global batch within the timeout. A worker that answers again, or is
//! [restarted](TrainerBuilder::restarts), gets the state at a commit. A run that ends altogether continues from its
//! [`checkpoint`].

pub mod cadence;
pub mod checkpoint;
mod ddp;
mod error;
pub mod ledger;
pub mod machines;
pub mod membership;
pub mod noise;
mod replica;
pub mod share;
pub mod sim;
pub mod testing;
mod trainer;

pub use ddp::Ddp;
pub use error::{Result, TrainError, check_len};
pub use replica::{Computed, Layout, Part, Replica, ReplicaError, Scalar, Step, Tensor};
pub use trainer::{
    Dataset, Handle, Metrics, Policy, RankMetrics, Report, Trained, Trainer, TrainerBuilder, Worker,
    WorkerFailure, WorkerReport,
};
