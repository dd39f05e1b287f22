//! Who talks to whom: devices arranged by parallelism axes, process groups, and collectives.

pub mod topology;

pub use topology::{LayoutError, Member, Mesh, Parallelism};
