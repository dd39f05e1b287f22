//! Collectives between ranks: all ranks of a group get the result, or all get an error; no call hangs.
//!
//! A [`World`] is one rank's view of all ranks: threads of this process, or processes under `mpirun`. A
//! [`Communicator`] connects a rank to a named group of ranks, and has the collectives. Each call gives the right
//! result on every rank of the group, or an error on every rank within the group's timeout.
//!
//! ```
//! use evener_mesh::comm::{ReduceOp, World};
//!
//! let ranks: Vec<_> = World::local(4)
//!     .into_iter()
//!     .map(|world| {
//!         std::thread::spawn(move || {
//!             let mut gradient = [world.rank() as f32, 1.0];
//!             world.communicator().all_reduce(&mut gradient, ReduceOp::Sum)?;
//!             Ok::<_, evener_mesh::comm::CommError>(gradient)
//!         })
//!     })
//!     .collect();
//! for rank in ranks {
//!     assert_eq!(rank.join().unwrap()?, [6.0, 4.0]);
//! }
//! # Ok::<(), evener_mesh::comm::CommError>(())
//! ```
//!
//! # What is promised
//! - The order of reduction is fixed by rank (see [`ReduceOp`]): every rank and every run gets the same bits. Over NCCL
//!   the order is NCCL's: the same bits on every rank, but not those of the other back ends.
//! - If ranks call different collectives, or with different sizes, types, operations or roots, all get an error that
//!   says which rank called what. If a rank is late, hangs, panics, leaves or dies, the others get an error too.
//! - After such an error the group is poisoned. [`Communicator::rebuild`] creates a new group of the remaining
//!   ranks.
//! - Every collective is also a barrier: when it has succeeded on one rank, all ranks have called it.

mod buffers;
mod call;
mod call_lock;
mod collective;
mod communicator;
mod communicator_state;
mod describe;
mod device_communicator;
mod element;
mod error;
mod generation;
mod group_spec;
mod methods;
mod named;
mod pending;
mod reduce_op;
mod start;
mod uneven;

use std::{sync::Arc, time::Duration};

pub(crate) use call::{Blocks, Call, CollectiveKind, Signature};
pub use collective::Collective;
pub use communicator::Communicator;
pub use device_communicator::DeviceCommunicator;
pub use element::{CollectiveDType, Element, FloatElement};
pub(crate) use error::join;
pub use error::{CommError, Result};
pub use generation::Generation;
pub use group_spec::GroupSpec;
pub use pending::PendingCollective;
pub use reduce_op::ReduceOp;

use crate::backend::{Transport, local};

/// How long a call waits for the other ranks by default.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// One rank's view of all ranks of a job. Dropping it notifies the others that this rank creates no further groups.
#[derive(Debug)]
pub struct World {
    transport: Arc<dyn Transport>,
    world: Communicator,
}

impl World {
    /// Creates a world of `size` ranks that are threads of this process, with the default timeout. Returns one `World`
    /// per rank.
    pub fn local(size: usize) -> Vec<World> {
        World::local_with_timeout(size, DEFAULT_TIMEOUT)
    }

    /// Creates a world of `size` ranks that are threads of this process. Returns one `World` per rank. Groups inherit
    /// this timeout unless they set another.
    pub fn local_with_timeout(size: usize, timeout: Duration) -> Vec<World> {
        // Joining cannot fail in a new world.
        local::world(size).into_iter().filter_map(|transport| World::new(transport, timeout).ok()).collect()
    }

    /// Joins the MPI world of this process: all processes that `mpirun -n 4`, `srun` or a similar launcher started, or
    /// this process alone. The MPI library is opened at run time: one with the standard ABI of MPI-5, then Open MPI,
    /// then MPICH, and of these the one whose launcher started this process; `EVENER_MPI` names another. Can be called
    /// once per process.
    ///
    /// MPI is finalized with the last group. That waits for the other ranks, but no longer than `timeout`; if a rank
    /// still has a group then, or is gone, MPI is not finalized. Most launchers kill the other ranks when a process
    /// exits without finalizing MPI: a rank that works on alone for longer needs a longer timeout, for example
    /// [`Duration::MAX`].
    ///
    /// # In a program that uses MPI itself
    /// An MPI that the program has initialized is used through a duplicated communicator, and neither finalized nor
    /// changed. The program must have called `MPI_Init_thread` with at least `MPI_THREAD_SERIALIZED`, or
    /// `MPI_THREAD_MULTIPLE` if it calls MPI during collectives, which cannot be checked here. All ranks call this
    /// together. Communicators may be dropped after the program has finalized MPI, but not called.
    ///
    /// If this function initializes MPI, errors on `MPI_COMM_WORLD` are returned, not fatal. MPICH's launcher sends
    /// `SIGUSR1` when a process has died: the program's own action stays in force, and if the signal would kill the
    /// process, a handler that does nothing is installed until MPI is finalized.
    pub fn mpi(timeout: Duration) -> Result<World> {
        #[cfg(unix)]
        let world = crate::backend::mpi::world(timeout);
        #[cfg(not(unix))]
        let world = Err("only on Unix so far".to_owned());
        World::new(world.map_err(|detail| CommError::Unavailable { backend: "mpi", detail })?, timeout)
    }

    /// Returns whether an MPI launcher (`mpirun`, `mpiexec` or `srun`) started this process.
    pub fn was_launched_by_mpi() -> bool {
        #[cfg(unix)]
        return crate::backend::mpi::library::was_launched();
        #[cfg(not(unix))]
        return false;
    }

    pub(crate) fn new(transport: Arc<dyn Transport>, timeout: Duration) -> Result<World> {
        let ranks: Vec<_> = (0..transport.size()).collect();
        let world = Communicator::join(&transport, GroupSpec::new("world", ranks), timeout)?;
        Ok(World { transport, world })
    }

    /// Returns this rank's number in the world.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.transport.size()
    }

    /// Returns the back end: `local`, or `mpi` with the library's name and version.
    pub fn backend(&self) -> String {
        self.transport.name()
    }

    /// Returns the communicator of all ranks.
    pub fn communicator(&self) -> &Communicator {
        &self.world
    }

    /// Creates a group and returns this rank's communicator, without waiting for the other members, each of which
    /// creates it too. Ranks that are not in the group may create it as well; their collectives fail with
    /// [`CommError::NotAMember`]. The default timeout is the world's.
    ///
    /// Groups of the same name and ranks are matched in the order in which each rank creates them. Fails if the group
    /// is empty, has a rank twice or an unknown rank, or is named `world`.
    pub fn new_group(&self, spec: GroupSpec) -> Result<Communicator> {
        if spec.name == "world" {
            let detail =
                "the name `world` is reserved for the group of all ranks: choose another name".into();
            return Err(CommError::InvalidGroup { group: spec.name, detail });
        }
        Communicator::join(&self.transport, spec, self.world.timeout())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.transport.leave(std::thread::panicking());
    }
}
