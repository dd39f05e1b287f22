//! Collectives: groups of ranks that agree on a result, or fail together, and never hang.
//!
//! A [`World`] is one rank's place in a world of ranks: a thread of this process, or a process under `mpirun`. A
//! [`Communicator`] is that rank's place in a named group, and has the collectives. Each either gives the right answer on
//! every rank of the group, or an error on every rank within the group's timeout.
//!
//! ```
//! use evener_mesh::comm::{World, ReduceOp};
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
//! - The order of reduction is fixed by rank (see [`ReduceOp`]): every rank and every run gets the same bits.
//! - Ranks that call different collectives, or with different sizes, types, operations or roots, all get an error that
//!   says who called what. So they do when a rank is late, hangs, panics, leaves or dies.
//! - After such an error the group is beyond use. [`Communicator::rebuild`] makes one of those that are left.
//! - Every collective is also a barrier: when it has succeeded on one rank, all ranks have called it.

mod buffers;
mod call;
mod collective;
mod communicator;
mod describe;
mod device_communicator;
mod element;
mod error;
mod generation;
mod group_spec;
mod inner;
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
pub use element::{Element, ElementType, FloatElement};
pub(crate) use error::join;
pub use error::{CommError, Result};
pub use generation::Generation;
pub use group_spec::GroupSpec;
pub use pending::PendingCollective;
pub use reduce_op::ReduceOp;

use crate::backend::{Transport, local};

/// How long a call waits for the others where nothing else was said.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// One rank's place in a world of ranks. Dropping it tells the others that this rank makes no further groups.
#[derive(Debug)]
pub struct World {
    transport: Arc<dyn Transport>,
    world: Communicator,
}

impl World {
    /// A world of so many ranks that are threads of this process, a place each, with the default timeout.
    pub fn local(size: usize) -> Vec<World> {
        World::local_with_timeout(size, DEFAULT_TIMEOUT)
    }

    /// A world of so many ranks that are threads of this process, a place each. Groups made from it have this timeout
    /// unless they are given another.
    pub fn local_with_timeout(size: usize, timeout: Duration) -> Vec<World> {
        // Joining fails on no account where nothing was joined before.
        local::world(size).into_iter().filter_map(|transport| World::new(transport, timeout).ok()).collect()
    }

    /// This process's place in the world of whatever MPI is on the machine: started by `mpirun -n 4`, `srun` and the
    /// like, one of several; by itself, the only one. The library is opened at run time: one with the standard ABI of
    /// MPI-5 where there is one, then Open MPI, then MPICH, and of these the one whose launcher started this process;
    /// `EVENER_MPI` names another. Can be called once a process.
    ///
    /// MPI is ended with the last group. That waits at most so long for the other ranks; where one of them still has a
    /// group by then, or is gone, MPI is left as it is. Most launchers end the other ranks when a process exits without
    /// having ended MPI: a rank that works on alone for longer needs a longer timeout, which may be [`Duration::MAX`].
    ///
    /// # In a program that uses MPI itself
    /// An MPI that the program has started is used on a communicator of its own, and neither ended nor changed. It must
    /// have been started by `MPI_Init_thread` with `MPI_THREAD_SERIALIZED` at least; with `MPI_THREAD_MULTIPLE` where the
    /// program calls MPI while a group does, which cannot be found out here. All ranks call this together.
    ///
    /// An MPI that is started here is this crate's: errors on its world are returned from then on, not fatal. For MPICH,
    /// whose launcher tells processes by `SIGUSR1` that another has died, the signal does what the program wants as
    /// before; where it would have ended the process, a handler that does nothing stands in for that until MPI is ended.
    pub fn mpi(timeout: Duration) -> Result<World> {
        #[cfg(unix)]
        let world = crate::backend::mpi::world(timeout);
        #[cfg(not(unix))]
        let world = Err("only on Unix so far".to_owned());
        World::new(world.map_err(|detail| CommError::Unavailable { backend: "mpi", detail })?, timeout)
    }

    /// Whether a launcher of MPI programs started this process: `mpirun`, `mpiexec` or `srun`.
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

    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// How many ranks the world has.
    pub fn size(&self) -> usize {
        self.transport.size()
    }

    /// What carries the collectives: `local`, or `mpi` with the library's name and version.
    pub fn backend(&self) -> String {
        self.transport.name()
    }

    /// The group of all ranks.
    pub fn communicator(&self) -> &Communicator {
        &self.world
    }

    /// Makes a group, without waiting for its other members, each of which makes it too. Ranks that are not in it may
    /// make it as well; its collectives then fail with [`CommError::NotAMember`]. Without a timeout of its own it has
    /// the world's.
    ///
    /// Groups of the same name and ranks are matched in the order in which each rank makes them. Fails where the group
    /// is empty, names a rank twice or one that is not there, or is called `world`.
    pub fn new_group(&self, spec: GroupSpec) -> Result<Communicator> {
        if spec.name == "world" {
            let detail = "`world` is the group of all ranks: give it another name".into();
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
