//! What is there, how strong is it, and how does code run on it?
//!
//! The ground floor of Evener: it finds the compute devices of a machine, describes and measures them,
//! splits them into partitions, and runs kernels on all of them through one interface.

mod backend;
mod buffer;
mod cache;
mod describe;
mod device;
mod discover;
mod error;
mod kernel;
mod launch;
mod measure;
mod stream;

/// CUDA C without a card.
pub mod cuda {
    pub use crate::backend::cuda::compile_for;
}

pub use backend::{Contents, Direction, MemoryUse};
pub use buffer::{Argument, Buffer, HostBuffer};
pub use cache::CACHE_VARIABLE;
pub use describe::{Api, Capabilities, Description, DeviceId, Features, Kind};
pub use device::Device;
pub use discover::{Absent, Inventory};
pub use error::{Error, Result, Severity};
pub use kernel::{Access, Binding, Bound, BoxError, Extent, Kernel, Program};
pub use launch::Launch;
pub use measure::Rates;
pub use stream::{Download, Mark, Stream, Timestamp, Transfer};
