//! Evener lets all compute devices of a machine share one load, each by its measured speed: NVIDIA GPUs through CUDA,
//! other GPUs through Vulkan, Metal or DX12, and the processor's cores.
//!
//! This crate re-exports what users need from the crates behind it. The guide in the folder `docs` of the repository
//! explains the same in seven chapters.
//!
//! # Find the devices
//!
//! ```
//! use evener::prelude::*;
//!
//! let inventory = Inventory::discover();
//! for device in inventory.devices() {
//!     let description = device.describe();
//!     println!("{}: {} ({})", description.id, description.name, description.kind);
//! }
//! for absent in inventory.absent() {
//!     println!("{absent}"); // for example: cuda: no driver library found (libcuda.so.1)
//! }
//! ```
//!
//! Discovery needs nothing installed: drivers are opened at run time, and a missing driver is a line of text, not an
//! error.
//!
//! # Run a kernel on a device
//!
//! A [`Kernel`] has up to three bodies (CUDA C, WGSL and a Rust function) and runs on every device that it has a body
//! for. [`Kernel`] shows one with all three. On the processor alone, Rust suffices:
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
//! # Share a load between all devices
//!
//! A [`Pool`] is a set of devices that work together. Devices take chunks of the items of a [`Task`] as fast as they can
//! compute them, and the results are in the order of the items. If a device fails, hangs or gives a wrong result, other
//! devices compute its items.
//!
//! ```
//! use evener::prelude::*;
//!
//! let pool = Pool::new([Device::cpu()])?; // or Pool::all()
//! let square = Closure::new("square", |&number: &u64| number * number);
//! let run = pool.map(&square, &[1, 2, 3, 4])?;
//! assert_eq!(run.results(), [1, 4, 9, 16]);
//! println!("{}", run.report()); // what each device did, and how close to ideal
//! # Ok::<(), evener::RunError>(())
//! ```
//!
//! | item | what it is for |
//! | --- | --- |
//! | [`Pool::job`] | options: strategy, deadline, cancelling, progress, trace |
//! | [`KernelTask`] | a kernel as a task |
//! | [`Pool::map_arrays`] | a kernel with several inputs and outputs |
//! | [`Pool::map_into`] | results in memory of your own |
//! | [`Pool::map_reduce`], [`Pool::for_each`], [`Pool::map_stream`] | other ways to run |
//! | [`Pool::queue`] | a service that takes one item at a time |
//!
//! ```
//! use evener::prelude::*;
//!
//! fn answer<T: Task<Input = u64, Output = u64>>(queue: &Queue<T>) -> Result<u64, evener::QueueError> {
//!     let urgent: Handle<u64> = queue.submit_with(4, 10)?; // a priority; 0 is usual
//!     urgent.wait() // or `.await`; dropping the handle cancels the piece
//! }
//!
//! let pool = Pool::new([Device::cpu()])?;
//! let queue = pool.queue(&Closure::new("square", |&number: &u64| number * number)).open()?;
//! assert_eq!(answer(&queue)?, 16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Arrange devices as a mesh
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
//! # Prove with Groth16 over every device
//!
//! [`zk`] proves witnesses of circom circuits with keys of snarkjs, or of circuits that are written with `ark-relations`.
//! Every proof is verified before it is handed out.
//!
//! ```
//! use evener::{prelude::*, zk::{Error, groth16::{Prover, ProvingKey, Squares}}};
//!
//! # fn main() -> Result<(), Error> {
//! let circuit = Squares::filling(6); // 56 constraints
//! let key = ProvingKey::set_up(&circuit.r1cs()?)?; // or ProvingKey::read("circuit.zkey")
//! let prover = Prover::load(&Pool::new([Device::cpu()])?, key); // or Pool::all()
//! let proved = prover.prove(circuit.witness(3.into())?)?;
//! prover.key().verifying_key().verify(&proved.proof, &proved.public)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Test what happens when a device fails
//!
//! [`testing`] wraps any device so that it fails, hangs, slows down or gives a wrong result on demand.
//!
//! # Cargo features
//!
//! All features but `otlp`, `serve` and `view` are on by default. `default-features = false` leaves the scheduler, with the processor as the only device.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `cluster` | [`cluster`]: devices of other machines |
//! | `cuda` | NVIDIA cards through the CUDA driver, which is opened at run time |
//! | `wgpu` | GPUs through Vulkan, Metal, Direct3D 12 or OpenGL; [`Device::from_wgpu`] |
//! | `mesh` | [`mesh`]: meshes of devices, and collectives between them |
//! | `merkle` | [`merkle`]: Merkle trees over a pool |
//! | `otlp` | `view::otlp`: runs and chunks as OpenTelemetry's spans, to a collector |
//! | `view` | `view`: what every device does, as a value that is kept up to date, and for `evener top` |
//! | `serve` | `view::Serve`: the same as a web page and as metrics for Prometheus |
//! | `train` | [`train`]: data-parallel training over unlike devices |
//! | `parallel` | [`parallel`](mod@parallel): `#[parallel]`, loops over every device |
//! | `zk` | [`zk`]: Groth16 proofs over BN254, multi-scalar multiplications and transforms |

/// For types of your own in buffers: `#[derive(Clone, Copy, Pod, Zeroable)] #[bytemuck(crate = "evener::bytemuck")]`.
pub use bytemuck;
/// Devices of other machines: hosts, and how workers are started there.
#[cfg(feature = "cluster")]
pub use evener_cluster as cluster;
/// What makes a program a worker.
#[cfg(feature = "cluster")]
pub use evener_cluster::worker;
pub use evener_device::*;
/// Merkle trees over a pool: roots, trees and proofs.
#[cfg(feature = "merkle")]
pub use evener_merkle as merkle;
/// Meshes of devices, placement of a model on them, and collectives between their ranks.
#[cfg(feature = "mesh")]
pub use evener_mesh as mesh;
/// `#[parallel]`, `#[parallel::function]`, and the types of a run: one plain Rust loop on every device.
#[cfg(feature = "parallel")]
pub use evener_parallel::parallel;
/// The whole scheduler: its settings, decisions, reports and simulator.
pub use evener_schedule as schedule;
pub use evener_schedule::{
    Arrays, BoxClosure, Cancel, Chunk, Closure, Handle, Job, KernelParams, KernelTask, MapStream, Mapped,
    Pool, Progress, Queue, QueueError, Reduced, Report, Resident, Results, RunError, Strategy, Task, task_fn,
};
#[cfg(feature = "view")]
pub mod view;
/// Data-parallel training over unlike devices: shares by measured speed, and the gradient of one device.
#[cfg(feature = "train")]
pub use evener_train as train;
/// Groth16 proofs over BN254, and their arithmetic on every device: fields, curves, multi-scalar multiplications and
/// number-theoretic transforms.
#[cfg(feature = "zk")]
pub use evener_zk as zk;

/// The types that most programs need: `use evener::prelude::*`.
pub mod prelude {
    pub use bytemuck::{Pod, Zeroable};
    pub use evener_device::{Buffer, Device, Direction, Error, HostBuffer, Inventory, Kernel, Stream};
    #[cfg(feature = "parallel")]
    pub use evener_parallel::parallel;
    pub use evener_schedule::{
        Arrays, Cancel, Chunk, Closure, Handle, KernelParams, KernelTask, Pool, Queue, Results, RunError,
        Strategy, Task,
    };

    #[cfg(feature = "serve")]
    pub use crate::view::Serve;
}

/// Compiles and runs the programs of the guide and of the README as documentation tests.
#[cfg(doctest)]
mod guide {
    macro_rules! chapters {
        ($($name:ident: $path:literal),* $(,)?) => {
            $(#[doc = include_str!(concat!("../../../", $path))] mod $name {})*
        };
    }

    chapters! {
        readme: "README.md",
        devices: "docs/devices.md",
        first_kernel: "docs/first-kernel.md",
        sharing_a_load: "docs/sharing-a-load.md",
        failure: "docs/failure.md",
        mesh: "docs/mesh.md",
        proofs: "docs/proofs.md",
        other_machines: "docs/other-machines.md",
        training: "docs/training.md",
        parallel: "docs/parallel.md",
    }

    // The programs of this chapter need the feature.
    #[cfg(feature = "serve")]
    chapters! { watching: "docs/watching.md" }
}
