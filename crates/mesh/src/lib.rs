//! Who talks to whom: devices arranged by parallelism axes, process groups, and collectives.
//!
//! [`topology`] arranges devices and names their groups; [`placement`] says which device should be where. Both decide
//! and do nothing else: no thread, no clock, no device of their own. [`comm`] has the collectives,
//! and [`Mesh::connect`] gives a rank its groups to call them on.

mod backend;
pub mod comm;
pub mod placement;
pub mod topology;

pub use placement::{Planner, Proposal, Workload};
pub use topology::{LayoutError, Member, Mesh, Parallelism};
