//! Devices of a machine: what is there, how fast is it, and how does code run on it?
//!
//! This crate finds the compute devices of a machine, describes and measures them, splits them into partitions, and runs
//! kernels on all of them through one interface.
//!
//! # Cargo features
//!
//! Both features are enabled by default. Without them the processor is the only device.
//!
//! - `cuda`: NVIDIA cards through the CUDA driver, which is loaded at run time.
//! - `wgpu`: GPUs through Vulkan, Metal, Direct3D 12 or OpenGL.

// The back ends share code that the processor alone does not use.
#![cfg_attr(not(all(feature = "cuda", feature = "wgpu")), allow(dead_code))]

#[doc(hidden)]
pub mod affinity;
mod any_buffer;
pub mod backend;
mod buffer;
mod describe;
mod device;
mod discover;
mod disk_cache;
mod dtype;
mod error;
#[cfg(test)]
mod fake;
mod graph;
mod kernel;
mod launch;
mod measure;
mod module;
pub mod remote;
mod score;
#[doc(hidden)]
pub mod seconds;
mod select;
mod stream;
mod telemetry;
pub mod testing;
#[doc(hidden)]
pub mod thread_stack;

/// Compiling CUDA C without a card, and the primary context of a CUDA device for other libraries in the process.
pub mod cuda {
    pub use crate::backend::cuda::primary_context::{ContextGuard, PrimaryContext};
    #[cfg(feature = "cuda")]
    pub use crate::backend::cuda::{compile_for, compile_kernel};
}

/// What [`kernel_fn!`] expands to.
#[doc(hidden)]
pub use remote::registry as kernel_fns;

pub use any_buffer::AnyBuffer;
#[doc(hidden)]
pub use backend::copy::copy_with;
#[cfg(feature = "wgpu")]
#[doc(hidden)]
pub use backend::wgpu::check_wgsl;
#[cfg(feature = "wgpu")]
pub use backend::wgpu::wgpu_features;
pub use backend::{Direction, MemoryUsage, copy::copy_parallel, dlpack};
pub use buffer::{Argument, Buffer, HostBuffer, SharedBuffer, StagingBuffer};
pub use describe::{Api, Capabilities, Description, DeviceId, DeviceKind, Features};
pub use device::Device;
pub use discover::{Absent, Inventory};
pub use disk_cache::{CACHE_VARIABLE, folder as cache_folder, write_atomically};
pub use dtype::{DType, UnknownDType, WithDType};
pub use error::{Error, Result, Severity, SharedError};
pub use graph::{Graph, GraphRecorder};
pub use kernel::{Access, Binding, BoundKernel, BoxError, Extent, Kernel, Program};
pub use launch::Launch;
pub use measure::{Rates, load_rates, measure, save_rates};
pub use module::Module;
pub use score::{ApiPoints, KindPoints, Score, ScoreTable, SizePoints, Weights};
pub use select::{DEVICES_VARIABLE, is_device_name, selection_from_environment};
pub use stream::{Download, Event, StagedUpload, Stream, Timestamp, Transfer};
pub use telemetry::Telemetry;
/// The version of wgpu whose types [`Device::from_wgpu`] takes.
#[cfg(feature = "wgpu")]
pub use wgpu;
