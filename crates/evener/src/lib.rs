//! Evener makes unlike compute devices pull one load together, each by its measured strength: NVIDIA GPUs through
//! CUDA, any GPU through Vulkan, Metal or DX12, and the processor's cores.
//!
//! An *evener* is the bar in a harness that lets horses of unequal strength pull one load. This crate is the
//! front door: it re-exports what users need from the crates behind it.
//!
//! # Find the devices
//!
//! ```
//! use evener::prelude::*;
//!
//! let inventory = Inventory::discover();
//! for device in inventory.devices() {
//!     let it = device.describe();
//!     println!("{}: {} ({}, {:?} units)", it.id, it.name, it.kind, it.compute_units);
//! }
//! for absent in inventory.absent() {
//!     println!("{absent}"); // for example: cuda: no driver library found (libcuda.so.1)
//! }
//! ```
//!
//! Nothing has to be installed for that: drivers are opened at run time, and a missing one is a line of text.
//!
//! # Run a kernel on any of them
//!
//! A [`Kernel`] has up to three bodies (CUDA C, WGSL and a Rust function) and runs on whichever devices it has a
//! body for. See [`Kernel`] for one with all three; on the processor alone, Rust suffices:
//!
//! ```
//! use evener::prelude::*;
//!
//! let square = Kernel::new("square").reads::<u64>().writes::<u64>().rust(|launch| {
//!     let (input, output) = (launch.read::<u64>(0)?, launch.write::<u64>(1)?);
//!     for (square, value) in output.iter_mut().zip(input) {
//!         *square = value * value;
//!     }
//!     Ok(())
//! });
//!
//! let device = Device::cpu();
//! let input = device.buffer_from(&[1u64, 2, 3, 4])?;
//! let output = device.buffer::<u64>(4)?;
//! let mut stream = device.stream()?;
//! stream.launch(&device.compile(&square)?.bind(&[input.arg(), output.arg()])?, 1, &())?;
//! assert_eq!(stream.download(&output)?.wait()?, [1, 4, 9, 16]);
//! # Ok::<(), evener::Error>(())
//! ```
//!
//! # Test what happens when a device fails
//!
//! [`testing`] wraps any device so that it fails, hangs, slows down or gives a wrong result when told to.

pub use evener_device::*;
pub use evener_schedule as schedule;

/// What most programs need: `use evener::prelude::*`.
pub mod prelude {
    pub use evener_device::{Buffer, Device, Direction, Error, HostBuffer, Inventory, Kernel, Stream};
}
