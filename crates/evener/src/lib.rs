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
//! # Let all of them share a load
//!
//! A [`Pool`] is devices that work together. It hands out the items of a [`Task`] to them as they can take them, and
//! gives the results in the items' order; a device that fails, hangs or is wrong loses nothing but its turn.
//!
//! ```
//! use evener::prelude::*;
//!
//! let pool = Pool::new([Device::cpu()])?; // or Pool::all()
//! let square = Closure::new("square", |&number: &u64| number * number);
//! let run = pool.map(&square, &[1, 2, 3, 4])?;
//! assert_eq!(run.results(), [1, 4, 9, 16]);
//! println!("{}", run.report()); // who did what, how close to ideal
//! # Ok::<(), evener::RunError>(())
//! ```
//!
//! [`Pool::job`] has the options (strategy, deadline, cancelling, progress, trace), [`KernelTask`] puts a kernel to
//! work, also one with several inputs and outputs ([`Pool::map_arrays`]), [`Pool::map_into`] writes the results to
//! where you want them, [`Pool::map_reduce`], [`Pool::for_each`] and [`Pool::map_stream`] are the other ways to run, and
//! [`Pool::queue`] is a service that takes work one piece at a time: the first device that can take a piece does it.
//!
//! ```
//! use evener::prelude::*;
//!
//! /// What a server keeps for its requests.
//! fn answer<T: Task<Input = u64, Output = u64>>(queue: &Queue<T>) -> Result<u64, evener::QueueError> {
//!     let urgent: Handle<u64> = queue.submit_with(4, 10)?; // a priority; 0 is usual
//!     urgent.wait() // or `.await`; dropping it cancels the piece
//! }
//!
//! let pool = Pool::new([Device::cpu()])?;
//! let queue = pool.queue(&Closure::new("square", |&number: &u64| number * number)).open()?;
//! assert_eq!(answer(&queue)?, 16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Arrange them as a mesh
//!
//! A [`Mesh`](mesh::Mesh) gives each device a rank and arranges the ranks by named axes, which also name the groups. The
//! error of a layout that does not fit says what would fit. [`mesh::placement`] proposes which device takes which rank,
//! and predicts the time; [`mesh::comm`] has the collectives between ranks.
//!
//! ```
//! use evener::{DeviceKind, mesh::{Member, Mesh}};
//!
//! let devices = (0..8).map(|index| Member::new(format!("gpu-{index}"), DeviceKind::Discrete)); // or real devices
//! let mesh = Mesh::new(devices).axes([("dp", 2), ("pp", 2), ("tp", 2)])?;
//! assert_eq!(mesh.group("tp_dp0_pp1")?.ranks()?, [2, 3]);
//! # Ok::<(), evener::mesh::LayoutError>(())
//! ```
//!
//! # Build a Merkle tree over every device
//!
//! ```
//! use evener::{merkle::{Leaves, MerkleTree}, prelude::*};
//!
//! let pool = Pool::new([Device::cpu()])?; // or Pool::all()
//! let leaves: Vec<[u8; 32]> = (0..1000u32).map(|number| [number as u8; 32]).collect();
//! let tree = MerkleTree::build(&pool, &Leaves::from(&leaves))?;
//! let root = tree.root().ok_or("no leaves")?;
//! tree.proof(41)?.verify_leaf(&root, &leaves[41])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Test what happens when a device fails
//!
//! [`testing`] wraps any device so that it fails, hangs, slows down or gives a wrong result when told to.
//!
//! # Cargo features
//!
//! All are on by default; `default-features = false` leaves the processor as the only device and the scheduler.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `cuda` | NVIDIA cards through the CUDA driver, which is opened at run time |
//! | `wgpu` | GPUs through Vulkan, Metal, Direct3D 12 or OpenGL; [`Device::from_wgpu`] |
//! | `mesh` | [`mesh`]: meshes of devices, and collectives between them |
//! | `merkle` | [`merkle`]: Merkle trees over a pool |

pub use evener_device::*;
/// Merkle trees over a pool: roots, trees and proofs.
#[cfg(feature = "merkle")]
pub use evener_merkle as merkle;
/// Meshes of devices, placement of a model on them, and collectives between their ranks.
#[cfg(feature = "mesh")]
pub use evener_mesh as mesh;
/// All of the scheduler: its settings, decisions, reports and simulator.
pub use evener_schedule as schedule;
pub use evener_schedule::{
    Arrays, BoxClosure, Cancel, Chunk, Closure, Handle, Job, KernelParams, KernelTask, MapStream, Mapped,
    Pool, Progress, Queue, QueueError, Reduced, Report, Resident, Results, RunError, Strategy, Task,
};

/// What most programs need: `use evener::prelude::*`.
pub mod prelude {
    pub use bytemuck::Pod;
    pub use evener_device::{Buffer, Device, Direction, Error, HostBuffer, Inventory, Kernel, Stream};
    pub use evener_schedule::{
        Arrays, Cancel, Chunk, Closure, Handle, KernelParams, KernelTask, Pool, Queue, Results, RunError,
        Strategy, Task,
    };
}
