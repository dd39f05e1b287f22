//! Data-parallel training over unlike devices: every device takes the part of each batch that its speed allows.

pub mod cadence;
mod error;
pub mod ledger;
pub mod machines;
pub mod membership;
pub mod noise;
mod replica;
pub mod share;
pub mod testing;

pub use error::{Result, TrainError, check_len};
pub use replica::{Computed, Layout, Part, Replica, ReplicaError, Scalar, Step, Tensor};
