//! Meshes of devices, placement of a model on them, and collectives between their ranks.
//!
//! [`topology`] arranges devices by parallelism axes and names their groups; [`placement`] proposes which device takes
//! which rank. Neither starts a thread or touches a device. [`comm`] has the collectives, and [`Mesh::connect`] returns
//! a rank's communicator of a group.

mod backend;
pub mod comm;
pub mod placement;
pub mod topology;

pub use placement::{Planner, Proposal, Workload};
pub use topology::{LayoutError, Member, Mesh, Parallelism};
