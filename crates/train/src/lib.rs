//! Data-parallel training over unlike devices: every device takes the part of each batch that its speed allows.

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
